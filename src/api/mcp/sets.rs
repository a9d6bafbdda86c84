//! Tool sets: what an endpoint offers. One handler serves them all ([`Tools`]); a set is a choice of
//! its tools with the text that tells a model how they go together.

use rmcp::handler::server::router::tool::ToolRouter;

use super::tools::Tools;
use super::{env, workspace};

const INSTRUCTIONS: &str = "Runs Python in isolated sandboxes. Create a sandbox once and keep \
using its sandbox_id: variables, imports and files last between executions until it is closed or \
expires. numpy, pandas, matplotlib, scipy, scikit-learn and other data packages are installed. \
Figures come back as images by themselves. Other packages come with install_packages_in_sandbox; \
code inside has no network unless the service's operator gave it one.";

/// Names of the sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetName {
    /// All verbs, with the second seed's names: `/mcp`.
    Default,
    /// The third seed's: `/mcp/env`.
    Env,
    /// The fourth seed's: `/mcp/workspace`.
    Workspace,
}

/// A choice of tools.
pub(super) struct ToolSet {
    /// What a model is told before it sees the tools.
    pub(super) instructions: &'static str,
    pub(super) router: ToolRouter<Tools>,
}

impl ToolSet {
    pub(super) fn of(name: SetName) -> Self {
        match name {
            SetName::Default => Self {
                instructions: INSTRUCTIONS,
                router: Tools::tool_router()
                    + Tools::context_router()
                    + Tools::checkpoint_router()
                    + Tools::mirror_router()
                    + Tools::package_router()
                    + Tools::port_router()
                    + Tools::process_router(),
            },
            SetName::Env => Self {
                instructions: env::INSTRUCTIONS,
                router: Tools::env_router(),
            },
            SetName::Workspace => Self {
                instructions: workspace::INSTRUCTIONS,
                router: Tools::workspace_router(),
            },
        }
    }
}
