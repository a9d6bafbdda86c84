//! Pages of the index, kept in memory for all sandboxes.
//!
//! A page is asked for once, however many sandboxes want it. It is used for `page_seconds`, then the index
//! is asked whether it changed. While the index cannot be reached, the old page is used. Of several indexes
//! the first that has the project wins; an index that fails is an error and not "has it not", or a package
//! of that name on a later index could slip in.

use std::collections::HashMap;
use std::io::Read;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, LAST_MODIFIED};
use lru::LruCache;
use tokio::sync::Semaphore;

use super::error::Error;
use super::html::parse_html;
use super::page::{Listing, Page, parse_json};
use super::upstream::{Incoming, Upstream, Validators, Want, refusal};
use crate::config;

/// Pages in memory.
const MAX_PAGES: usize = 4096;
/// Bytes of all of them.
const MAX_PAGES_BYTES: usize = 256 * 1024 * 1024;
/// Names that no index has, in memory.
const MAX_MISSING: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Seconds for which such a name is not asked for again.
const MISSING_SECONDS: u64 = 60;
/// Seconds for which an old page is used before an index that failed is asked again.
const STALE_SECONDS: u64 = 30;
/// Pages fetched and read at once: each may take several times `max_page_bytes` while it is read.
const MAX_FETCHES: usize = 16;

type Fetch = Shared<BoxFuture<'static, Result<Arc<Page>, Error>>>;
type WeakFetch = WeakShared<BoxFuture<'static, Result<Arc<Page>, Error>>>;

/// The pages.
pub(super) struct Pages {
    upstream: Arc<Upstream>,
    state: Mutex<State>,
    fetches: Semaphore,
    max_bytes: u64,
    fresh: Duration,
    timeout: Duration,
}

struct State {
    kept: LruCache<String, Kept>,
    bytes: usize,
    missing: LruCache<String, Instant>,
    /// One for each page that is being fetched, with a number that tells two of a name apart.
    fetches: HashMap<String, (u64, WeakFetch)>,
    count: u64,
}

#[derive(Clone)]
struct Kept {
    page: Arc<Page>,
    /// Which index it is of.
    index: usize,
    validators: Validators,
    /// When to ask whether it changed.
    ask_at: Instant,
}

