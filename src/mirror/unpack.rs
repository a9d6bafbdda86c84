//! Reads what an installation in a sandbox has changed, and makes a layer's tree of it.
//!
//! The stream comes from a process with a sandbox user's identity (`rootfs/layer.py`), so nothing in
//! it is believed: only regular files, directories and links that stay inside are made, below one
//! directory, each opened without following links (openat2(2)), in a tree that nobody else writes to;
//! their number, size and names have limits, set-id bits are dropped, and all of it gets one owner.
//!
//! What the base has and the stream does not was removed: it is hidden by a whiteout, a character
//! device 0/0 (overlayfs documentation, "whiteouts and opaque directories").

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fchmod, makedev, mkdirat,
    mknodat, openat2, symlinkat, unlinkat,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::manifest::{Entry, Kind, Manifest, escape, hex};

/// Longest header: a path and a link's target, as JSON.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// `PATH_MAX` of Linux.
const MAX_PATH_BYTES: usize = 4096;
/// `NAME_MAX` of Linux.
const MAX_NAME_BYTES: usize = 255;
/// Directories within each other.
const MAX_DEPTH: usize = 64;
const BUFFER_BYTES: usize = 256 * 1024;
/// Permissions that files and directories may have, and those that they have at least: in `/opt/venv`
/// of a mirror everything is writable for all (`tree.rs`), as user code may install there.
const MOST_MODE: u32 = 0o777;
const LEAST_MODE: u32 = 0o666;
/// For what the base does not tell the mode of.
const DIRECTORY_MODE: u32 = 0o777;

/// What a layer may be.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files, directories and links, those of the base's part included.
    pub entries: usize,
}

/// Why there is no layer.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The stream breaks off, or holds what no installation leaves.
    #[error("the installed files cannot be taken: {0}")]
    Refused(String),
    /// A limit.
    #[error("the installed files are too many: {0}")]
    TooLarge(String),
    /// The disk.
    #[error("failed to write a layer: {0}")]
    Io(#[from] std::io::Error),
}

impl From<rustix::io::Errno> for UnpackError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    mode: u32,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    target: String,
}

/// A layer being made.
pub(super) struct Unpack<'a> {
    root: &'a OwnedFd,
    /// Path of the only directory that may have changed.
    within: &'a str,
    base: BTreeMap<&'a [u8], &'a Entry>,
    owner: u32,
    bounds: Bounds,
    seen: BTreeSet<Vec<u8>>,
    made: BTreeSet<String>,
    bytes: u64,
}

impl<'a> Unpack<'a> {
    /// Into the empty directory `root`, over a base with that manifest.
    pub(super) fn new(
        root: &'a OwnedFd,
        within: &'a str,
        base: &'a Manifest,
        owner: u32,
        bounds: Bounds,
    ) -> Self {
        let base = base.entries.iter().map(|e| (e.path.as_slice(), e));
        Self {
            root,
            within,
            base: base.collect(),
            owner,
            bounds,
            seen: BTreeSet::new(),
            made: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Reads the whole stream.
    ///
    /// # Errors
    /// See [`UnpackError`]; what was made until then is left.
    pub(super) fn run(mut self, stream: &mut dyn Read) -> Result<(), UnpackError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let header = read_header(stream)?;
            if header.kind == "end" {
                break;
            }
            self.check_path(&header.path)?;
            if self.seen.len() >= self.bounds.entries {
                let most = self.bounds.entries;
                return Err(UnpackError::TooLarge(format!(
                    "more than {most} (mirrors.max_layer_entries)"
                )));
            }
            if !self.seen.insert(header.path.clone().into_bytes()) {
                return Err(refused(&header.path, "comes twice"));
            }
            match header.kind.as_str() {
                "same" if self.base.contains_key(header.path.as_bytes()) => {}
                "directory" => self.directory(&header.path, header.mode)?,
                "link" => self.link(&header.path, &header.target)?,
                "file" => self.file(&header, stream, &mut buffer)?,
                _ => return Err(refused(&header.path, "is no file, directory or link")),
            }
        }
        self.hide_removed()
    }

