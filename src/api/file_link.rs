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
use super::query::Parameters;

/// The sandbox is named by `sandbox_id`, or by `sandbox_name` where one live sandbox has that.
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
