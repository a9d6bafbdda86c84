//! What travels of background processes.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{rfc3339, seconds};
use crate::api::error::Refusal;
use crate::api::openapi;
use crate::supervisor::{ProcessEnd, ProcessInfo, ProcessOutput, ProcessSpec, WindowSize};

/// Body of `POST /sandbox/{id}/processes`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessRequest {
    /// What a shell runs; without it, with `pty`, an interactive shell. At most 32 KiB.
    #[serde(default)]
    #[schema(max_length = 32768)]
    command: Option<String>,
    /// Where it runs; the working directory where it is missing.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 4096)]
    cwd: Option<String>,
    /// Its environment variables, over those of the sandbox.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    /// Run it on a terminal of this size.
    #[serde(default)]
    pty: Option<Window>,
    /// Wall time after which it is killed; none where it is missing.
    #[serde(default)]
    #[schema(exclusive_minimum = 0)]
    timeout_seconds: Option<f64>,
}

impl TryFrom<ProcessRequest> for ProcessSpec {
    type Error = Refusal;

    fn try_from(request: ProcessRequest) -> Result<Self, Refusal> {
        Ok(Self {
            command: request.command,
            cwd: request.cwd,
            env: request.env.unwrap_or_default(),
            terminal: request.pty.map(Window::into),
            timeout: seconds(request.timeout_seconds)?,
        })
    }
}

/// Size of a terminal, and the body of `…/resize`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = TerminalSize)]
pub(crate) struct Window {
    /// Width in characters.
    #[schema(minimum = 1, maximum = 4096)]
    columns: u16,
    /// Height in lines.
    #[schema(minimum = 1, maximum = 4096)]
    rows: u16,
}

impl From<Window> for WindowSize {
    fn from(window: Window) -> Self {
        Self {
            columns: window.columns,
            rows: window.rows,
        }
    }
}

/// JSON body of `…/stdin`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StdinRequest {
    /// What is written, as UTF-8.
    #[serde(default)]
    pub(crate) text: String,
    /// Close it then; on a terminal this is typing Ctrl-D.
    #[serde(default)]
    pub(crate) close: bool,
}

/// Body of `…/signal`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignalRequest {
    /// Its name, such as SIGINT, SIGTERM or SIGKILL.
    #[schema(pattern = "^SIG[A-Z0-9]+$")]
    pub(crate) signal: String,
}

/// Body of `…/wait`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WaitRequest {
    /// Longest to wait; until its end where it is missing.
    #[schema(exclusive_minimum = 0)]
    timeout_seconds: Option<f64>,
}

impl WaitRequest {
    pub(crate) fn longest(&self) -> Result<Option<Duration>, Refusal> {
        seconds(self.timeout_seconds)
    }
}

/// Query of `…/output`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputQuery {
    #[serde(default)]
    offset: Option<String>,
    #[serde(default)]
    wait_seconds: Option<String>,
}

impl OutputQuery {
    pub(crate) fn offset(&self) -> Result<u64, Refusal> {
        Ok(offset(self.offset.as_deref())?.unwrap_or(0))
    }

    pub(crate) fn wait(&self) -> Result<Duration, Refusal> {
        let Some(text) = &self.wait_seconds else {
            return Ok(Duration::ZERO);
        };
        let seconds = text.parse().ok();
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| {
                let detail = "wait_seconds: must be a number, 0 or more";
                Refusal::invalid("wait_seconds", detail)
            })
    }
}

/// An offset of a query.
pub(crate) fn offset(text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let parsed = text.map(|text| text.parse()).transpose();
    parsed.map_err(|_| Refusal::invalid("offset", "offset: must be a whole number, 0 or more"))
}

