//! The nursery: PID 1 of the outer PID namespace, in an outer user namespace whose ids are
//! unprivileged on the host. It clones inits and starts the zygote, one request at a time, and its
//! death takes everything below with it.
//!
//! It was executed *inside* the outer user namespace, from a sealed memfd: so its memory belongs to
//! that namespace, which `setns` on a non-dumpable init's pidfd and writing a child's id maps ask
//! for (ptrace(2), access mode checks), and nobody below can overwrite what runs.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use rustix::mount::{MountFlags, OpenTreeFlags, open_tree};

use super::channel::{self, Packet};
use super::error::{Context, Error};
use super::grant::GRANT;
use super::inbox::{Event, Inbox};
use super::rootfs::{
    DEVICES, LAYER, MIRROR, STAGE, VIEW, attach, bind, lowers, make_file, make_private, mount,
    pivot,
};
use super::seccomp::Filters;
use super::spec::{FromNursery, NurseryRequest, NurserySetup, NurseryVerb, SandboxSpec, USER_ID};
use super::{init, sys};

/// Directory that becomes the nursery's root: any that exists on every host.
pub(super) const ROOT: &str = "/tmp";
/// Where the zygote finds its sources, in its own mount namespace.
pub const ZYGOTE_DIR: &str = "/run/sandcell";
const PYTHON: &str = "/opt/venv/bin/python";

/// Entry of the hidden verb: descriptor 3 is the socket to the supervisor.
pub fn main() -> i32 {
    match run() {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("sandcell nursery: {e}");
            1
        }
    }
}

fn run() -> Result<(), Error> {
    let control = sys::inherited_fd(3).context("take over the control socket")?;
    // Against a supervisor that is killed: its end of the socket closes too, but we may be busy.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("tie life to the supervisor")?;
    let setup = channel::receive(control.as_fd()).context("receive the setup")?;
    let Some(setup) = setup else { return Ok(()) };
    match set_up(setup) {
        Ok(nursery) => {
            answer(control.as_fd(), 0, Ok(None))?;
            nursery.serve(control)
        }
        Err(e) => answer(control.as_fd(), 0, Err(e)),
    }
}

fn set_up(packet: Packet) -> Result<Nursery, Error> {
    let NurserySetup { layered } = packet.decode().context("read the setup")?;
    make_private()?;
    let mut trees = vec![(MIRROR, inherited(MIRROR)?)];
    if layered {
        trees.push((LAYER, inherited(LAYER)?));
    }
    enter_root(&trees)?;
    super::view::prepare();
    Ok(Nursery {
        filters: Filters::default_profile()?,
        gpu_filters: Filters::gpu_profile()?,
        zygote_filters: Filters::zygote_profile()?,
        layered,
    })
}

/// A mount that the spawner put where it and we have a copy each, detached. Ours came with the mount
/// namespace, so the kernel locks what protects it: nobody in our user namespace makes it writable
/// (mount_namespaces(7), "Restrictions on mount namespaces"), whoever owns its files.
fn inherited(name: &str) -> Result<OwnedFd, Error> {
    let path = format!("{ROOT}{name}");
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(rustix::fs::CWD, &path, flags).context(format!("clone the mount of {path}"))
}

/// A root that holds the mirror's trees, `/proc` of this PID namespace, a few device nodes, and empty
/// directories to put sandboxes together in. Every sandbox's mount namespace starts as a copy of it.
fn enter_root(trees: &[(&str, OwnedFd)]) -> Result<(), Error> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", ROOT, plain, "size=1m,mode=755")?;
    for dir in [STAGE, GRANT, VIEW, "/proc", "/dev"] {
        fs::create_dir(format!("{ROOT}{dir}")).context(format!("make {dir}"))?;
    }
    for (dir, tree) in trees {
        let path = format!("{ROOT}{dir}");
        fs::create_dir(&path).context(format!("make {dir}"))?;
        attach(tree.as_fd(), &path)?;
    }
    // A sandbox may mount a /proc of its own only where one is already fully visible
    // (mount_too_revealing, fs/namespace.c).
    mount(
        "proc",
        &format!("{ROOT}/proc"),
        plain | MountFlags::NOEXEC,
        "",
    )?;
    for name in DEVICES {
        let path = format!("{ROOT}/dev/{name}");
        make_file(&path, 0o666).context(format!("make {path}"))?;
        bind(&format!("/dev/{name}"), &path)?;
    }
    pivot(ROOT)
}

