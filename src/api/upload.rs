//! `POST /sandbox/{id}/upload`: multipart in, streamed to the sandbox as it arrives, each file whole or
//! not at all.
//!
//! A file goes where the `file_path` before or after it says; one that ends in `/` is a folder for all
//! files that have no path of their own, which go there by the names that they have. Several files
//! need a `file_path` each, a folder or none.

use std::collections::VecDeque;
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

use super::App;
use super::body::{self, Chunks, Failure};
use super::caller::Caller;
use super::error::{Limit, Refusal};
use super::openapi;
use super::rest::SandboxId;
use super::wire::{Placed, Uploaded};
use crate::supervisor::{Supervisor, Upload};

/// Files of one upload. Each takes a process of the sandbox for a moment; an archive takes one for all.
const MAX_FILES: usize = 1000;
/// Files whose paths are not known yet are held in memory up to this size. Fields may come in any
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

/// Upload files
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
    responses((status = 200, description = "It is there, whole.", body = Uploaded)),
    extensions(("x-errors" = json!(["bad_query", "unsupported_content_type", "bad_multipart", "broken_body", "body_timeout", "invalid_utf8", "invalid_field", "upload_too_large", "upload_failed", "files"]))),
)]
pub(crate) async fn upload(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    request: Request,
) -> Result<Json<Uploaded>, Refusal> {
    app.supervisor.info(&id)?;
    let Query(query) = Query::<UploadQuery>::try_from_uri(request.uri())
        .map_err(|_| Refusal::bad_request("bad_query", "the query cannot be decoded"))?;
    let mut form = Form::open(&app, request).await?;
    let mut incoming = Incoming {
        supervisor: &app.supervisor,
        sandbox_id: &id,
        folder: None,
        path: None,
        given: None,
        paths: 0,
        held: VecDeque::new(),
        held_bytes: 0,
        unasked: 0,
        files: 0,
        placed: Vec::new(),
    };
    if let Some(path) = query.file_path {
        incoming.set_path(path).await?;
    }
    while let Some(part) = form.next().await? {
        match part.field.name() {
            Some("file") => incoming.receive(part).await?,
            Some("file_path") => incoming.set_path(part.text().await?).await?,
            _ => part.skip().await?,
        }
    }
    Ok(Json(incoming.finish().await?))
}

/// The files that have come, and what is known of the paths of those that come.
struct Incoming<'a> {
    supervisor: &'a Supervisor,
    sandbox_id: &'a str,
    /// Folder of all files that have no path of their own.
    folder: Option<String>,
    /// Of the next file, or of the one that has come.
    path: Option<String>,
    /// The last that was given.
    given: Option<String>,
    /// How many paths of files were given.
    paths: usize,
    /// Files whose paths are not known yet, oldest first.
    held: VecDeque<Held>,
    held_bytes: usize,
    /// How many files were given their own names because they could not wait.
    unasked: usize,
    files: usize,
    placed: Vec<Placed>,
}

struct Held {
    name: String,
    bytes: Vec<u8>,
}

