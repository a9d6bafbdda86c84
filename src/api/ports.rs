//! Servers inside sandboxes, reached from outside without a route: each request is passed on over a
//! connection that init has dialled.
//!
//! | | by path | by name |
//! |---|---|---|
//! | where | `/sandbox/{id}/port/{n}/…` | `{n}-{id}.<ports_domain>` |
//! | for | programs, and simple pages | browsers |
//! | origin of a page | opaque | the server's own |
//! | cookies | none | its own |
//! | redirects | rewritten below the prefix | of the name |
//! | key | in a header | in a header, or `?sandcell_key=` once, then a cookie |
//!
//! What is removed and why is in [`request`] on the way in and in [`answer`] on the way out.

mod answer;
mod clock;
mod exchange;
mod request;
mod tunnel;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use utoipa_axum::routes;

use super::App;
use super::access::Access;
use super::caller::Caller;
use super::error::Refusal;
use super::guard::{Guard, KEY_NAME, PortName, port_number};
use super::openapi::Routes;
use super::rest::SandboxId;
use super::wire::PortAnswer;
use crate::config::Limits;
use crate::supervisor::Owner;
use exchange::exchange;

const SERVICE_WORKER: HeaderName = HeaderName::from_static("service-worker");

/// What the handlers need.
#[derive(Clone)]
pub(crate) struct Inside {
    app: Arc<App>,
    access: Access,
    /// As it was when the request came.
    guard: Arc<Guard>,
    limits: Arc<Limits>,
}

impl Inside {
    pub(crate) fn new(app: Arc<App>, access: Access) -> Self {
        let limits = Arc::new(app.supervisor.config().limits.clone());
        Self {
            app,
            guard: access.now(),
            access,
            limits,
        }
    }

    /// For a request that comes now.
    fn now(&self) -> Self {
        Self {
            guard: self.access.now(),
            ..self.clone()
        }
    }

    /// What one owner sees.
    fn on_behalf_of(&self, owner: Option<Owner>) -> Self {
        Self {
            app: self.app.on_behalf_of(owner),
            ..self.clone()
        }
    }
}

/// Marks an answer whose headers are the server's own matter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Untouched;

/// Where a request goes.
#[derive(Debug, Clone)]
struct To {
    sandbox_id: String,
    port: u16,
    /// Path and query, as the server gets them.
    target: String,
    /// By name, else by path.
    name: Option<PortName>,
    /// The client's `Host`, in lower case.
    outer_host: Option<String>,
    /// `http`, or `https` where a proxy before us says so.
    scheme: &'static str,
    /// Port inside of the page that calls, where it is one of the same sandbox.
    origin_port: Option<u16>,
}

impl To {
    fn new(
        sandbox_id: String,
        port: u16,
        target: &str,
        name: Option<PortName>,
        headers: &HeaderMap,
    ) -> Self {
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let tls = text(request::FORWARDED_PROTO).is_some_and(|p| p.eq_ignore_ascii_case("https"));
        Self {
            sandbox_id,
            port,
            target: target.to_owned(),
            name,
            outer_host: text(header::HOST).map(str::to_ascii_lowercase),
            scheme: if tls { "https" } else { "http" },
            origin_port: None,
        }
    }

    /// Path of a server inside, without the slash at its end.
    fn prefix(&self, port: u16) -> String {
        format!("/sandbox/{}/port/{port}", self.sandbox_id)
    }

    /// What leads a client to a path of a server inside.
    fn public(&self, port: u16, path: &str) -> Option<String> {
        if self.name.is_none() {
            let prefix = self.prefix(port);
            // A server that heeds `X-Forwarded-Prefix` has put it there itself.
            let below = path.strip_prefix(&prefix).filter(|p| p.starts_with('/'));
            return Some(prefix + below.unwrap_or(path));
        }
        if port == self.port && !path.starts_with("//") {
            return Some(path.to_owned());
        }
        let (_, rest) = self.outer_host.as_deref()?.split_once('-')?;
        Some(format!("{}://{port}-{rest}{path}", self.scheme))
    }
}

