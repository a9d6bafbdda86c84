//! Reads what a kernel sends. Any of it may be forged by user code, so nothing here costs more memory
//! than a small multiple of the frame: fields are kept as they are written (`RawValue`) until the
//! frame is known to be wanted, and a tree of JSON values is only built of what is small.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::protocol::{FileChange, FromKernel, LeftOut, ResultKind};

/// MIME types of one display.
const MAX_BUNDLE_ENTRIES: usize = 64;
/// Bytes of a MIME type's name, of a display id.
const MAX_NAME_BYTES: usize = 256;
/// Bytes of JSON of which a tree of values is built: it takes some thirty times as much.
const MAX_TREE_BYTES: usize = 1024 * 1024;
/// Characters of a sentence for people.
const MAX_NOTE_CHARS: usize = 300;
/// What a checkpoint did not carry, at most so many things.
const MAX_NOTES: usize = 20;
/// Names of variables in a frame: as many as a request may set.
const MAX_NAMES: usize = 256;
/// Bytes of IPython's metadata of a display; more is dropped.
const MAX_METADATA_BYTES: usize = 64 * 1024;
/// Bytes of the list of changed files; a longer one is dropped and marked.
const MAX_FILES_BYTES: usize = 8 * 1024 * 1024;

/// A frame's fields, whichever variant has them.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(rename = "type", borrow)]
    variant: Cow<'a, str>,
    id: Option<u64>,
    execution_count: Option<u64>,
    next_count: Option<u64>,
    forks: Option<bool>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    display_id: Option<Cow<'a, str>>,
    wait: Option<bool>,
    #[serde(borrow)]
    step: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
    #[serde(borrow)]
    traceback: Option<Cow<'a, str>>,
    #[serde(borrow)]
    files: Option<&'a RawValue>,
    files_truncated: Option<bool>,
    files_seen: Option<u64>,
    disk_full: Option<bool>,
    exit_code: Option<u8>,
    results_left_out: Option<u64>,
    result_bytes_left_out: Option<u64>,
    pid: Option<i32>,
    #[serde(borrow)]
    objection: Option<Cow<'a, str>>,
    #[serde(default)]
    unsound: bool,
    #[serde(borrow)]
    missing: Option<&'a RawValue>,
    #[serde(borrow)]
    env_not_applied: Option<&'a RawValue>,
}

/// Reads a frame. `None` for one of another execution than `wanted`, which is not looked into.
///
/// # Errors
/// The frame is not of this protocol.
pub fn parse(body: &[u8], wanted: u64) -> io::Result<Option<FromKernel>> {
    let fields: Fields<'_> = serde_json::from_slice(body).map_err(invalid)?;
    if fields.id.is_some_and(|id| id != wanted) {
        return Ok(None);
    }
    fields.into_frame().map(Some).map_err(invalid)
}

fn invalid(e: serde_json::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

fn required<T>(field: Option<T>, name: &'static str) -> Result<T, serde_json::Error> {
    field.ok_or_else(|| serde_json::Error::missing_field(name))
}

impl Fields<'_> {
    fn into_frame(self) -> Result<FromKernel, serde_json::Error> {
        let text = |field: Option<Cow<'_, str>>| field.map(Cow::into_owned).unwrap_or_default();
        Ok(match &*self.variant {
            "ready" => FromKernel::Ready,
            "env_set" => FromKernel::EnvSet {
                not_applied: names(self.env_not_applied),
            },
            "failed" => FromKernel::Failed {
                step: text(self.step),
                error: text(self.error),
            },
            "started" => FromKernel::Started {
                id: required(self.id, "id")?,
                execution_count: required(self.execution_count, "execution_count")?,
            },
            "result" => {
                let bundle: Bundle = serde_json::from_str(required(self.data, "data")?.get())?;
                let (metadata, unread_bytes) = metadata(self.metadata);
                let bytes = bundle.left_out_bytes + unread_bytes;
                FromKernel::Result {
                    id: required(self.id, "id")?,
                    kind: kind(required(self.kind, "kind")?)?,
                    data: bundle.data,
                    metadata,
                    display_id: self
                        .display_id
                        .map(Cow::into_owned)
                        .filter(|id| id.len() <= MAX_NAME_BYTES),
                    left_out: LeftOut {
                        results: u64::from(bytes > 0),
                        bytes,
                    },
                }
            }
            "clear_output" => FromKernel::ClearOutput {
                id: required(self.id, "id")?,
                wait: self.wait.unwrap_or_default(),
            },
            "error" => FromKernel::Error {
                id: required(self.id, "id")?,
                name: text(self.name),
                value: text(self.value),
                traceback: text(self.traceback),
            },
            "done" => {
                let (files, files_truncated) = files(self.files)?;
                FromKernel::Done {
                    id: required(self.id, "id")?,
                    execution_count: required(self.execution_count, "execution_count")?,
                    next_count: self.next_count.unwrap_or_default(),
                    files,
                    files_truncated: files_truncated || self.files_truncated.unwrap_or_default(),
                    files_seen: self.files_seen.unwrap_or_default(),
                    disk_full: self.disk_full.unwrap_or_default(),
                    exit_code: self.exit_code.map(i32::from),
                    left_out: LeftOut {
                        results: self.results_left_out.unwrap_or_default(),
                        bytes: self.result_bytes_left_out.unwrap_or_default(),
                    },
                    env_not_applied: names(self.env_not_applied),
                    forks: self.forks.unwrap_or_default(),
                }
            }
            "checkpoint" => FromKernel::Checkpoint {
                pid: self.pid,
                objection: self.objection.map(note),
            },
            "branched" => FromKernel::Branched {
                pid: self.pid,
                objection: self.objection.map(note),
                unsound: self.unsound,
            },
            "restored" => FromKernel::Restored {
                missing: notes(self.missing),
            },
            other => {
                return Err(serde_json::Error::unknown_variant(
                    other,
                    &["started", "done"],
                ));
            }
        })
    }
}

