//! What goes into and comes out of the supervisor's verbs. Protocol-neutral: REST, MCP and the
//! command line encode these, and nothing here knows of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tokio::net::unix::pipe::Sender as PipeWriter;
use tokio::sync::mpsc;

pub use crate::config::OnDisconnect;
use crate::isolation::channel::Channel;
pub use crate::isolation::spec::WindowSize;
pub use crate::kernel::protocol::{Change, FileChange, Restore, ResultKind};
pub use crate::kernel::transfer::Transfer;
pub use crate::mirror::Package;
use crate::network::{Policy, Stats};

/// What a new sandbox should be; `None` takes the configured default.
#[derive(Debug, Clone, Default)]
pub struct CreateSpec {
    /// Free text for people, at most 128 characters; default is made from the id.
    pub name: Option<String>,
    /// Bytes of memory, swap off.
    pub memory_bytes: Option<u64>,
    /// Processors, a fraction is fine.
    pub cpus: Option<f64>,
    /// Bytes that files may take.
    pub disk_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Seconds until it is closed, whatever it does.
    pub lease_seconds: Option<u64>,
    /// Seconds without a request until it is closed.
    pub idle_seconds: Option<u64>,
    /// Variables of every execution and command.
    pub env: BTreeMap<String, String>,
    /// What it may reach; default is the service's.
    pub network: Option<Policy>,
    /// Id or name of a mirror; default is the base.
    pub mirror: Option<String>,
}

/// What a new mirror should be.
#[derive(Debug, Clone, Default)]
pub struct MirrorSpec {
    /// Letters, digits, `.`, `_` and `-`, up to 64; default is made from the id.
    pub name: Option<String>,
    /// Only the base, which is also the default.
    pub base: Option<String>,
    /// Requirements, as an install takes them, but no files.
    pub packages: Vec<String>,
    /// Modules that are imported ahead, beside the base's.
    pub preload: Vec<String>,
    /// How long the answer may wait.
    pub wait: Duration,
}

/// A mirror as clients see it.
#[derive(Debug, Clone)]
pub struct MirrorInfo {
    /// 32 hexadecimal digits.
    pub id: String,
    /// Unique.
    pub name: String,
    /// Id of the mirror that it is a layer over; `None` for the base.
    pub base: Option<String>,
    /// Requirements, as they were asked for.
    pub requested: Vec<String>,
    /// What came of them.
    pub packages: Vec<Package>,
    /// Modules that are imported ahead.
    pub preload: Vec<String>,
    /// How it stands.
    pub status: MirrorStatus,
    /// Why it failed.
    pub detail: Option<String>,
    /// What its files are: the start of a SHA-256.
    pub content: Option<String>,
    /// Bytes of its own files, where they were counted.
    pub size_bytes: Option<u64>,
    /// When it was complete; before, when it was begun.
    pub created_at: SystemTime,
}

/// How a mirror stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorStatus {
    /// It is being made.
    Building,
    /// Sandboxes can be created from it.
    Ready,
    /// It could not be made.
    Failed,
}

impl MirrorStatus {
    /// `building`, `ready` or `failed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}

/// A sandbox as clients see it.
#[derive(Debug, Clone)]
pub struct SandboxInfo {
    /// 26 characters, `a`–`z` and `0`–`9`.
    pub id: String,
    /// Free text.
    pub name: String,
    /// When it was created (claimed).
    pub created_at: SystemTime,
    /// When its lease ends.
    pub expires_at: SystemTime,
    /// Last request for it.
    pub last_used_at: SystemTime,
    /// What it is doing.
    pub state: SandboxState,
}

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Waiting for work.
    Idle,
    /// An execution runs.
    Busy,
    /// Being destroyed.
    Closing,
}

impl SandboxState {
    /// `idle`, `busy` or `closing`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Closing => "closing",
        }
    }
}

/// The context that every sandbox has from its creation to its end.
pub const DEFAULT_CONTEXT: &str = "default";

