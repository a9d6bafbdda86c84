//! `/sandboxes` and `/sandbox/{id}`: which there are, what they are, how long they live.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use utoipa_axum::routes;

use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::query::Parameters;
use super::rest::{SandboxId, optional};
use super::wire::{Described, Listed, RenewRequest, Renewed};
use crate::supervisor::{SandboxInfo, SandboxState};

pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list))
        .routes(routes!(describe))
        .routes(routes!(renew))
}

/// List the live sandboxes
#[utoipa::path(
    get,
    path = "/sandboxes",
    operation_id = "list_sandboxes",
    tag = "sandboxes",
    params(("name" = Option<String>, Query, description = "Only those of that name."), ("state" = Option<openapi::Activity>, Query, description = "Only those that do this."), ("mirror" = Option<String>, Query, description = "Only those made of the mirror of that id or name."), ("limit" = Option<u64>, Query, description = "So many at most, the first by id."), ("after" = Option<String>, Query, description = "Only ids after this one: the last of the page before.")),
    responses((status = 200, description = "The sandboxes, by id.", body = BTreeMap<String, Listed>)),
    extensions(("x-errors" = json!(["bad_query", "invalid_field"]))),
)]
async fn list(Caller(app): Caller, uri: Uri) -> Result<Json<BTreeMap<String, Listed>>, Refusal> {
    let asked = Parameters::of(&uri)?;
    let states = [
        SandboxState::Idle,
        SandboxState::Busy,
        SandboxState::Closing,
    ];
    let state = asked.word("state", &states.map(|state| (state.as_str(), state)))?;
    let limit = asked.number("limit")?.unwrap_or(usize::MAX);
    let wanted = |info: &SandboxInfo| {
        let mirror = info.mirror.as_ref();
        asked.text("name").is_none_or(|name| info.name == name)
            && state.is_none_or(|state| info.state == state)
            && asked.text("mirror").is_none_or(|wanted| {
                mirror.is_some_and(|mirror| mirror.name == wanted || mirror.id == wanted)
            })
            && asked.text("after").is_none_or(|after| *info.id > *after)
    };
    let found = app.supervisor.list().into_iter().filter(wanted);
    let by_id: BTreeMap<_, _> = found.map(|info| (info.id.clone(), info.into())).collect();
    Ok(Json(by_id.into_iter().take(limit).collect()))
}

/// Describe a sandbox
///
/// Looking is not using: one that is idle stays so.
#[utoipa::path(
    get,
    path = "/sandbox/{id}",
    operation_id = "describe_sandbox",
    tag = "sandboxes",
    responses((status = 200, description = "The sandbox and its limits.", body = Described)),
)]
async fn describe(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Described>, Refusal> {
    Ok(Json(app.supervisor.info(&id)?.into()))
}

/// Renew a sandbox
///
/// Its lease begins anew, as long as asked or as long as it was. With `idle_seconds` alone only that is
/// set. It may be renewed again and again.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/renew",
    operation_id = "renew_sandbox",
    tag = "sandboxes",
    request_body(content = RenewRequest, description = "May be left out."),
    responses((status = 200, description = "It lives on.", body = Renewed)),
)]
async fn renew(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Renewed>, Refusal> {
    app.supervisor.info(&id)?;
    let request: RenewRequest = optional(&app, &headers, body).await?;
    let info = app.supervisor.renew(&id, &request.into())?;
    Ok(Json(info.into()))
}
