//! Contexts of a sandbox over REST: several kernels over the same files, and the interrupt.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::Refusal;
use super::rest::{PartId, SandboxId, optional};
use super::wire::{ContextAnswer, ContextRequest, InterruptRequest};
use super::{App, whole};

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandbox/{id}/contexts", get(list).post(create))
        .route("/sandbox/{id}/contexts/{context}", delete(remove))
        .route("/sandbox/{id}/contexts/{context}/restart", post(restart))
        .route("/sandbox/{id}/interrupt", post(interrupt))
}

async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<ContextAnswer>>, Refusal> {
    let contexts = app.supervisor.contexts(&id)?.into_iter();
    Ok(Json(contexts.map(ContextAnswer::from).collect()))
}

async fn create(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ContextAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: ContextRequest = optional(&app, &headers, body).await?;
    let info = whole::create_context(&app.supervisor, &id, request.into()).await?;
    Ok(Json(info.into()))
}

async fn remove(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
) -> Result<Json<Value>, Refusal> {
    whole::delete_context(&app.supervisor, &id, &context_id).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Context deleted" }),
    ))
}

async fn restart(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
) -> Result<Json<ContextAnswer>, Refusal> {
    let info = whole::restart_context(&app.supervisor, &id, &context_id).await?;
    Ok(Json(info.into()))
}

async fn interrupt(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    app.supervisor.info(&id)?;
    let request: InterruptRequest = optional(&app, &headers, body).await?;
    let interrupted = app
        .supervisor
        .interrupt(&id, request.context_id.as_deref())?;
    Ok(Json(
        json!({ "status": "success", "interrupted": interrupted }),
    ))
}
