//! Saves over-long output of executions to files in their sandbox, where clients can download it.
//!
//! A process inside with the user's identity writes it, like an upload: a link in its way, a full
//! disk or a worker that user code stopped cost the file and nothing else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::error::{Error, ErrorKind};
use super::files;
use super::sandbox::Sandbox;
use super::types::SavedFile;
use crate::kernel::stream::{Part, Saver};

/// Longest that each step inside may take: the execution's answer waits for it.
const STEP_TIME: Duration = Duration::from_secs(2);
/// One file takes at most this part of a sandbox's memory and of its disk, which the code needs: files
/// are memory where the upper directory is a tmpfs.
const SHARE: u64 = 16;
/// All saved files of a sandbox are at most so many times as large as one; older ones are removed.
const MOST_FILES: u64 = 2;
/// Hidden, so that it is not a result of the code.
const DIRECTORY: &str = ".outputs";

/// Bytes that are saved of a stream.
pub(super) fn most_bytes(sandbox: &Sandbox) -> u64 {
    let of_sandbox = sandbox.memory_bytes().min(sandbox.disk_bytes) / SHARE;
    of_sandbox.min(sandbox.host.config.limits.saved_output_bytes)
}

/// What became of a stream: the file or why there is none, for people. `None` where it is not over-long.
type Saved = Option<Result<SavedFile, String>>;

/// To be given an execution, and what saves its stdout and stderr meanwhile.
pub(super) fn both(sandbox: &Sandbox) -> ([Saver; 2], impl Future<Output = (Saved, Saved)>) {
    let (stdout_saver, stdout) = oneshot::channel();
    let (stderr_saver, stderr) = oneshot::channel();
    let saves = async {
        let stdout = save(sandbox, "stdout", stdout);
        tokio::join!(stdout, save(sandbox, "stderr", stderr))
    };
    ([stdout_saver, stderr_saver], saves)
}

/// Saves a stream as it comes, if it comes.
async fn save(
    sandbox: &Sandbox,
    stream: &'static str,
    over_long: oneshot::Receiver<mpsc::Receiver<Part>>,
) -> Saved {
    let parts = over_long.await.ok()?;
    let number = sandbox.next_output.fetch_add(1, Ordering::Relaxed);
    let path = format!("{DIRECTORY}/{number}-{stream}.txt");
    let saved = write(sandbox, path, parts).await;
    if let Ok(file) = &saved {
        make_room(sandbox, file).await;
    }
    Some(saved.map_err(|e| e.detail))
}

async fn write(
    sandbox: &Sandbox,
    path: String,
    mut parts: mpsc::Receiver<Part>,
) -> Result<SavedFile, Error> {
    let mut upload = step(files::create(sandbox, &path)).await?;
    let mut bytes = 0;
    while let Some(part) = parts.recv().await {
        match part {
            Part::Bytes(part) => {
                step(upload.write(&part)).await?;
                bytes += part.len() as u64;
            }
            Part::End { whole } => {
                let path = step(upload.finish()).await?;
                return Ok(SavedFile { path, bytes, whole });
            }
        }
    }
    Err(too_slow())
}

async fn step<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(STEP_TIME, work)
        .await
        .unwrap_or_else(|_| Err(too_slow()))
}

fn too_slow() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "output_not_saved",
        "the sandbox did not take it in time",
    )
}

/// Removes the oldest saved files where there are more than there may be.
async fn make_room(sandbox: &Sandbox, newest: &SavedFile) {
    let most_bytes = MOST_FILES * most_bytes(sandbox);
    let removed: Vec<String> = {
        let mut saved = sandbox.saved.lock().expect("not poisoned");
        saved.push((newest.path.clone(), newest.bytes));
        let mut over = saved.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let old = saved.iter().take_while(|(_, bytes)| {
            let is_over = over > most_bytes;
            over -= bytes;
            is_over
        });
        let old = old.count();
        saved.drain(..old).map(|(path, _)| path).collect()
    };
    // One time for all: the code may stop each of the workers. It may have removed a file, too.
    let removals = async {
        for path in removed {
            let _ = files::remove(sandbox, &path, false).await;
        }
    };
    let _ = timeout(STEP_TIME, removals).await;
}
