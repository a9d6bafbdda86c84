//! What a sandbox is made with: its processes started side by side, and the sizes and limits that
//! follow from a plan.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::context::DEFAULT_LEAF;
use super::host::Host;
use super::realm::Realm;
use super::sandbox::Plan;
use crate::config::Limits;
use crate::isolation;
use crate::isolation::cgroup::{CgroupLimits, SandboxCgroup};
use crate::isolation::grant::Grant;
use crate::isolation::host::Init;
use crate::isolation::spec::SandboxSpec;
use crate::isolation::view::VisibleLimits;
use crate::kernel::handle::{Forked, Kernel, Place};
use crate::kernel::zygote::ForkSpec;

/// Between the end of a sandbox's processes and the removal of its cgroups.
const REMOVE_PAUSE: Duration = Duration::from_millis(25);
/// Longest that killed processes may take to be gone.
pub(super) const DEATH_TIMEOUT: Duration = Duration::from_secs(30);
/// Above init's 0 and below what a process may raise itself to: user code dies first.
pub(super) const OOM_SCORE_ADJ: u32 = 500;
/// Descriptors of queued POSIX messages and signals: what an id may hold in kernel memory.
const MAX_PENDING: u64 = 128;

/// Starts init and forks a kernel side by side, then lets the kernel join.
pub(super) async fn set_up(
    realm: &Realm,
    spec: SandboxSpec,
    grant: Option<&Grant>,
    cgroup: &SandboxCgroup,
    limits: &CgroupLimits,
    fork: &ForkSpec,
    host_id: u32,
) -> Result<(Init, Kernel), isolation::Error> {
    let started = Instant::now();
    let zygote = realm.zygote().await?;
    let granted = match grant {
        Some(grant) => {
            let grant = Grant {
                without_flags: spec.ablation.no_mount_flags,
                ..grant.clone()
            };
            Some(realm.host.spawner.assemble(grant).await?)
        }
        None => None,
    };
    let granted = granted.as_ref().map(AsFd::as_fd);
    // Polled in this order: the limits are set while the nursery clones, and before init goes on.
    let (starting, limited) =
        tokio::join!(realm.nursery.start_sandbox(spec, granted, cgroup), async {
            cgroup.set_limits(limits)
        });
    let starting = starting?;
    limited?;
    let cloned = started.elapsed();
    let (ready, forked) = tokio::join!(
        starting.ready(),
        Forked::start(&zygote, starting.pidfd(), cgroup, DEFAULT_LEAF, fork)
    );
    // Init's failure first: without init there is nothing to fork into.
    let init = ready.and_then(|view| starting.finish(view))?;
    let forked = forked?;
    let side_by_side = started.elapsed();
    let kernel = forked
        .join(&place(&realm.host, &init, cgroup, host_id))
        .await?;
    tracing::debug!(
        clone_init_us = cloned.as_micros(),
        init_and_fork_us = (side_by_side - cloned).as_micros(),
        join_us = (started.elapsed() - side_by_side).as_micros(),
        "sandbox is set up"
    );
    Ok((init, kernel))
}

pub(super) fn place<'a>(
    host: &Host,
    init: &'a Init,
    cgroup: &'a SandboxCgroup,
    host_id: u32,
) -> Place<'a> {
    Place {
        cgroup,
        init,
        host_id,
        filters: host.required_filters(),
    }
}

/// Numbers only: nothing that a client wrote may enter the zygote's memory, of which every later kernel
/// has a copy.
pub(super) fn fork_spec(limits: &Limits, disk_bytes: u64, threads: u32, gpu: bool) -> ForkSpec {
    ForkSpec {
        rlimits: rlimits(limits, disk_bytes, gpu),
        threads,
        oom_score_adj: OOM_SCORE_ADJ,
        gpu,
    }
}

