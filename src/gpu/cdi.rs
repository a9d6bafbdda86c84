//! Container Device Interface: JSON or YAML files that describe what a container needs to use a device
//! (SPEC.md of cncf-tags/container-device-interface, versions 0.3.0 to 1.x), as nvidia-ctk writes them.
//!
//! Of its edits, `deviceNodes`, `mounts` of regular files, `env` of the vendor's own names and `hooks` are
//! looked at. Hooks are programs of the host and are never run; those links are made that
//! `create-symlinks --link TARGET::LINK` would make, and what `update-ldcache` is for, a loader that finds
//! the libraries, [`super::grant`] sees to. `additionalGids` grants nothing to an id that the host does
//! not know, so a node must be everybody's instead.

use std::collections::BTreeMap;

use rustix::fs::FileType;
use serde::Deserialize;

use super::tree::{Tree, is_plain};
use super::{CONTROL_NODE, Device, Edits, Found, UVM_NODE, UVM_TOOLS_NODE};
use crate::isolation::grant::{Link, Shown};

/// Where specifications are; what is in a later directory goes before what is in an earlier one.
const DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const KIND: &str = "nvidia.com/gpu";
/// Files of a directory, and bytes of one: those of a machine with 8 GPUs have some 40 KiB.
const MAX_FILES: usize = 64;
const MAX_BYTES: u64 = 1024 * 1024;
/// The device that stands for all of them.
const ALL: &str = "all";

/// What a specification may put in a sandbox; places of the sandbox's own are not among it.
const PLACES: [&str; 8] = [
    "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/opt/", "/etc/", "/nix/",
];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    cdi_version: String,
    kind: String,
    devices: Vec<SpecDevice>,
    container_edits: SpecEdits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecDevice {
    name: String,
    container_edits: SpecEdits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecEdits {
    env: Vec<String>,
    device_nodes: Vec<SpecNode>,
    mounts: Vec<SpecMount>,
    hooks: Vec<SpecHook>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecNode {
    path: String,
    host_path: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecMount {
    host_path: String,
    container_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecHook {
    args: Vec<String>,
}

/// What specifications describe, or what was looked for.
pub(super) fn find(tree: &Tree) -> Result<Found, Vec<String>> {
    let mut notes = Vec::new();
    let mut files = Vec::new();
    let mut common = Edits::default();
    let mut by_name: BTreeMap<String, Edits> = BTreeMap::new();
    for dir in DIRS {
        let mut of_dir: BTreeMap<String, (String, Edits)> = BTreeMap::new();
        for name in tree.names(dir).into_iter().take(MAX_FILES) {
            let path = format!("{dir}/{name}");
            let spec = match read(tree, &path) {
                Ok(Some(spec)) => spec,
                Ok(None) => continue,
                Err(note) => {
                    notes.push(note);
                    continue;
                }
            };
            common.merge(&spec.container_edits, tree, &mut notes);
            for device in spec.devices.iter().filter(|device| device.name != ALL) {
                let mut edits = Edits::default();
                edits.merge(&device.container_edits, tree, &mut notes);
                let entry = (path.clone(), edits);
                if let Some((other, _)) = of_dir.insert(device.name.clone(), entry) {
                    let name = &device.name;
                    notes.push(format!("device {name:?} is in {other} and in {path}"));
                }
            }
            files.push(path);
        }
        by_name.extend(of_dir.into_iter().map(|(name, (_, edits))| (name, edits)));
    }
    let devices = one_of_each(by_name);
    if devices.is_empty() {
        let dirs = DIRS.join(" and ");
        notes.insert(
            0,
            format!("no specification of {KIND} with a device in {dirs}"),
        );
        return Err(notes);
    }
    let how = format!("described by {}", files.join(", "));
    notes.sort();
    notes.dedup();
    Ok(Found {
        how,
        devices,
        common,
        notes,
    })
}

/// `None` for what is no specification of GPUs.
fn read(tree: &Tree, path: &str) -> Result<Option<Spec>, String> {
    let is_json = path.ends_with(".json");
    if !is_json && !path.ends_with(".yaml") && !path.ends_with(".yml") {
        return Ok(None);
    }
    let text = tree.text(path, MAX_BYTES + 1);
    let text = text.ok_or_else(|| format!("{path} cannot be read"))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("{path} has more than {MAX_BYTES} bytes"));
    }
    let spec: Result<Spec, String> = if is_json {
        serde_json::from_str(&text).map_err(|e| e.to_string())
    } else {
        // Its own budget bounds what anchors and aliases can grow to.
        serde_saphyr::from_str(&text).map_err(|e| e.to_string())
    };
    let spec = spec.map_err(|e| {
        let first = e.lines().next().unwrap_or_default();
        format!("{path} is no specification: {first}")
    })?;
    if spec.kind != KIND {
        return Ok(None);
    }
    if !is_known(&spec.cdi_version) {
        let version = &spec.cdi_version;
        return Err(format!(
            "{path} has version {version:?}, and 0.3.0 to 1.x are known"
        ));
    }
    Ok(Some(spec))
}

fn is_known(version: &str) -> bool {
    let mut parts = version.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(0)), Some(Ok(minor))) => minor >= 3,
        (Some(Ok(major)), Some(Ok(_))) => major == 1,
        _ => false,
    }
}

