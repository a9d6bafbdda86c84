//! Checkpoints over REST: variables of a context that are kept, and contexts that go on from them.

use std::sync::Arc;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::caller::Caller;
use super::error::Refusal;
use super::rest::{PartId, SandboxId, optional, required};
use super::wire::{BranchAnswer, CheckpointAnswer, CheckpointRequest, ForkRequest, RestoreRequest};
use super::{App, whole};

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandbox/{id}/checkpoints", get(list))
        .route("/sandbox/{id}/checkpoints/{checkpoint}", delete(remove))
        .route("/sandbox/{id}/contexts/{context}/checkpoint", post(create))
        .route("/sandbox/{id}/contexts/{context}/restore", post(restore))
        .route("/sandbox/{id}/contexts/{context}/fork", post(fork))
}

async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<CheckpointAnswer>>, Refusal> {
    let checkpoints = app.supervisor.checkpoints(&id)?.into_iter();
    Ok(Json(checkpoints.map(CheckpointAnswer::from).collect()))
}

async fn create(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CheckpointAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: CheckpointRequest = optional(&app, &headers, body).await?;
    let made = whole::checkpoint_context(&app.supervisor, &id, &context_id, request.name);
    Ok(Json(made.await?.into()))
}

async fn remove(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(checkpoint_id): PartId,
) -> Result<Json<Value>, Refusal> {
    whole::delete_checkpoint(&app.supervisor, &id, &checkpoint_id).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Checkpoint deleted" }),
    ))
}

async fn restore(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<BranchAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: RestoreRequest = required(&app, &headers, body).await?;
    let restored =
        whole::restore_context(&app.supervisor, &id, &context_id, &request.checkpoint_id);
    Ok(Json(restored.await?.into()))
}

async fn fork(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<BranchAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: ForkRequest = optional(&app, &headers, body).await?;
    let forked = whole::fork_context(&app.supervisor, &id, &context_id, request.into());
    Ok(Json(forked.await?.into()))
}
