//! The wire between the supervisor, the zygote and a kernel. This file is the specification;
//! `rootfs/kernel/` holds the other end. [`VERSION`] changes with every incompatible change.
//!
//! # Zygote socket
//!
//! A `SOCK_SEQPACKET` pair (unix(7)): one JSON object a packet, at most [`MAX_ZYGOTE_PACKET_BYTES`],
//! descriptors as `SCM_RIGHTS`. The supervisor trusts the zygote, which never runs user code.
//!
//! 1. supervisor → zygote [`ToZygote::Start`], once: the filters that every kernel installs, the
//!    packages to import, the kernels' environment. The zygote answers [`FromZygote::Ready`] when all is imported and warm.
//! 2. supervisor → zygote [`ToZygote::Fork`] with descriptors, in this order: `[0]` pidfd of the
//!    sandbox's init, `[1]` the kernel's end of its socket, `[2]` write end of the stdout pipe,
//!    `[3]` write end of the stderr pipe, `[4..]` `cgroup.procs` files, opened for writing by the
//!    supervisor, in which the child writes `0` (itself) before anything else.
//! 3. zygote → supervisor [`FromZygote::Forked`] with one descriptor, the pidfd of the child, or
//!    [`FromZygote::Failed`].
//! 4. zygote → supervisor [`FromZygote::Exited`], once for each forked child, when it was reaped.
//!
//! The zygote ends itself when its socket reaches end of file.
//!
//! # Kernel socket
//!
//! A `SOCK_STREAM` pair. A frame is a 32-bit big-endian length and that many bytes of UTF-8 JSON.
//! Kernel → supervisor frames are hostile bytes: longer than [`MAX_KERNEL_FRAME_BYTES`], malformed
//! or out of turn, they end the kernel and nothing else.
//!
//! The supervisor sends one byte, `g`, when the sandbox that the kernel is to join has been set up:
//! the fork and init's set-up go on side by side. Then frames: [`FromKernel::Ready`] once it has joined the sandbox and locked itself
//! down, or [`FromKernel::Failed`] and exit. Then one [`ToKernel::Execute`] at a time is answered by
//! one `started`, any number of `result`s, at most one `error`, and one `done`.
//! What user code prints does not travel here: descriptors 1 and 2 are pipes that the supervisor
//! reads, and the kernel flushes both before it sends `done`, so that everything printed before
//! `done` is already in the pipes when `done` arrives.
//!
//! After an execution the kernel forks a checkpoint of itself ([`FromKernel::Checkpoint`]), which shares
//! its descriptors and waits. When the kernel has died and the supervisor has killed all that it
//! started but the checkpoint, and read what the kernel wrote, it sends the checkpoint `SIGUSR1`. That
//! drops what the kernel left unread, says [`FromKernel::Restored`] and is the kernel from then on.
//!
//! An idle kernel asked for a branch ([`ToKernel::Branch`], with three descriptors: the branch's end of
//! its socket, the write ends of its stdout and stderr pipes) forks one, which is init's child, and
//! answers [`FromKernel::Branched`]. The branch says [`FromKernel::Restored`] on its own socket and is a
//! kernel like any other.
//!
//! `SIGINT` interrupts the running execution (`KeyboardInterrupt`) from `started` on. One that comes
//! while the kernel is idle, or before `started`, is forgotten: it was meant for an earlier execution.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::isolation::spec::FileKind;

/// Version of this protocol, told by the zygote in [`FromZygote::Ready`].
pub const VERSION: u32 = 9;
/// Longest packet on the zygote socket, in bytes (default socket buffers hold 208 KiB).
pub const MAX_ZYGOTE_PACKET_BYTES: usize = 128 * 1024;
/// Longest frame that a kernel may send, in bytes.
pub const MAX_KERNEL_FRAME_BYTES: usize = 32 * 1024 * 1024;

