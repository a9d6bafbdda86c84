//! The port: connections in, limits on them, and an orderly end.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower_http::cors::{
    AllowCredentials, AllowHeaders, AllowOrigin, AllowPrivateNetwork, CorsLayer,
};

use super::access::Access;
use super::caller::OnBehalfOf;
use super::error::{Error, Refusal};
use super::socket::Socket;
use super::{App, mcp, openapi, ports, rest};
use crate::config::{self, Config};
use crate::supervisor::Supervisor;

/// Requests that run when the service is told to stop may end within this time.
const DRAIN: Duration = Duration::from_secs(10);
/// Bytes of a request's head, and of what is read ahead of a body.
pub(super) const HEAD_BYTES: usize = 64 * 1024;
pub(super) const HEADERS: usize = 100;
/// How long a browser need not ask again whether a page may send a request.
const PREFLIGHT: Duration = Duration::from_secs(600);
/// Pause after a failed accept: it fails for want of descriptors or memory, and at once again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` completes and the requests that run then have ended, or their time is
/// over. Code of requests that are cut off is interrupted.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    supervisor: Supervisor,
    config: &Config,
    access: Access,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let app = Arc::new(App {
        // Until a request's key says more: a handler that asked nobody finds nothing.
        supervisor: supervisor.on_behalf_of_nobody(),
        server: Arc::new(config.server.clone()),
        code_bytes: config.limits.code_bytes,
    });
    let stopping = CancellationToken::new();
    let cut_off = CancellationToken::new();
    let mcp = mcp::routes(&app, &config.limits, &stopping, &cut_off);
    let router = router(app, mcp, access);
    let mut connections = JoinSet::new();
    tokio::select! {
        () = accept(&listener, &router, &config.server, &stopping, &mut connections) => {}
        () = shutdown => {}
    }
    drop(listener);
    stopping.cancel();
    let drained = timeout(DRAIN, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "cutting off requests that still run"
        );
    }
    cut_off.cancel();
    connections.shutdown().await;
    Ok(())
}

fn router(app: Arc<App>, mcp: Router, access: Access) -> Router {
    let inside = ports::Inside::new(Arc::clone(&app), access.clone());
    let router = rest::routes()
        .with_state(app)
        .merge(mcp)
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(access.clone(), check_key))
        .layer(cors(access.clone()))
        .layer(from_fn_with_state(access, check_sender))
        // Pages from inside have rules of their own for all of these.
        .merge(ports::proxied().with_state(inside.clone()))
        .layer(from_fn_with_state(inside, ports::by_name))
        .layer(from_fn(observe));
    debug_assert_eq!(openapi::differences(&router), [""; 0]);
    router
}

/// Outermost: a panic becomes an answer, every answer its common headers, every request a line.
async fn observe(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        tracing::error!(%method, ?path, "a request's handler panicked");
        Refusal::internal().into_response()
    });
    let status = response.status().as_u16();
    let milliseconds = begun.elapsed().as_millis();
    tracing::debug!(%method, ?path, status, milliseconds, "answered");
    if response.extensions().get::<ports::Untouched>().is_some() {
        return response;
    }
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn check_sender(
    State(access): State<Access>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let guard = access.now();
    guard.check_host(request.uri(), request.headers())?;
    guard.check_origin(request.headers())?;
    Ok(next.run(request).await)
}

/// Finds out on whose behalf a request is. What watches a service has no key: `/health` says nothing that
/// a connection does not. Nor does the description of the interface, which is the same everywhere.
async fn check_key(
    State(access): State<Access>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    if !openapi::is_public(request.uri().path()) {
        let owner = access.now().caller(request.headers())?;
        request.extensions_mut().insert(OnBehalfOf(owner));
    }
    Ok(next.run(request).await)
}

/// Lets pages of the origins that the guard admits read our answers (Fetch standard, "CORS protocol").
/// With credentials only those that are listed by name or of this machine: `*` stands for pages that
/// nobody knows.
fn cors(access: Access) -> CorsLayer {
    let of = |origin: &HeaderValue| origin.to_str().unwrap_or_default().to_owned();
    let admitted = {
        let access = access.clone();
        move |origin: &HeaderValue, _: &_| access.now().admits_origin(&of(origin))
    };
    let private = admitted.clone();
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(admitted))
        .allow_credentials(AllowCredentials::predicate(move |origin, _| {
            access.now().trusts_origin(&of(origin))
        }))
        // Asked for by pages of public addresses that call private ones.
        .allow_private_network(AllowPrivateNetwork::predicate(private))
        .allow_methods([
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        // A list: `*` would not stand for `Authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            HeaderName::from_static("mcp-session-id"),
            HeaderName::from_static("mcp-protocol-version"),
            header::ACCEPT_RANGES,
            header::CONTENT_DISPOSITION,
            header::CONTENT_RANGE,
            header::ETAG,
            header::LOCATION,
            header::RETRY_AFTER,
            header::WWW_AUTHENTICATE,
        ])
        .max_age(PREFLIGHT)
}

/// Takes connections for ever; past the limit they wait in the kernel's queue.
async fn accept(
    listener: &TcpListener,
    router: &Router,
    server: &config::Server,
    stopping: &CancellationToken,
    connections: &mut JoinSet<()>,
) {
    let places = Arc::new(Semaphore::new(server.max_connections));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let place = Place {
            _permit: Arc::new(place),
            stopping: stopping.clone(),
            peer: peer.ip(),
        };
        connections.spawn(connection(tcp, router.clone(), server, place));
    }
}

/// A connection's place among those that may be, in every request's extensions: what takes the
/// connection over from HTTP keeps it, and ends when the service stops.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    _permit: Arc<OwnedSemaphorePermit>,
    /// Cancelled when the service stops.
    pub(crate) stopping: CancellationToken,
    /// Where the connection comes from.
    pub(crate) peer: IpAddr,
}

/// HTTP/1.1 on one connection, until it ends, is taken over or, once stopping, its request has been
/// answered.
fn connection(
    tcp: TcpStream,
    router: Router,
    server: &config::Server,
    place: Place,
) -> impl Future<Output = ()> + use<> {
    // Answers are small and waited for: without this, Nagle's algorithm and delayed
    // acknowledgements hold the second packet of an answer back for 40 ms.
    let _ = tcp.set_nodelay(true);
    let socket = Socket::new(tcp, Duration::from_secs(server.body_timeout_seconds));
    let stopping = place.stopping.clone();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request| {
        request.extensions_mut().insert(place.clone());
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(server.header_timeout_seconds))
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    async move {
        let mut connection = std::pin::pin!(connection);
        let ended: Result<(), hyper::Error> = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}
