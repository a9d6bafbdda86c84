//! Tool sets: what an endpoint offers. One handler serves them all ([`Tools`]); a set is a choice of
//! its tools with the text that tells a model how they go together.

use rmcp::handler::server::router::tool::ToolRouter;

use super::prompts::HowTo;
use super::tools::Tools;
use super::{env, workspace};

const INSTRUCTIONS: &str = "Runs Python in isolated sandboxes. Create a sandbox once and keep \
using its sandbox_id: variables, imports and files last between executions until it is closed or \
expires. numpy, pandas, matplotlib, scipy, scikit-learn and other data packages are installed. \
Figures come back as images by themselves. Other packages come with install_packages_in_sandbox; \
code inside has no network unless the service's operator gave it one.";

/// Names of the sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetName {
    /// All verbs, with the second seed's names: `/mcp`.
    Default,
    /// The third seed's: `/mcp/env`.
    Env,
    /// The fourth seed's: `/mcp/workspace`.
    Workspace,
}

impl SetName {
    /// Path of the endpoint that has it.
    pub fn path(self) -> &'static str {
        match self {
            Self::Default => "/mcp",
            Self::Env => "/mcp/env",
            Self::Workspace => "/mcp/workspace",
        }
    }
}

/// A choice of tools.
pub(super) struct ToolSet {
    /// What a model is told before it sees the tools.
    pub(super) instructions: &'static str,
    /// How they go together, as a prompt.
    pub(super) how_to: HowTo,
    pub(super) router: ToolRouter<Tools>,
}

const HOW_TO: HowTo = HowTo {
    name: "use_sandbox",
    title: "Work in a Python sandbox",
    text: "You can run Python and shell commands in an isolated sandbox. Work like this:\n\
        1. Call create_sandbox once and keep its sandbox_id; every other tool asks for it.\n\
        2. Run code with execute_python_code, in steps, like the cells of a notebook: variables, \
        imports and files of earlier steps are there. Figures of matplotlib come back as images by \
        themselves; save one to a file only when the file is wanted.\n\
        3. numpy, pandas, matplotlib, scipy, scikit-learn and more are there. Install what is \
        missing with install_packages_in_sandbox; when it answers \"installing\", ask \
        check_packages_installation_status until it is done. It can be imported at once.\n\
        4. Give code its data with write_file or upload_file_to_sandbox; look at what it made with \
        list_files and read_file. Each answer lists the files that the code made, with links.\n\
        5. An exception comes with its traceback and keeps the variables: mend the code and go on.\n\
        6. Call close_sandbox at the end, when nothing of it is needed any more.",
};

impl ToolSet {
    pub(super) fn of(name: SetName) -> Self {
        match name {
            SetName::Default => Self {
                instructions: INSTRUCTIONS,
                how_to: HOW_TO,
                router: Tools::tool_router()
                    + Tools::context_router()
                    + Tools::checkpoint_router()
                    + Tools::mirror_router()
                    + Tools::package_router()
                    + Tools::port_router()
                    + Tools::process_router()
                    + Tools::upload_router(),
            },
            SetName::Env => Self {
                instructions: env::INSTRUCTIONS,
                how_to: env::HOW_TO,
                router: Tools::env_router() + Tools::env_package_router(),
            },
            SetName::Workspace => Self {
                instructions: workspace::INSTRUCTIONS,
                how_to: workspace::HOW_TO,
                router: Tools::workspace_router()
                    + Tools::workspace_exec_router()
                    + Tools::workspace_file_router(),
            },
        }
    }
}
