//! HTTP/1.1 on the proxy's port: `CONNECT`, requests in absolute form, and requests to the gateway.
//!
//! Nothing of a request is passed on as it came: hyper reads it and writes another, so that what the
//! policy saw is what the host gets. `Host` is written from the target, lengths from the body.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::{PathAndQuery, Scheme};
use axum::http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::super::refusal::{Code, Refusal};
use super::super::target::Target;
use super::connection::Connection;
use super::exchange::{Aim, Exchange};
use super::stream::{Counted, Watched};
use super::tunnel::Tunnel;

/// Bytes of a head, and of what is read ahead of a body.
const HEAD_BYTES: usize = 64 * 1024;
const HEADERS: usize = 100;
/// Port of `http:` without one.
const HTTP_PORT: u16 = 80;
/// Headers of one hop (RFC 9110, section 7.6.1; `proxy-connection` and `keep-alive` are older), those for
/// this proxy, and those that hyper writes anew. `expect` is answered here.
const NOT_FORWARDED: [HeaderName; 11] = [
    header::CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("http2-settings"),
];

/// A `CONNECT` that was answered: the client's side comes from hyper when the answer is written.
struct Answered {
    client: OnUpgrade,
    upstream: TcpStream,
    exchange: Arc<Exchange>,
}

type Slot = Arc<Mutex<Option<Answered>>>;

/// Answers requests to the connection's end, or to a `CONNECT` that reached something.
pub(super) async fn serve(
    connection: &Arc<Connection>,
    stream: TcpStream,
    head_time: Duration,
) -> Option<Tunnel> {
    let slot = Slot::default();
    let service = service_fn(|request| {
        let (connection, slot) = (Arc::clone(connection), Arc::clone(&slot));
        async move {
            let answered = answer(&connection, request, &slot).await;
            Ok::<_, Infallible>(answered.unwrap_or_else(|refusal| refusal.response()))
        }
    });
    let served = server::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // Malformed requests and clients that left: nobody to tell that hyper has not told.
    let _ = served.await;
    let answered = slot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    let parts = answered
        .client
        .await
        .ok()?
        .downcast::<TokioIo<TcpStream>>()
        .ok()?;
    Some(Tunnel {
        client: parts.io.into_inner(),
        upstream: answered.upstream,
        early: parts.read_buf,
        exchange: answered.exchange,
    })
}

async fn answer(
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
    slot: &Slot,
) -> Result<Response<Body>, Refusal> {
    let uri = request.uri();
    if request.method() != Method::CONNECT && uri.authority().is_none() {
        return ask_gateway(connection, request).await;
    }
    let target = target_of(&request).map_err(|why| {
        let text = uri
            .authority()
            .map_or_else(|| uri.path(), |authority| authority.as_str());
        let shown: String = text.chars().take(SHOWN).collect();
        connection.refuse_unreadable(text, &format!("request for {shown} refused: {why}"))
    })?;
    if request.method() == Method::CONNECT {
        let (exchange, upstream) = connection.reach(target).await?;
        let client = hyper::upgrade::on(&mut request);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Answered {
            client,
            upstream,
            exchange,
        });
        return Ok(Response::new(Body::empty()));
    }
    forward(connection, request, target).await
}

/// Characters of a host that could not be read which an answer repeats.
const SHOWN: usize = 100;

fn target_of<B>(request: &Request<B>) -> Result<Target, &'static str> {
    let uri = request.uri();
    let authority = uri.authority().map(|authority| authority.as_str());
    if request.method() == Method::CONNECT {
        if uri.scheme().is_some() || uri.path_and_query().is_some() {
            return Err("CONNECT takes a host and a port");
        }
        return Target::parse(authority.unwrap_or_default(), None);
    }
    match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => {}
        Some(scheme) if *scheme == Scheme::HTTPS => {
            return Err("https goes through CONNECT, so that it is encrypted to its end");
        }
        _ => return Err("only http: URLs are forwarded; use CONNECT or SOCKS5 for anything else"),
    }
    let upgrade = request.headers().get(header::UPGRADE);
    if upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        return Err("WebSockets go through CONNECT");
    }
    Target::parse(authority.unwrap_or_default(), Some(HTTP_PORT))
}

async fn ask_gateway(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let exchange = connection.begin(Aim::Packages)?;
    let Some(gateway) = connection.egress.gateway.as_ref() else {
        let refusal = Refusal::new(Code::Unreachable, "this host has no package index");
        exchange.refuse(&refusal);
        connection.finish();
        return Err(refusal);
    };
    let response = gateway(connection.link.sandbox_id(), request).await;
    exchange.answered();
    Ok(response.map(|body| Body::new(Watched::counting(body, connection, exchange))))
}

async fn forward(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    target: Target,
) -> Result<Response<Body>, Refusal> {
    let outgoing = outgoing(request, &target);
    let (exchange, upstream) = connection.reach(target.clone()).await?;
    let fail = |code, why| {
        let refusal = Refusal::of_target(code, &target, why);
        exchange.refuse(&refusal);
        connection.finish();
        refusal
    };
    let broke_off = |_| fail(Code::Unreachable, "the host broke off, or answered no HTTP");
    let io = TokioIo::new(Counted::new(upstream, &exchange));
    let handshake = client::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .handshake(io)
        .await;
    let (mut sender, driver) = handshake.map_err(broke_off)?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        // What goes wrong here, the request or the body of its answer fails with.
        let _ = driver.await;
    }));
    let answered = timeout(connection.egress.limits.idle, sender.send_request(outgoing)).await;
    let answered = answered.map_err(|_| fail(Code::Timeout, "the host did not answer in time"))?;
    let mut response = answered.map_err(broke_off)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(fail(
            Code::Unreachable,
            "the host switched to another protocol unasked",
        ));
    }
    let headers = response.headers_mut();
    // Of two lengths, the chunks are right (RFC 9112, section 6.3).
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    remove_hop_headers(headers);
    *response.version_mut() = Version::HTTP_11;
    response.extensions_mut().clear();
    Ok(response.map(|body| Body::new(Watched::driven(Body::new(body), connection, driver))))
}

/// The request as the host gets it.
fn outgoing(request: Request<Incoming>, target: &Target) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().cloned();
    parts.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
    remove_hop_headers(&mut parts.headers);
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::HOST);
    let host = if target.port == HTTP_PORT {
        target.host.to_string()
    } else {
        target.to_string()
    };
    if let Ok(host) = HeaderValue::from_str(&host) {
        parts.headers.insert(header::HOST, host);
    }
    Request::from_parts(parts, body)
}

fn remove_hop_headers(headers: &mut HeaderMap) {
    let connection = headers.get_all(header::CONNECTION).iter();
    let named: Vec<HeaderName> = connection
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&NOT_FORWARDED) {
        headers.remove(name);
    }
}
