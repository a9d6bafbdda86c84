//! What a sandbox may reach, and its packages, over REST.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Query;
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::Value;

use super::App;
use super::caller::Caller;
use super::error::Refusal;
use super::rest::{SandboxId, required};
use super::wire::{InstallAnswer, InstallRequest, NetworkAnswer, PackageAnswer, policy_of_body};
use crate::supervisor::InstallSpec;

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandbox/{id}/network", get(show).put(set))
        .route("/sandbox/{id}/install", post(install))
        .route("/sandbox/{id}/packages", get(packages))
}

async fn show(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<NetworkAnswer>, Refusal> {
    Ok(Json(app.supervisor.network(&id)?.into()))
}

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
