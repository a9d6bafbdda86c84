//! What a client sends along beside a request's arguments (`_meta`). It is kept, decoded, for as long as
//! the request runs, and decoded JSON takes ten times the memory of its text: so it is measured first.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::error::Refusal;

/// Bytes of `_meta`: a token for progress and facts about the client.
const META_BYTES: usize = 64 * 1024;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

/// # Errors
/// 400 where `_meta` is too large, or where it cannot be told in a body that would hold one.
pub(super) fn check(body: &[u8]) -> Result<(), Refusal> {
    // Nothing in it is large.
    if body.len() <= META_BYTES {
        return Ok(());
    }
    // A list would do for an object to what decodes it.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(malformed(&"it is no object"));
    }
    let message: Message<'_> = serde_json::from_slice(body).map_err(|error| malformed(&error))?;
    let meta = message.params.and_then(|params| params.meta);
    match meta.map(|meta| meta.get().len()) {
        Some(bytes) if bytes > META_BYTES => Err(Refusal::bad_request(
            "malformed_message",
            format!("params._meta has {bytes} bytes, and {META_BYTES} are the most"),
        )),
        _ => Ok(()),
    }
}

/// A body that is no message.
pub(super) fn malformed(why: &dyn Display) -> Refusal {
    let detail = format!("the body must be one message of JSON-RPC 2.0: {why}");
    Refusal::bad_request("malformed_message", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(meta: usize, code: usize) -> String {
        let (meta, code) = ("0,".repeat(meta), "x".repeat(code));
        format!(r#"{{"method": "m", "params": {{"code": "{code}", "_meta": {{"a": [{meta}0]}}}}}}"#)
    }

    #[test]
    fn only_what_comes_beside_the_arguments_is_limited() {
        assert!(check(body(10, 1_000_000).as_bytes()).is_ok());
        let refusal = check(body(1_000_000, 10).as_bytes()).unwrap_err();
        assert!(refusal.detail().contains("_meta"), "{}", refusal.detail());
    }

    #[test]
    fn it_cannot_be_hidden() {
        let twice = body(1_000_000, 10).replace("\"_meta\"", "\"_meta\": 1, \"_meta\"");
        assert!(check(twice.as_bytes()).is_err());
        assert!(check(format!("[{}]", body(1_000_000, 10)).as_bytes()).is_err());
    }
}
