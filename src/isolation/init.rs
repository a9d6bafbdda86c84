//! Init: PID 1 of a sandbox, forked from the nursery without exec.
//!
//! It sets the sandbox up, locks itself down and then only forks, and signals what it forked: commands
//! and file work run in children with the user's identity. It parses nothing that user code wrote. User code can neither
//! signal it (PID 1 of its namespace, other uid) nor trace it (non-dumpable).

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, setsid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::channel::{self, Packet};
use super::error::{Context, Error};
use super::grant::GRANT;
use super::identity::{Limits, Root, Sealed, reduce_init};
use super::inbox::{Event, Inbox};
use super::seccomp::Filters;
use super::spec::{Command, FileWork, HOME, Reply, SandboxSpec, ToInit, WindowSize};
use super::{apart, dial, filework, listener, rootfs, sys, terminal};

/// Descriptors that a file worker keeps are at this number and above; init itself has a few dozen.
const KEPT_FDS: i32 = 1000;
/// Host name inside.
const HOSTNAME: &str = "sandbox";
/// Exit code of a command whose program could not be started, as shells have it.
const EXIT_NOT_STARTED: i32 = 127;

/// Runs init's whole life in a child that the nursery has just cloned. `fds` are those of the
/// request; `go` gives a byte when the id maps are written.
pub fn main(spec: &SandboxSpec, filters: &Filters, go: BorrowedFd<'_>, fds: Vec<OwnedFd>) -> ! {
    let mut fds = fds.into_iter();
    let Some(control) = fds.next() else {
        sys::exit_now(1)
    };
    let cgroups: Vec<OwnedFd> = fds.collect();
    let view = match set_up(spec, go, &cgroups) {
        Ok(view) => view,
        Err(e) => {
            let failed = Reply::Failed {
                code: "setup".into(),
                detail: e.to_string(),
            };
            let _ = channel::send_json(control.as_fd(), &failed, &[]);
            sys::exit_now(1)
        }
    };
    // Everything else that came from the nursery is closed here; 3 is all that init holds once it has
    // passed the other one up.
    let [control, view] = match keep_only([control, view]) {
        Ok(kept) => kept,
        Err(_) => sys::exit_now(1),
    };
    if channel::send_json(control.as_fd(), &Reply::Ok {}, &[view.as_fd()]).is_err() {
        sys::exit_now(1);
    }
    drop(view);
    let result = Inbox::new(control).and_then(|inbox| {
        let watched = HashMap::new();
        Init {
            spec,
            filters,
            inbox,
            watched,
        }
        .serve()
    });
    sys::exit_now(i32::from(result.is_err()))
}

/// The list of steps, in order. Gives what [`rootfs::enter`] does.
fn set_up(spec: &SandboxSpec, go: BorrowedFd<'_>, rest: &[OwnedFd]) -> Result<OwnedFd, Error> {
    let mut byte = [0];
    if rustix::io::read(go, &mut byte).context("wait for the id maps")? != 1 {
        return Err(Error::Refused("the nursery gave up".into()));
    }
    setgroups(&[]).context("drop groups")?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))
        .context("become root inside")?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))
        .context("become root inside")?;
    unshare_namespaces(spec)?;
    let (mounts, rest) = rest.split_at(if spec.root_from_host { 2 } else { 0 });
    let (grants, joins) = rest.split_at(usize::from(spec.granted.is_some()).min(rest.len()));
    rootfs::make_private()?;
    if let [stage, merged] = mounts {
        rootfs::attach(stage.as_fd(), rootfs::STAGE)?;
        rootfs::attach(merged.as_fd(), rootfs::MERGED)?;
    }
    for tree in grants {
        rootfs::attach(tree.as_fd(), GRANT)?;
    }
    let view = rootfs::enter(spec)?;
    nix::unistd::sethostname(HOSTNAME).context("set the host name")?;
    if !spec.ablation.no_netns {
        sys::loopback_up().context("bring the loopback interface up")?;
    }
    setsid().context("start a session")?;
    for procs in joins {
        // "0" is the writer. The supervisor opened the file, so its right to write counts
        // (cgroups(7), Linux 5.16). Late, because the first migration after a pause waits for a grace
        // period of RCU, which [`super::migrations`] has begun meanwhile.
        rustix::io::write(procs, b"0").context("join a cgroup")?;
    }
    // After the joins, so that every hierarchy's root is the sandbox's own cgroup.
    unshare(CloneFlags::CLONE_NEWCGROUP).context("unshare the cgroup namespace")?;
    reduce_init()?;
    let dumpable = if spec.ablation.dumpable_init {
        rustix::process::DumpableBehavior::Dumpable
    } else {
        rustix::process::DumpableBehavior::NotDumpable
    };
    rustix::process::set_dumpable_behavior(dumpable).context("become non-dumpable")?;
    Ok(view)
}

