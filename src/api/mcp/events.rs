//! MCP over HTTP+SSE, the transport of the revision of 2024-11-05, which `rmcp` has no more: the
//! client opens a stream at `/sse`, whose first event says where to post messages, and gets every
//! answer on that stream.
//!
//! ```text
//! GET /sse ──────────────────────── event: endpoint, data: /messages/?session_id=…
//!   │                                event: message, one for each answer and notification
//!   └ the stream's end ends the session, and interrupts what it runs
//! POST /messages/?session_id=…  ─── 202; queue ≤ QUEUE, requests under way ≤ MAX_REQUESTS
//! ```
//!
//! A session lives as long as its stream, so connections bound their number, besides the limit that
//! they share with the sessions of streamable HTTP.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{Stream, StreamExt, stream};
use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, GetExtensions as _, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::Transport;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::sessions::{Ending, UnderWay, Usage, on_behalf_of};
use super::tools::Tools;
use super::{KEEPALIVE, beside};
use crate::api::caller::OnBehalfOf;
use crate::api::error::Refusal;
use crate::api::lines::write_line;
use crate::api::{App, body, rest};
use crate::supervisor::Owner;

/// Messages that wait for a session's client to read, and likewise those that wait for the session.
const QUEUE: usize = 64;
/// Requests of one session under way at once.
const MAX_REQUESTS: usize = 32;
/// Messages that wait for a place in the queue: a request that was cancelled is under way no more, and
/// its answer may wait all the same. A client with more than that does not read, and its session ends.
const MAX_WAITING: usize = 2 * MAX_REQUESTS;

/// What the two routes share.
#[derive(Clone)]
pub(super) struct Events {
    app: Arc<App>,
    tools: Tools,
    sessions: Arc<Mutex<HashMap<String, Session>>>,
    used: Usage,
    stopping: CancellationToken,
    cut_off: CancellationToken,
}

/// A session as the route of messages sees it.
#[derive(Clone)]
struct Session {
    /// It is its maker's: to the bearer of another key it is not there.
    owner: Option<Owner>,
    messages: mpsc::Sender<ClientJsonRpcMessage>,
    under_way: UnderWay,
}

impl Events {
    pub(super) fn new(
        app: &Arc<App>,
        tools: Tools,
        used: Usage,
        stopping: &CancellationToken,
        cut_off: &CancellationToken,
    ) -> Self {
        Self {
            app: Arc::clone(app),
            tools,
            sessions: Arc::default(),
            used,
            stopping: stopping.clone(),
            cut_off: cut_off.clone(),
        }
    }

    pub(super) fn routes(self) -> Router {
        Router::new()
            .route("/sse", get(open))
            .route("/messages", post(message))
            .route("/messages/", post(message))
            .method_not_allowed_fallback(rest::wrong_method)
            .with_state(self)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the service stops and this session's requests have their answers, or are cut off.
    /// At once where its key is taken away.
    async fn ended(self, under_way: UnderWay, revoked: CancellationToken) {
        let answered = async {
            self.stopping.cancelled().await;
            let _ = under_way.subscribe().wait_for(Vec::is_empty).await;
        };
        tokio::select! {
            () = answered => {}
            () = self.cut_off.cancelled() => {}
            () = revoked.cancelled() => {}
        }
    }
}

/// `GET /sse`.
async fn open(State(events): State<Events>, request: Request) -> Result<Response, Refusal> {
    let owner = owner_of(&request)?;
    let id = format!("{:032x}", rand::random::<u128>());
    let (messages, incoming) = mpsc::channel(QUEUE);
    let (outgoing, answers) = mpsc::channel(QUEUE);
    let under_way = UnderWay::default();
    let ending = CancellationToken::new();
    let session = Session {
        owner: owner.clone(),
        messages,
        under_way: Arc::clone(&under_way),
    };
    let used = Ending {
        token: ending.clone(),
        under_way: Arc::clone(&under_way),
    };
    let begin = events.used.begin_stream(&id, used);
    on_behalf_of(owner.clone(), begin).await;
    events.sessions().insert(id.clone(), session);
    let transport = Channel {
        incoming,
        outgoing,
        under_way: Arc::clone(&under_way),
        waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        ending: ending.clone(),
    };
    let (tools, ct) = (events.tools.clone(), ending.clone());
    tokio::spawn(async move {
        match rmcp::service::serve_server_with_ct(tools, transport, ct).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::debug!(%error, "a client did not begin a session"),
        }
    });
    let place = format!("/messages/?session_id={id}");
    let first = Event::default().event("endpoint").data(place);
    let revoked = events.app.on_behalf_of(owner).supervisor.revoked();
    let ended = events.clone().ended(under_way, revoked);
    let body = Body {
        events: Box::pin(
            stream::iter([first])
                .chain(answers_of(answers))
                .take_until(ended),
        ),
        sessions: events,
        id,
        _ending: ending.drop_guard(),
    };
    let keepalive = KeepAlive::new().interval(KEEPALIVE).text("ping");
    // Proxies that buffer answers would hold the events back.
    let headers = [("x-accel-buffering", "no")];
    Ok((headers, Sse::new(body).keep_alive(keepalive)).into_response())
}