/// Killed processes take a moment to leave their cgroup.
pub(super) async fn remove_cgroup(cgroup: &SandboxCgroup) {
    // Nobody waits for this, and whoever closed a sandbox may be about to create the next.
    sleep(REMOVE_PAUSE).await;
    let deadline = Instant::now() + DEATH_TIMEOUT;
    let mut pause = Duration::from_millis(1);
    // Six directories take the kernel half a millisecond, in which this thread's requests would wait.
    while let Err(e) = tokio::task::block_in_place(|| cgroup.remove()) {
        if Instant::now() >= deadline {
            tracing::error!("{e}");
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// What programs of a sandbox are shown of its limits.
pub(super) fn visible(limits: &CgroupLimits) -> VisibleLimits {
    VisibleLimits {
        memory_bytes: limits.memory_bytes,
        cpus: limits.cpus,
        processes: limits.processes,
    }
}

/// Variables by which numeric libraries, and language runtimes that look at the host's processors, learn
/// how many threads to start. OpenBLAS, MKL, BLIS and NumExpr follow OpenMP's where they have none of
/// their own, and so does nproc(1). In a Python that starts, `os.cpu_count()` follows the last.
pub(super) fn thread_env(threads: u32) -> impl Iterator<Item = (String, String)> {
    [
        "OMP_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "RAYON_NUM_THREADS",
        "POLARS_MAX_THREADS",
        "GOMAXPROCS",
        "PYTHON_CPU_COUNT",
    ]
    .into_iter()
    .map(move |name| (name.to_owned(), threads.to_string()))
}

/// Of x86-64.
const PAGE_BYTES: u64 = 4096;
/// Memory that an inode of a tmpfs and its directory entry take in the kernel, rounded up.
const INODE_BYTES: u64 = 2560;

/// Files and directories: all of them together, empty, take at most an eighth of the memory.
pub(super) fn inodes(plan: &Plan, limits: &Limits) -> u64 {
    limits
        .inodes
        .min(plan.limits.memory_bytes / 8 / INODE_BYTES)
}

/// An upper on tmpfs is memory: files may not take so much of it that no kernel could start, so a
/// sandbox that fills its disk gets ENOSPC and not the OOM killer. An eighth stays for kernels. In whole
/// pages, as tmpfs has it, so that the size that is reported is that of statvfs(3).
pub(super) fn upper_bytes(plan: &Plan, limits: &Limits) -> u64 {
    let memory_bytes = plan.limits.memory_bytes;
    let for_inodes = inodes(plan, limits) * INODE_BYTES;
    let bytes = plan
        .disk_bytes
        .min(memory_bytes - memory_bytes / 8 - for_inodes);
    bytes - bytes % PAGE_BYTES
}

/// Memory that a process may lock. With GPUs as much as a sandbox may have, which the cgroup bounds: the
/// vendor starts containers without a limit, as transfers go from and to locked memory. A user namespace
/// cannot raise the limit above the service's own.
fn locked_bytes(limits: &Limits, gpu: bool) -> u64 {
    const MOST: u64 = 64 * 1024;
    if !gpu {
        return MOST;
    }
    let own = rustix::process::getrlimit(rustix::process::Resource::Memlock).maximum;
    limits.max_memory_bytes.min(own.unwrap_or(u64::MAX))
}

/// `RLIMIT_AS` is not among them: memory is the cgroup's to limit, and a CUDA context reserves more
/// addresses than any machine has memory.
pub(super) fn rlimits(limits: &Limits, disk_bytes: u64, gpu: bool) -> BTreeMap<String, u64> {
    [
        ("RLIMIT_NOFILE", limits.open_files),
        // Not 0: a piped core_pattern of the host ignores 0, but not 1 (core(5)).
        ("RLIMIT_CORE", 1),
        // A page above what there is room for: one file that takes all of it meets ENOSPC, as several do,
        // and not the signal of this limit.
        ("RLIMIT_FSIZE", disk_bytes + PAGE_BYTES),
        ("RLIMIT_MEMLOCK", locked_bytes(limits, gpu)),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_SIGPENDING", MAX_PENDING),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
