//! The events of streams, for the description alone: what makes them is in [`crate::api::lines`],
//! [`crate::api::encoder`] and [`crate::api::commands`].

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

use super::words::ResultKind;
use crate::api::outcome::Verdict;
use crate::api::truncated::Truncated;
use crate::api::wire::{CommandEnd, Cost, TouchedFile};

/// An event of an execution, a line or a server-sent event. `ended` or `failed` is the last.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum ExecutionEvent {
    /// The code begins to run.
    Started {
        /// Counts the context's executions.
        execution_count: u64,
    },
    /// The code wrote to standard output.
    Stdout {
        /// What it wrote.
        text: String,
    },
    /// The code wrote to standard error.
    Stderr {
        /// What it wrote.
        text: String,
    },
    /// Something was shown: a plot, a table, the value of the last line.
    Result {
        /// How it came to be shown.
        kind: ResultKind,
        /// Which display it is, counted from 0.
        bundle: u64,
        /// The same thing in several MIME types, binary ones in Base64.
        data: BTreeMap<String, Value>,
        /// What came with it.
        metadata: BTreeMap<String, Value>,
        /// An `update` takes the place of the display with the same one.
        display_id: Option<String>,
    },
    /// What was put out so far is to be cleared.
    ClearOutput {
        /// With the next output, rather than at once.
        wait: bool,
    },
    /// The code raised.
    Error {
        /// The exception's class.
        name: String,
        /// The exception's message.
        value: String,
        /// Without colours.
        traceback: String,
    },
    /// What the execution did to files.
    Files {
        /// Those that it touched.
        files: Vec<TouchedFile>,
    },
    /// What the execution cost.
    Usage {
        /// Time, memory, limits.
        usage: Cost,
    },
    /// Nothing happened for a while.
    Keepalive {},
    /// The end.
    Ended(Box<ExecutionEnded>),
    /// The service gave the execution up.
    Failed {
        /// As in an error.
        code: String,
        /// One sentence for people.
        detail: String,
    },
}

/// The end of an execution.
#[derive(ToSchema)]
#[allow(dead_code, reason = "described, never made")]
pub(super) struct ExecutionEnded {
    #[serde(flatten)]
    verdict: Verdict,
    /// Counts the context's executions.
    execution_count: u64,
    /// What was left out.
    truncated: Option<Truncated>,
    /// Bytes of standard output that were left out.
    stdout_dropped_bytes: u64,
    /// Likewise of standard error.
    stderr_dropped_bytes: u64,
    /// Files that the execution touched.
    files: Vec<TouchedFile>,
    /// What it cost.
    usage: Cost,
}

/// An event of a command, a line or a server-sent event. `ended` or `failed` is the last.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum CommandEvent {
    /// The command runs.
    Started {
        /// Its process id inside.
        pid: i32,
    },
    /// It wrote to standard output.
    Stdout {
        /// What it wrote.
        text: String,
    },
    /// It wrote to standard error.
    Stderr {
        /// What it wrote.
        text: String,
    },
    /// Nothing happened for a while.
    Keepalive {},
    /// The end.
    Ended(CommandEnd),
    /// The service gave the command up.
    Failed {
        /// As in an error.
        code: String,
        /// One sentence for people.
        detail: String,
    },
}

/// An event of a watch, a line or a server-sent event. `ended` is the last.
#[derive(ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(dead_code, reason = "described, never made")]
pub(super) enum FileWatchEvent {
    /// What happens from now on is told.
    Watching {
        /// The folder, as it was asked for.
        path: String,
        /// And those below it.
        recursive: bool,
    },
    /// It was made, or moved to here from elsewhere.
    Created {
        /// Relative to the working directory.
        path: String,
        /// Whether it is one.
        directory: bool,
    },
    /// Its content, or what is known of it, was changed.
    Changed {
        /// Relative to the working directory.
        path: String,
        /// Whether it is one.
        directory: bool,
    },
    /// It was removed, or moved to elsewhere.
    Deleted {
        /// Relative to the working directory.
        path: String,
        /// Whether it was one.
        directory: bool,
    },
    /// It has another path.
    Renamed {
        /// That it has now, relative to the working directory.
        path: String,
        /// That it had.
        from: String,
        /// Whether it is one.
        directory: bool,
    },
    /// Some changes are not told: list the files to see how they are.
    Overflow {
        /// One sentence for people.
        detail: String,
    },
    /// Nothing happened for a while.
    Keepalive {},
    /// The folder or the sandbox is gone, or the service stops.
    Ended {
        /// As in an error.
        code: String,
        /// One sentence for people.
        detail: String,
    },
}
