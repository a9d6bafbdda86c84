//! The fourth seed's tools, at `/mcp/workspace`: containers, workspaces and commands. They have names
//! and shapes of their own, and every answer says `success`. See [`crate::supervisor`]'s workspaces for
//! what a container is.

mod exec;
mod files;

use std::fmt::Write as _;

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::{advice, failure, success};
use super::arguments::Parameters;
use super::prompts::HowTo;
use super::tools::Tools;
use crate::api::error::Refusal;
use crate::api::whole;
use crate::api::wire::rfc3339;
use crate::supervisor::{HOME, Record, Stopped, WorkspaceInfo, WorkspaceSpec};

/// What a model is told before it sees the tools.
pub(super) const INSTRUCTIONS: &str = "Runs commands and Python programs in isolated workspaces. Call \
sandbox_initialize once per task and pass its container_id and workspace_id to every other tool. Put \
files there with write_file_sandbox (their text), copy_file or copy_project (from the machine that \
this service runs on); run them with sandbox_exec, for example commands [\"python main.py\"]; fetch \
what they made with copy_file_from_sandbox. Packages that a script imports, or that a requirements.txt \
beside it names, are installed before it runs; the network is closed to the programs themselves unless \
the service's operator opened it. Workspaces see nothing of each other. End with clean_workspace, or \
sandbox_stop for a standalone container.";

/// Messages between what runs and the client.
const MESSAGES: usize = 16;

