//! An execution as a stream of JSON objects, one a line, while it runs.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::outcome::Encoder;
use super::rest::{accepts, execution_lost};
use crate::supervisor::{Event, Execution};

pub(super) const MIME: &str = "application/x-ndjson";
/// A silent execution says something this often, so that proxies and clients see it alive.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(5);

/// Whether the client asks for lines with its `Accept`.
pub(crate) fn accepted(headers: &HeaderMap) -> bool {
    accepts(headers, MIME)
}

/// The answer that streams; dropping it interrupts the code.
pub(crate) fn response(sandbox_id: String, execution: Execution) -> Response {
    let body = Body::from_stream(events(sandbox_id, execution));
    ([(header::CONTENT_TYPE, MIME)], body).into_response()
}

fn events(
    sandbox_id: String,
    execution: Execution,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let state = Some((execution, Encoder::default()));
    stream::unfold((sandbox_id, state), |(sandbox_id, state)| async {
        let (mut execution, mut encoder) = state?;
        let (value, goes_on) = match timeout(KEEPALIVE, execution.next()).await {
            Err(_) => (json!({ "type": "keepalive" }), true),
            Ok(None) => (lost(), false),
            Ok(Some(event)) => {
                let goes_on = !matches!(event, Event::Ended(_));
                (encoder.encode(&sandbox_id, event), goes_on)
            }
        };
        let state = goes_on.then_some((execution, encoder));
        Some((Ok(line(&value)), (sandbox_id, state)))
    })
}

fn lost() -> Value {
    let refusal = execution_lost();
    json!({ "type": "failed", "code": refusal.code(), "detail": refusal.detail() })
}

/// JSON of ASCII only: some readers take U+2028 and the like for the end of a line.
pub(super) fn line(value: &Value) -> Bytes {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Ascii);
    value
        .serialize(&mut serializer)
        .expect("a JSON value always has a text");
    bytes.push(b'\n');
    bytes.into()
}

struct Ascii;

impl serde_json::ser::Formatter for Ascii {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        if fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for character in fragment.chars() {
            if character.is_ascii() {
                writer.write_all(&[character as u8])?;
                continue;
            }
            for unit in character.encode_utf16(&mut units) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_ascii_and_mean_the_same() {
        let value = json!({ "ä\u{2028}": "x\n\u{7f}\u{0}\"\\ 😀 \u{ffff}" });
        let bytes = line(&value);
        assert!(bytes.is_ascii());
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Value>(&bytes).ok(), Some(value));
    }
}
