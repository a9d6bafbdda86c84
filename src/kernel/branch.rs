//! Branches: kernels forked from an idle kernel, with its variables. See
//! `rootfs/kernel/checkpoints.py` for the other side.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::process::Pid;
use tokio::time::{Instant, timeout};

use super::handle::{Kernel, Lines, Place};
use super::protocol::{FromKernel, ToKernel};
use super::restore::{inner_id, open_in, watch};
use crate::isolation::cgroup::SandboxCgroup;
use crate::isolation::host::Process;
use crate::isolation::{Context, Error};

/// Longest that a kernel may take to fork: it copies the page tables of all its memory.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);

/// What a kernel may have to tell of its checkpoints first; an honest one has one thing.
const EARLIER_FRAMES: usize = 8;

/// A kernel that goes on from where another was.
#[derive(Debug)]
pub struct Branch {
    /// Ready, in a leaf of its own.
    pub kernel: Kernel,
    /// What a fork did not carry, for people.
    pub missing: Vec<String>,
}

/// How to fork a kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// The branch will not execute, only be branched from: it dies before those that do when memory is
    /// short.
    pub waits: bool,
    /// Fork although threads or open files of the kernel make a copy unsound.
    pub force: bool,
}

/// Forks a kernel from an idle one into `leaf`, which must be there.
///
/// # Errors
/// [`Error::Unsound`] where the kernel refuses; else whatever step failed. No branch is left then, and
/// the kernel is as it was, or dead.
pub async fn branch(
    kernel: &mut Kernel,
    place: &Place<'_>,
    leaf: &str,
    Manner { waits, force }: Manner,
) -> Result<Branch, Error> {
    let started = Instant::now();
    let (lines, theirs) = Lines::new()?;
    // An answer that came too late for an earlier request is none to this one.
    kernel.read_checkpoints();
    let forked = timeout(FORK_TIMEOUT, async {
        let (request, fds) = (
            ToKernel::Branch { waits, force },
            theirs.each_ref().map(AsFd::as_fd),
        );
        let sent = kernel.frames.send_with(&request, &fds);
        sent.await.context("ask for a branch")?;
        answer(kernel).await
    });
    let inner = forked
        .await
        .map_err(|_| Error::Refused("the kernel does not fork".into()))??;
    drop(theirs);
    let forked = started.elapsed();
    let process = find(place.cgroup, kernel, inner)?;
    let exit = watch(place.init, inner).await?;
    let mut branch = Kernel::new(leaf.to_owned(), process, lines, exit)?;
    (branch.fresh, branch.next_count) = (kernel.fresh, kernel.next_count);
    branch.unproven = true;
    let found = started.elapsed();
    match begin(&mut branch, place).await {
        Ok(missing) => {
            tracing::debug!(
                fork_us = forked.as_micros(),
                find_us = (found - forked).as_micros(),
                begin_us = (started.elapsed() - found).as_micros(),
                "a kernel was forked"
            );
            Ok(Branch {
                kernel: branch,
                missing,
            })
        }
        Err(e) => {
            branch.process.kill();
            Err(e)
        }
    }
}

/// Id of the branch, inside. What the kernel had to tell of its checkpoint may come first.
async fn answer(kernel: &mut Kernel) -> Result<i32, Error> {
    for _ in 0..=EARLIER_FRAMES {
        match kernel.answer().await? {
            Some(FromKernel::Checkpoint { pid, objection }) => {
                kernel.note_checkpoint(pid, objection);
            }
            Some(FromKernel::Branched {
                pid,
                objection,
                unsound,
            }) => {
                let objection = objection.unwrap_or_default();
                return pid.ok_or(match unsound {
                    true => Error::Unsound(objection),
                    false => Error::Refused(objection),
                });
            }
            Some(other) => return Err(Error::Refused(format!("the kernel said {other:?}"))),
            None => return Err(Error::Refused("the kernel died as it forked".into())),
        }
    }
    Err(Error::Refused(
        "the kernel does not come to the point".into(),
    ))
}

/// The process of a kernel's leaf that has the id `inner` inside, and is not the kernel itself: two
/// handles to one process would each take it out of the other's leaf.
fn find(cgroup: &SandboxCgroup, kernel: &Kernel, inner: i32) -> Result<Process, Error> {
    let (leaf, itself) = (kernel.leaf(), kernel.process.pid());
    // The newest is listed last.
    let all = cgroup.processes(leaf)?.into_iter().rev();
    let pid = all
        .filter(|pid| *pid != itself && inner_id(*pid) == Some(inner))
        .find_map(Pid::from_raw);
    let pidfd = pid.and_then(|pid| open_in(cgroup, leaf, pid));
    Process::new(pidfd.ok_or_else(|| Error::Refused("the branch is gone".into()))?)
}

/// Moves the branch into its leaf, checks it from outside as any kernel and hears its first word.
async fn begin(branch: &mut Kernel, place: &Place<'_>) -> Result<Vec<String>, Error> {
    let pid = branch.process.pid();
    place.cgroup.move_into(branch.leaf(), pid)?;
    place.check(pid)?;
    match branch.answer().await? {
        Some(FromKernel::Restored { missing }) => Ok(missing),
        Some(other) => Err(Error::Refused(format!("the branch said {other:?}"))),
        None => Err(Error::Refused("the branch ended".into())),
    }
}