impl Pages {
    pub(super) fn new(config: &config::Packages, upstream: Arc<Upstream>) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            state: Mutex::new(State {
                kept: LruCache::unbounded(),
                bytes: 0,
                missing: LruCache::new(MAX_MISSING),
                fetches: HashMap::new(),
                count: 0,
            }),
            fetches: Semaphore::new(MAX_FETCHES),
            max_bytes: config.max_page_bytes,
            fresh: Duration::from_secs(config.page_seconds),
            timeout: Duration::from_secs(config.timeout_seconds),
        })
    }

    /// The page of a project, by its normalized name.
    pub(super) async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Page>, Error> {
        let fetch = {
            let mut state = self.state.lock().expect("not poisoned");
            let now = Instant::now();
            if let Some(kept) = state.kept.get(name)
                && now < kept.ask_at
            {
                return Ok(Arc::clone(&kept.page));
            }
            if state.missing.get(name).is_some_and(|until| now < *until) {
                return Err(unknown(name));
            }
            self.join(&mut state, name)
        };
        fetch.await
    }

    /// The page as it is known, however old: a file that it lists is still that file.
    pub(super) fn known(&self, name: &str) -> Option<Arc<Page>> {
        let mut state = self.state.lock().expect("not poisoned");
        state.kept.get(name).map(|kept| Arc::clone(&kept.page))
    }

    /// The fetch of that page: the one that runs, or a new one. It lives while somebody waits for it.
    fn join(self: &Arc<Self>, state: &mut State, name: &str) -> Fetch {
        if let Some((_, fetch)) = state.fetches.get(name)
            && let Some(fetch) = fetch.upgrade()
        {
            return fetch;
        }
        state.count += 1;
        let entry = Entry {
            pages: Arc::clone(self),
            name: name.to_owned(),
            number: state.count,
        };
        let fetch = async move { entry.pages.refresh(&entry.name).await }
            .boxed()
            .shared();
        let weak = fetch.downgrade().expect("not polled yet");
        let number = state.count;
        state.fetches.insert(name.to_owned(), (number, weak));
        fetch
    }

    async fn refresh(&self, name: &str) -> Result<Arc<Page>, Error> {
        let _permit = self.fetches.acquire().await.expect("never closed");
        let old = self
            .state
            .lock()
            .expect("not poisoned")
            .kept
            .peek(name)
            .cloned();
        let fetched = tokio::time::timeout(self.timeout, self.fetch(name, old.as_ref()));
        let fetched = fetched
            .await
            .unwrap_or(Err(Error::Unreachable("it did not answer in time")));
        let mut state = self.state.lock().expect("not poisoned");
        match (fetched, old) {
            (Ok(Some(kept)), _) => {
                let page = Arc::clone(&kept.page);
                state.missing.pop(name);
                state.keep(name, kept);
                Ok(page)
            }
            (Ok(None), _) => {
                state.forget(name);
                let until = Instant::now() + Duration::from_secs(MISSING_SECONDS);
                state.missing.put(name.to_owned(), until);
                Err(unknown(name))
            }
            (Err(error @ Error::Unreachable(_)), Some(mut kept)) => {
                tracing::warn!(project = name, %error, "an old page of the index is used");
                kept.ask_at = Instant::now() + Duration::from_secs(STALE_SECONDS);
                let page = Arc::clone(&kept.page);
                state.keep(name, kept);
                Ok(page)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// The page of the first index that has one.
    async fn fetch(&self, name: &str, old: Option<&Kept>) -> Result<Option<Kept>, Error> {
        for (number, index) in self.upstream.indexes.iter().enumerate() {
            let old = old.filter(|old| old.index == number);
            let want = Want::Page(old.map(|old| &old.validators));
            let url = index.project(name);
            let incoming = self.upstream.get(url, want, index.is_secure()).await?;
            let ask_at = Instant::now() + self.fresh;
            match incoming.status() {
                StatusCode::OK => {
                    let (page, validators) = self.read(name, incoming).await?;
                    let page = Arc::new(page);
                    return Ok(Some(Kept {
                        page,
                        index: number,
                        validators,
                        ask_at,
                    }));
                }
                StatusCode::NOT_MODIFIED if let Some(old) = old => {
                    return Ok(Some(Kept {
                        ask_at,
                        ..old.clone()
                    }));
                }
                StatusCode::NOT_FOUND | StatusCode::GONE => {}
                other => return Err(refusal(other)),
            }
        }
        Ok(None)
    }

    async fn read(&self, name: &str, mut incoming: Incoming) -> Result<(Page, Validators), Error> {
        let header = |name| incoming.headers().get(name).cloned();
        let validators = Validators {
            tag: header(ETAG),
            modified: header(LAST_MODIFIED),
        };
        let text = |name| header(name).and_then(|value| Some(value.to_str().ok()?.to_lowercase()));
        let form = text(CONTENT_TYPE).unwrap_or_default();
        let encoding = text(CONTENT_ENCODING).unwrap_or_default();
        let too_large = Error::TooLarge {
            what: "the package's page on the index",
            limit: self.max_bytes,
            key: "packages.max_page_bytes",
        };
        if incoming
            .length()
            .is_some_and(|length| length > self.max_bytes)
        {
            return Err(too_large);
        }
        let mut body = Vec::new();
        while let Some(piece) = incoming.piece().await? {
            if (body.len() + piece.len()) as u64 > self.max_bytes {
                return Err(too_large);
            }
            body.extend_from_slice(&piece);
        }
        let (name, url, limit) = (name.to_owned(), incoming.url.clone(), self.max_bytes);
        tokio::task::spawn_blocking(move || {
            let body = match encoding.as_str() {
                "" | "identity" => body,
                "gzip" | "x-gzip" => unzip(&body, limit)?.ok_or(too_large)?,
                _ => {
                    return Err(Error::Wrong(
                        "an encoding that was not asked for".to_owned(),
                    ));
                }
            };
            let parsed: Result<Listing, String> =
                match form.split(';').next().unwrap_or_default().trim() {
                    super::page::JSON => parse_json(&body, &url),
                    super::page::HTML | super::page::OLD_HTML => parse_html(&body, &url),
                    _ => Err("neither the JSON nor the HTML form of a page".to_owned()),
                };
            let listing = parsed.map_err(Error::Wrong)?;
            let secure = url.scheme() == "https";
            Ok((Page::new(name, listing, secure), validators))
        })
        .await
        .expect("parsing does not panic")
    }
}

/// `None`: more than `limit` bytes.
fn unzip(body: &[u8], limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let mut text = Vec::new();
    MultiGzDecoder::new(body)
        .take(limit + 1)
        .read_to_end(&mut text)
        .map_err(|_| Error::Wrong("a page that is not compressed as it says".to_owned()))?;
    Ok((text.len() as u64 <= limit).then_some(text))
}

fn unknown(name: &str) -> Error {
    Error::NotFound(format!("the package index has no package {name:?}"))
}

impl State {
    fn keep(&mut self, name: &str, kept: Kept) {
        self.forget(name);
        self.bytes += kept.page.weight();
        self.kept.put(name.to_owned(), kept);
        while self.kept.len() > MAX_PAGES || self.bytes > MAX_PAGES_BYTES {
            let Some((_, old)) = self.kept.pop_lru() else {
                break;
            };
            self.bytes -= old.page.weight();
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some(old) = self.kept.pop(name) {
            self.bytes -= old.page.weight();
        }
    }
}

/// Takes the fetch out of the table when it has ended or nobody waits for it any more.
struct Entry {
    pages: Arc<Pages>,
    name: String,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.pages.state.lock().expect("not poisoned");
        if state
            .fetches
            .get(&self.name)
            .is_some_and(|(number, _)| *number == self.number)
        {
            state.fetches.remove(&self.name);
        }
    }
}