fn note(text: Cow<'_, str>) -> String {
    text.chars().take(MAX_NOTE_CHARS).collect()
}

fn notes(raw: Option<&RawValue>) -> Vec<String> {
    let notes: Vec<String> = raw
        .filter(|raw| raw.get().len() <= MAX_METADATA_BYTES)
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default();
    let short = notes.into_iter().take(MAX_NOTES);
    short.map(|text| note(text.into())).collect()
}

/// Names of variables. Whoever uses them takes those that it has asked to set and no others.
fn names(raw: Option<&RawValue>) -> Vec<String> {
    let names: Vec<String> = raw
        .filter(|raw| raw.get().len() <= MAX_METADATA_BYTES)
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default();
    names.into_iter().take(MAX_NAMES).collect()
}

fn kind(raw: &RawValue) -> Result<ResultKind, serde_json::Error> {
    serde_json::from_str(raw.get())
}

/// With the bytes that were too many to be read.
fn metadata(raw: Option<&RawValue>) -> (Map<String, Value>, u64) {
    let text = raw.map(RawValue::get).unwrap_or_default();
    if text.len() > MAX_METADATA_BYTES {
        return (Map::new(), text.len() as u64);
    }
    (serde_json::from_str(text).unwrap_or_default(), 0)
}

fn files(raw: Option<&RawValue>) -> Result<(Vec<FileChange>, bool), serde_json::Error> {
    match raw {
        None => Ok((Vec::new(), false)),
        Some(raw) if raw.get().len() > MAX_FILES_BYTES => Ok((Vec::new(), true)),
        Some(raw) => Ok((serde_json::from_str(raw.get())?, false)),
    }
}

/// A MIME bundle within its bounds.
struct Bundle {
    data: Map<String, Value>,
    /// Of entries in whose place is a note.
    left_out_bytes: u64,
}

impl<'de> Deserialize<'de> for Bundle {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BundleVisitor)
    }
}

struct BundleVisitor;

impl<'de> Visitor<'de> for BundleVisitor {
    type Value = Bundle;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from MIME type to data")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bundle, A::Error> {
        let mut bundle = Bundle {
            data: Map::new(),
            left_out_bytes: 0,
        };
        while let Some((mime, raw)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            if bundle.data.len() == MAX_BUNDLE_ENTRIES || mime.len() > MAX_NAME_BYTES {
                return Err(A::Error::custom("a bundle over its bounds"));
            }
            let (datum, left_out) = datum(raw).map_err(A::Error::custom)?;
            bundle.data.insert(mime.into_owned(), datum);
            bundle.left_out_bytes += left_out;
        }
        Ok(bundle)
    }
}

/// With the bytes that were left out of it.
fn datum(raw: &RawValue) -> Result<(Value, u64), serde_json::Error> {
    let text = raw.get();
    if text.starts_with('"') {
        return Ok((Value::String(serde_json::from_str(text)?), 0));
    }
    if text.len() > MAX_TREE_BYTES {
        let note = format!(
            "[{} bytes of JSON were dropped: more than {MAX_TREE_BYTES}]",
            text.len()
        );
        return Ok((Value::String(note), text.len() as u64));
    }
    Ok((serde_json::from_str(text)?, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_by_their_type() {
        let body = br#"{"type":"result","id":3,"kind":"display","data":{"text/plain":"1","a/json":{"b":[1]}},"metadata":{},"display_id":null}"#;
        let Ok(Some(FromKernel::Result { id, data, .. })) = parse(body, 3) else {
            panic!("not a result");
        };
        assert_eq!((id, data["a/json"]["b"][0].as_u64()), (3, Some(1)));
        let body = br#"{"type":"done","id":3,"execution_count":1,"files":[{"path":"a","kind":"file","size":1,"change":"created"}],"files_truncated":false}"#;
        let Ok(Some(FromKernel::Done { files, .. })) = parse(body, 3) else {
            panic!("not done");
        };
        assert_eq!(files.len(), 1);
    }

    #[test]
    fn frames_of_other_executions_are_not_looked_into() {
        let body = br#"{"type":"result","id":4,"data":"nonsense"}"#;
        assert_eq!(parse(body, 3).unwrap(), None);
    }

    #[test]
    fn what_is_not_of_the_protocol_is_refused() {
        for body in [
            &b"[]"[..],
            b"{}",
            b"{\"type\":\"gift\"}",
            b"{\"type\":\"done\"}",
            b"{\"type\":\"result\",\"id\":1,\"kind\":\"display\",\"data\":[]}",
            b"\xff",
        ] {
            assert!(parse(body, 1).is_err(), "{body:?}");
        }
    }

    #[test]
    fn bundles_and_trees_have_bounds() {
        let many: String = (0..65).map(|n| format!("\"k{n}\":1,")).collect();
        let body = format!(r#"{{"type":"result","id":1,"kind":"display","data":{{{many}"z":1}}}}"#);
        assert!(parse(body.as_bytes(), 1).is_err());
        let list = "0,".repeat(MAX_TREE_BYTES);
        let body =
            format!(r#"{{"type":"result","id":1,"kind":"display","data":{{"x":[{list}0]}}}}"#);
        let Ok(Some(FromKernel::Result { data, left_out, .. })) = parse(body.as_bytes(), 1) else {
            panic!("not a result");
        };
        assert!(data["x"].as_str().unwrap().contains("dropped"));
        assert_eq!(
            (left_out.results, left_out.bytes),
            (1, list.len() as u64 + 3)
        );
    }
}
