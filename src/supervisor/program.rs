//! Programs of the user: started by init in a cgroup of their own, so that their whole tree can be
//! killed, and watched by a task until they end. Commands and background processes are both these.
//!
//! ```text
//! start ─ init forks into the leaf ─► begun ─► watch: output → Log, one task a program
//!                                                 ├─ it exits ──────────┐
//!                                                 ├─ its time is over: kill the leaf
//!                                                 └─ init dies          ▼
//!                                                            what is left in its pipes → Log, end
//! ```
//!
//! A program has ended when its first process has. A daemon that it left goes on without readers of
//! its output, in a leaf that is removed once it is empty.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::error::{Error, ErrorKind};
use super::log::{Log, Share};
use super::sandbox::Sandbox;
use super::types::{ProcessEnd, Stream, WindowSize};
use crate::isolation::channel::Channel;
use crate::isolation::init::{BAD_CWD, NO_PROCESS, NO_TERMINAL};
use crate::isolation::spec::{Apart, Command, Reply};
use crate::isolation::{self, Context, sys, terminal};
use crate::kernel::output::{PIPE_BYTES, PIPE_MOST_BYTES, read_now};

/// Longest that init and its child take until the program is executed, on a sandbox with little CPU.
const START_TIME: Duration = Duration::from_secs(30);
/// Longest that a killed program is waited for.
const DEATH_TIME: Duration = Duration::from_millis(500);
/// Longest that the end of a program waits for readers of what is left in its pipes.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Between two looks at a terminal that no process has open.
const TERMINAL_PAUSE: Duration = Duration::from_millis(100);
/// What a terminal takes for the end of its input (VEOF).
const END_OF_INPUT: &[u8] = b"\x04";

/// What is started.
pub(super) struct Program {
    /// Absolute path and arguments.
    pub(super) argv: Vec<String>,
    /// Relative to the home directory, or absolute.
    pub(super) cwd: Option<String>,
    /// Beside the sandbox's own.
    pub(super) env: BTreeMap<String, String>,
    pub(super) input: Input,
    /// A program of ours, apart from user code: the environment is this one alone.
    pub(super) apart: Option<Apart>,
    /// When its tree is killed.
    pub(super) deadline: Option<Instant>,
    /// Output that is kept.
    pub(super) log_bytes: usize,
}

/// Where standard input comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input {
    /// At its end from the start.
    Empty,
    /// A pipe that is written to here.
    Pipe,
    /// A terminal, which is output too.
    Terminal(WindowSize),
}

type Fd = Arc<AsyncFd<OwnedFd>>;

/// A program that was started.
#[derive(Debug)]
pub(super) struct Process {
    /// Its id inside.
    pub(super) pid: i32,
    pub(super) started_at: SystemTime,
    pub(super) log: Arc<Log>,
    leaf: String,
    /// `None` once closed.
    stdin: Mutex<Option<Fd>>,
    /// Held by the one that writes, so that what two write does not mix.
    writing: tokio::sync::Mutex<()>,
    /// Until the end, where it has one.
    terminal: Mutex<Option<(Fd, WindowSize)>>,
}

/// Kills a program unless it was handed on: whoever wanted it has gone, or its start has failed.
struct Unclaimed<'a> {
    sandbox: &'a Sandbox,
    leaf: Option<String>,
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        if let Some(leaf) = self.leaf.take() {
            let _ = self.sandbox.cgroup.kill_leaf(&leaf);
            self.sandbox.leave_leaf(leaf);
        }
    }
}

/// Starts a program; returns when it is being executed.
///
/// # Errors
/// `Invalid` for a directory that cannot be entered; `Busy` without a process or a terminal left;
/// `Conflict` while the sandbox closes.
pub(super) async fn start(sandbox: &Arc<Sandbox>, program: Program) -> Result<Arc<Process>, Error> {
    Ok(begin(sandbox, program).await?.0)
}

/// Starts a program of ours apart from user code; with it comes the listening socket of its network.
///
/// # Errors
/// As [`start`].
pub(super) async fn start_apart(
    sandbox: &Arc<Sandbox>,
    program: Program,
) -> Result<(Arc<Process>, OwnedFd), Error> {
    let (process, listening) = begin(sandbox, program).await?;
    let listening = listening.ok_or_else(|| not_started(sandbox, &"no socket came"))?;
    Ok((process, listening))
}

