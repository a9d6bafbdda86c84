//! Entries of a tar file, as they come.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use tar::EntryType;

use super::{Kind, Refusal, Unpacking, bad, refused};

/// Bytes that may be read to come to the next entry. The reader keeps long names and extended headers
/// in memory whatever size they claim, and skips over what is left of the entry before.
const HEAD_BYTES: u64 = 1024 * 1024;

pub(super) fn read(unpacking: &mut Unpacking<'_>, from: impl Read) -> Result<(), Refusal> {
    let left = Rc::new(Cell::new(HEAD_BYTES));
    let mut archive = tar::Archive::new(Metered {
        from,
        left: Rc::clone(&left),
    });
    let mut entries = archive.entries().map_err(|e| bad(&e.to_string()))?;
    loop {
        left.set(HEAD_BYTES);
        let Some(next) = entries.next() else { break };
        let mut entry = next.map_err(|e| bad(&e.to_string()))?;
        left.set(u64::MAX);
        let path = entry.path_bytes().into_owned();
        let link = entry.link_name_bytes().map(|link| link.into_owned());
        let link = link.unwrap_or_default();
        let header = entry.header();
        let mode = header.mode().unwrap_or(0o644);
        let modified = header
            .mtime()
            .ok()
            .and_then(|time| i64::try_from(time).ok());
        let kind = match header.entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
            EntryType::Symlink => Kind::Symlink(&link),
            EntryType::Link => Kind::HardLink(&link),
            // Says something of entries to come, which is not needed.
            EntryType::XGlobalHeader => continue,
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                return Err(refused(&path, "is a device or a FIFO"));
            }
            _ => return Err(refused(&path, "is of a kind that is not known")),
        };
        let is_file = matches!(kind, Kind::File);
        unpacking.entry(&path, kind, mode, modified, &mut entry)?;
        if !is_file {
            // A directory or link with content: nothing has a use for it.
            io::copy(&mut entry.take(HEAD_BYTES), &mut io::sink())
                .map_err(|e| bad(&e.to_string()))?;
        }
    }
    left.set(u64::MAX);
    // To the end, where the sum of a compressed one is.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut Counted(unpacking)).map_err(|e| bad(&e.to_string()))?;
    Ok(())
}

/// Takes the bytes after the last entry while whoever sends them waits.
struct Counted<'a, 'b>(&'a Unpacking<'b>);

impl io::Write for Counted<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.still_wanted() {
            Ok(()) => Ok(bytes.len()),
            Err(Refusal(_, why)) => Err(io::Error::other(why)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Metered<R> {
    from: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        let over = || io::Error::other("headers of an entry are too long");
        self.left.set(left.ok_or_else(over)?);
        Ok(read)
    }
}
