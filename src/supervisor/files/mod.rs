//! Files of a sandbox: the work is done inside, see [`crate::isolation::spec::FileWork`].

mod archive;
mod journal;
mod tree;
mod verbs;
mod watch;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender as PipeWriter;
use tokio::time::timeout;

use super::error::{Error, ErrorKind};
use super::sandbox::Sandbox;
use super::types::{FileEntry, FileQuery, OpenFile, Upload};
use crate::isolation;
use crate::isolation::channel::Channel;
use crate::isolation::filework::name::shown;
use crate::isolation::glob;
use crate::isolation::init::{NO_PROCESS, NO_WATCH};
use crate::isolation::spec::{Entry, FileWork, HOME, Listing, Reply};
pub use archive::{Packed, Unpacking};
pub use journal::{Journal, Journals};
pub(super) use tree::remove;
pub use watch::{FileWatch, TreeEvent, Watches};

/// Longest between two signs of life of file work: it may be stopped by user code.
const FILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Names of the working directory: its own, and the links to it in the mirror (`rootfs/finish.sh`), by which
/// other services know it. None begins with another and a slash.
pub(super) const HOMES: [&str; 5] = [HOME, "/app/results", "/mnt/data", "/workspace", "/content"];

/// What is in a folder of the working directory, sorted by path.
pub async fn list(sandbox: &Sandbox, query: &FileQuery) -> Result<Vec<FileEntry>, Error> {
    if let Some(pattern) = &query.glob {
        glob::compile(pattern).map_err(|why| Error::invalid("glob", format!("glob: {why}")))?;
    }
    spelled(&query.path, |path| list_at(sandbox, query, path)).await
}