/// What a new context should be.
#[derive(Debug, Clone, Default)]
pub struct ContextSpec {
    /// Free text for people, at most 128 characters; default is made from the id.
    pub name: Option<String>,
    /// Where its kernel starts: absolute or relative to the home directory, which is the default.
    pub cwd: Option<String>,
    /// Variables of its executions, beside the sandbox's.
    pub env: BTreeMap<String, String>,
}

/// A context as clients see it.
#[derive(Debug, Clone)]
pub struct ContextInfo {
    /// [`DEFAULT_CONTEXT`] or 26 characters like a sandbox's id.
    pub id: String,
    /// Free text.
    pub name: String,
    /// Absolute directory in which its kernel starts.
    pub cwd: String,
    /// When it was created.
    pub created_at: SystemTime,
    /// What it is doing.
    pub state: SandboxState,
    /// IPython's counter at its last execution, 0 for a kernel that has run none.
    pub execution_count: u64,
}

/// A context that is to go on from where another is.
#[derive(Debug, Clone, Default)]
pub struct ForkSpec {
    /// Free text for people, at most 128 characters; default is made from the id.
    pub name: Option<String>,
    /// Go on from this checkpoint instead of from what the context holds now.
    pub checkpoint_id: Option<String>,
}

/// A context that has the variables of another or of a checkpoint.
#[derive(Debug, Clone)]
pub struct BranchInfo {
    /// The context.
    pub context: ContextInfo,
    /// What could not be carried, for people: threads, connections, tasks.
    pub missing: Vec<String>,
}

/// Variables that were kept, as clients see them.
#[derive(Debug, Clone)]
pub struct CheckpointInfo {
    /// 26 characters like a sandbox's id.
    pub id: String,
    /// Free text.
    pub name: String,
    /// Of the context that it was made of, which may be gone.
    pub context_id: String,
    /// When it was made.
    pub created_at: SystemTime,
    /// IPython's counter then.
    pub execution_count: u64,
    /// What could not be carried, for people: threads, connections, tasks.
    pub missing: Vec<String>,
}

/// Code to run.
#[derive(Debug, Clone, Default)]
pub struct ExecuteSpec {
    /// IPython source.
    pub code: String,
    /// Where; `None` is [`DEFAULT_CONTEXT`].
    pub context_id: Option<String>,
    /// Wall time; `None` takes the configured default.
    pub timeout: Option<Duration>,
    /// Variables for this execution only.
    pub env: BTreeMap<String, String>,
    /// Whether variables are to outlive a kernel that dies.
    pub restore: Restore,
    /// What `input()` and `sys.stdin` read; `None` is at its end from the start.
    pub stdin: Option<String>,
    /// When the [`Execution`] is dropped.
    pub on_disconnect: OnDisconnect,
    /// Bytes that are kept of stdout, and of stderr, where these are less than the configured limit.
    pub output_bytes: Option<usize>,
}

/// A running execution: events until [`Event::Ended`], which is always last.
/// Dropping it before that interrupts the code, or lets it go on unseen: [`ExecuteSpec::on_disconnect`].
#[derive(Debug)]
pub struct Execution {
    pub(crate) events: mpsc::Receiver<Event>,
}

