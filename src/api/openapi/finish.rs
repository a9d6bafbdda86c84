//! What the description says beyond its routes' own words: parameters of paths, refusals, keys, examples.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use super::codes::{CODES, find};
use super::events::{CommandEvent, ExecutionEvent, FileWatchEvent};
use super::{ArchiveFormat, FileKindWish, NOT_DESCRIBED};

const ABOUT: &str = "\
Python sandboxes: warm, isolated, stateful.

Every success is exactly 200. A refusal is `{\"detail\", \"code\"}`, and `field` where one field of the \
request is to blame; `code` is stable, `detail` is for people. A request whose head is not HTTP is \
refused without a body. Paths of files are relative to the sandbox's working directory.";

/// Groups of routes, in the order of a sandbox's life.
const TAGS: &[(&str, &str)] = &[
    ("sandboxes", "Create, list and close sandboxes."),
    ("code", "Execute Python, run commands, interrupt."),
    ("files", "Files of the working directory."),
    ("packages", "Packages, and what a sandbox may reach."),
    (
        "contexts",
        "Several Python processes over the same files, and checkpoints of their variables.",
    ),
    (
        "processes",
        "Commands and terminals in the background, and servers inside.",
    ),
    (
        "mirrors",
        "What sandboxes are made of: the base, and layers of packages over it.",
    ),
    ("service", "The service itself."),
];

/// Parameters of paths: name, description, pattern, example.
const PARAMETERS: &[(&str, &str, &str, &str)] = &[
    (
        "tool",
        "Name of a tool of `/mcp`.",
        "^[a-z_]+$",
        "list_sandboxes",
    ),
    (
        "id",
        "The sandbox's id.",
        "^[0-9a-z]{26}$",
        super::examples::SANDBOX_ID,
    ),
    (
        "context",
        "The context's id; `default` is there from the start.",
        "^[0-9a-z]+$",
        "default",
    ),
    ("checkpoint", "The checkpoint's id.", "^[0-9a-z]+$", "c1"),
    (
        "process",
        "The background process's id.",
        "^[0-9a-z]+$",
        "p1",
    ),
    (
        "mirror",
        "The mirror's id or name.",
        "^[0-9A-Za-z._-]+$",
        "default",
    ),
    (
        "path",
        "Path of a file, relative to the working directory; it may hold slashes.",
        "",
        "out/a.csv",
    ),
];

/// How the description of a body begins that is not required.
const MAY_BE_LEFT_OUT: &str = "May be left out";

/// Codes of any request.
const OF_ALL: [&str; 4] = [
    "bad_host",
    "host_not_allowed",
    "origin_not_allowed",
    "internal",
];
/// Codes of a JSON body.
const OF_JSON: [&str; 7] = [
    "broken_body",
    "body_timeout",
    "malformed_json",
    "unsupported_content_type",
    "body_too_large",
    "invalid_body",
    "invalid_field",
];
/// Codes of work on files.
const OF_FILES: [&str; 9] = [
    "bad_path",
    "file_not_found",
    "symbolic_link",
    "not_a_regular_file",
    "not_permitted",
    "file_changed",
    "file_work_failed",
    "disk_full",
    "too_many_processes",
];

/// The whole document.
pub(super) fn document(described: OpenApi) -> Value {
    let mut described = json!(described);
    name_unsigned(&mut described);
    let mut schemas = described["components"]["schemas"].clone();
    add_schemas(&mut schemas);
    let paths = described["paths"].as_object().into_iter().flatten();
    let paths: Map<String, Value> = paths
        .map(|(path, item)| {
            let path = path.replace("{*", "{");
            let item = finished(&path, item.clone());
            (path, item)
        })
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "sandcell",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "This service." }],
        "tags": TAGS.iter().map(|(name, text)| json!({ "name": name, "description": text }))
            .collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {
                    "type": "http", "scheme": "bearer",
                    "description": "A key of `[server] api_keys`.",
                },
                "api_key": {
                    "type": "apiKey", "in": "header", "name": "X-API-Key",
                    "description": "The same key, for clients that keep Authorization for themselves.",
                },
            },
        },
        // A service on a loopback address may have no keys.
        "security": [{}, { "bearer": [] }, { "api_key": [] }],
        "x-routes-not-described": NOT_DESCRIBED.iter()
            .map(|(path, why)| json!({ "path": path, "reason": why })).collect::<Vec<_>>(),
    })
}

fn add_schemas(schemas: &mut Value) {
    let mut more = Vec::new();
    for (name, schema) in [
        named::<ExecutionEvent>(&mut more),
        named::<CommandEvent>(&mut more),
        named::<FileWatchEvent>(&mut more),
        // Types of queries are not gathered by themselves.
        named::<ArchiveFormat>(&mut more),
        named::<FileKindWish>(&mut more),
    ] {
        schemas[name] = schema;
    }
    for (name, schema) in more {
        schemas[name] = json!(schema);
    }
    let codes: BTreeSet<&str> = CODES.iter().map(|code| code.name).collect();
    let meanings: Vec<String> = CODES
        .iter()
        .map(|code| format!("- `{}` ({}): {}", code.name, code.status, code.meaning))
        .collect();
    schemas["ErrorCode"] = json!({
        "type": "string",
        "enum": codes,
        "description": format!("What went wrong, with its status:\n\n{}", meanings.join("\n")),
    });
    schemas["Error"] = json!({
        "type": "object",
        "description": "A request that was refused.",
        "required": ["detail", "code"],
        "properties": {
            "detail": { "type": "string", "description": "One sentence for people." },
            "code": {
                "$ref": "#/components/schemas/ErrorCode",
                "description": "What went wrong; stable.",
            },
            "field": { "type": "string", "description": "The field of the request that is to blame." },
        },
    });
}

