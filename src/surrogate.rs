//! Halves of surrogate pairs in JSON: `"\ud83d"` alone.
//!
//! Python's `json` takes them, and a string of Python holds them; text of Rust cannot, and serde_json
//! refuses them. So each travels through the service as three characters that no text has (two
//! noncharacters and one for the half itself, of the last private-use block), and is a half again in what
//! is sent to a kernel. Only code may have any: Python then says what it says of such code. Everything
//! else becomes bytes (files, environments, input), for which a half has no encoding.

use std::borrow::Cow;

use serde::Serializer;
use serde_json::Value;
use serde_json::value::RawValue;

/// What goes before a half.
const MARK: &str = "\u{fdd0}\u{fdd1}";
const FIRST_HALF: u32 = 0xd800;
const LAST_HALF: u32 = 0xdfff;
/// Stands for [`FIRST_HALF`]; the others follow up to the last code point there is.
const STAND_IN: u32 = 0x0010_f800;
/// The field that may have halves.
const CODE: &str = "code";
/// Where it is: in a request's body, and in the arguments of a tool.
const CODE_IS_IN: [&str; 2] = ["", "params.arguments"];

/// JSON without halves.
#[derive(Debug, PartialEq, Eq)]
pub enum Marked<'a> {
    /// There are none.
    Same(&'a [u8]),
    /// With stand-ins in fields named `code`.
    Changed(Vec<u8>),
    /// Where one may not be, as a path of fields.
    Refused(String),
}

/// Puts stand-ins in place of halves. What is no JSON is given back as it came, to be refused by who reads it.
pub fn mark(json: &[u8]) -> Marked<'_> {
    let Some(marked) = replace_escapes(json) else {
        return Marked::Same(json);
    };
    let Ok(value) = serde_json::from_slice::<Value>(&marked) else {
        return Marked::Same(json);
    };
    match find(&value, "") {
        Some(path) => Marked::Refused(path),
        None => Marked::Changed(marked),
    }
}

/// In valid JSON a backslash is always in a string, and what follows it is its own.
fn replace_escapes(json: &[u8]) -> Option<Vec<u8>> {
    let mut marked = Vec::new();
    let (mut kept, mut at) = (0, 0);
    while let Some(found) = json[at..].iter().position(|&byte| byte == b'\\') {
        at += found;
        let Some(unit) = escape_at(json, at) else {
            at = json.len().min(at + 2);
            continue;
        };
        let is_pair = (0xd800..0xdc00).contains(&unit)
            && escape_at(json, at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low));
        let half = (FIRST_HALF..=LAST_HALF).contains(&unit) && !is_pair;
        if half {
            marked.extend_from_slice(&json[kept..at]);
            marked.extend_from_slice(MARK.as_bytes());
            let stand_in = char::from_u32(unit - FIRST_HALF + STAND_IN)?;
            marked.extend_from_slice(stand_in.encode_utf8(&mut [0; 4]).as_bytes());
            kept = at + 6;
        }
        at += if is_pair { 12 } else { 6 };
    }
    if kept == 0 {
        return None;
    }
    marked.extend_from_slice(&json[kept..]);
    Some(marked)
}

/// The code unit of `\uXXXX`.
fn escape_at(json: &[u8], at: usize) -> Option<u32> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = str::from_utf8(digits).ok()?;
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
}

/// Where there is a half besides in code.
fn find(value: &Value, path: &str) -> Option<String> {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        _ => format!("{path}.{name}"),
    };
    match value {
        Value::String(text) => text.contains(MARK).then(|| path.to_owned()),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(number, item)| find(item, &below(&number.to_string())))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, field)| {
            if name.contains(MARK) {
                return Some(path.to_owned());
            }
            let may = name == CODE && field.is_string() && CODE_IS_IN.contains(&path);
            if may { None } else { find(field, &below(name)) }
        }),
        _ => None,
    }
}

/// Why there can be none in a field.
pub fn refusal(field: &str) -> String {
    format!(
        "{field}: half of a surrogate pair has no encoding: give both halves, or the character itself"
    )
}