/// The namespaces beside user and PID, which init was cloned into. The network's takes the most time.
fn unshare_namespaces(spec: &SandboxSpec) -> Result<(), Error> {
    let mut flags = CloneFlags::CLONE_NEWUTS;
    if !spec.ablation.no_mntns {
        flags |= CloneFlags::CLONE_NEWNS;
    }
    if !spec.ablation.no_ipcns {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    if !spec.ablation.no_netns {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    unshare(flags).context("unshare namespaces")
}

/// Moves what is kept to descriptors 3 and 4, standard streams to `/dev/null`, closes the rest.
fn keep_only(kept: [OwnedFd; 2]) -> Result<[OwnedFd; 2], Error> {
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .context("open /dev/null")?;
    let [control, view] = kept;
    // In this order none is overwritten before it is copied: the directory was opened last, when 3 was
    // taken, and /dev/null after that.
    if view.as_raw_fd() <= 3 {
        return Err(Error::Refused("descriptor 3 was free".into()));
    }
    sys::place_fd(control.as_fd(), 3).context("keep the control socket")?;
    for target in 0..3 {
        sys::place_fd(null.as_fd(), target).context("empty the standard streams")?;
    }
    sys::place_fd(view.as_fd(), 4).context("keep the view's directory")?;
    // Their numbers are closed below; dropping them later would close strangers.
    std::mem::forget((control, view, null));
    sys::close_from(5).context("close inherited descriptors")?;
    let inherited = |fd| sys::inherited_fd(fd).context("keep a descriptor");
    Ok([inherited(3)?, inherited(4)?])
}

struct Init<'a> {
    spec: &'a SandboxSpec,
    filters: &'a Filters,
    inbox: Inbox,
    /// Reply sockets of commands and of other processes whose end is to be told, by process id.
    watched: HashMap<i32, OwnedFd>,
}

impl Init<'_> {
    /// Until the supervisor closes its end.
    fn serve(&mut self) -> Result<(), Error> {
        loop {
            match self.inbox.next()? {
                Event::Closed => return Ok(()),
                Event::ChildrenEnded => self.reap(),
                Event::Request(packet) => self.handle(packet),
            }
        }
    }

    /// Reaps whatever ended: commands of ours and orphans of theirs.
    fn reap(&mut self) {
        loop {
            let (pid, code, signal) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, None, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            if let Some(reply) = self.watched.remove(&pid.as_raw()) {
                // Whoever asked may be gone.
                let _ = channel::send_json(reply.as_fd(), &Reply::Exited { code, signal }, &[]);
            }
        }
    }

    fn handle(&mut self, packet: Packet) {
        let request = packet.decode::<ToInit>();
        let mut fds = packet.fds.into_iter();
        let Some(reply) = fds.next() else { return };
        let done = match request {
            Ok(ToInit::Command(command)) => self.command(reply, fds.collect(), &command),
            Ok(ToInit::Signal { pid, signal }) => self
                .signal(pid, signal, reply.as_fd())
                .map_err(|e| (e, Some(reply))),
            Ok(ToInit::Watch { pid }) => {
                // Not every process that is watched is ever init's to reap.
                self.watched.retain(|_, reply| !is_left(reply.as_fd()));
                self.watched.insert(pid, reply);
                Ok(())
            }
            Ok(ToInit::Listen {}) => listen(reply.as_fd()).map_err(|e| (e, Some(reply))),
            Ok(ToInit::Dial { port, v6 }) => {
                dial::answer(port, v6, reply.as_fd()).map_err(|e| (e, Some(reply)))
            }
            Ok(ToInit::File { work }) => self
                .file(&work, reply.as_fd(), fds.next())
                .map_err(|e| (e, Some(reply))),
            Err(e) => Err((Error::Refused(e.to_string()), Some(reply))),
        };
        if let Err((e, Some(reply))) = done {
            refuse(reply.as_fd(), &e);
        }
    }

    fn command(
        &mut self,
        reply: OwnedFd,
        fds: Vec<OwnedFd>,
        command: &Command,
    ) -> Result<(), (Error, Option<OwnedFd>)> {
        let mut fds = fds.into_iter();
        let (cgroup, streams) = (
            fds.next(),
            <[OwnedFd; 3]>::try_from(Vec::from_iter(fds)).ok(),
        );
        let streams = match (command.terminal, streams) {
            (Some(size), None) => Streams::Terminal(size),
            (None, Some(streams)) => Streams::Given(streams),
            _ => {
                let wrong = "a command has either a terminal or three streams";
                return Err((Error::Refused(wrong.into()), Some(reply)));
            }
        };
        let Some(cgroup) = cgroup else {
            let wrong = "a command needs a cgroup";
            return Err((Error::Refused(wrong.into()), Some(reply)));
        };
        let forked = match command.apart {
            None => sys::fork_into(0, Some(cgroup.as_fd())).context("fork"),
            Some(_) => apart::fork(cgroup.as_fd()),
        };
        match forked {
            Err(e) => Err((e, Some(reply))),
            Ok(sys::Fork::Parent { pid, .. }) => {
                self.watched.insert(pid, reply);
                Ok(())
            }
            Ok(sys::Fork::Child) => {
                let error = self.become_command(command, reply.as_fd(), &streams);
                refuse(reply.as_fd(), &error);
                sys::exit_now(EXIT_NOT_STARTED)
            }
        }
    }

    /// In the child: returns only when it failed.
    fn become_command(&self, command: &Command, reply: BorrowedFd<'_>, streams: &Streams) -> Error {
        let prepared = || -> Result<_, Error> {
            setsid().context("start a session")?;
            // Whoever started the service may have ignored some, as a shell does for what it runs in
            // the background; exec keeps that, and the program would never see them.
            for signal in Signal::iterator() {
                sys::ignore_signal(signal as i32, false);
            }
            let argv = c_strings(command.argv.iter().cloned())?;
            let env = c_strings(command.env.iter().map(|(k, v)| format!("{k}={v}")))?;
            if let Streams::Given(streams) = streams {
                place_streams(streams.each_ref().map(AsFd::as_fd))?;
            }
            let reply =
                rustix::io::fcntl_dupfd_cloexec(reply, 100).context("keep the reply socket")?;
            sys::close_range_cloexec(3).context("mark descriptors")?;
            let listening = command.apart.map(apart::set_up).transpose()?;
            let dropped = self.root().drop_identity(&self.limits())?;
            // Before there is a terminal: one that is dropped with this closure hangs up on us, and nobody
            // would be told why.
            let cwd = command.cwd.as_deref().unwrap_or(".");
            if rustix::process::chdir(HOME).is_err() {
                // User code has closed it, and may want to open it again.
                rustix::process::chdir("/").context("enter the root")?;
            }
            rustix::process::chdir(cwd).context(format!("enter {cwd:?}"))?;
            // Opened by the user, who thereby owns it, and before the filters could be in the way.
            let terminal = match streams {
                Streams::Terminal(size) => Some(terminal::open(*size)?),
                Streams::Given(_) => None,
            };
            if let Some(terminal) = &terminal {
                place_streams([terminal.device.as_fd(); 3])?;
            }
            let sealed = dropped.seal(self.filters())?;
            let begun = Reply::Begun {
                pid: std::process::id() as i32,
            };
            let controller = terminal.as_ref().map(|t| t.controller.as_fd());
            let passed = controller.or(listening.as_ref().map(AsFd::as_fd));
            channel::send_json(reply.as_fd(), &begun, passed.as_slice())
                .context("tell of the start")?;
            std::mem::forget((reply, terminal, listening));
            Ok((sealed, argv, env))
        };
        match prepared() {
            Ok((sealed, argv, env)) => Error::Step {
                step: format!("start {:?}", command.argv[0]),
                source: sealed.exec(&argv, &env),
            },
            Err(e) => e,
        }
    }

    /// Signals the group of a child that was not reaped yet: until then neither its id nor that of
    /// its group can name another.
    fn signal(&self, pid: i32, signal: i32, reply: BorrowedFd<'_>) -> Result<(), Error> {
        let group = rustix::process::Pid::from_raw(pid).filter(|_| self.watched.contains_key(&pid));
        let signal = rustix::process::Signal::from_named_raw(signal);
        let (Some(group), Some(signal)) = (group, signal) else {
            return Err(Error::Refused(format!("no process {pid} to signal")));
        };
        rustix::process::kill_process_group(group, signal).context("signal a process group")?;
        channel::send_json(reply, &Reply::Ok {}, &[]).context("answer")
    }

    fn file(
        &self,
        work: &FileWork,
        reply: BorrowedFd<'_>,
        content: Option<OwnedFd>,
    ) -> Result<(), Error> {
        match sys::fork_into(0, None).context("fork")? {
            sys::Fork::Parent { .. } => Ok(()),
            sys::Fork::Child => {
                // A refusal goes there too: by then init's own is closed.
                let reply = match keep(reply) {
                    Ok(kept) => kept,
                    Err(e) => {
                        refuse(reply, &e);
                        sys::exit_now(1)
                    }
                };
                match self.confine_file_worker(work, content.as_ref()) {
                    Ok((sealed, content)) => {
                        sealed.run(|| filework::run(work, reply.as_fd(), content))
                    }
                    Err(e) => {
                        refuse(reply.as_fd(), &e);
                        sys::exit_now(1)
                    }
                }
            }
        }
    }

    /// Keeps what [`keep`] has kept and none of init's descriptors, and takes everything else away.
    fn confine_file_worker(
        &self,
        work: &FileWork,
        content: Option<&OwnedFd>,
    ) -> Result<(Sealed, Option<OwnedFd>), Error> {
        let content = content.map(|c| keep(c.as_fd())).transpose()?;
        sys::close_below(3, KEPT_FDS).context("close init's descriptors")?;
        // A file over RLIMIT_FSIZE is then an error to tell (EFBIG), not a death without a word.
        sys::ignore_signal(libc::SIGXFSZ, true);
        let dropped = self.root().drop_identity(&self.limits())?;
        let content = match work {
            FileWork::Watch { .. } | FileWork::Journal(_) => {
                Some(filework::watch_instance().context(WATCH)?)
            }
            _ => content,
        };
        Ok((dropped.seal(self.filters())?, content))
    }

    fn root(&self) -> Root {
        Root::in_forked_child()
    }

    fn limits(&self) -> Limits<'_> {
        Limits {
            rlimits: &self.spec.rlimits,
            oom_score_adj: self.spec.oom_score_adj,
        }
    }

    fn filters(&self) -> Option<&Filters> {
        (!self.spec.ablation.no_seccomp).then_some(self.filters)
    }
}

