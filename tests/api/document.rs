//! Every described route is really run, and the examples of the description are what came of it:
//! `RECORD_EXAMPLES=1 cargo test --test api document` writes them down anew.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Map, Value, json};

use crate::fixture::http::{self, Request};
use crate::fixture::{Launch, Service};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/openapi/examples.json");
/// What stands for ids and times in examples.
const SANDBOX_ID: &str = "7k2m9q4r8s1t3v5w6x0y2z4a6b";
const OTHER_ID: &str = "2c8h5n0q7s3v9x1z4b6d8f0j2k";
const TIME: &str = "2026-01-31T12:34:56.789Z";

/// A body.
enum Body {
    None,
    Json(Value),
    /// What came of `archive_files`.
    Archive,
    /// A form with this file.
    Form(&'static str),
}

/// Operations in an order in which each does something: an answer's id is in later paths by the
/// parameter's name.
fn runs() -> Vec<(&'static str, Body)> {
    use Body::{Archive, Form, Json, None};
    vec![
        ("health", None),
        (
            "create_sandbox",
            Json(json!({ "name": "analysis", "lease_seconds": 3600 })),
        ),
        ("list_sandboxes", None),
        (
            "execute",
            Json(json!({
                "code": "import json\nx = 6 * 7\nprint(x)\nopen('x.json', 'w').write(json.dumps(x))\nx",
            })),
        ),
        ("run_command", Json(json!({ "command": "ls -l; exit 3" }))),
        ("interrupt", Json(json!({ "context_id": "default" }))),
        ("upload_file", Form("x,y\n1,2\n")),
        ("list_files", None),
        ("download_file", None),
        ("stat_file", None),
        ("show_file", None),
        ("archive_files", None),
        ("unpack_files", Archive),
        ("watch_files", None),
        ("make_directory", Json(json!({ "path": "out" }))),
        (
            "rename_file",
            Json(json!({ "from": "in/a.csv", "to": "out/b.csv" })),
        ),
        ("remove_file", Json(json!({ "path": "in" }))),
        ("describe_sandbox", None),
        ("renew_sandbox", Json(json!({ "lease_seconds": 7200 }))),
        ("show_network", None),
        (
            "set_network",
            Json(json!({ "network": { "allow": ["api.example.com:443"] } })),
        ),
        (
            "install_packages",
            Json(json!({ "packages": ["rich"], "wait_seconds": 0 })),
        ),
        ("show_packages", None),
        ("create_context", Json(json!({ "name": "second" }))),
        ("list_contexts", None),
        ("create_checkpoint", Json(json!({ "name": "before" }))),
        ("list_checkpoints", None),
        (
            "restore_context",
            Json(json!({ "checkpoint_id": "{checkpoint}" })),
        ),
        ("fork_context", Json(json!({ "name": "what if" }))),
        ("restart_context", None),
        ("delete_context", None),
        ("delete_checkpoint", None),
        (
            "start_process",
            Json(json!({ "command": "cat", "pty": { "columns": 80, "rows": 24 } })),
        ),
        ("list_processes", None),
        ("show_process", None),
        ("write_process_stdin", Json(json!({ "text": "hello\n" }))),
        ("read_process_output", None),
        (
            "resize_process",
            Json(json!({ "columns": 120, "rows": 40 })),
        ),
        ("signal_process", Json(json!({ "signal": "SIGTERM" }))),
        ("wait_for_process", Json(json!({ "timeout_seconds": 10 }))),
        ("attach_to_process", None),
        ("delete_process", None),
        ("list_ports", None),
        ("list_mirrors", None),
        ("show_mirror", None),
        (
            "create_mirror",
            Json(json!({ "packages": ["rich"], "name": "rich", "wait_seconds": 0 })),
        ),
        ("delete_mirror", None),
        ("call_tool", Json(json!({}))),
        ("describe", None),
        ("docs", None),
        ("close_sandbox", None),
    ]
}

/// What the answer of a run is, where it is not 200: the index is nowhere, and no WebSocket is asked for.
fn expected(operation: &str) -> u16 {
    match operation {
        "attach_to_process" => 400,
        // It is still being made, or has failed.
        "delete_mirror" => 0,
        _ => 200,
    }
}

/// Path, method and description of each operation, by its id.
fn operations(document: &Value) -> BTreeMap<String, (String, String, Value)> {
    let mut found = BTreeMap::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let id = operation["operationId"].as_str().expect("an id").to_owned();
            found.insert(
                id,
                (path.clone(), method.to_ascii_uppercase(), operation.clone()),
            );
        }
    }
    found
}

fn filled(text: &str, known: &BTreeMap<&str, String>) -> String {
    known.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{name}}}"), value)
    })
}

/// Ids and times are others each time.
fn settled(value: &Value, sandbox: &str) -> Value {
    let is_id = |text: &str| text.len() == 26 && text.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_time =
        |text: &str| text.len() == TIME.len() && text.ends_with('Z') && text.contains("T");
    match value {
        Value::String(text) if text == sandbox => SANDBOX_ID.into(),
        Value::String(text) if is_id(text) => OTHER_ID.into(),
        Value::String(text) if is_time(text) => TIME.into(),
        Value::String(text) => text.replace(sandbox, SANDBOX_ID).into(),
        Value::Array(values) => values.iter().map(|v| settled(v, sandbox)).collect(),
        Value::Object(object) => {
            let settled = object.iter().map(|(key, value)| {
                let key = if key == sandbox { SANDBOX_ID } else { key };
                (key.to_owned(), settled(value, sandbox))
            });
            Value::Object(settled.collect())
        }
        other => other.clone(),
    }
}

