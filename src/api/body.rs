//! Request bodies: counted while they arrive, given up when they stall, decoded strictly.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::{Stream, StreamExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, Sleep, sleep};

use super::error::{Limit, Refusal};
use crate::surrogate::{self, Marked};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a body claims to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    /// `application/json` or anything `+json`.
    Json,
    /// No `Content-Type`.
    Unstated,
    /// Anything else.
    Other,
}

/// Reads the `Content-Type`.
pub(crate) fn media(headers: &HeaderMap) -> Media {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Media::Unstated;
    };
    let essence = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        Media::Json
    } else {
        Media::Other
    }
}

/// Refuses a body that says itself that it is too long, before a byte of it is read.
pub(crate) fn check_length(headers: &HeaderMap, limit: Limit) -> Result<(), Refusal> {
    let claimed = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match claimed {
        Some(bytes) if bytes > limit.bytes => Err(Refusal::too_large(limit)),
        _ => Ok(()),
    }
}

/// Reads a whole body, at most `limit` bytes of it.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: Limit,
    stall: Duration,
) -> Result<Vec<u8>, Refusal> {
    check_length(headers, limit)?;
    let mut chunks = Chunks::new(body, limit.bytes, stall);
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        bytes.extend_from_slice(&chunk.map_err(|failure| failure.refusal(limit))?);
    }
    Ok(bytes)
}

/// A body that begins with a byte order mark, without it. Only UTF-8 is taken: the marks of UTF-16 and
/// UTF-32 are told from code that is garbled.
pub(crate) fn without_mark(bytes: &[u8]) -> Result<&[u8], Refusal> {
    if [&b"\xff\xfe"[..], b"\xfe\xff", b"\0\0\xfe\xff"]
        .iter()
        .any(|mark| bytes.starts_with(mark))
    {
        return Err(Refusal::bad_request(
            "invalid_utf8",
            "the body begins with the byte order mark of UTF-16 or UTF-32: send it as UTF-8",
        ));
    }
    Ok(bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes))
}

/// A JSON text as serde_json takes it, of a body as Python's `json` does: with a byte order mark, and with
/// halves of surrogate pairs in code.
pub(crate) fn plain_json(bytes: &[u8]) -> Result<Cow<'_, [u8]>, Refusal> {
    let bytes = without_mark(bytes)?;
    match surrogate::mark(bytes) {
        Marked::Same(bytes) => Ok(bytes.into()),
        Marked::Changed(bytes) => Ok(bytes.into()),
        Marked::Refused(field) => Err(Refusal::invalid(&*field, surrogate::refusal(&field))),
    }
}

/// Decodes a JSON object; the refusal names the field that is wrong.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    decode_plain(&plain_json(bytes)?)
}

fn decode_plain<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    if bytes.trim_ascii_start().first().is_some_and(|&b| b != b'{') {
        // serde would take an array as a struct's fields in order.
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(malformed)?;
        return Err(Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_body",
            "the body must be a JSON object",
        ));
    }
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut input).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if inner.is_data() {
            wrong_field(&path, &inner)
        } else {
            malformed(inner)
        }
    })?;
    input.end().map_err(malformed)?;
    Ok(value)
}

fn malformed(error: serde_json::Error) -> Refusal {
    Refusal::bad_request(
        "malformed_json",
        format!("the body is not valid JSON: {error}"),
    )
}

/// A missing field is reported at the object that lacks it; its name is only in the text, between
/// backquotes.
pub(crate) fn wrong_field(path: &str, error: &serde_json::Error) -> Refusal {
    let text = error.to_string();
    let reason = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(text, _)| text);
    let missing = ["missing field `", "duplicate field `"]
        .iter()
        .find_map(|prefix| reason.strip_prefix(prefix)?.split('`').next());
    let field = match (path, missing) {
        (".", Some(name)) => name.to_owned(),
        (path, Some(name)) if path != name => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    };
    Refusal::invalid(&*field, format!("{field}: {reason}"))
}

/// A body of the wrong type, where only JSON will do.
pub(crate) fn json_required() -> Refusal {
    Refusal::bad_request(
        "unsupported_content_type",
        "send this body as JSON, with Content-Type: application/json",
    )
}

/// Why a body ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("body over its limit")]
    TooLarge,
    #[error("no byte of the body arrived in time")]
    Stalled,
    #[error("body broken off or malformed")]
    Broken,
}

impl Failure {
    pub(crate) fn refusal(self, limit: Limit) -> Refusal {
        match self {
            Self::TooLarge => Refusal::too_large(limit),
            Self::Stalled => Refusal::bad_request(
                "body_timeout",
                "the body stopped arriving ([server] body_timeout_seconds)",
            ),
            Self::Broken => Refusal::bad_request("broken_body", "the body ended before its end"),
        }
    }
}