/// Serializes code with its halves as Python's `json` reads them.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::Serialize;
    use serde::ser::Error;
    match unmark(text) {
        Cow::Borrowed(text) => serializer.serialize_str(text),
        Cow::Owned(json) => RawValue::from_string(json)
            .map_err(S::Error::custom)?
            .serialize(serializer),
    }
}

/// The text itself, or, where it has halves, JSON of it.
fn unmark(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let marked = serde_json::to_string(text).expect("text");
    // In one pass: there may be a half for every few bytes of a large request.
    let (mut json, mut rest) = (String::with_capacity(marked.len()), &*marked);
    while let Some(found) = rest.find(MARK) {
        let after = &rest[found + MARK.len()..];
        let stand_in = after.chars().next();
        match stand_in.and_then(|c| Some((c, u32::from(c).checked_sub(STAND_IN)?))) {
            Some((stand_in, offset)) => {
                json.push_str(&rest[..found]);
                json.push_str(&format!("\\u{:04x}", FIRST_HALF + offset));
                rest = &after[stand_in.len_utf8()..];
            }
            None => {
                json.push_str(&rest[..found + MARK.len()]);
                rest = after;
            }
        }
    }
    json.push_str(rest);
    Cow::Owned(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize)]
    struct Frame<'a> {
        #[serde(serialize_with = "serialize")]
        code: &'a str,
    }

    fn sent(json: &str) -> String {
        let Marked::Changed(marked) = mark(json.as_bytes()) else {
            panic!("{json}: no half was found");
        };
        let value: Value = serde_json::from_slice(&marked).unwrap();
        let code = value["code"].as_str().unwrap();
        serde_json::to_string(&Frame { code }).unwrap()
    }

    #[test]
    fn a_half_reaches_the_kernel_as_it_came() {
        for half in [
            "\\ud83d",
            "\\ude00",
            "\\ud800",
            "\\udfff",
            "\\ud83d\\ud83d",
            "\\ude00\\ud83d",
            "\\ud83dx",
        ] {
            let json = format!("{{\"code\":\"'{half}' \\n\"}}");
            assert_eq!(sent(&json), json);
        }
        assert_eq!(
            sent(r#"{"code":"\uD83D \ud83d\ude00"}"#),
            "{\"code\":\"\\ud83d \u{1f600}\"}"
        );
    }

    #[test]
    fn what_has_none_is_left_alone() {
        for json in [
            r#"{"code":"\ud83d\ude00"}"#,
            r#"{"code":"'\\ud83d'"}"#,
            r#"{"code":"\\\\ud83d \u00e4 \"\\"}"#,
            r#"{"code":"\ud83"#,
            r#"{"code":"\u+83d"}"#,
            r#"{"code":"\"#,
            "",
        ] {
            assert_eq!(
                mark(json.as_bytes()),
                Marked::Same(json.as_bytes()),
                "{json}"
            );
        }
        // Not JSON otherwise.
        let json = r#"{"code":"\ud83d""#;
        assert_eq!(mark(json.as_bytes()), Marked::Same(json.as_bytes()));
        let code = "\u{fdd0} \u{fdd1} \u{10ffff}";
        assert_eq!(unmark(code), code);
    }

    #[test]
    fn only_code_may_have_one() {
        for (json, field) in [
            (r#"{"code":"1","stdin":"\ud83d"}"#, "stdin"),
            (r#"{"code":"1","env":{"A":"x\udc80"}}"#, "env.A"),
            (
                r#"{"params":{"arguments":{"package_names":["a","\ud83d"]}}}"#,
                "params.arguments.package_names.1",
            ),
            (r#"{"code":["\ud83d"]}"#, "code.0"),
            (r#"{"env":{"\ud83d":"1"}}"#, "env"),
        ] {
            assert_eq!(
                mark(json.as_bytes()),
                Marked::Refused(field.into()),
                "{json}"
            );
        }
    }
}