    fn check_path(&self, path: &str) -> Result<(), UnpackError> {
        let inside = path == self.within
            || path
                .strip_prefix(self.within)
                .is_some_and(|rest| rest.starts_with('/'));
        let bad = |name: &str| {
            name.is_empty() || name == "." || name == ".." || name.len() > MAX_NAME_BYTES
        };
        let names = path.split('/');
        if !inside
            || path.len() > MAX_PATH_BYTES
            || path.contains('\0')
            || names.clone().count() > MAX_DEPTH
            || names.clone().any(bad)
        {
            return Err(refused(path, "is no path of an installed file"));
        }
        Ok(())
    }

    /// The directory of a path's last name, made with those above it, and that name.
    fn parent<'p>(&mut self, path: &'p str) -> Result<(OwnedFd, &'p str), UnpackError> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return Ok((self.open("")?, path));
        };
        self.make_directory(parent, None)?;
        Ok((self.open(parent)?, name))
    }

    /// A directory of the tree; nothing on the way is a link.
    fn open(&self, path: &str) -> Result<OwnedFd, UnpackError> {
        let path = if path.is_empty() { "." } else { path };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(self.root, path, flags, Mode::empty(), resolve)
            .map_err(|_| refused(path, "is no directory"))
    }

    fn make_directory(&mut self, path: &str, mode: Option<u32>) -> Result<(), UnpackError> {
        if self.made.contains(path) {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        // As the base has it: it is this one that is seen.
        let of_base = self.base.get(path.as_bytes()).and_then(|e| match e.kind {
            Kind::Directory => Some(e.mode),
            _ => None,
        });
        let mode = match of_base {
            Some(of_base) => of_base,
            None => mode.unwrap_or(DIRECTORY_MODE) & MOST_MODE | LEAST_MODE | 0o111,
        };
        mkdirat(&parent, name, Mode::from_raw_mode(0o700))
            .map_err(|_| refused(path, "cannot be a directory"))?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let made = openat2(&parent, name, flags, Mode::empty(), ResolveFlags::BENEATH)?;
        self.own(&made, mode)?;
        self.made.insert(path.to_owned());
        Ok(())
    }

    fn directory(&mut self, path: &str, mode: u32) -> Result<(), UnpackError> {
        let of_base = self.base.get(path.as_bytes()).map(|e| e.kind.clone());
        if of_base == Some(Kind::Directory) {
            // It is made when something in it is; that something in it changed is not enough.
            return Ok(());
        }
        self.make_directory(path, Some(mode))
    }

    fn own(&self, file: &OwnedFd, mode: u32) -> Result<(), UnpackError> {
        let owner = (Uid::from_raw(self.owner), Gid::from_raw(self.owner));
        rustix::fs::fchown(file, Some(owner.0), Some(owner.1))?;
        fchmod(file, Mode::from_raw_mode(mode))?;
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) -> Result<(), UnpackError> {
        let same = self.base.get(path.as_bytes()).is_some_and(
            |e| matches!(&e.kind, Kind::Link { target: of_base } if of_base == target.as_bytes()),
        );
        if same {
            return Ok(());
        }
        if !stays_within(self.within, path, target) {
            return Err(refused(path, "is a link that leads out of the environment"));
        }
        let (parent, name) = self.parent(path)?;
        symlinkat(target, &parent, name).map_err(|_| refused(path, "cannot be a link"))?;
        let owner = (Uid::from_raw(self.owner), Gid::from_raw(self.owner));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        chownat(&parent, name, Some(owner.0), Some(owner.1), flags)?;
        Ok(())
    }

    fn file(
        &mut self,
        header: &Header,
        stream: &mut dyn Read,
        buffer: &mut [u8],
    ) -> Result<(), UnpackError> {
        self.bytes = self.bytes.saturating_add(header.size);
        if self.bytes > self.bounds.bytes {
            let most = self.bounds.bytes;
            return Err(UnpackError::TooLarge(format!(
                "more than {most} bytes (mirrors.max_layer_bytes)"
            )));
        }
        let mode = header.mode & MOST_MODE | LEAST_MODE;
        let (parent, name) = self.parent(&header.path)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let new = openat2(&parent, name, flags, Mode::from_raw_mode(0o600), resolve)
            .map_err(|_| refused(&header.path, "cannot be a file"))?;
        let mut new = File::from(new);
        let (mut hash, mut left) = (Sha256::new(), header.size);
        while left > 0 {
            let most = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            let count = match stream.read(&mut buffer[..most]) {
                Ok(0) | Err(_) => return Err(refused(&header.path, "breaks off")),
                Ok(count) => count,
            };
            hash.update(&buffer[..count]);
            new.write_all(&buffer[..count])?;
            left -= count as u64;
        }
        let kind = Kind::File {
            size_bytes: header.size,
            digest: hex(&hash.finalize()),
        };
        let of_base = self.base.get(header.path.as_bytes());
        if of_base.is_some_and(|e| e.kind == kind && e.mode == mode) {
            unlinkat(&parent, name, AtFlags::empty())?;
            self.bytes -= header.size;
            return Ok(());
        }
        self.own(&new.into(), mode)
    }

    /// Whiteouts for what the base has and the sandbox had no more.
    fn hide_removed(mut self) -> Result<(), UnpackError> {
        let within = format!("{}/", self.within);
        let removed: Vec<String> = self
            .base
            .keys()
            .filter(|path| path.starts_with(within.as_bytes()) && !self.seen.contains(**path))
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        let mut hidden: Option<String> = None;
        for path in removed {
            // Sorted by path: what is below a directory that is hidden follows it.
            let below = |dir: &String| {
                path.strip_prefix(dir.as_str())
                    .is_some_and(|rest| rest.starts_with('/'))
            };
            let replaced = path
                .rsplit_once('/')
                .is_some_and(|(parent, _)| self.is_replaced(parent));
            if hidden.as_ref().is_some_and(below) || replaced {
                continue;
            }
            let (parent, name) = self.parent(&path)?;
            let device = makedev(0, 0);
            mknodat(
                &parent,
                name,
                FileType::CharacterDevice,
                Mode::empty(),
                device,
            )?;
            let owner = (Uid::from_raw(self.owner), Gid::from_raw(self.owner));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(&parent, name, Some(owner.0), Some(owner.1), flags)?;
            hidden = Some(path);
        }
        Ok(())
    }

    /// Whether a directory of the base, or one above it, is something else now.
    fn is_replaced(&self, path: &str) -> bool {
        let mut path = Some(path);
        while let Some(dir) = path {
            if self.seen.contains(dir.as_bytes())
                && self.open(dir).is_err()
                && rustix::fs::statat(self.root.as_fd(), dir, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            {
                return true;
            }
            path = dir.rsplit_once('/').map(|(parent, _)| parent);
        }
        false
    }
}

fn refused(path: &str, why: &str) -> UnpackError {
    let path: String = escape(path.as_bytes()).chars().take(200).collect();
    UnpackError::Refused(format!("/{path} {why}"))
}

fn read_header(stream: &mut dyn Read) -> Result<Header, UnpackError> {
    let broken = |_| UnpackError::Refused("the list of files breaks off".into());
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(broken)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_HEADER_BYTES {
        return Err(UnpackError::Refused(
            "the list of files is malformed".into(),
        ));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).map_err(broken)?;
    serde_json::from_slice(&text)
        .map_err(|_| UnpackError::Refused("the list of files is malformed".into()))
}

/// Whether a relative link leads, by its words, to a place below `within`.
fn stays_within(within: &str, path: &str, target: &str) -> bool {
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return false;
    }
    let mut at: Vec<&str> = path.split('/').collect();
    at.pop();
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                if at.pop().is_none() {
                    return false;
                }
            }
            name => at.push(name),
        }
    }
    let at = at.join("/");
    at.len() <= MAX_PATH_BYTES
        && (at == within
            || at
                .strip_prefix(within)
                .is_some_and(|rest| rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::path::{Path, PathBuf};

    use serde_json::{Value, json};

    use super::super::testing::{OWNER, TempStore, temp_store};
    use super::*;

    const BOUNDS: Bounds = Bounds {
        bytes: 1000,
        entries: 20,
    };

    fn base() -> Manifest {
        let directory = |path: &str| format!("d\t0777\t-\t-\t{path}\n");
        let x = hex(&Sha256::digest("x"));
        let text = [
            directory("opt"),
            directory("opt/venv"),
            format!("f\t0666\t1\t{x}\topt/venv/kept\n"),
            directory("opt/venv/old"),
            format!("f\t0666\t1\t{x}\topt/venv/old/one\n"),
            format!("f\t0666\t1\t{x}\topt/venv/old/two\n"),
            format!("f\t0666\t1\t{x}\topt/venv/same\n"),
        ];
        Manifest::parse(&text.concat()).unwrap()
    }

    fn stream(records: &[(Value, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (header, content) in records {
            let header = header.to_string();
            bytes.extend((header.len() as u32).to_be_bytes());
            bytes.extend(header.as_bytes());
            bytes.extend(content.as_bytes());
        }
        bytes
    }

    fn file(path: &str, content: &'static str) -> (Value, &'static str) {
        let header = json!({ "type": "file", "path": path, "mode": 0o644, "size": content.len() });
        (header, content)
    }

    fn plain(kind: &str, path: &str) -> (Value, &'static str) {
        (json!({ "type": kind, "path": path }), "")
    }

    fn link(path: &str, target: &str) -> (Value, &'static str) {
        (
            json!({ "type": "link", "path": path, "target": target }),
            "",
        )
    }

    fn unpacked(records: &[(Value, &str)]) -> (TempStore, PathBuf, Result<(), UnpackError>) {
        let store = temp_store();
        let root = store.0.dir.join("tree");
        fs::create_dir(&root).unwrap();
        let dir: OwnedFd = File::open(&root).unwrap().into();
        let base = base();
        let unpack = Unpack::new(&dir, "opt/venv", &base, *OWNER, BOUNDS);
        let mut end = records.to_vec();
        end.push(plain("end", ""));
        let done = unpack.run(&mut stream(&end).as_slice());
        (store, root, done)
    }

    fn unchanged() -> Vec<(Value, &'static str)> {
        ["", "/kept", "/old", "/old/one", "/old/two", "/same"]
            .map(|path| plain("same", &format!("opt/venv{path}")))
            .to_vec()
    }

    #[test]
    fn only_what_differs_is_in_the_layer() {
        let mut records = unchanged();
        records.pop();
        records.push(file("opt/venv/same", "x"));
        records.push(plain("directory", "opt/venv/new"));
        records.push(file("opt/venv/new/a.py", "abc"));
        records.push(link("opt/venv/new/l", "../kept"));
        let (store, root, done) = unpacked(&records);
        done.unwrap();
        assert_eq!(fs::read(root.join("opt/venv/new/a.py")).unwrap(), b"abc");
        assert_eq!(
            fs::read_link(root.join("opt/venv/new/l")).unwrap(),
            Path::new("../kept")
        );
        for absent in ["same", "kept", "old"] {
            assert!(
                fs::symlink_metadata(root.join("opt/venv").join(absent)).is_err(),
                "{absent}"
            );
        }
        let mode = fs::metadata(root.join("opt/venv/new/a.py")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o666);
        drop(store);
    }

    #[test]
    fn what_was_removed_is_hidden_once() {
        let mut records = unchanged();
        records.retain(|(header, _)| !header["path"].as_str().unwrap().contains("old"));
        let (store, root, done) = unpacked(&records);
        done.unwrap();
        let hidden = fs::symlink_metadata(root.join("opt/venv/old")).unwrap();
        assert!(hidden.file_type().is_char_device() && hidden.rdev() == 0);
        // One file of a directory, and a directory that became a file.
        let mut records = unchanged();
        records.retain(|(header, _)| header["path"] != "opt/venv/old/one");
        let (other, root, done) = unpacked(&records);
        done.unwrap();
        let hidden = fs::symlink_metadata(root.join("opt/venv/old/one")).unwrap();
        assert!(hidden.file_type().is_char_device());
        assert!(!root.join("opt/venv/old/two").exists());
        let mut records = unchanged();
        records.retain(|(header, _)| !header["path"].as_str().unwrap().contains("old"));
        records.push(file("opt/venv/old", "file"));
        let (third, root, done) = unpacked(&records);
        done.unwrap();
        assert_eq!(fs::read(root.join("opt/venv/old")).unwrap(), b"file");
        drop((store, other, third));
    }

    #[test]
    fn nothing_is_written_outside_and_no_limit_is_passed() {
        let outside = temp_store();
        let target = outside.0.dir.to_str().unwrap().to_owned();
        let refused: Vec<Vec<(Value, &str)>> = vec![
            vec![file("etc/passwd", "x")],
            vec![file("opt/venvx", "x")],
            vec![file("opt/venv/../../etc/x", "x")],
            vec![file("/opt/venv/x", "x")],
            vec![file("opt/venv//x", "x")],
            vec![file("opt/venv/a\0b", "x")],
            vec![file(&format!("opt/venv/{}", "n".repeat(256)), "x")],
            vec![file(&format!("opt/venv/{}x", "d/".repeat(64)), "x")],
            vec![link("opt/venv/l", &target)],
            vec![link("opt/venv/l", "../../etc")],
            vec![link("opt/venv/l", "")],
            vec![link("opt/venv/l", "."), file("opt/venv/l/x", "x")],
            vec![plain("special", "opt/venv/device")],
            vec![plain("device", "opt/venv/device")],
            vec![plain("same", "opt/venv/made-up")],
            vec![file("opt/venv/twice", "x"), file("opt/venv/twice", "y")],
            vec![file("opt/venv/f", "x"), file("opt/venv/f/x", "x")],
            vec![(
                json!({ "type": "file", "path": "opt/venv/b", "size": 1001 }),
                "",
            )],
            (0..21)
                .map(|n| plain("directory", &format!("opt/venv/d{n}")))
                .collect(),
        ];
        for records in refused {
            let (store, _, done) = unpacked(&records);
            assert!(done.is_err(), "{records:?}");
            drop(store);
        }
        assert_eq!(fs::read_dir(&outside.0.dir).unwrap().count(), 0);
    }

    #[test]
    fn a_stream_that_breaks_off_makes_no_layer() {
        let store = temp_store();
        let dir: OwnedFd = File::open(&store.0.dir).unwrap().into();
        let base = base();
        let whole = stream(&[file("opt/venv/a", "abc")]);
        for length in [0, 3, 4, 10, whole.len() - 1, whole.len()] {
            let unpack = Unpack::new(&dir, "opt/venv", &base, *OWNER, BOUNDS);
            assert!(unpack.run(&mut &whole[..length]).is_err(), "{length}");
            let _ = fs::remove_dir_all(store.0.dir.join("opt"));
        }
        let huge = u32::MAX.to_be_bytes();
        let unpack = Unpack::new(&dir, "opt/venv", &base, *OWNER, BOUNDS);
        assert!(unpack.run(&mut huge.as_slice()).is_err());
    }
}