async fn begin(
    sandbox: &Arc<Sandbox>,
    program: Program,
) -> Result<(Arc<Process>, Option<OwnedFd>), Error> {
    let number = sandbox.next_command.fetch_add(1, Ordering::Relaxed);
    let leaf = format!("command-{number}");
    let mut unclaimed = Unclaimed {
        sandbox,
        leaf: Some(leaf.clone()),
    };
    let began = Instant::now();
    sandbox.freshen_view();
    let oom_kills = sandbox.cgroup.oom_kills();
    let (input, deadline, log_bytes) = (program.input, program.deadline, program.log_bytes);
    let asked = timeout(START_TIME, ask(sandbox, &leaf, program)).await;
    let (reply, streams, pid, passed) = asked
        .unwrap_or_else(|_| Err(isolation::Error::Refused("it does not begin".into()).into()))
        .map_err(|failure| refusal(sandbox, failure))?;
    let window = match input {
        Input::Terminal(size) => Some(size),
        Input::Empty | Input::Pipe => None,
    };
    let process = Arc::new(Process {
        pid,
        started_at: SystemTime::now(),
        log: Log::new(log_bytes),
        leaf,
        terminal: Mutex::new(streams.input.clone().zip(window)),
        stdin: Mutex::new(streams.input),
        writing: tokio::sync::Mutex::default(),
    });
    unclaimed.leaf = None;
    tokio::spawn(watch(Watch {
        sandbox: Arc::clone(sandbox),
        process: Arc::clone(&process),
        reply,
        deadline,
        began,
        oom_kills,
        outputs: streams.outputs,
    }));
    Ok((process, passed))
}

/// Why nothing was started.
enum Failure {
    /// The child's word and sentence.
    Told(String, String),
    Step(isolation::Error),
}

impl From<isolation::Error> for Failure {
    fn from(error: isolation::Error) -> Self {
        Self::Step(error)
    }
}

fn refusal(sandbox: &Sandbox, failure: Failure) -> Error {
    if let Err(closing) = sandbox.refuse_closing() {
        return closing;
    }
    match failure {
        Failure::Told(code, _) if code == NO_PROCESS => Error::too_many_processes(),
        Failure::Told(code, _) if code == NO_TERMINAL => Error::too_many_terminals(),
        Failure::Told(code, detail) if code == BAD_CWD => Error::invalid("cwd", detail),
        Failure::Told(_, detail) => not_started(sandbox, &detail),
        Failure::Step(error) => not_started(sandbox, &error),
    }
}

fn not_started(sandbox: &Sandbox, reason: &dyn std::fmt::Display) -> Error {
    tracing::error!(sandbox = sandbox.id(), "no command: {reason}");
    Error::new(
        ErrorKind::Internal,
        "command_failed",
        "the command could not be started",
    )
}

/// Our ends of a program's streams.
struct Streams {
    input: Option<Fd>,
    outputs: [Option<(Stream, Fd)>; 2],
}

/// Has init start the program and waits for word of it.
async fn ask(
    sandbox: &Sandbox,
    leaf: &str,
    program: Program,
) -> Result<(Channel, Streams, i32, Option<OwnedFd>), Failure> {
    let mut env = BTreeMap::new();
    if program.apart.is_none() {
        env = crate::kernel::base_env();
        env.extend(sandbox.env());
    }
    let terminal = match program.input {
        Input::Terminal(size) => {
            env.insert("TERM".into(), "xterm-256color".into());
            Some(size)
        }
        Input::Empty | Input::Pipe => None,
    };
    env.extend(program.env);
    let command = Command {
        argv: program.argv,
        env,
        cwd: program.cwd,
        terminal,
        apart: program.apart,
    };
    let cgroup = sandbox.cgroup.leaf_dir(leaf)?;
    if terminal.is_some() {
        let reply = sandbox.init.command(command, cgroup.as_fd(), &[]).await?;
        let (pid, controller) = begun(&reply).await?;
        let controller = controller
            .filter(|fd| terminal::is_controller(fd.as_fd()))
            .ok_or_else(|| isolation::Error::Refused("no terminal came".into()))?;
        let controller = watched(controller)?;
        let streams = Streams {
            input: Some(Arc::clone(&controller)),
            outputs: [Some((Stream::Pty, controller)), None],
        };
        return Ok((reply, streams, pid, None));
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC).context("make a pipe");
    let [(stdin, input), (stdout, out), (stderr, err)] = [pipe()?, pipe()?, pipe()?];
    let input = match program.input {
        Input::Pipe => Some(watched(input)?),
        Input::Empty | Input::Terminal(_) => {
            drop(input);
            None
        }
    };
    let theirs = [stdin.as_fd(), out.as_fd(), err.as_fd()];
    let reply = sandbox
        .init
        .command(command, cgroup.as_fd(), &theirs)
        .await?;
    let streams = Streams {
        input,
        outputs: [
            Some((Stream::Stdout, watched(stdout)?)),
            Some((Stream::Stderr, watched(stderr)?)),
        ],
    };
    let (pid, passed) = begun(&reply).await?;
    Ok((reply, streams, pid, passed))
}