/// Routes of the service about servers inside.
pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(list))
}

/// List the servers inside
///
/// Each is reached at its `url`, for programs, or at its `host`, for browsers.
#[utoipa::path(
    get,
    path = "/sandbox/{id}/ports",
    operation_id = "list_ports",
    tag = "processes",
    responses((status = 200, description = "What listens inside, on any address.", body = Vec<PortAnswer>)),
)]
async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Vec<PortAnswer>>, Refusal> {
    let found = app.supervisor.ports(&id).await?.into_iter();
    let domain = &app.server.ports_domain;
    Ok(Json(
        found
            .map(|port| PortAnswer::new(&id, domain, port))
            .collect(),
    ))
}

/// Routes that lead inside.
pub(super) fn proxied() -> Router<Inside> {
    Router::new()
        .route("/sandbox/{id}/port/{port}", any(by_path))
        .route("/sandbox/{id}/port/{port}/", any(by_path))
        .route("/sandbox/{id}/port/{port}/{*path}", any(by_path))
}

// -- by path

async fn by_path(State(inside): State<Inside>, request: Request) -> Response {
    let inside = inside.now();
    let (guard, headers) = (&inside.guard, request.headers());
    let sender = guard
        .check_host(request.uri(), headers)
        .and_then(|()| guard.check_origin_by_path(headers));
    if let Err(refusal) = sender {
        return refusal.into_response();
    }
    let reader = headers.get(header::ORIGIN).cloned();
    let mut response = match preflight(&request) {
        Some(answer) => answer,
        None => forward(&inside, request).await.into_response(),
    };
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(reader) = reader {
        // Without credentials: there are none by path that a browser would send.
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, reader);
        let all = HeaderValue::from_static("*");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, all);
    }
    response
}

async fn forward(inside: &Inside, request: Request) -> Result<Response, Refusal> {
    let headers = request.headers();
    let inside = &inside.on_behalf_of(inside.guard.caller(headers)?);
    // The script of a worker must not come from the origin of the service (Service Workers, "Service-
    // Worker: script"), whoever asks for it.
    if headers.contains_key(SERVICE_WORKER) {
        return Err(Refusal::forbidden(
            "no_service_worker",
            "a service worker needs an origin of its own: use the server's host name",
        ));
    }
    // As they stand there: `/sandbox/{id}/port/{n}` and what follows.
    let path = request.uri().path();
    let mut segments = path.splitn(6, '/').skip(2);
    let id = segments.next().unwrap_or_default().to_owned();
    let port = segments.nth(1).unwrap_or_default();
    let rest = segments.next();
    inside.app.supervisor.info(&id)?;
    let port = port_number(port)
        .ok_or_else(|| Refusal::invalid("port", "port must be 1 to 65535, in digits"))?;
    let query = request.uri().query();
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let Some(rest) = rest else {
        // Relative links of the page need the slash.
        return redirect(StatusCode::PERMANENT_REDIRECT, &format!("{path}/{query}"));
    };
    let to = To::new(id, port, &format!("/{rest}{query}"), None, headers);
    exchange(inside, &to, request).await
}

fn redirect(status: StatusCode, location: &str) -> Result<Response, Refusal> {
    let location = HeaderValue::try_from(location).map_err(|_| Refusal::internal())?;
    Ok((status, [(header::LOCATION, location)]).into_response())
}

/// The answer to a browser that asks whether a page may send a request (Fetch standard, "CORS-preflight
/// request"). Its origin was admitted; no key comes with it.
fn preflight(request: &Request) -> Option<Response> {
    let headers = request.headers();
    let method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    headers.get(header::ORIGIN)?;
    (request.method() == Method::OPTIONS).then_some(())?;
    let mut response = StatusCode::OK.into_response();
    let allowed = response.headers_mut();
    allowed.insert(header::ACCESS_CONTROL_ALLOW_METHODS, method.clone());
    if let Some(names) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        allowed.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    Some(response)
}

// -- by name

