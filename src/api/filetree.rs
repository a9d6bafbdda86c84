//! `/sandbox/{id}/files…`: what is in the working directory, and changes of its tree.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use utoipa_axum::routes;

use super::caller::Caller;
use super::error::Refusal;
use super::openapi::{self, Routes};
use super::query::Parameters;
use super::rest::{SandboxId, required};
use super::wire::{Entry, MkdirRequest, PathAnswer, RemoveRequest, RenameRequest};
use super::{archives, watch};
use crate::supervisor::{FileKind, FileQuery};

pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(list))
        .routes(routes!(stat))
        .routes(routes!(mkdir))
        .routes(routes!(rename))
        .routes(routes!(remove))
        .routes(routes!(archives::archive))
        .routes(routes!(archives::unpack))
        .routes(routes!(watch::watch))
}

/// List files
///
/// Without parameters all regular files of the working directory, recursively.
#[utoipa::path(
    get,
    path = "/sandbox/{id}/files",
    operation_id = "list_files",
    tag = "files",
    params(("path" = Option<String>, Query, description = "A folder, in place of the working directory."), ("glob" = Option<String>, Query, description = "A pattern that paths from that folder on must match: `*` and `?` within a name, `**` over folders, `[a-z]`, `{a,b}`."), ("recursive" = Option<bool>, Query, description = "Also what is in folders below it; true unless given."), ("kind" = Option<openapi::FileKindWish>, Query, description = "Only these; `file` unless given.")),
    responses((status = 200, description = "What there is, by path; at most limits.files entries.", body = Vec<Entry>)),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "files", "not_a_directory"]))),
)]
async fn list(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    uri: Uri,
) -> Result<Json<Vec<Entry>>, Refusal> {
    app.supervisor.info(&id)?;
    let asked = Parameters::of(&uri)?;
    let kinds = [
        ("file", Some(FileKind::File)),
        ("directory", Some(FileKind::Directory)),
        ("symlink", Some(FileKind::Symlink)),
        ("other", Some(FileKind::Other)),
        ("any", None),
    ];
    let query = FileQuery {
        path: asked.text("path").unwrap_or_default().to_owned(),
        glob: asked.text("glob").map(str::to_owned),
        recursive: asked.flag("recursive")?.unwrap_or(true),
        kind: asked.word("kind", &kinds)?.unwrap_or(Some(FileKind::File)),
    };
    let entries = app.supervisor.find_files(&id, &query).await?.into_iter();
    Ok(Json(entries.map(|entry| Entry::new(&id, entry)).collect()))
}

/// Look at one file or folder
#[utoipa::path(
    get,
    path = "/sandbox/{id}/files/stat",
    operation_id = "stat_file",
    tag = "files",
    params(("path" = String, Query, description = "Of what; a link is told of itself.")),
    responses((status = 200, description = "What it is.", body = Entry)),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "files"]))),
)]
async fn stat(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    uri: Uri,
) -> Result<Json<Entry>, Refusal> {
    app.supervisor.info(&id)?;
    let asked = Parameters::of(&uri)?;
    let entry = app.supervisor.stat_file(&id, asked.required("path")?);
    Ok(Json(Entry::new(&id, entry.await?)))
}

/// Make a directory
///
/// One that is there already is fine where `parents` is true.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/files/mkdir",
    operation_id = "make_directory",
    tag = "files",
    request_body = MkdirRequest,
    responses((status = 200, description = "It is there.", body = PathAnswer)),
    extensions(("x-errors" = json!(["files", "file_exists"]))),
)]
async fn mkdir(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PathAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: MkdirRequest = required(&app, &headers, body).await?;
    let made = app
        .supervisor
        .make_directory(&id, &request.path, request.parents);
    Ok(Json(PathAnswer { path: made.await? }))
}

/// Rename or move a file or folder
///
/// Folders that the new path needs are made; a link is renamed itself.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/files/rename",
    operation_id = "rename_file",
    tag = "files",
    request_body = RenameRequest,
    responses((status = 200, description = "It has the new path.", body = PathAnswer)),
    extensions(("x-errors" = json!(["files", "file_exists", "directory_not_empty"]))),
)]
async fn rename(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PathAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let RenameRequest {
        from,
        to,
        overwrite,
    } = required(&app, &headers, body).await?;
    let renamed = app.supervisor.rename_file(&id, &from, &to, overwrite);
    Ok(Json(PathAnswer {
        path: renamed.await?,
    }))
}

/// Remove a file or folder
///
/// A link itself is removed, never what it leads to.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/files/remove",
    operation_id = "remove_file",
    tag = "files",
    request_body = RemoveRequest,
    responses((status = 200, description = "It is gone.", body = PathAnswer)),
    extensions(("x-errors" = json!(["files", "directory_not_empty"]))),
)]
async fn remove(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PathAnswer>, Refusal> {
    app.supervisor.info(&id)?;
    let request: RemoveRequest = required(&app, &headers, body).await?;
    let removed = app
        .supervisor
        .remove_file(&id, &request.path, request.recursive);
    Ok(Json(PathAnswer {
        path: removed.await?,
    }))
}
