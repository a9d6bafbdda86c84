//! What a sandbox with GPUs needs beside nodes and files: a loader that finds the libraries, and what of
//! `/proc` and `/sys` the driver's libraries read.
//!
//! - `/proc/driver/nvidia`: `params`, `version` and `registry`, and `information` of the chosen GPUs, as
//!   `mount_procfs` and `mount_procfs_gpu` of libnvidia-container (src/nvc_mount.c) have it. `params` says
//!   that nobody is to change device nodes (`ModifyDeviceFiles: 0`).
//! - `/proc/modules`, which is masked else: cuInit looks whether nvidia-uvm is loaded (seen by strace in
//!   NVIDIA/cuda-checkpoint issue 10) and would try to load it. It lists the driver's modules and no other.
//! - `/sys`: cuInit fails with `CUDA_ERROR_OPERATING_SYSTEM` where it is not there
//!   (truefoundry/trueforge issue 466). The libraries look whether the modules are ready
//!   (`/sys/module/nvidia/initstate`, igo95862/bubblejail issue 123), at the PCI device and at which
//!   processors are near it; nothing else of `/sys` is shown.

use std::collections::BTreeMap;

use rustix::fs::FileType;

use super::driver::{self, MAX_TEXT_BYTES, PROC};
use super::tree::{Tree, is_plain};
use super::{Device, Edits, Gpus, MEND, Missing, libraries};
use crate::isolation::grant::{Grant, Granted, Link, MAX_GRANT_BYTES};

/// Modules of the driver that computing uses.
const MODULES: [&str; 2] = ["nvidia", "nvidia_uvm"];
/// What of `/sys` tells which processors and memory there are.
const TOPOLOGY: [&str; 2] = ["devices/system/cpu", "devices/system/node"];
/// Bytes of the list of modules; hosts have some hundred, of 80 bytes.
const MAX_MODULES_BYTES: u64 = 256 * 1024;

/// Gives devices that a specification calls by numbers their UUIDs too.
pub(super) fn name_by_uuid(gpus: &mut Gpus) {
    let known = driver::information(&gpus.tree);
    for device in &mut gpus.devices {
        let whole = device.edits.nodes.len() == 1;
        let found = known
            .iter()
            .find(|gpu| whole && device.minor() == Some(gpu.minor));
        if let Some(gpu) = found
            && !device.names.contains(&gpu.uuid)
        {
            device.names.push(gpu.uuid.clone());
        }
    }
}

/// See [`Gpus::grant`].
pub(super) fn of(
    gpus: &Gpus,
    devices: &[Device],
) -> Result<(Grant, BTreeMap<String, String>), Missing> {
    let tree = &gpus.tree;
    let mut edits = gpus.common.clone();
    for device in devices {
        edits.add(&device.edits);
    }
    let links = libraries::links(tree, &edits.files);
    edits.links.extend(links);
    let (nodes, files, links) = (
        once(edits.nodes, |node| &node.inside),
        once(edits.files, |file| &file.inside),
        once(edits.links, |link| &link.path),
    );
    let is_file = |link: &Link| files.iter().any(|file| file.inside == link.path);
    let links: Vec<Link> = links.into_iter().filter(|link| !is_file(link)).collect();
    let (sys, sys_links) = sys_of(tree, devices);
    let grant = Grant {
        root: tree.path().to_owned(),
        proc: proc_of(tree, devices),
        nodes,
        files,
        links,
        sys,
        sys_links,
        without_flags: false,
    };
    let told = serde_json::to_string(&Granted::from(&grant)).map_or(usize::MAX, |t| t.len());
    if told > MAX_GRANT_BYTES {
        return Err(Missing {
            looked_for: vec![format!(
                "{} ask for more files than a sandbox takes ({MAX_GRANT_BYTES} bytes of paths)",
                gpus.how
            )],
            mend: MEND.into(),
        });
    }
    let mut env = edits.env;
    let ids: Vec<&str> = devices.iter().map(Device::id).collect();
    env.insert("NVIDIA_VISIBLE_DEVICES".into(), ids.join(","));
    Ok((grant, env))
}

impl Edits {
    fn add(&mut self, other: &Self) {
        self.nodes.extend(other.nodes.iter().cloned());
        self.files.extend(other.files.iter().cloned());
        self.links.extend(other.links.iter().cloned());
        self.env.extend(other.env.clone());
    }
}

/// Each place once; the last to ask for it gets it.
fn once<T>(pieces: Vec<T>, place: impl Fn(&T) -> &String) -> Vec<T> {
    let by_place: BTreeMap<String, T> =
        pieces.into_iter().map(|p| (place(&p).clone(), p)).collect();
    by_place.into_values().collect()
}

fn proc_of(tree: &Tree, devices: &[Device]) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut copy = |path: String| {
        if let (Some(text), Some(name)) = (
            tree.text(&path, MAX_TEXT_BYTES),
            path.strip_prefix("/proc/"),
        ) {
            let text = text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0");
            texts.insert(name.to_owned(), text);
        }
    };
    for name in ["params", "version", "registry"] {
        copy(format!("{PROC}/{name}"));
    }
    let mut split = false;
    for device in devices {
        let nodes = device.edits.nodes.iter();
        let granted: Vec<u32> = nodes
            .filter_map(|node| {
                let minor = node.inside.strip_prefix("/dev/nvidia-caps/nvidia-cap")?;
                minor.parse().ok()
            })
            .collect();
        for capability in driver::capabilities(tree, device.minor().unwrap_or(u32::MAX)) {
            if granted.contains(&capability.minor) {
                split = true;
                copy(capability.path);
            }
        }
    }
    if split {
        copy("/proc/driver/nvidia-caps/mig-minors".into());
    }
    for gpu in driver::information(tree) {
        if devices.iter().any(|d| d.minor() == Some(gpu.minor)) {
            let name = format!("driver/nvidia/gpus/{}/information", gpu.address);
            texts.insert(name, gpu.text);
        }
    }
    if texts.is_empty() {
        texts.insert("driver/nvidia/version".into(), String::new());
    }
    texts.insert("modules".into(), modules(tree));
    texts
}

/// The lines of the driver's modules, without who else uses them and where they are.
fn modules(tree: &Tree) -> String {
    let all = tree.text("/proc/modules", MAX_MODULES_BYTES);
    let all = all.unwrap_or_default();
    let lines = all.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| MODULES.contains(name))?;
        let size: u64 = words.next()?.parse().ok()?;
        Some(format!("{name} {size} 0 - Live 0x0000000000000000\n"))
    });
    lines.collect()
}

fn sys_of(tree: &Tree, devices: &[Device]) -> (Vec<String>, Vec<Link>) {
    let modules = MODULES.iter().map(|name| format!("module/{name}"));
    let mut dirs: Vec<String> = modules.chain(TOPOLOGY.map(String::from)).collect();
    let mut links = Vec::new();
    for gpu in driver::information(tree) {
        if !devices.iter().any(|d| d.minor() == Some(gpu.minor)) {
            continue;
        }
        // `../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0`.
        let path = format!("bus/pci/devices/{}", gpu.address.to_lowercase());
        let Some(to) = tree.link(&format!("/sys/{path}")) else {
            continue;
        };
        let Some(dir) = to
            .strip_prefix("../../../")
            .filter(|dir| dir.starts_with("devices/"))
        else {
            continue;
        };
        if is_plain(&format!("/{dir}")) {
            dirs.push(dir.to_owned());
            links.push(Link { path, to });
        }
    }
    dirs.retain(|dir| tree.is(&format!("/sys/{dir}"), FileType::Directory));
    (dirs, links)
}
