use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// Every operation with its path and method.
fn operations() -> impl Iterator<Item = (String, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().expect("paths").iter();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods").iter();
        methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

/// Calls `look` with every value of a document, and where it is.
fn walk(value: &Value, place: &str, look: &mut impl FnMut(&str, &Value)) {
    look(place, value);
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                walk(value, &format!("{place}/{key}"), look);
            }
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                walk(value, &format!("{place}/{at}"), look);
            }
        }
        _ => {}
    }
}

#[test]
fn references_lead_somewhere_and_nothing_is_unused() {
    let mut used = BTreeSet::new();
    walk(&DOCUMENT, "", &mut |place, value| {
        let text = match value.as_str() {
            Some(text) if place.ends_with("/$ref") => text,
            // Schemas of streams are linked.
            Some(text) => match text.split("](").nth(1) {
                Some(link) => link.split(')').next().unwrap_or_default(),
                None => return,
            },
            None => return,
        };
        let pointer = text.strip_prefix('#').expect("a reference within");
        assert!(DOCUMENT.pointer(pointer).is_some(), "{place}: {text}");
        used.insert(pointer.to_owned());
    });
    let schemas = DOCUMENT["components"]["schemas"]
        .as_object()
        .expect("schemas");
    for name in schemas.keys() {
        assert!(
            used.contains(&format!("/components/schemas/{name}")),
            "{name} is unused"
        );
    }
}

#[test]
fn everything_is_explained() {
    let tags = DOCUMENT["tags"].as_array().expect("tags");
    let tags: Vec<&Value> = tags.iter().map(|tag| &tag["name"]).collect();
    let mut ids = BTreeSet::new();
    for (name, operation) in operations() {
        let text = |field: &str| operation[field].as_str().unwrap_or_default();
        assert!(!text("summary").is_empty(), "{name}");
        assert!(!text("summary").ends_with('.'), "{name}");
        assert!(ids.insert(text("operationId")), "{name}: not the only one");
        assert!(
            tags.contains(&&operation["tags"][0]),
            "{name}: {}",
            operation["tags"]
        );
        assert!(operation.get("x-errors").is_none(), "{name}");
        let answers = operation["responses"].as_object().expect("answers");
        assert!(
            answers.contains_key("200") != answers.contains_key("101"),
            "{name}"
        );
        assert!(answers.contains_key("500"), "{name}");
        for parameter in operation["parameters"].as_array().expect("parameters") {
            let text = parameter["description"].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name}: {parameter}");
        }
    }
    walk(
        &DOCUMENT["components"]["schemas"],
        "",
        &mut |place, value| {
            let at = place.rsplit('/').nth(1);
            if at == Some("properties") && !place.ends_with("/type") {
                let or_null = value["oneOf"].as_array().into_iter().flatten();
                let explained = or_null
                    .chain([value])
                    .any(|v| v.get("description").is_some());
                // The tag of an event is what the event is for.
                let is_tag = place.contains("/oneOf/")
                    && value["enum"].as_array().is_some_and(|e| e.len() == 1);
                assert!(explained || is_tag, "{place}: {value}");
            }
        },
    );
}

#[test]
fn only_what_says_so_needs_no_key() {
    for (name, operation) in operations() {
        let is_public = is_public(name.split(' ').nth(1).expect("a path"));
        assert_eq!(operation.get("security").is_some(), is_public, "{name}");
        let refuses = operation["responses"].get("401").is_some();
        assert_eq!(refuses, !is_public, "{name}");
    }
    assert!(!is_public("/sandboxes") && is_public("/health"));
}

/// Written to a file when asked for, to be looked at.
#[test]
fn the_document_is_small_enough_to_load() {
    let text = DOCUMENT.to_string();
    if let Some(path) = std::env::var_os("OPENAPI_DUMP") {
        std::fs::write(
            path,
            serde_json::to_string_pretty(&*DOCUMENT).expect("JSON"),
        )
        .expect("a file");
    }
    assert!(text.len() < 512 * 1024, "{} bytes", text.len());
}