async fn list_at(
    sandbox: &Sandbox,
    query: &FileQuery,
    path: Vec<u8>,
) -> Result<Vec<FileEntry>, Error> {
    let max_entries = sandbox.host.config.limits.files;
    let listing = Listing {
        path,
        glob: query.glob.clone(),
        recursive: query.recursive,
        kind: query.kind,
        max_entries,
    };
    let reply = start(sandbox, FileWork::List(listing), None).await?;
    let mut files = entries(sandbox, &reply, &query.path, max_entries).await?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Entries that come in packets until all of them have.
async fn entries(
    sandbox: &Sandbox,
    reply: &Channel,
    path: &str,
    most: usize,
) -> Result<Vec<FileEntry>, Error> {
    let mut files = Vec::new();
    loop {
        match next(sandbox, reply).await? {
            (Reply::Entries { entries }, _) if files.len() + entries.len() <= most => {
                files.extend(entries.into_iter().map(told));
            }
            (Reply::Ok {}, _) => return Ok(files),
            (Reply::Failed { code, detail }, _) => return Err(refusal(&code, &detail, path)),
            _ => return Err(broken(sandbox)),
        }
    }
}

fn told(entry: Entry) -> FileEntry {
    FileEntry {
        path: shown(&entry.path),
        kind: entry.kind,
        size: entry.size,
        mode: entry.mode & 0o7777,
        modified_at: at(entry.modified_seconds, entry.modified_nanoseconds),
    }
}

/// Works on a path as it is written and, where nothing has that, in the form in which names that are
/// not UTF-8 are listed.
async fn spelled<T, Work>(path: &str, work: impl Fn(Vec<u8>) -> Work) -> Result<T, Error>
where
    Work: Future<Output = Result<T, Error>>,
{
    let bytes = relative(path)?;
    match work(bytes.clone()).await {
        Err(e) if e.kind == ErrorKind::NotFound && path.contains('%') => {
            let meant = unescaped(&bytes);
            if std::str::from_utf8(&meant).is_ok() {
                return Err(e);
            }
            work(meant).await.map_err(|_| e)
        }
        other => other,
    }
}

/// Opens a regular file for reading.
pub async fn open(sandbox: &Sandbox, path: &str) -> Result<OpenFile, Error> {
    spelled(path, |bytes| read(sandbox, bytes, path)).await
}

async fn read(sandbox: &Sandbox, bytes: Vec<u8>, path: &str) -> Result<OpenFile, Error> {
    let reply = start(sandbox, FileWork::Read { path: bytes }, None).await?;
    match next(sandbox, &reply).await? {
        (Reply::Ok {}, Some(file)) => {
            let metadata = file.metadata().map_err(|_| broken(sandbox))?;
            // The process that opened it may lie: the descriptor itself decides.
            if !metadata.is_file() {
                return Err(refusal("not_regular", "it is not a regular file", path));
            }
            let modified_at = metadata.modified().unwrap_or(UNIX_EPOCH);
            Ok(OpenFile {
                size: metadata.len(),
                modified_at,
                file,
                in_use: None,
            })
        }
        (Reply::Failed { code, detail }, _) => Err(refusal(&code, &detail, path)),
        _ => Err(broken(sandbox)),
    }
}

/// Creates or replaces a file; its content is fed to [`Upload::write`].
pub async fn create(sandbox: &Sandbox, path: &str) -> Result<Upload, Error> {
    let bytes = relative(path)?;
    let place = String::from_utf8_lossy(&bytes).into_owned();
    let (content, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|_| broken(sandbox))?;
    let reply = start(
        sandbox,
        FileWork::Write { path: bytes },
        Some(content.as_fd()),
    )
    .await?;
    drop(content);
    let writer = PipeWriter::from_owned_fd(writer).map_err(|_| broken(sandbox))?;
    Ok(Upload {
        reply,
        content: Some(writer),
        path: normal(&place),
        in_use: None,
    })
}

impl Upload {
    /// Hands on bytes. Fails with `NoSpace` when the sandbox's disk is full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(content) = self.content.as_mut() else {
            return Err(given_up());
        };
        match timeout(FILE_TIMEOUT, content.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            // The reader ended: its answer says why.
            Ok(Err(_)) => {
                self.content = None;
                Err(self.answer().await.err().unwrap_or_else(given_up))
            }
            Err(_) => Err(given_up()),
        }
    }

    /// Ends the file and puts it in place; gives its path relative to the working directory.
    /// Dropping an upload without this leaves nothing behind.
    pub async fn finish(mut self) -> Result<String, Error> {
        self.content = None;
        if self.reply.send(b"commit", &[]).await.is_err() {
            return Err(self.answer().await.err().unwrap_or_else(given_up));
        }
        self.answer().await.map(|()| self.path)
    }

    async fn answer(&self) -> Result<(), Error> {
        let packet = timeout(FILE_TIMEOUT, self.reply.receive()).await;
        let Ok(Ok(Some(packet))) = packet else {
            return Err(given_up());
        };
        match packet.decode() {
            Ok(Reply::Ok {}) => Ok(()),
            Ok(Reply::Failed { code, detail }) => Err(refusal(&code, &detail, &self.path)),
            _ => Err(given_up()),
        }
    }
}

fn given_up() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "upload_failed",
        "the upload was ended inside the sandbox",
    )
}

async fn start(
    sandbox: &Sandbox,
    work: FileWork,
    content: Option<std::os::fd::BorrowedFd<'_>>,
) -> Result<Channel, Error> {
    sandbox.refuse_closing()?;
    sandbox.touch();
    sandbox
        .init
        .file(work, content)
        .await
        .map_err(|e| internal(sandbox, &e))
}

/// The next packet, with its descriptor as a file. From a process with the user's identity.
async fn next(sandbox: &Sandbox, reply: &Channel) -> Result<(Reply, Option<File>), Error> {
    let packet = timeout(FILE_TIMEOUT, reply.receive()).await;
    let Ok(Ok(Some(packet))) = packet else {
        sandbox.refuse_closing()?;
        return Err(broken(sandbox));
    };
    let message = packet.decode().map_err(|_| broken(sandbox))?;
    Ok((message, packet.fds.into_iter().next().map(File::from)))
}

/// Bytes relative to the working directory. Whether they stay in it is decided inside.
fn relative(path: &str) -> Result<Vec<u8>, Error> {
    let below = |home: &&str| {
        let rest = path.strip_prefix(*home)?;
        // The directory itself, for verbs that take it.
        if rest.is_empty() {
            Some("")
        } else {
            rest.strip_prefix('/')
        }
    };
    let trimmed = HOMES.iter().find_map(below).unwrap_or(path);
    if trimmed.starts_with('/') {
        return Err(refusal(
            "bad_path",
            &format!("the path must be relative to the working directory, {HOME}"),
            path,
        ));
    }
    Ok(trimmed.as_bytes().to_vec())
}

