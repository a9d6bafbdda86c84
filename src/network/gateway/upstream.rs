//! The index outside: TLS, proxies, credentials, redirects, and the limits of what it may send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LOCATION,
};
use reqwest::{Client, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::Error;
use super::source::{Index, client, without_credentials};
use crate::config;
use crate::mirror::host::PythonIndex;

/// Redirects from one request; pip follows 30, no index needs more than two.
const MAX_REDIRECTS: usize = 5;
/// Requests to indexes and file hosts at once, of all sandboxes.
const MAX_REQUESTS: usize = 64;
/// JSON wanted, HTML taken; what pip sends.
const PAGE_FORMS: &str = "application/vnd.pypi.simple.v1+json, \
    application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01";

/// What was asked of indexes and their file hosts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests for pages, those that the answer was "not changed" to included.
    pub page_requests: u64,
    /// Bytes of pages, as sent (compressed).
    pub page_bytes: u64,
    /// Requests for files and their metadata.
    pub file_requests: u64,
    /// Bytes of files and metadata.
    pub file_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    page_requests: AtomicU64,
    page_bytes: AtomicU64,
    file_requests: AtomicU64,
    file_bytes: AtomicU64,
}

/// What a request is for; decides the headers and what it counts as.
#[derive(Clone, Copy)]
pub(super) enum Want<'a> {
    /// A page, if it is not the one that these headers of an earlier answer tell.
    Page(Option<&'a Validators>),
    /// A file or its metadata.
    File,
}

/// What tells an index which answer is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Validators {
    pub(super) tag: Option<HeaderValue>,
    pub(super) modified: Option<HeaderValue>,
}

/// The client.
pub(super) struct Upstream {
    /// In the order in which they are asked.
    pub(super) indexes: Vec<Index>,
    /// Hosts, or hosts with a port, whose certificate is not checked (pip's `trusted-host`).
    trusted: Vec<String>,
    checked: Client,
    unchecked: Client,
    requests: Arc<Semaphore>,
    counters: Arc<Counters>,
    timeout: Duration,
}

impl Upstream {
    /// # Errors
    /// [`Error::Setting`].
    pub(super) fn new(
        config: &config::Packages,
        default_index: &str,
        host: &PythonIndex,
        certificates: &str,
    ) -> Result<Self, Error> {
        // Whoever names an index in the configuration means that one and no other.
        let indexes = match &config.index_url {
            Some(url) => vec![Index::new("packages.index_url", url)?],
            None => {
                let first = host.url.as_deref().unwrap_or(default_index);
                let mut indexes = vec![Index::new("pip's index-url", first)?];
                for url in &host.extra_urls {
                    indexes.push(Index::new("pip's extra-index-url", url)?);
                }
                indexes
            }
        };
        let timeout = Duration::from_secs(config.timeout_seconds);
        let client = |checked| client(host, certificates, timeout, checked);
        Ok(Self {
            indexes,
            trusted: host.trusted_hosts.clone(),
            checked: client(true)?,
            unchecked: client(false)?,
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            counters: Arc::default(),
            timeout,
        })
    }

