//! What travels: request bodies in, answers out. Names and shapes are the contract's.

mod file;
mod mirror;
mod network;
mod port;
mod process;
mod sandbox;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::Refusal;
use super::openapi;
use crate::supervisor::{
    BranchInfo, Change, CheckpointInfo, CommandEnded, CommandOutcome, CommandSpec, ContextInfo,
    ContextSpec, CreateSpec, ExecuteSpec, FileChange, FileEntry, FileKind, ForkSpec, OnDisconnect,
    Restore, SandboxInfo, Usage, Wish,
};
pub(crate) use file::*;
pub(crate) use mirror::*;
pub(crate) use network::*;
pub(crate) use port::PortAnswer;
pub(crate) use process::*;
pub(crate) use sandbox::*;

/// Body of `POST /sandbox/create`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CreateRequest {
    /// Free text for people; one is made up where it is missing or empty. No control characters.
    #[schema(max_length = 128)]
    name: Option<String>,
    /// Id or name of a mirror: the packages that the sandbox begins with.
    mirror: Option<String>,
    /// RAM; at most limits.max_memory_bytes.
    #[schema(minimum = 67108864)]
    memory_bytes: Option<u64>,
    /// Processors; at most limits.max_cpus.
    #[schema(minimum = 0.01)]
    cpus: Option<f64>,
    /// Bytes of files; at most limits.max_disk_bytes.
    #[schema(minimum = 1048576)]
    disk_bytes: Option<u64>,
    /// Processes and threads; at most limits.max_processes.
    #[schema(minimum = 4)]
    processes: Option<u64>,
    /// It is closed after this time; at most limits.max_lease_seconds.
    #[schema(minimum = 1)]
    lease_seconds: Option<u64>,
    /// It is closed when it was not used for this time; likewise.
    #[schema(minimum = 1)]
    idle_seconds: Option<u64>,
    /// What it may reach.
    #[schema(value_type = Option<openapi::NetworkWish>)]
    network: Option<Value>,
    /// GPUs of the host that it gets, where the operator gives any.
    #[schema(value_type = Option<openapi::GpuWish>)]
    gpus: Option<Value>,
    /// Environment variables of everything that runs in it: at most 256, of 32 KiB in all.
    env: Option<BTreeMap<String, String>>,
}

impl TryFrom<CreateRequest> for CreateSpec {
    type Error = Refusal;

    fn try_from(request: CreateRequest) -> Result<Self, Refusal> {
        Ok(Self {
            name: request.name,
            memory_bytes: request.memory_bytes,
            cpus: request.cpus,
            disk_bytes: request.disk_bytes,
            processes: request.processes,
            lease_seconds: request.lease_seconds,
            idle_seconds: request.idle_seconds,
            env: request.env.unwrap_or_default(),
            mirror: request.mirror,
            network: request.network.map(network::policy).transpose()?,
            gpus: request.gpus.map(wish).transpose()?,
        })
    }
}

fn wish(value: Value) -> Result<Wish, Refusal> {
    serde_json::from_value(value).map_err(|_| {
        let expected = "gpus: must be \"all\", a number, or a list of indices and UUIDs of GPUs";
        Refusal::invalid("gpus", expected)
    })
}

/// JSON body of `POST /sandbox/{id}/execute`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecuteRequest {
    /// Python, with what IPython adds to it; at most limits.code_bytes.
    pub(crate) code: String,
    /// The context that it runs in; `default` where it is missing.
    #[serde(default)]
    context_id: Option<String>,
    /// Wall time; at most limits.max_timeout_seconds.
    #[serde(default)]
    #[schema(exclusive_minimum = 0)]
    timeout_seconds: Option<f64>,
    /// Environment variables while it runs.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    /// What `input()` and `sys.stdin` read.
    #[serde(default)]
    stdin: Option<String>,
    /// Answer with events while it runs, rather than at its end.
    #[serde(default)]
    pub(crate) stream: Option<bool>,
    /// Whether variables outlive a Python process that dies.
    #[serde(default)]
    #[schema(value_type = Option<openapi::RestoreWhen>)]
    restore: Option<Restore>,
    /// What becomes of the code when the client goes away.
    #[serde(default)]
    #[schema(value_type = Option<openapi::WhenClientGoes>)]
    pub(crate) on_disconnect: Option<OnDisconnect>,
}

impl ExecuteRequest {
    /// Only code.
    pub(crate) fn of_code(code: String) -> Self {
        Self {
            code,
            ..Self::default()
        }
    }
}

