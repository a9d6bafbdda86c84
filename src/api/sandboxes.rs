//! `/sandboxes` and `/sandbox/{id}`: which there are, what they are, how long they live.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};

use super::App;
use super::caller::Caller;
use super::error::Refusal;
use super::query::Parameters;
use super::rest::{SandboxId, optional};
use super::wire::{Described, Listed, RenewRequest, Renewed};
use crate::supervisor::{SandboxInfo, SandboxState};

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandboxes", get(list))
        .route("/sandbox/{id}", get(describe))
        .route("/sandbox/{id}/renew", post(renew))
}

/// By id. A page of them is the first `limit` ids after `after`.
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

/// Looking is not using: it does not count against the time that the sandbox may be idle.
async fn describe(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
) -> Result<Json<Described>, Refusal> {
    Ok(Json(app.supervisor.info(&id)?.into()))
}

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
