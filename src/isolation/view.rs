//! What programs of a sandbox read to learn how many processors and how much memory there are: files that
//! tell of the sandbox's limits where the kernel's own tell of the host.
//!
//! ```text
//! tmpfs of the sandbox   shown, read-only, at          says
//! sys/devices/system/cpu /sys/devices/system/cpu       processors: sysconf(3) reads `online` and `possible`
//! sys/fs/cgroup          /sys/fs/cgroup                limits in cgroup v2's format, whatever the host has
//! cpuinfo, stat, meminfo /proc/cpuinfo, stat, meminfo  processors, their time, memory
//! ```
//!
//! Init writes the files before there is user code and shows them through read-only mounts; they belong to
//! root inside, so the user could not write to them through a writable one either. Each sandbox has files
//! of its own, as two that share one could signal each other by locks on it. The supervisor writes to them
//! through a descriptor of the directory, which only init and it can reach by a writable mount: no name
//! below it is ever of user code's choice, and no link is followed.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags, ftruncate, openat2};
use rustix::io::pwrite;
use rustix::process::umask;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::error::{Context, Error};
use super::spec::USER_ID;

/// Options of the file system: `cpuinfo` of 64 processors is its largest file.
pub(super) const OPTIONS: &str = "size=1m,nr_inodes=64,mode=755";
/// Directories in it, parents first.
const DIRECTORIES: [&str; 6] = [
    "sys",
    "sys/devices",
    "sys/devices/system",
    CPU_DIRECTORY,
    "sys/fs",
    CGROUP_DIRECTORY,
];
/// Which processors there are.
pub(super) const CPU_DIRECTORY: &str = "sys/devices/system/cpu";
/// Limits as cgroup v2 shows them.
pub(super) const CGROUP_DIRECTORY: &str = "sys/fs/cgroup";
/// Other names of the list of processors.
pub(super) const CPU_LISTS: [&str; 3] = ["online", "possible", "present"];
/// Files that are shown below `/proc`.
pub(super) const PROC_FILES: [&str; 3] = ["cpuinfo", "stat", "meminfo"];
/// Period of the processor quota in microseconds, as the real limit has it.
const CPU_PERIOD_US: u64 = 100_000;
/// More processors than numeric libraries are given threads for are not shown.
const MAX_PROCESSORS: u32 = 64;
/// Unit of times in `/proc/stat` (`USER_HZ`, proc_stat(5)).
const TICK: Duration = Duration::from_millis(10);
/// What the kernel tells of one processor has some two kibibytes.
const CPUINFO_BYTES: u64 = 16 * 1024;

/// Limits that a sandbox sees.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VisibleLimits {
    /// RAM.
    pub memory_bytes: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads.
    pub processes: u64,
}

/// What a sandbox uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct VisibleUse {
    /// All memory that counts against the limit.
    pub memory_bytes: u64,
    /// Of it, files in the page cache and on tmpfs.
    pub cached_bytes: u64,
    /// Of it, files on tmpfs, which cannot be dropped.
    pub shared_bytes: u64,
    /// Processor time in user mode so far.
    pub cpu_user: Duration,
    /// Processor time in the kernel so far.
    pub cpu_system: Duration,
}

/// Whole processors that a quota is shown as, and threads that numeric libraries are given: a fraction is
/// rounded up.
pub fn processors(cpus: f64) -> u32 {
    (cpus.ceil() as u32).clamp(1, MAX_PROCESSORS)
}

/// What the files take from the host: the description of one processor, and when it was booted, from which
/// `ps` computes when processes started.
struct HostFacts {
    processor: String,
    boot_time: String,
}

/// Read once. The nursery asks before it makes the first init, which then inherits the answer.
fn host_facts() -> &'static HostFacts {
    static FACTS: OnceLock<HostFacts> = OnceLock::new();
    FACTS.get_or_init(|| {
        // Not all of it: that would take milliseconds on a host of many processors.
        let mut cpuinfo = Vec::new();
        let file = fs::File::open("/proc/cpuinfo");
        let _ = file.map(|file| file.take(CPUINFO_BYTES).read_to_end(&mut cpuinfo));
        let cpuinfo = String::from_utf8_lossy(&cpuinfo);
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot_time = stat.lines().find(|line| line.starts_with("btime "));
        HostFacts {
            processor: cpuinfo.split("\n\n").next().unwrap_or_default().to_owned(),
            boot_time: boot_time.unwrap_or("btime 0").to_owned(),
        }
    })
}

/// Reads what is needed of the host, so that processes forked later need not.
pub(super) fn prepare() {
    host_facts();
}

/// Writes everything below `root`, the file system's own directory. In init.
pub(super) fn make(root: &str, limits: &VisibleLimits) -> Result<(), Error> {
    // Whatever the service was started with: the user must be able to read all of it.
    let before = umask(Mode::empty());
    let made = make_all(root, limits);
    umask(before);
    made
}

