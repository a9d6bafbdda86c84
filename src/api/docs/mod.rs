//! `GET /docs`: a page to read about the routes and to try them, which is Swagger UI over our own
//! description. Everything that it loads comes from here; it works where there is no internet.
//!
//! The page needs no key: a browser that follows a link sends none. What it is told by `Authorize` it
//! sends with each request.

use std::io::Read as _;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::read::GzDecoder;
use utoipa_axum::routes;

use super::error::Refusal;
use super::openapi::Routes;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
/// Compressed in the binary, which is copied into memory for every nursery: 440 KB instead of 1.7 MB.
const BUNDLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui-bundle.js.gz"));
const STYLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/swagger-ui.css.gz"));

/// Nothing from elsewhere, nothing sent elsewhere, no frame around it. Swagger UI sets style attributes,
/// and its pictures are `data:`.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The page and its parts.
pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(page))
        .route("/docs/{file}", get(part))
}

/// Show this interface
///
/// A page to read about the routes and to try them. Needs no key, and no internet.
#[utoipa::path(
    get,
    path = "/docs",
    operation_id = "docs",
    tag = "service",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html")),
)]
async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, PAGE)
}

async fn part(Path(file): Path<String>, headers: HeaderMap) -> Result<Response, Refusal> {
    const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
    match &*file {
        "page.js" => Ok(([(header::CONTENT_TYPE, JAVASCRIPT)], SCRIPT).into_response()),
        "swagger-ui.js" => packed(JAVASCRIPT, BUNDLE, &headers),
        "swagger-ui.css" => packed("text/css; charset=utf-8", STYLE, &headers),
        _ => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "there is no such route",
        )),
    }
}

/// As it is for whoever takes gzip, unpacked for others.
fn packed(mime: &str, bytes: &'static [u8], headers: &HeaderMap) -> Result<Response, Refusal> {
    let accepted = headers.get(header::ACCEPT_ENCODING);
    let accepted = accepted.and_then(|value| value.to_str().ok());
    let fixed = [
        (header::CONTENT_TYPE, mime),
        (header::VARY, "accept-encoding"),
        (header::CACHE_CONTROL, "private, max-age=86400"),
    ];
    if accepted.is_some_and(|accepted| accepted.contains("gzip")) {
        return Ok((fixed, [(header::CONTENT_ENCODING, "gzip")], bytes).into_response());
    }
    let mut plain = Vec::new();
    let unpacked = GzDecoder::new(bytes).read_to_end(&mut plain);
    unpacked.map_err(|_| Refusal::internal())?;
    Ok((fixed, plain).into_response())
}
