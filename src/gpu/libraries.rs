//! The driver's libraries and programs, found as the vendor's toolkit finds them: by the loader's cache
//! and in the directories that distributions use, of the version that the kernel's driver has.
//!
//! Names are those of `utility_libs` and `compute_libs` in libnvidia-container's src/nvc_info.c,
//! directories those of nvidia-container-toolkit's library locator. Firmware is not among it: the
//! kernel loads it from the host's own root (`kernel_read_file_from_path_initns`, fs/kernel_read_file.c).

use std::collections::BTreeMap;

use super::tree::{Tree, is_plain};
use super::{ldcache, soname};
use crate::isolation::grant::{Link, Shown};

/// Libraries that computing needs, without `.so`.
const LIBRARIES: [&str; 15] = [
    "libcuda",
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-sandboxutils",
    "libnvidia-tileiras",
];
/// Without it there is nothing to compute with.
const NEEDED: &str = "libcuda";

const DIRS: [&str; 12] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/lib64",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/lib",
    "/run/opengl-driver/lib",
    "/opt/nvidia/lib64",
];
const PROGRAMS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];
const PROGRAM_DIRS: [&str; 5] = [
    "/usr/bin",
    "/usr/local/bin",
    "/bin",
    "/usr/local/nvidia/bin",
    "/run/opengl-driver/bin",
];

/// Where they are shown: the loader looks here without any cache of its own (ld.so(8)), which kernels have
/// read before they were forked and do not read again, so that neither a new cache nor `LD_LIBRARY_PATH`
/// would help a program that runs.
pub(super) const LIBRARY_DIR: &str = "/usr/lib/x86_64-linux-gnu";
const PROGRAM_DIR: &str = "/usr/bin";

/// Files to show, and links to them, or why there are none.
pub(super) fn find(tree: &Tree, version: Option<&str>) -> Result<Vec<Shown>, String> {
    let cached = tree.bytes("/etc/ld.so.cache", ldcache::MAX_BYTES);
    let mut candidates = ldcache::paths(&cached.unwrap_or_default(), &LIBRARIES);
    for dir in DIRS {
        let names = tree.names(dir).into_iter();
        let of_driver = names.filter(|name| library_of(name).is_some());
        candidates.extend(of_driver.map(|name| format!("{dir}/{name}")));
    }
    // By soname, as a library is there under several names; the version's own goes before others.
    let mut best: BTreeMap<String, (bool, String)> = BTreeMap::new();
    for path in candidates.into_iter().filter(|path| is_plain(path)) {
        let Some(soname) = tree.file(&path).as_ref().and_then(soname::of) else {
            continue;
        };
        let fits = version.is_none_or(|version| {
            let target = tree.link(&path).unwrap_or_default();
            path.ends_with(version) || target.ends_with(version)
        });
        match best.get(&soname) {
            Some((true, _)) => {}
            Some((false, _)) if !fits => {}
            _ => {
                best.insert(soname, (fits, path));
            }
        }
    }
    if !best.keys().any(|soname| library_of(soname) == Some(NEEDED)) {
        return Err(format!(
            "{NEEDED}.so.1 is neither in /etc/ld.so.cache nor in {}",
            DIRS.join(", ")
        ));
    }
    let libraries = best.into_iter().map(|(soname, (_, host))| Shown {
        inside: format!("{LIBRARY_DIR}/{soname}"),
        host,
    });
    let programs = PROGRAMS.iter().filter_map(|program| {
        let host = PROGRAM_DIRS.iter().map(|dir| format!("{dir}/{program}"));
        let host = host.into_iter().find(|path| tree.file(path).is_some())?;
        let inside = format!("{PROGRAM_DIR}/{program}");
        Some(Shown { host, inside })
    });
    Ok(libraries.chain(programs).collect())
}

/// Which of the driver's libraries a file is by its name: `libcuda.so.550.54.14` is `libcuda`.
fn library_of(name: &str) -> Option<&'static str> {
    let (stem, _) = name.split_once(".so")?;
    LIBRARIES.into_iter().find(|library| *library == stem)
}

/// Links that make a loader find `files` by their sonames, and `libcuda.so`, which programs wrongly open
/// (`symlink_libraries`, src/nvc_mount.c of libnvidia-container).
pub(super) fn links(tree: &Tree, files: &[Shown]) -> Vec<Link> {
    let mut links = BTreeMap::new();
    for Shown { host, inside } in files.iter().filter(|shown| shown.inside.contains(".so")) {
        let Some(soname) = tree.file(host).as_ref().and_then(soname::of) else {
            continue;
        };
        let path = format!("{LIBRARY_DIR}/{soname}");
        if soname == "libcuda.so.1" {
            links.insert(format!("{LIBRARY_DIR}/libcuda.so"), soname);
        }
        if path != *inside {
            links.insert(path, inside.clone());
        }
    }
    let is_file = |path: &String| files.iter().any(|shown| shown.inside == *path);
    let made = links.into_iter().filter(|(path, _)| !is_file(path));
    made.map(|(path, to)| Link { path, to }).collect()
}
