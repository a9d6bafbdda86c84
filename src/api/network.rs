//! What a sandbox may reach, and its packages, over REST.

use axum::Json;
use axum::body::Body;
use axum::extract::Query;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;
use utoipa_axum::routes;

use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::rest::{SandboxId, required};
use super::wire::{InstallAnswer, InstallRequest, NetworkAnswer, PackageAnswer, policy_of_body};
use crate::supervisor::InstallSpec;

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(show, set))
        .routes(routes!(install))
        .routes(routes!(packages))
}

/// Show what a sandbox may reach
#[utoipa::path(
    get,
    path = "/sandbox/{id}/network",
    operation_id = "show_network",
    tag = "packages",
    responses((status = 200, description = "The policy, and what was reached and refused.", body = NetworkAnswer)),
)]
async fn show(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<NetworkAnswer>, Refusal> {
    Ok(Json(app.supervisor.network(&id)?.into()))
}

/// Change what a sandbox may reach
///
/// The body is a list of what is allowed, by itself, or `network` as at creation. Connections that
/// the new policy does not allow are closed.
#[utoipa::path(
    put,
    path = "/sandbox/{id}/network",
    operation_id = "set_network",
    tag = "packages",
    request_body = openapi::NetworkBody,
    responses((status = 200, description = "The policy that holds from now on.", body = NetworkAnswer)),
    extensions(("x-errors" = json!(["proxy_port_in_use"]))),
)]
async fn set(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<NetworkAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let body: Value = required(&app, &headers, body).await?;
    let policy = policy_of_body(body)?;
    Ok(Json(app.supervisor.set_network(&id, policy).await?.into()))
}

/// Install packages
///
/// From the package index, whatever the sandbox may reach. What is running sees them at once.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/install",
    operation_id = "install_packages",
    tag = "packages",
    request_body = InstallRequest,
    responses((status = 200, description = "How it stands: a failure of the installer is an answer too.", body = InstallAnswer)),
    extensions(("x-errors" = json!(["bad_requirements_file", "packages_unreadable", "too_many_installs", "too_many_requests", "files"]))),
)]
async fn install(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<InstallAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: InstallRequest = required(&app, &headers, body).await?;
    let installed = app.supervisor.install(&id, InstallSpec::try_from(request)?);
    Ok(Json(installed.await?.into()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    /// Separated by commas.
    names: String,
}

/// Tell how packages stand
#[utoipa::path(
    get,
    path = "/sandbox/{id}/packages",
    operation_id = "show_packages",
    tag = "packages",
    params(("names" = String, Query, description = "Separated by commas.", example = "rich,numpy")),
    responses((status = 200, description = "Each of the packages.", body = Vec<PackageAnswer>)),
    extensions(("x-errors" = json!(["invalid_field", "packages_unreadable", "too_many_requests", "too_many_processes"]))),
)]
async fn packages(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    names: Result<Query<Names>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Vec<PackageAnswer>>, Refusal> {
    app.supervisor.info(&id)?;
    let Query(Names { names }) = names.map_err(|_| {
        Refusal::invalid(
            "names",
            "names: packages separated by commas, as in ?names=rich,numpy",
        )
    })?;
    let names: Vec<String> = names
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    let told = app.supervisor.packages(&id, &names).await?;
    Ok(Json(told.into_iter().map(PackageAnswer::from).collect()))
}
