//! File work inside a sandbox, by a child of init with the user's identity and filters.
//!
//! The host never resolves a path in here: it sends bytes, gets a descriptor of a regular file or
//! packets of names back. Every component is opened without following links, so a link planted
//! or swapped at any moment leads to a refusal, inside the sandbox at that.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::channel;
use super::spec::{Entry, FileWork, HOME, Reply};

/// Entries of one [`Reply::Entries`] packet: 64 names of 255 bytes as JSON numbers stay below the
/// packet limit; longer paths are cut into smaller packets by [`Listing::add`].
const ENTRY_PACKET_BYTES: usize = 96 * 1024;
/// Directories nested deeper than this are not listed.
const MAX_DEPTH: usize = 64;
/// Longest path taken, `PATH_MAX` of Linux.
const MAX_PATH_BYTES: usize = 4096;

/// A refusal: a stable word and a sentence.
struct Refusal(&'static str, String);

impl From<Errno> for Refusal {
    fn from(e: Errno) -> Self {
        let code = match e {
            Errno::NOENT | Errno::NOTDIR => "not_found",
            Errno::LOOP => "link",
            Errno::NOSPC | Errno::DQUOT => "no_space",
            Errno::FBIG => "too_large",
            Errno::ACCESS | Errno::PERM | Errno::ROFS => "not_permitted",
            Errno::NAMETOOLONG | Errno::INVAL => "bad_path",
            Errno::ISDIR | Errno::NXIO => "not_regular",
            Errno::EXIST | Errno::NOTEMPTY => "exists",
            _ => "io",
        };
        Self(code, io::Error::from(e).to_string())
    }
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Errno::from_io_error(&e).map_or_else(|| Self("io", e.to_string()), Self::from)
    }
}

/// Does the work and answers on `reply`; gives the exit code.
pub fn run(work: &FileWork, reply: BorrowedFd<'_>, content: Option<OwnedFd>) -> i32 {
    let done = match work {
        FileWork::List { max_entries } => list(reply, *max_entries).map(|()| None),
        FileWork::Read { path } => read(path).map(Some),
        FileWork::Write { path } => write(path, reply, content).map(|()| None),
        FileWork::Remove { path } => remove(path).map(|()| None),
    };
    let sent = match done {
        Ok(None) => channel::send_json(reply, &Reply::Ok {}, &[]),
        Ok(Some(file)) => channel::send_json(reply, &Reply::Ok {}, &[file.as_fd()]),
        Err(Refusal(code, detail)) => channel::send_json(
            reply,
            &Reply::Failed {
                code: code.into(),
                detail,
            },
            &[],
        ),
    };
    i32::from(sent.is_err())
}

/// Splits a relative path; refuses what could leave the working directory or name nothing.
fn components(path: &[u8]) -> Result<Vec<CString>, Refusal> {
    let bad = |why: &str| Refusal("bad_path", why.into());
    if path.is_empty() || path.len() > MAX_PATH_BYTES {
        return Err(bad("a path has 1 to 4096 bytes"));
    }
    if path[0] == b'/' {
        return Err(bad("the path must be relative to the working directory"));
    }
    let parts: Vec<&[u8]> = path
        .split(|b| *b == b'/')
        .filter(|p| !p.is_empty() && *p != b".")
        .collect();
    if parts.is_empty() || path.ends_with(b"/") {
        return Err(bad("the path must name a file"));
    }
    parts
        .into_iter()
        .map(|p| match p {
            b".." => Err(bad("the path must stay in the working directory")),
            p => CString::new(p).map_err(|_| bad("the path holds a NUL byte")),
        })
        .collect()
}

