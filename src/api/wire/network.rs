//! What travels of network policies and packages.

use std::time::Duration;

use rmcp::schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::error::Refusal;
use crate::api::openapi;
use crate::network::{Policy, Stats};
use crate::supervisor::{InstallInfo, InstallSpec, NetworkInfo, PackageInfo, PackageStatus};

/// Seconds that an install is waited for where the request does not say.
const WAIT_SECONDS: f64 = 300.0;

/// The `network` of a request: a policy, or whether there is any.
pub(crate) fn policy(value: Value) -> Result<Policy, Refusal> {
    match value {
        Value::Bool(false) => Ok(Policy::None),
        Value::Bool(true) => Ok(Policy::Open),
        value => serde_json::from_value(value)
            .map_err(|e| Refusal::invalid("network", format!("network: {e}"))),
    }
}

/// Body of `PUT /sandbox/{id}/network`: a policy, by itself or as `{"network": …}`.
pub(crate) fn policy_of_body(mut body: Value) -> Result<Policy, Refusal> {
    let object = body.as_object_mut();
    let inner =
        object.and_then(|object| Some((object.remove("network")?, object.keys().next().cloned())));
    match inner {
        Some((_, Some(other))) => Err(Refusal::invalid(
            other.clone(),
            format!("{other}: unknown field, expected `network` alone"),
        )),
        Some((inner, None)) => policy(inner),
        None => policy(body),
    }
}

/// What a sandbox may reach and has reached.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Network)]
pub(crate) struct NetworkAnswer {
    /// What it may reach.
    #[schema(value_type = openapi::NetworkPolicy)]
    network: Policy,
    #[serde(flatten)]
    #[schema(value_type = openapi::NetworkUse)]
    stats: Stats,
}

impl From<NetworkInfo> for NetworkAnswer {
    fn from(info: NetworkInfo) -> Self {
        Self {
            network: info.policy,
            stats: info.stats,
        }
    }
}

/// Body of `POST /sandbox/{id}/install`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstallRequest {
    /// A requirement: a name with extras and versions, or a wheel of the working directory.
    #[serde(default)]
    package_name: Option<String>,
    /// Several of them.
    #[serde(default)]
    packages: Vec<String>,
    /// A file of requirements in the working directory.
    #[serde(default)]
    requirements_file: Option<String>,
    /// Take newer versions of what is there.
    #[serde(default)]
    upgrade: bool,
    /// Seconds to wait for the end; 300 where it is missing. The installation goes on after them.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 86400)]
    wait_seconds: Option<f64>,
}

impl TryFrom<InstallRequest> for InstallSpec {
    type Error = Refusal;

    fn try_from(request: InstallRequest) -> Result<Self, Refusal> {
        let mut packages = request.packages;
        packages.extend(request.package_name);
        Ok(Self {
            packages,
            requirements_file: request.requirements_file,
            upgrade: request.upgrade,
            wait: wait(request.wait_seconds)?,
        })
    }
}

fn wait(wait_seconds: Option<f64>) -> Result<Duration, Refusal> {
    let wanted = wait_seconds.unwrap_or(WAIT_SECONDS);
    match Duration::try_from_secs_f64(wanted) {
        Ok(wait) if wait <= Duration::from_secs(24 * 3600) => Ok(wait),
        _ => Err(Refusal::invalid(
            "wait_seconds",
            "wait_seconds must be 0 to 86400",
        )),
    }
}

/// How an install stands.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Install)]
pub(crate) struct InstallAnswer {
    /// "installed", "installing", "failed" or "not_found".
    #[schema(value_type = openapi::PackageState)]
    pub(crate) status: &'static str,
    /// Whether all packages are installed.
    pub(crate) success: bool,
    /// Whether it has ended.
    pub(crate) complete: bool,
    /// What happened, in a sentence.
    pub(crate) message: String,
    /// Each package that was named.
    pub(crate) packages: Vec<PackageAnswer>,
    /// The installer's output.
    pub(crate) stdout: String,
    /// The installer's messages.
    pub(crate) stderr: String,
}

impl From<InstallInfo> for InstallAnswer {
    fn from(info: InstallInfo) -> Self {
        Self {
            status: word(info.status),
            success: info.status == PackageStatus::Installed,
            complete: info.status != PackageStatus::Installing,
            message: info.message,
            packages: info.packages.into_iter().map(PackageAnswer::from).collect(),
            stdout: info.stdout,
            stderr: info.stderr,
        }
    }
}

/// A package of a sandbox.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
#[schema(as = Package)]
pub(crate) struct PackageAnswer {
    /// Its name, normalized: lower case, words joined by "-".
    pub(crate) name: String,
    /// "installed", "installing", "failed", "not_found" (the index does not have it) or "not_installed".
    #[schema(value_type = openapi::PackageState)]
    pub(crate) status: &'static str,
    /// Installed version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Why it is not installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

impl From<PackageInfo> for PackageAnswer {
    fn from(info: PackageInfo) -> Self {
        Self {
            name: info.name,
            status: word(info.status),
            version: info.version,
            message: info.message,
        }
    }
}

fn word(status: PackageStatus) -> &'static str {
    match status {
        PackageStatus::Installing => "installing",
        PackageStatus::Installed => "installed",
        PackageStatus::Failed => "failed",
        PackageStatus::NotFound => "not_found",
        PackageStatus::NotInstalled => "not_installed",
    }
}
