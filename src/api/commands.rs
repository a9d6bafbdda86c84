//! Shell commands over REST: one answer at the end, or a line for each event.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::App;
use super::error::Refusal;
use super::lines::{self, KEEPALIVE, line};
use super::rest::{SandboxId, required};
use super::wire::{CommandAnswer, CommandEnd, CommandRequest};
use crate::supervisor::{CommandEvent, CommandSpec, RunningCommand};

/// `POST /sandbox/{id}/command`.
pub(super) async fn command(
    State(app): State<Arc<App>>,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    app.supervisor.info(&id)?;
    let request: CommandRequest = required(&app, &headers, body).await?;
    let streamed = request.stream.unwrap_or_else(|| lines::accepted(&headers));
    let running = app
        .supervisor
        .command(&id, CommandSpec::try_from(request)?)
        .await?;
    if streamed {
        let body = Body::from_stream(events(running));
        return Ok(([(header::CONTENT_TYPE, lines::MIME)], body).into_response());
    }
    // This future is dropped when the client goes away, and the command with it.
    let outcome = running.finish().await?;
    Ok(Json(CommandAnswer::from(outcome)).into_response())
}

/// A line for each event; dropping the stream kills the command.
fn events(running: RunningCommand) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some(running), |running| async {
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
        Some((Ok(line(&value)), goes_on.then_some(running)))
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