impl Execution {
    /// The next event, `None` after `Ended`.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

/// What happens during an execution, in order.
#[derive(Debug, Clone)]
pub enum Event {
    /// The code has begun.
    Started {
        /// From 1.
        execution_count: u64,
    },
    /// Text of file descriptor 1; invalid UTF-8 is replaced.
    Stdout(String),
    /// Text of file descriptor 2.
    Stderr(String),
    /// A display or the last expression.
    Result(RichResult),
    /// `clear_output()`.
    ClearOutput {
        /// Only once new output comes.
        wait: bool,
    },
    /// The code raised.
    Error(PythonError),
    /// The end.
    Ended(Box<Ended>),
}

/// A MIME bundle.
#[derive(Debug, Clone)]
pub struct RichResult {
    /// What kind of display.
    pub kind: ResultKind,
    /// MIME type to data; binary data is base64.
    pub data: Map<String, Value>,
    /// IPython's metadata.
    pub metadata: Map<String, Value>,
    /// Of `display(..., display_id=...)`.
    pub display_id: Option<String>,
}

/// An exception of user code.
#[derive(Debug, Clone)]
pub struct PythonError {
    /// Class name.
    pub name: String,
    /// `str()` of it.
    pub value: String,
    /// Without colour codes.
    pub traceback: String,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// To its end.
    Ok,
    /// With an exception, `SystemExit` included.
    Error,
    /// The wall time was over.
    Timeout,
    /// Interrupted by request or because the client went away.
    Interrupted,
    /// The memory limit was hit and the kernel was killed.
    OutOfMemory,
    /// The kernel's process ended.
    KernelDied {
        /// Exit code, where it exited.
        code: Option<i32>,
        /// Signal number, where one ended it.
        signal: Option<i32>,
    },
}

/// What became of the variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelState {
    /// Variables are as the code left them.
    Kept,
    /// Variables are as they were before the execution; files are as the code left them.
    Restored {
        /// What a checkpoint could not carry, for people.
        missing: Vec<String>,
    },
    /// A fresh kernel takes the next execution; files are kept.
    Lost {
        /// Why, for people.
        reason: String,
    },
}

/// Last event of an execution.
#[derive(Debug, Clone)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// Variables kept or lost.
    pub state: KernelState,
    /// IPython's counter, 0 where the code never began.
    pub execution_count: u64,
    /// Changes in the working directory, by path.
    pub files: Vec<FileChange>,
    /// There were more changes than are listed.
    pub files_truncated: bool,
    /// Results beyond the limit were dropped.
    pub results_dropped: bool,
    /// There was no room for files.
    pub disk_full: bool,
    /// Processes that the code had started and that were killed when it was stopped.
    pub killed: usize,
    /// What it cost.
    pub usage: Usage,
    /// What was written to descriptor 1.
    pub stdout: Written,
    /// Likewise, descriptor 2.
    pub stderr: Written,
}

/// One output stream of an execution, at its end.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// All that was written.
    pub bytes: u64,
    /// Of them, what was left out between the first and the last part.
    pub left_out_bytes: u64,
    /// Where something was left out: the file that holds all of it, or why there is none, for people.
    pub saved: Option<Result<SavedFile, String>>,
}

/// A file that over-long output was saved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedFile {
    /// Relative to the working directory.
    pub path: String,
    /// From the first byte of the stream on.
    pub bytes: u64,
    /// False where the stream was too long even for the file.
    pub whole: bool,
}

/// Cost of an execution, from the cgroup.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Wall time.
    pub wall: Duration,
    /// CPU time, user.
    pub cpu_user: Duration,
    /// CPU time, system.
    pub cpu_system: Duration,
    /// Highest memory of the sandbox so far, bytes.
    pub peak_memory_bytes: u64,
    /// Processes and threads when it ended, checkpoints of kernels included.
    pub processes: u64,
    /// Bytes that the kernel and the processes it waited for read and wrote; `None` where the kernel
    /// died and where the host does not count. See [`crate::kernel::transfer`] for what counts.
    pub transfer: Option<Transfer>,
    /// Limits that were hit, and how often: `memory` (processes that were killed for it), `processes`
    /// (forks that were refused), `disk` (1), `output` (streams that were cut, and one for results that
    /// were dropped), `time` (1).
    pub limits_hit: Vec<(&'static str, u64)>,
}

/// A shell command.
#[derive(Debug, Clone, Default)]
pub struct CommandSpec {
    /// Given to `bash -lc`.
    pub command: String,
    /// Relative to the working directory or absolute; default is the working directory.
    pub cwd: Option<String>,
    /// Added to the sandbox's variables.
    pub env: BTreeMap<String, String>,
    /// Wall time; `None` takes the configured default.
    pub timeout: Option<Duration>,
    /// Bytes that are kept of stdout, and of stderr, where these are less than the configured limit.
    pub output_bytes: Option<usize>,
}

