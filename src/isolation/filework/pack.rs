//! A folder as an archive, written to a pipe while the tree is read: one file is held at a time, and
//! of it a buffer.
//!
//! A file that changes meanwhile is never a torn success: what fits the buffer is read whole before
//! its size is promised; of a larger one the bytes that it had when opened are sent, and one that
//! has become shorter breaks the archive off, as a download is broken off.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use chrono::{DateTime, Datelike, Timelike};
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Dir, FileType, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, ZipWriter};

use super::tree::MAX_DEPTH;
use super::{MAX_PATH_BYTES, Refusal, given, links, name, named_folder, open_dir, open_regular};
use crate::isolation::channel;
use crate::isolation::spec::{ArchiveFormat, Reply};

/// Bytes of a file that are read before its size is promised.
const HELD_BYTES: u64 = 1024 * 1024;
/// Bytes written to the pipe at once.
const PIPE_BYTES: usize = 64 * 1024;
/// A ZIP entry of this size or more is announced with 64-bit sizes (APPNOTE.TXT 4.5.3); what deflate
/// adds to bytes that it cannot compress stays far below the rest.
const LARGE_BYTES: u64 = 0xF000_0000;

/// Answers [`Reply::Ok`] once the folder is open and the archive begins; the end is told by the caller.
pub(super) fn pack(
    path: &[u8],
    format: ArchiveFormat,
    reply: BorrowedFd<'_>,
    pipe: Option<OwnedFd>,
) -> Result<(), Refusal> {
    let pipe = given(pipe, "pipe for the archive")?;
    let folder = named_folder(path)?;
    channel::send_json(reply, &Reply::Ok {}, &[])?;
    let out = BufWriter::with_capacity(PIPE_BYTES, File::from(pipe));
    let mut written = match format {
        ArchiveFormat::Tar => {
            let mut archive = Tar(tar::Builder::new(out));
            walk(&mut archive, folder, &mut Vec::new(), 0)?;
            archive.0.into_inner()?
        }
        ArchiveFormat::TarGz => {
            let out = GzEncoder::new(out, Compression::default());
            let mut archive = Tar(tar::Builder::new(out));
            walk(&mut archive, folder, &mut Vec::new(), 0)?;
            archive.0.into_inner()?.finish()?
        }
        ArchiveFormat::Zip => {
            let mut archive = Zip(ZipWriter::new_stream(out));
            walk(&mut archive, folder, &mut Vec::new(), 0)?;
            archive.0.finish().map_err(io::Error::other)?.into_inner()
        }
    };
    Ok(written.flush()?)
}

/// An archive that is being written; paths are relative to its folder.
trait Archive {
    fn directory(&mut self, path: &[u8], stat: &Stat) -> io::Result<()>;
    fn file(
        &mut self,
        path: &[u8],
        stat: &Stat,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()>;
    fn link(&mut self, path: &[u8], stat: &Stat, target: &[u8]) -> io::Result<()>;
}

/// By name, each once: a name that comes twice, because it was changed meanwhile, could be a link the
/// first time and a folder the second, and lead whoever unpacks it astray.
fn walk(
    archive: &mut impl Archive,
    dir: OwnedFd,
    path: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Refusal> {
    let names: BTreeSet<CString> = Dir::read_from(&dir)?
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()))
        .collect::<Result<_, _>>()?;
    for name in names {
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let length = path.len();
        path.extend_from_slice(name.to_bytes());
        match entry(archive, dir.as_fd(), &name, path, depth) {
            // It has vanished, or become something else, since its name was read.
            Err(Refusal("not_found" | "link" | "not_regular", _)) => {}
            other => other?,
        }
        path.truncate(length);
    }
    Ok(())
}

