//! Cgroups: one small interface over unified hosts (all controllers on v2) and hybrid ones (memory,
//! cpu and pids on v1, an empty v2 tree beside them).
//!
//! A service's tree, the same in every hierarchy: `sandcell/<instance>/` holds `nursery` and one
//! `s-<id>` for each sandbox. In v2 a sandbox's cgroup has leaves of its own (`init`, `kernel`,
//! `command-<n>`), so that one process tree can be killed without the rest; controllers are not
//! enabled below `s-<id>`, so its limits cover all leaves.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::hierarchies::{V1, is_cgroup2_unified_mode};
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::pid::PidController;
use cgroups_rs::fs::{Controllers, MaxValue};

use super::error::{Context, Error};
use super::migrations::Migrations;
use super::spec::MIRROR_OWNER;

/// Name of our directory in each hierarchy.
const TOP: &str = "sandcell";
/// An instance that is one `sandcell run` is named by this and its process id.
pub const RUN_PREFIX: &str = "run-";
/// Period of the CPU quota: the kernel's default (cgroup v2 documentation, cpu.max).
const CPU_PERIOD_US: u64 = 100_000;

/// On v1 TCP buffers may take this part of the memory limit beside it (v2 counts them within).
const V1_SOCKET_SHARE: i64 = 16;

/// Where the controllers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Everything on v2.
    Unified {
        /// Mount point of the v2 tree.
        root: PathBuf,
    },
    /// memory, cpu and pids on v1.
    Hybrid {
        /// Mount point of the v2 tree.
        root: PathBuf,
        /// Mount point of each v1 hierarchy.
        memory: PathBuf,
        /// Likewise.
        cpu: PathBuf,
        /// Likewise.
        pids: PathBuf,
    },
}

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

impl Layout {
    /// Finds the hierarchies of this host.
    ///
    /// # Errors
    /// Names the controller that is missing, and the mend.
    pub fn detect() -> Result<Self, Error> {
        if is_cgroup2_unified_mode() {
            let root = PathBuf::from("/sys/fs/cgroup");
            let offered = fs::read_to_string(root.join("cgroup.controllers"))
                .map_err(Error::path("read", root.join("cgroup.controllers")))?;
            for needed in ["memory", "cpu", "pids"] {
                if !offered.split_whitespace().any(|c| c == needed) {
                    return Err(missing(needed));
                }
            }
            return Ok(Self::Unified { root });
        }
        let v1 = V1::new();
        let find = |controller: Controllers, name: &str| {
            v1.get_mount_point(controller)
                .map(|(point, _)| point)
                .ok_or_else(|| missing(name))
        };
        Ok(Self::Hybrid {
            root: unified_mount()?,
            memory: find(Controllers::Mem, "memory")?,
            cpu: find(Controllers::Cpu, "cpu")?,
            pids: find(Controllers::Pids, "pids")?,
        })
    }

    /// Mount point of the v2 tree.
    pub fn unified_root(&self) -> &Path {
        match self {
            Self::Unified { root } | Self::Hybrid { root, .. } => root,
        }
    }

    /// Mount points of the v1 hierarchies that limit sandboxes.
    pub fn v1_roots(&self) -> Vec<&Path> {
        match self {
            Self::Unified { .. } => Vec::new(),
            Self::Hybrid {
                memory, cpu, pids, ..
            } => vec![memory, cpu, pids],
        }
    }

    fn roots(&self) -> Vec<&Path> {
        [vec![self.unified_root()], self.v1_roots()].concat()
    }
}

fn missing(controller: &str) -> Error {
    Error::Unsupported(format!(
        "the cgroup controller '{controller}' is not available, so its limit could not be enforced; \
         boot without cgroup_disable={controller} and with /sys/fs/cgroup mounted"
    ))
}

/// On hybrid hosts the v2 tree is beside the v1 hierarchies, by convention at `unified`.
fn unified_mount() -> Result<PathBuf, Error> {
    let mounts = fs::read_to_string("/proc/self/mounts")
        .map_err(Error::path("read", "/proc/self/mounts"))?;
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
        .ok_or_else(|| {
            Error::Unsupported(
                "no cgroup v2 tree is mounted; mount one: mkdir -p /sys/fs/cgroup/unified && \
                 mount -t cgroup2 none /sys/fs/cgroup/unified"
                    .into(),
            )
        })
}