/// A background process.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Process)]
pub(crate) struct ProcessAnswer {
    /// Names the process in other calls.
    pub(crate) process_id: String,
    /// Its process id inside the sandbox.
    pid: i32,
    /// The command line; null for an interactive shell.
    pub(crate) command: Option<String>,
    /// Where it was started, as asked for.
    cwd: Option<String>,
    /// Size of its terminal while it runs on one.
    pty: Option<Window>,
    /// `running` or `exited`.
    #[schema(value_type = openapi::ProcessState)]
    pub(crate) state: &'static str,
    /// RFC 3339, UTC.
    started_at: String,
    /// Bytes that it has written so far, dropped ones included.
    output_bytes: u64,
    #[serde(flatten)]
    pub(crate) end: ProcessEndAnswer,
}

/// How a background process ended; all of it null or false while it runs.
#[derive(Debug, Default, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = ProcessEnd)]
pub(crate) struct ProcessEndAnswer {
    /// 0 for success; 128 + n when signal n ended it; 124 when its time was over.
    pub(crate) exit_code: Option<i32>,
    /// Name of the signal that ended it, such as SIGKILL.
    pub(crate) signal: Option<String>,
    /// Its time was over and it was killed.
    timed_out: bool,
    /// The sandbox's memory limit killed a process meanwhile.
    out_of_memory: bool,
    /// RFC 3339, UTC.
    ended_at: Option<String>,
}

impl ProcessEndAnswer {
    pub(crate) fn new(end: Option<ProcessEnd>) -> Self {
        end.map_or_else(Self::default, |end| Self {
            exit_code: Some(end.exit_code()),
            signal: end.signal_name(),
            timed_out: end.timed_out,
            out_of_memory: end.out_of_memory,
            ended_at: Some(rfc3339(end.ended_at)),
        })
    }
}

fn state(end: Option<&ProcessEnd>) -> &'static str {
    match end {
        None => "running",
        Some(_) => "exited",
    }
}

impl From<ProcessInfo> for ProcessAnswer {
    fn from(info: ProcessInfo) -> Self {
        let window = |size: WindowSize| Window {
            columns: size.columns,
            rows: size.rows,
        };
        Self {
            process_id: info.id,
            pid: info.pid,
            command: info.command,
            cwd: info.cwd,
            pty: info.terminal.map(window),
            state: state(info.end.as_ref()),
            started_at: rfc3339(info.started_at),
            output_bytes: info.output_bytes,
            end: ProcessEndAnswer::new(info.end),
        }
    }
}

/// Output of a background process.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = ProcessOutput)]
pub(crate) struct OutputAnswer {
    /// Byte offset of what is given first.
    offset: u64,
    /// Byte offset to ask for next.
    pub(crate) next_offset: u64,
    /// Bytes since the offset asked for that were dropped because too much came after them.
    pub(crate) lost_bytes: u64,
    /// Bytes written so far; when this is more than next_offset, ask again at once.
    output_bytes: u64,
    /// In the order in which it was written.
    pub(crate) chunks: Vec<OutputChunk>,
    /// `running`, or `exited`: nothing is written any more.
    #[schema(value_type = openapi::ProcessState)]
    pub(crate) state: &'static str,
    #[serde(flatten)]
    pub(crate) end: ProcessEndAnswer,
}

/// Output of one stream in a row.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct OutputChunk {
    /// `stdout`, `stderr` or `pty`.
    #[schema(value_type = openapi::OutputStream)]
    pub(crate) stream: &'static str,
    /// Invalid UTF-8 is replaced.
    pub(crate) text: String,
}

impl From<ProcessOutput> for OutputAnswer {
    fn from(output: ProcessOutput) -> Self {
        let chunks = output.chunks.into_iter();
        Self {
            offset: output.offset,
            next_offset: output.next_offset,
            lost_bytes: output.lost_bytes,
            output_bytes: output.output_bytes,
            chunks: chunks
                .map(|(stream, text)| OutputChunk {
                    stream: stream.as_str(),
                    text,
                })
                .collect(),
            state: state(output.end.as_ref()),
            end: ProcessEndAnswer::new(output.end),
        }
    }
}
