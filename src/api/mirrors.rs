//! Mirrors over REST: the base, and layers of packages over it.

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use utoipa_axum::routes;

use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::rest::{SandboxId as MirrorId, required};
use super::whole;
use super::wire::{MirrorAnswer, MirrorRequest};
use crate::supervisor::MirrorSpec;

/// Routes.
pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list, create))
        .routes(routes!(one, remove))
}

/// List the mirrors
#[utoipa::path(
    get,
    path = "/mirrors",
    operation_id = "list_mirrors",
    tag = "mirrors",
    responses((status = 200, description = "All of them, the base too.", body = Vec<MirrorAnswer>)),
)]
async fn list(Caller(app): Caller) -> Json<Vec<MirrorAnswer>> {
    let mirrors = app.supervisor.mirrors().into_iter();
    Json(mirrors.map(MirrorAnswer::from).collect())
}

/// Make a mirror
///
/// The base and a layer of packages over it, shared by all sandboxes that are created with it. The
/// same wish gives the mirror that is there.
#[utoipa::path(
    post,
    path = "/mirrors",
    operation_id = "create_mirror",
    tag = "mirrors",
    request_body = MirrorRequest,
    responses((status = 200, description = "The mirror; `status` says whether it is made.", body = MirrorAnswer)),
    extensions(("x-errors" = json!(["mirror_not_found", "mirror_exists", "mirror_name_taken", "too_many_mirrors", "stopping"]))),
)]
async fn create(
    Caller(app): Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<MirrorAnswer>, Refusal> {
    let request: MirrorRequest = required(&app, &headers, body).await?;
    // It is made by a task of the supervisor's own: whoever asked may go away.
    let made = app.supervisor.create_mirror(MirrorSpec::try_from(request)?);
    Ok(Json(made.await?.into()))
}

/// Show a mirror
#[utoipa::path(
    get,
    path = "/mirrors/{mirror}",
    operation_id = "show_mirror",
    tag = "mirrors",
    responses((status = 200, description = "The mirror.", body = MirrorAnswer)),
)]
async fn one(Caller(app): Caller, MirrorId(id): MirrorId) -> Result<Json<MirrorAnswer>, Refusal> {
    Ok(Json(app.supervisor.mirror(&id)?.into()))
}

/// Delete a mirror
///
/// One that no sandbox uses.
#[utoipa::path(
    delete,
    path = "/mirrors/{mirror}",
    operation_id = "delete_mirror",
    tag = "mirrors",
    responses((status = 200, description = "It is gone.", body = openapi::Done)),
    extensions(("x-errors" = json!(["mirror_building", "mirror_in_use", "mirror_is_base", "mirror_is_shared"]))),
)]
async fn remove(Caller(app): Caller, MirrorId(id): MirrorId) -> Result<Json<Value>, Refusal> {
    whole::delete_mirror(&app.supervisor, &id).await?;
    Ok(Json(
        json!({ "status": "success", "message": "Mirror deleted" }),
    ))
}
