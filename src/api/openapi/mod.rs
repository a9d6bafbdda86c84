//! The description of the REST interface (OpenAPI 3.1), made of the routes themselves.
//!
//! A new route is documented where it is written: a doc comment on its handler (the first line is the
//! summary), `#[utoipa::path(…)]` with `operation_id`, `tag`, bodies and, as `x-errors`, the codes that
//! do not follow from its path and body ([`finish`]); `routes!(handler)` registers both at once.
//! Its codes stand in [`codes`], a run of it in `tests/api/document/runs.rs`; tests miss what is missing.

mod audit;
mod codes;
mod events;
mod examples;
mod finish;
mod words;

use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::Value;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{App, docs, mcp, rest};
pub(super) use audit::differences;
pub(super) use codes::is_known;
pub(super) use finish::is_public;
pub(super) use words::*;

/// Routes, and their description.
pub(super) type Routes = OpenApiRouter<Arc<App>>;

/// Made when it is first asked for.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| finish::document(all()));

const MCP: &str = "the Model Context Protocol describes itself: ask it for its tools";
const INSIDE: &str = "any method; the answers are those of a server inside the sandbox";

/// Routes that OpenAPI has no words for, and why. They are listed in the description.
const NOT_DESCRIBED: &[(&str, &str)] = &[
    ("/docs/{file}", "what the page at /docs is made of"),
    ("/mcp", MCP),
    ("/mcp/env", MCP),
    ("/mcp/workspace", MCP),
    ("/sse", MCP),
    ("/messages", MCP),
    ("/messages/", MCP),
    (
        "/sandbox/{id}/port/{port}",
        "any method; leads to the next with a slash at its end",
    ),
    ("/sandbox/{id}/port/{port}/", INSIDE),
    ("/sandbox/{id}/port/{port}/{path}", INSIDE),
];

/// The descriptions of all routers.
fn all() -> OpenApi {
    let mut all = rest::described().into_openapi();
    all.merge(mcp::described());
    all
}

/// Routes about the routes.
pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(serve)).merge(docs::routes())
}

/// Describe this interface
///
/// OpenAPI 3.1. Needs no key.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "describe",
    tag = "service",
    responses((status = 200, description = "The description.", body = Object)),
)]
async fn serve() -> impl IntoResponse {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| DOCUMENT.to_string().into());
    let mime = [(header::CONTENT_TYPE, "application/json")];
    (mime, TEXT.clone())
}

#[cfg(test)]
mod tests;
