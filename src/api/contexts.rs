//! Contexts of a sandbox over REST: several kernels over the same files, and the interrupt.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::error::Refusal;
use super::rest::{SandboxId, optional, segment};
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

/// The `{context}` of a route, as it stands there; like [`SandboxId`].
pub(super) struct ContextId(pub(super) String);

impl<S: Sync> FromRequestParts<S> for ContextId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(segment(parts, 4)))
    }
}

async fn list(
    State(app): State<Arc<App>>,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<ContextAnswer>>, Refusal> {
    let contexts = app.supervisor.contexts(&id)?.into_iter();
    Ok(Json(contexts.map(ContextAnswer::from).collect()))
}

async fn create(
    State(app): State<Arc<App>>,
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
    State(app): State<Arc<App>>,
    SandboxId(id): SandboxId,
    ContextId(context_id): ContextId,
) -> Result<Json<Value>, Refusal> {
    whole::delete_context(&app.supervisor, &id, &context_id).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Context deleted" }),
    ))
}

async fn restart(
    State(app): State<Arc<App>>,
    SandboxId(id): SandboxId,
    ContextId(context_id): ContextId,
) -> Result<Json<ContextAnswer>, Refusal> {
    let info = whole::restart_context(&app.supervisor, &id, &context_id).await?;
    Ok(Json(info.into()))
}

async fn interrupt(
    State(app): State<Arc<App>>,
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