type Schemas = Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>;

fn named<T: utoipa::ToSchema>(more: &mut Schemas) -> (String, Value) {
    T::schemas(more);
    (T::name().into_owned(), json!(T::schema()))
}

/// `int64` cannot hold what a `u64` can; the registry of formats has another name.
fn name_unsigned(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.get("format").is_some_and(|format| format == "int64")
                && object.contains_key("minimum")
            {
                object.insert("format".into(), "uint64".into());
            }
            object.values_mut().for_each(name_unsigned);
        }
        Value::Array(values) => values.iter_mut().for_each(name_unsigned),
        _ => {}
    }
}

/// The operations of a path.
fn finished(path: &str, mut item: Value) -> Value {
    for (_, operation) in item.as_object_mut().into_iter().flatten() {
        let mut parameters = path_parameters(path);
        if let Some(own) = operation["parameters"].as_array() {
            parameters.extend(own.iter().cloned());
        }
        operation["parameters"] = parameters.into();
        if let Some(body) = operation.get_mut("requestBody") {
            let text = body["description"].as_str().unwrap_or_default();
            body["required"] = (!text.starts_with(MAY_BE_LEFT_OUT)).into();
        }
        let own = operation
            .as_object_mut()
            .and_then(|operation| operation.remove("x-errors"))
            .unwrap_or_default();
        let codes = codes(path, operation, &own);
        for (status, answer) in refusals(&codes) {
            operation["responses"][status] = answer;
        }
        if is_public(path) {
            operation["security"] = json!([]);
        }
        super::examples::add(operation);
    }
    item
}

/// Routes that no key is asked for.
pub(crate) fn is_public(path: &str) -> bool {
    ["/health", "/openapi.json", "/docs"].contains(&path) || path.starts_with("/docs/")
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split(['{', '}']).skip(1).step_by(2);
    let known = |name: &str| PARAMETERS.iter().find(|(known, ..)| *known == name);
    names
        .map(|name| {
            let (_, text, pattern, example) = known(name).expect("every parameter is described");
            let mut schema = json!({ "type": "string", "minLength": 1 });
            if !pattern.is_empty() {
                schema["pattern"] = (*pattern).into();
            }
            json!({
                "name": name, "in": "path", "required": true, "description": text,
                "schema": schema, "example": example,
            })
        })
        .collect()
}

/// The codes of an operation: by its path, by its body, and its own.
fn codes(path: &str, operation: &Value, own: &Value) -> Vec<&'static str> {
    let mut names: Vec<&str> = OF_ALL.to_vec();
    if !is_public(path) {
        names.push("unauthorized");
    }
    for (part, codes) in [
        (
            "/sandbox/{id}",
            ["sandbox_not_found", "sandbox_closing"].as_slice(),
        ),
        ("{context}", &["context_not_found"]),
        ("{checkpoint}", &["checkpoint_not_found"]),
        ("{process}", &["process_not_found"]),
        ("{mirror}", &["mirror_not_found"]),
    ] {
        if path.contains(part) {
            names.extend(codes);
        }
    }
    let content = &operation["requestBody"]["content"];
    if content.get("application/json").is_some() {
        names.extend(OF_JSON);
    }
    for name in own
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        match name {
            "files" => names.extend(OF_FILES),
            "any" => names.extend(CODES.iter().map(|code| code.name)),
            name => names.push(name),
        }
    }
    let known = names.into_iter().map(|name| {
        let code = find(name).unwrap_or_else(|| panic!("{path}: {name} is no code"));
        code.name
    });
    known.collect()
}

/// An answer for each status.
fn refusals(names: &[&str]) -> BTreeMap<String, Value> {
    let mut by_status: BTreeMap<u16, Vec<&super::codes::Code>> = BTreeMap::new();
    for code in CODES.iter().filter(|code| names.contains(&code.name)) {
        by_status.entry(code.status).or_default().push(code);
    }
    let answers = by_status.into_iter().map(|(status, codes)| {
        let names: Vec<&str> = codes.iter().map(|code| code.name).collect();
        let lines: Vec<String> = codes
            .iter()
            .map(|code| format!("- `{}`: {}", code.name, code.meaning))
            .collect();
        let mut answer = json!({
            "description": lines.join("\n"),
            "content": { "application/json": {
                "schema": { "allOf": [
                    { "$ref": "#/components/schemas/Error" },
                    { "properties": { "code": { "enum": names } } },
                ] },
                "example": { "code": names[0], "detail": codes[0].meaning },
            } },
        });
        let header = match status {
            401 => Some(("WWW-Authenticate", "`Bearer`")),
            416 => Some(("Content-Range", "How many bytes the file has.")),
            429 | 503 => Some((
                "Retry-After",
                "Seconds after which trying again makes sense.",
            )),
            _ => None,
        };
        if let Some((name, text)) = header {
            answer["headers"][name] =
                json!({ "description": text, "schema": { "type": "string" } });
        }
        (status.to_string(), answer)
    });
    answers.collect()
}
