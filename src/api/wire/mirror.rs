//! Mirrors, as they travel.

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rfc3339;
use crate::api::error::Refusal;
use crate::api::openapi;
use crate::supervisor::{MirrorInfo, MirrorSpec};

/// Seconds that a request waits for a mirror to be made where it does not say.
const WAIT_SECONDS: f64 = 300.0;

/// Body of `POST /mirrors`.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub(crate) struct MirrorRequest {
    /// Requirements, for example "rich" or "polars>=1".
    #[schema(min_items = 1)]
    pub(crate) packages: Vec<String>,
    /// Modules of these packages that are imported ahead, so that importing them takes no time in a
    /// sandbox, for example "polars".
    #[serde(default)]
    #[schema(max_items = 32)]
    preload: Vec<String>,
    /// A name to create sandboxes by: letters, digits, '.', '_', '-', at most 64.
    #[serde(default)]
    #[schema(pattern = "^[0-9A-Za-z._-]{1,64}$")]
    name: Option<String>,
    /// The mirror that the packages are added to; only "default", which it also is when left out.
    #[serde(default)]
    base: Option<String>,
    /// Seconds to wait for the mirror to be made; 300 when left out. It goes on when they are over.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3600)]
    wait_seconds: Option<f64>,
}

impl TryFrom<MirrorRequest> for MirrorSpec {
    type Error = Refusal;

    fn try_from(request: MirrorRequest) -> Result<Self, Refusal> {
        let wait = request.wait_seconds.unwrap_or(WAIT_SECONDS);
        let wait = std::time::Duration::try_from_secs_f64(wait).map_err(|_| {
            Refusal::invalid(
                "wait_seconds",
                "wait_seconds must be a number of seconds, 0 or more",
            )
        })?;
        Ok(Self {
            name: request.name,
            base: request.base,
            packages: request.packages,
            preload: request.preload,
            wait,
        })
    }
}

/// A package of a mirror.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct MirrorPackage {
    /// Its name, normalized.
    name: String,
    /// Installed version.
    version: String,
}

/// A mirror.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Mirror)]
pub(crate) struct MirrorAnswer {
    /// What create_sandbox takes, as it does the name.
    pub(crate) mirror_id: String,
    /// Likewise; the id where it was given none.
    pub(crate) name: String,
    /// Id of the mirror that it adds packages to; null for the base itself.
    base: Option<String>,
    /// building, ready or failed.
    #[schema(value_type = openapi::MirrorState)]
    pub(crate) status: &'static str,
    /// Why it failed.
    pub(crate) detail: Option<String>,
    /// Requirements, as they were asked for.
    requested: Vec<String>,
    /// Packages that were added, with their versions.
    pub(crate) packages: Vec<MirrorPackage>,
    /// Modules that are imported ahead.
    preload: Vec<String>,
    /// What its files are: the start of a SHA-256 over all of them.
    content: Option<String>,
    /// Bytes of its own files.
    size_bytes: Option<u64>,
    /// RFC 3339, UTC.
    created_at: String,
}

impl From<MirrorInfo> for MirrorAnswer {
    fn from(info: MirrorInfo) -> Self {
        let packages = info.packages.into_iter();
        Self {
            mirror_id: info.id,
            name: info.name,
            base: info.base,
            status: info.status.as_str(),
            detail: info.detail,
            requested: info.requested,
            packages: packages
                .map(|p| MirrorPackage {
                    name: p.name,
                    version: p.version,
                })
                .collect(),
            preload: info.preload,
            content: info.content,
            size_bytes: info.size_bytes,
            created_at: rfc3339(info.created_at),
        }
    }
}
