//! An archive from a pipe, unpacked into a folder: first into a new one beside it, which is moved into
//! place when all of it has come and been found harmless. Of an archive that is refused, broken off
//! or too large nothing is left.
//!
//! Archives are hostile. What they say is bounded by what the process may do, which is what user code
//! may: by the sandbox's disk, its memory and its processor. Beside that no entry is written through a
//! link or outside the folder, nothing but directories, regular files and links that stay inside is
//! made, and modes are permissions only.

mod tarball;
mod zipfile;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::resource::{Resource, setrlimit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Timespec as FileTime, Timestamps, fchmod,
    futimens, linkat, mkdirat, openat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::tree::{MAX_DEPTH, remove_directory};
use super::{Refusal, await_commit, descend, given, links, name, open_dir, open_folder, parts_of};
use crate::isolation::channel;
use crate::isolation::spec::{ArchiveFormat, Reply};

/// Bytes of memory that the process may have: what archives say of themselves is held in it.
const MEMORY_BYTES: u64 = 256 * 1024 * 1024;
/// First bytes by which a format is known: RFC 1952 and APPNOTE.TXT 4.3.7 and, of an empty one, 4.3.16.
const GZIP: &[u8] = b"\x1f\x8b";
const ZIPS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Answers [`Reply::Unpacked`] after the packet `commit`.
pub(super) fn unpack(
    path: &[u8],
    format: Option<ArchiveFormat>,
    max_entries: u64,
    reply: BorrowedFd<'_>,
    content: Option<OwnedFd>,
) -> Result<(), Refusal> {
    let content = given(content, "pipe with the archive")?;
    let _ = setrlimit(Resource::RLIMIT_DATA, MEMORY_BYTES, MEMORY_BYTES);
    let target = open_folder(&parts_of(path)?, true)?;
    let staging = CString::new(format!(".unpack-{}", std::process::id())).expect("no NUL");
    mkdirat(&target, &staging, Mode::from_raw_mode(0o700))?;
    // What reads archives is not ours; where it panics, it is at the archive.
    let unpacked = catch_unwind(AssertUnwindSafe(|| -> Result<Reply, Refusal> {
        let folder = open_dir(&target, &staging)?;
        let mut unpacking = Unpacking {
            reply,
            folder: folder.as_fd(),
            left: max_entries,
            max_entries,
            files: 0,
            bytes: 0,
        };
        unpacking.read(File::from(content), format)?;
        let done = Reply::Unpacked {
            files: unpacking.files,
            bytes: unpacking.bytes,
        };
        await_commit(reply)?;
        merge(folder.as_fd(), target.as_fd(), 0)?;
        Ok(done)
    }))
    .unwrap_or_else(|_| Err(bad("its reader gave up")));
    let removed = remove_directory(target.as_fd(), &staging, 0);
    let done = unpacked?;
    removed?;
    Ok(channel::send_json(reply, &done, &[])?)
}

/// Moves what is in one directory into another, over files and links, never over directories.
fn merge(from: BorrowedFd<'_>, to: BorrowedFd<'_>, depth: usize) -> Result<(), Refusal> {
    let names: Vec<CString> = Dir::read_from(from)?
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .collect::<Result<_, _>>()?;
    for name in names {
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match renameat_with(from, &name, to, &name, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => replace(from, to, &name, depth)?,
            other => other?,
        }
    }
    Ok(())
}

fn replace(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &CStr,
    depth: usize,
) -> Result<(), Refusal> {
    match (open_dir(from, name), open_dir(to, name)) {
        (Ok(from), Ok(to)) if depth < MAX_DEPTH => merge(from.as_fd(), to.as_fd(), depth + 1),
        (Err(_), Err(_)) => Ok(renameat(from, name, to, name)?),
        _ => {
            let shown = name::shown(name.to_bytes());
            let why = format!("{shown:?} is a directory in one place and none in the other");
            Err(Refusal("exists", why))
        }
    }
}

/// What an entry of an archive is to become.
enum Kind<'a> {
    Directory,
    File,
    Symlink(&'a [u8]),
    /// Of a file that has come before.
    HardLink(&'a [u8]),
}

/// An archive being read.
struct Unpacking<'a> {
    reply: BorrowedFd<'a>,
    /// Where to.
    folder: BorrowedFd<'a>,
    left: u64,
    max_entries: u64,
    files: u64,
    bytes: u64,
}

impl Unpacking<'_> {
    fn read(&mut self, mut content: File, format: Option<ArchiveFormat>) -> Result<(), Refusal> {
        let mut head = Vec::new();
        (&mut content).take(4).read_to_end(&mut head)?;
        let seen = if head.starts_with(GZIP) {
            ArchiveFormat::TarGz
        } else if ZIPS.contains(&head.as_slice()) {
            ArchiveFormat::Zip
        } else {
            ArchiveFormat::Tar
        };
        // A tar file has no mark in its first bytes, and its reader refuses what is none.
        if format.is_some_and(|format| format != seen) {
            return Err(bad("it is not of the format that was named"));
        }
        let whole = head.as_slice().chain(&mut content);
        match seen {
            ArchiveFormat::Tar => tarball::read(self, whole)?,
            ArchiveFormat::TarGz => tarball::read(self, flate2::read::MultiGzDecoder::new(whole))?,
            ArchiveFormat::Zip => zipfile::read(self, whole)?,
        }
        // What comes after its end is of no use, but whoever sends it waits for it to be taken.
        io::copy(&mut content, &mut io::sink())?;
        Ok(())
    }

