//! Checkpoints over REST: variables of a context that are kept, and contexts that go on from them.

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use utoipa_axum::routes;

use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::rest::{PartId, SandboxId, optional, required};
use super::whole;
use super::wire::{BranchAnswer, CheckpointAnswer, CheckpointRequest, ForkRequest, RestoreRequest};

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list))
        .routes(routes!(remove))
        .routes(routes!(create))
        .routes(routes!(restore))
        .routes(routes!(fork))
}

/// List the checkpoints
#[utoipa::path(
    get,
    path = "/sandbox/{id}/checkpoints",
    operation_id = "list_checkpoints",
    tag = "contexts",
    responses((status = 200, description = "All of them, the oldest first.", body = Vec<CheckpointAnswer>)),
)]
async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<CheckpointAnswer>>, Refusal> {
    let checkpoints = app.supervisor.checkpoints(&id)?.into_iter();
    Ok(Json(checkpoints.map(CheckpointAnswer::from).collect()))
}

/// Keep the variables of a context
///
/// A copy of its Python process, asleep. Files are not part of it.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/contexts/{context}/checkpoint",
    operation_id = "create_checkpoint",
    tag = "contexts",
    request_body(content = CheckpointRequest, description = "May be left out."),
    responses((status = 200, description = "The checkpoint.", body = CheckpointAnswer)),
    extensions(("x-errors" = json!(["too_many_checkpoints", "not_copyable", "not_forked", "out_of_memory", "queue_full", "too_many_processes"]))),
)]
async fn create(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CheckpointAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: CheckpointRequest = optional(&app, &headers, body).await?;
    let CheckpointRequest { name, force } = request;
    let made = whole::checkpoint_context(&app.supervisor, &id, &context_id, name, force);
    Ok(Json(made.await?.into()))
}

/// Delete a checkpoint
#[utoipa::path(
    delete,
    path = "/sandbox/{id}/checkpoints/{checkpoint}",
    operation_id = "delete_checkpoint",
    tag = "contexts",
    responses((status = 200, description = "It is gone.", body = openapi::Done)),
)]
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

/// Take a context back to a checkpoint
///
/// Its variables are what they were; files are as they are.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/contexts/{context}/restore",
    operation_id = "restore_context",
    tag = "contexts",
    request_body = RestoreRequest,
    responses((status = 200, description = "The context, as it was then.", body = BranchAnswer)),
    extensions(("x-errors" = json!(["checkpoint_not_found", "checkpoint_lost", "not_forked", "out_of_memory", "queue_full", "too_many_processes"]))),
)]
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

/// Fork a context
///
/// A new context that goes on from this one, or from a checkpoint, with a copy of its variables.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/contexts/{context}/fork",
    operation_id = "fork_context",
    tag = "contexts",
    request_body(content = ForkRequest, description = "May be left out."),
    responses((status = 200, description = "The new context.", body = BranchAnswer)),
    extensions(("x-errors" = json!(["checkpoint_not_found", "checkpoint_lost", "too_many_contexts", "not_copyable", "not_forked", "out_of_memory", "queue_full", "too_many_processes"]))),
)]
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