/// `./a//b` as `a/b`.
fn normal(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|p| !p.is_empty() && *p != ".")
        .collect();
    parts.join("/")
}

/// Inverse of [`shown`] for names that are not UTF-8.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut i = 0;
    while i < path.len() {
        let hex = path
            .get(i + 1..i + 3)
            .and_then(|h| std::str::from_utf8(h).ok());
        match (path[i], hex.and_then(|h| u8::from_str_radix(h, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                i += 3;
            }
            (byte, _) => {
                bytes.push(byte);
                i += 1;
            }
        }
    }
    bytes
}

/// A time that user code may have set to any.
fn at(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    let part = Duration::from_nanos(u64::from(nanoseconds.min(999_999_999)));
    time.and_then(|time| time.checked_add(part))
        .unwrap_or(UNIX_EPOCH)
}

/// Maps the words of [`Reply::Failed`].
fn refusal(code: &str, detail: &str, path: &str) -> Error {
    let name: String = Path::new(path)
        .to_string_lossy()
        .chars()
        .filter(|c| !c.is_control())
        .take(256)
        .collect();
    let detail: String = detail
        .chars()
        .filter(|c| !c.is_control())
        .take(512)
        .collect();
    if code == NO_PROCESS {
        return Error::too_many_processes();
    }
    if code == NO_WATCH {
        return Error::too_many_watches();
    }
    let (kind, code) = match code {
        "not_found" => (ErrorKind::NotFound, "file_not_found"),
        "link" => (ErrorKind::BadPath, "symbolic_link"),
        "not_regular" => (ErrorKind::BadPath, "not_a_regular_file"),
        "not_directory" => (ErrorKind::BadPath, "not_a_directory"),
        "exists" => (ErrorKind::Conflict, "file_exists"),
        "bad_archive" => (ErrorKind::BadPath, "bad_archive"),
        "unsafe_archive" => (ErrorKind::BadPath, "unsafe_archive"),
        "too_many_files" => (ErrorKind::TooLarge, "too_many_files"),
        "not_empty" => (ErrorKind::Conflict, "directory_not_empty"),
        "bad_path" => (ErrorKind::BadPath, "bad_path"),
        "no_space" => (ErrorKind::NoSpace, "disk_full"),
        "too_large" => (ErrorKind::TooLarge, "file_too_large"),
        "not_permitted" => (ErrorKind::BadPath, "not_permitted"),
        _ => (ErrorKind::Conflict, "file_changed"),
    };
    Error::new(kind, code, format!("{name:?}: {detail}"))
}

fn broken(sandbox: &Sandbox) -> Error {
    tracing::warn!(sandbox = sandbox.id(), "file work gave no answer");
    Error::new(
        ErrorKind::Conflict,
        "file_work_failed",
        "the file could not be worked on in the sandbox",
    )
}

fn internal(sandbox: &Sandbox, e: &isolation::Error) -> Error {
    if let Err(closing) = sandbox.refuse_closing() {
        return closing;
    }
    tracing::error!(sandbox = sandbox.id(), "{e}");
    Error::new(
        ErrorKind::Internal,
        "internal",
        "the sandbox does not answer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_through_their_text_form() {
        for name in [&b"a\xffb"[..], b"100%\xfe", b"\xc3"] {
            assert_eq!(unescaped(shown(name).as_bytes()), name);
        }
        assert_eq!(shown(b"100%41.txt"), "100%41.txt");
    }

    #[test]
    fn only_paths_of_the_working_directory_are_sent_inside() {
        assert_eq!(relative("a/b").unwrap(), b"a/b");
        assert_eq!(relative("/home/user/a").unwrap(), b"a");
        for home in HOMES {
            assert_eq!(relative(&format!("{home}/a")).unwrap(), b"a");
            assert_eq!(relative(home).unwrap(), b"");
            relative(&format!("{home}2/a")).unwrap_err();
        }
        assert_eq!(relative("/home/user").unwrap(), b"");
        assert_eq!(
            relative("/etc/passwd").unwrap_err().kind,
            ErrorKind::BadPath
        );
        assert_eq!(
            relative("/home/user2/a").unwrap_err().kind,
            ErrorKind::BadPath
        );
    }
}