struct Nursery {
    filters: Filters,
    /// Of sandboxes that are given GPUs.
    gpu_filters: Filters,
    zygote_filters: Filters,
    layered: bool,
}

impl Nursery {
    /// Until the supervisor closes its end.
    fn serve(&self, control: OwnedFd) -> Result<(), Error> {
        let inbox = Inbox::new(control)?;
        loop {
            let packet = match inbox.next()? {
                Event::Closed => return Ok(()),
                Event::ChildrenEnded => {
                    reap();
                    continue;
                }
                Event::Request(packet) => packet,
            };
            let NurseryRequest { id, verb } = packet.decode().context("read a request")?;
            let (result, go) = match self.handle(verb, packet.fds) {
                Ok((pidfd, go)) => (Ok(Some(pidfd)), go),
                Err(e) => (Err(e), None),
            };
            answer(inbox.control(), id, result)?;
            // Last: init, woken on this processor, would keep us from answering for as long as its
            // set-up takes. It sees a failure here as the end of the pipe.
            if let Some(go) = go {
                let _ = rustix::io::write(&go, b"g");
            }
        }
    }

    /// Returns the pidfd of the process started and, for an init, the pipe on which it waits.
    fn handle(
        &self,
        verb: NurseryVerb,
        fds: Vec<OwnedFd>,
    ) -> Result<(OwnedFd, Option<OwnedFd>), Error> {
        match verb {
            NurseryVerb::Zygote { env, filtered } => {
                let filters = filtered.then_some(&self.zygote_filters);
                let pidfd = start_zygote(self.layered, &env, filters, fds)?;
                Ok((pidfd, None))
            }
            NurseryVerb::Sandbox(spec) => {
                let (pidfd, go) = self.start_sandbox(&spec, fds)?;
                Ok((pidfd, Some(go)))
            }
        }
    }

    /// Clones init into its cgroup, user and PID namespace, and writes its id maps. Init waits for
    /// a byte in the pipe returned, and tells on its own socket how the rest went.
    fn start_sandbox(
        &self,
        spec: &SandboxSpec,
        fds: Vec<OwnedFd>,
    ) -> Result<(OwnedFd, OwnedFd), Error> {
        let mut fds = fds;
        if fds.len() < 2 {
            return Err(Error::Refused(
                "a sandbox needs two descriptors at least".into(),
            ));
        }
        let cgroup = fds.remove(1);
        let (go, waiting) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map(|(read, write)| (write, read))
            .context("make a pipe")?;
        // The namespaces that a fork of the zygote waits for; init makes the rest beside that fork.
        let mut flags = libc::CLONE_NEWUSER;
        if !spec.ablation.no_pidns {
            flags |= libc::CLONE_NEWPID;
        }
        match sys::fork_into(flags as u64, Some(cgroup.as_fd())).context("clone init")? {
            sys::Fork::Child => {
                drop(go);
                let filters = match spec.granted {
                    None => &self.filters,
                    Some(_) => &self.gpu_filters,
                };
                init::main(spec, filters, waiting.as_fd(), fds)
            }
            sys::Fork::Parent { pid, pidfd } => {
                // Two parts: root inside is the mirror's owner, so that base files look
                // root-owned; the user is an id that nothing else alive has.
                let map = format!("0 0 1\n{USER_ID} {} 1\n", spec.user_id);
                for kind in ["uid_map", "gid_map"] {
                    fs::write(format!("/proc/{pid}/{kind}"), &map)
                        .context(format!("write {kind} of init"))?;
                }
                Ok((pidfd, go))
            }
        }
    }
}