    pub(super) fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            page_requests: counters.page_requests.load(Ordering::Relaxed),
            page_bytes: counters.page_bytes.load(Ordering::Relaxed),
            file_requests: counters.file_requests.load(Ordering::Relaxed),
            file_bytes: counters.file_bytes.load(Ordering::Relaxed),
        }
    }

    /// Asks for `url` and follows redirects. `secure`: what led here came over TLS, so must this.
    pub(super) async fn get(
        &self,
        url: Url,
        want: Want<'_>,
        secure: bool,
    ) -> Result<Incoming, Error> {
        let permit = timeout(self.timeout, Arc::clone(&self.requests).acquire_owned())
            .await
            .map_err(|_| Error::Busy)?
            .expect("never closed");
        let mut url = url;
        for _ in 0..=MAX_REDIRECTS {
            if secure && url.scheme() != "https" {
                return Err(Error::Wrong(
                    "it leads from an encrypted connection to an open one".to_owned(),
                ));
            }
            let response = self.ask(&url, want).await?;
            if !is_redirect(response.status()) {
                return Ok(Incoming {
                    url,
                    response,
                    counters: Arc::clone(&self.counters),
                    page: matches!(want, Want::Page(_)),
                    _permit: permit,
                });
            }
            let target = response
                .headers()
                .get(LOCATION)
                .and_then(|to| to.to_str().ok())
                .and_then(|to| super::page::link(&url, to));
            let Some(target) = target else {
                return Err(Error::Wrong("a redirect to nowhere".to_owned()));
            };
            url = without_credentials(target);
        }
        Err(Error::Wrong(format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn ask(&self, url: &Url, want: Want<'_>) -> Result<reqwest::Response, Error> {
        let counter = match want {
            Want::Page(_) => &self.counters.page_requests,
            Want::File => &self.counters.file_requests,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let client = if self.is_trusted(url) {
            &self.unchecked
        } else {
            &self.checked
        };
        let mut request = client.get(url.clone()).headers(headers(want));
        if let Some((name, password)) = self.credentials(url) {
            request = request.basic_auth(name, password.as_ref());
        }
        request.send().await.map_err(failure)
    }

    /// As pip has it: a host with a port, or a host on any port.
    fn is_trusted(&self, url: &Url) -> bool {
        let Some(host) = url.host_str() else {
            return false;
        };
        let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or(0));
        self.trusted
            .iter()
            .any(|trusted| trusted.eq_ignore_ascii_case(host) || *trusted == with_port)
    }

    /// Of the index at that origin; of several there, of the one that the path is below.
    fn credentials(&self, url: &Url) -> Option<&(String, Option<String>)> {
        let there = || {
            let at = self.indexes.iter();
            at.filter(|index| index.url.origin() == url.origin() && index.credentials.is_some())
        };
        there()
            .find(|index| url.path().starts_with(index.url.path()))
            .or_else(|| there().next())?
            .credentials
            .as_ref()
    }
}

fn headers(want: Want<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    match want {
        Want::Page(known) => {
            headers.insert(ACCEPT, HeaderValue::from_static(PAGE_FORMS));
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
            let known = known.cloned().unwrap_or_default();
            headers.extend(known.tag.map(|tag| (IF_NONE_MATCH, tag)));
            headers.extend(known.modified.map(|time| (IF_MODIFIED_SINCE, time)));
        }
        // A file host that compresses again would change the bytes that were hashed.
        Want::File => {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
    }
    headers
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Only the kind of the failure goes inside: the client's words hold addresses.
fn failure(error: reqwest::Error) -> Error {
    let timed_out = error.is_timeout();
    let (connecting, broken) = (error.is_connect(), error.is_body() || error.is_decode());
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    tracing::warn!(error = text, "the package index failed");
    Error::Unreachable(if timed_out {
        "it did not answer in time"
    } else if text.contains("certificate") {
        "its certificate is not one that the host trusts"
    } else if connecting {
        "no connection could be made"
    } else if broken {
        "the connection broke"
    } else {
        "the request failed"
    })
}

/// An answer whose body has not been read.
pub(super) struct Incoming {
    /// Where it came from in the end.
    pub(super) url: Url,
    response: reqwest::Response,
    counters: Arc<Counters>,
    page: bool,
    _permit: OwnedSemaphorePermit,
}

impl Incoming {
    pub(super) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Bytes that the body is said to have.
    pub(super) fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The next piece of the body.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        let piece = self.response.chunk().await.map_err(failure)?;
        let counter = if self.page {
            &self.counters.page_bytes
        } else {
            &self.counters.file_bytes
        };
        counter.fetch_add(
            piece.as_ref().map_or(0, Bytes::len) as u64,
            Ordering::Relaxed,
        );
        Ok(piece)
    }
}

/// What an answer that is neither a page nor a file means to whoever asked.
pub(super) fn refusal(status: StatusCode) -> Error {
    match status.as_u16() {
        401 | 403 | 407 => Error::Wrong(format!(
            "{}; the host's credentials for it are missing or wrong",
            status.as_u16()
        )),
        429 | 500..=599 => Error::Unreachable("it has a problem of its own or is overloaded"),
        other => Error::Wrong(format!("status {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_to_elsewhere_has_no_credentials_and_trust_is_by_host_or_port() {
        let host = PythonIndex {
            url: Some("https://u:p@a.example/one/".to_owned()),
            extra_urls: vec!["https://v:q@a.example/two/".to_owned()],
            trusted_hosts: vec!["b.example".to_owned(), "c.example:8443".to_owned()],
            proxy: None,
        };
        let upstream = Upstream::new(&config::Packages::default(), "", &host, "").unwrap();
        let name = |url: &str| {
            let url = Url::parse(url).unwrap();
            upstream.credentials(&url).map(|(name, _)| name.as_str())
        };
        assert_eq!(name("https://a.example/two/x"), Some("v"));
        assert_eq!(name("https://a.example/files/x"), Some("u"));
        for other in [
            "http://a.example/one/",
            "https://a.example:444/one/",
            "https://b.a.example/one/",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
        let trusted = |url: &str| upstream.is_trusted(&Url::parse(url).unwrap());
        assert!(trusted("https://b.example:444/") && trusted("https://c.example:8443/"));
        assert!(!trusted("https://c.example/") && !trusted("https://a.example/"));
    }
}
