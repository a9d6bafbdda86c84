//! Files below a root, of which nothing leads out: the host's own root, or where a driver has its tree.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};

/// Names of one directory that are looked at; more are left out.
const MAX_NAMES: usize = 4096;

/// A root. Every link below it is resolved as after a chroot(2) to it (`RESOLVE_IN_ROOT`, openat2(2)).
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    root: OwnedFd,
}

impl Tree {
    pub(super) fn open(path: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Some(Self {
            path: path.to_owned(),
            root: rustix::fs::open(path, flags, Mode::empty()).ok()?,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn get(&self, path: &str, flags: OFlags) -> Option<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        openat2(
            &self.root,
            path,
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        )
        .ok()
    }

    /// What is there, links followed, and its permission bits.
    pub(super) fn look(&self, path: &str) -> Option<(FileType, u32)> {
        let stat = rustix::fs::fstat(self.get(path, OFlags::PATH)?).ok()?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        Some((FileType::from_raw_mode(stat.st_mode), mode.as_raw_mode()))
    }

    pub(super) fn is(&self, path: &str, kind: FileType) -> bool {
        self.look(path).is_some_and(|(found, _)| found == kind)
    }

    /// A regular file, opened for reading.
    pub(super) fn file(&self, path: &str) -> Option<File> {
        // O_NONBLOCK: it may have become a pipe, which would wait for somebody to write to it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.is(path, FileType::RegularFile)
            .then(|| self.get(path, flags).map(File::from))?
    }

    /// The first `most` bytes of a file.
    pub(super) fn bytes(&self, path: &str, most: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(path)?.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The same as text; what is not UTF-8 is replaced.
    pub(super) fn text(&self, path: &str, most: u64) -> Option<String> {
        let bytes = self.bytes(path, most)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Names in a directory that are UTF-8, sorted; none where there is no directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Some(dir) = self.get(path, OFlags::RDONLY | OFlags::DIRECTORY) else {
            return Vec::new();
        };
        let Ok(entries) = rustix::fs::Dir::read_from(dir) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned()))
            .filter(|name| name != "." && name != "..")
            .take(MAX_NAMES)
            .collect();
        names.sort();
        names
    }

    /// What a link says.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let (parent, name) = path.rsplit_once('/')?;
        let parent = self.get(
            if parent.is_empty() { "/" } else { parent },
            OFlags::PATH | OFlags::DIRECTORY,
        )?;
        let to = rustix::fs::readlinkat(&parent, name, Vec::new()).ok()?;
        to.into_string().ok()
    }
}

/// Up to `most` bytes from an offset; fewer at the end of the file.
pub(super) fn read_at(file: &File, offset: u64, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let mut filled = 0;
    while filled < most {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => filled += n,
        }
    }
    bytes.truncate(filled);
    bytes
}

/// An absolute path without `.` and `..`, so that what it names can be told from its text.
pub(super) fn is_plain(path: &str) -> bool {
    path.starts_with('/')
        && path.len() < 1024
        && !path.contains('\0')
        && path[1..]
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}
