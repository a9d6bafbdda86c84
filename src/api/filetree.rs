//! `/sandbox/{id}/files…`: what is in the working directory, and changes of its tree.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};

use super::caller::Caller;
use super::error::Refusal;
use super::query::Parameters;
use super::rest::{SandboxId, required};
use super::wire::{Entry, MkdirRequest, PathAnswer, RemoveRequest, RenameRequest};
use super::{App, archives, watch};
use crate::supervisor::{FileKind, FileQuery};

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sandbox/{id}/files", get(list))
        .route("/sandbox/{id}/files/stat", get(stat))
        .route("/sandbox/{id}/files/mkdir", post(mkdir))
        .route("/sandbox/{id}/files/rename", post(rename))
        .route("/sandbox/{id}/files/remove", post(remove))
        .route("/sandbox/{id}/files/archive", get(archives::archive))
        .route("/sandbox/{id}/files/unpack", post(archives::unpack))
        .route("/sandbox/{id}/files/watch", get(watch::watch))
}

/// Without parameters all regular files.
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
