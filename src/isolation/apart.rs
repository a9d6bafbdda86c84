//! A program of ours that works on a sandbox's files as its user, and that user code can neither enter,
//! trace nor feed: the installer, which may reach the package index where user code may not.
//!
//! It is a child of init in a user namespace of its own, which init (root inside) owns. A process of
//! the same user id that is not of that namespace and has no capability over it cannot trace it, read
//! or write its memory, or open what `/proc/<pid>` links to (`cap_ptrace_access_check`,
//! security/commoncap.c); setns(2) no user code may call. Its network namespace has a loopback
//! interface and one listening socket, which is passed up; its scratch space is mounted in a mount
//! namespace of its own. Everything else (files, cgroup, filters, limits) is as for a command.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::mount::MountFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::error::{Context, Error};
use super::identity::empty_bounding_set;
use super::listener;
use super::rootfs::mount;
use super::spec::{Apart, USER_ID};
use super::sys::{self, Fork};

/// Where the program finds its scratch space: an empty directory of the mirror.
pub const SCRATCH: &str = "/mnt";

/// In init: forks a child into `cgroup` and namespaces of its own, and maps the user's id there.
pub fn fork(cgroup: BorrowedFd<'_>) -> Result<Fork, Error> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).context("make a pipe");
    let [(readable, ready), (mapped, go)] = [pipe()?, pipe()?];
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    match sys::fork_into(flags as u64, Some(cgroup)).context("fork")? {
        Fork::Child => {
            drop((readable, go));
            // As a copy of init it is non-dumpable, and what /proc has of it belongs to the host's
            // root: init itself could not write its maps. Nobody else inside has init's identity.
            // Without maps, which it then lacks, it cannot become the user and ends there.
            let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
            drop(ready);
            let _ = await_end(mapped.as_fd());
            Ok(Fork::Child)
        }
        Fork::Parent { pid, pidfd } => {
            drop((ready, mapped));
            await_end(readable.as_fd())?;
            for name in ["uid_map", "gid_map"] {
                fs::write(
                    format!("/proc/{pid}/{name}"),
                    format!("{USER_ID} {USER_ID} 1"),
                )
                .context(format!("write {name} of a child"))?;
            }
            drop(go);
            Ok(Fork::Parent { pid, pidfd })
        }
    }
}

/// Until the other side has closed its end of a pipe.
fn await_end(pipe: BorrowedFd<'_>) -> Result<(), Error> {
    rustix::io::read(pipe, &mut [0]).context("wait for a child")?;
    Ok(())
}

/// In the child, before it gives its identity up: its scratch space, and the socket to pass up.
pub fn set_up(apart: Apart) -> Result<OwnedFd, Error> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let options = format!(
        "size={},mode=700,uid={USER_ID},gid={USER_ID}",
        apart.scratch_bytes
    );
    mount("tmpfs", SCRATCH, plain, &options)?;
    sys::loopback_up().context("bring the loopback interface up")?;
    let listening = listener::listen()?;
    empty_bounding_set()?;
    Ok(listening)
}
