//! `GET /sandbox/file`: a file as a link that people follow, shown rather than saved.
//!
//! What is shown is not a page of ours: [`Attached::Shown`] says how. HTML and SVG are drawn without
//! their scripts and without anything from elsewhere; whoever wants them to run saves them
//! (`…/download/…`) or serves them from the sandbox, on a port of its own.

use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use super::caller::Caller;
use super::download::{Attached, answer};
use super::error::Refusal;
use super::openapi;
use super::query::Parameters;

/// Show a file
///
/// A browser shows it where it can, HTML and SVG without their scripts and without anything from
/// elsewhere.
#[utoipa::path(
    get,
    path = "/sandbox/file",
    operation_id = "show_file",
    tag = "files",
    params(("sandbox_id" = Option<String>, Query, description = "The sandbox."), ("sandbox_name" = Option<String>, Query, description = "Or its name, where one live sandbox has that."), ("file_path" = String, Query, description = "Path of the file; it may begin with `/home/user/` or another name of the working directory, such as `/mnt/data/`."), ("Range" = Option<String>, Header, description = "Which bytes, such as `bytes=0-99`."), ("If-None-Match" = Option<String>, Header, description = "The ETag of what the client has.")),
    responses((status = 200, description = "The file. Its type is guessed from its name.", content((openapi::RawBytes = "application/octet-stream"), (openapi::FileOfAnyType = "*/*"))),
        (status = 206, description = "The range.", content((openapi::RawBytes = "application/octet-stream"), (openapi::FileOfAnyType = "*/*"))),
        (status = 304, description = "The client has it.")),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "files", "sandbox_not_found", "sandbox_closing", "sandbox_gone", "ambiguous_name", "range_not_satisfiable", "file_changed_since"]))),
)]
pub(crate) async fn file(
    Caller(app): Caller,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let asked = Parameters::of(&uri)?;
    let path = asked.required("file_path")?;
    let id = match (asked.text("sandbox_id"), asked.text("sandbox_name")) {
        (Some(id), None) => id.to_owned(),
        (None, Some(name)) => app.supervisor.named(name)?,
        _ => {
            return Err(Refusal::invalid(
                "sandbox_id",
                "sandbox_id: give it, or sandbox_name, and not both",
            ));
        }
    };
    let opened = app.supervisor.open_file(&id, path).await?;
    answer(opened, path, Attached::Shown, &headers)
}
