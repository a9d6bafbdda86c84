//! A WebSocket to a background process.
//!
//! | frame  | from the client                       | to the client                              |
//! |--------|---------------------------------------|--------------------------------------------|
//! | binary | bytes for standard input              | output bytes                               |
//! | text   | `resize`, `signal`, `close_stdin`     | `output`, `error`; `exited` is the last    |
//!
//! An `output` frame says of which stream and from which offset on the bytes that follow are, and how
//! many before them were lost; it comes first, at every change of streams and after every loss. So a
//! client always knows the offset with which it can attach again. The process waits for a client that
//! reads slowly ([`Attached`]), and goes on without one that has gone.
//!
//! The request has passed the checks of Host, Origin and key like any other before the connection is
//! taken over.

use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::Uri;
use axum::response::Response;
use axum::{Error, Extension};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at, timeout};

use super::caller::Caller;
use super::error::Refusal;
use super::processes::query;
use super::rest::{PartId, SandboxId};
use super::server::Place;
use super::wire::{ProcessEndAnswer, offset};
use crate::supervisor::{Attached, ProcessEnd, ProcessHandle, Stream, WindowSize};

/// A silent connection is asked this often whether it is there.
const PING: Duration = Duration::from_secs(20);
/// A client that has not answered for this long has gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes of output in a frame.
const FRAME_BYTES: usize = 32 * 1024;
/// Bytes that wait for a client that does not read: a frame of output, and answers to its pings, of
/// which there may be any number. Twice what the library gathers before it writes.
const UNSENT_BYTES: usize = 256 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachQuery {
    #[serde(default)]
    offset: Option<String>,
}

/// Attach to a background process by a WebSocket
///
/// From the client: binary frames for standard input, text frames `{"type": "resize", "columns",
/// "rows"}`, `{"type": "signal", "signal"}`, `{"type": "close_stdin"}`. To the client: binary
/// frames of output, each after a text frame `{"type": "output", "stream", "offset", "lost_bytes"}`
/// where these are new; `{"type": "error", "code", "detail"}`; `{"type": "exited", …}` is the last.
#[utoipa::path(
    get,
    path = "/sandbox/{id}/processes/{process}/attach",
    operation_id = "attach_to_process",
    tag = "processes",
    params(("offset" = Option<u64>, Query, description = "Byte of the output to begin with; what is written next where it is missing.")),
    responses((status = 101, description = "The connection is a WebSocket now.")),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "websocket_required"]))),
)]
pub(super) async fn attach(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    PartId(process_id): PartId,
    Extension(place): Extension<Place>,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let process = app.supervisor.process(&id, &process_id)?;
    let query: AttachQuery = query(&uri)?;
    let attached = process.attach(offset(query.offset.as_deref())?)?;
    let upgrade = upgrade.map_err(|_| {
        Refusal::bad_request(
            "websocket_required",
            "this route speaks WebSocket only (RFC 6455)",
        )
    })?;
    let most = app.server.max_frame_bytes;
    let revoked = app.supervisor.revoked();
    Ok(upgrade
        .max_frame_size(most)
        .max_message_size(most)
        .max_write_buffer_size(UNSENT_BYTES)
        .on_upgrade(move |socket| async move {
            tokio::select! {
                () = serve(socket, process, attached, place) => {}
                () = revoked.cancelled() => {}
            }
        }))
}

async fn serve(socket: WebSocket, process: ProcessHandle, attached: Attached, place: Place) {
    let (sink, stream) = socket.split();
    // What the one direction has to say of the other's requests.
    let (tell, told) = tokio::sync::mpsc::channel(1);
    tokio::select! {
        () = outgoing(sink, attached, told, &place) => {}
        () = incoming(stream, &process, tell) => {}
    }
}

type Sink = SplitSink<WebSocket, Message>;

