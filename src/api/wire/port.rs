//! What travels of servers inside.

use rmcp::schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

use crate::supervisor::ListeningPort;

/// An entry of `GET /sandbox/{id}/ports`.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = ListeningPort)]
pub(crate) struct PortAnswer {
    /// TCP port on which something listens.
    #[schema(minimum = 1)]
    port: u16,
    /// Address it is bound to.
    address: String,
    /// Path of the service that leads to it, for programs and simple pages.
    url: String,
    /// Host name of the service that leads to it, for browsers: the server has it for its own.
    host: String,
}

impl PortAnswer {
    /// `domain` is `server.ports_domain`.
    pub(crate) fn new(sandbox_id: &str, domain: &str, found: ListeningPort) -> Self {
        let port = found.port;
        Self {
            port,
            address: found.address.to_string(),
            url: format!("/sandbox/{sandbox_id}/port/{port}/"),
            host: format!("{port}-{sandbox_id}.{domain}"),
        }
    }

    /// For a list that people read.
    pub(crate) fn line(&self) -> String {
        format!("{} on {} at {}", self.port, self.address, self.url)
    }
}
