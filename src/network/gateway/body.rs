//! Bodies of answers: pages from memory, files from their descriptors, whole or still growing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::download::{Progress, Waiting};

/// The body of an answer. It fails when a download breaks off under way.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes of a file that are read at once.
const READ_BYTES: u64 = 256 * 1024;

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// All of a file of that many bytes.
pub(super) fn whole(file: Arc<File>, bytes: u64) -> Body {
    let pieces = stream::try_unfold((file, 0), move |(file, offset)| async move {
        if offset >= bytes {
            return Ok(None);
        }
        let piece = read(&file, offset, bytes).await?;
        let next = offset + piece.len() as u64;
        Ok(Some((piece, (file, next))))
    });
    body(pieces)
}

/// A download, while it comes. Its last byte follows when the whole has been verified.
pub(super) fn growing(waiting: Waiting) -> Body {
    let progress = watch::Receiver::clone(&waiting);
    // `waiting` goes with the stream: the download stops when nobody holds it.
    let pieces = stream::try_unfold(
        (waiting, progress, 0),
        |(waiting, mut progress, offset)| async move {
            let Some((file, end)) = readable(&mut progress, offset).await? else {
                return Ok(None);
            };
            let piece = read(&file, offset, end).await?;
            let next = offset + piece.len() as u64;
            Ok(Some((piece, (waiting, progress, next))))
        },
    );
    body(pieces)
}

/// Waits until something after `offset` can be read; `None` at the verified end.
async fn readable(
    progress: &mut watch::Receiver<Progress>,
    offset: u64,
) -> io::Result<Option<(Arc<File>, u64)>> {
    let broken = || io::Error::other("the download was given up");
    let ready = |progress: &Progress| progress.end.is_some() || progress.written > offset + 1;
    let now = progress
        .wait_for(ready)
        .await
        .map_err(|_| broken())?
        .clone();
    let end = match now.end {
        Some(Err(error)) => return Err(io::Error::other(error)),
        Some(Ok(())) if now.written <= offset => return Ok(None),
        Some(Ok(())) => now.written,
        None => now.written - 1,
    };
    Ok(Some((now.file.ok_or_else(broken)?, end)))
}

async fn read(file: &Arc<File>, offset: u64, end: u64) -> io::Result<Bytes> {
    let file = Arc::clone(file);
    let piece = spawn_blocking(move || {
        let mut buffer = vec![0; READ_BYTES.min(end - offset) as usize];
        let n = file.read_at(&mut buffer, offset)?;
        buffer.truncate(n);
        io::Result::Ok(Bytes::from(buffer))
    })
    .await
    .map_err(io::Error::other)??;
    if piece.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(piece)
}

fn body(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    let frames = futures_util::TryStreamExt::map_ok(pieces, Frame::data);
    StreamBody::new(frames).boxed_unsync()
}