fn watched(fd: OwnedFd) -> Result<Fd, isolation::Error> {
    rustix::io::ioctl_fionbio(&fd, true).context("make a stream non-blocking")?;
    Ok(Arc::new(sys::watch(fd).context("watch a stream")?))
}

/// The program's id inside and what came with it.
async fn begun(reply: &Channel) -> Result<(i32, Option<OwnedFd>), Failure> {
    let packet = reply.receive().await.context("hear of a start")?;
    let packet = packet.ok_or_else(|| isolation::Error::Refused("init died".into()))?;
    match packet.decode().context("read of a start")? {
        Reply::Begun { pid } => Ok((pid, packet.fds.into_iter().next())),
        Reply::Failed { code, detail } => Err(Failure::Told(code, detail)),
        other => Err(isolation::Error::Refused(format!("a start said {other:?}")).into()),
    }
}

struct Watch {
    sandbox: Arc<Sandbox>,
    process: Arc<Process>,
    reply: Channel,
    deadline: Option<Instant>,
    began: Instant,
    oom_kills: u64,
    outputs: [Option<(Stream, Fd)>; 2],
}

/// A program's whole life after its start.
async fn watch(mut watch: Watch) {
    let (sandbox, process) = (Arc::clone(&watch.sandbox), Arc::clone(&watch.process));
    let ((code, signal), timed_out) = watch.until_exit().await;
    let [out, err] = &watch.outputs;
    tokio::join!(drain(&process.log, out), drain(&process.log, err));
    // Descriptors go now; the log may be kept for long.
    process.stdin.lock().expect("not poisoned").take();
    process.terminal.lock().expect("not poisoned").take();
    sandbox.leave_leaf(process.leaf.clone());
    process.log.end(ProcessEnd {
        code,
        signal,
        timed_out,
        out_of_memory: sandbox.cgroup.oom_kills() > watch.oom_kills,
        ended_at: SystemTime::now(),
        wall: watch.began.elapsed(),
    });
}

/// Exit code or signal.
type Exit = (Option<i32>, Option<i32>);
const KILLED: Exit = (None, Some(libc::SIGKILL));

impl Watch {
    /// How it exited, and whether because its time was over.
    async fn until_exit(&mut self) -> (Exit, bool) {
        let log = &self.process.log;
        let [out, err] = &mut self.outputs;
        loop {
            tokio::select! {
                biased;
                () = at(self.deadline) => {
                    self.process.kill(&self.sandbox);
                    let exit = timeout(DEATH_TIME, exited(&self.reply)).await;
                    return (exit.unwrap_or(KILLED), true);
                }
                exit = exited(&self.reply) => return (exit, false),
                open = copy(log, out), if out.is_some() => if !open { *out = None },
                open = copy(log, err), if err.is_some() => if !open { *err = None },
            }
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Waits for init's word that the program has exited; without init nothing is left of it.
async fn exited(reply: &Channel) -> Exit {
    loop {
        let Ok(Some(packet)) = reply.receive().await else {
            return KILLED;
        };
        match packet.decode() {
            Ok(Reply::Exited { code, signal }) => return (code, signal),
            // Of a child that could not execute its program; that it has exited follows.
            Ok(Reply::Failed { detail, .. }) => tracing::warn!("a program did not start: {detail}"),
            _ => return KILLED,
        }
    }
}

/// Copies once from a program, when there is room; false at the end of the stream.
async fn copy(log: &Log, output: &Option<(Stream, Fd)>) -> bool {
    let Some((stream, fd)) = output else {
        return false;
    };
    log.room(Share::Half).await;
    let mut bytes = vec![0; log.read_bytes(PIPE_BYTES)];
    loop {
        let Ok(mut ready) = fd.readable().await else {
            return false;
        };
        match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut bytes)?)) {
            // Nobody has the terminal open now (EIO). Somebody may open it again.
            Ok(Ok(0) | Err(_)) if *stream == Stream::Pty => sleep(TERMINAL_PAUSE).await,
            Ok(Ok(0) | Err(_)) => return false,
            Ok(Ok(read)) => {
                log.push(*stream, &bytes[..read]);
                return true;
            }
            Err(_would_block) => {}
        }
    }
}

