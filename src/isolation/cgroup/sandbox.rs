//! The cgroups of one sandbox: its limits, its counters, its end.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use rustix::buffer::spare_capacity;
use rustix::io::pread;

use super::{Layout, field, kill, make, make_delegated, open_dir, open_procs, remove_tree};
use crate::isolation::error::{Context, Error};
use crate::isolation::view::VisibleUse;

/// Period of the CPU quota: the kernel's default (cgroup v2 documentation, cpu.max).
const CPU_PERIOD_US: u64 = 100_000;
/// Room for one read of a list of processes.
const LIST_BYTES: usize = 4096;
/// On v1 TCP buffers may take this part of the memory limit beside it (v2 counts them within).
const V1_SOCKET_SHARE: i64 = 16;

/// Limits of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CgroupLimits {
    /// RAM; swap is off.
    pub memory_bytes: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads, init included.
    pub processes: u64,
}

impl CgroupLimits {
    /// What no sandbox meets, for tests that prove that limits are what ends abuse.
    #[doc(hidden)]
    pub const NONE: Self = Self {
        memory_bytes: 1 << 50,
        cpus: 64.0,
        processes: 1 << 20,
    };
}

/// What a sandbox has used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// CPU time in user mode.
    pub cpu_user: Duration,
    /// CPU time in the kernel.
    pub cpu_system: Duration,
    /// Highest memory so far, bytes.
    pub peak_memory_bytes: u64,
    /// Processes and threads now, init included.
    pub processes: u64,
    /// Processes that the OOM killer ended.
    pub oom_kills: u64,
    /// Forks that the limit of processes refused.
    pub fork_failures: u64,
}

/// The files that hold a sandbox's counters, kept open: to find one by its path takes four times as
/// long as to read it, and every execution reads them all twice.
#[derive(Debug)]
struct CounterFiles {
    cpu: File,
    peak_memory: File,
    oom: File,
    processes: File,
    forks: File,
}

/// A leaf whose processes do not run.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        // Gone where the sandbox was closed meanwhile.
        let _ = fs::write(&self.0, "0");
    }
}

/// The list of a leaf's processes, kept open as [`CounterFiles`] are.
#[derive(Debug)]
pub struct Members(File);

impl Members {
    /// Their host ids.
    pub fn now(&self) -> Result<Vec<i32>, Error> {
        let mut text = Vec::new();
        loop {
            text.reserve(LIST_BYTES);
            let at = text.len() as u64;
            let read = pread(&self.0, spare_capacity(&mut text), at);
            if read.context("list the processes of a cgroup")? == 0 {
                break;
            }
        }
        let lines = text.split(|byte| *byte == b'\n');
        Ok(lines
            .filter_map(|line| str::from_utf8(line).ok()?.parse().ok())
            .collect())
    }
}

/// The cgroups of one sandbox. Holds no descriptor before the first execution.
#[derive(Debug)]
pub struct SandboxCgroup {
    layout: Layout,
    name: String,
    counters: OnceLock<CounterFiles>,
}

impl SandboxCgroup {
    pub(super) fn make(layout: Layout, name: String) -> Result<Self, Error> {
        let sandbox = Self {
            layout,
            name,
            counters: OnceLock::new(),
        };
        let made = sandbox.make_dirs();
        if made.is_err() {
            let _ = sandbox.remove();
        }
        made.map(|()| sandbox)
    }

    fn make_dirs(&self) -> Result<(), Error> {
        for root in self.layout.v1_roots() {
            make(&root.join(&self.name))?;
        }
        // The common ancestor of init, who clones commands, and theirs.
        make_delegated(&self.dir())?;
        make_delegated(&self.dir().join("init"))?;
        // The kernel joins by a file that the supervisor opened.
        make(&self.dir().join("kernel"))
    }

    fn dir(&self) -> PathBuf {
        self.layout.unified_root().join(&self.name)
    }

    fn controller_dir(&self, v1: impl Fn(&Layout) -> Option<PathBuf>) -> (PathBuf, bool) {
        match v1(&self.layout) {
            Some(root) => (root.join(&self.name), false),
            None => (self.dir(), true),
        }
    }

    fn memory(&self) -> (PathBuf, bool) {
        self.controller_dir(|l| match l {
            Layout::Hybrid { memory, .. } => Some(memory.clone()),
            Layout::Unified { .. } => None,
        })
    }

    fn pids(&self) -> (PathBuf, bool) {
        self.controller_dir(|l| match l {
            Layout::Hybrid { pids, .. } => Some(pids.clone()),
            Layout::Unified { .. } => None,
        })
    }