/// Keys and kinds of a value, as text; null is of any kind.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let keys = object.iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                keys.map(|(key, value)| (key.clone(), shape(value)))
                    .collect(),
            )
        }
        Value::Array(values) => values.iter().take(1).map(shape).collect(),
        Value::String(_) => "string".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Null => "null".into(),
    }
}

#[test]
fn every_route_is_run_and_its_example_is_true() {
    let service = Service::launch(&Launch {
        // No index: installations are begun, and go nowhere.
        config: "packages.index_url = 'http://127.0.0.1:9/simple'",
        ..Launch::default()
    });
    let document = service.get("/openapi.json").ok().json();
    let operations = operations(&document);
    let mut known = BTreeMap::from([
        ("context", "default".to_owned()),
        ("mirror", "default".to_owned()),
        ("tool", "list_sandboxes".to_owned()),
        ("path", "x.json".to_owned()),
    ]);
    let mut examples = Map::new();
    let mut archive = Vec::new();
    let runs = runs();
    for (id, body) in &runs {
        let (path, method, operation) = operations.get(*id).unwrap_or_else(|| panic!("{id}"));
        let mut path = filled(path, &known);
        path += match *id {
            "show_packages" => "?names=numpy,rich",
            "read_process_output" => "?wait_seconds=10",
            "stat_file" => "?path=x.json",
            "show_file" => "?sandbox_id={id}&file_path=x.json",
            "archive_files" => "?format=tar",
            "unpack_files" => "?path=copy",
            _ => "",
        };
        let path = filled(&path, &known);
        let (kind, bytes) = match body {
            Body::None => (String::new(), Vec::new()),
            Body::Json(value) => {
                let text = filled(&value.to_string(), &known);
                ("application/json".to_owned(), text.into_bytes())
            }
            Body::Archive => ("application/x-tar".to_owned(), archive.clone()),
            Body::Form(text) => {
                let parts: &[(&str, Option<&str>, &[u8])] = &[
                    ("file_path", None, b"in/a.csv"),
                    ("file", Some("a.csv"), text.as_bytes()),
                ];
                http::form(parts)
            }
        };
        let headers = [("Content-Type", kind.as_str())];
        let request = Request {
            method,
            path: &path,
            headers: if kind.is_empty() { &[] } else { &headers },
            body: &bytes,
        };
        if *id == "watch_files" {
            // It has no end.
            assert_eq!(service.begin(&request).status, 200);
            examples.insert((*id).to_owned(), json!({}));
            continue;
        }
        let answer = service.send(&request);
        if *id == "archive_files" {
            archive.clone_from(&answer.body);
        }
        let described = operation["responses"].get(answer.status.to_string());
        assert!(
            described.is_some(),
            "{id}: {} is not described: {}",
            answer.status,
            answer.text()
        );
        let expected = expected(id);
        assert!(
            [0, answer.status].contains(&expected),
            "{id}: {} {}",
            answer.status,
            answer.text()
        );
        let is_json = answer.header("content-type") == Some("application/json");
        let answered = if is_json && *id != "describe" {
            answer.json()
        } else {
            Value::Null
        };
        for (name, field) in [
            ("id", "sandbox_id"),
            ("process", "process_id"),
            ("checkpoint", "checkpoint_id"),
            ("mirror", "mirror_id"),
        ] {
            if let (true, Some(value)) = (method == "POST", answered[field].as_str()) {
                known.insert(name, value.to_owned());
            }
        }
        // The one that may be deleted, and the one that is there.
        if *id == "fork_context" {
            known.insert(
                "context",
                answered["context_id"].as_str().expect("an id").to_owned(),
            );
        } else if *id == "delete_context" {
            known.insert("context", "default".to_owned());
        }
        let sandbox = known.get("id").map_or("-", String::as_str);
        let mut example = Map::new();
        match body {
            Body::Json(_) => {
                let sent: Value = serde_json::from_slice(&bytes).expect("JSON");
                example.insert("request".to_owned(), settled(&sent, sandbox));
            }
            Body::Archive | Body::Form(_) | Body::None => {}
        }
        if answer.status == 200 && is_json && *id != "describe" {
            example.insert("answer".to_owned(), settled(&answered, sandbox));
        }
        examples.insert((*id).to_owned(), example.into());
    }
    for id in operations.keys() {
        assert!(examples.contains_key(id), "{id} is never run");
    }
    if std::env::var_os("RECORD_EXAMPLES").is_some() {
        let text = serde_json::to_string_pretty(&examples).expect("JSON") + "\n";
        return fs::write(EXAMPLES, text).expect("a file can be written");
    }
    let recorded = fs::read_to_string(EXAMPLES).expect("examples are recorded");
    let recorded: Value = serde_json::from_str(&recorded).expect("JSON");
    let recorded = recorded.as_object().expect("an object");
    assert_eq!(
        recorded.len(),
        examples.len(),
        "RECORD_EXAMPLES=1 writes them anew"
    );
    for (id, example) in &examples {
        // What a run leaves differs where others left something too.
        if [
            "list_mirrors",
            "show_packages",
            "install_packages",
            "create_mirror",
        ]
        .contains(&&**id)
        {
            continue;
        }
        assert_eq!(
            shape(&recorded[id]),
            shape(example),
            "{id}: RECORD_EXAMPLES=1 writes it anew"
        );
    }
}
