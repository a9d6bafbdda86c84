//! Changes of files as they happen, seen by a process inside.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::super::error::{Error, ErrorKind};
use super::super::sandbox::Sandbox;
use super::super::types::TreeChangeKind;
use super::{broken, next, refusal, shown, spelled, start};
use crate::isolation::channel::Channel;
use crate::isolation::spec::{FileWork, Reply, TreeChange};

/// Watches of one sandbox at once.
const MAX_WATCHES: usize = 8;
/// Of all sandboxes: their inotify instances count against what the host's root may have of them, 128
/// by default (`fs.inotify.max_user_instances`).
const MAX_ALL_WATCHES: usize = 64;
/// Directories that one watch sees, where the host has room for as many.
const MAX_DIRECTORIES: usize = 4096;

/// How many watches there may be.
#[derive(Debug, Clone)]
pub struct Watches(Arc<Semaphore>);

impl Watches {
    /// Of a sandbox.
    pub fn of_sandbox() -> Self {
        Self(Arc::new(Semaphore::new(MAX_WATCHES)))
    }

    /// Of a service.
    pub fn of_all() -> Self {
        Self(Arc::new(Semaphore::new(MAX_ALL_WATCHES)))
    }

    fn take(&self) -> Result<OwnedSemaphorePermit, Error> {
        let place = Arc::clone(&self.0).try_acquire_owned();
        place.map_err(|_| Error::too_many_watches())
    }
}

/// Directories that one watch or journal may see, `most` where the host has room: all watches together
/// take at most half of what the host's root may have of them (`fs.inotify.max_user_watches`,
/// inotify(7)), which they count against as well, and all journals a quarter.
pub(super) fn max_directories(most: usize) -> usize {
    let of_host = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
    let of_host = of_host
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok());
    of_host.map_or(most, |of_host| (of_host / 2 / MAX_ALL_WATCHES).min(most))
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEvent {
    /// Something has changed.
    Change {
        /// How.
        kind: TreeChangeKind,
        /// What, as it is listed.
        path: String,
        /// The path that what was renamed had before.
        from: Option<String>,
        /// It is a directory.
        is_directory: bool,
    },
    /// Changes happened that are not told: there were too many of them or of directories. Whoever
    /// needs to know lists the files.
    Missed,
}

/// Changes in a folder; dropping it ends the watch.
#[derive(Debug)]
pub struct FileWatch {
    worker: Worker,
    path: String,
    ready: VecDeque<TreeEvent>,
}

/// The process inside that watches. It has its inotify instance until its end, which user code can hold
/// up by stopping it: so long it has its places too.
#[derive(Debug)]
struct Worker {
    /// `None` once dropped.
    held: Option<(Channel, [OwnedSemaphorePermit; 2])>,
    sandbox: Arc<Sandbox>,
}

impl Worker {
    fn reply(&self) -> &Channel {
        let (reply, _) = self.held.as_ref().expect("held until it is dropped");
        reply
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (Some(held), Ok(runtime)) = (self.held.take(), Handle::try_current()) else {
            return;
        };
        let sandbox = Arc::clone(&self.sandbox);
        runtime.spawn(async move {
            let (reply, places) = held;
            reply.shut();
            let gone = async { while let Ok(Some(_)) = reply.receive().await {} };
            tokio::select! {
                () = gone => {}
                () = sandbox.wait_closed() => {}
            }
            drop(places);
        });
    }
}

/// Begins to watch a folder. What is only watched is idle.
pub async fn watch(
    sandbox: &Arc<Sandbox>,
    path: &str,
    recursive: bool,
) -> Result<FileWatch, Error> {
    spelled(path, |bytes| begin(sandbox, bytes, path, recursive)).await
}

async fn begin(
    sandbox: &Arc<Sandbox>,
    bytes: Vec<u8>,
    path: &str,
    recursive: bool,
) -> Result<FileWatch, Error> {
    let places = [sandbox.watches.take()?, sandbox.host.watches.take()?];
    let work = FileWork::Watch {
        path: bytes,
        recursive,
        max_directories: max_directories(MAX_DIRECTORIES),
    };
    let worker = Worker {
        held: Some((start(sandbox, work, None).await?, places)),
        sandbox: Arc::clone(sandbox),
    };
    match next(sandbox, worker.reply()).await? {
        (Reply::Ok {}, _) => Ok(FileWatch {
            worker,
            path: path.to_owned(),
            ready: VecDeque::new(),
        }),
        (Reply::Failed { code, detail }, _) => Err(refusal(&code, &detail, path)),
        _ => Err(broken(sandbox)),
    }
}

impl FileWatch {
    /// The next event; waits for one. May be given up and called again.
    ///
    /// # Errors
    /// Why the watch is at its end: `NotFound` when the folder is gone, `Conflict` when the sandbox is.
    pub async fn next(&mut self) -> Result<TreeEvent, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let received = tokio::select! {
                received = self.worker.reply().receive() => received,
                () = self.worker.sandbox.wait_closed() => return Err(Error::sandbox_closing()),
            };
            let Ok(Some(packet)) = received else {
                self.worker.sandbox.refuse_closing()?;
                return Err(Error::new(
                    ErrorKind::Conflict,
                    "watch_ended",
                    "the watch was ended inside the sandbox",
                ));
            };
            match packet.decode() {
                Ok(Reply::Changes { changes, missed }) => {
                    self.ready.extend(changes.into_iter().map(told));
                    self.ready.extend(missed.then_some(TreeEvent::Missed));
                }
                Ok(Reply::Failed { code, detail }) => {
                    return Err(refusal(&code, &detail, &self.path));
                }
                _ => return Err(broken(&self.worker.sandbox)),
            }
        }
    }
}

fn told(change: TreeChange) -> TreeEvent {
    TreeEvent::Change {
        kind: change.kind,
        path: shown(&change.path),
        from: change.from.as_deref().map(shown),
        is_directory: change.is_directory,
    }
}
