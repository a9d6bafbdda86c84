//! Folders as archives: `…/files/archive` packs one while it is sent, `…/files/unpack` unpacks one as it
//! arrives. Both work inside the sandbox; here are bytes only.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};

use super::body::{self, Chunks};
use super::caller::Caller;
use super::download::{Attached, disposition};
use super::error::Refusal;
use super::openapi;
use super::query::Parameters;
use super::rest::SandboxId;
use super::wire::Unpacked;
use crate::supervisor::{ArchiveFormat, Error, Packed};

const FORMATS: [(&str, ArchiveFormat); 3] = [
    ("tar", ArchiveFormat::Tar),
    ("tar.gz", ArchiveFormat::TarGz),
    ("zip", ArchiveFormat::Zip),
];

/// Download a folder as an archive
///
/// Directories and regular files; tar files have links, too, that lead to something in the folder.
/// Where it cannot come to its end, because a file became shorter while it was read or the sandbox was
/// closed, the connection is broken off.
#[utoipa::path(
    get,
    path = "/sandbox/{id}/files/archive",
    operation_id = "archive_files",
    tag = "files",
    params(("path" = Option<String>, Query, description = "The folder; the working directory unless given."), ("format" = Option<openapi::ArchiveFormat>, Query, description = "`zip` unless given.")),
    responses((status = 200, description = "The archive, made while it is sent.", content((openapi::RawBytes = "application/zip"), (openapi::RawBytes = "application/x-tar"), (openapi::RawBytes = "application/gzip")))),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "files", "not_a_directory"]))),
)]
pub(crate) async fn archive(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    uri: Uri,
) -> Result<Response, Refusal> {
    app.supervisor.info(&id)?;
    let asked = Parameters::of(&uri)?;
    let format = asked.word("format", &FORMATS)?;
    let format = format.unwrap_or(ArchiveFormat::Zip);
    let path = asked.text("path").unwrap_or_default();
    let packed = app.supervisor.pack_files(&id, path, format).await?;
    let (mime, extension) = match format {
        ArchiveFormat::Tar => ("application/x-tar", "tar"),
        ArchiveFormat::TarGz => ("application/gzip", "tar.gz"),
        ArchiveFormat::Zip => ("application/zip", "zip"),
    };
    let folder = path.rsplit('/').find(|part| !matches!(*part, "" | "."));
    let name = format!("{}.{extension}", folder.unwrap_or("files"));
    let disposition = HeaderValue::try_from(disposition(Attached::Saved, &name));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(mime)),
        (
            header::CONTENT_DISPOSITION,
            disposition.unwrap_or(HeaderValue::from_static("attachment")),
        ),
    ];
    Ok((headers, Body::from_stream(pieces(packed))).into_response())
}

/// Dropping it, which a client does that goes away, ends the packing.
fn pieces(packed: Packed) -> impl Stream<Item = Result<Bytes, Error>> {
    stream::try_unfold(packed, |mut packed| async move {
        match packed.next().await {
            Ok(piece) => Ok(piece.map(|piece| (piece, packed))),
            Err(error) => {
                tracing::info!(code = error.code, "an archive was broken off: {error}");
                Err(error)
            }
        }
    })
}

/// Upload an archive and unpack it
///
/// All of it is put in place at its end, over files that are there, or nothing. Entries that lead out of
/// the folder, links that do, and devices are refused.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/files/unpack",
    operation_id = "unpack_files",
    tag = "files",
    params(("path" = Option<String>, Query, description = "The folder that it is unpacked into, which is made; the working directory unless given."), ("format" = Option<openapi::ArchiveFormat>, Query, description = "What it must be; what its first bytes say unless given.")),
    request_body(content((openapi::RawBytes = "application/octet-stream"), (openapi::RawBytes = "application/zip"), (openapi::RawBytes = "application/x-tar"), (openapi::RawBytes = "application/gzip")), description = "The archive."),
    responses((status = 200, description = "All of it is in place.", body = Unpacked)),
    extensions(("x-errors" = json!(["bad_query", "invalid_field", "files", "file_exists", "bad_archive", "unsafe_archive", "too_many_files", "archive_too_large", "file_too_large", "upload_too_large", "unpack_failed", "broken_body", "body_timeout"]))),
)]
pub(crate) async fn unpack(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Unpacked>, Refusal> {
    app.supervisor.info(&id)?;
    let asked = Parameters::of(&uri)?;
    let format = asked.word("format", &FORMATS)?;
    let path = asked.text("path").unwrap_or_default();
    let limit = app.upload_limit();
    body::check_length(&headers, limit)?;
    let mut unpacking = app.supervisor.unpack_files(&id, path, format).await?;
    let mut chunks = Chunks::new(body, limit.bytes, app.stall());
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|failure| failure.refusal(limit))?;
        unpacking.write(&chunk).await?;
    }
    let (files, bytes) = unpacking.finish().await?;
    Ok(Json(Unpacked {
        path: path.to_owned(),
        files,
        bytes,
    }))
}