    /// Makes an entry. `path` is the archive's own.
    fn entry(
        &mut self,
        path: &[u8],
        kind: Kind<'_>,
        mode: u32,
        modified: Option<i64>,
        content: &mut dyn Read,
    ) -> Result<(), Refusal> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            let why = format!(
                "it has more than {} entries (limits.inodes)",
                self.max_entries
            );
            Refusal("too_many_files", why)
        })?;
        self.still_wanted()?;
        let mut parts = parts_of(path).map_err(|_| refused(path, "leads out of the folder"))?;
        // The staging folder is one level of those that are removed.
        if parts.len() >= MAX_DEPTH {
            return Err(refused(path, "is nested too deep"));
        }
        let Some(name) = parts.pop() else {
            // The folder itself, as `tar -C folder .` has it.
            return match kind {
                Kind::Directory => Ok(()),
                _ => Err(refused(path, "has no name")),
            };
        };
        let dir = self.below(&parts, path)?;
        match kind {
            Kind::Directory => match mkdirat(&dir, &name, Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) if open_dir(&dir, &name).is_ok() => Ok(()),
                other => Ok(other?),
            },
            Kind::File => {
                self.make_room(&dir, &name, path)?;
                self.file(&dir, &name, mode, modified, content)
            }
            Kind::Symlink(target) => {
                if !links::stays_inside(target, parts.len()) {
                    return Err(refused(path, "is a link that leads out of the folder"));
                }
                self.make_room(&dir, &name, path)?;
                let target = CString::new(target).map_err(|_| refused(path, "holds a NUL"))?;
                Ok(symlinkat(&target, &dir, &name)?)
            }
            Kind::HardLink(target) => {
                let mut parts = parts_of(target)
                    .map_err(|_| refused(path, "is a link that leads out of the folder"))?;
                let missing = || refused(path, "is a link to what has not come before");
                let target = parts.pop().ok_or_else(missing)?;
                let from = self.below(&parts, path)?;
                let stat = statat(&from, &target, AtFlags::SYMLINK_NOFOLLOW);
                let mode = stat.map_err(|_| missing())?.st_mode;
                if FileType::from_raw_mode(mode) != FileType::RegularFile {
                    return Err(missing());
                }
                self.make_room(&dir, &name, path)?;
                self.files += 1;
                Ok(linkat(&from, &target, &dir, &name, AtFlags::empty())?)
            }
        }
    }

    fn below(&self, parts: &[CString], path: &[u8]) -> Result<OwnedFd, Refusal> {
        let top = rustix::io::fcntl_dupfd_cloexec(self.folder, 3)?;
        descend(top, parts, true).map_err(|Refusal(code, why)| match code {
            "link" => refused(path, "leads through a link"),
            "not_found" => refused(path, "is in what is no directory"),
            code => Refusal(code, why),
        })
    }

    /// A later entry replaces an earlier one, unless that is a directory.
    fn make_room(&self, dir: &OwnedFd, name: &CStr, path: &[u8]) -> Result<(), Refusal> {
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => Err(refused(path, "is a directory too")),
            Err(e) => Err(e.into()),
        }
    }

    fn file(
        &mut self,
        dir: &OwnedFd,
        name: &CStr,
        mode: u32,
        modified: Option<i64>,
        content: &mut dyn Read,
    ) -> Result<(), Refusal> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(dir, name, flags, Mode::from_raw_mode(0o600))?);
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(bad(&e.to_string())),
            };
            file.write_all(&buffer[..read])?;
            self.bytes += read as u64;
            self.still_wanted()?;
        }
        self.files += 1;
        fchmod(&file, Mode::from_raw_mode(mode & 0o755 | 0o600))?;
        if let Some(seconds) = modified {
            let time = FileTime {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            // A time that the file system cannot hold is no reason to do without the file.
            let _ = futimens(&file, &times);
        }
        Ok(())
    }

    /// Whoever asked may have gone, or had enough.
    fn still_wanted(&self) -> Result<(), Refusal> {
        let mut polled = [PollFd::from_borrowed_fd(self.reply, PollFlags::empty())];
        let polled_now = poll(&mut polled, Some(&Timespec::default()));
        if polled_now.is_ok() && polled[0].revents().contains(PollFlags::HUP) {
            return Err(Refusal("aborted", "it was given up".into()));
        }
        Ok(())
    }
}

/// It cannot be read.
fn bad(why: &str) -> Refusal {
    Refusal("bad_archive", format!("the archive cannot be read: {why}"))
}

/// It can, and is not to be unpacked.
fn refused(path: &[u8], why: &str) -> Refusal {
    let shown: String = name::shown(path).chars().take(256).collect();
    Refusal("unsafe_archive", format!("entry {shown:?} {why}"))
}