/// Specifications describe a device once for each of its names.
fn one_of_each(by_name: BTreeMap<String, Edits>) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for (name, edits) in by_name {
        if edits.nodes.is_empty() {
            continue;
        }
        match devices.iter_mut().find(|d| d.edits.nodes == edits.nodes) {
            Some(device) => device.names.push(name),
            None => devices.push(Device {
                names: vec![name],
                edits,
            }),
        }
    }
    let index = |name: &str| {
        let digits = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        let mut parts = digits.split(':').map(|part| part.parse::<u32>().ok());
        let numbers = (parts.next().flatten(), parts.next().flatten());
        (numbers.0.is_none(), numbers, name.to_owned())
    };
    for device in &mut devices {
        device.names.sort_by_key(|name| index(name));
    }
    devices.sort_by_key(|device| index(&device.names[0]));
    devices
}

impl Edits {
    fn merge(&mut self, spec: &SpecEdits, tree: &Tree, notes: &mut Vec<String>) {
        for node in &spec.device_nodes {
            let host = node.host_path.as_ref().filter(|path| !path.is_empty());
            let shown = Shown {
                host: host.unwrap_or(&node.path).clone(),
                inside: node.path.clone(),
            };
            if is_for_computing(&shown.inside) && is_plain(&shown.inside) {
                self.add_node(shown);
            } else {
                notes.push(format!("{} is left out: computing needs it not", node.path));
            }
        }
        self.nodes.sort();
        for mount in &spec.mounts {
            let (host, inside) = (&mount.host_path, &mount.container_path);
            let fits = is_plain(inside) && PLACES.iter().any(|place| inside.starts_with(place));
            if fits && tree.is(host, FileType::RegularFile) {
                self.files.push(Shown {
                    host: host.clone(),
                    inside: inside.clone(),
                });
            } else {
                notes.push(format!(
                    "{host} is left out: only files of the driver are shown, no directory and no socket"
                ));
            }
        }
        for (name, value) in spec.env.iter().filter_map(|env| env.split_once('=')) {
            if name.starts_with("NVIDIA_") || name.starts_with("CUDA_") {
                self.env.insert(name.into(), value.into());
            }
        }
        for hook in &spec.hooks {
            self.merge_hook(&hook.args);
        }
    }

    fn add_node(&mut self, node: Shown) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }

    fn merge_hook(&mut self, args: &[String]) {
        let values = |option: &'static str| {
            let after = args.windows(2).filter(move |two| two[0] == option);
            let joined = args
                .iter()
                .filter_map(move |arg| arg.strip_prefix(option)?.strip_prefix('='));
            after.map(|two| two[1].as_str()).chain(joined)
        };
        if args.iter().any(|arg| arg == "create-symlinks") {
            for (to, path) in values("--link").filter_map(|link| link.split_once("::")) {
                let fits = PLACES.iter().any(|place| path.starts_with(place));
                if is_plain(path) && fits && !to.contains('\0') {
                    self.links.push(Link {
                        path: path.into(),
                        to: to.into(),
                    });
                }
            }
        }
    }
}

/// `/dev/nvidia<n>`, the control node, unified memory's and MIG's capabilities.
fn is_for_computing(path: &str) -> bool {
    let numbered = |prefix: &str| {
        let rest = path.strip_prefix(prefix);
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    [CONTROL_NODE, UVM_NODE, UVM_TOOLS_NODE].contains(&path)
        || numbered("/dev/nvidia")
        || numbered("/dev/nvidia-caps/nvidia-cap")
}