impl TryFrom<ExecuteRequest> for ExecuteSpec {
    type Error = Refusal;

    fn try_from(request: ExecuteRequest) -> Result<Self, Refusal> {
        Ok(Self {
            code: request.code,
            context_id: request.context_id,
            timeout: seconds(request.timeout_seconds)?,
            env: request.env.unwrap_or_default(),
            prompt: false,
            restore: request.restore.unwrap_or_default(),
            stdin: request.stdin,
            on_disconnect: request.on_disconnect.unwrap_or_default(),
            output_bytes: None,
        })
    }
}

/// Body of `POST /sandbox/{id}/contexts`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ContextRequest {
    /// Free text for people. No control characters.
    #[schema(max_length = 128)]
    name: Option<String>,
    /// Directory in which its Python starts.
    #[schema(min_length = 1, max_length = 4096)]
    cwd: Option<String>,
    /// Its environment variables, over those of the sandbox.
    env: Option<BTreeMap<String, String>>,
}

impl From<ContextRequest> for ContextSpec {
    fn from(request: ContextRequest) -> Self {
        Self {
            name: request.name,
            cwd: request.cwd,
            env: request.env.unwrap_or_default(),
        }
    }
}

/// Body of `POST /sandbox/{id}/contexts/{context}/checkpoint`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CheckpointRequest {
    /// Free text for people. No control characters.
    #[schema(max_length = 128)]
    pub(crate) name: Option<String>,
}

/// Body of `POST /sandbox/{id}/contexts/{context}/restore`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreRequest {
    /// The checkpoint that the context goes back to.
    #[serde(alias = "checkpoint")]
    pub(crate) checkpoint_id: String,
}

/// Body of `POST /sandbox/{id}/contexts/{context}/fork`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ForkRequest {
    /// Free text for people, of the new context. No control characters.
    #[schema(max_length = 128)]
    name: Option<String>,
    /// Go on from this checkpoint, rather than from the context as it is.
    #[serde(alias = "checkpoint")]
    checkpoint_id: Option<String>,
}

impl From<ForkRequest> for ForkSpec {
    fn from(request: ForkRequest) -> Self {
        Self {
            name: request.name,
            checkpoint_id: request.checkpoint_id,
        }
    }
}

/// Body of `POST /sandbox/{id}/interrupt`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct InterruptRequest {
    /// The context to interrupt; all of them where it is missing.
    pub(crate) context_id: Option<String>,
}

/// A context of a sandbox.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Context)]
pub(crate) struct ContextAnswer {
    /// Names the context in other calls; `default` is the one that every sandbox has.
    pub(crate) context_id: String,
    /// Free text for people.
    pub(crate) name: String,
    /// Directory in which its Python starts.
    cwd: String,
    /// RFC 3339, UTC.
    created_at: String,
    /// `idle`, `busy` or `closing`.
    #[schema(value_type = openapi::Activity)]
    pub(crate) state: &'static str,
    /// Counts its executions; 0 when its variables are fresh.
    execution_count: u64,
}

impl From<ContextInfo> for ContextAnswer {
    fn from(info: ContextInfo) -> Self {
        Self {
            context_id: info.id,
            name: info.name,
            cwd: info.cwd,
            created_at: rfc3339(info.created_at),
            state: info.state.as_str(),
            execution_count: info.execution_count,
        }
    }
}

/// A context that goes on from a checkpoint or from another context.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Branch)]
pub(crate) struct BranchAnswer {
    #[serde(flatten)]
    pub(crate) context: ContextAnswer,
    /// What could not be carried over: threads that ran, connections that were open.
    not_carried: Vec<String>,
    /// What else to know.
    note: &'static str,
}

impl From<BranchInfo> for BranchAnswer {
    fn from(info: BranchInfo) -> Self {
        Self {
            context: info.context.into(),
            not_carried: info.missing,
            note: FILES_ARE_SHARED,
        }
    }
}

/// Variables of a context that were kept.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Checkpoint)]
pub(crate) struct CheckpointAnswer {
    /// Names the checkpoint in other calls.
    pub(crate) checkpoint_id: String,
    /// Free text for people.
    pub(crate) name: String,
    /// The context that it is of, which may have been deleted since.
    context_id: String,
    /// RFC 3339, UTC.
    created_at: String,
    /// How many executions the context had seen.
    pub(crate) execution_count: u64,
    /// What could not be carried over: threads that ran, connections that were open.
    not_carried: Vec<String>,
    /// What else to know.
    note: &'static str,
}