/// A command that ended, with its output.
#[derive(Debug, Clone)]
pub struct CommandOutcome {
    /// Invalid UTF-8 is replaced.
    pub stdout: String,
    /// Likewise.
    pub stderr: String,
    /// The rest.
    pub ended: CommandEnded,
}

/// What happens during a command, in order.
#[derive(Debug, Clone)]
pub enum CommandEvent {
    /// It has begun.
    Started {
        /// Its process id inside.
        pid: i32,
    },
    /// Text of its standard output; invalid UTF-8 is replaced.
    Stdout(String),
    /// Text of its standard error.
    Stderr(String),
    /// The end.
    Ended(CommandEnded),
}

/// Last event of a command.
#[derive(Debug, Clone)]
pub struct CommandEnded {
    /// As a shell tells it: 0 to 255, 128 + n for signal n, 124 when it timed out.
    pub exit_code: i32,
    /// The wall time was over and the command's processes were killed.
    pub timed_out: bool,
    /// The memory limit killed a process of the sandbox meanwhile.
    pub out_of_memory: bool,
    /// Bytes of stdout beyond the limit, dropped.
    pub stdout_dropped_bytes: u64,
    /// Bytes of stderr beyond the limit, dropped.
    pub stderr_dropped_bytes: u64,
    /// Wall time.
    pub wall: Duration,
}

/// A process to run in the background.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// Given to `bash -lc`. Without one, on a terminal only, the process is an interactive shell.
    pub command: Option<String>,
    /// Relative to the working directory or absolute; default is the working directory.
    pub cwd: Option<String>,
    /// Added to the sandbox's variables.
    pub env: BTreeMap<String, String>,
    /// Runs on a terminal of this size, 1 to 4096 each way.
    pub terminal: Option<WindowSize>,
    /// Wall time after which it is killed; `None` is as long as the sandbox lives.
    pub timeout: Option<Duration>,
}

/// A background process as clients see it.
#[derive(Debug, Clone)]
pub struct ProcessInfo {
    /// 26 characters like a sandbox's id.
    pub id: String,
    /// Its id inside.
    pub pid: i32,
    /// As it was asked for.
    pub command: Option<String>,
    /// As it was asked for.
    pub cwd: Option<String>,
    /// Size of its terminal while it runs on one.
    pub terminal: Option<WindowSize>,
    /// When it was started.
    pub started_at: SystemTime,
    /// Bytes that it has written so far, those too that are not kept any more.
    pub output_bytes: u64,
    /// `None` while it runs.
    pub end: Option<ProcessEnd>,
}

/// Where output comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
    /// The terminal.
    Pty,
}

impl Stream {
    /// `stdout`, `stderr` or `pty`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// Output of one stream in a row.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Whose.
    pub stream: Stream,
    /// Of its first byte, counted from the first byte of the process over both streams.
    pub offset: u64,
    /// Bytes between the offset that was asked for and this one, which are not kept any more.
    pub lost_bytes: u64,
    /// At least one.
    pub bytes: Vec<u8>,
}

/// Output of a process since an offset.
#[derive(Debug, Clone)]
pub struct ProcessOutput {
    /// Of the first byte that is given.
    pub offset: u64,
    /// Where to go on.
    pub next_offset: u64,
    /// Bytes between the offset that was asked for and the first that is given.
    pub lost_bytes: u64,
    /// Written so far: where this is past `next_offset` there is more.
    pub output_bytes: u64,
    /// In order. Invalid UTF-8 is replaced; a character that is not complete yet comes later.
    pub chunks: Vec<(Stream, String)>,
    /// `None` while it runs; else nothing is written any more.
    pub end: Option<ProcessEnd>,
}

