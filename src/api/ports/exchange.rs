//! One request to a server inside and its answer, over a connection of its own.
//!
//! The connection ends with whichever ends first: the exchange, the client (the answer is dropped), the
//! server, the sandbox, or its time without a byte.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderValue};
use axum::http::{StatusCode, Version};
use axum::response::Response;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::clock::{Clock, Counted, Late, Watched};
use super::{Inside, To, answer, request, tunnel};
use crate::api::error::Refusal;
use crate::api::server::{HEAD_BYTES, HEADERS, Place};
use crate::supervisor::{Error, PortConnection};

/// Passes a request on and its answer back.
///
/// # Errors
/// Those of the supervisor's `dial`; 502 for what is no answer; 504 for one that does not come in time.
pub(super) async fn exchange(
    inside: &Inside,
    to: &To,
    mut outer: Request,
) -> Result<Response, Refusal> {
    let place = outer.extensions_mut().remove::<Place>();
    let place = place.ok_or_else(Refusal::internal)?;
    let keyed = inside.guard.presents_key(outer.headers());
    let client = hyper::upgrade::on(&mut outer);
    let (parts, body) = outer.into_parts();
    let (head, wanted) = request::inward(&parts, to, &inside.guard, place.peer)?;
    let connection = inside.app.supervisor.dial(&to.sandbox_id, to.port).await?;
    let clock = Clock::new();
    let counted = Counted {
        body,
        clock: Arc::clone(&clock),
    };
    let limits = &inside.limits;
    let idle = Duration::from_secs(limits.port_idle_seconds);
    let (mut sender, line) = open(connection, &clock, idle)
        .await
        .map_err(|e| wrong(to, &e))?;
    let answered = tokio::select! {
        answered = sender.send_request(head.map(|()| counted)) => answered,
        late = clock.late(inside.app.stall(), Duration::from_secs(limits.port_head_seconds)) => {
            return Err(too_late(to, late));
        }
    };
    let mut answered = match answered {
        Ok(answered) => answered,
        Err(_) if line.held.is_closing() => return Err(Error::sandbox_closing().into()),
        Err(error) => return Err(wrong(to, &error)),
    };
    let server = hyper::upgrade::on(&mut answered);
    let (mut parts, body) = answered.into_parts();
    let agreed = answer::outward(&mut parts, to, &inside.guard, keyed);
    let agreed = agreed.ok_or_else(|| bad_answer(to, "it has a Transfer-Encoding but chunked"))?;
    parts.version = Version::HTTP_11;
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        let protocol = agreed
            .filter(|agreed| wanted.is_some_and(|wanted| names(&wanted, agreed)))
            .ok_or_else(|| bad_answer(to, "it changes to a protocol that nobody asked for"))?;
        parts.headers.insert(header::UPGRADE, protocol);
        let connection = HeaderValue::from_static("Upgrade");
        parts.headers.insert(header::CONNECTION, connection);
        let revoked = inside.app.supervisor.revoked();
        tunnel::spawn(client, server, line, clock, idle, place, revoked);
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    let passing = Passing { body, _line: line };
    Ok(Response::from_parts(parts, Body::new(passing)))
}

/// Holds the connection open.
pub(super) struct Line {
    pub(super) held: Arc<crate::supervisor::PortUse>,
    _cut: DropGuard,
}

type Sender = http1::SendRequest<Counted>;

async fn open(
    connection: PortConnection,
    clock: &Arc<Clock>,
    idle: Duration,
) -> Result<(Sender, Line), hyper::Error> {
    let PortConnection { stream, held } = connection;
    // As for the client's connection.
    let _ = stream.set_nodelay(true);
    let watched = Watched {
        tcp: stream,
        clock: Arc::clone(clock),
    };
    let (sender, driver) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .handshake(TokioIo::new(watched))
        .await?;
    let (held, cut) = (Arc::new(held), CancellationToken::new());
    let line = Line {
        held: Arc::clone(&held),
        _cut: cut.clone().drop_guard(),
    };
    let clock = Arc::clone(clock);
    tokio::spawn(async move {
        tokio::select! {
            ended = driver.with_upgrades() => if let Err(error) = ended {
                tracing::debug!(%error, "a connection to a server inside broke off");
            },
            () = cut.cancelled() => {}
            () = held.closed() => {}
            () = clock.idle(idle) => {}
        }
    });
    Ok((sender, line))
}

/// Whether a client's `Upgrade` lists the protocol that a server changes to.
fn names(wanted: &HeaderValue, agreed: &HeaderValue) -> bool {
    let listed = wanted.as_bytes().split(|byte| *byte == b',');
    let mut listed = listed.map(<[u8]>::trim_ascii);
    listed.any(|protocol| protocol.eq_ignore_ascii_case(agreed.as_bytes().trim_ascii()))
}

fn too_late(to: &To, late: Late) -> Refusal {
    match late {
        Late::Client => Refusal::bad_request(
            "body_timeout",
            "the body stopped arriving ([server] body_timeout_seconds)",
        ),
        Late::Server => Refusal::new(
            StatusCode::GATEWAY_TIMEOUT,
            "port_timeout",
            format!(
                "the server on port {} of the sandbox has not answered in time \
                 (limits.port_head_seconds)",
                to.port
            ),
        ),
    }
}

/// What `hyper` says of an exchange that came to nothing, without its own words: they are about our
/// side of it.
fn wrong(to: &To, error: &hyper::Error) -> Refusal {
    tracing::debug!(%error, port = to.port, "no answer from inside");
    if error.is_user() {
        return Refusal::bad_request("broken_body", "the body ended before its end");
    }
    bad_answer(
        to,
        if error.is_parse_too_large() {
            "its head is too large"
        } else if error.is_parse() {
            "it is not HTTP/1.1"
        } else {
            "the connection was closed before it was complete"
        },
    )
}

fn bad_answer(to: &To, why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_GATEWAY,
        "bad_answer",
        format!(
            "the server on port {} of the sandbox gave no proper answer: {why}",
            to.port
        ),
    )
}

/// An answer's body, and with it the connection that it comes from.
struct Passing {
    body: Incoming,
    _line: Line,
}

impl hyper::body::Body for Passing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The client's side of a change of protocols, the server's alike.
pub(super) type Side = OnUpgrade;
