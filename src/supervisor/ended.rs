//! The last event of an execution, and what it says of the cost.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::sandbox::Sandbox;
use super::types::{Ended, Ending, Event, KernelState, Usage, Written};
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
        results_dropped: false,
        usage: Usage::default(),
        stdout: Written::default(),
        stderr: Written::default(),
    }
}

/// What was used since `before`. Cgroups count the whole sandbox: what its other contexts did
/// meanwhile is in it.
pub(super) fn usage(sandbox: &Sandbox, wall: Duration, before: &Counters, ended: &Ended) -> Usage {
    let after = sandbox.cgroup.counters();
    let mut limits_hit = Vec::new();
    if after.oom_kills > before.oom_kills {
        limits_hit.push("memory");
    }
    if after.fork_failures > before.fork_failures {
        limits_hit.push("processes");
    }
    let left_out_bytes = ended.stdout.left_out_bytes + ended.stderr.left_out_bytes;
    if left_out_bytes > 0 || ended.results_dropped {
        limits_hit.push("output");
    }
    if ended.ending == Ending::Timeout {
        limits_hit.push("time");
    }
    Usage {
        wall,
        cpu_user: after.cpu_user.saturating_sub(before.cpu_user),
        cpu_system: after.cpu_system.saturating_sub(before.cpu_system),
        peak_memory_bytes: after.peak_memory_bytes,
        // Init is ours.
        processes: after.processes.saturating_sub(1),
        limits_hit,
    }
}
