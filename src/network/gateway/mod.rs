//! The package gateway: the package index as sandboxes see it.
//!
//! ```text
//! sandbox ──plain HTTP on its own loopback──▶ Gateway ──TLS──▶ index and its file hosts
//!           GET /simple/rich/                   pages in memory, revalidated        (index)
//!           GET /files/rich/<sha256>/rich-….whl one cache on disk, hash-verified    (download, cache)
//! ```
//!
//! - A sandbox names a project, a hash and a file, nothing else. Addresses come from the index's own answers
//!   to the gateway; none is taken from a request, not even its `Host`.
//! - Nothing reaches a sandbox whose SHA-256 the index does not list ([`page`] leaves other files out).
//! - Where the index is, is what the host's pip says. Credentials in its URL go to its origin only, and
//!   neither they nor any address are in an answer or in the log.
//! - Of several indexes the first that has the project is used for it.
//!
//! Not there: uploads, search, the list of all projects (it is empty), ranges of a file, `.netrc`, and
//! signatures (`gpg-sig`, `provenance`).

mod body;
mod cache;
mod download;
mod error;
mod html;
mod index;
mod name;
mod page;
mod source;
mod upstream;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_NONE_MATCH, LOCATION, VARY,
};
use hyper::http::response::Builder;
use hyper::{Method, Request, Response, StatusCode};

use crate::config;
use crate::mirror::host::{self, PythonIndex};

pub use body::Body;
pub use error::Error;
pub use upstream::Stats;

use cache::Cache;
use download::{Downloads, Source, Wanted};
use index::Pages;
use name::{Digest, METADATA, Route};
pub use name::{is_project_name, normalize};
use page::{HTML, JSON, OLD_HTML, Page};
use upstream::Upstream;

/// Path of the index on the listener inside: `http://127.0.0.1:<port>/simple/`.
pub const INDEX_PATH: &str = "/simple/";
/// Path below which the files are.
pub const FILES_PATH: &str = "/files/";

/// The package index of all sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    upstream: Arc<Upstream>,
    pages: Arc<Pages>,
    downloads: Arc<Downloads>,
    max_file_bytes: u64,
    max_page_bytes: u64,
}

impl Gateway {
    /// A gateway to the index that `config` names, else to the one of the host's pip, else to
    /// `default_index`, which is pip's own. `cache_dir` is made where it is not there.
    ///
    /// # Errors
    /// [`Error::Directory`] and [`Error::Setting`].
    pub fn new(
        config: &config::Packages,
        cache_dir: PathBuf,
        default_index: &str,
    ) -> Result<Self, Error> {
        let (index, certificates) = (PythonIndex::of_host(), host::certificates());
        Self::with_host(config, cache_dir, default_index, &index, &certificates)
    }

    /// The same for a host whose pip is configured so and that trusts these certificates (PEM).
    ///
    /// # Errors
    /// As [`Gateway::new`].
    pub fn with_host(
        config: &config::Packages,
        cache_dir: PathBuf,
        default_index: &str,
        index: &PythonIndex,
        certificates: &str,
    ) -> Result<Self, Error> {
        let upstream = Upstream::new(config, default_index, index, certificates)?;
        let upstream = Arc::new(upstream);
        let cache = Cache::open(&cache_dir, config.cache_bytes)?;
        let timeout = Duration::from_secs(config.timeout_seconds);
        Ok(Self(Arc::new(Inner {
            pages: Pages::new(config, Arc::clone(&upstream)),
            downloads: Downloads::new(cache, Arc::clone(&upstream), timeout),
            upstream,
            max_file_bytes: config.max_file_bytes,
            max_page_bytes: config.max_page_bytes,
        })))
    }

    /// What was asked of the index since the start.
    pub fn stats(&self) -> Stats {
        self.0.upstream.stats()
    }

    /// Whether a request's path is one of the gateway's.
    pub fn has_path(path: &str) -> bool {
        path == INDEX_PATH.trim_end_matches('/')
            || path.starts_with(INDEX_PATH)
            || path.starts_with(FILES_PATH)
    }

    /// Answers a request for a path of the listener itself. Everything in the request is hostile; its
    /// body is not read.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Body> {
        let (head, _) = request.into_parts();
        let found = self.0.find(&head.method, &head.uri, &head.headers).await;
        let mut response = found.unwrap_or_else(|error| refuse(&error));
        if head.method == Method::HEAD {
            *response.body_mut() = body::empty();
        }
        response
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Inner {
    async fn find(
        &self,
        method: &Method,
        uri: &hyper::Uri,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Error> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(Error::Method);
        }
        if uri.query().is_some() || uri.authority().is_some() {
            return Err(Error::NotFound(
                "the package index takes paths of its own, without a query".to_owned(),
            ));
        }
        let json = wants_json(headers);
        match Route::parse(uri.path())? {
            Route::Root => Ok(send(ok(form(json)), page::empty_root(json))),
            Route::Moved(path) => Ok(moved(&path)),
            Route::Project(name) => {
                let page = self.pages.get(&name).await?;
                Ok(send_page(&page, json, headers))
            }
            Route::File {
                project,
                digest,
                name,
                metadata,
            } => {
                let wanted = self.wanted(&project, digest, &name, metadata).await?;
                if *method == Method::HEAD {
                    return Ok(head_of(&wanted));
                }
                self.send_file(&project, &name, &wanted).await
            }
        }
    }