impl From<CheckpointInfo> for CheckpointAnswer {
    fn from(info: CheckpointInfo) -> Self {
        Self {
            checkpoint_id: info.id,
            name: info.name,
            context_id: info.context_id,
            created_at: rfc3339(info.created_at),
            execution_count: info.execution_count,
            not_carried: info.missing,
            note: FILES_ARE_SHARED,
        }
    }
}

const FILES_ARE_SHARED: &str =
    "variables only: files are shared by all contexts and are not rolled back";

/// Body of `POST /sandbox/{id}/command`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandRequest {
    /// What a shell runs; at most 32 KiB.
    #[schema(max_length = 32768)]
    command: String,
    /// Answer with events while it runs, rather than at its end.
    #[serde(default)]
    pub(crate) stream: Option<bool>,
    /// Wall time; at most limits.max_timeout_seconds.
    #[serde(default)]
    #[schema(exclusive_minimum = 0)]
    timeout_seconds: Option<f64>,
    /// Where it runs; the working directory where it is missing.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 4096)]
    cwd: Option<String>,
    /// Its environment variables, over those of the sandbox.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
}

impl TryFrom<CommandRequest> for CommandSpec {
    type Error = Refusal;

    fn try_from(request: CommandRequest) -> Result<Self, Refusal> {
        Ok(Self {
            command: request.command,
            cwd: request.cwd,
            env: request.env.unwrap_or_default(),
            timeout: seconds(request.timeout_seconds)?,
            output_bytes: None,
        })
    }
}

/// A positive number of seconds; the upper limit is the supervisor's.
pub(crate) fn seconds(timeout_seconds: Option<f64>) -> Result<Option<Duration>, Refusal> {
    let Some(value) = timeout_seconds else {
        return Ok(None);
    };
    match Duration::try_from_secs_f64(value) {
        Ok(timeout) if !timeout.is_zero() => Ok(Some(timeout)),
        _ => Err(Refusal::invalid(
            "timeout_seconds",
            "timeout_seconds: must be a positive number",
        )),
    }
}

/// A sandbox that was created.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = SandboxCreated)]
pub(crate) struct Created {
    /// Names the sandbox in every other call.
    pub(crate) sandbox_id: String,
    /// Free text for people.
    pub(crate) name: String,
    /// RFC 3339, UTC.
    pub(crate) created_at: String,
    /// When it is closed at the latest, RFC 3339, UTC.
    pub(crate) expires_at: String,
    /// GPUs that it has: UUIDs, or indices where those are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gpus: Vec<String>,
}

impl From<SandboxInfo> for Created {
    fn from(info: SandboxInfo) -> Self {
        Self {
            created_at: rfc3339(info.created_at),
            expires_at: rfc3339(info.expires_at),
            sandbox_id: info.id,
            name: info.name,
            gpus: info.gpus,
        }
    }
}

/// A command that ended.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = CommandOutcome)]
pub(crate) struct CommandAnswer {
    /// What the command wrote to its standard output.
    pub(crate) stdout: String,
    /// What it wrote to standard error.
    pub(crate) stderr: String,
    #[serde(flatten)]
    pub(crate) ended: CommandEnd,
}

/// How a command ended.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct CommandEnd {
    /// 0 for success; 128 + n when signal n ended it; 124 when its time was over.
    pub(crate) exit_code: i32,
    /// Its time was over and it was killed.
    pub(crate) timed_out: bool,
    /// The sandbox's memory limit killed a process meanwhile.
    pub(crate) out_of_memory: bool,
    /// Output beyond the limit was dropped.
    pub(crate) truncated: bool,
    /// How long it took.
    pub(crate) wall_seconds: f64,
}

impl From<CommandOutcome> for CommandAnswer {
    fn from(outcome: CommandOutcome) -> Self {
        Self {
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            ended: outcome.ended.into(),
        }
    }
}

impl From<CommandEnded> for CommandEnd {
    fn from(ended: CommandEnded) -> Self {
        let dropped = [ended.stdout_dropped_bytes, ended.stderr_dropped_bytes];
        Self {
            exit_code: ended.exit_code,
            timed_out: ended.timed_out,
            out_of_memory: ended.out_of_memory,
            truncated: dropped.iter().any(|&bytes| bytes > 0),
            wall_seconds: ended.wall.as_secs_f64(),
        }
    }
}

/// A file of the working directory.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = FileEntry)]
pub(crate) struct File {
    /// Relative to the working directory.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: u64,
    /// RFC 3339, UTC.
    pub(crate) modified_at: String,
    /// Where this service serves it.
    pub(crate) url: String,
}