    fn cpu(&self) -> (PathBuf, bool) {
        self.controller_dir(|l| match l {
            Layout::Hybrid { cpu, .. } => Some(cpu.clone()),
            Layout::Unified { .. } => None,
        })
    }

    /// Sets every limit; may be called again while the sandbox lives.
    pub fn set_limits(&self, limits: &CgroupLimits) -> Result<(), Error> {
        let failed = |what: &str, e: cgroups_rs::fs::error::Error| {
            Error::Unsupported(format!("failed to set the {what} limit of a sandbox: {e}"))
        };
        let memory_bytes = limits.memory_bytes as i64;
        let (dir, v2) = self.memory();
        let memory = MemController::new(dir.clone(), PathBuf::new(), v2);
        if v2 {
            memory
                .set_limit(memory_bytes)
                .map_err(|e| failed("memory", e))?;
            if dir.join("memory.swap.max").exists() {
                memory.set_memswap_limit(0).map_err(|e| failed("swap", e))?;
            } else {
                require_no_swap()?;
            }
        } else {
            // v1 charges socket buffers to nobody until this limit is set, and counts them apart.
            let socket_bytes = memory_bytes / V1_SOCKET_SHARE;
            memory
                .set_tcp_limit(socket_bytes)
                .map_err(|e| failed("socket memory", e))?;
            set_v1_memory(&memory, &dir, memory_bytes).map_err(|e| failed("memory", e))?;
        }
        let (dir, v2) = self.pids();
        PidController::new(dir, PathBuf::new(), v2)
            .set_pid_max(MaxValue::Value(limits.processes as i64))
            .map_err(|e| failed("process", e))?;
        let (dir, v2) = self.cpu();
        let quota = ((limits.cpus * CPU_PERIOD_US as f64) as i64).max(1000);
        CpuController::new(dir, PathBuf::new(), v2)
            .set_cfs_quota_and_period(Some(quota), Some(CPU_PERIOD_US))
            .map_err(|e| failed("cpu", e))
    }

    /// Directory of a leaf for `CLONE_INTO_CGROUP`; made when it does not exist.
    pub fn leaf_dir(&self, leaf: &str) -> Result<OwnedFd, Error> {
        let dir = self.dir().join(leaf);
        if !dir.exists() {
            make_delegated(&dir)?;
        }
        open_dir(&dir)
    }

    /// `cgroup.procs` of the v1 hierarchies, in which a process writes itself.
    pub fn v1_procs(&self) -> Result<Vec<OwnedFd>, Error> {
        self.layout
            .v1_roots()
            .iter()
            .map(|root| open_procs(&root.join(&self.name)))
            .collect()
    }

    /// Makes a leaf for a kernel, which joins by a file that the supervisor opened.
    pub fn make_kernel_leaf(&self, leaf: &str) -> Result<(), Error> {
        make(&self.dir().join(leaf))
    }

    /// `cgroup.procs` of every hierarchy, the given leaf in v2.
    pub fn procs(&self, leaf: &str) -> Result<Vec<OwnedFd>, Error> {
        let mut all = self.v1_procs()?;
        all.push(open_procs(&self.dir().join(leaf))?);
        Ok(all)
    }

    /// Kills every process of the sandbox, init included (cgroup.kill, Linux 5.14).
    pub fn kill(&self) -> Result<(), Error> {
        kill(&self.dir())
    }

    /// Kills every process of one leaf.
    pub fn kill_leaf(&self, leaf: &str) -> Result<(), Error> {
        kill(&self.dir().join(leaf))
    }

    /// Keeps every process of a leaf from running until the value is dropped (cgroup.freeze, 5.2).
    pub fn freeze_leaf(&self, leaf: &str) -> Result<Frozen, Error> {
        let file = self.dir().join(leaf).join("cgroup.freeze");
        fs::write(&file, "1").map_err(Error::path("write", &file))?;
        Ok(Frozen(file))
    }

    /// Host ids of a leaf's processes.
    pub fn processes(&self, leaf: &str) -> Result<Vec<i32>, Error> {
        self.members(leaf)?.now()
    }

    /// To look at a leaf's processes again and again.
    pub fn members(&self, leaf: &str) -> Result<Members, Error> {
        let path = self.dir().join(leaf).join("cgroup.procs");
        let file = File::open(&path).map_err(Error::path("open", path))?;
        Ok(Members(file))
    }

    /// Whether a process is in a leaf.
    pub fn holds(&self, leaf: &str, pid: i32) -> bool {
        let wanted = format!("0::/{}/{leaf}", self.name);
        fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .is_ok_and(|text| text.lines().any(|line| line == wanted))
    }