    /// What the index says about a file. A page that is known is enough: a file is its hash, and stays
    /// what it is. The page is fetched where it is not known, or does not have the file and is old.
    async fn wanted(
        &self,
        project: &str,
        digest: Digest,
        name: &str,
        metadata: bool,
    ) -> Result<Wanted, Error> {
        let known = self.pages.known(project);
        if let Some(wanted) = known.and_then(|page| self.listed(&page, digest, name, metadata)) {
            return Ok(wanted);
        }
        let page = self.pages.get(project).await?;
        self.listed(&page, digest, name, metadata)
            .ok_or_else(|| Error::NotFound("the package index lists no such file".to_owned()))
    }

    fn listed(&self, page: &Page, digest: Digest, name: &str, metadata: bool) -> Option<Wanted> {
        let file = page.find(&digest, name)?;
        let mut wanted = Wanted {
            digest,
            url: file.url.clone(),
            secure: page.secure,
            size: file.size,
            limit: (self.max_file_bytes, "packages.max_file_bytes"),
        };
        if metadata {
            // PEP 658: beside the file, whatever follows its path stays.
            wanted
                .url
                .set_path(&format!("{}{METADATA}", file.url.path()));
            wanted.digest = file.metadata?;
            wanted.size = None;
            wanted.limit = (self.max_page_bytes, "packages.max_page_bytes");
        }
        Some(wanted)
    }

    async fn send_file(
        &self,
        project: &str,
        name: &str,
        wanted: &Wanted,
    ) -> Result<Response<Body>, Error> {
        let source = self.downloads.get(wanted).await.inspect_err(|error| {
            tracing::warn!(project, file = name, %error, "a package could not be passed on");
        })?;
        Ok(match source {
            Source::Whole(file, bytes, cached) => {
                let from = if cached { "cache" } else { "index" };
                tracing::info!(project, file = name, bytes, from, "a package is passed on");
                let response = file_head(Some(bytes));
                finish(response, body::whole(file, bytes))
            }
            Source::Growing(waiting) => {
                let length = waiting.borrow().length;
                tracing::info!(
                    project,
                    file = name,
                    bytes = length,
                    from = "index",
                    "a package is passed on"
                );
                finish(file_head(length), body::growing(waiting))
            }
        })
    }
}

/// PEP 691: JSON if the client takes it at least as gladly as HTML; HTML if it does not say.
fn wants_json(headers: &HeaderMap) -> bool {
    let (mut json, mut html) = (0.0, 0.0);
    for value in headers.get_all(ACCEPT) {
        for part in value.to_str().unwrap_or_default().split(',') {
            let mut fields = part.split(';').map(str::trim);
            let form = fields.next().unwrap_or_default().to_ascii_lowercase();
            let weight = fields.find_map(|field| field.strip_prefix("q=")?.parse::<f32>().ok());
            let weight = weight.unwrap_or(1.0);
            match form.as_str() {
                JSON | "application/vnd.pypi.simple.latest+json" => json = weight,
                HTML | OLD_HTML => html = weight.max(html),
                _ => {}
            }
        }
    }
    json > 0.0 && json >= html
}

fn form(json: bool) -> &'static str {
    if json {
        JSON
    } else {
        "text/html; charset=utf-8"
    }
}

fn send_page(page: &Page, json: bool, headers: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}-{}\"", page.tag, if json { "json" } else { "html" });
    let known = headers.get(IF_NONE_MATCH);
    if known.and_then(|known| known.to_str().ok()) == Some(&tag) {
        let response = Response::builder().status(StatusCode::NOT_MODIFIED);
        return finish(response.header(ETAG, tag), body::empty());
    }
    let content = if json {
        page.json.clone()
    } else {
        page.html().into()
    };
    // A client in the sandbox asks again each time: that costs nothing here, and new files show.
    let response = ok(form(json))
        .header(ETAG, tag)
        .header(CACHE_CONTROL, "max-age=0")
        .header(VARY, "accept");
    send(response, content)
}

/// The head of a file that is not sent.
fn head_of(wanted: &Wanted) -> Response<Body> {
    finish(file_head(wanted.size), body::empty())
}

fn file_head(bytes: Option<u64>) -> Builder {
    let response = ok("application/octet-stream")
        // What a path names never changes: the hash is in it.
        .header(CACHE_CONTROL, "max-age=31536000, immutable");
    match bytes {
        Some(bytes) => response.header(CONTENT_LENGTH, bytes),
        None => response,
    }
}

fn ok(form: &'static str) -> Builder {
    Response::builder()
        .status(StatusCode::OK)
        .header(CONTENT_TYPE, form)
        .header(
            HeaderName::from_static("x-content-type-options"),
            HeaderValue::from_static("nosniff"),
        )
}

fn send(response: Builder, content: impl Into<Bytes>) -> Response<Body> {
    let content = content.into();
    finish(
        response.header(CONTENT_LENGTH, content.len()),
        body::full(content),
    )
}

fn moved(path: &str) -> Response<Body> {
    let response = Response::builder().status(StatusCode::MOVED_PERMANENTLY);
    send(response.header(LOCATION, path), "")
}

fn refuse(error: &Error) -> Response<Body> {
    let status = error.status();
    let mut response = ok("text/plain; charset=utf-8").status(status);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response = response.header(ALLOW, "GET, HEAD");
    }
    send(response, format!("{error}\n"))
}

fn finish(response: Builder, body: Body) -> Response<Body> {
    response.body(body).expect("the headers are plain text")
}
