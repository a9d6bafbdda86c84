//! The third seed's tools, at `/mcp/env`. They have names and shapes of their own; a `container_id` is
//! a sandbox's id.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::Serialize;

use super::answer::success;
use super::schema::NoArguments;
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::supervisor::CreateSpec;

/// What a model is told before it sees the tools.
pub(super) const INSTRUCTIONS: &str = "Runs Python in isolated environments. Call create_python_env \
once and pass its container_id to every other tool.";

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Environment {
    /// What every other tool asks for.
    container_id: String,
}

#[tool_router(router = env_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Create a Python environment",
        description = "Create an isolated Python environment and return its container_id, which \
            every other tool needs. Create one per task and reuse it: variables, imports, packages \
            and files last between calls.",
        output_schema = schema_for_output::<Environment>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn create_python_env(&self, _: Parameters<NoArguments>) -> CallToolResult {
        let created = whole::create(self.supervisor(), CreateSpec::default()).await;
        answered(created, |info| {
            let text = ContentBlock::text(info.id.clone());
            let container_id = info.id;
            success(&Environment { container_id }, vec![text])
        })
    }
}