/// A body's bytes as they arrive, until one limit or the other is passed.
pub(crate) struct Chunks {
    body: BodyDataStream,
    left: u64,
    stall: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Chunks {
    pub(crate) fn new(body: Body, limit_bytes: u64, stall: Duration) -> Self {
        Self {
            body: body.into_data_stream(),
            left: limit_bytes,
            stall,
            timer: Box::pin(sleep(stall)),
        }
    }
}

impl Stream for Chunks {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready(chunk) = self.body.poll_next_unpin(cx) else {
            ready!(self.timer.as_mut().poll(cx));
            return Poll::Ready(Some(Err(Failure::Stalled)));
        };
        let deadline = Instant::now() + self.stall;
        self.timer.as_mut().reset(deadline);
        Poll::Ready(match chunk {
            None => None,
            Some(Err(_)) => Some(Err(Failure::Broken)),
            Some(Ok(bytes)) => match self.left.checked_sub(bytes.len() as u64) {
                None => Some(Err(Failure::TooLarge)),
                Some(left) => {
                    self.left = left;
                    Some(Ok(bytes))
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use futures_util::stream;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        code: String,
        #[serde(default)]
        seconds: Option<f64>,
        #[serde(default)]
        env: std::collections::BTreeMap<String, String>,
    }

    async fn refused(text: &str) -> (u16, serde_json::Value) {
        let refusal = decode::<Sample>(text.as_bytes()).expect_err("a refusal");
        let response = refusal.into_response();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let body = serde_json::from_slice(&body.expect("a body")).expect("JSON");
        (status, body)
    }

    #[tokio::test]
    async fn wrong_fields_are_named() {
        for (text, field) in [
            (r#"{}"#, "code"),
            (r#"{"code": 1}"#, "code"),
            (r#"{"code": null}"#, "code"),
            (r#"{"code": "", "seconds": "1"}"#, "seconds"),
            (r#"{"code": "", "env": {"A": 1}}"#, "env.A"),
            (r#"{"code": "", "env": []}"#, "env"),
            (r#"{"code": "", "extra": 1}"#, "extra"),
            (r#"{"code": "", "code": ""}"#, "code"),
        ] {
            let (status, body) = refused(text).await;
            assert_eq!(status, 422, "{text}");
            assert_eq!(body["field"], field, "{text}: {body}");
            assert!(body["detail"].as_str().is_some_and(|d| d.contains(field)));
        }
    }

    #[tokio::test]
    async fn what_is_not_a_json_object_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "{\"code\": }",
            "nope",
            "{\"code\":\"\"} x",
            "[",
            "\u{feff}\u{feff}{}",
        ] {
            let (status, body) = refused(text).await;
            assert_eq!(
                (status, &body["code"]),
                (400, &"malformed_json".into()),
                "{text}"
            );
        }
        for text in ["[\"print(1)\"]", "1", "\"x\"", "null"] {
            let (status, body) = refused(text).await;
            assert_eq!(
                (status, &body["code"]),
                (422, &"invalid_body".into()),
                "{text}"
            );
        }
        let deep = format!("{{\"code\": {}", "[".repeat(100_000));
        assert_eq!(refused(&deep).await.0, 422);
        let deep = format!("{{\"extra\": {}", "[".repeat(100_000));
        assert_eq!(refused(&deep).await.0, 422);
    }

    #[tokio::test]
    async fn what_python_takes_is_taken() {
        for text in ["\u{feff}{\"code\":\"1\"}", "\u{feff} {\"code\":\"1\"}"] {
            assert_eq!(decode::<Sample>(text.as_bytes()).unwrap().code, "1");
        }
        decode::<Sample>(br#"{"code":"\ud83d"}"#).unwrap();
        let (status, body) = refused(r#"{"code":"","env":{"A":"\ud83d"}}"#).await;
        assert_eq!((status, &body["field"]), (422, &"env.A".into()));
        let utf16: Vec<u8> = "\u{feff}{}"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let refusal = decode::<Sample>(&utf16).expect_err("a refusal");
        assert_eq!(refusal.code(), "invalid_utf8");
    }

    #[tokio::test]
    async fn bodies_without_a_length_are_cut_off_at_the_limit() {
        let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![0; 1000])));
        let limit = Limit {
            code: "body_too_large",
            what: "the body",
            name: "server.max_body_bytes",
            bytes: 1_000_000,
        };
        let headers = HeaderMap::new();
        let body = Body::from_stream(endless);
        let read = read(&headers, body, limit, Duration::from_secs(1));
        let refusal = read.await.expect_err("a refusal");
        assert_eq!(refusal.code(), "body_too_large");
        assert!(refusal.detail().contains("server.max_body_bytes"));
    }

    #[tokio::test]
    async fn a_stalled_body_is_given_up() {
        let one = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
        let body = Body::from_stream(one.chain(stream::pending()));
        let mut chunks = Chunks::new(body, 10, Duration::from_millis(50));
        assert!(chunks.next().await.is_some_and(|chunk| chunk.is_ok()));
        let begun = Instant::now();
        assert_eq!(chunks.next().await, Some(Err(Failure::Stalled)));
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
}