fn make_all(root: &str, limits: &VisibleLimits) -> Result<(), Error> {
    for directory in DIRECTORIES {
        let path = format!("{root}/{directory}");
        let made = DirBuilder::new().mode(0o755).create(&path);
        made.context(format!("make {path}"))?;
    }
    let [list, others @ ..] = CPU_LISTS;
    for name in others {
        let path = format!("{root}/{CPU_DIRECTORY}/{name}");
        symlink(list, &path).context(format!("link {path}"))?;
    }
    let used = VisibleUse::default();
    for (name, text) in of_limits(limits).into_iter().chain(of_use(limits, &used)) {
        let path = format!("{root}/{name}");
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&path);
        let written = new.and_then(|mut file| file.write_all(text.as_bytes()));
        written.context(format!("write {path}"))?;
    }
    Ok(())
}

/// Takes the first of the two protections away, for a test of both.
pub(super) fn give_to_user(root: &str, limits: &VisibleLimits) -> Result<(), Error> {
    let files = of_limits(limits).into_iter();
    let files = files.chain(of_use(limits, &VisibleUse::default()));
    for name in DIRECTORIES.into_iter().chain(files.map(|(name, _)| name)) {
        let path = format!("{root}/{name}");
        chown(&path, Some(USER_ID), Some(USER_ID)).context(format!("give {path} away"))?;
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&path, all).context(format!("open {path} to all"))?;
    }
    Ok(())
}

/// The files of one sandbox, in the supervisor's hands.
#[derive(Debug)]
pub struct View {
    directory: OwnedFd,
}

impl View {
    /// Takes over the descriptor of the directory.
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// Writes all that follows from other limits.
    pub fn set_limits(&self, limits: &VisibleLimits, used: &VisibleUse) -> Result<(), Error> {
        let files = of_limits(limits).into_iter().chain(of_use(limits, used));
        self.write(files)
    }

    /// Writes what the sandbox uses now.
    pub fn set_use(&self, limits: &VisibleLimits, used: &VisibleUse) -> Result<(), Error> {
        self.write(of_use(limits, used).into_iter())
    }

