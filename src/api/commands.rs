//! Shell commands over REST: one answer at the end, or a line for each event.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::time::timeout;

use super::caller::Caller;
use super::error::Refusal;
use super::lines::{self, Format, KEEPALIVE};
use super::rest::{SandboxId, required};
use super::wire::{CommandAnswer, CommandEnd, CommandRequest};
use crate::supervisor::{CommandEvent, CommandSpec, RunningCommand};

/// Run a shell command
///
/// It runs in the working directory, beside what else runs. Events instead of one answer come with
/// `stream`, or with the `Accept` of a stream. A client that goes away kills its command.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/command",
    operation_id = "run_command",
    tag = "code",
    request_body = CommandRequest,
    responses((status = 200, description = "How it ended; or its events ([CommandEvent](#/components/schemas/CommandEvent)) while it runs.", content((CommandAnswer = "application/json"), (String = "application/x-ndjson"), (String = "text/event-stream")))),
    extensions(("x-errors" = json!(["command_too_large", "too_many_executions", "too_many_processes"]))),
)]
pub(super) async fn command(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    app.supervisor.info(&id)?;
    let request: CommandRequest = required(&app, &headers, body).await?;
    let format = lines::wanted(request.stream, &headers);
    let running = app
        .supervisor
        .command(&id, CommandSpec::try_from(request)?)
        .await?;
    if let Some(format) = format {
        return Ok(format.response(events(format, running)));
    }
    // This future is dropped when the client goes away, and the command with it.
    let outcome = running.finish().await?;
    Ok(Json(CommandAnswer::from(outcome)).into_response())
}

/// A line for each event; dropping the stream kills the command.
fn events(
    format: Format,
    running: RunningCommand,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some(running), move |running| async move {
        let mut running = running?;
        let (value, goes_on) = match timeout(KEEPALIVE, running.next()).await {
            Err(_) => (json!({ "type": "keepalive" }), true),
            Ok(Ok(Some(event))) => {
                let goes_on = !matches!(event, CommandEvent::Ended(_));
                (encoded(event), goes_on)
            }
            // After the last event nobody asks.
            Ok(Ok(None)) => return None,
            Ok(Err(error)) => {
                let refusal = Refusal::from(error);
                let (code, detail) = (refusal.code(), refusal.detail());
                (
                    json!({ "type": "failed", "code": code, "detail": detail }),
                    false,
                )
            }
        };
        Some((Ok(format.written(&[value])), goes_on.then_some(running)))
    })
}

fn encoded(event: CommandEvent) -> Value {
    match event {
        CommandEvent::Started { pid } => json!({ "type": "started", "pid": pid }),
        CommandEvent::Stdout(text) => json!({ "type": "stdout", "text": text }),
        CommandEvent::Stderr(text) => json!({ "type": "stderr", "text": text }),
        CommandEvent::Ended(ended) => {
            let mut value = json!(CommandEnd::from(ended));
            value["type"] = "ended".into();
            value
        }
    }
}
