//! File work inside a sandbox, by a child of init with the user's identity and filters.
//!
//! The host never resolves a path in here: it sends bytes, gets a descriptor of a regular file or
//! packets of names back. Every component is opened without following links, so a link planted
//! or swapped at any moment leads to a refusal, inside the sandbox at that.

mod journal;
mod links;
mod list;
mod mappings;
pub mod name;
mod pack;
mod tree;
mod unpack;
mod watch;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::channel;
use super::spec::{FileWork, HOME, Reply};

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
            Errno::EXIST => "exists",
            Errno::NOTEMPTY => "not_empty",
            // A directory of the mirror cannot be moved: overlayfs has no redirects here.
            Errno::XDEV => "not_permitted",
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
        FileWork::List(listing) => list::list(reply, listing).map(|()| None),
        FileWork::Stat { path } => tree::stat(reply, path).map(|()| None),
        FileWork::Read { path } => read(path).map(Some),
        FileWork::Write { path } => write(path, reply, content).map(|()| None),
        FileWork::MakeDirectory { path, parents } => {
            tree::make_directory(path, *parents).map(|()| None)
        }
        FileWork::Rename {
            from,
            to,
            overwrite,
        } => tree::rename(from, to, *overwrite).map(|()| None),
        FileWork::Remove { path, recursive } => tree::remove(path, *recursive).map(|()| None),
        FileWork::Pack { path, format } => pack::pack(path, *format, reply, content).map(|()| None),
        FileWork::Unpack {
            path,
            format,
            max_entries,
        } => {
            return match unpack::unpack(path, *format, *max_entries, reply, content) {
                Ok(()) => 0,
                Err(refusal) => refuse(reply, refusal),
            };
        }
        FileWork::Watch {
            path,
            recursive,
            max_directories,
        } => watch::watch(path, *recursive, *max_directories, reply, content).map(|()| None),
        FileWork::Journal(limits) => journal::keep(*limits, reply, content).map(|()| None),
    };
    let sent = match done {
        Ok(None) => channel::send_json(reply, &Reply::Ok {}, &[]),
        Ok(Some(file)) => channel::send_json(reply, &Reply::Ok {}, &[file.as_fd()]),
        Err(refusal) => return refuse(reply, refusal),
    };
    i32::from(sent.is_err())
}

/// The descriptor that comes with a request.
fn given(fd: Option<OwnedFd>, what: &str) -> Result<OwnedFd, Refusal> {
    fd.ok_or_else(|| Refusal("io", format!("no {what}")))
}

/// What [`FileWork::Watch`] and [`FileWork::Journal`] read from: made while system calls are not filtered yet.
pub fn watch_instance() -> Result<OwnedFd, Errno> {
    use rustix::fs::inotify::{CreateFlags, init};
    init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
}

fn refuse(reply: BorrowedFd<'_>, Refusal(code, detail): Refusal) -> i32 {
    let failed = Reply::Failed {
        code: code.into(),
        detail,
    };
    let _ = channel::send_json(reply, &failed, &[]);
    1
}

/// Splits a relative path, which may be that of the working directory itself; refuses what could
/// leave it.
fn parts_of(path: &[u8]) -> Result<Vec<CString>, Refusal> {
    let bad = |why: &str| Refusal("bad_path", why.into());
    if path.len() > MAX_PATH_BYTES {
        return Err(bad("a path has at most 4096 bytes"));
    }
    if path.first() == Some(&b'/') {
        return Err(bad("the path must be relative to the working directory"));
    }
    path.split(|b| *b == b'/')
        .filter(|p| !p.is_empty() && *p != b".")
        .map(|p| match p {
            b".." => Err(bad("the path must stay in the working directory")),
            p => CString::new(p).map_err(|_| bad("the path holds a NUL byte")),
        })
        .collect()
}

/// The same for something in the working directory: its folder's parts and its name.
fn place_of(path: &[u8]) -> Result<(Vec<CString>, CString), Refusal> {
    let mut parts = parts_of(path)?;
    match parts.pop() {
        Some(name) => Ok((parts, name)),
        None => Err(Refusal(
            "bad_path",
            "the path must name something in the working directory".into(),
        )),
    }
}

/// The same for a file.
fn file_place_of(path: &[u8]) -> Result<(Vec<CString>, CString), Refusal> {
    if path.ends_with(b"/") {
        return Err(Refusal("bad_path", "the path must name a file".into()));
    }
    place_of(path)
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

/// Opens a directory below the working directory, making missing ones when asked.
fn open_folder(parts: &[CString], make: bool) -> Result<OwnedFd, Refusal> {
    descend(home()?, parts, make)
}

/// Opens a directory below another, through no link.
fn descend(mut dir: OwnedFd, parts: &[CString], make: bool) -> Result<OwnedFd, Refusal> {
    for part in parts {
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

/// Opens the directory that a request names, which must be one.
fn named_folder(path: &[u8]) -> Result<OwnedFd, Refusal> {
    let mut parts = parts_of(path)?;
    let Some(name) = parts.pop() else {
        return home();
    };
    let dir = open_folder(&parts, false)?;
    require_directory(statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)?;
    Ok(open_dir(&dir, &name)?)
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

fn require_directory(mode: u32) -> Result<(), Refusal> {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => Ok(()),
        FileType::Symlink => Err(Refusal("link", "it is a symbolic link".into())),
        _ => Err(Refusal("not_directory", "it is not a directory".into())),
    }
}

fn read(path: &[u8]) -> Result<OwnedFd, Refusal> {
    let (parents, name) = file_place_of(path)?;
    let dir = open_folder(&parents, false)?;
    open_regular(dir.as_fd(), &name)
}

fn open_regular(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Refusal> {
    require_regular(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)?;
    // O_NONBLOCK: a FIFO that was swapped in must not hold us. fstat decides, on the open file.
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(dir, name, flags, Mode::empty())?;
    require_regular(fstat(&file)?.st_mode)?;
    Ok(file)
}

fn write(path: &[u8], reply: BorrowedFd<'_>, content: Option<OwnedFd>) -> Result<(), Refusal> {
    let content = given(content, "content pipe")?;
    let (parents, name) = file_place_of(path)?;
    let dir = open_folder(&parents, true)?;
    match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
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
        .and_then(|()| Ok(renameat(&dir, &temporary, &dir, &name)?));
    if placed.is_err() {
        let _ = unlinkat(&dir, &temporary, AtFlags::empty());
    }
    placed
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
