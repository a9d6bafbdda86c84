//! Sandboxes as they are told of.

use serde::{Deserialize, Serialize};

use super::rfc3339;
use crate::supervisor::{RenewSpec, SandboxInfo};

/// A sandbox in `GET /sandboxes`.
#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    name: String,
    created_at: String,
    expires_at: String,
    last_used_at: String,
    state: &'static str,
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
            mirror: info.mirror.map(|mirror| mirror.name),
            name: info.name,
        }
    }
}

/// `GET /sandbox/{id}`.
#[derive(Debug, Serialize)]
pub(crate) struct Described {
    sandbox_id: String,
    #[serde(flatten)]
    listed: Listed,
    limits: Limits,
}

/// What a sandbox may use.
#[derive(Debug, Serialize)]
struct Limits {
    memory_bytes: u64,
    cpus: f64,
    processes: u64,
    disk_bytes: u64,
    lease_seconds: u64,
    /// Null where it may be idle as long as it lives.
    idle_seconds: Option<u64>,
}

impl From<SandboxInfo> for Described {
    fn from(info: SandboxInfo) -> Self {
        let limits = &info.limits;
        Self {
            sandbox_id: info.id.clone(),
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
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RenewRequest {
    lease_seconds: Option<u64>,
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
#[derive(Debug, Serialize)]
pub(crate) struct Renewed {
    sandbox_id: String,
    /// RFC 3339, UTC.
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