impl File {
    pub(crate) fn new(sandbox_id: &str, entry: FileEntry) -> Self {
        Self {
            url: download_url(sandbox_id, &entry.path),
            modified_at: rfc3339(entry.modified_at),
            path: entry.path,
            size: entry.size,
        }
    }
}

/// A file that an execution touched.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct TouchedFile {
    /// Relative to the working directory.
    pub(crate) path: String,
    /// Bytes afterwards, 0 when deleted.
    pub(crate) size: u64,
    /// `created`, `changed` or `deleted`.
    #[schema(value_type = openapi::FileEvent)]
    pub(crate) change: &'static str,
    /// `symlink` where it is a link, which is not followed; missing for regular files.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<openapi::FileKind>)]
    pub(crate) kind: Option<&'static str>,
    /// Where this service serves it; null for a link and when deleted.
    pub(crate) url: Option<String>,
}

impl TouchedFile {
    pub(crate) fn new(sandbox_id: &str, file: FileChange) -> Self {
        let change = match file.change {
            Change::Created => "created",
            Change::Changed => "changed",
            Change::Deleted => "deleted",
        };
        let served = file.change != Change::Deleted && file.kind == FileKind::File;
        let url = served.then(|| download_url(sandbox_id, &file.path));
        Self {
            path: file.path,
            size: file.size,
            change,
            kind: (file.kind != FileKind::File).then(|| file.kind.as_str()),
            url,
        }
    }
}

/// What an execution cost.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Usage)]
pub(crate) struct Cost {
    /// Wall time.
    wall_seconds: f64,
    /// CPU time in user code.
    cpu_user_seconds: f64,
    /// CPU time in the kernel.
    cpu_system_seconds: f64,
    /// Highest memory of the sandbox so far.
    peak_memory_bytes: u64,
    /// Processes and threads at the end.
    processes: u64,
    /// Bytes that the code, and the processes that it waited for, read: from files, pipes and sockets
    /// alike, but not through memory maps. Null where the Python process died.
    read_bytes: Option<u64>,
    /// Likewise written, what was printed included.
    written_bytes: Option<u64>,
    /// Which of `memory`, `processes`, `disk`, `output`, `time` were hit.
    #[schema(value_type = Vec<openapi::LimitName>)]
    limits_hit: Vec<&'static str>,
    /// How often each of these was hit: processes killed for memory, forks refused, streams and
    /// results cut; 1 for disk and time.
    #[schema(value_type = BTreeMap<String, u64>)]
    limit_hits: BTreeMap<&'static str, u64>,
}

impl From<Usage> for Cost {
    fn from(usage: Usage) -> Self {
        Self {
            wall_seconds: usage.wall.as_secs_f64(),
            cpu_user_seconds: usage.cpu_user.as_secs_f64(),
            cpu_system_seconds: usage.cpu_system.as_secs_f64(),
            peak_memory_bytes: usage.peak_memory_bytes,
            processes: usage.processes,
            read_bytes: usage.transfer.map(|transfer| transfer.read_bytes),
            written_bytes: usage.transfer.map(|transfer| transfer.written_bytes),
            limits_hit: usage.limits_hit.iter().map(|(name, _)| *name).collect(),
            limit_hits: usage.limits_hit.into_iter().collect(),
        }
    }
}

/// Path of a file's download on this service.
pub(crate) fn download_url(sandbox_id: &str, path: &str) -> String {
    format!(
        "/sandbox/{sandbox_id}/download/{}",
        percent_encode(path, b"/")
    )
}

/// RFC 3986: everything but unreserved characters and `keep` is encoded.
pub(crate) fn percent_encode(text: &str, keep: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// 9999-12-31T23:59:59Z, after 1970.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

/// `2026-01-31T12:34:56.789Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // User code sets any time of a file, and a year has four digits.
    let since = since.min(LAST_SECOND);
    let time = DateTime::<Utc>::from(UNIX_EPOCH + since);
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_767_225_600, "2026-01-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn urls_are_ascii_and_keep_their_slashes() {
        assert_eq!(
            download_url("id", "a dir/ä%?#\n.csv"),
            "/sandbox/id/download/a%20dir/%C3%A4%25%3F%23%0A.csv"
        );
    }

    #[test]
    fn timeouts_are_positive_and_finite() {
        assert_eq!(seconds(None).ok(), Some(None));
        assert_eq!(
            seconds(Some(0.5)).ok(),
            Some(Some(Duration::from_millis(500)))
        );
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert!(seconds(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
