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
use http_body_util::BodyExt;
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
/// Bytes of a refused request's body that are read all the same, and the time for it.
const DRAINED_BYTES: usize = 8 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// Requests to the gateway that a sandbox may make in a second; more wait. A resolver asks for some
/// hundred pages at once; a loop would have the service work for nothing.
const GATEWAY_REQUESTS_PER_SECOND: u32 = 500;
const GATEWAY_PAUSE: Duration = Duration::from_millis(10);
/// Characters of a host that could not be read which an answer repeats.
const SHOWN: usize = 100;
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
    if request.method() != Method::CONNECT && request.uri().authority().is_none() {
        return ask_gateway(connection, request).await;
    }
    let target = target_of(connection, &request)?;
    if request.method() != Method::CONNECT {
        return match connection.reach(target.clone()).await {
            Ok((exchange, upstream)) => {
                forward(connection, request, &target, exchange, upstream).await
            }
            Err(refusal) => {
                drain(request.into_body()).await;
                Err(refusal)
            }
        };
    }
    let (exchange, upstream) = connection.reach(target).await?;
    let client = hyper::upgrade::on(&mut request);
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Answered {
        client,
        upstream,
        exchange,
    });
    Ok(Response::new(Body::empty()))
}

fn target_of<B>(connection: &Connection, request: &Request<B>) -> Result<Target, Refusal> {
    let uri = request.uri();
    let authority = uri.authority().map(|authority| authority.as_str());
    let text = authority.unwrap_or_else(|| uri.path());
    let refuse = |code, why| {
        let shown: String = text.chars().take(SHOWN).collect();
        let line = format!("request for {shown} refused: {why}");
        connection.refuse_unreadable(code, text, &line)
    };
    check_form(request).map_err(|why| refuse(Code::Request, why))?;
    let connect = request.method() == Method::CONNECT;
    let parsed = Target::parse(text, (!connect).then_some(HTTP_PORT));
    parsed.map_err(|why| refuse(Code::Host, why))
}

fn check_form<B>(request: &Request<B>) -> Result<(), &'static str> {
    let uri = request.uri();
    if request.method() == Method::CONNECT {
        let bare = uri.scheme().is_none() && uri.path_and_query().is_none();
        return bare.then_some(()).ok_or("CONNECT takes a host and a port");
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
    Ok(())
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
    while !connection.link.take_request(GATEWAY_REQUESTS_PER_SECOND) {
        tokio::time::sleep(GATEWAY_PAUSE).await;
    }
    let response = gateway(connection.link.sandbox_id(), request).await;
    exchange.answered();
    Ok(response.map(|body| Body::new(Watched::counting(body, connection, exchange))))
}

/// Reads what comes of a body that nobody takes: a client that still sends when the connection is closed
/// sees that it broke, and not the answer that says why.
async fn drain(mut body: Incoming) {
    let read = async {
        let mut left = DRAINED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, bytes::Bytes::len);
            let Some(rest) = left.checked_sub(bytes) else {
                return;
            };
            left = rest;
        }
    };
    let _ = timeout(DRAIN_TIME, read).await;
}

async fn forward(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    target: &Target,
    exchange: Arc<Exchange>,
    upstream: TcpStream,
) -> Result<Response<Body>, Refusal> {
    let outgoing = outgoing(request, target);
    let fail = |code, why| {
        let refusal = Refusal::of_target(code, target, why);
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
    let answered = tokio::select! {
        answered = sender.send_request(outgoing) => answered,
        () = exchange.stalled(connection.egress.limits.idle) => {
            return Err(fail(Code::Timeout, "the host did not answer in time"));
        }
    };
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
