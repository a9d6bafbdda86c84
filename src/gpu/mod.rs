//! GPUs of the host: which there are, how a driver's files are found, and what a sandbox that is given
//! some needs of them.
//!
//! Two ways, in this order:
//!
//! 1. [`cdi`]: the vendor's description for container runtimes (Container Device Interface,
//!    `nvidia.com/gpu`), which `nvidia-ctk cdi generate` writes.
//! 2. [`driver`]: the kernel's own `/proc/driver/nvidia` and `/dev`, and the driver's libraries by the
//!    names that the vendor's toolkit looks for.
//!
//! Of either a sandbox gets what computing needs and nothing else: nodes of the chosen GPUs, the control
//! node and unified memory's, libraries, programs. Not mode setting and rendering nodes, and no socket of
//! the host's daemons (persistence, fabric, MPS). Hooks are never run: what theirs would do, links and a
//! loader that finds the libraries, [`grant`] does.
//!
//! What of the driver a sandbox without GPUs sees: nothing. There is no node, no file, `/proc/driver` is
//! masked, and `/sys` is empty. What one with GPUs sees of the others: that they exist, as
//! `/dev/nvidiactl` answers questions about all of them; without their nodes it can use none.

mod cdi;
mod choose;
mod driver;
mod grant;
mod ldcache;
mod libraries;
mod soname;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

pub use choose::{Fault, Wish};

use crate::isolation::grant::{Grant, Link, Shown};
use tree::Tree;

/// The node that every GPU of the vendor is asked through (major 195, minor 255).
const CONTROL_NODE: &str = "/dev/nvidiactl";
/// Unified memory, without which no CUDA context can be made.
const UVM_NODE: &str = "/dev/nvidia-uvm";
/// The same for profilers; not on every host.
const UVM_TOOLS_NODE: &str = "/dev/nvidia-uvm-tools";

/// What is to be changed in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Edits {
    nodes: Vec<Shown>,
    files: Vec<Shown>,
    links: Vec<Link>,
    env: BTreeMap<String, String>,
}

/// A GPU, or a part of one (MIG), that a sandbox can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// All that it can be called, its index first.
    names: Vec<String>,
    edits: Edits,
}

impl Device {
    /// Every name: index, UUID where it is known.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name that stays the same when other GPUs come and go, where it is known, else the index.
    pub fn id(&self) -> &str {
        let lasting = |name: &&String| name.starts_with("GPU-") || name.starts_with("MIG-");
        let id = self.names.iter().find(lasting).or(self.names.first());
        id.map_or("", String::as_str)
    }

    /// The number in `/dev/nvidia<n>`.
    fn minor(&self) -> Option<u32> {
        let mut nodes = self.edits.nodes.iter();
        nodes.find_map(|node| node.inside.strip_prefix("/dev/nvidia")?.parse().ok())
    }
}

/// The GPUs of a host.
#[derive(Debug)]
pub struct Gpus {
    tree: Tree,
    /// How they were found, for people.
    how: String,
    devices: Vec<Device>,
    common: Edits,
    notes: Vec<String>,
}

/// Why there are none.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no GPU was found: {}. {mend}", looked_for.join("; "))]
pub struct Missing {
    /// What was looked for, and what was there instead.
    pub looked_for: Vec<String>,
    /// What to do.
    pub mend: String,
}

/// What to do where there is no driver at all.
const MEND: &str = "Install the vendor's driver, run nvidia-modprobe -c 0 -u to load it and make its \
                    nodes, and, where its toolkit is installed, \
                    nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";

impl Gpus {
    /// Looks for GPUs below `root`: `/`, or where a driver has its own tree.
    ///
    /// # Errors
    /// There are none; says what was looked for.
    pub fn find(root: &Path) -> Result<Self, Missing> {
        let missing = |looked_for: Vec<String>| Missing {
            looked_for,
            mend: MEND.into(),
        };
        let tree = Tree::open(root)
            .ok_or_else(|| missing(vec![format!("{} is no directory", root.display())]))?;
        let (found, mut looked_for) = match cdi::find(&tree) {
            Ok(found) => (Ok(found), Vec::new()),
            Err(why) => (driver::find(&tree), why),
        };
        let found = found.map_err(|why| {
            looked_for.extend(why);
            missing(looked_for)
        })?;
        let mut gpus = Self {
            how: found.how,
            devices: found.devices,
            common: found.common,
            notes: found.notes,
            tree,
        };
        gpus.look_at_nodes().map_err(missing)?;
        grant::name_by_uuid(&mut gpus);
        Ok(gpus)
    }

    /// How they were found, for people.
    pub fn how(&self) -> &str {
        &self.how
    }

    /// All, in order of their index.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What was left out, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What a sandbox with these devices is given, and its variables.
    ///
    /// # Errors
    /// It is more than init can be told of.
    pub fn grant(&self, devices: &[Device]) -> Result<(Grant, BTreeMap<String, String>), Missing> {
        grant::of(self, devices)
    }

    /// Leaves devices out whose nodes are not there or are not everybody's.
    fn look_at_nodes(&mut self) -> Result<(), Vec<String>> {
        let tree = &self.tree;
        let fault = |nodes: &[Shown]| nodes.iter().find_map(|node| node_fault(tree, &node.host));
        if let Some(fault) = fault(&self.common.nodes) {
            return Err(vec![self.how.clone(), fault]);
        }
        let (mut kept, mut faults) = (Vec::new(), Vec::new());
        for device in std::mem::take(&mut self.devices) {
            match fault(&device.edits.nodes) {
                None => kept.push(device),
                Some(fault) => faults.push(fault),
            }
        }
        if kept.is_empty() {
            faults.insert(0, self.how.clone());
            return Err(faults);
        }
        self.devices = kept;
        self.notes.extend(faults);
        Ok(())
    }
}

/// Why user code could not open a node: it has an id and no group that the host knows, so what a node's
/// group may do helps nobody.
fn node_fault(tree: &Tree, path: &str) -> Option<String> {
    const EVERYBODY: u32 = 0o006;
    match tree.look(path) {
        None => Some(format!("{path} is not there")),
        Some((rustix::fs::FileType::CharacterDevice, mode)) if mode & EVERYBODY == EVERYBODY => {
            None
        }
        Some((rustix::fs::FileType::CharacterDevice, mode)) => Some(format!(
            "{path} has mode {mode:04o}, and sandboxes have no group on the host: load the driver with \
             NVreg_DeviceFileMode=0666"
        )),
        Some(_) => Some(format!("{path} is no character device")),
    }
}

/// What one way of looking found.
struct Found {
    how: String,
    devices: Vec<Device>,
    common: Edits,
    notes: Vec<String>,
}
