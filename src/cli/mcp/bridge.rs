//! Standard input and output in front of a service: each line is one message of JSON-RPC, posted to
//! the service's endpoint; what it answers becomes lines.
//!
//! Messages are passed on as they are. Read of them is only what streamable HTTP wants in headers: the
//! protocol's revision and, in that of 2026-07-28, the method and its subject; and in the older ones
//! the session that the answer to `initialize` names.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::post::{Place, post};
use crate::api::SetName;
use crate::surrogate::{self, Marked};

/// Bytes of one message of the client; the service has a smaller limit and says so.
const MAX_LINE_BYTES: usize = 64 * 1024 * 1024;
/// Lines that wait for the client to read.
const QUEUE: usize = 64;
/// Requests under way at once.
const MAX_REQUESTS: usize = 256;
/// How long requests under way may go on once the client has closed its end.
const DRAIN: Duration = Duration::from_secs(5);
/// Revisions from this on have no session, and a request is called off by closing its connection.
const STATELESS: &str = "2026-07-28";
/// An implementation's own code of JSON-RPC: the service did not answer.
const UNREACHABLE: i64 = -32000;
const INVALID_REQUEST: i64 = -32600;

/// A client's way to a service.
pub(super) struct Bridge {
    place: Arc<Place>,
    session: Arc<Mutex<Session>>,
}

/// What later requests must say of `initialize`'s answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Session {
    pub(super) id: Option<String>,
    pub(super) version: Option<String>,
}

impl Bridge {
    /// # Errors
    /// The address or the key is none.
    pub(super) fn new(url: &str, set: SetName, key: Option<&str>) -> Result<Self, String> {
        Ok(Self {
            place: Arc::new(Place::new(url, set, key)?),
            session: Arc::default(),
        })
    }

