//! Contexts of a sandbox over REST: several kernels over the same files, and the interrupt.

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use utoipa_axum::routes;

use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::rest::{PartId, SandboxId, optional};
use super::whole;
use super::wire::{ContextAnswer, ContextRequest, InterruptRequest};

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list, create))
        .routes(routes!(remove))
        .routes(routes!(restart))
        .routes(routes!(interrupt))
}

/// List the contexts
#[utoipa::path(
    get,
    path = "/sandbox/{id}/contexts",
    operation_id = "list_contexts",
    tag = "contexts",
    responses((status = 200, description = "All of them, `default` too.", body = Vec<ContextAnswer>)),
)]
async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<ContextAnswer>>, Refusal> {
    let contexts = app.supervisor.contexts(&id)?.into_iter();
    Ok(Json(contexts.map(ContextAnswer::from).collect()))
}

/// Create a context
///
/// Another Python process over the same files, with variables of its own.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/contexts",
    operation_id = "create_context",
    tag = "contexts",
    request_body(content = ContextRequest, description = "May be left out."),
    responses((status = 200, description = "The context, ready.", body = ContextAnswer)),
    extensions(("x-errors" = json!(["bad_cwd", "out_of_memory", "too_many_contexts", "too_many_processes"]))),
)]
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

/// Delete a context
#[utoipa::path(
    delete,
    path = "/sandbox/{id}/contexts/{context}",
    operation_id = "delete_context",
    tag = "contexts",
    responses((status = 200, description = "It is gone, and its variables.", body = openapi::Done)),
    extensions(("x-errors" = json!(["default_context"]))),
)]
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

/// Restart a context
///
/// Its variables are lost, its files are kept. What runs or waits in it is interrupted.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/contexts/{context}/restart",
    operation_id = "restart_context",
    tag = "contexts",
    responses((status = 200, description = "The context, with fresh variables.", body = ContextAnswer)),
    extensions(("x-errors" = json!(["bad_cwd", "out_of_memory", "too_many_processes"]))),
)]
async fn restart(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(context_id): PartId,
) -> Result<Json<ContextAnswer>, Refusal> {
    let info = whole::restart_context(&app.supervisor, &id, &context_id).await?;
    Ok(Json(info.into()))
}

/// Interrupt what runs
///
/// As Ctrl-C does, and harder where that does not help. What waits goes on.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/interrupt",
    operation_id = "interrupt",
    tag = "code",
    request_body(content = InterruptRequest, description = "May be left out."),
    responses((status = 200, description = "What was interrupted.", body = openapi::Interrupted)),
    extensions(("x-errors" = json!(["context_not_found"]))),
)]
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