/// Starts the zygote in the mirror, read-only, with its own mounts.
fn start_zygote(
    layered: bool,
    env: &BTreeMap<String, String>,
    filters: Option<&Filters>,
    fds: Vec<OwnedFd>,
) -> Result<OwnedFd, Error> {
    let [socket, sources] = <[OwnedFd; 2]>::try_from(fds)
        .map_err(|_| Error::Refused("a zygote needs two descriptors".into()))?;
    let files: BTreeMap<String, String> =
        serde_json::from_reader(BufReader::new(File::from(sources)))
            .map_err(io::Error::other)
            .context("read the zygote's sources")?;
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    match sys::fork_into(flags as u64, None).context("clone the zygote")? {
        sys::Fork::Parent { pidfd, .. } => Ok(pidfd),
        sys::Fork::Child => {
            let error = become_zygote(layered, &files, env, filters, socket.as_fd());
            eprintln!("sandcell zygote: {error}");
            sys::exit_now(1)
        }
    }
}

/// The zygote's root: the mirror, or both trees of a layered one in one, which nobody can write to
/// as there is no upper.
fn zygote_root(layered: bool) -> Result<&'static str, Error> {
    if !layered {
        return Ok(MIRROR);
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY;
    let data = format!("lowerdir={},userxattr", lowers(true));
    mount("overlay", STAGE, flags, &data)?;
    Ok(STAGE)
}

/// In the child: returns only when it failed.
fn become_zygote(
    layered: bool,
    files: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
    filters: Option<&Filters>,
    socket: BorrowedFd<'_>,
) -> Error {
    let prepare = || -> Result<(), Error> {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
            .context("unblock signals")?;
        sys::ignore_signal(Signal::SIGPIPE as i32, false);
        make_private()?;
        let root = zygote_root(layered)?;
        let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(
            "tmpfs",
            &format!("{root}/dev"),
            MountFlags::NOSUID | MountFlags::NOEXEC,
            "size=64k,mode=755",
        )?;
        for name in DEVICES {
            let path = format!("{root}/dev/{name}");
            make_file(&path, 0o666).context(format!("make {path}"))?;
            bind(&format!("/dev/{name}"), &path)?;
        }
        mount("proc", &format!("{root}/proc"), plain, "")?;
        mount("tmpfs", &format!("{root}/tmp"), plain, "size=64m,mode=1777")?;
        mount("tmpfs", &format!("{root}/run"), plain, "size=4m,mode=755")?;
        let dir = format!("{root}{ZYGOTE_DIR}");
        fs::create_dir(&dir).context("make the zygote's directory")?;
        for (name, text) in files {
            fs::write(format!("{dir}/{name}"), text).context("write the zygote's sources")?;
        }
        pivot(root)?;
        sys::place_fd(socket, 3).context("place the socket")?;
        sys::close_range_cloexec(4).context("mark descriptors")?;
        // What it imports may be anybody's, and it is root of its user namespace.
        filters.map_or(Ok(()), |filters| Ok(filters.apply()?))
    };
    if let Err(e) = prepare() {
        return e;
    }
    let c_string = |s: String| CString::new(s).expect("no NUL in our own strings");
    let argv = [PYTHON.into(), format!("{ZYGOTE_DIR}/zygote.py")].map(c_string);
    let env: Vec<CString> = env
        .iter()
        .map(|(k, v)| c_string(format!("{k}={v}")))
        .collect();
    Error::Step {
        step: format!("start {PYTHON}"),
        source: sys::exec(&argv[0], &argv, &env),
    }
}

/// Inits and zygotes that ended; whoever watches them holds a pidfd.
fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

fn answer(
    control: BorrowedFd<'_>,
    id: u64,
    result: Result<Option<OwnedFd>, Error>,
) -> Result<(), Error> {
    let (pidfd, error) = match result {
        Ok(pidfd) => (pidfd, None),
        Err(e) => (None, Some(e.to_string())),
    };
    let fds: Vec<BorrowedFd<'_>> = pidfd.iter().map(AsFd::as_fd).collect();
    channel::send_json(control, &FromNursery { id, error }, &fds).context("answer the supervisor")
}
