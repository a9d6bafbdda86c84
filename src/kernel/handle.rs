//! A kernel's handle: its process, its socket and its two pipes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as UnixSocket;
use std::time::Duration;

use bytes::BytesMut;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe::Receiver as PipeReader;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::frame;
use super::framing::{Frames, LEFT_BYTES, LEFT_FRAMES};
use super::protocol::{FromKernel, ToKernel};
use super::transfer::{Meter, Transfer};
use super::zygote::{Exit, ForkSpec, Zygote};
use crate::isolation::cgroup::{Members, SandboxCgroup};
use crate::isolation::host::{Init, Process};
use crate::isolation::posture::{self, Required};
use crate::isolation::{Context, Error};

/// Why there is no checkpoint, where nothing is known.
const NO_CHECKPOINT: &str = "the kernel had no checkpoint of its last state";
/// Longest answer to something else than an execution.
const ANSWER_BYTES: usize = 256 * 1024;
/// Longest between fork and ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest between the end of an execution and its checkpoint, where that follows at once.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest that the zygote may take to tell how a kernel ended.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

/// A kernel that is ready or runs an execution.
#[derive(Debug)]
pub struct Kernel {
    /// Leaf of the sandbox's cgroup that holds the kernel and all that it starts.
    leaf: String,
    pub(super) process: Process,
    /// Of the process, once it has executed something.
    meter: Option<Meter>,
    /// Of the leaf, likewise.
    members: Option<Members>,
    pub(super) frames: Frames,
    pub(super) stdout: PipeReader,
    pub(super) stderr: PipeReader,
    exit: Option<oneshot::Receiver<Exit>>,
    /// Its last checkpoint's process id inside, or why there is none, for people.
    pub(super) checkpoint: Result<i32, String>,
    /// It has executed something since that checkpoint.
    outdated: bool,
    /// IPython's counter in its next execution.
    pub(super) next_count: u64,
    /// Whether it has executed nothing yet: a new one is as good.
    pub(super) fresh: bool,
    /// Whether it is a copy of another that has not come to the end of an execution yet.
    pub(super) unproven: bool,
    /// How many such copies have died one after the other.
    pub(super) deaths: u32,
}

/// What a kernel must be found in.
#[derive(Debug)]
pub struct Place<'a> {
    /// Of the sandbox.
    pub cgroup: &'a SandboxCgroup,
    /// Whose namespaces it must be in.
    pub init: &'a Init,
    /// Host uid and gid of its user.
    pub host_id: u32,
    /// Filters that must be in force.
    pub filters: usize,
}

impl Place<'_> {
    /// Checks from outside that a process is locked down in its sandbox.
    pub(super) fn check(&self, pid: i32) -> Result<(), Error> {
        let required = Required {
            host_id: self.host_id,
            namespaces: self.init.namespaces(),
            filters: self.filters,
        };
        posture::check(pid, &required)
    }
}

