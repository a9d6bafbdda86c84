//! Goes on from a kernel's checkpoint when the kernel has died: see `rootfs/kernel/checkpoints.py`.
//!
//! All that runs in the kernel's cgroup but the checkpoint ends first, so nothing that the execution
//! started goes on and nobody else reads the kernel's socket.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::frame;
use super::handle::{Kernel, Place};
use super::protocol::FromKernel;
use super::zygote::Exit;
use crate::isolation::cgroup::SandboxCgroup;
use crate::isolation::host::{Init, Process};
use crate::isolation::spec::Reply;
use crate::isolation::{Context, Error};

/// Longest that killed processes may take to be gone.
const DEATH_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest that a checkpoint may take to say that it is the kernel.
const WAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Puts the checkpoint in the place of the dead kernel. Gives what it could not carry, for people.
///
/// # Errors
/// Why the variables are lost, for people. Nothing of the kernel is left then.
pub async fn restore(kernel: &mut Kernel, place: &Place<'_>) -> Result<Vec<String>, String> {
    kernel.read_checkpoints();
    let outcome = match kernel.last_checkpoint() {
        Ok(pid) => wake(kernel, place, pid).await.map_err(|e| {
            tracing::warn!("a checkpoint was of no use: {e}");
            "the checkpoint was gone or did not wake".to_owned()
        }),
        Err(objection) => Err(objection),
    };
    if outcome.is_err() {
        kernel.end(place.cgroup).await;
    }
    outcome
}

async fn wake(kernel: &mut Kernel, place: &Place<'_>, inner: i32) -> Result<Vec<String>, Error> {
    let leaf = kernel.leaf().to_owned();
    // The kernel may have told its own id.
    let dead = kernel.process.pid();
    let keep = |pid| pid != dead && inner_id(pid) == Some(inner);
    // Frozen, nothing forks; what is killed dies nevertheless (cgroup v2 documentation).
    let frozen = place.cgroup.freeze_leaf(&leaf)?;
    kill_others(place.cgroup, &leaf, keep).await?;
    let kept = place.cgroup.processes(&leaf)?;
    let pid = kept
        .first()
        .and_then(|pid| Pid::from_raw(*pid))
        .ok_or_else(|| Error::Refused("the checkpoint is gone".into()))?;
    drop(frozen);
    kernel.process.exited().await;
    kernel.frames.discard();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("open the checkpoint")?;
    let process = Process::new(pidfd)?;
    place.check(process.pid())?;
    let exit = watch(place.init, inner).await?;
    process.wake();
    let first = timeout(WAKE_TIMEOUT, kernel.frames.next())
        .await
        .map_err(|_| Error::Refused("the checkpoint does not wake".into()))?
        .context("hear from the checkpoint")?
        .ok_or_else(|| Error::Refused("the checkpoint ended".into()))?;
    match frame::parse(&first, 0).context("read the checkpoint's first frame")? {
        Some(FromKernel::Restored { missing }) => {
            kernel.replace(process, exit);
            Ok(missing)
        }
        _ => Err(Error::Refused("the checkpoint said something else".into())),
    }
}

/// Forks of a kernel are no children of the zygote, which tells how kernels end, but of init.
pub(super) async fn watch(init: &Init, pid: i32) -> Result<oneshot::Receiver<Exit>, Error> {
    let channel = init.watch(pid).await?;
    let (mut told, exit) = oneshot::channel();
    tokio::spawn(async move {
        // One whose parent lives ends without init's noticing.
        let received = tokio::select! {
            received = channel.receive() => received,
            () = told.closed() => return,
        };
        let Ok(Some(packet)) = received else { return };
        if let Ok(Reply::Exited { code, signal }) = packet.decode() {
            let _ = told.send(Exit { code, signal });
        }
    });
    Ok(exit)
}

/// Kills what an execution has started and what did not end with it: everything in the kernel's cgroup
/// but the kernel, its checkpoints and what was `present` before. Gives how many processes that were.
/// `forks`: the kernel has said that it makes a new checkpoint now.
pub(super) async fn kill_started(
    kernel: &mut Kernel,
    cgroup: &SandboxCgroup,
    present: &[i32],
    forks: bool,
) -> Result<usize, Error> {
    let leaf = kernel.leaf().to_owned();
    // The one of before ends of itself, a moment after there is a new one.
    let before = kernel.checkpoint.clone().ok();
    if forks {
        kernel.await_checkpoint().await;
    }
    // Frozen before it is asked: a checkpoint that the kernel forks from here on is not there yet.
    let frozen = cgroup.freeze_leaf(&leaf)?;
    kernel.read_checkpoints();
    let (own, after) = (kernel.process.pid(), kernel.checkpoint.clone().ok());
    let keep = |pid| {
        let is_checkpoint = |inner: i32| [before, after].contains(&Some(inner));
        pid == own || present.contains(&pid) || inner_id(pid).is_some_and(is_checkpoint)
    };
    let killed = kill_others(cgroup, &leaf, keep).await;
    drop(frozen);
    killed
}

/// Kills everything in a frozen leaf but what is to be kept, and waits until it is gone. Gives how many
/// processes that were.
async fn kill_others(
    cgroup: &SandboxCgroup,
    leaf: &str,
    keep: impl Fn(i32) -> bool,
) -> Result<usize, Error> {
    let deadline = Instant::now() + DEATH_TIMEOUT;
    let mut killed = BTreeSet::new();
    loop {
        let mut others = cgroup.processes(leaf)?;
        others.retain(|pid| !keep(*pid));
        if others.is_empty() {
            return Ok(killed.len());
        }
        if Instant::now() > deadline {
            return Err(Error::Refused("processes of the kernel do not die".into()));
        }
        for pid in others.into_iter().filter_map(Pid::from_raw) {
            if let Some(pidfd) = open_in(cgroup, leaf, pid) {
                killed.insert(pid.as_raw_nonzero());
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Opens a process of a leaf; `None` where it is not there any more.
pub(super) fn open_in(cgroup: &SandboxCgroup, leaf: &str, pid: Pid) -> Option<OwnedFd> {
    // Opened first: what is still in the cgroup after that is what was opened.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    cgroup
        .holds(leaf, pid.as_raw_nonzero().get())
        .then_some(pidfd)
}

/// Id of a process in its innermost PID namespace (`NSpid`, proc_pid_status(5), Linux 4.1).
pub(super) fn inner_id(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}
