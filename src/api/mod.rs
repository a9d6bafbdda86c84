//! REST and MCP on one port: decode, one call of the supervisor, encode.
//!
//! ```text
//! TcpListener ─ connections ≤ max_connections, header and stall timeouts     server, socket
//!   └─ every request: panic → 500, Host, Origin, CORS, key → whose it is     server, guard, caller
//!        ├─ /sandbox/…, /sandboxes, /mirrors, /health   body → wire → Supervisor       rest, upload, download
//!        │     ├─ execute: events → one outcome, or a stream of them         outcome, lines
//!        │     ├─ command: likewise                                          commands
//!        │     └─ processes; a WebSocket takes the connection over           processes, attach
//!        ├─ /openapi.json, /docs              what the REST routes are          openapi, docs
//!        ├─ /mcp, /mcp/env, /mcp/workspace    rmcp → tools → Supervisor      mcp
//!        ├─ /sse, /messages/, /mcp/tools/{tool}   the same by other transports mcp
//!        └─ /sandbox/{id}/port/{n}/…, {n}-{id}.<domain>: to a server inside  ports
//! ```
//!
//! Invariants: nothing here holds state of a sandbox; a verb is implemented once, in the
//! supervisor; a request's future owns its execution, so a client that goes away interrupts its
//! code unless it said otherwise, while sandboxes are made and closed to the end (`whole`); every failure becomes an
//! answer in [`error`], nowhere else; a handler gets the supervisor as its caller's key sees it, and
//! before the key is known it sees nothing; nothing reads a body without a limit and a stall timeout.

mod access;
mod archives;
mod attach;
mod body;
mod caller;
mod checkpoints;
mod commands;
mod contexts;
mod docs;
mod download;
mod encoder;
pub mod error;
mod file_link;
mod filetree;
mod guard;
mod lines;
mod mcp;
mod mirrors;
mod network;
mod openapi;
mod outcome;
mod ports;
mod processes;
mod query;
mod rest;
mod sandboxes;
mod server;
mod socket;
mod truncated;
mod upload;
mod version;
mod watch;
mod whole;
mod wire;

use std::sync::Arc;
use std::time::Duration;

pub use access::Access;
pub use error::Error;
pub use mcp::{SetName, serve_messages};
pub use server::serve;
pub(crate) use wire::rfc3339;

use crate::config::{self, Config};
use crate::supervisor::Supervisor;
use error::Limit;

/// Refuses a configuration that lets anyone who reaches the port run code, or that cannot be
/// enforced as written. To be called before anything is started.
///
/// # Errors
/// The setting at fault, by name.
pub fn check_exposure(config: &Config) -> Result<(), Error> {
    guard::check(&config.server, config.server.listen)
}

/// What every handler needs, of which it gets its caller's share ([`caller::Caller`]).
pub(crate) struct App {
    supervisor: Supervisor,
    server: Arc<config::Server>,
    code_bytes: usize,
}

impl App {
    fn body_limit(&self) -> Limit {
        Limit {
            code: "body_too_large",
            what: "the body",
            name: "server.max_body_bytes",
            bytes: self.server.max_body_bytes,
        }
    }

    fn upload_limit(&self) -> Limit {
        Limit {
            code: "upload_too_large",
            what: "the upload",
            name: "server.max_upload_bytes",
            bytes: self.server.max_upload_bytes,
        }
    }

    fn code_limit(&self) -> Limit {
        Limit {
            code: "code_too_large",
            what: "the code",
            name: "limits.code_bytes",
            bytes: self.code_bytes as u64,
        }
    }

    /// How long a body may stand still.
    fn stall(&self) -> Duration {
        Duration::from_secs(self.server.body_timeout_seconds)
    }
}
