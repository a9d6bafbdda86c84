//! What executions change in a working directory of many files, told by a process inside that keeps a
//! journal: see `src/isolation/filework/journal.rs`. Of few files the kernel itself looks at all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::super::error::Error;
use super::super::sandbox::Sandbox;
use super::super::types::{Change, FileChange};
use super::{broken, next, refusal, shown, start};
use crate::isolation::channel::Channel;
use crate::isolation::spec::{FileDifference, FileKind, FileWork, JournalLimits, Reply};

/// Files in a working directory from which on a journal is kept: so many take a kernel half a millisecond
/// to look at, before and after each execution.
const FROM_FILES: u64 = 200;
/// Journals of all sandboxes: their inotify instances count against what the host's root may have of
/// them, 128 by default (`fs.inotify.max_user_instances`), as those of watches do.
const MAX_ALL_JOURNALS: usize = 32;
/// Files of one journal, each of which takes some 200 bytes of the sandbox's memory.
const MAX_FILES: usize = 200_000;
/// Directories of one journal, where the host has room for as many.
const MAX_DIRECTORIES: usize = 8192;
/// Changes that are told of one execution at most, whatever `limits.files` says.
const MAX_DIFFERENCES: usize = 20_000;
/// Bytes of all their paths, of one execution.
const MAX_PATH_BYTES: usize = 2 * 1024 * 1024;
/// Longest that the process inside may take to tell: user code may have stopped it.
const TELL_TIME: Duration = Duration::from_secs(2);

/// How many journals there may be.
#[derive(Debug, Clone)]
pub struct Journals(Arc<Semaphore>);

impl Default for Journals {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_ALL_JOURNALS)))
    }
}

/// The journal of a sandbox.
#[derive(Debug, Default)]
pub struct Journal {
    state: tokio::sync::Mutex<State>,
    due: AtomicBool,
}

#[derive(Debug, Default)]
enum State {
    /// There are too few files, as far as is known.
    #[default]
    None,
    Kept(Kept),
    /// It was given up. The process inside may still be there, with its inotify instance.
    Ended {
        _place: Option<OwnedSemaphorePermit>,
    },
}

#[derive(Debug)]
struct Kept {
    worker: Channel,
    place: OwnedSemaphorePermit,
    /// Of the executions that run now.
    turns: Vec<Weak<Mutex<Changes>>>,
}

/// What has changed while an execution runs.
#[derive(Debug)]
pub struct Turn(Arc<Mutex<Changes>>);

#[derive(Debug, Default)]
struct Changes {
    /// By path: whether it was there before, its size, and what it is.
    files: BTreeMap<Vec<u8>, (bool, Option<u64>, FileKind)>,
    /// Of all paths.
    bytes: usize,
    left_out: bool,
}

impl Changes {
    fn add(&mut self, differences: &[FileDifference], left_out: bool) {
        self.left_out |= left_out;
        for difference in differences {
            let bytes = self.bytes + difference.path.len();
            match self.files.get_mut(&difference.path) {
                Some((_, size, kind)) => (*size, *kind) = (difference.size, difference.kind),
                None if bytes > MAX_PATH_BYTES => self.left_out = true,
                None => {
                    self.bytes = bytes;
                    let now = (difference.was_there, difference.size, difference.kind);
                    self.files.insert(difference.path.clone(), now);
                }
            }
        }
    }

    /// Of `most` files, and whether there are others.
    fn told(&self, most: usize) -> (Vec<FileChange>, bool) {
        let mut changes = self.files.iter().filter_map(|(path, now)| {
            let change = match now {
                (false, Some(_), _) => Change::Created,
                (true, Some(_), _) => Change::Changed,
                (true, None, _) => Change::Deleted,
                (false, None, _) => return None,
            };
            Some(FileChange {
                path: shown(path),
                size: now.1.unwrap_or_default(),
                change,
                kind: now.2,
            })
        });
        let told = changes.by_ref().take(most).collect();
        (told, self.left_out || changes.next().is_some())
    }
}

