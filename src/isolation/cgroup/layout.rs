//! Where this host has its controllers.

use std::fs;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::Controllers;
use cgroups_rs::fs::hierarchies::{V1, is_cgroup2_unified_mode};

use crate::isolation::error::Error;

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

    /// Mount points of all of them.
    pub(super) fn roots(&self) -> Vec<&Path> {
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