/// Output until the end, and answers. Returns when the client has gone, too.
async fn outgoing(
    mut sink: Sink,
    mut attached: Attached,
    mut told: tokio::sync::mpsc::Receiver<Message>,
    place: &Place,
) {
    let mut pings = interval_at(Instant::now() + PING, PING);
    let mut stream: Option<Stream> = None;
    loop {
        let sent = tokio::select! {
            () = place.stopping.cancelled() => {
                let _ = sink.send(close(close_code::AWAY, "the service stops")).await;
                return;
            }
            Some(message) = told.recv() => {
                let last = matches!(message, Message::Close(_));
                let sent = sink.send(message).await;
                if last {
                    return;
                }
                sent
            }
            _ = pings.tick() => sink.send(Message::Ping(Vec::new().into())).await,
            piece = attached.next(FRAME_BYTES) => match piece {
                None => return say_end(&mut sink, &attached.end().await).await,
                Some(piece) => {
                    let mut sent = Ok(());
                    if stream != Some(piece.stream) || piece.lost_bytes > 0 {
                        stream = Some(piece.stream);
                        sent = sink.feed(text(&json!({
                            "type": "output",
                            "stream": piece.stream.as_str(),
                            "offset": piece.offset,
                            "lost_bytes": piece.lost_bytes,
                        }))).await;
                    }
                    match sent {
                        Ok(()) => sink.send(Message::Binary(piece.bytes.into())).await,
                        failed => failed,
                    }
                }
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn say_end(sink: &mut Sink, end: &ProcessEnd) {
    let mut value = json!(ProcessEndAnswer::new(Some(end.clone())));
    value["type"] = "exited".into();
    let _ = sink.send(text(&value)).await;
    let _ = sink
        .send(close(close_code::NORMAL, "the process has ended"))
        .await;
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

fn close(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame {
        code,
        reason: reason.into(),
    }))
}

/// Requests until the client goes.
async fn incoming(
    mut stream: SplitStream<WebSocket>,
    process: &ProcessHandle,
    tell: tokio::sync::mpsc::Sender<Message>,
) {
    loop {
        let done = match timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(Message::Binary(bytes)))) => {
                process.write(&bytes, false).await.map_err(Refusal::from)
            }
            Ok(Some(Ok(Message::Text(request)))) => obey(process, request.as_str()).await,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => Ok(()),
            Ok(Some(Err(error))) => {
                // The other direction says goodbye and ends both.
                let _ = tell.send(fault(&error)).await;
                return std::future::pending().await;
            }
            Err(_) | Ok(None | Some(Ok(Message::Close(_)))) => return,
        };
        if let Err(refusal) = done {
            let (code, detail) = (refusal.code(), refusal.detail());
            let error = json!({ "type": "error", "code": code, "detail": detail });
            if tell.send(text(&error)).await.is_err() {
                return;
            }
        }
    }
}

/// How a connection ends whose client has broken the protocol.
fn fault(error: &Error) -> Message {
    tracing::debug!(%error, "a WebSocket broke off");
    // The cause is not public: its text is all that there is.
    if error.to_string().contains("too long") {
        return close(
            close_code::SIZE,
            "a frame is larger than server.max_frame_bytes",
        );
    }
    close(close_code::PROTOCOL, "the connection broke off")
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Resize { columns: u16, rows: u16 },
    Signal { signal: String },
    CloseStdin {},
}

async fn obey(process: &ProcessHandle, request: &str) -> Result<(), Refusal> {
    let request = serde_json::from_str(request).map_err(|error| {
        Refusal::bad_request(
            "malformed_frame",
            format!("a text frame is resize, signal or close_stdin as JSON: {error}"),
        )
    })?;
    match request {
        Request::Resize { columns, rows } => {
            process.resize(WindowSize { columns, rows })?;
        }
        Request::Signal { signal } => process.signal(&signal).await?,
        Request::CloseStdin {} => process.write(&[], true).await?,
    }
    Ok(())
}
