//! The fourth seed's tools, at `/mcp/workspace`. They have names and shapes of their own.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::{Deserialize, Serialize};

use super::answer::success;
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::supervisor::CreateSpec;

/// What a model is told before it sees the tools.
pub(super) const INSTRUCTIONS: &str = "Runs commands and Python programs in isolated workspaces. \
Call sandbox_initialize once and pass its container_id to every other tool.";

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