/// How a process ended.
#[derive(Debug, Clone)]
pub struct ProcessEnd {
    /// Exit code, where it exited.
    pub code: Option<i32>,
    /// Number of the signal, where one ended it.
    pub signal: Option<i32>,
    /// Its wall time was over and its tree was killed.
    pub timed_out: bool,
    /// The memory limit killed a process of the sandbox meanwhile.
    pub out_of_memory: bool,
    /// When.
    pub ended_at: SystemTime,
    /// Wall time.
    pub wall: Duration,
}

impl ProcessEnd {
    /// What `timeout(1)` exits with.
    const TIMED_OUT: i32 = 124;
    /// What a shell exits with for a child that signal n ended: this plus n.
    const SIGNALLED: i32 = 128;

    /// As a shell tells it: 0 to 255, 128 + n for signal n, 124 when it timed out.
    pub fn exit_code(&self) -> i32 {
        match (self.timed_out, self.code, self.signal) {
            (true, ..) => Self::TIMED_OUT,
            (false, Some(code), _) => code,
            (false, None, signal) => Self::SIGNALLED + signal.unwrap_or(libc::SIGKILL),
        }
    }

    /// The name of the signal that ended it, for example `SIGTERM`.
    pub fn signal_name(&self) -> Option<String> {
        let number = self.signal?;
        let named = nix::sys::signal::Signal::try_from(number);
        Some(named.map_or_else(|_| format!("SIG{number}"), |s| s.as_str().to_owned()))
    }
}

/// A file of the working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the working directory; bytes that are not UTF-8 are percent-encoded (`%FF`),
    /// and so is `%` in such a name.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Modification time.
    pub modified_at: SystemTime,
}

/// A regular file inside, opened inside, read here by descriptor.
#[derive(Debug)]
pub struct OpenFile {
    /// For reading; hostile content, may shrink or grow.
    pub file: File,
    /// Bytes when opened.
    pub size: u64,
    /// Modification time when opened.
    pub modified_at: SystemTime,
}

/// A file being written by a process inside, fed from here.
#[derive(Debug)]
pub struct Upload {
    pub(super) reply: Channel,
    /// `None` once ended.
    pub(super) content: Option<PipeWriter>,
    /// Where it goes, relative to the working directory.
    pub(super) path: String,
}

/// What is to be installed.
#[derive(Debug, Clone)]
pub struct InstallSpec {
    /// Names with extras, versions and markers, or wheels of the working directory.
    pub packages: Vec<String>,
    /// A requirement file of the working directory.
    pub requirements_file: Option<String>,
    /// Newer versions also of what is there and would do.
    pub upgrade: bool,
    /// How long the answer may wait for the end.
    pub wait: std::time::Duration,
}

/// How an install stands.
#[derive(Debug, Clone)]
pub struct InstallInfo {
    /// Of all of it.
    pub status: PackageStatus,
    /// Those that were named, in that order.
    pub packages: Vec<PackageInfo>,
    /// uv's own words.
    pub stdout: String,
    /// uv's own words.
    pub stderr: String,
    /// One sentence for people.
    pub message: String,
}

/// A package of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageInfo {
    /// Normalized (PEP 503).
    pub name: String,
    /// How it stands.
    pub status: PackageStatus,
    /// Of an installed one.
    pub version: Option<String>,
    /// Why it is not there.
    pub message: Option<String>,
}

/// How a package stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageStatus {
    /// Its installation goes on or waits.
    Installing,
    /// It can be imported.
    Installed,
    /// It could not be installed.
    Failed,
    /// The index does not have it.
    NotFound,
    /// Nobody asked for it yet, and it is not there.
    NotInstalled,
}

/// What a sandbox may reach, and what has passed.
#[derive(Debug, Clone)]
pub struct NetworkInfo {
    /// What it may reach now.
    pub policy: Policy,
    /// Since it was created.
    pub stats: Stats,
}
