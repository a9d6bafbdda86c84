//! Kernels: the protocol, the zygote that forks them, and executions.

pub mod branch;
pub mod execution;
mod frame;
mod framing;
pub mod handle;
mod order;
pub mod output;
pub mod protocol;
mod restore;
pub mod stream;
pub mod transfer;
pub mod zygote;

use std::collections::BTreeMap;

use crate::isolation::spec::HOME;

/// `PATH` of kernels and commands.
const PATH: &str = "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin";

/// Python sources of the zygote and the kernel, by file name.
fn sources() -> BTreeMap<String, String> {
    macro_rules! source {
        ($name:literal) => {
            (
                $name.to_owned(),
                include_str!(concat!("../../rootfs/kernel/", $name)).to_owned(),
            )
        };
    }
    [
        source!("byvalue.py"),
        source!("channel.py"),
        source!("checkpoints.py"),
        source!("commands.py"),
        source!("environment.py"),
        source!("execution.py"),
        source!("figures.py"),
        source!("files.py"),
        source!("forks.py"),
        source!("guard.py"),
        source!("imports.py"),
        source!("interrupts.py"),
        source!("kernel.py"),
        source!("lockdown.py"),
        source!("loops.py"),
        source!("mappings.py"),
        source!("quiesce.py"),
        source!("renew.py"),
        source!("reseed.py"),
        source!("sharing.py"),
        source!("shell.py"),
        source!("sources.py"),
        source!("spawning.py"),
        source!("stdin.py"),
        source!("streams.py"),
        source!("structured.py"),
        source!("tracebacks.py"),
        source!("warm.py"),
        source!("zygote.py"),
    ]
    .into()
}

/// Environment of user code, before what a sandbox or an execution adds.
pub fn base_env() -> BTreeMap<String, String> {
    [
        ("HOME", HOME),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("SHELL", "/bin/bash"),
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("TZ", "UTC"),
        ("VIRTUAL_ENV", "/opt/venv"),
        ("PYTHONUNBUFFERED", "1"),
        // As in a kernel: a module that is written twice in a second must not stay as it was first.
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("MPLBACKEND", "agg"),
        ("MATPLOTLIBRC", "/opt/sandcell/matplotlib/matplotlibrc"),
        ("MPLCONFIGDIR", "/var/cache/sandcell/matplotlib"),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into()
}

/// Environment of the zygote: one thread at every fork.
fn zygote_env() -> BTreeMap<String, String> {
    let mut env = base_env();
    for (key, value) in [
        ("OMP_NUM_THREADS", "1"),
        ("MALLOC_ARENA_MAX", "1"),
        // Its memory is contiguous and can become huge pages, which halves a fork (sharing.py).
        ("PYTHONMALLOC", "mimalloc"),
        ("MPLCONFIGDIR", "/tmp/matplotlib"),
    ] {
        env.insert(key.to_owned(), value.to_owned());
    }
    env
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_source_is_embedded() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/rootfs/kernel");
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n.ends_with(".py"))
            .collect();
        names.sort();
        assert_eq!(super::sources().into_keys().collect::<Vec<_>>(), names);
    }
}
