//! Downloads: each file comes once, however many sandboxes wait for it, and all of them read from it while
//! it grows.
//!
//! A download has a task of its own, so that a client that leaves does not stop it for the others; when the
//! last one leaves, it stops. Small files are complete and verified before the answer begins, so a wrong one
//! is an error with a text. Large ones are passed on while they come, all but the last byte, which waits for
//! the hash: nobody ever gets a whole file that is not the one the index lists.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use reqwest::Url;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::cache::{Cache, Lookup, Partial};
use super::error::Error;
use super::name::Digest;
use super::upstream::{Upstream, Want, refusal};

/// Downloads at once, of all sandboxes.
const MAX_DOWNLOADS: usize = 32;
/// How long an answer waits for the whole file before it begins: pip gives up after 15 seconds without a
/// byte, uv after 30.
const WHOLE: Duration = Duration::from_secs(3);
/// A download slower than this on the whole is given up, bytes a second.
const SLOWEST_BYTES_PER_SECOND: u64 = 16 * 1024;
/// Bytes that are collected before they are hashed and written.
const WRITE_BYTES: usize = 256 * 1024;

/// A file that somebody wants.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) digest: Digest,
    pub(super) url: Url,
    /// Whether it must come over TLS.
    pub(super) secure: bool,
    /// Bytes that the index lists.
    pub(super) size: Option<u64>,
    /// Most bytes, and the key of the configuration that says so.
    pub(super) limit: (u64, &'static str),
}

/// How a download stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// Once the file host has answered.
    pub(super) file: Option<Arc<File>>,
    /// Bytes that it will have, where known.
    pub(super) length: Option<u64>,
    /// Bytes that can be read.
    pub(super) written: u64,
    /// Once it has ended.
    pub(super) end: Option<Result<(), Error>>,
}

/// A download, for those who wait for it. It stops when the last of these goes.
pub(super) type Waiting = Arc<watch::Receiver<Progress>>;

/// A file to pass on.
pub(super) enum Source {
    /// Verified; with its bytes, and whether it was there before.
    Whole(Arc<File>, u64, bool),
    /// It still comes.
    Growing(Waiting),
}

/// The downloads that run.
pub(super) struct Downloads {
    cache: Arc<Cache>,
    upstream: Arc<Upstream>,
    running: Mutex<HashMap<Digest, Weak<watch::Receiver<Progress>>>>,
    slots: Semaphore,
    timeout: Duration,
}