    fn write(&self, files: impl Iterator<Item = (&'static str, String)>) -> Result<(), Error> {
        for (name, text) in files {
            write_below(self.directory.as_fd(), name, text.as_bytes())
                .context(format!("write {name}"))?;
        }
        Ok(())
    }
}

/// The new text is in place before the old end is cut off: whoever reads meanwhile finds no empty file.
fn write_below(directory: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = openat2(directory, name, flags, Mode::empty(), resolve)?;
    let mut at = 0;
    while at < bytes.len() {
        at += pwrite(&file, &bytes[at..], at as u64)?;
    }
    ftruncate(&file, bytes.len() as u64)
}

/// What changes with the limits alone.
fn of_limits(limits: &VisibleLimits) -> [(&'static str, String); 7] {
    let count = processors(limits.cpus);
    let quota = ((limits.cpus * CPU_PERIOD_US as f64) as u64).max(1000);
    let list = if count == 1 {
        "0\n".to_owned()
    } else {
        format!("0-{}\n", count - 1)
    };
    [
        ("sys/devices/system/cpu/online", list),
        (
            "sys/fs/cgroup/cgroup.controllers",
            "cpu memory pids\n".to_owned(),
        ),
        (
            "sys/fs/cgroup/cpu.max",
            format!("{quota} {CPU_PERIOD_US}\n"),
        ),
        (
            "sys/fs/cgroup/memory.max",
            format!("{}\n", limits.memory_bytes),
        ),
        ("sys/fs/cgroup/memory.swap.max", "0\n".to_owned()),
        ("sys/fs/cgroup/pids.max", format!("{}\n", limits.processes)),
        ("cpuinfo", cpuinfo(&host_facts().processor, count)),
    ]
}

/// What changes while something runs. Numbers have a fixed width, so that no text gets shorter.
fn of_use(limits: &VisibleLimits, used: &VisibleUse) -> [(&'static str, String); 3] {
    [
        (
            "sys/fs/cgroup/memory.current",
            format!("{:<16}\n", used.memory_bytes),
        ),
        ("stat", stat(processors(limits.cpus), used)),
        ("meminfo", meminfo(limits.memory_bytes, used)),
    ]
}

/// One processor's description `count` times, as of one package with so many cores.
fn cpuinfo(processor: &str, count: u32) -> String {
    let mut text = String::with_capacity((processor.len() + 16) * count as usize);
    for number in 0..count {
        for line in processor.lines() {
            let name = line.split(['\t', ':']).next().unwrap_or_default();
            let value = match name {
                "processor" | "core id" | "apicid" | "initial apicid" => number,
                "physical id" => 0,
                "siblings" | "cpu cores" => count,
                _ => {
                    text.push_str(line);
                    text.push('\n');
                    continue;
                }
            };
            let label = line.split(':').next().unwrap_or_default();
            let _ = writeln!(text, "{label}: {value}");
        }
        text.push('\n');
    }
    text
}

/// proc_stat(5) of the sandbox: its processor time, and as idle what it could have used since the boot.
fn stat(count: u32, used: &VisibleUse) -> String {
    let ticks = |time: Duration| (time.as_nanos() / TICK.as_nanos()) as u64;
    let up = clock_gettime(ClockId::Boottime);
    let up = ticks(Duration::new(up.tv_sec.unsigned_abs(), 0));
    let (user, system) = (ticks(used.cpu_user), ticks(used.cpu_system));
    let idle = (up * u64::from(count)).saturating_sub(user + system);
    let mut text = String::with_capacity(160 * (count as usize + 4));
    let mut line = |name: &str, share: u64| {
        let (user, system, idle) = (user / share, system / share, idle / share);
        let _ = writeln!(
            text,
            "{name} {user:>12} 0 {system:>12} {idle:>14} 0 0 0 0 0 0"
        );
    };
    line("cpu ", 1);
    for number in 0..count {
        line(&format!("cpu{number}"), u64::from(count));
    }
    let boot_time = &host_facts().boot_time;
    let _ = write!(
        text,
        "intr 0\nctxt 0\n{boot_time}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n\
         softirq 0 0 0 0 0 0 0 0 0 0 0\n"
    );
    text
}

/// proc_meminfo(5) of the sandbox.
fn meminfo(memory_bytes: u64, used: &VisibleUse) -> String {
    let free = memory_bytes.saturating_sub(used.memory_bytes);
    let cached = used.cached_bytes.min(used.memory_bytes);
    let droppable = cached.saturating_sub(used.shared_bytes);
    let others = used.memory_bytes.saturating_sub(cached);
    let mut text = String::with_capacity(1024);
    for (name, bytes) in [
        ("MemTotal", memory_bytes),
        ("MemFree", free),
        ("MemAvailable", (free + droppable).min(memory_bytes)),
        ("Buffers", 0),
        ("Cached", cached),
        ("SwapCached", 0),
        ("Active", others),
        ("Inactive", cached),
        ("Active(anon)", others),
        ("Inactive(anon)", used.shared_bytes.min(cached)),
        ("Active(file)", 0),
        ("Inactive(file)", droppable),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", others),
        ("Mapped", 0),
        ("Shmem", used.shared_bytes.min(cached)),
        ("KReclaimable", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
    ] {
        let name = format!("{name}:");
        let _ = writeln!(text, "{name:<15} {:>8} kB", bytes / 1024);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: VisibleLimits = VisibleLimits {
        memory_bytes: 1 << 30,
        cpus: 1.5,
        processes: 64,
    };

    fn file(name: &str) -> String {
        let used = VisibleUse {
            memory_bytes: 300 << 20,
            cached_bytes: 200 << 20,
            shared_bytes: 50 << 20,
            cpu_user: Duration::from_secs(3),
            cpu_system: Duration::from_secs(1),
        };
        let mut all = of_limits(&LIMITS).into_iter().chain(of_use(&LIMITS, &used));
        all.find(|(found, _)| *found == name).expect("a file").1
    }

    #[test]
    fn fractions_of_a_processor_are_rounded_up() {
        for (cpus, count) in [(0.01, 1), (1.0, 1), (1.5, 2), (2.0, 2), (200.0, 64)] {
            assert_eq!(processors(cpus), count, "{cpus}");
        }
        assert_eq!(file("sys/devices/system/cpu/online"), "0-1\n");
        assert_eq!(file("sys/fs/cgroup/cpu.max"), "150000 100000\n");
    }

    #[test]
    fn what_is_free_is_the_limit_less_what_is_used_and_what_can_be_dropped_is_available() {
        let text = file("meminfo");
        let kib = |name: &str| -> u64 {
            let line = text.lines().find(|line| line.starts_with(name));
            let line = line.expect("a line").split_whitespace().nth(1);
            line.expect("a value").parse().expect("a number")
        };
        assert_eq!(kib("MemTotal:"), 1024 * 1024);
        assert_eq!(kib("MemFree:"), 724 * 1024);
        assert_eq!(kib("MemAvailable:"), 874 * 1024);
        assert_eq!(kib("Shmem:"), 50 * 1024);
        assert!(text.starts_with("MemTotal:        1048576 kB\n"), "{text}");
    }

    #[test]
    fn every_processor_has_its_lines() {
        let one =
            "processor\t: 5\nmodel name\t: A: b\nsiblings\t: 64\ncore id\t\t: 5\npower management:";
        assert_eq!(
            cpuinfo(one, 2),
            "processor\t: 0\nmodel name\t: A: b\nsiblings\t: 2\ncore id\t\t: 0\npower management:\n\n\
             processor\t: 1\nmodel name\t: A: b\nsiblings\t: 2\ncore id\t\t: 1\npower management:\n\n"
        );
        let text = file("stat");
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0][..4], ["cpu", "300", "0", "100"]);
        assert_eq!(lines[1][..4], ["cpu0", "150", "0", "50"]);
        assert_eq!((lines[2][0], lines[3][0]), ("cpu1", "intr"));
    }
}
