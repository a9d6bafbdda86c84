//! What an answer says of what it had to leave out.

use rmcp::schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

use super::wire::download_url;
use crate::supervisor::{Ended, Written};

/// What was left out of an answer because a limit was hit.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Truncated {
    /// All bytes that the code wrote to standard output.
    stdout_bytes: u64,
    /// Likewise to standard error.
    stderr_bytes: u64,
    /// Of both, the bytes that were not left out: of an over-long stream its first and its last part,
    /// with a line between that says how many are missing.
    kept: u64,
    /// Displays were left out, or a part of one was.
    results_dropped: bool,
    /// How many.
    pub(crate) results_left_out: u64,
    /// Bytes of them, at least.
    result_bytes_left_out: u64,
    /// More files changed than are listed.
    files_dropped: bool,
    /// A file that holds over-long standard output from its first byte on.
    pub(crate) stdout_file: Option<OutputFile>,
    /// Likewise standard error.
    pub(crate) stderr_file: Option<OutputFile>,
    /// Why there is no such file where there should be.
    not_saved: Option<String>,
}

/// A file that over-long output was saved to. Older ones are removed for newer ones.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct OutputFile {
    /// Relative to the working directory.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: u64,
    /// False where the output was too long even for the file, which then lacks its end.
    pub(crate) complete: bool,
    /// Where this service serves it.
    pub(crate) url: String,
}

impl OutputFile {
    fn of(sandbox_id: &str, written: &Written) -> Option<Self> {
        let file = written.saved.as_ref()?.as_ref().ok()?;
        Some(Self {
            path: file.path.clone(),
            size: file.bytes,
            complete: file.whole,
            url: download_url(sandbox_id, &file.path),
        })
    }
}

impl Truncated {
    /// `None` where the answer is whole.
    pub(super) fn of(sandbox_id: &str, ended: &Ended) -> Option<Self> {
        let left_out_bytes = ended.stdout.left_out_bytes + ended.stderr.left_out_bytes;
        let is_whole =
            left_out_bytes == 0 && ended.results_left_out.results == 0 && !ended.files_truncated;
        (!is_whole).then(|| Self {
            stdout_bytes: ended.stdout.bytes,
            stderr_bytes: ended.stderr.bytes,
            kept: ended.stdout.bytes + ended.stderr.bytes - left_out_bytes,
            results_dropped: ended.results_left_out.results > 0,
            results_left_out: ended.results_left_out.results,
            result_bytes_left_out: ended.results_left_out.bytes,
            files_dropped: ended.files_truncated,
            stdout_file: OutputFile::of(sandbox_id, &ended.stdout),
            stderr_file: OutputFile::of(sandbox_id, &ended.stderr),
            not_saved: not_saved(ended),
        })
    }
}

fn not_saved(ended: &Ended) -> Option<String> {
    let streams = [("stdout", &ended.stdout), ("stderr", &ended.stderr)];
    let why = |(name, written): (_, &Written)| match &written.saved {
        Some(Err(why)) => Some(format!("{name}: {why}")),
        _ => None,
    };
    streams
        .into_iter()
        .filter_map(why)
        .reduce(|all, one| format!("{all}; {one}"))
}