/// One service's part of the cgroup trees.
#[derive(Debug)]
pub struct ServiceCgroup {
    layout: Layout,
    /// `sandcell/<instance>`.
    name: String,
    migrations: Migrations,
}

impl ServiceCgroup {
    /// Cleans what an earlier run of this instance left, then makes the tree anew and hands it to
    /// the outer root, who clones inits into it.
    pub fn create(layout: Layout, instance: &str) -> Result<Self, Error> {
        let migrations = Migrations::start(&layout)?;
        let service = Self {
            layout,
            name: format!("{TOP}/{instance}"),
            migrations,
        };
        service.remove()?;
        for root in service.layout.roots() {
            let dir = root.join(&service.name);
            make_dirs(&dir).map_err(Error::path("make", &dir))?;
        }
        if let Layout::Unified { root } = &service.layout {
            for dir in [root.clone(), root.join(TOP), root.join(&service.name)] {
                enable_controllers(&dir)?;
            }
        }
        // CLONE_INTO_CGROUP asks for the right to write in the common ancestor (cgroups(7)).
        let dir = service.layout.unified_root().join(&service.name);
        delegate(&dir)?;
        make_delegated(&dir.join("nursery"))?;
        Ok(service)
    }

    /// Removes what `sandcell run`s that were killed left. Their names are used once, so unlike a
    /// service's they would not be found by a next start.
    pub fn sweep_runs(layout: &Layout) {
        let Ok(instances) = fs::read_dir(layout.unified_root().join(TOP)) else {
            return;
        };
        for instance in instances.flatten() {
            let name = instance.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(RUN_PREFIX));
            let Some(pid) = pid else { continue };
            // A run that begins has a process; one in another PID namespace has populated cgroups.
            let events = read(&instance.path().join("cgroup.events"));
            if Path::new("/proc").join(pid).exists() || field(&events, "populated") != 0 {
                continue;
            }
            // Somebody else may be at it too.
            let _ = remove_instance(layout, &format!("{TOP}/{RUN_PREFIX}{pid}"));
        }
    }

    /// Where the nursery and zygotes live; no limits but the host's.
    pub fn nursery_dir(&self) -> Result<OwnedFd, Error> {
        open_dir(&self.layout.unified_root().join(&self.name).join("nursery"))
    }

    /// Makes the cgroups of a sandbox, with their limits.
    pub fn sandbox(&self, id: &str, limits: &CgroupLimits) -> Result<SandboxCgroup, Error> {
        self.migrations.expect();
        let sandbox = SandboxCgroup {
            layout: self.layout.clone(),
            name: format!("{}/s-{id}", self.name),
        };
        let made = sandbox.make(limits);
        if made.is_err() {
            let _ = sandbox.remove();
        }
        made.map(|()| sandbox)
    }

    /// Kills what lives in the tree and removes it from every hierarchy; nothing there is fine.
    pub fn remove(&self) -> Result<(), Error> {
        remove_instance(&self.layout, &self.name)
    }
}

fn remove_instance(layout: &Layout, name: &str) -> Result<(), Error> {
    let unified = layout.unified_root().join(name);
    if unified.exists() {
        kill(&unified)?;
    }
    for root in layout.roots() {
        remove_tree_patiently(&root.join(name))?;
        // Another instance may still use it.
        let _ = fs::remove_dir(root.join(TOP));
    }
    Ok(())
}

/// The cgroups of one sandbox. Holds no descriptor: paths are opened when needed.
#[derive(Debug)]
pub struct SandboxCgroup {
    layout: Layout,
    name: String,
}

