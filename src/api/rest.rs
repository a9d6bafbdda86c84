//! The REST routes. Every success is exactly 200: clients of the first seed test for that.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa_axum::routes;

use super::body::{self, Media};
use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::outcome::{Outcome, gather};
use super::wire::{CreateRequest, Created, ExecuteRequest};
use super::{
    App, checkpoints, commands, contexts, download, file_link, filetree, lines, mirrors, network,
    ports, processes, sandboxes, upload, whole,
};
use crate::supervisor::{CreateSpec, ExecuteSpec};

/// Routes and what answers where there is none.
pub(crate) fn routes() -> Router<Arc<App>> {
    let (routes, _) = described().split_for_parts();
    routes
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
}

/// Routes with their description.
pub(super) fn described() -> Routes {
    Routes::new()
        .routes(routes!(health))
        .routes(routes!(create))
        .routes(routes!(execute))
        .routes(routes!(commands::command))
        .routes(routes!(upload::upload))
        .routes(routes!(download::download))
        .routes(routes!(close))
        .merge(sandboxes::routes())
        .routes(routes!(file_link::file))
        .merge(filetree::routes())
        .merge(contexts::routes())
        .merge(checkpoints::routes())
        .merge(mirrors::routes())
        .merge(processes::routes())
        .merge(network::routes())
        .merge(ports::routes())
        .merge(openapi::routes())
}

async fn unknown_route() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such route")
}

pub(super) async fn wrong_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "this route does not take that method",
    )
}

/// The `{id}` of a route, as it stands there: an id needs no decoding, so what would need it is
/// simply unknown.
pub(crate) struct SandboxId(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for SandboxId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(segment(parts, 2)))
    }
}

/// The `{context}`, `{checkpoint}` or `{process}` of a route below a sandbox's; like [`SandboxId`].
pub(super) struct PartId(pub(super) String);

impl<S: Sync> FromRequestParts<S> for PartId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(segment(parts, 4)))
    }
}

/// The `n`th segment of a request's path as it stands there; the empty one before the first is 0.
pub(super) fn segment(parts: &Parts, n: usize) -> String {
    let segment = parts.uri.path().split('/').nth(n);
    segment.unwrap_or_default().to_owned()
}

/// Tell whether the service runs
///
/// Needs no key.
#[utoipa::path(
    get,
    path = "/health",
    operation_id = "health",
    tag = "service",
    responses((status = 200, description = "It answers.", body = openapi::Health)),
)]
async fn health() -> Json<Value> {
    Json(json!({ "status": "healthy" }))
}

/// Create a sandbox
///
/// It is ready when this answers, and closed when its lease is over. Everything in the body is
/// optional.
#[utoipa::path(
    post,
    path = "/sandbox/create",
    operation_id = "create_sandbox",
    tag = "sandboxes",
    request_body(content = CreateRequest, description = "May be left out."),
    responses((status = 200, description = "The sandbox, ready.", body = Created)),
    extensions(("x-errors" = json!(["mirror_not_found", "mirror_building", "mirror_failed", "gpu_unavailable", "gpus_disabled", "gpus_in_use", "too_many_sandboxes", "too_many_sandboxes_of_key", "host_exhausted", "stopping"]))),
)]
async fn create(
    Caller(app): Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Created>, Refusal> {
    let request: CreateRequest = optional(&app, &headers, body).await?;
    let info = whole::create(&app.supervisor, CreateSpec::try_from(request)?).await?;
    Ok(Json(info.into()))
}

/// Close a sandbox
#[utoipa::path(
    post,
    path = "/sandbox/{id}/close",
    operation_id = "close_sandbox",
    tag = "sandboxes",
    responses((status = 200, description = "It is gone, and everything in it.", body = openapi::Done)),
)]
async fn close(Caller(app): Caller, SandboxId(id): SandboxId) -> Result<Json<Value>, Refusal> {
    whole::close(&app.supervisor, &id).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Sandbox closed" }),
    ))
}

/// Execute Python
///
/// The body is the code itself, of any type but JSON, or JSON around it. Executions of a context
/// run one after the other and share their variables. Events instead of one answer come with
/// `stream`, or with the `Accept` of a stream. A client that goes away interrupts its code.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/execute",
    operation_id = "execute",
    tag = "code",
    request_body(description = "May be left out, which executes nothing.", content((ExecuteRequest = "application/json"), (String = "text/plain"))),
    responses((status = 200, description = "How it ended, whatever the code did; or its events ([ExecutionEvent](#/components/schemas/ExecutionEvent)) while it runs.", content((Outcome = "application/json"), (String = "application/x-ndjson"), (String = "text/event-stream")))),
    extensions(("x-errors" = json!(["code_too_large", "invalid_utf8", "context_not_found", "queue_full", "too_many_executions", "execution_lost"]))),
)]
async fn execute(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    app.supervisor.info(&id)?;
    let mut request = execute_request(&app, &headers, body).await?;
    request
        .on_disconnect
        .get_or_insert(app.server.on_disconnect);
    let format = lines::wanted(request.stream, &headers);
    let spec = ExecuteSpec {
        prompt: format.is_some(),
        ..request.try_into()?
    };
    let execution = app.supervisor.execute(&id, spec).await?;
    if let Some(format) = format {
        return Ok(lines::response(format, id, execution));
    }
    // This future is dropped when the client goes away, and the handle of the execution with it.
    let outcome: Option<Outcome> = gather(&id, execution).await;
    outcome
        .map(|outcome| Json(outcome).into_response())
        .ok_or_else(execution_lost)
}

/// The supervisor let go of an execution without saying how it ended.
pub(crate) fn execution_lost() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "execution_lost",
        "the sandbox was closed while the code ran",
    )
}

/// The code itself, or JSON around it.
async fn execute_request(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<ExecuteRequest, Refusal> {
    if body::media(headers) == Media::Json {
        let bytes = body::read(headers, body, app.body_limit(), app.stall()).await?;
        return body::decode(&bytes);
    }
    let bytes = body::read(headers, body, app.code_limit(), app.stall()).await?;
    // Refuses UTF-16. The mark of UTF-8 goes where code of every kind does, in `kernel::execution`.
    body::without_mark(&bytes)?;
    String::from_utf8(bytes)
        .map(ExecuteRequest::of_code)
        .map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Refusal::bad_request(
                "invalid_utf8",
                format!("the code is not valid UTF-8 from byte {at} on"),
            )
        })
}

/// A JSON body that may be left out.
pub(super) async fn optional<T: DeserializeOwned + Default>(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Refusal> {
    let bytes = body::read(headers, body, app.body_limit(), app.stall()).await?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    json_of(headers, &bytes)
}

/// A JSON body.
pub(super) async fn required<T: DeserializeOwned>(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Refusal> {
    let bytes = body::read(headers, body, app.body_limit(), app.stall()).await?;
    json_of(headers, &bytes)
}

/// Decodes a body that may come without a `Content-Type`, but not with another than JSON's.
fn json_of<T: DeserializeOwned>(headers: &HeaderMap, bytes: &[u8]) -> Result<T, Refusal> {
    match body::media(headers) {
        Media::Json | Media::Unstated => body::decode(bytes),
        Media::Other => Err(body::json_required()),
    }
}

/// Whether the client asks for this type by name.
pub(crate) fn accepts(headers: &HeaderMap, mime: &str) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .any(|range| range.trim().eq_ignore_ascii_case(mime))
}