/// Takes requests for a server inside by its name: none of them gets to a route of the service.
pub(super) async fn by_name(
    State(inside): State<Inside>,
    request: Request,
    next: Next,
) -> Response {
    let inside = inside.now();
    let answer = match inside.guard.port_name(request.uri(), request.headers()) {
        Ok(None) => return next.run(request).await,
        Ok(Some(name)) => named(&inside, name, request).await,
        Err(refusal) => Err(refusal),
    };
    answer.map_or_else(IntoResponse::into_response, |mut response| {
        response.extensions_mut().insert(Untouched);
        response
    })
}

async fn named(inside: &Inside, name: PortName, request: Request) -> Result<Response, Refusal> {
    let (guard, headers) = (&inside.guard, request.headers());
    guard.check_origin_by_name(&name, headers)?;
    if request.method() == Method::GET
        && let Some(answer) = enter(inside, &name, &request)?
    {
        return Ok(answer);
    }
    let inside = &inside.on_behalf_of(guard.caller_by_name(&name, headers)?);
    let (id, port) = (name.sandbox_id.clone(), name.port);
    let target = target(request.uri());
    let origin = headers.get(header::ORIGIN).and_then(|o| o.to_str().ok());
    let origin_port = origin.and_then(|origin| guard.inner_port(&name, origin));
    let to = To {
        origin_port,
        ..To::new(id, port, target, Some(name), headers)
    };
    exchange(inside, &to, request).await
}

fn target(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |target| target.as_str())
}

/// A browser sends no key by itself, but it follows a link with one: that becomes a cookie, and the
/// address bar keeps none.
fn enter(inside: &Inside, name: &PortName, request: &Request) -> Result<Option<Response>, Refusal> {
    let uri = request.uri();
    let (rest, Some(key)) = request::without_key(uri.query().unwrap_or_default()) else {
        return Ok(None);
    };
    let key = format!("{KEY_NAME}={key}");
    let key = url::form_urlencoded::parse(key.as_bytes()).next();
    let key = key.map(|(_, key)| key.into_owned()).unwrap_or_default();
    let token = inside.guard.admit(name, &key)?;
    let to = To::new(String::new(), 0, "", None, request.headers());
    // Two slashes at the beginning would name another host.
    let path = format!("/{}", uri.path().trim_start_matches('/'));
    let query = rest.map_or_else(String::new, |rest| format!("?{rest}"));
    let mut response = redirect(StatusCode::FOUND, &format!("{path}{query}"))?;
    let headers = response.headers_mut();
    let plain = [
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in plain {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Some(token) = token {
        let secure = if to.scheme == "https" { "; Secure" } else { "" };
        let cookie = format!("{KEY_NAME}={token}; Path=/; HttpOnly; SameSite=Lax{secure}");
        let cookie = HeaderValue::try_from(cookie).map_err(|_| Refusal::internal())?;
        headers.insert(header::SET_COOKIE, cookie);
    }
    Ok(Some(response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const ID: &str = "0123456789abcdefghjkmnpqrs";

    /// With two keys and one more name of the service.
    pub(super) fn guard() -> Guard {
        let server = config::Server {
            api_keys: ["first-key", "second-key"]
                .map(config::ApiKey::plain)
                .to_vec(),
            allowed_hosts: vec!["sandbox.example".into()],
            ..config::Server::default()
        };
        Guard::new(&server, ([127, 0, 0, 1], 18100).into()).expect("it is safe")
    }

    pub(super) fn to_path(target: &str) -> To {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("localhost:18100"));
        To::new(ID.into(), 8000, target, None, &headers)
    }

    pub(super) fn to_name(target: &str) -> To {
        let mut headers = HeaderMap::new();
        let host = format!("8000-{ID}.localhost:18100");
        headers.insert(header::HOST, HeaderValue::try_from(host).expect("a value"));
        let name = guard().port_name(&Uri::from_static("/"), &headers);
        let name = name.expect("they agree");
        assert!(name.is_some());
        To::new(ID.into(), 8000, target, name, &headers)
    }
}