/// Copies what is left in a stream. A daemon that the program left may go on writing.
async fn drain(log: &Log, output: &Option<(Stream, Fd)>) {
    let Some((stream, fd)) = output else { return };
    let deadline = Instant::now() + DRAIN_TIME;
    let mut left = PIPE_MOST_BYTES;
    while left > 0 {
        let bytes = read_now(fd.get_ref());
        if bytes.is_empty() {
            return;
        }
        left = left.saturating_sub(bytes.len());
        for bytes in bytes.chunks(log.read_bytes(PIPE_BYTES)) {
            let room = log.room(Share::Read(bytes.len()));
            let _ = tokio::time::timeout_at(deadline, room).await;
            log.push(*stream, bytes);
        }
    }
}

impl Process {
    /// Kills its tree, daemons that it left included.
    pub(super) fn kill(&self, sandbox: &Sandbox) {
        let _ = sandbox.cgroup.kill_leaf(&self.leaf);
    }

    /// The size of its terminal, where it has one.
    pub(super) fn window(&self) -> Option<WindowSize> {
        let terminal = self.terminal.lock().expect("not poisoned");
        terminal.as_ref().map(|(_, size)| *size)
    }

    /// Does something with its terminal; `None` without one.
    pub(super) fn with_terminal<T>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>, &mut WindowSize) -> T,
    ) -> Option<T> {
        let mut terminal = self.terminal.lock().expect("not poisoned");
        let (fd, size) = terminal.as_mut()?;
        Some(act(fd.get_ref().as_fd(), size))
    }

    /// Writes to its standard input or terminal within `longest`.
    ///
    /// # Errors
    /// `Conflict` when it has ended or its input is closed on either side; `Busy` when it does not
    /// read, with the number of bytes that it has taken in the text.
    pub(super) async fn write(&self, bytes: &[u8], longest: Duration) -> Result<(), Error> {
        let written = AtomicUsize::new(0);
        let write = async {
            let _turn = self.writing.lock().await;
            let stdin = self.stdin.lock().expect("not poisoned").clone();
            let stdin = stdin.ok_or_else(stdin_closed)?;
            write_all(&stdin, bytes, &written).await
        };
        tokio::select! {
            biased;
            _ = self.log.wait_end() => Err(process_ended()),
            done = timeout(longest, write) => done.unwrap_or_else(|_| {
                let taken = written.load(Ordering::Relaxed);
                Err(Error::stdin_full(taken, bytes.len(), longest))
            }),
        }
    }

    /// Closes its standard input; on a terminal, where there is nothing to close, types Ctrl-D.
    ///
    /// # Errors
    /// As [`Process::write`].
    pub(super) async fn close_stdin(&self, longest: Duration) -> Result<(), Error> {
        if self.window().is_some() {
            return self.write(END_OF_INPUT, longest).await;
        }
        let turn = timeout(longest, self.writing.lock()).await;
        let _turn = turn.map_err(|_| Error::stdin_full(0, 0, longest))?;
        if self.log.ended().is_some() {
            return Err(process_ended());
        }
        let closed = self.stdin.lock().expect("not poisoned").take();
        closed.map(drop).ok_or_else(stdin_closed)
    }
}

async fn write_all(fd: &Fd, bytes: &[u8], written: &AtomicUsize) -> Result<(), Error> {
    let mut left = bytes;
    while !left.is_empty() {
        let mut ready = fd.writable().await.map_err(|_| stdin_closed())?;
        match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), left)?)) {
            Ok(Ok(count)) => {
                left = &left[count..];
                written.fetch_add(count, Ordering::Relaxed);
            }
            Ok(Err(_)) => return Err(stdin_closed()),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Nothing can be sent to it any more.
pub(super) fn process_ended() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "process_ended",
        "the process has ended",
    )
}

fn stdin_closed() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "stdin_closed",
        "standard input of the process is closed: by a request to, or because nothing inside reads it",
    )
}
