//! One message to an endpoint of streamable HTTP, and what comes back.

use std::collections::VecDeque;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url};
use serde_json::Value;

use super::bridge::{Session, is_stateless, version_of};
use crate::api::SetName;

/// Longest to reach the service.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest that the service may send nothing: it pings more often.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest that the end of a session may take.
const END: Duration = Duration::from_secs(2);
/// Bytes of one message of the service.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// An endpoint.
pub(super) struct Place {
    client: Client,
    url: Url,
}

impl Place {
    pub(super) fn new(address: &str, set: SetName, key: Option<&str>) -> Result<Self, String> {
        let mut url = Url::parse(address).map_err(|e| format!("{address}: {e}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{address}: must begin with http:// or https://"));
        }
        if url.path() == "/" {
            url.set_path(set.path());
        }
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| "the key holds characters that a header cannot carry".to_owned())?;
            value.set_sensitive(true);
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        // As for the package index; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .default_headers(headers)
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            // A key is for the address that was given.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Self { client, url })
    }

    /// Ends a session, if there is one.
    pub(super) async fn end(&self, session: &Session) {
        let Some(id) = &session.id else { return };
        let request = self.client.delete(self.url.clone()).header(SESSION, id);
        let _ = request.timeout(END).send().await;
    }

    fn failed(&self, error: &reqwest::Error) -> String {
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            reason = inner.to_string();
            source = inner.source();
        }
        format!("failed to reach {}: {reason}", self.url)
    }
}

/// Posts a message.
pub(super) async fn post(
    place: &Place,
    session: &Session,
    message: &Value,
) -> Result<Answers, String> {
    let mut request = place
        .client
        .post(place.url.clone())
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json, text/event-stream");
    if let Some(version) = version_of(message, session) {
        request = request.header(VERSION, version);
        if is_stateless(version) {
            for (name, value) in subject(message) {
                request = request.header(name, value);
            }
        }
    }
    if let Some(id) = &session.id {
        request = request.header(SESSION, id);
    }
    let response = request.body(message.to_string()).send().await;
    let response = response.map_err(|e| place.failed(&e))?;
    let text = |name| response.headers().get(name)?.to_str().ok();
    let media = text(CONTENT_TYPE).unwrap_or_default();
    let kind = if media.starts_with("text/event-stream") {
        Kind::Events(VecDeque::new())
    } else {
        Kind::Whole
    };
    Ok(Answers {
        session: text(SESSION).map(str::to_owned),
        kind,
        bytes: Vec::new(),
        data: Vec::new(),
        failed: format!("failed to read from {}", place.url),
        response,
    })
}

/// What comes back.
pub(super) struct Answers {
    /// The session that it is of.
    pub(super) session: Option<String>,
    kind: Kind,
    /// Of the line, or the body, that is not whole yet.
    bytes: Vec<u8>,
    /// Of the event that is not whole yet.
    data: Vec<u8>,
    failed: String,
    response: Response,
}

enum Kind {
    /// One message, or none.
    Whole,
    /// Server-sent events, one message each; those that have come.
    Events(VecDeque<Value>),
    End,
}

impl Answers {
    /// The next message, `None` at the end.
    ///
    /// # Errors
    /// The service refused the message, or its answer broke off.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Kind::Events(come) = &mut self.kind
                && let Some(message) = come.pop_front()
            {
                return Ok(Some(message));
            }
            if matches!(self.kind, Kind::End) {
                return Ok(None);
            }
            let chunk = self.response.chunk().await;
            match chunk.map_err(|error| format!("{}: {error}", self.failed))? {
                Some(chunk) => self.take(&chunk)?,
                None => return self.end(),
            }
        }
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), String> {
        let Kind::Events(come) = &mut self.kind else {
            return grow(&mut self.bytes, chunk);
        };
        for part in chunk.split_inclusive(|&byte| byte == b'\n') {
            grow(&mut self.bytes, part)?;
            if self.bytes.last() != Some(&b'\n') {
                continue;
            }
            let line = self.bytes.trim_ascii_end();
            if line.is_empty() {
                come.extend(serde_json::from_slice::<Value>(&self.data).ok());
                self.data.clear();
            } else if let Some(data) = line.strip_prefix(b"data:") {
                grow(&mut self.data, data)?;
            }
            self.bytes.clear();
        }
        Ok(())
    }

    fn end(&mut self) -> Result<Option<Value>, String> {
        let kind = std::mem::replace(&mut self.kind, Kind::End);
        if let Kind::Events(_) = kind {
            return Ok(None);
        }
        let answer = serde_json::from_slice::<Value>(&self.bytes).ok();
        let status = self.response.status();
        match answer {
            Some(answer) if answer["jsonrpc"] == "2.0" => Ok(Some(answer)),
            _ if status.is_success() => Ok(None),
            answer => {
                let detail = answer.and_then(|a| Some(a["detail"].as_str()?.to_owned()));
                let body = || String::from_utf8_lossy(&self.bytes).into_owned();
                let detail = detail.unwrap_or_else(body);
                Err(format!("the service answered {status}: {}", detail.trim()))
            }
        }
    }
}

/// The headers that name a request's method and its subject.
fn subject(message: &Value) -> impl Iterator<Item = (&'static str, &str)> {
    let params = &message["params"];
    let method = message["method"].as_str();
    let name = match method {
        Some("resources/read") => params["uri"].as_str(),
        _ => params["name"].as_str(),
    };
    // What a header cannot carry is left out, for the service to refuse.
    let plain = |text: &&str| text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    let method = method.map(|method| ("mcp-method", method));
    let name = name.map(|name| ("mcp-name", name));
    method
        .into_iter()
        .chain(name)
        .filter(move |(_, text)| plain(text))
}

fn grow(bytes: &mut Vec<u8>, chunk: &[u8]) -> Result<(), String> {
    if bytes.len() + chunk.len() > MAX_MESSAGE_BYTES {
        return Err(format!(
            "the service's message has over {MAX_MESSAGE_BYTES} bytes"
        ));
    }
    bytes.extend_from_slice(chunk);
    Ok(())
}