/// Whose key a request has.
fn owner_of(request: &Request) -> Result<Option<Owner>, Refusal> {
    match request.extensions().get() {
        Some(OnBehalfOf(owner)) => Ok(owner.clone()),
        None => Err(Refusal::internal()),
    }
}

fn answers_of(answers: mpsc::Receiver<ServerJsonRpcMessage>) -> impl Stream<Item = Event> {
    stream::unfold(answers, |mut answers| async move {
        let message = answers.recv().await?;
        let mut line = Vec::new();
        write_line(&mut line, &message);
        line.pop();
        let data = String::from_utf8_lossy(&line).into_owned();
        Some((Event::default().event("message").data(data), answers))
    })
}

/// The stream of a session, which ends with it.
struct Body {
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
    sessions: Events,
    id: String,
    _ending: DropGuard,
}

impl Stream for Body {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(cx).map(|event| event.map(Ok))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.sessions.sessions().remove(&self.id);
        self.sessions.used.end_stream(&self.id);
    }
}

/// `POST /messages/?session_id=…`.
async fn message(State(events): State<Events>, request: Request) -> Result<Response, Refusal> {
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let mut query = url::form_urlencoded::parse(query);
    let Some((_, id)) = query.find(|(name, _)| name == "session_id") else {
        let detail = "session_id: post to the address that the first event of /sse names";
        return Err(Refusal::invalid("session_id", detail));
    };
    let id = id.into_owned();
    let owner = owner_of(&request)?;
    let session = events.sessions().get(&id).cloned();
    let session = session.filter(|session| session.owner == owner);
    let session = session.ok_or_else(no_session)?;
    let (head, body) = request.into_parts();
    let limit = events.app.body_limit();
    let bytes = body::read(&head.headers, body, limit, events.app.stall()).await?;
    let bytes = body::plain_json(&bytes)?;
    beside::check(&bytes)?;
    let mut message: ClientJsonRpcMessage =
        serde_json::from_slice(&bytes).map_err(|error| beside::malformed(&error))?;
    match &mut message {
        ClientJsonRpcMessage::Request(request) => {
            // Who calls, and by which name of ours.
            request.request.extensions_mut().insert(head);
            session.begin(&request.id)?;
        }
        ClientJsonRpcMessage::Notification(notification) => {
            if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                && let Some(id) = &cancelled.params.request_id
            {
                // It gets no answer.
                answered(&session.under_way, id);
            }
        }
        _ => {}
    }
    events.used.touch_stream(&id);
    session
        .messages
        .try_send(message)
        .map_err(|error| match error {
            mpsc::error::TrySendError::Full(message) => {
                if let ClientJsonRpcMessage::Request(request) = &message {
                    answered(&session.under_way, &request.id);
                }
                too_many()
            }
            mpsc::error::TrySendError::Closed(_) => no_session(),
        })?;
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((StatusCode::ACCEPTED, text, Bytes::from_static(b"Accepted")).into_response())
}

impl Session {
    /// Counts a request among those under way.
    fn begin(&self, id: &RequestId) -> Result<(), Refusal> {
        let begun = self.under_way.send_if_modified(|under_way| {
            let fits = under_way.len() < MAX_REQUESTS;
            if fits {
                under_way.push(id.clone());
            }
            fits
        });
        begun.then_some(()).ok_or_else(too_many)
    }
}

fn answered(under_way: &UnderWay, id: &RequestId) {
    under_way.send_modify(|under_way| under_way.retain(|other| other != id));
}

fn no_session() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "session_not_found",
        "there is no such session; it ends with its stream, open another at /sse",
    )
}

fn too_many() -> Refusal {
    Refusal::new(
        StatusCode::TOO_MANY_REQUESTS,
        "too_many_requests",
        format!("the session has {MAX_REQUESTS} requests under way; wait for answers"),
    )
}

/// A session as `rmcp` sees it.
struct Channel {
    incoming: mpsc::Receiver<ClientJsonRpcMessage>,
    outgoing: mpsc::Sender<ServerJsonRpcMessage>,
    under_way: UnderWay,
    waiting: Arc<Semaphore>,
    /// Ends the session.
    ending: CancellationToken,
}

/// The client is gone.
#[derive(Debug, thiserror::Error)]
#[error("the client closed its stream")]
struct HungUp;

impl Transport<RoleServer> for Channel {
    type Error = HungUp;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), HungUp>> + Send + 'static {
        let (outgoing, under_way) = (self.outgoing.clone(), Arc::clone(&self.under_way));
        let waits = Arc::clone(&self.waiting).try_acquire_owned();
        if waits.is_err() {
            self.ending.cancel();
        }
        async move {
            let _waits = waits.map_err(|_| HungUp)?;
            let id = match &message {
                ServerJsonRpcMessage::Response(response) => Some(response.id.clone()),
                ServerJsonRpcMessage::Error(error) => error.id.clone(),
                _ => None,
            };
            let sent = outgoing.send(message).await.map_err(|_| HungUp);
            if let Some(id) = id {
                answered(&under_way, &id);
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.incoming.recv().await
    }

    async fn close(&mut self) -> Result<(), HungUp> {
        self.incoming.close();
        Ok(())
    }
}
