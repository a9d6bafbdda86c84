//! Listings of a folder.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use globset::GlobSet;
use rustix::fs::{AtFlags, Dir, Stat, statat};

use super::{MAX_PATH_BYTES, Refusal, named_folder, open_dir, parts_of};
use crate::isolation::channel;
use crate::isolation::glob;
use crate::isolation::spec::{Entry, FileKind, Listing, Reply};

/// Entries of one [`Reply::Entries`] packet: 64 names of 255 bytes as JSON numbers stay below the
/// packet limit; longer paths are cut into smaller packets by [`Packets::add`].
const ENTRY_PACKET_BYTES: usize = 96 * 1024;
/// Directories nested deeper than this are not listed.
const MAX_DEPTH: usize = 64;

pub(super) fn list(reply: BorrowedFd<'_>, wanted: &Listing) -> Result<(), Refusal> {
    let pattern = wanted.glob.as_deref().map(glob::compile).transpose();
    let pattern = pattern.map_err(|why| Refusal("bad_path", why))?;
    let folder = named_folder(&wanted.path)?;
    // As entries are told: from the working directory on.
    let mut path = Vec::new();
    for part in parts_of(&wanted.path)? {
        path.extend_from_slice(part.as_bytes());
        path.push(b'/');
    }
    let mut walk = Walk {
        wanted,
        pattern,
        prefix_bytes: path.len(),
        packets: Packets {
            reply,
            left: wanted.max_entries,
            pending: Vec::new(),
            pending_bytes: 0,
        },
    };
    walk.folder(folder, &mut path, 0)?;
    Ok(walk.packets.flush()?)
}

struct Walk<'a> {
    wanted: &'a Listing,
    pattern: Option<GlobSet>,
    /// Of a path, what the pattern does not see: the folder that is listed.
    prefix_bytes: usize,
    packets: Packets<'a>,
}

impl Walk<'_> {
    /// Depth first; directories that vanish or cannot be opened are left out, as `find` does.
    fn folder(&mut self, dir: OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<(), Refusal> {
        let mut subdirs = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let full = [path.as_slice(), name.to_bytes()].concat();
            let entry = entry_of(full, &stat);
            let descend = entry.kind == FileKind::Directory
                && self.wanted.recursive
                && depth < MAX_DEPTH
                && entry.path.len() < MAX_PATH_BYTES;
            if descend {
                subdirs.push(name.to_owned());
            }
            if self.wants(&entry) && !self.packets.add(entry)? {
                return Ok(());
            }
        }
        subdirs.sort();
        for name in subdirs {
            let Ok(child) = open_dir(&dir, &name) else {
                continue;
            };
            let length = path.len();
            path.extend_from_slice(name.to_bytes());
            path.push(b'/');
            self.folder(child, path, depth + 1)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn wants(&self, entry: &Entry) -> bool {
        let below = OsStr::from_bytes(&entry.path[self.prefix_bytes..]);
        self.wanted.kind.is_none_or(|kind| kind == entry.kind)
            && self.pattern.as_ref().is_none_or(|p| p.is_match(below))
    }
}

pub(super) fn entry_of(path: Vec<u8>, stat: &Stat) -> Entry {
    Entry {
        path,
        kind: FileKind::of_mode(stat.st_mode),
        size: stat.st_size.max(0) as u64,
        mode: stat.st_mode & 0o7777,
        modified_seconds: stat.st_mtime,
        modified_nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
    }
}

/// Entries are sent in packets as they fill.
struct Packets<'a> {
    reply: BorrowedFd<'a>,
    left: usize,
    pending: Vec<Entry>,
    pending_bytes: usize,
}

impl Packets<'_> {
    /// False when the limit of entries is reached.
    fn add(&mut self, entry: Entry) -> io::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        // A byte is at most four characters of JSON (`255,`).
        let bytes = entry.path.len() * 4 + 160;
        if self.pending_bytes + bytes > ENTRY_PACKET_BYTES {
            self.flush()?;
        }
        self.pending_bytes += bytes;
        self.pending.push(entry);
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pending_bytes = 0;
        let entries = std::mem::take(&mut self.pending);
        if entries.is_empty() {
            return Ok(());
        }
        channel::send_json(self.reply, &Reply::Entries { entries }, &[])
    }
}
