//! Workspaces, commands in a row, and files between this host and a sandbox.

use std::time::{Duration, SystemTime};

use super::{CommandOutcome, SandboxInfo};
use crate::supervisor::Error;

/// A file that was copied.
#[derive(Debug, Clone)]
pub struct Copied {
    /// Where it is now, as it was asked for; inside relative to the working directory.
    pub path: String,
    /// Bytes.
    pub size: u64,
}

/// A directory that was copied into a sandbox.
#[derive(Debug, Clone)]
pub struct ProjectCopied {
    /// Where it is now, relative to the working directory; empty for that itself.
    pub path: String,
    /// Regular files.
    pub files: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Paths that were left out, the first of them.
    pub skipped: Vec<String>,
    /// How many were.
    pub skipped_count: usize,
}

/// A workspace to be made.
#[derive(Debug, Clone, Default)]
pub struct WorkspaceSpec {
    /// One of many of the caller's lasting container, instead of a container by itself.
    pub persistent: bool,
    /// A container image's name, or a mirror's.
    pub image: Option<String>,
}

/// A workspace that was made: a sandbox of its own.
#[derive(Debug, Clone)]
pub struct WorkspaceInfo {
    /// The caller's lasting container, or the sandbox itself.
    pub container_id: String,
    /// The sandbox.
    pub sandbox: SandboxInfo,
    /// See [`WorkspaceSpec::persistent`].
    pub persistent: bool,
    /// What became of a wish for an image, for people.
    pub note: Option<String>,
}

/// What became of a container that was to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Its sandbox is closed.
    Closed,
    /// It lasts, and so do its workspaces.
    Kept,
}

/// Commands that run one after the other, until one fails.
#[derive(Debug, Clone, Default)]
pub struct SequenceSpec {
    /// Each given to a shell of its own.
    pub commands: Vec<String>,
    /// Wall time of each; `None` takes the configured default.
    pub timeout: Option<Duration>,
    /// Bytes that are kept of stdout, and of stderr, of all of them.
    pub output_bytes: usize,
    /// Whether what scripts need is installed first; `None` takes the configured default.
    pub install: Option<bool>,
}

/// What commands in a row came to.
#[derive(Debug)]
pub struct SequenceOutcome {
    /// Those that ran, with what they came to. The last one may have failed.
    pub ran: Vec<(String, CommandOutcome)>,
    /// What was installed for them.
    pub dependencies: Vec<Dependencies>,
    /// Why the next one could not even be started.
    pub stopped: Option<Error>,
}

/// What a script needs and did not have.
#[derive(Debug, Clone)]
pub struct Dependencies {
    /// Path of a requirement file, or `imports`.
    pub source: String,
    /// Requirements, as they were given to the installer.
    pub wanted: Vec<String>,
    /// What was new afterwards, as `name==version`.
    pub installed: Vec<String>,
    /// Whether everything wanted is there.
    pub success: bool,
    /// One sentence for people.
    pub message: String,
}

/// A command that ran in a workspace.
#[derive(Debug, Clone)]
pub struct Record {
    /// When it ended.
    pub at: SystemTime,
    /// The command line.
    pub command: String,
    /// Both streams, the end of them where they were long.
    pub output: String,
    /// As a shell tells it; `None` for what is not a command.
    pub exit_code: Option<i32>,
}