    /// Moves a process of the sandbox into another leaf. Its caller holds a pidfd, by which it sees
    /// afterwards that the id was not another's by then.
    pub fn move_into(&self, leaf: &str, pid: i32) -> Result<(), Error> {
        let file = self.dir().join(leaf).join("cgroup.procs");
        fs::write(&file, pid.to_string()).map_err(Error::path("write", &file))
    }

    /// Removes an empty leaf; false for one that still holds processes.
    pub fn remove_leaf(&self, leaf: &str) -> bool {
        fs::remove_dir(self.dir().join(leaf)).is_ok()
    }

    fn counter_files(&self) -> Option<&CounterFiles> {
        if self.counters.get().is_none() {
            // Two that open them at once is no harm.
            let _ = self.counters.set(self.open_counters().ok()?);
        }
        self.counters.get()
    }

    fn open_counters(&self) -> io::Result<CounterFiles> {
        let (memory, memory_v2) = self.memory();
        let (pids, _) = self.pids();
        let (peak, oom) = if memory_v2 {
            ("memory.peak", "memory.events")
        } else {
            ("memory.max_usage_in_bytes", "memory.oom_control")
        };
        Ok(CounterFiles {
            // There without the controller, on hybrid hosts too (cgroup v2 docs).
            cpu: File::open(self.dir().join("cpu.stat"))?,
            peak_memory: File::open(memory.join(peak))?,
            oom: File::open(memory.join(oom))?,
            processes: File::open(pids.join("pids.current"))?,
            forks: File::open(pids.join("pids.events"))?,
        })
    }

    /// What the sandbox used so far. Unreadable counters count as 0.
    pub fn counters(&self) -> Counters {
        let Some(files) = self.counter_files() else {
            return Counters::default();
        };
        let cpu = read(&files.cpu);
        let number = |file| read(file).trim().parse().unwrap_or(0);
        Counters {
            cpu_user: Duration::from_micros(field(&cpu, "user_usec")),
            cpu_system: Duration::from_micros(field(&cpu, "system_usec")),
            peak_memory_bytes: number(&files.peak_memory),
            processes: number(&files.processes),
            oom_kills: field(&read(&files.oom), "oom_kill"),
            fork_failures: field(&read(&files.forks), "max"),
        }
    }

    /// What its programs are shown as used. Unreadable counters count as 0. The files are not kept open:
    /// this is read once in a second, and a descriptor is kept for each sandbox.
    pub fn visible_use(&self) -> VisibleUse {
        let (dir, v2) = self.memory();
        let names = if v2 {
            ["memory.current", "file", "shmem"]
        } else {
            ["memory.usage_in_bytes", "cache", "shmem"]
        };
        let [current, cached, shared] = names;
        let text = |name| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let stat = text("memory.stat");
        let counters = self.counters();
        VisibleUse {
            memory_bytes: text(current).trim().parse().unwrap_or(0),
            cached_bytes: field(&stat, cached),
            shared_bytes: field(&stat, shared),
            cpu_user: counters.cpu_user,
            cpu_system: counters.cpu_system,
        }
    }

    /// Processes killed for memory so far.
    pub fn oom_kills(&self) -> u64 {
        self.counter_files()
            .map_or(0, |files| field(&read(&files.oom), "oom_kill"))
    }

    /// Removes the cgroups, leaves first. Fails with `EBUSY` while a process is still dying.
    pub fn remove(&self) -> Result<(), Error> {
        for root in self.layout.roots() {
            let dir = root.join(&self.name);
            remove_tree(&dir).map_err(Error::path("remove", dir))?;
        }
        Ok(())
    }
}

/// v1 wants memory ≤ memory+swap at any moment, so the order depends on the direction.
fn set_v1_memory(
    memory: &MemController,
    dir: &Path,
    bytes: i64,
) -> Result<(), cgroups_rs::fs::error::Error> {
    if !dir.join("memory.memsw.limit_in_bytes").exists() {
        return memory.set_limit(bytes);
    }
    if memory.set_limit(bytes).is_ok() {
        return memory.set_memswap_limit(bytes);
    }
    memory.set_memswap_limit(bytes)?;
    memory.set_limit(bytes)
}

/// Without swap accounting a sandbox could swap; without swap it cannot.
fn require_no_swap() -> Result<(), Error> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() > 1 {
        return Err(Error::Unsupported(
            "swap is on but cannot be limited; run swapoff -a, or boot with swapaccount=1".into(),
        ));
    }
    Ok(())
}

/// One read of a small file of the kernel's, from its start: it is made anew each time.
fn read(file: &File) -> String {
    let mut bytes = [0; 1024];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}
