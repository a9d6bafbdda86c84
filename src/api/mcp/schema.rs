//! What tools take and answer, with the descriptions that become their schemas.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::wire::{
    CheckpointAnswer, ContextAnswer, File, MirrorAnswer, PackageAnswer, PortAnswer, ProcessAnswer,
    rfc3339,
};
use crate::supervisor::{DEFAULT_CONTEXT, Restore, SandboxInfo};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct CreateArguments {
    /// A name for people, at most 128 characters.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Id or name of a mirror of create_mirror, whose packages it has; the standard packages when left
    /// out.
    #[serde(default)]
    pub(super) mirror: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteMirrorArguments {
    /// Its id or name.
    pub(super) mirror: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Mirrors {
    /// The base first.
    pub(super) mirrors: Vec<MirrorAnswer>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct NoArguments {}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct SandboxArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct ExecuteArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// Python source. IPython syntax works too: top-level await, magics, !command.
    pub(super) code: String,
    /// Which of the sandbox's Python contexts runs it, as returned by create_context; the context
    /// "default" when left out.
    #[serde(default)]
    pub(super) context_id: Option<String>,
    /// Seconds after which the code is stopped; a default applies when left out.
    #[serde(default)]
    pub(super) timeout_seconds: Option<f64>,
    /// Text on the code's standard input, which input(), sys.stdin and programs that it starts read; without
    /// it they are at their end.
    #[serde(default)]
    pub(super) stdin: Option<String>,
    /// Whether variables outlive code that ends the Python process (out of memory, a crash): "auto"
    /// when left out, "always", or "never".
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub(super) restore: Option<Restore>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct CreateContextArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// A name for people, at most 128 characters.
    #[serde(default)]
    pub(super) name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct ContextArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// As returned by create_context or list_contexts.
    pub(super) context_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// The context whose variables are kept; "default" when left out.
    #[serde(default = "default_context")]
    pub(super) context_id: String,
    /// A name for people, at most 128 characters.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Copy it although threads, libraries or open files make a copy unsound; it may hang.
    #[serde(default)]
    pub(super) force: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// The context that gets the variables; "default" when left out.
    #[serde(default = "default_context")]
    pub(super) context_id: String,
    /// As returned by checkpoint_context.
    pub(super) checkpoint_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct ForkArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// The context that is copied; "default" when left out.
    #[serde(default = "default_context")]
    pub(super) context_id: String,
    /// Copy this checkpoint (of checkpoint_context) instead of what the context holds now.
    #[serde(default)]
    pub(super) checkpoint_id: Option<String>,
    /// A name for people, at most 128 characters.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Copy it although threads, libraries or open files make a copy unsound; it may hang.
    #[serde(default)]
    pub(super) force: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteCheckpointArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// As returned by checkpoint_context or list_checkpoints.
    pub(super) checkpoint_id: String,
}

fn default_context() -> String {
    DEFAULT_CONTEXT.to_owned()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct InterruptArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// The context whose code is interrupted; all of them when left out.
    #[serde(default)]
    pub(super) context_id: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct CommandArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// A bash command line.
    pub(super) command: String,
    /// Seconds after which the command is killed; a default applies when left out.
    #[serde(default)]
    pub(super) timeout_seconds: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct StartProcessArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// A bash command line.
    pub(super) command: String,
    /// Directory to start in, relative to the working directory or absolute.
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// Run it on a terminal (120 columns, 40 rows), for programs that behave differently on one;
    /// false when left out.
    #[serde(default)]
    pub(super) terminal: bool,
    /// Seconds after which it is killed; it may run as long as the sandbox lives when left out.
    #[serde(default)]
    pub(super) timeout_seconds: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessOutputArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// As returned by start_process or list_processes.
    pub(super) process_id: String,
    /// The next_offset of the last answer; 0, the start, when left out.
    #[serde(default)]
    pub(super) offset: Option<u64>,
    /// Seconds to wait for output when there is none yet, at most 60; 0 when left out.
    #[serde(default)]
    pub(super) wait_seconds: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct ProcessStdinArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// As returned by start_process or list_processes.
    pub(super) process_id: String,
    /// What to write, line ends included.
    pub(super) text: String,
    /// End the input after the text; false when left out.
    #[serde(default)]
    pub(super) close: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct SignalProcessArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// As returned by start_process or list_processes.
    pub(super) process_id: String,
    /// Name of the signal: SIGINT, SIGTERM, SIGKILL or another.
    pub(super) signal: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// Relative to the working directory, as list_files gives it.
    pub(super) path: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct WriteArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// Relative to the working directory; missing directories are created.
    pub(super) path: String,
    /// The whole content of the file.
    pub(super) content: String,
    /// How content is encoded: utf-8 (default) or base64, for binary files.
    #[serde(default)]
    pub(super) encoding: WriteEncoding,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) enum WriteEncoding {
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Sandboxes {
    pub(super) sandboxes: Vec<Sandbox>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Sandbox {
    pub(super) sandbox_id: String,
    pub(super) name: String,
    pub(super) created_at: String,
    pub(super) expires_at: String,
    pub(super) last_used_at: String,
    /// `idle`, `busy` or `closing`.
    pub(super) state: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Closed {
    pub(super) status: &'static str,
    pub(super) message: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Contexts {
    pub(super) contexts: Vec<ContextAnswer>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Checkpoints {
    pub(super) checkpoints: Vec<CheckpointAnswer>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Ports {
    pub(super) ports: Vec<PortAnswer>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Processes {
    pub(super) processes: Vec<ProcessAnswer>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Interrupted {
    pub(super) status: &'static str,
    /// Ids of the contexts in which code was running.
    pub(super) interrupted: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Files {
    pub(super) files: Vec<File>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct ReadAnswer {
    pub(super) path: String,
    /// Bytes.
    pub(super) size: u64,
    pub(super) mime_type: &'static str,
    /// `utf-8`, `base64`, or `image` when the content is the image beside this.
    pub(super) encoding: &'static str,
    /// Null for images.
    pub(super) content: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Written {
    /// Relative to the working directory.
    pub(super) path: String,
    /// Bytes.
    pub(super) size: usize,
}

impl From<SandboxInfo> for Sandbox {
    fn from(info: SandboxInfo) -> Self {
        Self {
            sandbox_id: info.id,
            name: info.name,
            created_at: rfc3339(info.created_at),
            expires_at: rfc3339(info.expires_at),
            last_used_at: rfc3339(info.last_used_at),
            state: info.state.as_str(),
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct InstallArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// Names, with extras and versions where wanted: "rich", "pandas[excel]>=2,<3"; or wheel files of
    /// the working directory.
    #[serde(default)]
    pub(super) package_names: Vec<String>,
    /// A requirements.txt of the working directory, instead of or beside the names.
    #[serde(default)]
    pub(super) requirements_file: Option<String>,
    /// Install newer versions also of what is there already.
    #[serde(default)]
    pub(super) upgrade: bool,
    /// Seconds to wait for the end, 50 when left out and 600 at most.
    #[serde(default)]
    pub(super) wait_seconds: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(super) struct PackageArguments {
    /// As returned by create_sandbox.
    pub(super) sandbox_id: String,
    /// Names of packages.
    pub(super) package_names: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(super) struct Packages {
    /// In the order of the names.
    pub(super) packages: Vec<PackageAnswer>,
}
