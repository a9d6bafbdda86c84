//! What a process of user code must look like from outside, read from `/proc` by the supervisor
//! before the first byte of user code is handed over. The kernel locks itself down; this asserts
//! the level that is enforced rather than that the calls returned success.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::Error;

/// Namespaces that a sandbox does not share with the supervisor, by their names in `/proc/pid/ns`.
pub const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "uts", "ipc", "cgroup"];

/// Inode numbers of a process's namespaces, in the order of [`NAMESPACES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces([u64; 7]);

impl Namespaces {
    /// Reads those of a process.
    pub fn of(pid: i32) -> Result<Self, Error> {
        let mut inodes = [0; 7];
        for (inode, name) in inodes.iter_mut().zip(NAMESPACES) {
            let path = format!("/proc/{pid}/ns/{name}");
            *inode = fs::metadata(&path)
                .map_err(Error::path("look at", path))?
                .ino();
        }
        Ok(Self(inodes))
    }

    /// Names of the namespaces that both are in.
    pub fn shared_with(&self, other: &Self) -> Vec<&'static str> {
        (0..7)
            .filter(|i| self.0[*i] == other.0[*i])
            .map(|i| NAMESPACES[i])
            .collect()
    }
}

/// What is required of a kernel.
#[derive(Debug)]
pub struct Required<'a> {
    /// Host uid and gid, all four of each.
    pub host_id: u32,
    /// Namespaces of the sandbox's init.
    pub namespaces: &'a Namespaces,
    /// Filters that must be installed.
    pub filters: usize,
}

/// Checks every thread of `pid` (as the supervisor sees it).
///
/// # Errors
/// Names the first thing that is not as required.
pub fn check(pid: i32, required: &Required<'_>) -> Result<(), Error> {
    if Namespaces::of(pid)? != *required.namespaces {
        return Err(Error::Refused(
            "the kernel is not in its sandbox's namespaces".into(),
        ));
    }
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).map_err(Error::path("read", &tasks))? {
        let task = task.map_err(Error::path("read", &tasks))?;
        check_thread(&task.path().join("status"), required)?;
    }
    Ok(())
}

fn check_thread(path: &Path, required: &Required<'_>) -> Result<(), Error> {
    let status = fs::read_to_string(path).map_err(Error::path("read", path))?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or("")
    };
    let refuse = |what: &str| {
        Err(Error::Refused(format!(
            "the kernel is not locked down: {what}"
        )))
    };
    for name in ["Uid", "Gid"] {
        let ids: Vec<&str> = field(name).split_whitespace().collect();
        if ids.len() != 4 || ids.iter().any(|id| id.parse() != Ok(required.host_id)) {
            return refuse(&format!("{name} is {}", field(name)));
        }
    }
    if !field("Groups").is_empty() {
        return refuse("it has groups");
    }
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        if u64::from_str_radix(field(name), 16) != Ok(0) {
            return refuse(&format!("{name} is {}", field(name)));
        }
    }
    if field("NoNewPrivs") != "1" {
        return refuse("no_new_privs is off");
    }
    if required.filters > 0 {
        if field("Seccomp") != "2" {
            return refuse("seccomp is off");
        }
        // Seccomp_filters: Linux 5.9.
        if field("Seccomp_filters").parse::<usize>().unwrap_or(0) < required.filters {
            return refuse("a filter is missing");
        }
    }
    Ok(())
}
