//! Files of this host that clients may name: those inside directories that the operator lists.
//!
//! A path comes from a model, so from whoever wrote what the model reads. It is compared with the
//! listed directories as text, before anything is looked at, and then resolved by the kernel from the
//! directory's descriptor with `openat2(2)` (Linux 5.6), which follows no link of any kind and does
//! not leave the directory's file system: what somebody swaps meanwhile leads to a refusal. What
//! cannot be opened without an effect (devices) or without waiting (FIFOs) is told by the descriptor
//! of an `O_PATH` open, and never opened.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, open, openat, openat2, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::error::{Error, ErrorKind};

/// Longest path taken, `PATH_MAX` of Linux.
const MAX_PATH_BYTES: usize = 4096;
/// No link, no magic link of `/proc`, no way up, no other mount.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The directories of this host in which paths may lie. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LocalDirs {
    dirs: Arc<[PathBuf]>,
    pub(super) resolve: ResolveFlags,
}

/// A path within one of the directories.
struct Place {
    root: OwnedFd,
    /// Plain components; none for the directory itself.
    rest: PathBuf,
}

impl LocalDirs {
    /// Of absolute paths; a relative path of a client is meant from the first. Without any, every
    /// path is refused.
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            dirs: dirs.into_iter().collect(),
            resolve: RESOLVE,
        }
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// `BadPath` outside the directories, behind a link, or for anything but a regular file;
    /// `NotFound`.
    pub(super) fn open_file(&self, path: &str) -> Result<File, Error> {
        let place = self.place(path)?;
        let file = self.resolve(&place.root, &place.rest, OFlags::PATH);
        let file = file.map_err(|e| refusal(path, e))?;
        reopen(file).map_err(|e| refusal(path, e))
    }

    /// Opens a directory for reading.
    ///
    /// # Errors
    /// As [`Self::open_file`].
    pub(super) fn open_dir(&self, path: &str) -> Result<OwnedFd, Error> {
        let place = self.place(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.resolve(&place.root, &place.rest, flags)
            .map_err(|e| refusal(path, e))
    }

    /// Begins a file that takes its name, or that of a file which is there, when it is complete.
    /// Directories on the way are made.
    ///
    /// # Errors
    /// As [`Self::open_file`].
    pub(super) fn create(&self, path: &str) -> Result<NewFile, Error> {
        let place = self.place(path)?;
        let name = place.rest.file_name().map(OsStr::to_owned);
        let Some(name) = name.filter(|_| !path.ends_with('/')) else {
            return Err(refusal(path, Errno::ISDIR));
        };
        let make = || {
            let mut dir = place.root;
            for part in place.rest.parent().into_iter().flat_map(Path::iter) {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                dir = match self.resolve(&dir, part, flags) {
                    Err(Errno::NOENT) => {
                        match mkdirat(&dir, part, Mode::from_raw_mode(0o755)) {
                            Ok(()) | Err(Errno::EXIST) => {}
                            Err(e) => return Err(e),
                        }
                        self.resolve(&dir, part, flags)?
                    }
                    other => other?,
                };
            }
            // A file that is replaced keeps its permissions.
            let mode = match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    require_regular(stat.st_mode)?;
                    stat.st_mode & 0o777
                }
                Err(Errno::NOENT) => 0o644,
                Err(e) => return Err(e),
            };
            let temporary = format!(".sandcell-{:032x}", rand::random::<u128>());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            let mode = Mode::from_raw_mode(mode);
            let file = openat(&dir, &temporary, flags | OFlags::CLOEXEC, mode)?;
            Ok(NewFile {
                file: File::from(file),
                dir,
                temporary,
                name: PathBuf::from(name),
            })
        };
        make().map_err(|e| refusal(path, e))
    }

    /// Resolves a relative path of one or more plain components, or opens the directory itself.
    pub(super) fn resolve(
        &self,
        dir: impl AsFd,
        path: impl AsRef<Path>,
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let path = match path.as_ref() {
            path if path.as_os_str().is_empty() => Path::new("."),
            path => path,
        };
        let flags = flags | OFlags::CLOEXEC;
        openat2(dir, path, flags, Mode::empty(), self.resolve)
    }

    fn place(&self, path: &str) -> Result<Place, Error> {
        let Some(first) = self.dirs.first() else {
            return Err(Error::new(
                ErrorKind::BadPath,
                "local_path_not_allowed",
                "no local directory may be used here; the operator lists those that may in \
                 mcp.local_dirs. Send the content itself instead",
            ));
        };
        let outside = || {
            let listed: Vec<_> = self.dirs.iter().map(|dir| dir.to_string_lossy()).collect();
            Error::new(
                ErrorKind::BadPath,
                "local_path_not_allowed",
                format!(
                    "{:?} is not in a local directory that may be used (mcp.local_dirs): {}",
                    shown(path),
                    listed.join(", ")
                ),
            )
        };
        let plain = |path: &Path| {
            path.components()
                .all(|part| !matches!(part, Component::ParentDir | Component::Prefix(_)))
        };
        if path.is_empty() || path.len() > MAX_PATH_BYTES || path.contains('\0') {
            return Err(outside());
        }
        // Joined to an absolute path, that path is the result.
        let full = first.join(path);
        if !plain(&full) {
            return Err(outside());
        }
        let within = self
            .dirs
            .iter()
            .filter_map(|dir| Some((dir, full.strip_prefix(dir).ok()?)));
        // The innermost: it may be a mount of its own.
        let (dir, rest) = within
            .min_by_key(|(_, rest)| rest.as_os_str().len())
            .ok_or_else(outside)?;
        // What runs by itself (hooks, profiles) and what opens doors (keys) has such names.
        let hidden = |part| matches!(part, Component::Normal(name) if name.as_encoded_bytes().starts_with(b"."));
        if rest.components().any(hidden) {
            return Err(Error::new(
                ErrorKind::BadPath,
                "local_path_not_allowed",
                format!(
                    "{:?} is a hidden file or in a hidden directory",
                    shown(path)
                ),
            ));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The operator's own path, links and all.
        let root = open(dir, flags, Mode::empty()).map_err(|e| {
            tracing::warn!(dir = %dir.display(), "a directory of mcp.local_dirs cannot be opened: {e}");
            refusal(path, e)
        })?;
        let rest = rest.components().collect();
        Ok(Place { root, rest })
    }
}