impl SandboxCgroup {
    fn make(&self, limits: &CgroupLimits) -> Result<(), Error> {
        for root in self.layout.v1_roots() {
            make(&root.join(&self.name))?;
        }
        // The common ancestor of init, who clones commands, and theirs.
        make_delegated(&self.dir())?;
        make_delegated(&self.dir().join("init"))?;
        // The kernel joins by a file that the supervisor opened.
        make(&self.dir().join("kernel"))?;
        self.set_limits(limits)
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

    /// Removes an empty leaf; false for one that still holds processes.
    pub fn remove_leaf(&self, leaf: &str) -> bool {
        fs::remove_dir(self.dir().join(leaf)).is_ok()
    }

    /// What the sandbox used so far. Unreadable counters count as 0.
    pub fn counters(&self) -> Counters {
        let (memory, memory_v2) = self.memory();
        let (pids, _) = self.pids();
        // cpu.stat of v2 is there without the controller, on hybrid hosts too (cgroup v2 docs).
        let cpu = read(&self.dir().join("cpu.stat"));
        let oom = if memory_v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let peak = if memory_v2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        Counters {
            cpu_user: Duration::from_micros(field(&cpu, "user_usec")),
            cpu_system: Duration::from_micros(field(&cpu, "system_usec")),
            peak_memory_bytes: read(&memory.join(peak)).trim().parse().unwrap_or(0),
            processes: read(&pids.join("pids.current")).trim().parse().unwrap_or(0),
            oom_kills: field(&read(&memory.join(oom)), "oom_kill"),
            fork_failures: field(&read(&pids.join("pids.events")), "max"),
        }
    }

    /// Processes killed for memory so far.
    pub fn oom_kills(&self) -> u64 {
        let (memory, v2) = self.memory();
        let file = if v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        field(&read(&memory.join(file)), "oom_kill")
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

fn enable_controllers(dir: &Path) -> Result<(), Error> {
    let file = dir.join("cgroup.subtree_control");
    fs::write(&file, "+memory +cpu +pids").map_err(|e| {
        Error::Unsupported(format!(
            "failed to enable the memory, cpu and pids controllers in {}: {e}; processes directly in \
             that cgroup or a manager that owns it stand in the way",
            dir.display()
        ))
    })
}

/// Lets the outer root put processes there: `CLONE_INTO_CGROUP` asks for the right to write in
/// `cgroup.procs` of the target and of the common ancestor (cgroups(7), "Delegation").
fn delegate(dir: &Path) -> Result<(), Error> {
    let path = dir.join("cgroup.procs");
    chown(&path, Some(MIRROR_OWNER), Some(MIRROR_OWNER)).map_err(Error::path("own", path))
}

fn make(dir: &Path) -> Result<(), Error> {
    fs::create_dir(dir).map_err(Error::path("make", dir))
}

/// An instance that ends at this moment may remove the parent that we have just found.
fn make_dirs(dir: &Path) -> io::Result<()> {
    let mut made = fs::create_dir_all(dir);
    for _ in 0..10 {
        match made {
            Err(e) if e.kind() == io::ErrorKind::NotFound => made = fs::create_dir_all(dir),
            other => return other,
        }
    }
    made
}

fn make_delegated(dir: &Path) -> Result<(), Error> {
    make(dir)?;
    delegate(dir)
}

fn open_dir(dir: &Path) -> Result<OwnedFd, Error> {
    let file = File::open(dir).map_err(Error::path("open", dir))?;
    Ok(file.into())
}

fn open_procs(dir: &Path) -> Result<OwnedFd, Error> {
    let path = dir.join("cgroup.procs");
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .map_err(Error::path("open", path))?;
    Ok(file.into())
}

fn kill(dir: &Path) -> Result<(), Error> {
    fs::write(dir.join("cgroup.kill"), "1").context("kill a cgroup")
}

/// One read(2) of a small file of the kernel's: these files have no size to ask for first.
fn read(path: &Path) -> String {
    let mut bytes = [0; 1024];
    let read = File::open(path)
        .and_then(|mut f| f.read(&mut bytes))
        .unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// A number of a flat-keyed file.
fn field(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(k, _)| *k == key)
        .and_then(|(_, v)| v.trim().parse().ok())
        .unwrap_or(0)
}

/// Removes a cgroup and those below it; one that does not exist is fine.
fn remove_tree(dir: &Path) -> io::Result<()> {
    let children = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for child in children {
        let child = child?;
        if child.file_type()?.is_dir() {
            remove_tree(&child.path())?;
        }
    }
    fs::remove_dir(dir)
}

/// Killed processes take a moment to go.
fn remove_tree_patiently(dir: &Path) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match remove_tree(dir) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other.map_err(Error::path("remove", dir)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_keyed_files_are_read_by_key() {
        let text = "oom 1\noom_kill 7\noom_group_kill 0\n";
        assert_eq!(field(text, "oom_kill"), 7);
        assert_eq!(field(text, "max"), 0);
    }
}