/// Supervisor to zygote.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToZygote<'a> {
    /// First packet.
    Start {
        /// Classic BPF programs (arrays of `struct sock_filter`, native byte order), base64, to be
        /// installed by every kernel in this order as its last privileged act.
        filters: &'a [String],
        /// What those of sandboxes with GPUs install instead.
        gpu_filters: &'a [String],
        /// Modules to import before the first fork, in order.
        preload: &'a [String],
        /// Environment of every kernel: nothing of the zygote's own is kept. The zygote adds
        /// `MPLBACKEND`, `PLOTLY_RENDERER` and thread counts for what kernels start.
        env: &'a std::collections::BTreeMap<String, String>,
        /// Steps of `lockdown.STEPS` that kernels leave out: none, but for tests of the rest.
        without: &'a [&'a str],
    },
    /// Fork a kernel into a sandbox. Descriptors as in the module's text.
    Fork {
        /// Chosen by the supervisor, unique for the zygote's life.
        id: u64,
        /// `setrlimit(2)` values, soft and hard alike, by their names (`RLIMIT_NOFILE`, …).
        rlimits: &'a std::collections::BTreeMap<String, u64>,
        /// Threads that numeric libraries may use (1 to 64).
        threads: u32,
        /// Added to `/proc/self/oom_score_adj`: the kernel dies before init does (0 to 1000).
        oom_score_adj: u32,
        /// The sandbox has GPUs: its kernel installs the `gpu_filters` of the start.
        gpu: bool,
    },
}

/// Zygote to supervisor.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromZygote {
    /// Everything is imported and warm.
    Ready {
        /// [`VERSION`] of the Python side.
        protocol: u32,
        /// For example `3.13.5`.
        python: String,
        /// Modules of the `preload` list that could not be imported, with the reason.
        #[serde(default)]
        failed_preloads: Vec<String>,
    },
    /// The child of request `id` exists; its pidfd came with this packet.
    Forked {
        /// As in the request.
        id: u64,
    },
    /// No child exists for request `id`, or the zygote is of no use.
    Failed {
        /// As in the request; 0 for the start.
        id: u64,
        /// What failed, in words.
        error: String,
    },
    /// The child of request `id` was reaped. Exactly one of `code` and `signal` is set.
    Exited {
        /// As in the request.
        id: u64,
        /// Exit code, 0 to 255.
        code: Option<i32>,
        /// Signal number that ended it.
        signal: Option<i32>,
    },
}

/// Supervisor to kernel.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToKernel<'a> {
    /// Variables of the sandbox, set once after a claim and kept for the kernel's life.
    Env {
        /// Set in `os.environ`.
        env: &'a std::collections::BTreeMap<String, String>,
    },
    /// Change the working directory, before any code has run. Answered by [`FromKernel::Ready`], or by
    /// [`FromKernel::Failed`], after which the kernel goes on where it was.
    Enter {
        /// Absolute, or relative to the home directory.
        cwd: &'a str,
    },
    /// Run something that nobody sees and forget it: afterwards the pages that an execution writes
    /// are this kernel's own. Not answered.
    Rehearse,
    /// Fork a kernel with the same variables. Answered by [`FromKernel::Branched`].
    Branch {
        /// It will not execute, only be branched from: it dies before those that do when memory is
        /// short.
        waits: bool,
    },
    /// Run code in the kernel's namespace.
    Execute {
        /// Echoed in every frame that belongs to this execution.
        id: u64,
        /// Source text, IPython syntax. May have halves of surrogate pairs, as Python's strings may.
        #[serde(serialize_with = "crate::surrogate::serialize")]
        code: &'a str,
        /// Variables for this execution only: set before, put back after. One that cannot be set
        /// (`=` or NUL in its name) is a line on stderr.
        env: &'a std::collections::BTreeMap<String, String>,
        /// What `input()` and `sys.stdin` read; without it they are at their end. Descriptor 0
        /// stays `/dev/null`.
        #[serde(skip_serializing_if = "Option::is_none")]
        stdin: Option<&'a str>,
        /// Bytes of results (sum of all MIME data) that are kept; what is over is replaced by a
        /// `text/plain` entry that says so.
        max_result_bytes: usize,
        /// Bytes of traceback that are kept (head and tail).
        max_traceback_bytes: usize,
        /// File changes that are reported at most.
        max_files: usize,
        /// Whether to look for them: another process may do that (`src/isolation/filework/journal.rs`).
        look_at_files: bool,
        /// Whether [`FromKernel::Started`] is to come at once, or with the next frame.
        prompt: bool,
        /// Whether the kernel keeps checkpoints of itself.
        restore: Restore,
        /// The sandbox's memory limit, by which [`Restore::Auto`] decides.
        memory_bytes: u64,
    },
}

