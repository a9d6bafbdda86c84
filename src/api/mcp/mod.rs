//! MCP over streamable HTTP: stateless for the revision of 2026-07-28, with sessions for the older
//! ones. Tools are views of the supervisor's verbs ([`tools`]); each endpoint offers a set of them
//! ([`sets`]): `/mcp`, `/mcp/env` and `/mcp/workspace`. Beside these there are the older transport at
//! `/sse` ([`events`]) and calls without the protocol ([`call`]).
//!
//! `rmcp` speaks the protocol. What it leaves open is bounded here: bodies are read by us, sessions
//! are counted ([`sessions`]), and a client's waiting stream ends when the service stops.

mod answer;
mod arguments;
mod beside;
mod call;
mod checkpoints;
mod contexts;
mod env;
mod events;
mod handler;
mod mirrors;
mod packages;
mod ports;
mod processes;
mod progress;
mod prompts;
mod resources;
mod schema;
mod sessions;
mod sets;
mod stdio;
mod tools;
mod upload;
mod workspace;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::any;
use futures_util::StreamExt;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use super::caller::OnBehalfOf;
use super::error::Refusal;
use super::{App, body};
use crate::config;
use events::Events;
use sessions::{Sessions, Usage};
pub use sets::SetName;
use sets::ToolSet;
pub use stdio::serve_messages;
use tools::Tools;

/// A client that waits for an answer hears from us this often.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The endpoints. `stopping` ends streams that wait for nothing, `cut_off` everything.
pub(crate) fn routes(
    app: &Arc<App>,
    limits: &config::Limits,
    stopping: &CancellationToken,
    cut_off: &CancellationToken,
) -> Router {
    let used = Usage::default();
    let at = |set: SetName| {
        let sessions = Sessions::new(limits, used.clone());
        let endpoint = Endpoint::new(app, set, sessions, stopping, cut_off);
        Router::new().route(set.path(), any(self::endpoint).with_state(endpoint))
    };
    let tools = |set| Tools::new(Arc::clone(app), ToolSet::of(set));
    let events = Events::new(app, tools(SetName::Env), used.clone(), stopping, cut_off);
    at(SetName::Default)
        .merge(at(SetName::Env))
        .merge(at(SetName::Workspace))
        .merge(call::routes(app, tools(SetName::Default)))
        .merge(events.routes())
}

/// What of the endpoints OpenAPI can describe.
pub(crate) fn described() -> utoipa::openapi::OpenApi {
    call::described().into_openapi()
}

/// The service behind one path.
#[derive(Clone)]
struct Endpoint {
    app: Arc<App>,
    service: StreamableHttpService<Tools, Sessions>,
    stopping: CancellationToken,
}

impl Endpoint {
    fn new(
        app: &Arc<App>,
        set: SetName,
        sessions: Sessions,
        stopping: &CancellationToken,
        cut_off: &CancellationToken,
    ) -> Self {
        let tools = Tools::new(Arc::clone(app), ToolSet::of(set));
        let body_bytes = usize::try_from(app.server.max_body_bytes).unwrap_or(usize::MAX);
        let config = StreamableHttpServerConfig::default()
            .with_sse_keep_alive(Some(KEEPALIVE))
            .with_json_response(true)
            .with_max_request_body_bytes(body_bytes)
            // Every request has passed our own check of Host and Origin.
            .disable_allowed_hosts()
            .with_cancellation_token(cut_off.clone());
        let sessions = Arc::new(sessions);
        Self {
            app: Arc::clone(app),
            service: StreamableHttpService::new(move || Ok(tools.clone()), sessions, config),
            stopping: stopping.clone(),
        }
    }
}

/// Any method on an endpoint.
async fn endpoint(State(endpoint): State<Endpoint>, request: Request) -> Result<Response, Refusal> {
    let app = &endpoint.app;
    let (head, body) = request.into_parts();
    let bytes = body::read(&head.headers, body, app.body_limit(), app.stall()).await?;
    let bytes = match body::plain_json(&bytes)? {
        Cow::Borrowed(plain) if plain.len() == bytes.len() => bytes,
        plain => plain.into_owned(),
    };
    beside::check(&bytes)?;
    let method = head.method.clone();
    let request = Request::from_parts(head, Body::from(bytes));
    let Some(OnBehalfOf(owner)) = request.extensions().get().cloned() else {
        return Err(Refusal::internal());
    };
    let revoked = app.on_behalf_of(owner.clone()).supervisor.revoked();
    let answered = sessions::on_behalf_of(owner, endpoint.service.handle(request));
    let mut response = answered.await.map(Body::new);
    if method == Method::DELETE && response.status() == StatusCode::ACCEPTED {
        // The session has ended by now, and clients warn of anything but 200 and 204.
        *response.status_mut() = StatusCode::OK;
    }
    if method != Method::GET {
        return Ok(response);
    }
    let stopping = endpoint.stopping.cancelled_owned();
    let ended = async move {
        tokio::select! {
            () = stopping => {}
            () = revoked.cancelled() => {}
        }
    };
    Ok(response.map(|body| {
        let messages = body.into_data_stream().take_until(Box::pin(ended));
        Body::from_stream(messages)
    }))
}
