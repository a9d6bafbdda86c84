//! An execution as a stream of JSON objects while it runs: one a line, or as server-sent events.

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

use super::encoder::Encoder;
use super::rest::{accepts, execution_lost};
use crate::supervisor::{Event, Execution};

/// How the objects travel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Format {
    /// One a line.
    Lines,
    /// As `data` of events that are named by their `type` (HTML standard, "Server-sent events").
    ServerSent,
}

impl Format {
    fn mime(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::ServerSent => "text/event-stream",
        }
    }
}

/// A silent execution says something this often, so that proxies and clients see it alive.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(5);

/// The format of the stream that the client asks for, with its `Accept` or in the body; lines where it
/// takes both.
pub(crate) fn wanted(stream: Option<bool>, headers: &HeaderMap) -> Option<Format> {
    let formats = [Format::Lines, Format::ServerSent];
    let accepted = formats.into_iter().find(|f| accepts(headers, f.mime()));
    match stream {
        Some(true) => accepted.or(Some(Format::Lines)),
        Some(false) => None,
        None => accepted,
    }
}

/// The answer that streams; dropping it drops the execution.
pub(crate) fn response(format: Format, sandbox_id: String, execution: Execution) -> Response {
    format.response(events(format, sandbox_id, execution))
}

fn events(
    format: Format,
    sandbox_id: String,
    execution: Execution,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let state = Some((execution, Encoder::default()));
    stream::unfold((sandbox_id, state), move |(sandbox_id, state)| async move {
        let (mut execution, mut encoder) = state?;
        let (values, goes_on) = match timeout(KEEPALIVE, execution.next()).await {
            Err(_) => (vec![json!({ "type": "keepalive" })], true),
            Ok(None) => (vec![lost()], false),
            Ok(Some(event)) => {
                let goes_on = !matches!(event, Event::Ended(_));
                (encoder.encode(&sandbox_id, event), goes_on)
            }
        };
        let state = goes_on.then_some((execution, encoder));
        Some((Ok(format.written(&values)), (sandbox_id, state)))
    })
}

fn lost() -> Value {
    let refusal = execution_lost();
    json!({ "type": "failed", "code": refusal.code(), "detail": refusal.detail() })
}

impl Format {
    /// An answer of what [`Format::written`] gives.
    pub(crate) fn response(
        self,
        pieces: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
    ) -> Response {
        let body = Body::from_stream(pieces);
        ([(header::CONTENT_TYPE, self.mime())], body).into_response()
    }

    pub(crate) fn written(self, values: &[Value]) -> Bytes {
        let mut bytes = Vec::new();
        for value in values {
            if let Self::ServerSent = self {
                let name = value["type"].as_str().or(value["event"].as_str());
                let name = name.unwrap_or("message");
                bytes.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
            }
            write_line(&mut bytes, value);
            if let Self::ServerSent = self {
                bytes.push(b'\n');
            }
        }
        bytes.into()
    }
}

/// JSON of ASCII only: some readers take U+2028 and the like for the end of a line.
pub(crate) fn write_line(bytes: &mut Vec<u8>, value: &impl Serialize) {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *bytes, Ascii);
    value
        .serialize(&mut serializer)
        .expect("a JSON value always has a text");
    bytes.push(b'\n');
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
        let bytes = Format::Lines.written(std::slice::from_ref(&value));
        assert!(bytes.is_ascii());
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Value>(&bytes).ok(), Some(value));
    }

    #[test]
    fn server_sent_events_are_named_and_have_one_line_of_data_each() {
        let values = [json!({ "type": "stdout", "text": "a\n\nb" }), lost()];
        let bytes = Format::ServerSent.written(&values);
        let text = std::str::from_utf8(&bytes).expect("ASCII");
        let (first, second) = text.split_once("\n\n").expect("two events");
        assert!(first.starts_with("event: stdout\ndata: {") && first.contains(r"a\n\nb"));
        assert!(second.starts_with("event: failed\ndata: {") && second.ends_with("}\n\n"));
    }
}