/// Whether variables outlive a kernel that dies in an execution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restore {
    /// Where a copy of the kernel costs little time and memory.
    #[default]
    Auto,
    /// At any cost.
    Always,
    /// Not at all.
    Never,
}

/// What a display was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultKind {
    /// `display(...)`, an inline figure, a rich output of a library.
    Display,
    /// The value of the last expression.
    ExecuteResult,
    /// A change of an earlier display with the same `display_id`.
    Update,
}

/// A file or link of the working directory that an execution changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// Relative to the working directory, `/`-separated.
    pub path: String,
    /// Bytes after the execution, 0 when deleted.
    #[serde(default)]
    pub size: u64,
    /// What happened to it.
    pub change: Change,
    /// A regular file or a symbolic link.
    pub kind: FileKind,
}

/// Kind of a [`FileChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Not there before.
    Created,
    /// Other size, time or inode than before.
    Changed,
    /// Not there any more.
    Deleted,
}

/// Kernel to supervisor: an object with `type` (the variant's name in snake case) and its fields.
/// All of it is hostile input, so it is read by `super::frame`, with bounds.
#[derive(Debug, PartialEq)]
pub enum FromKernel {
    /// Joined and locked down. First frame.
    Ready,
    /// Could not be set up; the process exits.
    Failed {
        /// The step that failed.
        step: String,
        /// Why.
        error: String,
    },
    /// Execution `id` has begun.
    Started {
        /// As in the request.
        id: u64,
        /// IPython's counter, from 1.
        execution_count: u64,
    },
    /// A MIME bundle. Where the execution is `prompt`, it and [`Self::Error`] are sent when the pipes are
    /// empty, and Python prints nothing before they are read: events come in its order.
    Result {
        /// As in the request.
        id: u64,
        /// What kind of display.
        kind: ResultKind,
        /// MIME type to data: text as text, binary as base64, `application/json` and the like as JSON.
        data: Map<String, Value>,
        /// IPython's metadata of the display.
        metadata: Map<String, Value>,
        /// Of `display(..., display_id=...)`.
        display_id: Option<String>,
    },
    /// `clear_output()` was called: earlier output of this execution is to be dropped. Sent when the
    /// pipes are empty, and nothing is printed before it is read, but for what other threads and
    /// processes print.
    ClearOutput {
        /// As in the request.
        id: u64,
        /// Only once new output comes.
        wait: bool,
    },
    /// The execution raised.
    Error {
        /// As in the request.
        id: u64,
        /// Class name of the exception.
        name: String,
        /// `str()` of it.
        value: String,
        /// Without colour codes.
        traceback: String,
    },
    /// The kernel's checkpoint from now on, told after it was made or ended, of no execution.
    Checkpoint {
        /// Its process id in the sandbox; `None` where there is none.
        pid: Option<i32>,
        /// Why there is none, for people.
        objection: Option<String>,
    },
    /// The answer to [`ToKernel::Branch`].
    Branched {
        /// The branch's process id in the sandbox; `None` where there is none.
        pid: Option<i32>,
        /// Why there is none, for people.
        objection: Option<String>,
    },
    /// A checkpoint has become the kernel, or a branch has begun. First frame of its.
    Restored {
        /// What a fork did not carry, for people: `thread …`, `connection …`.
        missing: Vec<String>,
    },
    /// The execution has ended, output is flushed.
    Done {
        /// As in the request.
        id: u64,
        /// IPython's counter, from 1.
        execution_count: u64,
        /// What it will be in the next execution.
        next_count: u64,
        /// Changes in the working directory, sorted by path.
        files: Vec<FileChange>,
        /// More changes happened than `max_files`.
        files_truncated: bool,
        /// Files that there are, as far as it has looked.
        files_seen: u64,
        /// No room for files was left at the end, or the execution ended for want of some.
        disk_full: bool,
        /// It keeps its state now, without waiting for silence; [`FromKernel::Checkpoint`] comes after that.
        forks: bool,
    },
}
