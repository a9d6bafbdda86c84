//! Background processes of a sandbox over REST.

use axum::Json;
use axum::body::Body;
use axum::extract::Query;
use axum::http::{HeaderMap, Uri};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa_axum::routes;

use super::body::{self, Media};
use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::rest::{PartId, SandboxId, optional, required};
use super::wire::{
    OutputAnswer, OutputQuery, ProcessAnswer, ProcessRequest, SignalRequest, StdinRequest,
    WaitRequest, Window,
};
use super::{attach, whole};
use crate::supervisor::ProcessSpec;

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list, start))
        .routes(routes!(show, remove))
        .routes(routes!(output))
        .routes(routes!(stdin))
        .routes(routes!(signal))
        .routes(routes!(wait))
        .routes(routes!(resize))
        .routes(routes!(attach::attach))
}

/// The query of a route; the refusal names the field that is wrong.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refusal> {
    let query = Query::<T>::try_from_uri(uri);
    query
        .map(|Query(query)| query)
        .map_err(|e| Refusal::bad_request("bad_query", format!("the query is wrong: {e}")))
}

/// List the background processes
#[utoipa::path(
    get,
    path = "/sandbox/{id}/processes",
    operation_id = "list_processes",
    tag = "processes",
    responses((status = 200, description = "Those that run, and the last that ended.", body = Vec<ProcessAnswer>)),
)]
async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<ProcessAnswer>>, Refusal> {
    let processes = app.supervisor.processes(&id)?.into_iter();
    Ok(Json(processes.map(ProcessAnswer::from).collect()))
}

/// Start a background process
///
/// It outlives the request, and its output is kept.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/processes",
    operation_id = "start_process",
    tag = "processes",
    request_body = ProcessRequest,
    responses((status = 200, description = "The process, running.", body = ProcessAnswer)),
    extensions(("x-errors" = json!(["command_too_large", "too_many_executions", "too_many_background_processes", "too_many_processes", "too_many_terminals"]))),
)]
async fn start(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ProcessAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: ProcessRequest = required(&app, &headers, body).await?;
    let spec = ProcessSpec::try_from(request)?;
    let info = whole::start_process(&app.supervisor, &id, spec).await?;
    Ok(Json(info.into()))
}

/// Show a background process
#[utoipa::path(
    get,
    path = "/sandbox/{id}/processes/{process}",
    operation_id = "show_process",
    tag = "processes",
    responses((status = 200, description = "The process.", body = ProcessAnswer)),
)]
async fn show(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
) -> Result<Json<ProcessAnswer>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    Ok(Json(process.info().into()))
}

/// Read the output of a background process
#[utoipa::path(
    get,
    path = "/sandbox/{id}/processes/{process}/output",
    operation_id = "read_process_output",
    tag = "processes",
    params(("offset" = Option<u64>, Query, description = "Bytes to skip; 0 where it is missing. `next_offset` of the last answer goes on from there."), ("wait_seconds" = Option<f64>, Query, minimum = 0, maximum = 60, description = "Wait for something to read.")),
    responses((status = 200, description = "What it wrote from the offset on.", body = OutputAnswer)),
    extensions(("x-errors" = json!(["bad_query", "invalid_field"]))),
)]
async fn output(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
    uri: Uri,
) -> Result<Json<OutputAnswer>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    let query: OutputQuery = query(&uri)?;
    // What is kept of a process is few enough bytes for one answer.
    let (offset, wait) = (query.offset()?, query.wait()?);
    let output = process.output(offset, usize::MAX, wait).await?;
    Ok(Json(output.into()))
}

/// Write to a background process
///
/// The body is the bytes themselves, of any type but JSON, or JSON around text.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/processes/{process}/stdin",
    operation_id = "write_process_stdin",
    tag = "processes",
    request_body(description = "May be left out, which writes nothing.", content((StdinRequest = "application/json"), (openapi::RawBytes = "application/octet-stream"))),
    responses((status = 200, description = "All of it was taken.", body = openapi::Written)),
    extensions(("x-errors" = json!(["process_ended", "stdin_closed", "stdin_full"]))),
)]
async fn stdin(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    let bytes = body::read(&headers, body, app.body_limit(), app.stall()).await?;
    let (bytes, close) = match body::media(&headers) {
        Media::Json => {
            let request: StdinRequest = body::decode(&bytes)?;
            (request.text.into_bytes(), request.close)
        }
        Media::Unstated | Media::Other => (bytes, false),
    };
    process.write(&bytes, close).await?;
    Ok(Json(
        json!({ "status": "success", "written_bytes": bytes.len() }),
    ))
}

/// Send a signal to a background process
///
/// SIGKILL goes to its whole tree, any other to its process group.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/processes/{process}/signal",
    operation_id = "signal_process",
    tag = "processes",
    request_body = SignalRequest,
    responses((status = 200, description = "It was sent.", body = openapi::Done)),
    extensions(("x-errors" = json!(["process_ended"]))),
)]
async fn signal(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    let request: SignalRequest = required(&app, &headers, body).await?;
    process.signal(&request.signal).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Signal sent" }),
    ))
}

/// Wait for the end of a background process
#[utoipa::path(
    post,
    path = "/sandbox/{id}/processes/{process}/wait",
    operation_id = "wait_for_process",
    tag = "processes",
    request_body(content = WaitRequest, description = "May be left out."),
    responses((status = 200, description = "The process; `state` says whether it has ended.", body = ProcessAnswer)),
)]
async fn wait(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ProcessAnswer>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    let request: WaitRequest = optional(&app, &headers, body).await?;
    let info = process.wait(request.longest()?).await?;
    Ok(Json(info.into()))
}

/// Change the size of a terminal
#[utoipa::path(
    post,
    path = "/sandbox/{id}/processes/{process}/resize",
    operation_id = "resize_process",
    tag = "processes",
    request_body = Window,
    responses((status = 200, description = "The process, on a terminal of that size.", body = ProcessAnswer)),
    extensions(("x-errors" = json!(["no_terminal", "process_ended"]))),
)]
async fn resize(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ProcessAnswer>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    let window: Window = required(&app, &headers, body).await?;
    Ok(Json(process.resize(window.into())?.into()))
}

/// Delete a background process
#[utoipa::path(
    delete,
    path = "/sandbox/{id}/processes/{process}",
    operation_id = "delete_process",
    tag = "processes",
    responses((status = 200, description = "It is gone, killed where it ran, and its output.", body = openapi::Done)),
)]
async fn remove(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
) -> Result<Json<Value>, Refusal> {
    app.supervisor.process(&id, &process_id)?.delete().await?;
    Ok(Json(
        json!({ "status": "success", "message": "Process deleted" }),
    ))
}
