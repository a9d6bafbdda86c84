//! Changes of the tree that need no content: all of them by descriptor and name, so a link on the
//! way is refused and one at the end is taken for itself.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, RenameFlags, fstat, mkdirat, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::list::entry_of;
use super::{Refusal, home, open_dir, open_folder, parts_of, place_of};
use crate::isolation::channel;
use crate::isolation::spec::Reply;

/// Directories nested deeper than this are not removed: each level takes a descriptor, of which a
/// process has 1024 by default (`limits.open_files`).
pub(super) const MAX_DEPTH: usize = 512;

pub(super) fn stat(reply: BorrowedFd<'_>, path: &[u8]) -> Result<(), Refusal> {
    let mut parts = parts_of(path)?;
    let entry = match parts.pop() {
        None => entry_of(b".".to_vec(), &fstat(home()?)?),
        Some(name) => {
            let dir = open_folder(&parts, false)?;
            let stat = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            parts.push(name);
            let path: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
            entry_of(path.join(&b'/'), &stat)
        }
    };
    let entries = vec![entry];
    Ok(channel::send_json(reply, &Reply::Entries { entries }, &[])?)
}

pub(super) fn make_directory(path: &[u8], parents: bool) -> Result<(), Refusal> {
    let (above, name) = place_of(path)?;
    let dir = open_folder(&above, parents)?;
    match mkdirat(&dir, &name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) if parents && open_dir(&dir, &name).is_ok() => Ok(()),
        other => Ok(other?),
    }
}

pub(super) fn rename(from: &[u8], to: &[u8], overwrite: bool) -> Result<(), Refusal> {
    let (from_above, from_name) = place_of(from)?;
    let (to_above, to_name) = place_of(to)?;
    let from_dir = open_folder(&from_above, false)?;
    // Before directories are made for it.
    statat(&from_dir, &from_name, AtFlags::SYMLINK_NOFOLLOW)?;
    let to_dir = open_folder(&to_above, true)?;
    if overwrite {
        return Ok(renameat(&from_dir, &from_name, &to_dir, &to_name)?);
    }
    let flags = RenameFlags::NOREPLACE;
    let renamed = renameat_with(&from_dir, &from_name, &to_dir, &to_name, flags);
    Ok(renamed?)
}

pub(super) fn remove(path: &[u8], recursive: bool) -> Result<(), Refusal> {
    let (above, name) = place_of(path)?;
    let dir = open_folder(&above, false)?;
    let stat = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(unlinkat(&dir, &name, AtFlags::empty())?);
    }
    if recursive {
        return remove_directory(dir.as_fd(), &name, 0);
    }
    Ok(unlinkat(&dir, &name, AtFlags::REMOVEDIR)?)
}

/// Removes a directory and what is in it; what vanishes meanwhile is no error.
pub(super) fn remove_directory(
    above: BorrowedFd<'_>,
    name: &CStr,
    depth: usize,
) -> Result<(), Refusal> {
    if depth >= MAX_DEPTH {
        let why = format!("directories are nested deeper than {MAX_DEPTH}; use a command");
        return Err(Refusal("bad_path", why));
    }
    let dir = match open_dir(above, name) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    // Read to the end first: what is removed during a reading may hide what is not.
    let names: Vec<_> = Dir::read_from(&dir)?
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .collect::<Result<_, _>>()?;
    for name in names {
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(&dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Linux's word for a directory (unlink(2)).
            Err(Errno::ISDIR) => remove_directory(dir.as_fd(), &name, depth + 1)?,
            Err(e) => return Err(e.into()),
        }
    }
    match unlinkat(above, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