/// A copy of a descriptor that stays when those of init are closed.
fn keep(fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    rustix::io::fcntl_dupfd_cloexec(fd, KEPT_FDS).context("keep a descriptor")
}

fn listen(reply: BorrowedFd<'_>) -> Result<(), Error> {
    let listening = listener::listen()?;
    channel::send_json(reply, &Reply::Ok {}, &[listening.as_fd()]).context("answer")
}

/// Standard streams of a command.
enum Streams {
    Given([OwnedFd; 3]),
    /// To be opened inside.
    Terminal(WindowSize),
}

/// Whether the other end of a socket is closed.
fn is_left(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let polled_now = poll(&mut polled, Some(&Timespec::default()));
    polled_now.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

fn place_streams(streams: [BorrowedFd<'_>; 3]) -> Result<(), Error> {
    for (target, stream) in streams.into_iter().enumerate() {
        sys::place_fd(stream, target as i32).context("place a stream")?;
    }
    Ok(())
}

/// The word of [`Reply::Failed`] when the sandbox has as many processes as it may.
pub const NO_PROCESS: &str = "no_process";
/// The word when a command's working directory cannot be entered.
pub const BAD_CWD: &str = "bad_cwd";
/// The word when the sandbox has as many terminals as it may.
pub const NO_TERMINAL: &str = "no_terminal";
/// The word when the host has no room for one more watch.
pub const NO_WATCH: &str = "no_watch";
/// The step of it.
const WATCH: &str = "make an inotify instance";
/// The word when user code has the port that is to be listened on.
pub const PORT_IN_USE: &str = "port_in_use";

fn refuse(reply: BorrowedFd<'_>, error: &Error) {
    let code = match error {
        Error::Step { step, source } if step == dial::CONNECT => dial::word(source),
        Error::Step { source, .. } if source.raw_os_error() == Some(libc::EAGAIN) => NO_PROCESS,
        Error::Step { step, .. } if step == WATCH => NO_WATCH,
        Error::Step { step, .. } if step.starts_with("enter ") => BAD_CWD,
        Error::Step { step, .. } if step == terminal::OPEN => NO_TERMINAL,
        Error::Step { source, .. } if source.raw_os_error() == Some(libc::EADDRINUSE) => {
            PORT_IN_USE
        }
        _ => "not_started",
    };
    let failed = Reply::Failed {
        code: code.into(),
        detail: error.to_string(),
    };
    let _ = channel::send_json(reply, &failed, &[]);
}

fn c_strings(strings: impl Iterator<Item = String>) -> Result<Vec<CString>, Error> {
    strings
        .map(|s| CString::new(s).map_err(|_| Error::Refused("a NUL byte in an argument".into())))
        .collect()
}