fn entry(
    archive: &mut impl Archive,
    dir: BorrowedFd<'_>,
    name: &CStr,
    path: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Refusal> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            if depth >= MAX_DEPTH || path.len() >= MAX_PATH_BYTES {
                let why = format!("directories are nested deeper than {MAX_DEPTH}");
                return Err(Refusal("bad_path", why));
            }
            let child = open_dir(dir, name)?;
            archive.directory(path, &stat)?;
            path.push(b'/');
            walk(archive, child, path, depth + 1)
        }
        FileType::RegularFile => {
            let mut file = File::from(open_regular(dir, name)?);
            let stat = fstat(&file)?;
            let mut held = Vec::new();
            (&mut file).take(HELD_BYTES).read_to_end(&mut held)?;
            let size = if (held.len() as u64) < HELD_BYTES {
                held.len() as u64
            } else {
                (stat.st_size.max(0) as u64).max(HELD_BYTES)
            };
            let mut content = Promised {
                left: size,
                inner: held.as_slice().chain(file),
            };
            Ok(archive.file(path, &stat, size, &mut content)?)
        }
        FileType::Symlink => match readlinkat(dir, name, Vec::new()) {
            Ok(target) if links::stays_inside(target.to_bytes(), depth) => {
                Ok(archive.link(path, &stat, target.to_bytes())?)
            }
            // One that leads out is of no use elsewhere.
            Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        },
        _ => Ok(()),
    }
}

/// As many bytes as were promised, or an error.
struct Promised<R> {
    left: u64,
    inner: R,
}

impl<R: Read> Read for Promised<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.inner.read(&mut buffer[..most])?;
        if read == 0 {
            // Not one of the errors that leave an entry out.
            return Err(Errno::STALE.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

struct Tar<W: Write>(tar::Builder<W>);

impl<W: Write> Tar<W> {
    fn header(stat: &Stat, kind: tar::EntryType, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(stat.st_mode & 0o777);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        header.set_uid(stat.st_uid.into());
        header.set_gid(stat.st_gid.into());
        header
    }
}

impl<W: Write> Archive for Tar<W> {
    fn directory(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        let mut header = Self::header(stat, tar::EntryType::Directory, 0);
        let path = [path, b"/"].concat();
        self.0.append_data(&mut header, path_of(&path), io::empty())
    }

    fn file(
        &mut self,
        path: &[u8],
        stat: &Stat,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let mut header = Self::header(stat, tar::EntryType::Regular, size);
        self.0.append_data(&mut header, path_of(path), content)
    }

    fn link(&mut self, path: &[u8], stat: &Stat, target: &[u8]) -> io::Result<()> {
        let mut header = Self::header(stat, tar::EntryType::Symlink, 0);
        self.0
            .append_link(&mut header, path_of(path), path_of(target))
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Names are text in a ZIP file: those that are not UTF-8 are spelled as they are listed. Links are
/// left out, because few programs take them for that.
struct Zip(ZipWriter<StreamWriter<BufWriter<File>>>);

fn options(stat: &Stat, size: u64) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .large_file(size >= LARGE_BYTES)
        .unix_permissions(stat.st_mode & 0o777)
        .last_modified_time(modified(stat.st_mtime).unwrap_or_default())
}

/// `None` for years that the format cannot hold.
fn modified(seconds: i64) -> Option<zip::DateTime> {
    let time = DateTime::from_timestamp(seconds, 0)?;
    zip::DateTime::from_date_and_time(
        time.year().try_into().ok()?,
        time.month() as u8,
        time.day() as u8,
        time.hour() as u8,
        time.minute() as u8,
        time.second() as u8,
    )
    .ok()
}

impl Archive for Zip {
    fn directory(&mut self, path: &[u8], stat: &Stat) -> io::Result<()> {
        let added = self.0.add_directory(name::shown(path), options(stat, 0));
        added.map_err(io::Error::other)
    }

    fn file(
        &mut self,
        path: &[u8],
        stat: &Stat,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let started = self.0.start_file(name::shown(path), options(stat, size));
        started.map_err(io::Error::other)?;
        io::copy(content, &mut self.0).map(|_| ())
    }

    fn link(&mut self, _: &[u8], _: &Stat, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}
