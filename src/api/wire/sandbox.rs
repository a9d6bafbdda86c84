//! Sandboxes as they are told of.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rfc3339;
use crate::api::openapi;
use crate::supervisor::{RenewSpec, SandboxInfo};

/// A sandbox in `GET /sandboxes`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sandbox)]
pub(crate) struct Listed {
    /// Free text for people.
    name: String,
    /// RFC 3339, UTC.
    created_at: String,
    /// When it is closed at the latest, RFC 3339, UTC.
    expires_at: String,
    /// RFC 3339, UTC.
    last_used_at: String,
    /// `idle`, `busy` or `closing`.
    #[schema(value_type = openapi::Activity)]
    state: &'static str,
    /// Name of the key whose it is; null where there are no keys.
    owner: Option<String>,
    /// Name of its mirror.
    mirror: Option<String>,
}

impl From<SandboxInfo> for Listed {
    fn from(info: SandboxInfo) -> Self {
        Self {
            created_at: rfc3339(info.created_at),
            expires_at: rfc3339(info.expires_at),
            last_used_at: rfc3339(info.last_used_at),
            state: info.state.as_str(),
            owner: info.owner,
            mirror: info.mirror.map(|mirror| mirror.name),
            name: info.name,
        }
    }
}

/// `GET /sandbox/{id}`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxDescription)]
pub(crate) struct Described {
    /// Names the sandbox in every other call.
    sandbox_id: String,
    #[serde(flatten)]
    listed: Listed,
    /// What it may use.
    limits: Limits,
    /// GPUs that it has.
    gpus: Vec<String>,
}

/// What a sandbox may use.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxLimits)]
struct Limits {
    /// RAM.
    memory_bytes: u64,
    /// Processors.
    cpus: f64,
    /// Processes and threads.
    processes: u64,
    /// Bytes of files.
    disk_bytes: u64,
    /// From its creation or its last renewal to its end.
    lease_seconds: u64,
    /// Null where it may be idle as long as it lives.
    idle_seconds: Option<u64>,
}

impl From<SandboxInfo> for Described {
    fn from(info: SandboxInfo) -> Self {
        let limits = &info.limits;
        Self {
            sandbox_id: info.id.clone(),
            gpus: info.gpus.clone(),
            limits: Limits {
                memory_bytes: limits.memory_bytes,
                cpus: limits.cpus,
                processes: limits.processes,
                disk_bytes: limits.disk_bytes,
                lease_seconds: limits.lease.as_secs(),
                idle_seconds: limits.idle.map(|idle| idle.as_secs()),
            },
            listed: info.into(),
        }
    }
}

/// Body of `POST /sandbox/{id}/renew`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RenewRequest {
    /// From now to its end; at most limits.max_lease_seconds. As long as it was unless given.
    #[schema(minimum = 1)]
    lease_seconds: Option<u64>,
    /// It is closed when it was not used for this time; likewise.
    #[schema(minimum = 1)]
    idle_seconds: Option<u64>,
}

impl From<RenewRequest> for RenewSpec {
    fn from(request: RenewRequest) -> Self {
        Self {
            lease_seconds: request.lease_seconds,
            idle_seconds: request.idle_seconds,
        }
    }
}

/// A sandbox that lives on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RenewedSandbox)]
pub(crate) struct Renewed {
    /// The sandbox.
    sandbox_id: String,
    /// When it is closed at the latest, RFC 3339, UTC.
    expires_at: String,
}

impl From<SandboxInfo> for Renewed {
    fn from(info: SandboxInfo) -> Self {
        Self {
            expires_at: rfc3339(info.expires_at),
            sandbox_id: info.id,
        }
    }
}