impl Downloads {
    pub(super) fn new(cache: Arc<Cache>, upstream: Arc<Upstream>, timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            cache,
            upstream,
            running: Mutex::default(),
            slots: Semaphore::new(MAX_DOWNLOADS),
            timeout,
        })
    }

    /// The file, from the cache or from where the index says it is.
    pub(super) async fn get(self: &Arc<Self>, wanted: &Wanted) -> Result<Source, Error> {
        if let Lookup::Ready(file, bytes) = self.cache.look_up(&wanted.digest) {
            return Ok(Source::Whole(Arc::new(file), bytes, true));
        }
        let waiting = self.join(wanted);
        let mut progress = watch::Receiver::clone(&waiting);
        let whole = progress.wait_for(|progress| progress.end.is_some());
        if timeout(WHOLE, whole).await.map(drop).is_err() {
            // Without a file there is nothing to begin the answer with.
            let begun = progress.wait_for(|p| p.file.is_some() || p.end.is_some());
            let _ = begun.await.map(drop);
        }
        let now = progress.borrow().clone();
        match (now.end, now.file) {
            (Some(Ok(())), Some(file)) => Ok(Source::Whole(file, now.written, false)),
            (None, Some(_)) => Ok(Source::Growing(waiting)),
            (Some(Err(error)), _) => Err(error),
            // The task ended without a word: it panicked, or the service stops.
            (_, None) => Err(Error::Unreachable("the download was given up")),
        }
    }

    /// The download that runs, or a new one.
    fn join(self: &Arc<Self>, wanted: &Wanted) -> Waiting {
        let mut running = self.running.lock().expect("not poisoned");
        if let Some(waiting) = running.get(&wanted.digest).and_then(Weak::upgrade) {
            return waiting;
        }
        let (sender, receiver) = watch::channel(Progress::default());
        let waiting = Arc::new(receiver);
        let weak = Arc::downgrade(&waiting);
        running.insert(wanted.digest, Weak::clone(&weak));
        let entry = Running {
            downloads: Arc::clone(self),
            digest: wanted.digest,
            weak,
        };
        let wanted = wanted.clone();
        tokio::spawn(async move {
            let end = tokio::select! {
                end = entry.downloads.run(&wanted, &sender) => end,
                () = sender.closed() => {
                    tracing::info!(digest = %wanted.digest, "a download stops: nobody waits for it");
                    return;
                }
            };
            // Out of the table first: who comes now starts anew, or finds it in the cache.
            drop(entry);
            sender.send_modify(|progress| progress.end = Some(end));
        });
        waiting
    }

    async fn run(&self, wanted: &Wanted, sender: &watch::Sender<Progress>) -> Result<(), Error> {
        if let Lookup::Unverified(file) = self.cache.look_up(&wanted.digest) {
            let (cache, digest) = (Arc::clone(&self.cache), wanted.digest);
            let verified = spawn_blocking(move || cache.verify(&digest, file)).await;
            if let Some((file, bytes)) = verified.expect("hashing does not panic") {
                sender.send_modify(|progress| {
                    progress.file = Some(Arc::new(file));
                    progress.length = Some(bytes);
                    progress.written = bytes;
                });
                return Ok(());
            }
        }
        let _slot = self.slots.acquire().await.expect("never closed");
        let longest = wanted.size.unwrap_or(wanted.limit.0) / SLOWEST_BYTES_PER_SECOND;
        let longest = self.timeout + Duration::from_secs(longest);
        timeout(longest, self.download(wanted, sender))
            .await
            .unwrap_or(Err(Error::Unreachable("the download is too slow")))
    }

    async fn download(
        &self,
        wanted: &Wanted,
        sender: &watch::Sender<Progress>,
    ) -> Result<(), Error> {
        let (limit, key) = wanted.limit;
        let too_large = || Error::TooLarge {
            what: "the file",
            limit,
            key,
        };
        if wanted.size.is_some_and(|size| size > limit) {
            return Err(too_large());
        }
        let mut incoming = self
            .upstream
            .get(wanted.url.clone(), Want::File, wanted.secure)
            .await?;
        if incoming.status() != StatusCode::OK {
            return Err(match incoming.status() {
                StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound(
                    "the package index lists the file but does not have it".to_owned(),
                ),
                other => refusal(other),
            });
        }
        let length = incoming.length().or(wanted.size);
        if length.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut partial = self.cache.begin(wanted.digest, length)?;
        sender.send_modify(|progress| {
            progress.file = Some(Arc::clone(&partial.file));
            progress.length = length;
        });
        let (mut collected, mut total) = (BytesMut::new(), 0);
        loop {
            let piece = incoming.piece().await?;
            let last = piece.is_none();
            if let Some(piece) = piece {
                total += piece.len() as u64;
                if total > length.unwrap_or(limit) {
                    return Err(if length.is_some() {
                        Error::Wrong("the file is longer than it should be".to_owned())
                    } else {
                        too_large()
                    });
                }
                collected.extend_from_slice(&piece);
            }
            if collected.len() >= WRITE_BYTES || last {
                partial = write(partial, collected.split().freeze()).await?;
                sender.send_modify(|progress| progress.written = total);
            }
            if last {
                break;
            }
        }
        if length.is_some_and(|length| length != total) {
            return Err(Error::Unreachable("the download broke off"));
        }
        spawn_blocking(move || partial.finish())
            .await
            .expect("a rename does not panic")
    }
}

async fn write(mut partial: Partial, bytes: Bytes) -> Result<Partial, Error> {
    spawn_blocking(move || partial.write(&bytes).map(|()| partial))
        .await
        .expect("writing does not panic")
}

/// Takes the download out of the table when it has ended.
struct Running {
    downloads: Arc<Downloads>,
    digest: Digest,
    weak: Weak<watch::Receiver<Progress>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.downloads.running.lock().expect("not poisoned");
        if running
            .get(&self.digest)
            .is_some_and(|weak| weak.ptr_eq(&self.weak))
        {
            running.remove(&self.digest);
        }
    }
}
