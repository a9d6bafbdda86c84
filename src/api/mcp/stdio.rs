//! MCP over a pair of byte streams, a message a line: what `sandcell mcp` serves.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::service::serve_server;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncWrite};

use super::sets::{SetName, ToolSet};
use super::tools::Tools;
use crate::api::App;
use crate::supervisor::Supervisor;

/// Serves one client until its stream ends. Code that runs then has seconds to end, and is
/// interrupted after that; dropping the future interrupts it at once.
pub async fn serve_messages(
    supervisor: &Supervisor,
    set: SetName,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) {
    let config = supervisor.config();
    let line_bytes = usize::try_from(config.server.max_body_bytes).unwrap_or(usize::MAX);
    let app = App {
        supervisor: supervisor.clone(),
        server: Arc::new(config.server.clone()),
        code_bytes: config.limits.code_bytes,
    };
    let tools = Tools::new(Arc::new(app), ToolSet::of(set));
    let transport = AsyncRwTransport::<RoleServer, _, _>::new_server(input, output);
    let transport = transport.with_max_line_length(line_bytes);
    match serve_server(tools, transport).await {
        Ok(running) => drop(running.waiting().await),
        Err(error) => tracing::info!(%error, "the client began no session"),
    }
}
