//! `POST /sandbox/{id}/upload`: multipart in, streamed to the sandbox as it arrives.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Query, Request};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::body::{self, Chunks, Failure};
use super::caller::Caller;
use super::error::{Limit, Refusal};
use super::openapi;
use super::rest::SandboxId;
use crate::supervisor::{Supervisor, Upload};

/// A file whose path is not known yet is held in memory up to this size. Fields may come in any
/// order, but a large file cannot wait for its name.
const HELD_BYTES: usize = 1024 * 1024;
/// Bytes that may arrive while the headers of a part are read. The parser keeps them all until
/// their end comes, so without this an endless header line would fill the memory.
const HEAD_BYTES: usize = 256 * 1024;
/// Bytes of a `file_path` field; Linux takes no path over 4096, each byte at most three of `%FF`.
const PATH_BYTES: usize = 3 * 4096;

#[derive(Debug, Deserialize)]
struct UploadQuery {
    file_path: Option<String>,
}

/// Upload a file
///
/// The path is `file_path`, in the form or in the query, else the name that the form gives the
/// file. A path that ends in a slash is a directory, to which the name is added. Directories are
/// made, and what is there is replaced.
#[utoipa::path(
    post,
    path = "/sandbox/{id}/upload",
    operation_id = "upload_file",
    tag = "files",
    params(("file_path" = Option<String>, Query, description = "Path of the file.")),
    request_body(content = openapi::UploadForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "It is there, whole.", body = openapi::Uploaded)),
    extensions(("x-errors" = json!(["bad_query", "unsupported_content_type", "bad_multipart", "broken_body", "body_timeout", "invalid_utf8", "invalid_field", "upload_too_large", "upload_failed", "files"]))),
)]
pub(crate) async fn upload(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    request: Request,
) -> Result<Json<Value>, Refusal> {
    app.supervisor.info(&id)?;
    let Query(query) = Query::<UploadQuery>::try_from_uri(request.uri())
        .map_err(|_| Refusal::bad_request("bad_query", "the query cannot be decoded"))?;
    let mut form = Form::open(&app, request).await?;
    let mut incoming = Incoming {
        supervisor: &app.supervisor,
        sandbox_id: &id,
        path: query.file_path,
        content: Content::Missing,
    };
    while let Some(part) = form.next().await? {
        match part.field.name() {
            Some("file") => incoming.receive(part).await?,
            Some("file_path") => incoming.set_path(part.text().await?)?,
            _ => part.skip().await?,
        }
    }
    let file_path = incoming.finish().await?;
    Ok(Json(json!({ "file_path": file_path })))
}

/// The file being received and what is known of its path.
struct Incoming<'a> {
    supervisor: &'a Supervisor,
    sandbox_id: &'a str,
    path: Option<String>,
    content: Content,
}

enum Content {
    Missing,
    Held { name: String, bytes: Vec<u8> },
    Open(Upload),
}

impl Incoming<'_> {
    async fn receive(&mut self, mut part: Part<'_>) -> Result<(), Refusal> {
        if !matches!(self.content, Content::Missing) {
            return Err(Refusal::invalid("file", "file: only one file an upload"));
        }
        let name = base_name(part.field.file_name().unwrap_or_default()).to_owned();
        let mut bytes = Vec::new();
        while let Some(chunk) = part.chunk().await? {
            if let Content::Open(upload) = &mut self.content {
                upload.write(&chunk).await?;
                continue;
            }
            bytes.extend_from_slice(&chunk);
            if self.path.is_some() || bytes.len() > HELD_BYTES {
                let upload = self.create(&name, &bytes).await?;
                self.content = Content::Open(upload);
                bytes = Vec::new();
            }
        }
        if matches!(self.content, Content::Missing) {
            self.content = Content::Held { name, bytes };
        }
        Ok(())
    }

    fn set_path(&mut self, path: String) -> Result<(), Refusal> {
        if matches!(self.content, Content::Open(_)) {
            return Err(Refusal::invalid(
                "file_path",
                format!("file_path: must come before a file of more than {HELD_BYTES} bytes"),
            ));
        }
        if self.path.as_ref().is_some_and(|known| *known != path) {
            return Err(Refusal::invalid("file_path", "file_path: given twice"));
        }
        self.path = Some(path);
        Ok(())
    }

    async fn create(&self, name: &str, bytes: &[u8]) -> Result<Upload, Refusal> {
        let path = match &self.path {
            Some(path) if path.ends_with('/') => format!("{path}{name}"),
            Some(path) => path.clone(),
            None => name.to_owned(),
        };
        if path.is_empty() {
            return Err(Refusal::invalid(
                "file_path",
                "file_path: needed, the file part has no filename",
            ));
        }
        let mut upload = self.supervisor.create_file(self.sandbox_id, &path).await?;
        if !bytes.is_empty() {
            upload.write(bytes).await?;
        }
        Ok(upload)
    }

    async fn finish(mut self) -> Result<String, Refusal> {
        let upload = match std::mem::replace(&mut self.content, Content::Missing) {
            Content::Missing => {
                return Err(Refusal::invalid("file", "file: the form has no such part"));
            }
            Content::Held { name, bytes } => self.create(&name, &bytes).await?,
            Content::Open(upload) => upload,
        };
        Ok(upload.finish().await?)
    }
}

