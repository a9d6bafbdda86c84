//! GPUs as the kernel's driver tells of them, where nothing describes them: `lookup_devices` and
//! `init_nvc_device` of libnvidia-container (src/nvc_info.c) without the vendor's management library.
//!
//! `/proc/driver/nvidia/gpus/<PCI address>/information` has each GPU's UUID and minor number. A GPU that is
//! split (MIG) is used by its parts only: each has two capabilities, files below
//! `/proc/driver/nvidia/capabilities/gpu<minor>/mig` that name the minor number of a node in
//! `/dev/nvidia-caps`. Parts are called as they were before they had UUIDs of their own,
//! `MIG-<UUID of the GPU>/<GPU instance>/<compute instance>`, since only the management library knows those.

use super::tree::Tree;
use super::{CONTROL_NODE, Device, Edits, Found, UVM_NODE, UVM_TOOLS_NODE, libraries};
use crate::isolation::grant::Shown;

pub(super) const PROC: &str = "/proc/driver/nvidia";
/// Bytes of one of its files; the longest has about 2 KiB.
pub(super) const MAX_TEXT_BYTES: u64 = 16 * 1024;
/// GPUs that are looked at.
const MAX_GPUS: usize = 64;

/// A GPU as `/proc` tells of it.
pub(super) struct Information {
    /// `0000:01:00.0`.
    pub(super) address: String,
    pub(super) uuid: String,
    pub(super) minor: u32,
    pub(super) text: String,
}

/// Every GPU that the driver has, in order of its address, which is that of its index.
pub(super) fn information(tree: &Tree) -> Vec<Information> {
    let addresses = tree.names(&format!("{PROC}/gpus")).into_iter();
    let read = |address: String| {
        let text = tree.text(
            &format!("{PROC}/gpus/{address}/information"),
            MAX_TEXT_BYTES,
        )?;
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            lines
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
        };
        let excluded = field("GPU Excluded").or_else(|| field("Blacklisted"));
        if excluded.is_some_and(|excluded| excluded == "Yes") {
            return None;
        }
        let minor = field("Device Minor")?.parse().ok()?;
        let uuid = field("GPU UUID").filter(|uuid| is_uuid(uuid))?;
        Some(Information {
            minor,
            uuid,
            address,
            text,
        })
    };
    addresses.filter_map(read).take(MAX_GPUS).collect()
}

/// `GPU-` and hexadecimal digits; before a GPU was first used the driver has question marks for them.
fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-");
    rest.is_some_and(|rest| {
        rest.len() <= 64
            && rest
                .bytes()
                .all(|b| b.is_ascii_hexdigit() || b == b'-' || b == b'?')
    })
}

/// The version of the driver that is loaded, from the first line of its `version`:
/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024`.
pub(super) fn version(tree: &Tree) -> Option<String> {
    let text = tree.text(&format!("{PROC}/version"), MAX_TEXT_BYTES)?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    let first = text.lines().next()?;
    first.split_whitespace().find(is_version).map(str::to_owned)
}

/// What the driver has, or what was looked for.
pub(super) fn find(tree: &Tree) -> Result<Found, Vec<String>> {
    let gpus = information(tree);
    if gpus.is_empty() {
        return Err(vec![format!("no GPU in {PROC}/gpus")]);
    }
    let version = version(tree);
    let files = libraries::find(tree, version.as_deref()).map_err(|why| vec![why])?;
    let mut nodes = vec![node(CONTROL_NODE), node(UVM_NODE)];
    if tree.look(UVM_TOOLS_NODE).is_some() {
        nodes.push(node(UVM_TOOLS_NODE));
    }
    let mut devices = Vec::new();
    for (index, gpu) in gpus.iter().enumerate() {
        let own = node(&format!("/dev/nvidia{}", gpu.minor));
        let parts = parts(tree, gpu.minor);
        if parts.is_empty() {
            devices.push(device(vec![index.to_string(), gpu.uuid.clone()], vec![own]));
            continue;
        }
        for (number, part) in parts.iter().enumerate() {
            let uuid = format!("MIG-{}/{}/{}", gpu.uuid, part.gpu_instance, part.instance);
            let mut nodes = part.nodes.to_vec();
            nodes.push(own.clone());
            nodes.sort();
            devices.push(device(vec![format!("{index}:{number}"), uuid], nodes));
        }
    }
    let version = version.unwrap_or_else(|| "of unknown version".into());
    Ok(Found {
        how: format!("found by {PROC} (driver {version})"),
        devices,
        common: Edits {
            nodes,
            files,
            ..Edits::default()
        },
        notes: Vec::new(),
    })
}

fn node(path: &str) -> Shown {
    Shown {
        host: path.to_owned(),
        inside: path.to_owned(),
    }
}

fn device(names: Vec<String>, nodes: Vec<Shown>) -> Device {
    Device {
        names,
        edits: Edits {
            nodes,
            ..Edits::default()
        },
    }
}

/// A part of a split GPU.
struct Part {
    gpu_instance: u32,
    instance: u32,
    nodes: [Shown; 2],
}

fn parts(tree: &Tree, minor: u32) -> Vec<Part> {
    let capabilities = capabilities(tree, minor);
    let of = |gi: u32, ci: Option<u32>| {
        let found = capabilities.iter().find(|c| (c.gi, c.ci) == (gi, ci))?;
        Some(node(&format!("/dev/nvidia-caps/nvidia-cap{}", found.minor)))
    };
    let parts = capabilities.iter().filter_map(|capability| {
        let (gpu_instance, instance) = (capability.gi, capability.ci?);
        let nodes = [of(gpu_instance, None)?, of(gpu_instance, Some(instance))?];
        Some(Part {
            gpu_instance,
            instance,
            nodes,
        })
    });
    parts.collect()
}

/// The right to use a GPU instance or a compute instance within it.
pub(super) struct Capability {
    pub(super) gi: u32,
    pub(super) ci: Option<u32>,
    /// Of its node.
    pub(super) minor: u32,
    /// Of its file below `/proc`.
    pub(super) path: String,
}

/// Those of a GPU's parts, in order.
pub(super) fn capabilities(tree: &Tree, gpu_minor: u32) -> Vec<Capability> {
    let mig = format!("{PROC}/capabilities/gpu{gpu_minor}/mig");
    let numbers = |dir: &str, prefix: &str| {
        let names = tree.names(dir).into_iter();
        let mut numbers: Vec<u32> = names
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    };
    let read = |dir: &str, gi: u32, ci: Option<u32>| {
        let path = format!("{dir}/access");
        let text = tree.text(&path, MAX_TEXT_BYTES)?;
        let minor = text.lines().find_map(|line| {
            let value = line.strip_prefix("DeviceFileMinor:")?;
            value.trim().parse().ok()
        })?;
        Some(Capability {
            gi,
            ci,
            minor,
            path,
        })
    };
    let mut found = Vec::new();
    for gi in numbers(&mig, "gi") {
        let dir = format!("{mig}/gi{gi}");
        found.extend(read(&dir, gi, None));
        for ci in numbers(&dir, "ci") {
            found.extend(read(&format!("{dir}/ci{ci}"), gi, Some(ci)));
        }
    }
    found
}
