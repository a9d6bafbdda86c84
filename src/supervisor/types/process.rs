//! Background processes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::WindowSize;

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
