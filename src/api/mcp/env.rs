//! The third seed's tools, at `/mcp/env`. They have names and shapes of their own; a `container_id` is
//! a sandbox's id.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::Serialize;

use super::answer::success;
use super::arguments::Parameters;
use super::prompts::HowTo;
use super::schema::NoArguments;
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::supervisor::CreateSpec;

/// What a model is told before it sees the tools.
pub(super) const INSTRUCTIONS: &str = "Runs Python in isolated environments. Call create_python_env \
once and pass its container_id to every other tool.";

/// How the tools go together, as a prompt.
pub(super) const HOW_TO: HowTo = HowTo {
    name: "use_python_env",
    title: "Work in a Python environment",
    text: "You have a Python environment at your disposal. Work like this:\n\
        1. Call create_python_env. It gives you a container_id, which the other tools ask for.\n\
        2. Where a package is missing, call install_package_in_env with the container_id and the \
        package_name. It answers within seconds; the installation may go on.\n\
        3. Call check_package_status with the same container_id and package_name until the package \
        is installed.\n\
        4. Run code with execute_python_code and the container_id. You get its output, its errors \
        and links to the files that it made. Variables and imports last from call to call.\n\
        Write charts and tables to files (plt.savefig, df.to_csv) where the user wants to have \
        them: each file in the working directory gets a link to download it, to be passed on to the \
        user.",
};

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