    /// Passes messages on until standard input ends and its requests have their answers.
    pub(super) async fn run(&self, output: File) -> Result<(), String> {
        let (lines, mut written) = mpsc::channel::<Value>(QUEUE);
        let writer = tokio::task::spawn_blocking(move || {
            let mut output = output;
            while let Some(message) = written.blocking_recv() {
                let mut line = message.to_string();
                line.push('\n');
                if output.write_all(line.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let mut input = BufReader::new(tokio::io::stdin());
        let mut requests = JoinSet::new();
        let mut under_way: HashMap<String, AbortHandle> = HashMap::new();
        loop {
            let line = tokio::select! {
                line = next_line(&mut input) => line,
                // The client reads no more.
                () = lines.closed() => break,
            };
            while requests.try_join_next().is_some() {}
            under_way.retain(|_, request| !request.is_finished());
            let message = match line {
                Line::Message(message) => message,
                Line::Refused(reason) => {
                    let _ = lines
                        .send(error(&Value::Null, INVALID_REQUEST, reason))
                        .await;
                    continue;
                }
                Line::End => break,
            };
            if self.calls_off(&message, &mut under_way) {
                continue;
            }
            let id = message
                .get("id")
                .filter(|_| message.get("method").is_some());
            let id = id.map(Value::to_string);
            if requests.len() >= MAX_REQUESTS {
                if id.is_some() {
                    let text = "too many requests are under way; wait for answers";
                    let _ = lines.send(error(&message["id"], UNREACHABLE, text)).await;
                }
                continue;
            }
            // The next message may come only when the session is there.
            let begins = message["method"] == "initialize";
            let (place, session) = (Arc::clone(&self.place), Arc::clone(&self.session));
            let pass = pass_on(place, session, message, lines.clone());
            if id.is_none() {
                // In order: what was told before a request counts for it.
                pass.await;
                continue;
            }
            let request = requests.spawn(pass);
            if let Some(id) = id {
                under_way.insert(id, request);
            }
            if begins {
                let _ = requests.join_next().await;
            }
        }
        let all = async { while requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN, all).await;
        requests.shutdown().await;
        self.place.end(&self.current()).await;
        drop(lines);
        // A client that does not read holds it up.
        let _ = tokio::time::timeout(DRAIN, writer).await;
        Ok(())
    }

    fn current(&self) -> Session {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.clone()
    }

    /// In the stateless revision the client calls a request off and the service is told by the end of
    /// its connection.
    fn calls_off(&self, message: &Value, under_way: &mut HashMap<String, AbortHandle>) -> bool {
        if message["method"] != "notifications/cancelled" || self.current().id.is_some() {
            return false;
        }
        let id = message["params"]["requestId"].to_string();
        if let Some(request) = under_way.remove(&id) {
            request.abort();
        }
        true
    }
}

/// Posts one message and hands on what comes back.
async fn pass_on(
    place: Arc<Place>,
    session: Arc<Mutex<Session>>,
    message: Value,
    lines: mpsc::Sender<Value>,
) {
    let id = message.get("id").cloned();
    let failed = match exchange(&place, &session, &message, &lines).await {
        Ok(true) => return,
        Ok(false) => "the service's answer ended early".to_owned(),
        Err(reason) => reason,
    };
    match &id {
        Some(id) => drop(lines.send(error(id, UNREACHABLE, &failed)).await),
        None => tracing::warn!("{failed}"),
    }
}

/// Whether all came that has to.
async fn exchange(
    place: &Place,
    session: &Mutex<Session>,
    message: &Value,
    lines: &mpsc::Sender<Value>,
) -> Result<bool, String> {
    let now = session
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let id = message
        .get("id")
        .filter(|_| message.get("method").is_some());
    let mut answers = post(place, &now, message).await?;
    while let Some(answer) = answers.next().await? {
        let is_last = id.is_some() && answer.get("method").is_none() && answer.get("id") == id;
        if is_last && message["method"] == "initialize" && !answer["result"].is_null() {
            let version = answer["result"]["protocolVersion"].as_str();
            let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
            session.version = version.map(str::to_owned);
            session.id.clone_from(&answers.session);
        }
        if lines.send(answer).await.is_err() || is_last {
            return Ok(true);
        }
    }
    Ok(id.is_none())
}

/// The revision that a message says it is of.
pub(super) fn version_of<'a>(message: &'a Value, session: &'a Session) -> Option<&'a str> {
    let own = &message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
    own.as_str().or(session.version.as_deref())
}

/// Whether a revision is one without sessions; revisions are dates.
pub(super) fn is_stateless(version: &str) -> bool {
    version >= STATELESS
}

fn error(id: &Value, code: i64, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } })
}

enum Line {
    Message(Value),
    Refused(&'static str),
    End,
}

/// The next message; empty lines are none. Of a line that is too long nothing is kept.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin)) -> Line {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let Ok(read) = input.fill_buf().await else {
            return Line::End;
        };
        if read.is_empty() {
            return Line::End;
        }
        let end = read.iter().position(|&byte| byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        too_long |= line.len() + part.len() > MAX_LINE_BYTES;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(part);
        }
        let used = end.map_or(read.len(), |end| end + 1);
        input.consume(used);
        if end.is_none() {
            continue;
        }
        if too_long {
            return Line::Refused("the message is too long");
        }
        if line.trim_ascii().is_empty() {
            line.clear();
            continue;
        }
        let plain = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line);
        let message = match surrogate::mark(plain) {
            Marked::Changed(plain) => serde_json::from_slice::<Value>(&plain),
            // serde_json refuses halves.
            Marked::Same(_) | Marked::Refused(_) => serde_json::from_slice::<Value>(plain),
        };
        return match message {
            Ok(message) if message.is_object() => Line::Message(message),
            _ => Line::Refused("each line must be one message of JSON-RPC 2.0"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn kinds(input: &[u8]) -> Vec<&'static str> {
        let mut input = BufReader::with_capacity(16, input);
        let mut kinds = Vec::new();
        loop {
            kinds.push(match next_line(&mut input).await {
                Line::Message(_) => "message",
                Line::Refused(_) => "refused",
                Line::End => return kinds,
            });
        }
    }

    #[tokio::test]
    async fn a_line_is_a_message() {
        let lines = b"\n{\"a\": 1}\r\n  \n{\n[1]\n{\"b\": \"a longer one than the buffer\"}\n{}";
        let found = kinds(lines).await;
        assert_eq!(found, ["message", "refused", "refused", "message"]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_refused_and_the_next_is_read() {
        let mut lines = vec![b'x'; MAX_LINE_BYTES + 1];
        lines.extend_from_slice(b"\n{}\n");
        assert_eq!(kinds(&lines).await, ["refused", "message"]);
    }

    #[test]
    fn revisions_are_dates() {
        assert!(is_stateless("2026-07-28") && is_stateless("2027-01-01"));
        assert!(!is_stateless("2025-11-25"));
    }
}
