//! The fourth seed's tools, at `/mcp/workspace`. They have names and shapes of their own.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::{Deserialize, Serialize};

use super::answer::success;
use super::arguments::Parameters;
use super::prompts::HowTo;
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::supervisor::CreateSpec;

/// What a model is told before it sees the tools.
pub(super) const INSTRUCTIONS: &str = "Runs commands and Python programs in isolated workspaces. \
Call sandbox_initialize once and pass its container_id to every other tool.";

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
struct InitializeArguments {}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Initialized {
    /// What every other tool asks for.
    container_id: String,
}

#[tool_router(router = workspace_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Start a workspace",
        description = "Make an isolated workspace and return its container_id, which every other \
            tool needs. Make one per task and reuse it: files and packages last between calls.",
        output_schema = schema_for_output::<Initialized>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn sandbox_initialize(&self, _: Parameters<InitializeArguments>) -> CallToolResult {
        let created = whole::create(self.supervisor(), CreateSpec::default()).await;
        answered(created, |info| {
            let text = ContentBlock::text(info.id.clone());
            let container_id = info.id;
            success(&Initialized { container_id }, vec![text])
        })
    }
}