/// The file of an `O_PATH` descriptor for reading, where it is a regular one.
pub(super) fn reopen(file: OwnedFd) -> Result<File, Errno> {
    require_regular(fstat(&file)?.st_mode)?;
    // This very file, whatever has its name now (proc(5)).
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    open(path, flags, Mode::empty()).map(File::from)
}

fn require_regular(mode: u32) -> Result<(), Errno> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(Errno::LOOP),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::NXIO),
    }
}

/// A file on its way into a local directory. Dropping it before it was placed leaves nothing.
#[derive(Debug)]
pub(super) struct NewFile {
    /// To be written to.
    pub(super) file: File,
    dir: OwnedFd,
    /// Its name until it is placed; empty afterwards.
    temporary: String,
    name: PathBuf,
}

impl NewFile {
    /// Gives it its name. A link of that name is replaced, not followed.
    pub(super) fn place(mut self) -> io::Result<()> {
        renameat(&self.dir, &self.temporary, &self.dir, &self.name)?;
        self.temporary.clear();
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            let _ = unlinkat(&self.dir, &self.temporary, AtFlags::empty());
        }
    }
}

/// What could not be opened or made, for people.
pub(super) fn refusal(path: &str, e: Errno) -> Error {
    let (kind, code, detail) = match e {
        Errno::NOENT | Errno::NOTDIR => (
            ErrorKind::NotFound,
            "local_file_not_found",
            "there is no such local file or directory".to_owned(),
        ),
        Errno::LOOP => (
            ErrorKind::BadPath,
            "symbolic_link",
            "a symbolic link is on the way, and none is followed in local directories".to_owned(),
        ),
        Errno::ISDIR | Errno::NXIO => (
            ErrorKind::BadPath,
            "not_a_regular_file",
            "it is not a regular file".to_owned(),
        ),
        Errno::XDEV => (
            ErrorKind::BadPath,
            "local_path_not_allowed",
            "it is on another file system than the listed directory".to_owned(),
        ),
        e => (
            ErrorKind::BadPath,
            "local_file_failed",
            io::Error::from(e).to_string(),
        ),
    };
    Error::new(kind, code, format!("{:?}: {detail}", shown(path)))
}

fn shown(path: &str) -> String {
    path.chars().filter(|c| !c.is_control()).take(256).collect()
}

#[cfg(test)]
mod tests;
