//! Folders as archives, packed and unpacked by a process inside.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::AsFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver as PipeReader, Sender as PipeWriter};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::error::{Error, ErrorKind};
use super::super::sandbox::{InUse, Sandbox};
use super::super::types::ArchiveFormat;
use super::{FILE_TIMEOUT, broken, next, refusal, relative, spelled, start};
use crate::isolation::channel::Channel;
use crate::isolation::spec::{FileWork, Reply};

/// Longest that an archive may take to be unpacked, from its first byte on: one of few bytes may hold
/// many.
const UNPACK_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes read of an archive at once.
const PIECE_BYTES: usize = 64 * 1024;

/// An archive that is being made, read with [`Packed::next`]; dropping it ends that.
#[derive(Debug)]
pub struct Packed {
    pipe: PipeReader,
    reply: Channel,
    sandbox: Arc<Sandbox>,
    path: String,
    _in_use: InUse<Arc<Sandbox>>,
}

/// An archive that is being unpacked, fed with [`Unpacking::write`]; dropped before
/// [`Unpacking::finish`] it leaves nothing behind.
#[derive(Debug)]
pub struct Unpacking {
    /// `None` once ended.
    content: Option<PipeWriter>,
    reply: Channel,
    deadline: Instant,
    path: String,
    _in_use: InUse<Arc<Sandbox>>,
}

/// Begins to pack a folder.
pub async fn pack(
    sandbox: &Arc<Sandbox>,
    path: &str,
    format: ArchiveFormat,
) -> Result<Packed, Error> {
    spelled(path, |bytes| begin_packing(sandbox, bytes, path, format)).await
}

async fn begin_packing(
    sandbox: &Arc<Sandbox>,
    bytes: Vec<u8>,
    path: &str,
    format: ArchiveFormat,
) -> Result<Packed, Error> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|_| broken(sandbox))?;
    let pipe = PipeReader::from_owned_fd(reader).map_err(|_| broken(sandbox))?;
    let work = FileWork::Pack {
        path: bytes,
        format,
    };
    let in_use = InUse::of(Arc::clone(sandbox));
    let reply = start(sandbox, work, Some(writer.as_fd())).await?;
    drop(writer);
    match next(sandbox, &reply).await? {
        (Reply::Ok {}, _) => Ok(Packed {
            pipe,
            reply,
            sandbox: Arc::clone(sandbox),
            path: path.to_owned(),
            _in_use: in_use,
        }),
        (Reply::Failed { code, detail }, _) => Err(refusal(&code, &detail, path)),
        _ => Err(broken(sandbox)),
    }
}

impl Packed {
    /// The next bytes, `None` at the end.
    ///
    /// # Errors
    /// What comes after all bytes, where they are not the whole: a file has become shorter while it
    /// was read, or may not be read; the sandbox was closed.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        let read = timeout(FILE_TIMEOUT, self.pipe.read_buf(&mut piece)).await;
        match read {
            Ok(Ok(0)) => {}
            Ok(Ok(_)) => return Ok(Some(piece.freeze())),
            Ok(Err(_)) | Err(_) => return Err(broken(&self.sandbox)),
        }
        // The end of the pipe is also that of a process that was killed.
        match next(&self.sandbox, &self.reply).await? {
            (Reply::Ok {}, _) => Ok(None),
            (Reply::Failed { code, detail }, _) => Err(refusal(&code, &detail, &self.path)),
            _ => Err(broken(&self.sandbox)),
        }
    }
}

/// Begins to unpack an archive into a folder, which is made.
pub async fn unpack(
    sandbox: &Arc<Sandbox>,
    path: &str,
    format: Option<ArchiveFormat>,
) -> Result<Unpacking, Error> {
    let bytes = relative(path)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|_| broken(sandbox))?;
    let content = PipeWriter::from_owned_fd(writer).map_err(|_| broken(sandbox))?;
    let work = FileWork::Unpack {
        path: bytes,
        format,
        max_entries: sandbox.host.config.limits.inodes,
    };
    let in_use = InUse::of(Arc::clone(sandbox));
    let reply = start(sandbox, work, Some(reader.as_fd())).await?;
    Ok(Unpacking {
        content: Some(content),
        reply,
        deadline: Instant::now() + UNPACK_TIMEOUT,
        path: if path.is_empty() { "." } else { path }.to_owned(),
        _in_use: in_use,
    })
}

impl Unpacking {
    /// Hands on bytes.
    ///
    /// # Errors
    /// What is wrong with the archive, as soon as that is seen; `NoSpace` when the disk is full.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(content) = self.content.as_mut() else {
            return Err(given_up());
        };
        match timeout_at(self.deadline, content.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            // The reader ended: its answer says why.
            Ok(Err(_)) => {
                self.content = None;
                Err(self.answer().await.err().unwrap_or_else(given_up))
            }
            Err(_) => Err(too_long()),
        }
    }

    /// Ends the archive and puts what was in it in place; gives how many files that were and their
    /// bytes.
    pub async fn finish(mut self) -> Result<(u64, u64), Error> {
        self.content = None;
        if self.reply.send(b"commit", &[]).await.is_err() {
            return Err(self.answer().await.err().unwrap_or_else(given_up));
        }
        self.answer().await
    }

    async fn answer(&self) -> Result<(u64, u64), Error> {
        let Ok(packet) = timeout_at(self.deadline, self.reply.receive()).await else {
            return Err(too_long());
        };
        let Ok(Some(packet)) = packet else {
            return Err(given_up());
        };
        match packet.decode() {
            Ok(Reply::Unpacked { files, bytes }) => Ok((files, bytes)),
            Ok(Reply::Failed { code, detail }) => Err(refusal(&code, &detail, &self.path)),
            _ => Err(given_up()),
        }
    }
}

fn given_up() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "unpack_failed",
        "the unpacking was ended inside the sandbox",
    )
}

fn too_long() -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "archive_too_large",
        format!(
            "the archive takes more than {} s to unpack",
            UNPACK_TIMEOUT.as_secs()
        ),
    )
}