fn home() -> Result<OwnedFd, Refusal> {
    Ok(openat(
        rustix::fs::CWD,
        HOME,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn open_dir(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(
        dir,
        name,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Opens the directory of the last component, making missing ones when asked.
fn parent(parts: &[CString], make: bool) -> Result<OwnedFd, Refusal> {
    let mut dir = home()?;
    for part in &parts[..parts.len() - 1] {
        refuse_link(dir.as_fd(), part)?;
        dir = match open_dir(&dir, part) {
            Err(Errno::NOENT) if make => {
                match mkdirat(&dir, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                open_dir(&dir, part)?
            }
            other => other?,
        };
    }
    Ok(dir)
}

/// For a clear answer only: what protects is `O_NOFOLLOW` on every open.
fn refuse_link(dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Refusal> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
            Err(Refusal("link", "a symbolic link is on the way".into()))
        }
        _ => Ok(()),
    }
}

fn require_regular(mode: u32) -> Result<(), Refusal> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(Refusal("link", "it is a symbolic link".into())),
        FileType::Directory => Err(Refusal("not_regular", "it is a directory".into())),
        _ => Err(Refusal("not_regular", "it is not a regular file".into())),
    }
}

fn read(path: &[u8]) -> Result<OwnedFd, Refusal> {
    let parts = components(path)?;
    let dir = parent(&parts, false)?;
    let name = &parts[parts.len() - 1];
    require_regular(statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)?;
    // O_NONBLOCK: a FIFO that was swapped in must not hold us. fstat decides, on the open file.
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(&dir, name, flags, Mode::empty())?;
    require_regular(fstat(&file)?.st_mode)?;
    Ok(file)
}

fn write(path: &[u8], reply: BorrowedFd<'_>, content: Option<OwnedFd>) -> Result<(), Refusal> {
    let Some(content) = content else {
        return Err(Refusal("io", "no content pipe".into()));
    };
    let parts = components(path)?;
    let dir = parent(&parts, true)?;
    let name = &parts[parts.len() - 1];
    match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => require_regular(stat.st_mode)?,
        Err(Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let temporary = CString::new(format!(".upload-{}", std::process::id())).expect("no NUL");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&dir, &temporary, flags, Mode::from_raw_mode(0o644))?;
    let placed = copy(File::from(content), File::from(file))
        .map_err(Refusal::from)
        .and_then(|()| await_commit(reply))
        .and_then(|()| Ok(renameat(&dir, &temporary, &dir, name)?));
    if placed.is_err() {
        let _ = unlinkat(&dir, &temporary, AtFlags::empty());
    }
    placed
}

fn remove(path: &[u8]) -> Result<(), Refusal> {
    let parts = components(path)?;
    let dir = parent(&parts, false)?;
    let name = &parts[parts.len() - 1];
    require_regular(statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)?;
    Ok(unlinkat(&dir, name, AtFlags::empty())?)
}

fn copy(mut from: File, mut to: File) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => to.write_all(&buffer[..n])?,
        }
    }
}

/// The end of the pipe may be a client that went away: only the packet says that all was sent.
fn await_commit(reply: BorrowedFd<'_>) -> Result<(), Refusal> {
    match channel::receive(reply)? {
        Some(packet) if packet.bytes == b"commit" => Ok(()),
        _ => Err(Refusal("aborted", "the upload was given up".into())),
    }
}

/// A listing under way: entries are sent in packets as they fill.
struct Listing<'a> {
    reply: BorrowedFd<'a>,
    left: usize,
    pending: Vec<Entry>,
    pending_bytes: usize,
}

impl Listing<'_> {
    /// False when the limit of entries is reached.
    fn add(&mut self, entry: Entry) -> io::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        // A byte is at most four characters of JSON (`255,`).
        let bytes = entry.path.len() * 4 + 96;
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

fn list(reply: BorrowedFd<'_>, max_entries: usize) -> Result<(), Refusal> {
    let mut listing = Listing {
        reply,
        left: max_entries,
        pending: Vec::new(),
        pending_bytes: 0,
    };
    let mut path = Vec::new();
    walk(home()?, &mut path, 0, &mut listing)?;
    Ok(listing.flush()?)
}

/// Depth first; directories that vanish or cannot be opened are left out, as `find` does.
fn walk(
    dir: OwnedFd,
    path: &mut Vec<u8>,
    depth: usize,
    listing: &mut Listing<'_>,
) -> Result<(), Refusal> {
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
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let entry = Entry {
                    path: full,
                    size: stat.st_size.max(0) as u64,
                    modified_seconds: stat.st_mtime,
                };
                if !listing.add(entry)? {
                    return Ok(());
                }
            }
            FileType::Directory if depth < MAX_DEPTH && full.len() < MAX_PATH_BYTES => {
                subdirs.push(name.to_owned());
            }
            _ => {}
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
        walk(child, path, depth + 1, listing)?;
        path.truncate(length);
    }
    Ok(())
}