impl Journal {
    /// Notes how many files a kernel has looked at.
    pub fn note_files(&self, files: u64) {
        if files >= FROM_FILES {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// Begins one where there are many files and there is none, nor was.
    pub async fn start_if_due(&self, sandbox: &Sandbox) {
        if !self.due.swap(false, Ordering::Relaxed) || sandbox.is_closing() {
            return;
        }
        let mut state = self.state.lock().await;
        if !matches!(*state, State::None) {
            return;
        }
        let Ok(place) = Arc::clone(&sandbox.host.journals.0).try_acquire_owned() else {
            return;
        };
        *state = match timeout(TELL_TIME, begin(sandbox)).await {
            Ok(Ok(worker)) => State::Kept(Kept {
                worker,
                place,
                turns: Vec::new(),
            }),
            failed => {
                tracing::debug!(sandbox = sandbox.id(), "no journal of files: {failed:?}");
                // Whoever refuses has no instance any more.
                State::Ended {
                    _place: failed.is_err().then_some(place),
                }
            }
        };
    }

    /// Before an execution; `None` where no journal is kept.
    pub async fn begin(&self, sandbox: &Sandbox) -> Option<Turn> {
        let mut state = self.state.lock().await;
        // What has changed so far is none of its.
        if !look(&mut state, sandbox).await {
            return None;
        }
        let State::Kept(kept) = &mut *state else {
            return None;
        };
        let turn = Arc::default();
        kept.turns.push(Arc::downgrade(&turn));
        Some(Turn(turn))
    }

    /// After it: what has changed, `most` files at most, and whether there are others.
    pub async fn end(&self, sandbox: &Sandbox, turn: Turn, most: usize) -> (Vec<FileChange>, bool) {
        let seen = look(&mut *self.state.lock().await, sandbox).await;
        let changes = turn.0.lock().expect("not poisoned");
        let (files, left_out) = changes.told(most);
        (files, left_out || !seen)
    }
}

async fn begin(sandbox: &Sandbox) -> Result<Channel, Error> {
    let work = FileWork::Journal(JournalLimits {
        files: MAX_FILES,
        directories: super::watch::max_directories(MAX_DIRECTORIES),
        differences: MAX_DIFFERENCES,
        path_bytes: MAX_PATH_BYTES,
    });
    let worker = start(sandbox, work, None).await?;
    match next(sandbox, &worker).await? {
        (Reply::Ok {}, _) => Ok(worker),
        (Reply::Failed { code, detail }, _) => Err(refusal(&code, &detail, "")),
        _ => Err(broken(sandbox)),
    }
}

/// Has the journal tell what is new, to all executions that run. One that does not is given up, and the
/// answer is false, as where there is none.
async fn look(state: &mut State, sandbox: &Sandbox) -> bool {
    let State::Kept(kept) = state else {
        return false;
    };
    let told = timeout(TELL_TIME, kept.look(sandbox)).await;
    if matches!(told, Ok(Ok(()))) {
        return true;
    }
    tracing::debug!(
        sandbox = sandbox.id(),
        "the journal of files ended: {told:?}"
    );
    if let State::Kept(kept) = std::mem::take(state) {
        *state = State::Ended {
            _place: Some(kept.place),
        };
    }
    false
}

impl Kept {
    async fn look(&mut self, sandbox: &Sandbox) -> Result<(), Error> {
        self.turns.retain(|turn| turn.strong_count() > 0);
        let asked = self.worker.send(b"look", &[]).await;
        asked.map_err(|_| broken(sandbox))?;
        let mut left = MAX_DIFFERENCES;
        loop {
            let (
                Reply::Differences {
                    differences,
                    left_out,
                },
                _,
            ) = next(sandbox, &self.worker).await?
            else {
                return Err(broken(sandbox));
            };
            left = left
                .checked_sub(differences.len())
                .ok_or_else(|| broken(sandbox))?;
            for turn in self.turns.iter().filter_map(Weak::upgrade) {
                let mut changes = turn.lock().expect("not poisoned");
                changes.add(&differences, left_out == Some(true));
            }
            if left_out.is_some() {
                return Ok(());
            }
            // An honest one has something in each packet.
            if differences.is_empty() {
                return Err(broken(sandbox));
            }
        }
    }
}
