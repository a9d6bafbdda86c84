//! Entries of a ZIP file, whose list is at its end: it is kept, as a file that has no name, until that
//! has come.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, unlinkat};
use zip::ZipArchive;
use zip::read::ZipFile;
use zip::result::ZipError;

use super::{Kind, Refusal, Unpacking, bad, refused};

/// Bytes of a link's target, `PATH_MAX`.
const TARGET_BYTES: u64 = 4096;

pub(super) fn read(unpacking: &mut Unpacking<'_>, mut from: impl Read) -> Result<(), Refusal> {
    let mut file = nameless(unpacking)?;
    io::copy(&mut from, &mut file)?;
    file.seek(SeekFrom::Start(0))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(unreadable)?;
    if archive.len() as u64 > unpacking.max_entries {
        let why = format!(
            "it has {} entries, and may have {} (limits.inodes)",
            archive.len(),
            unpacking.max_entries
        );
        return Err(Refusal("too_many_files", why));
    }
    for n in 0..archive.len() {
        let mut entry = archive.by_index(n).map_err(unreadable)?;
        unpack_one(unpacking, &mut entry)?;
    }
    Ok(())
}

fn unpack_one<R: Read>(
    unpacking: &mut Unpacking<'_>,
    entry: &mut ZipFile<'_, R>,
) -> Result<(), Refusal> {
    let path = name_of(entry)?;
    let mode = entry.unix_mode();
    let is_dir = path.ends_with(b"/");
    let kind = match mode.map(FileType::from_raw_mode) {
        Some(FileType::Symlink) => {
            let mut target = Vec::new();
            let read = entry.take(TARGET_BYTES).read_to_end(&mut target);
            read.map_err(|e| bad(&e.to_string()))?;
            let mode = mode.unwrap_or_default();
            let kind = Kind::Symlink(&target);
            return unpacking.entry(&path, kind, mode, None, &mut io::empty());
        }
        Some(FileType::Directory) => Kind::Directory,
        _ if is_dir => Kind::Directory,
        // Without a kind: made where there are no others.
        Some(FileType::RegularFile | FileType::Unknown) | None => Kind::File,
        Some(_) => return Err(refused(&path, "is a device or a FIFO")),
    };
    let permissions = mode.map_or(0o644, |mode| mode & 0o777);
    unpacking.entry(&path, kind, permissions, None, entry)
}

/// Text where it is marked as such or can be read as such, bytes where they are a Unix system's.
fn name_of<R: Read>(entry: &ZipFile<'_, R>) -> Result<Vec<u8>, Refusal> {
    let raw = entry.name_raw();
    let is_unix = entry.system() == zip::System::Unix;
    if std::str::from_utf8(raw).is_ok() || is_unix {
        return Ok(raw.to_vec());
    }
    // In code page 437 (APPNOTE.TXT, appendix D).
    let name = entry.name().map_err(unreadable)?;
    Ok(name.as_bytes().to_vec())
}

fn nameless(unpacking: &Unpacking<'_>) -> Result<File, Refusal> {
    let name = CString::new(".archive").expect("no NUL");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(unpacking.folder, &name, flags, Mode::from_raw_mode(0o600))?;
    unlinkat(unpacking.folder, &name, AtFlags::empty())?;
    Ok(File::from(file))
}

fn unreadable(error: ZipError) -> Refusal {
    match error {
        ZipError::Io(e) => bad(&e.to_string()),
        other => bad(&other.to_string()),
    }
}
