//! What an answer says of what it had to leave out.

use rmcp::schemars::JsonSchema;
use serde::Serialize;

use crate::supervisor::Ended;

/// What was left out of an answer because a limit was hit.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Truncated {
    /// All bytes that the code wrote to standard output.
    stdout_bytes: u64,
    /// Likewise to standard error.
    stderr_bytes: u64,
    /// Of both, the bytes that were not left out: of an over-long stream its first and its last part,
    /// with a line between that says how many are missing.
    kept: u64,
    /// Displays were dropped.
    results_dropped: bool,
    /// More files changed than are listed.
    files_dropped: bool,
}

impl Truncated {
    /// `None` where the answer is whole.
    pub(super) fn of(ended: &Ended) -> Option<Self> {
        let left_out_bytes = ended.stdout.left_out_bytes + ended.stderr.left_out_bytes;
        let is_whole = left_out_bytes == 0 && !ended.results_dropped && !ended.files_truncated;
        (!is_whole).then(|| Self {
            stdout_bytes: ended.stdout.bytes,
            stderr_bytes: ended.stderr.bytes,
            kept: ended.stdout.bytes + ended.stderr.bytes - left_out_bytes,
            results_dropped: ended.results_dropped,
            files_dropped: ended.files_truncated,
        })
    }
}