/// What browsers and clients send as a filename may be a path of theirs.
fn base_name(filename: &str) -> &str {
    filename.rsplit(['/', '\\']).next().unwrap_or_default()
}

/// A multipart body whose use of memory is bounded.
struct Form {
    parts: Multipart,
    meter: Arc<Meter>,
}

impl Form {
    async fn open(app: &App, request: Request) -> Result<Self, Refusal> {
        let limit = app.upload_limit();
        body::check_length(request.headers(), limit)?;
        let meter = Arc::new(Meter {
            limit,
            head_left: AtomicUsize::new(HEAD_BYTES),
            failure: OnceLock::new(),
        });
        let (head, body) = request.into_parts();
        let body = Body::from_stream(Metered {
            chunks: Chunks::new(body, limit.bytes, app.stall()),
            meter: Arc::clone(&meter),
        });
        let parts = Multipart::from_request(Request::from_parts(head, body), &())
            .await
            .map_err(|_| {
                Refusal::bad_request(
                    "unsupported_content_type",
                    "send the file as multipart/form-data with a boundary",
                )
            })?;
        Ok(Self { parts, meter })
    }

    async fn next(&mut self) -> Result<Option<Part<'_>>, Refusal> {
        self.meter.head_left.store(HEAD_BYTES, Ordering::Relaxed);
        let meter = &self.meter;
        let field = self.parts.next_field().await;
        meter.head_left.store(usize::MAX, Ordering::Relaxed);
        let field = field.map_err(|error| meter.refusal(&error))?;
        Ok(field.map(|field| Part { field, meter }))
    }
}

struct Part<'a> {
    field: Field<'a>,
    meter: &'a Meter,
}

impl Part<'_> {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Refusal> {
        self.field
            .chunk()
            .await
            .map_err(|error| self.meter.refusal(&error))
    }

    async fn text(mut self) -> Result<String, Refusal> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > PATH_BYTES {
                return Err(Refusal::invalid("file_path", "file_path: too long"));
            }
        }
        String::from_utf8(bytes)
            .map_err(|_| Refusal::bad_request("invalid_utf8", "file_path is not valid UTF-8"))
    }

    async fn skip(mut self) -> Result<(), Refusal> {
        while self.chunk().await?.is_some() {}
        Ok(())
    }
}

/// What the stream below the parser allows and why it ended; the parser hides both.
struct Meter {
    limit: Limit,
    head_left: AtomicUsize,
    failure: OnceLock<Broken>,
}

impl Meter {
    fn refusal(&self, error: &MultipartError) -> Refusal {
        match self.failure.get() {
            Some(Broken::Body(failure)) => failure.refusal(self.limit),
            Some(Broken::Head) => {
                Refusal::bad_request("bad_multipart", "the headers of a part have no end")
            }
            None => Refusal::bad_request("bad_multipart", error.body_text()),
        }
    }
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Body(#[from] Failure),
    #[error("headers of a part over their limit")]
    Head,
}

struct Metered {
    chunks: Chunks,
    meter: Arc<Meter>,
}

impl Metered {
    fn weigh(&self, chunk: Result<Bytes, Failure>) -> Result<Bytes, Broken> {
        let bytes = chunk?;
        let left = self.meter.head_left.load(Ordering::Relaxed);
        let left = left.checked_sub(bytes.len()).ok_or(Broken::Head)?;
        self.meter.head_left.store(left, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl Stream for Metered {
    type Item = Result<Bytes, Broken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(chunk) = ready!(self.chunks.poll_next_unpin(cx)) else {
            return Poll::Ready(None);
        };
        let counted = self.weigh(chunk);
        if let Err(broken) = counted {
            let _ = self.meter.failure.set(broken);
        }
        Poll::Ready(Some(counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_base_of_a_filename_is_used() {
        for (filename, base) in [
            ("a.csv", "a.csv"),
            ("/etc/passwd", "passwd"),
            ("..\\..\\a.csv", "a.csv"),
            ("C:\\x\\ä b.csv", "ä b.csv"),
            ("dir/", ""),
            ("", ""),
        ] {
            assert_eq!(base_name(filename), base, "{filename}");
        }
    }
}
