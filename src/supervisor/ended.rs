//! The last event of an execution, and what it says of the cost.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::sandbox::Sandbox;
use super::types::{Ended, Ending, Event, KernelState, LeftOut, Usage, Written};
use crate::isolation::cgroup::Counters;

/// Longest that a client may take to read the last event.
pub(super) const END_TIME: Duration = Duration::from_secs(30);
/// Of a kernel that is gone and left no word.
pub(super) const DIED: Ending = Ending::KernelDied {
    code: None,
    signal: None,
};

/// Tells the last event to a client that may be slow to read.
pub(super) async fn tell_end(events: &mpsc::Sender<Event>, ended: Ended, longest: Duration) {
    let _ = timeout(longest, events.send(Event::Ended(Box::new(ended)))).await;
}

/// Of an execution that never reached a kernel.
pub(super) fn no_kernel(ending: Ending) -> Ended {
    Ended {
        ending,
        state: KernelState::Lost {
            reason: "no kernel ran it".into(),
        },
        execution_count: 0,
        files: Vec::new(),
        files_truncated: false,
        results_left_out: LeftOut::default(),
        exit_code: None,
        disk_full: false,
        env_not_applied: Vec::new(),
        killed: 0,
        usage: Usage::default(),
        stdout: Written::default(),
        stderr: Written::default(),
    }
}

/// What was used since `before`. Cgroups count the whole sandbox: what its other contexts did
/// meanwhile is in it.
pub(super) fn usage(sandbox: &Sandbox, wall: Duration, before: &Counters, ended: &Ended) -> Usage {
    let after = sandbox.cgroup.counters();
    let cut = [&ended.stdout, &ended.stderr];
    let cut = cut
        .iter()
        .filter(|stream| stream.left_out_bytes > 0)
        .count() as u64;
    let limits = [
        ("memory", after.oom_kills.saturating_sub(before.oom_kills)),
        (
            "processes",
            after.fork_failures.saturating_sub(before.fork_failures),
        ),
        ("disk", u64::from(ended.disk_full)),
        (
            "output",
            cut + u64::from(ended.results_left_out.results > 0),
        ),
        ("time", u64::from(ended.ending == Ending::Timeout)),
    ];
    Usage {
        wall,
        cpu_user: after.cpu_user.saturating_sub(before.cpu_user),
        cpu_system: after.cpu_system.saturating_sub(before.cpu_system),
        peak_memory_bytes: after.peak_memory_bytes,
        // Init is ours.
        processes: after.processes.saturating_sub(1),
        transfer: ended.usage.transfer,
        limits_hit: limits.into_iter().filter(|(_, times)| *times > 0).collect(),
    }
}
