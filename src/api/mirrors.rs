//! Mirrors over REST: the base, and layers of packages over it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::Refusal;
use super::rest::{SandboxId as MirrorId, required};
use super::wire::{MirrorAnswer, MirrorRequest};
use super::{App, whole};
use crate::supervisor::MirrorSpec;

/// Routes.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/mirrors", get(list).post(create))
        .route("/mirrors/{mirror}", get(one).delete(remove))
}

async fn list(Caller(app): Caller) -> Json<Vec<MirrorAnswer>> {
    let mirrors = app.supervisor.mirrors().into_iter();
    Json(mirrors.map(MirrorAnswer::from).collect())
}

async fn create(
    Caller(app): Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<MirrorAnswer>, Refusal> {
    let request: MirrorRequest = required(&app, &headers, body).await?;
    // It is made by a task of the supervisor's own: whoever asked may go away.
    let made = app.supervisor.create_mirror(MirrorSpec::try_from(request)?);
    Ok(Json(made.await?.into()))
}

async fn one(Caller(app): Caller, MirrorId(id): MirrorId) -> Result<Json<MirrorAnswer>, Refusal> {
    Ok(Json(app.supervisor.mirror(&id)?.into()))
}

async fn remove(Caller(app): Caller, MirrorId(id): MirrorId) -> Result<Json<Value>, Refusal> {
    whole::delete_mirror(&app.supervisor, &id).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Mirror deleted" }),
    ))
}
