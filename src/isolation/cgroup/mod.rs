//! Cgroups: one small interface over unified hosts (all controllers on v2) and hybrid ones (memory,
//! cpu and pids on v1, an empty v2 tree beside them).
//!
//! A service's tree, the same in every hierarchy: `sandcell/<instance>/` holds `nursery`, one
//! `n-<id>` for the nursery of each layered mirror that is in use, and one `s-<id>` for each sandbox. In v2 a sandbox's cgroup has leaves of its own (`init`, `kernel`,
//! `command-<n>`), so that one process tree can be killed without the rest; controllers are not
//! enabled below `s-<id>`, so its limits cover all leaves.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::{Duration, Instant};

mod layout;
mod sandbox;

pub use layout::Layout;
pub use sandbox::{CgroupLimits, Counters, Frozen, Members, SandboxCgroup};

use super::error::{Context, Error};
use super::migrations::Migrations;
use super::spec::MIRROR_OWNER;

/// Name of our directory in each hierarchy.
const TOP: &str = "sandcell";
/// An instance that is one `sandcell run` is named by this and its process id.
pub const RUN_PREFIX: &str = "run-";

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
            let events = fs::read_to_string(instance.path().join("cgroup.events"));
            let events = events.unwrap_or_default();
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

    /// A process is about to be moved: see `isolation/migrations.rs`. Does not wait.
    pub fn expect_migration(&self) {
        self.migrations.expect();
    }

    /// Makes the cgroups of a sandbox; they limit nothing before [`SandboxCgroup::set_limits`].
    pub fn sandbox(&self, id: &str) -> Result<SandboxCgroup, Error> {
        self.migrations.expect();
        SandboxCgroup::make(self.layout.clone(), format!("{}/s-{id}", self.name))
    }

    /// Makes the cgroups of the nursery of a layered mirror. Unlike the base's it has limits, as code
    /// that clients name runs in it.
    pub fn realm(&self, id: &str) -> Result<SandboxCgroup, Error> {
        self.migrations.expect();
        SandboxCgroup::make(self.layout.clone(), format!("{}/n-{id}", self.name))
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

/// A number of a flat-keyed file.
fn field(text: &str, key: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(k, _)| *k == key)
        .and_then(|(_, v)| v.trim().parse().ok())
        .unwrap_or(0)
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