impl Incoming<'_> {
    async fn receive(&mut self, mut part: Part<'_>) -> Result<(), Refusal> {
        self.files += 1;
        if self.files > MAX_FILES {
            let why = format!("file: more than {MAX_FILES} files; send an archive to be unpacked");
            return Err(Refusal::invalid("file", why));
        }
        let name = own_name(part.field.file_name().unwrap_or_default());
        let mut bytes = Vec::new();
        let mut open = match self.path_of(&name) {
            Some(path) => Some(self.create(&path).await?),
            None => None,
        };
        let mut size = 0;
        while let Some(chunk) = part.chunk().await? {
            size += chunk.len() as u64;
            if let Some(upload) = &mut open {
                upload.write(&chunk).await?;
                continue;
            }
            bytes.extend_from_slice(&chunk);
            if self.held_bytes + bytes.len() > HELD_BYTES {
                let mut upload = self.create(&self.unasked_path(&name)?).await?;
                self.unasked += 1;
                upload.write(&bytes).await?;
                open = Some(upload);
                bytes = Vec::new();
            }
        }
        match open {
            Some(upload) => self.place(upload, size).await,
            None => {
                self.held_bytes += bytes.len();
                self.held.push_back(Held { name, bytes });
                Ok(())
            }
        }
    }

    /// A path that was given, for the file that has this name.
    fn path_of(&mut self, name: &str) -> Option<String> {
        let in_folder = |folder: &String| format!("{folder}{name}");
        self.path
            .take()
            .or_else(|| self.folder.as_ref().map(in_folder))
    }

    /// Where a file goes for which no path was given.
    fn unasked_path(&self, name: &str) -> Result<String, Refusal> {
        if self.paths > 0 {
            return Err(Refusal::invalid(
                "file_path",
                "file_path: names one of several files; give one for each, or a folder, which ends in /",
            ));
        }
        if name.is_empty() {
            return Err(Refusal::invalid(
                "file_path",
                "file_path: needed, the file part has no filename",
            ));
        }
        Ok(name.to_owned())
    }

    async fn set_path(&mut self, path: String) -> Result<(), Refusal> {
        if self.unasked > 0 {
            return Err(Refusal::invalid(
                "file_path",
                format!("file_path: must come before files of more than {HELD_BYTES} bytes"),
            ));
        }
        if path.ends_with('/') {
            return match &self.folder {
                Some(known) if *known != path => Err(twice()),
                _ => {
                    self.folder = Some(path);
                    Ok(())
                }
            };
        }
        // Said again, beside the query or after the file, it says nothing new.
        if self.given.as_ref() == Some(&path) {
            return Ok(());
        }
        self.given = Some(path.clone());
        if self.path.is_some() {
            return Err(twice());
        }
        self.paths += 1;
        match self.held.pop_front() {
            Some(held) => self.place_held(&path, held).await,
            None => {
                self.path = Some(path);
                Ok(())
            }
        }
    }

    async fn create(&self, path: &str) -> Result<Upload, Refusal> {
        if path.is_empty() || path.ends_with('/') {
            return Err(Refusal::invalid(
                "file_path",
                "file_path: needed whole, the file part has no filename",
            ));
        }
        Ok(self.supervisor.create_file(self.sandbox_id, path).await?)
    }

    async fn place_held(&mut self, path: &str, held: Held) -> Result<(), Refusal> {
        self.held_bytes -= held.bytes.len();
        let mut upload = self.create(path).await?;
        if !held.bytes.is_empty() {
            upload.write(&held.bytes).await?;
        }
        self.place(upload, held.bytes.len() as u64).await
    }

    async fn place(&mut self, upload: Upload, size: u64) -> Result<(), Refusal> {
        let path = upload.finish().await?;
        self.placed.push(Placed { path, size });
        Ok(())
    }

    async fn finish(mut self) -> Result<Uploaded, Refusal> {
        while let Some(held) = self.held.pop_front() {
            let path = match self.path_of(&held.name) {
                Some(path) => path,
                None => self.unasked_path(&held.name)?,
            };
            self.place_held(&path, held).await?;
        }
        let Some(first) = self.placed.first() else {
            return Err(Refusal::invalid("file", "file: the form has no such part"));
        };
        if self.path.is_some() {
            return Err(Refusal::invalid(
                "file_path",
                "file_path: no file came for it",
            ));
        }
        Ok(Uploaded {
            file_path: first.path.clone(),
            files: (self.placed.len() > 1).then_some(self.placed),
        })
    }
}

fn twice() -> Refusal {
    Refusal::invalid("file_path", "file_path: given twice")
}

/// What a file calls itself. Browsers send the files of a folder with their paths in it
/// (`webkitRelativePath`); of any other path only the last part is the file's.
fn own_name(filename: &str) -> String {
    let parts: Vec<&str> = filename.split('/').collect();
    let is_inside =
        !filename.contains('\\') && parts.iter().all(|part| !matches!(*part, "" | "." | ".."));
    if is_inside {
        return filename.to_owned();
    }
    let base = filename.rsplit(['/', '\\']).next().unwrap_or_default();
    match base {
        "." | ".." => String::new(),
        base => base.to_owned(),
    }
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
    fn a_filename_is_a_path_in_a_folder_or_only_its_base() {
        for (filename, base) in [
            ("folder/sub/a.csv", "folder/sub/a.csv"),
            ("../a.csv", "a.csv"),
            ("a/../b.csv", "b.csv"),
            ("a//b.csv", "b.csv"),
            ("./b.csv", "b.csv"),
            ("..", ""),
            ("a.csv", "a.csv"),
            ("/etc/passwd", "passwd"),
            ("..\\..\\a.csv", "a.csv"),
            ("C:\\x\\ä b.csv", "ä b.csv"),
            ("dir/", ""),
            ("", ""),
        ] {
            assert_eq!(own_name(filename), base, "{filename}");
        }
    }
}