/// How the tools go together, as a prompt.
pub(super) const HOW_TO: HowTo = HowTo {
    name: "use_workspace",
    title: "Work in a workspace",
    text: "You have isolated workspaces for programs at your disposal. Work like this:\n\
        1. Call sandbox_initialize. It gives you a container_id and a workspace_id; pass both to \
        the other tools.\n\
        2. Write files with write_file_sandbox, or bring a directory of the user's with \
        copy_project and a file with copy_file.\n\
        3. Run commands with sandbox_exec: they run one after the other and stop at the first that \
        fails. Packages that a requirements.txt or a script's imports name are installed first.\n\
        4. Take results out with copy_file_from_sandbox. get_container_logs tells what has run.\n\
        5. Call clean_workspace when the task is done, and sandbox_stop when no other follows.",
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct InitializeArguments {
    /// Leave it out for the standard Python packages; "python:3.x-slim" means those too. Otherwise the
    /// name of a mirror, which is a set of packages that was prepared on this service.
    #[serde(default)]
    image: Option<String>,
    /// true (when left out): a workspace of your lasting container, whose container_id is always the
    /// same. false: a standalone container with this one workspace.
    #[serde(default)]
    use_persistent: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Initialized {
    success: bool,
    /// What every other tool asks for.
    container_id: String,
    /// What every other tool asks for beside it.
    workspace_id: String,
    /// The workspace's directory, in which commands start. Paths of other tools are relative to it.
    workspace_path: &'static str,
    /// "persistent" or "standalone".
    mode: &'static str,
    /// When the workspace is closed at the latest, RFC 3339, UTC.
    expires_at: String,
    message: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct CleanArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// As returned by sandbox_initialize.
    workspace_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct StopArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// true keeps the container in any case; false when left out.
    #[serde(default)]
    is_persistent: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct LogArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Done {
    success: bool,
    message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Logs {
    success: bool,
    /// Commands with the times at which they ended, their output and exit codes, oldest first; the
    /// oldest are dropped when there is much of it.
    logs: String,
}

#[tool_router(router = workspace_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Start a workspace",
        description = "Make an isolated workspace and return its container_id and workspace_id, which \
            the other tools need. Make one per task and reuse it: files and packages last between \
            calls. Workspaces are separate: none sees files, processes or variables of another, \
            also within one container.",
        output_schema = schema_for_output::<Initialized>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn sandbox_initialize(
        &self,
        Parameters(arguments): Parameters<InitializeArguments>,
    ) -> CallToolResult {
        let spec = WorkspaceSpec {
            persistent: arguments.use_persistent.unwrap_or(true),
            image: arguments.image,
        };
        match whole::open_workspace(self.supervisor(), spec).await {
            Ok(info) => {
                let answer = Initialized::from(info);
                let text = format!(
                    "{} container_id {}, workspace_id {}",
                    answer.message, answer.container_id, answer.workspace_id
                );
                success(&answer, vec![ContentBlock::text(text)])
            }
            Err(e) => refused(&e.into()),
        }
    }

    #[tool(
        title = "End a workspace",
        description = "Delete a workspace with everything in it: its files, packages and processes. \
            Fetch the files you need first. The container_id stays valid for other workspaces; of a \
            standalone container only the files are deleted.",
        output_schema = schema_for_output::<Done>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn clean_workspace(
        &self,
        Parameters(arguments): Parameters<CleanArguments>,
    ) -> CallToolResult {
        let (container, workspace) = (&arguments.container_id, &arguments.workspace_id);
        let cleaned = whole::clean_workspace(self.supervisor(), container, workspace).await;
        match cleaned {
            Ok(()) => done(format!("Workspace {workspace} is cleaned.")),
            Err(e) => refused(&e.into()),
        }
    }

    #[tool(
        title = "Stop a container",
        description = "Stop and remove a standalone container with everything in it. Your lasting \
            container is never stopped: end its workspaces with clean_workspace.",
        output_schema = schema_for_output::<Done>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn sandbox_stop(
        &self,
        Parameters(arguments): Parameters<StopArguments>,
    ) -> CallToolResult {
        let id = &arguments.container_id;
        let persistent = arguments.is_persistent.unwrap_or(false);
        match whole::stop_container(self.supervisor(), id, persistent).await {
            Ok(Stopped::Closed) => done(format!("Container {id} is stopped and removed.")),
            Ok(Stopped::Kept) => done(format!(
                "Container {id} is persistent and kept; clean_workspace ends a workspace of it."
            )),
            Err(e) => refused(&e.into()),
        }
    }

    #[tool(
        title = "Read a container's log",
        description = "Return what sandbox_exec ran in a container, in all of its workspaces: \
            commands, their output and exit codes, and what was installed for them.",
        output_schema = schema_for_output::<Logs>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn get_container_logs(
        &self,
        Parameters(arguments): Parameters<LogArguments>,
    ) -> CallToolResult {
        match self.supervisor().container_log(&arguments.container_id) {
            Ok(records) => {
                let logs = shown(&records);
                let text = match logs.is_empty() {
                    true => "Nothing was run yet.".to_owned(),
                    false => logs.clone(),
                };
                let answer = Logs {
                    success: true,
                    logs,
                };
                success(&answer, vec![ContentBlock::text(text)])
            }
            Err(e) => refused(&e.into()),
        }
    }
}

impl Tools {
    /// The sandbox that the ids of a container and a workspace name.
    fn workspace_of(
        &self,
        container_id: &str,
        workspace_id: Option<&str>,
    ) -> Result<String, Refusal> {
        let sandbox = self.supervisor().workspace(container_id, workspace_id)?;
        Ok(sandbox.id)
    }
}

impl From<WorkspaceInfo> for Initialized {
    fn from(info: WorkspaceInfo) -> Self {
        let mode = match info.persistent {
            true => "persistent",
            false => "standalone",
        };
        let note = info.note.map(|note| format!(" Note: {note}."));
        Self {
            success: true,
            container_id: info.container_id,
            workspace_id: info.sandbox.id,
            workspace_path: HOME,
            mode,
            expires_at: rfc3339(info.sandbox.expires_at),
            message: format!("Started a {mode} workspace.{}", note.unwrap_or_default()),
        }
    }
}

/// A success without more to tell.
fn done(message: String) -> CallToolResult {
    let answer = Done {
        success: true,
        message: message.clone(),
    };
    success(&answer, vec![ContentBlock::text(message)])
}

/// A refusal, in the seed's shape too.
fn refused(refusal: &Refusal) -> CallToolResult {
    let mut result = failure(refusal);
    result.structured_content = Some(json!({ "success": false, "error": advice(refusal) }));
    result
}

fn shown(records: &[(String, Record)]) -> String {
    let mut text = String::new();
    for (workspace, record) in records {
        let at = rfc3339(record.at);
        let _ = writeln!(text, "[{at}] {workspace} $ {}", record.command);
        text.push_str(&record.output);
        if !record.output.is_empty() && !record.output.ends_with('\n') {
            text.push('\n');
        }
        if let Some(code) = record.exit_code {
            let _ = writeln!(text, "[exit code {code}]");
        }
    }
    text
}
