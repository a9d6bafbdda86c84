//! Background processes of a sandbox over REST.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Query;
use axum::http::{HeaderMap, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::body::{self, Media};
use super::caller::Caller;
use super::error::Refusal;
use super::rest::{PartId, SandboxId, optional, required};
use super::wire::{
    OutputAnswer, OutputQuery, ProcessAnswer, ProcessRequest, SignalRequest, StdinRequest,
    WaitRequest, Window,
};
use super::{App, attach, whole};
use crate::supervisor::ProcessSpec;

/// Routes below `/sandbox/{id}`.
pub(super) fn routes() -> Router<Arc<App>> {
    const ONE: &str = "/sandbox/{id}/processes/{process}";
    let of = |verb: &str| format!("{ONE}/{verb}");
    Router::new()
        .route("/sandbox/{id}/processes", get(list).post(start))
        .route(ONE, get(show).delete(remove))
        .route(&of("output"), get(output))
        .route(&of("stdin"), post(stdin))
        .route(&of("signal"), post(signal))
        .route(&of("wait"), post(wait))
        .route(&of("resize"), post(resize))
        .route(&of("attach"), get(attach::attach))
}

/// The query of a route; the refusal names the field that is wrong.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refusal> {
    let query = Query::<T>::try_from_uri(uri);
    query
        .map(|Query(query)| query)
        .map_err(|e| Refusal::bad_request("bad_query", format!("the query is wrong: {e}")))
}

async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<ProcessAnswer>>, Refusal> {
    let processes = app.supervisor.processes(&id)?.into_iter();
    Ok(Json(processes.map(ProcessAnswer::from).collect()))
}

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

async fn show(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
) -> Result<Json<ProcessAnswer>, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    Ok(Json(process.info().into()))
}

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

/// The bytes themselves, of any type but JSON, or JSON around text.
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
