//! Takes every privilege out of a freshly built tree.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use super::error::Error;

/// Directories that anyone may write to, with the sticky bit.
const SHARED: [&str; 2] = ["tmp", "var/tmp"];
/// User code may install, replace and remove packages: in its own sandbox's copy, as every write goes to
/// that. On the host nobody gets here: the directory of a mirror is closed to all but root.
const WRITABLE: &str = "opt/venv";
/// Set-user-id, set-group-id, sticky.
const SPECIAL_BITS: u32 = 0o7000;
const WRITE_BY_OTHERS: u32 = 0o022;
/// Most bytes of a file's list of attribute names; the kernel has the same limit.
const NAMES_BYTES: usize = 64 * 1024;

/// Gives all of `root` to `owner`, takes set-id bits, file capabilities and every other extended
/// attribute, and the write permission of group and others except in `/tmp` and `/var/tmp`; in
/// `/opt/venv` gives it to all.
/// Does not follow links.
///
/// # Errors
/// [`Error::Special`] for a device, pipe or socket outside `/dev`, [`Error::Io`] otherwise.
pub(super) fn strip(root: &Path, owner: u32) -> Result<(), Error> {
    let dev = root.join("dev");
    for entry in fs::read_dir(&dev).map_err(Error::io("list", &dev))? {
        let path = entry.map_err(Error::io("list", &dev))?.path();
        let meta = fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
        if meta.is_dir() {
            fs::remove_dir_all(&path).map_err(Error::io("delete", &path))?;
        } else {
            fs::remove_file(&path).map_err(Error::io("delete", &path))?;
        }
    }
    strip_below(root, root, owner, &mut vec![0; NAMES_BYTES])
}

fn strip_below(root: &Path, path: &Path, owner: u32, names: &mut [u8]) -> Result<(), Error> {
    let meta = fs::symlink_metadata(path).map_err(Error::io("look at", path))?;
    lchown(path, Some(owner), Some(owner)).map_err(Error::io("change the owner of", path))?;
    strip_attributes(path, names)?;
    if meta.is_symlink() {
        return Ok(());
    }
    if !meta.is_file() && !meta.is_dir() {
        return Err(Error::Special {
            path: path.to_path_buf(),
            kind: "device, pipe or socket",
        });
    }
    let inside = path.strip_prefix(root).unwrap_or(path);
    let mode = if SHARED.iter().any(|name| inside == Path::new(name)) {
        0o1777
    } else if inside.starts_with(WRITABLE) {
        meta.mode() & 0o7777 & !SPECIAL_BITS | WRITE_BY_OTHERS
    } else {
        meta.mode() & 0o7777 & !(SPECIAL_BITS | WRITE_BY_OTHERS)
    };
    // After the owner: changing that clears set-id bits, and may run first on a hard link.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::io("change the mode of", path))?;
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::io("list", path))? {
            let entry = entry.map_err(Error::io("list", path))?;
            strip_below(root, &entry.path(), owner, names)?;
        }
    }
    Ok(())
}

/// `security.capability` above all; nothing in a mirror needs any attribute.
fn strip_attributes(path: &Path, names: &mut [u8]) -> Result<(), Error> {
    use std::os::unix::ffi::OsStrExt;
    let count = match rustix::fs::llistxattr(path, &mut *names) {
        Ok(count) => count,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(Error::errno("list the attributes of", path)(errno)),
    };
    for name in names[..count]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        // Labels of the host's security modules can neither be removed nor grant anything here.
        if name == b"security.selinux" || name.starts_with(b"security.SMACK64") {
            continue;
        }
        rustix::fs::lremovexattr(path, OsStr::from_bytes(name))
            .map_err(Error::errno("remove an attribute of", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::testing::{OWNER, temp_store};
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn tree(root: &Path) {
        for dir in ["dev", "etc", "tmp", "var/tmp", "var/mail", "opt/venv/lib"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for (file, bits) in [
            ("etc/su", 0o6755),
            ("etc/open", 0o666),
            ("etc/key", 0o640),
            ("opt/venv/lib/tool", 0o4755),
        ] {
            fs::write(root.join(file), "x").unwrap();
            fs::set_permissions(root.join(file), PermissionsExt::from_mode(bits)).unwrap();
        }
        fs::set_permissions(root.join("var/mail"), PermissionsExt::from_mode(0o2775)).unwrap();
        fs::write(root.join("dev/null"), "").unwrap();
        symlink("/etc/su", root.join("etc/link")).unwrap();
    }

    #[test]
    fn no_privilege_is_left() {
        let store = temp_store();
        let root = store.0.dir.join("tree");
        tree(&root);
        strip(&root, *OWNER).unwrap();
        assert_eq!(mode(&root.join("etc/su")), 0o755);
        assert_eq!(mode(&root.join("etc/open")), 0o644);
        assert_eq!(mode(&root.join("etc/key")), 0o640);
        assert_eq!(mode(&root.join("var/mail")), 0o755);
        assert_eq!(mode(&root.join("opt")), 0o755);
        assert_eq!(mode(&root.join("opt/venv/lib")), 0o777);
        assert_eq!(mode(&root.join("opt/venv/lib/tool")), 0o777);
        assert_eq!(mode(&root.join("tmp")), 0o1777);
        assert_eq!(mode(&root.join("var/tmp")), 0o1777);
        assert_eq!(fs::read_dir(root.join("dev")).unwrap().count(), 0);
    }

    #[test]
    fn attributes_are_removed() {
        let store = temp_store();
        let root = store.0.dir.join("tree");
        tree(&root);
        let file = root.join("etc/key");
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(&file, "user.note", b"x", flags)
            == Err(rustix::io::Errno::OPNOTSUPP)
        {
            panic!("this test needs a temporary directory with user attributes (TMPDIR)");
        }
        strip(&root, *OWNER).unwrap();
        assert_eq!(rustix::fs::llistxattr(&file, &mut [0_u8; 256][..]), Ok(0));
    }

    #[test]
    fn a_socket_is_refused() {
        let store = temp_store();
        let root = store.0.dir.join("tree");
        tree(&root);
        let socket = std::os::unix::net::UnixListener::bind(root.join("etc/socket")).unwrap();
        let error = strip(&root, *OWNER).unwrap_err();
        assert!(matches!(error, Error::Special { .. }), "{error}");
        drop(socket);
    }
}
