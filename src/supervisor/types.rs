//! What goes into and comes out of the supervisor's verbs. Protocol-neutral: REST, MCP and the
//! command line encode these, and nothing here knows of them.

mod package;
mod process;
mod workspace;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tokio::net::unix::pipe::Sender as PipeWriter;
use tokio::sync::mpsc;

use super::sandbox::{InUse, Sandbox};
pub use crate::config::OnDisconnect;
pub use crate::gpu::Wish;
use crate::isolation::channel::Channel;
pub use crate::isolation::spec::{ArchiveFormat, FileKind, TreeChangeKind, WindowSize};
pub use crate::kernel::protocol::{Change, FileChange, LeftOut, Restore, ResultKind};
pub use crate::kernel::transfer::Transfer;
pub use crate::mirror::Package;
use crate::network::Policy;
pub use package::*;
pub use process::*;
pub use workspace::*;

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
    /// Which GPUs; default is the service's, as a rule none.
    pub gpus: Option<Wish>,
}

/// A sandbox as clients see it.
#[derive(Debug, Clone)]
pub struct SandboxInfo {
    /// 26 characters, `a`–`z` and `0`–`9`.
    pub id: String,
    /// Name of the key whose it is; `None` where there are no keys.
    pub owner: Option<String>,
    /// Free text.
    pub name: String,
    /// When it was created (claimed).
    pub created_at: SystemTime,
    /// When its lease ends.
    pub expires_at: SystemTime,
    /// Last request for it.
    pub last_used_at: SystemTime,
    /// What it is made of.
    pub mirror: Option<MirrorRef>,
    /// What it may use.
    pub limits: SandboxLimits,
    /// What it is doing.
    pub state: SandboxState,
    /// GPUs that it has: UUIDs, or indices where those are not known.
    pub gpus: Vec<String>,
    /// Names of its variables that the Python of its default context cannot follow.
    pub env_not_applied: Vec<String>,
}

/// A mirror, by what clients may call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorRef {
    /// Of its content.
    pub id: String,
    /// `default` or the name that whoever made it gave it.
    pub name: String,
}

/// What a sandbox may use.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxLimits {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads.
    pub processes: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// From its creation or its last renewal to its end.
    pub lease: Duration,
    /// Without a request, if that is limited.
    pub idle: Option<Duration>,
}

/// How long a sandbox is to live from now on.
#[derive(Debug, Clone, Default)]
pub struct RenewSpec {
    /// Seconds until it is closed, whatever it does.
    pub lease_seconds: Option<u64>,
    /// Seconds without a request until it is closed.
    pub idle_seconds: Option<u64>,
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
    /// Names of variables, its own and the sandbox's, that its Python cannot follow, as they are fixed when
    /// an interpreter starts; programs that it starts have them.
    pub env_not_applied: Vec<String>,
}

/// A context that is to go on from where another is.
#[derive(Debug, Clone, Default)]
pub struct ForkSpec {
    /// Free text for people, at most 128 characters; default is made from the id.
    pub name: Option<String>,
    /// Go on from this checkpoint instead of from what the context holds now.
    pub checkpoint_id: Option<String>,
    /// Fork although threads, libraries or open files make a copy unsound.
    pub force: bool,
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
    /// Whether [`Event::Started`] is to come at once; else it may come with the next event.
    pub prompt: bool,
    /// Whether variables are to outlive a kernel that dies.
    pub restore: Restore,
    /// Standard input of the code, and of what it starts; `None` is at its end from the start.
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
    /// Results that were left out, in whole or in part.
    pub results_left_out: LeftOut,
    /// What a process would have exited with, where the code ended with `SystemExit`.
    pub exit_code: Option<i32>,
    /// There was no room for files.
    pub disk_full: bool,
    /// Names of variables of the request that its Python could not follow, as they are fixed when an
    /// interpreter starts; programs that the code started had them.
    pub env_not_applied: Vec<String>,
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

/// Something in the working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Relative to the working directory; bytes that are not UTF-8 are percent-encoded (`%FF`),
    /// and so is `%` in such a name.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    /// Modification time; user code sets any.
    pub modified_at: SystemTime,
}

/// Which entries of the working directory are wanted.
#[derive(Debug, Clone)]
pub struct FileQuery {
    /// A folder; empty for the working directory.
    pub path: String,
    /// [Pattern](crate::isolation::glob) of paths relative to that folder.
    pub glob: Option<String>,
    /// What is in folders below it too.
    pub recursive: bool,
    /// Only entries of this kind.
    pub kind: Option<FileKind>,
}

impl Default for FileQuery {
    /// All regular files.
    fn default() -> Self {
        Self {
            path: String::new(),
            glob: None,
            recursive: true,
            kind: Some(FileKind::File),
        }
    }
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
    /// The sandbox is not idle while this is held.
    pub(super) in_use: Option<InUse<Arc<Sandbox>>>,
}

/// A file being written by a process inside, fed from here.
#[derive(Debug)]
pub struct Upload {
    pub(super) reply: Channel,
    /// `None` once ended.
    pub(super) content: Option<PipeWriter>,
    /// Where it goes, relative to the working directory.
    pub(super) path: String,
    /// The sandbox is not idle meanwhile.
    pub(super) in_use: Option<InUse<Arc<Sandbox>>>,
}
