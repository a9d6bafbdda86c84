//! The tool for servers inside.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::{tool, tool_router};

use super::answer::success;
use super::arguments::Parameters;
use super::schema::{Ports, SandboxArguments};
use super::tools::{Tools, answered};
use crate::api::wire::PortAnswer;

#[tool_router(router = port_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "List ports",
        description = "List the TCP ports on which servers in a sandbox listen, with the path of \
            this service that leads to each and its host name for browsers. A server that was just \
            started may take a moment to listen.",
        output_schema = schema_for_output::<Ports>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_ports(
        &self,
        Parameters(arguments): Parameters<SandboxArguments>,
    ) -> CallToolResult {
        let id = &arguments.sandbox_id;
        answered(self.supervisor().ports(id).await, |list| {
            let domain = &self.supervisor().config().server.ports_domain;
            let ports: Vec<_> = list
                .into_iter()
                .map(|port| PortAnswer::new(id, domain, port))
                .collect();
            let lines: Vec<String> = ports.iter().map(PortAnswer::line).collect();
            let text = match lines.len() {
                0 => "Nothing listens.".to_owned(),
                _ => lines.join("\n"),
            };
            success(&Ports { ports }, vec![ContentBlock::text(text)])
        })
    }
}