/// Our ends of a kernel's socket and pipes.
#[derive(Debug)]
pub(super) struct Lines {
    socket: UnixSocket,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Lines {
    /// Ours, and the kernel's: its socket, its stdout, its stderr.
    pub(super) fn new() -> Result<(Self, [OwnedFd; 3]), Error> {
        let (socket, theirs) = UnixSocket::pair().context("make a socket pair")?;
        let (stdout, stdout_write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        let (stderr, stderr_write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        let ours = Self {
            socket,
            stdout,
            stderr,
        };
        Ok((ours, [theirs.into(), stdout_write, stderr_write]))
    }
}

/// A kernel that is forked but waits to join its sandbox. Dropped, it ends.
#[derive(Debug)]
pub struct Forked {
    leaf: String,
    process: Process,
    lines: Lines,
    exit: oneshot::Receiver<Exit>,
}

impl Forked {
    /// Forks a kernel for the sandbox whose init is `init`, which may still be setting it up. It will
    /// live in `leaf` of the sandbox's cgroup.
    pub async fn start(
        zygote: &Zygote,
        init: BorrowedFd<'_>,
        cgroup: &SandboxCgroup,
        leaf: &str,
        spec: &ForkSpec,
    ) -> Result<Self, Error> {
        let (lines, theirs) = Lines::new()?;
        let joins = cgroup.procs(leaf)?;
        let theirs = theirs.each_ref().map(AsFd::as_fd);
        let (process, exit) = zygote.fork(spec, init, theirs, &joins).await?;
        Ok(Self {
            leaf: leaf.to_owned(),
            process,
            lines,
            exit,
        })
    }

    /// Lets it join its sandbox, which must be set up, and checks from outside that it is locked down.
    ///
    /// # Errors
    /// Whatever step failed; no process is left then.
    pub async fn join(self, place: &Place<'_>) -> Result<Kernel, Error> {
        let mut socket = &self.lines.socket;
        socket.write_all(b"g").context("let the kernel join")?;
        let mut kernel = Kernel::new(self.leaf, self.process, self.lines, self.exit)?;
        let ready = kernel.await_ready().await;
        match ready.and_then(|()| place.check(kernel.process.pid())) {
            Ok(()) => Ok(kernel),
            Err(e) => {
                kernel.process.kill();
                Err(e)
            }
        }
    }
}

impl Kernel {
    /// One that has executed nothing.
    pub(super) fn new(
        leaf: String,
        process: Process,
        lines: Lines,
        exit: oneshot::Receiver<Exit>,
    ) -> Result<Self, Error> {
        Ok(Self {
            leaf,
            process,
            meter: None,
            members: None,
            frames: Frames::new(lines.socket)?,
            stdout: reader(lines.stdout)?,
            stderr: reader(lines.stderr)?,
            exit: Some(exit),
            checkpoint: Err(NO_CHECKPOINT.into()),
            outdated: false,
            next_count: 1,
            fresh: true,
            unproven: false,
            deaths: 0,
        })
    }

    /// Leaf of the sandbox's cgroup in which it and all that it starts are.
    pub fn leaf(&self) -> &str {
        &self.leaf
    }

    /// An answer to something else than an execution.
    pub(super) async fn answer(&mut self) -> Result<Option<FromKernel>, Error> {
        let answer = timeout(READY_TIMEOUT, self.frames.next())
            .await
            .map_err(|_| Error::Refused("the kernel does not get ready".into()))?
            .context("hear from the kernel")?;
        match &answer {
            Some(body) if body.len() > ANSWER_BYTES => {
                Err(Error::Refused("the kernel answers at length".into()))
            }
            Some(body) => frame::parse(body, 0).context("read the kernel's answer"),
            None => Ok(None),
        }
    }

    async fn await_ready(&mut self) -> Result<(), Error> {
        match self.answer().await? {
            Some(FromKernel::Ready) => Ok(()),
            Some(FromKernel::Failed { step, error }) => Err(Error::Refused(format!(
                "the kernel failed to {step}: {error}"
            ))),
            Some(other) => Err(Error::Refused(format!("the kernel said {other:?}"))),
            None => Err(Error::Refused("the kernel died in its set-up".into())),
        }
    }

    /// Has it run something that nobody sees; see [`ToKernel::Rehearse`].
    pub async fn rehearse(&mut self) -> io::Result<()> {
        self.frames.send(&ToKernel::Rehearse).await
    }

    /// Sets variables for the kernel's life, before any code has run. Gives those that only programs which
    /// the kernel starts can follow.
    pub async fn set_env(&mut self, env: &BTreeMap<String, String>) -> Result<Vec<String>, Error> {
        let sent = self.frames.send(&ToKernel::Env { env }).await;
        sent.context("tell the kernel its variables")?;
        loop {
            match self.answer().await? {
                Some(FromKernel::EnvSet { mut not_applied }) => {
                    not_applied.retain(|name| env.contains_key(name));
                    return Ok(not_applied);
                }
                // Of its rehearsal.
                Some(FromKernel::Checkpoint { .. }) => {}
                Some(other) => {
                    return Err(Error::Refused(format!("the kernel said {other:?}")));
                }
                None => return Err(Error::Refused("the kernel died".into())),
            }
        }
    }

    /// Kills it and whatever it started, its checkpoint too, and waits until its process is gone.
    pub async fn end(&self, cgroup: &SandboxCgroup) {
        if let Err(e) = cgroup.kill_leaf(&self.leaf) {
            tracing::debug!("the kernel's cgroup is gone: {e}");
        }
        // Wherever it is: what is not killed is waited for without end.
        self.process.kill();
        self.process.exited().await;
    }

    /// Moves the kernel, but nothing that it has started, into another leaf.
    pub fn move_into(&mut self, cgroup: &SandboxCgroup, leaf: &str) -> Result<(), Error> {
        cgroup.move_into(leaf, self.process.pid())?;
        leaf.clone_into(&mut self.leaf);
        self.members = None;
        Ok(())
    }

    /// Whether its process is gone.
    pub fn has_ended(&self) -> bool {
        self.process.has_exited()
    }

    /// What its process has read and written so far; `None` where it is gone or nobody counts.
    pub(super) fn transfer(&mut self) -> Option<Transfer> {
        if self.meter.is_none() {
            self.meter = Meter::of(&self.process);
        }
        self.meter.as_ref()?.read()
    }

    /// Host ids of all processes in its leaf, as far as they can be listed.
    pub(super) fn members(&mut self, cgroup: &SandboxCgroup) -> Vec<i32> {
        if self.members.is_none() {
            self.members = cgroup.members(&self.leaf).ok();
        }
        let members = self.members.as_ref().and_then(|members| members.now().ok());
        members.unwrap_or_default()
    }

    /// Notes that an execution has ended: a checkpoint of before is none of what is now.
    pub(super) fn outdate_checkpoint(&mut self) {
        self.fresh = false;
        self.outdated = true;
    }

    /// The checkpoint of its last state, as [`Kernel::checkpoint`].
    pub(super) fn last_checkpoint(&self) -> Result<i32, String> {
        match &self.checkpoint {
            Ok(_) if self.outdated => Err(NO_CHECKPOINT.into()),
            known => known.clone(),
        }
    }

    /// Notes what it told about its checkpoint.
    pub(super) fn note_checkpoint(&mut self, pid: Option<i32>, objection: Option<String>) {
        self.checkpoint = pid.ok_or_else(|| objection.unwrap_or_else(|| NO_CHECKPOINT.into()));
        self.outdated = false;
    }

    /// The next frame that is there already, of the `left` bytes that are read at most.
    pub(super) fn frame_left(&mut self, left: &mut usize) -> Option<BytesMut> {
        self.frames.next_now(left).ok().flatten()
    }

    /// Notes what it told about its checkpoint after its last execution, and drops what else it said.
    pub(super) fn read_checkpoints(&mut self) {
        let mut left = LEFT_BYTES;
        for _ in 0..LEFT_FRAMES {
            let Some(body) = self.frame_left(&mut left) else {
                return;
            };
            if let Ok(Some(FromKernel::Checkpoint { pid, objection })) = frame::parse(&body, 0) {
                self.note_checkpoint(pid, objection);
            }
        }
    }

    /// Waits until it has told of the checkpoint that it was about to make.
    pub(super) async fn await_checkpoint(&mut self) {
        let told = async {
            while let Ok(Some(body)) = self.frames.next().await {
                if body.len() <= ANSWER_BYTES
                    && let Ok(Some(FromKernel::Checkpoint { pid, objection })) =
                        frame::parse(&body, 0)
                {
                    return self.note_checkpoint(pid, objection);
                }
            }
        };
        // One that does not tell is its own loss: it may be killed with what the code has started.
        let _ = timeout(CHECKPOINT_TIMEOUT, told).await;
    }

    /// Its checkpoint has become the kernel.
    pub(super) fn replace(&mut self, process: Process, exit: oneshot::Receiver<Exit>) {
        self.process = process;
        self.meter = None;
        self.exit = Some(exit);
        self.checkpoint = Err(NO_CHECKPOINT.into());
        self.unproven = true;
        self.deaths += 1;
    }

    /// Has a kernel that has run nothing yet change its directory; see [`ToKernel::Enter`]. Gives why
    /// it could not, in which case it stays where it is.
    ///
    /// # Errors
    /// The kernel cannot be spoken with.
    pub async fn enter(&mut self, cwd: &str) -> Result<Option<String>, Error> {
        let sent = self.frames.send(&ToKernel::Enter { cwd }).await;
        sent.context("tell the kernel its directory")?;
        match self.answer().await? {
            Some(FromKernel::Ready) => Ok(None),
            Some(FromKernel::Failed { error, .. }) => Ok(Some(error)),
            _ => Err(Error::Refused(
                "the kernel did not enter its directory".into(),
            )),
        }
    }

    /// How it ended; waits a moment for whoever reaps it. A branch's parent does so late, if at all.
    pub async fn exit(&mut self) -> Exit {
        self.process.exited().await;
        if let Some(status) = self.process.unreaped_status() {
            return Exit::of_status(status);
        }
        match self.exit.take() {
            Some(exit) => match timeout(REAP_TIMEOUT, exit).await {
                Ok(Ok(exit)) => exit,
                _ => Exit::default(),
            },
            None => Exit::default(),
        }
    }
}

fn reader(pipe: OwnedFd) -> Result<PipeReader, Error> {
    PipeReader::from_owned_fd(pipe).context("watch a pipe")
}
