//! `GET /sandbox/{id}/files/watch`: changes of files as a stream of events.

use axum::Extension;
use axum::body::Bytes;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::time::timeout;

use super::caller::Caller;
use super::error::Refusal;
use super::lines::{Format, KEEPALIVE, wanted};
use super::query::Parameters;
use super::rest::SandboxId;
use super::server::Place;
use crate::supervisor::{Error, ErrorKind, FileWatch, TreeEvent};

/// Watch a folder for changes
///
/// A JSON object a line, or server-sent events where `Accept` asks for them: first `watching`, then
/// changes, at the end `ended`. Going away ends the watch. What is only watched is idle.
#[utoipa::path(
    get,
    path = "/sandbox/{id}/files/watch",
    operation_id = "watch_files",
    tag = "files",
    params(("path" = Option<String>, Query, description = "The folder; the working directory unless given."), ("recursive" = Option<bool>, Query, description = "Folders below it, too; false unless given.")),
    responses((status = 200, description = "Changes ([FileWatchEvent](#/components/schemas/FileWatchEvent)) as they happen.", content((String = "application/x-ndjson"), (String = "text/event-stream")))),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "files", "not_a_directory", "too_many_watches", "stopping"]))),
)]
pub(crate) async fn watch(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    uri: Uri,
    Extension(place): Extension<Place>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    app.supervisor.info(&id)?;
    let asked = Parameters::of(&uri)?;
    let path = asked.text("path").unwrap_or_default();
    let recursive = asked.flag("recursive")?.unwrap_or(false);
    let watch = app.supervisor.watch_files(&id, path, recursive).await?;
    let format = wanted(None, &headers).unwrap_or(Format::Lines);
    let begun = json!({ "event": "watching", "path": path, "recursive": recursive });
    let revoked = app.supervisor.revoked();
    let events = events(format, begun, watch, place);
    Ok(format.response(events.take_until(revoked.cancelled_owned())))
}

fn events(
    format: Format,
    begun: Value,
    watch: FileWatch,
    place: Place,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let state = Some((Some(begun), watch, place.stopping));
    stream::unfold(state, move |state| async move {
        let (begun, mut watch, stopping) = state?;
        if let Some(begun) = begun {
            return Some((Ok(format.written(&[begun])), Some((None, watch, stopping))));
        }
        let next = async {
            // A service that stops waits for what it answers, and this has no end of its own.
            tokio::select! {
                next = watch.next() => next,
                () = stopping.cancelled() => Err(stopped()),
            }
        };
        let (value, goes_on) = match timeout(KEEPALIVE, next).await {
            // `type` as in other streams, `event` as in this one.
            Err(_) => (json!({ "event": "keepalive", "type": "keepalive" }), true),
            Ok(Ok(event)) => (encoded(event), true),
            Ok(Err(error)) => {
                let refusal = Refusal::from(error);
                let (code, detail) = (refusal.code(), refusal.detail());
                let ended = json!({ "event": "ended", "code": code, "detail": detail });
                (ended, false)
            }
        };
        let state = goes_on.then_some((None, watch, stopping));
        Some((Ok(format.written(&[value])), state))
    })
}

fn stopped() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "stopping",
        "the service is stopping",
    )
}

fn encoded(event: TreeEvent) -> Value {
    match event {
        TreeEvent::Change {
            kind,
            path,
            from,
            is_directory,
        } => {
            let mut value = json!({
                "event": kind.as_str(),
                "path": path,
                "directory": is_directory,
            });
            if let Some(from) = from {
                value["from"] = from.into();
            }
            value
        }
        TreeEvent::Missed => json!({
            "event": "overflow",
            "detail": "changes were missed, or directories are not watched, because there are too \
                       many; list the files to see how they are",
        }),
    }
}
