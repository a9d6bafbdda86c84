//! What one key makes is not there for another: on every route and in every tool, found in the code
//! rather than listed here, so that none that comes later is forgotten.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::fixture::http::{Answer, Request};
use crate::fixture::index::Index;
use crate::fixture::{Launch, Service, temp_dir};

const KEYS: &str = "server.api_keys = [
    { name = 'one', key = 'key-of-one' },
    { name = 'two', key = 'key-of-two' },
]";
const ONE: &str = "key-of-one";
const TWO: &str = "key-of-two";
/// As long as an id.
const UNKNOWN: &str = "00000000000000000000000000";
/// Arguments of tools that name a sandbox.
const IDS: [&str; 2] = ["sandbox_id", "container_id"];
/// Codes of what is not there.
const NOT_FOUND: [&str; 3] = [
    "sandbox_not_found",
    "container_not_found",
    "workspace_not_found",
];
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

fn ask(service: &Service, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    service.send(&Request {
        method,
        path,
        headers: &[
            ("X-API-Key", key),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ],
        body: body.as_bytes(),
    })
}

fn create(service: &Service, key: &str) -> String {
    let created = ask(service, key, "POST", "/sandbox/create", &json!({}));
    let created = created.ok().json();
    created["sandbox_id"].as_str().expect("an id").to_owned()
}

/// Every route below a sandbox that the sources speak of.
fn routes() -> BTreeSet<String> {
    fn visit(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).expect("the sources are there").flatten() {
            if entry.path().is_dir() {
                visit(&entry.path(), found);
                continue;
            }
            let text = fs::read_to_string(entry.path()).expect("a source is text");
            let pieces = text.split("\"/sandbox/{id}/").skip(1);
            let rests = pieces.filter_map(|piece| piece.split_once('"'));
            found.extend(rests.map(|(rest, _)| format!("/sandbox/{{id}}/{rest}")));
        }
    }
    let mut found = BTreeSet::new();
    let api = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    visit(&api, &mut found);
    found
}

fn filled(route: &str, id: &str) -> String {
    let segments = route.split('/').map(|segment| match segment {
        "{id}" => id,
        "{context}" => "default",
        "{port}" => "8000",
        s if s.starts_with('{') => "x",
        s => s,
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Status and text, which may say the id that was asked for.
fn told(answer: &Answer, id: &str) -> (u16, String) {
    (answer.status, answer.text().replace(id, "ID"))
}

fn is_unknown(answer: &Answer) -> bool {
    answer.status == 404 && answer.text().contains("sandbox_not_found")
}

#[test]
fn on_every_route_another_keys_sandbox_is_as_unknown_as_one_that_never_was() {
    let service = Service::with_config(KEYS);
    let id = create(&service, ONE);
    let routes = routes();
    assert!(routes.len() >= 20, "{routes:?}");
    for route in &routes {
        let mut hidden = 0;
        for method in METHODS {
            let of = |key, id| ask(&service, key, method, &filled(route, id), &Value::Null);
            let strange = of(TWO, &id);
            let unknown = of(TWO, UNKNOWN);
            assert_eq!(
                told(&strange, &id),
                told(&unknown, UNKNOWN),
                "{method} {route}"
            );
            hidden += usize::from(is_unknown(&strange));
        }
        assert!(hidden > 0, "{route}: no method looked for the sandbox");
    }
    // The negative control: the same questions of whoever made it are answered.
    let closes = |route: &&String| route.ends_with("/close");
    // An answer without an end: its beginning tells.
    let watches = |route: &&String| route.ends_with("/watch");
    let watch = routes.iter().find(watches).expect("a route");
    let begun = service.begin(&Request {
        method: "GET",
        path: &filled(watch, &id),
        headers: &[("X-API-Key", ONE)],
        body: b"",
    });
    assert_eq!(begun.status, 200);
    drop(begun);
    for route in routes
        .iter()
        .filter(|r| !closes(r) && !watches(r))
        .chain(routes.iter().filter(closes))
    {
        let own = METHODS
            .map(|method| ask(&service, ONE, method, &filled(route, &id), &Value::Null))
            .into_iter()
            .filter(|answer| answer.status != 405);
        let own: Vec<_> = own.collect();
        let closed = closes(&route) && own.iter().any(|answer| answer.status == 200);
        assert!(
            closed || !own.iter().any(is_unknown),
            "{route}: its own sandbox is not there"
        );
    }
}

#[test]
fn without_keys_everyone_sees_everything() {
    let service = Service::start();
    let sandbox = service.create();
    let list = ask(&service, TWO, "GET", "/sandboxes", &Value::Null);
    assert!(list.ok().json()[&sandbox.id].is_object());
    sandbox.close().ok();
}

#[test]
fn a_list_holds_ones_own() {
    let service = Service::with_config(KEYS);
    let (first, second) = (create(&service, ONE), create(&service, TWO));
    for (key, own) in [(ONE, &first), (TWO, &second)] {
        let list = ask(&service, key, "GET", "/sandboxes", &Value::Null);
        let list = list.ok().json();
        let ids: Vec<_> = list.as_object().expect("an object").keys().collect();
        assert_eq!(ids, [own]);
    }
}

#[test]
fn a_mirror_is_its_makers_and_one_made_without_keys_is_everyones() {
    let index = Index::start(&[("plainpkg", "VALUE = 7\n"), ("otherpkg", "VALUE = 8\n")]);
    let dir = temp_dir();
    let wish = |name: &str, package: &str| json!({ "name": name, "packages": [package] });
    let launch = |config: &str| {
        Service::launch(&Launch {
            config: &format!("{}{config}", index.config()),
            data_dir: Some(dir.path()),
            ..Launch::default()
        })
    };
    let mut service = launch("");
    ask(
        &service,
        ONE,
        "POST",
        "/mirrors",
        &wish("shared", "plainpkg"),
    )
    .ok();
    service.kill();
    let mut service = launch(KEYS);
    ask(&service, ONE, "POST", "/mirrors", &wish("mine", "otherpkg")).ok();
    let names = |key: &str| {
        let list = ask(&service, key, "GET", "/mirrors", &Value::Null)
            .ok()
            .json();
        let list = list.as_array().expect("a list").iter();
        let names: BTreeSet<_> = list.map(|m| m["name"].to_string()).collect();
        names.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(ONE), r#""default" "mine" "shared""#);
    assert_eq!(names(TWO), r#""default" "shared""#);
    let create = |key: &str, mirror: &str| {
        let wish = json!({ "mirror": mirror });
        ask(&service, key, "POST", "/sandbox/create", &wish)
    };
    for key in [ONE, TWO] {
        create(key, "shared").ok();
        ask(&service, key, "DELETE", "/mirrors/shared", &Value::Null)
            .refused(409, "mirror_is_shared");
    }
    create(TWO, "mine").refused(404, "mirror_not_found");
    for method in ["GET", "DELETE"] {
        let of = |name: &str| {
            ask(
                &service,
                TWO,
                method,
                &format!("/mirrors/{name}"),
                &Value::Null,
            )
        };
        let strange = of("mine");
        strange.refused(404, "mirror_not_found");
        assert_eq!(told(&strange, "mine"), told(&of("none"), "none"));
    }
    // The same wish of another is another mirror: its packages run in nobody else's sandboxes.
    let own = ask(&service, TWO, "POST", "/mirrors", &wish("own", "otherpkg"))
        .ok()
        .json();
    assert_eq!(own["name"], "own");
    create(ONE, "mine").ok();
    ask(&service, TWO, "DELETE", "/mirrors/own", &Value::Null).ok();
    // Without keys all of it is everyone's again.
    service.kill();
    let service = launch("");
    for mirror in ["mine", "shared"] {
        let path = format!("/mirrors/{mirror}");
        ask(&service, ONE, "DELETE", &path, &Value::Null).ok();
    }
}

#[test]
fn servers_inside_are_reached_with_the_owners_key_only() {
    let service = Service::with_config(KEYS);
    let id = create(&service, ONE);
    let start = json!({ "command": "exec python3 -m http.server 8000" });
    let path = format!("/sandbox/{id}/processes");
    ask(&service, ONE, "POST", &path, &start).ok();
    let host = format!("8000-{id}.localhost:{}", service.address.port());
    let no_host = format!("8000-{UNKNOWN}.localhost:{}", service.address.port());
    let by_name = |host: &str, headers: &[(&str, &str)], path: &str| {
        let headers = [&[("Host", host)], headers].concat();
        service.send(&Request {
            method: "GET",
            path,
            headers: &headers,
            body: b"",
        })
    };
    let cookie_of = |host: &str, key: &str| {
        let entered = by_name(host, &[], &format!("/?sandcell_key={key}"));
        assert_eq!(entered.status, 302, "{}", entered.text());
        let cookie = entered.header("set-cookie").expect("a cookie");
        cookie.split(';').next().expect("a pair").to_owned()
    };
    let listens = || {
        let ports = ask(
            &service,
            ONE,
            "GET",
            &format!("/sandbox/{id}/ports"),
            &Value::Null,
        );
        ports.ok().text().contains("8000")
    };
    while !listens() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    for (key, reaches) in [(ONE, true), (TWO, false)] {
        let cookie = cookie_of(&host, key);
        for headers in [[("X-API-Key", key)], [("Cookie", cookie.as_str())]] {
            let answer = by_name(&host, &headers, "/");
            if reaches {
                answer.ok();
            } else {
                answer.refused(404, "sandbox_not_found");
            }
        }
        let cookie = cookie_of(&no_host, key);
        by_name(&no_host, &[("Cookie", &cookie)], "/").refused(404, "sandbox_not_found");
        let path = format!("/sandbox/{id}/port/8000/");
        let answer = ask(&service, key, "GET", &path, &Value::Null);
        assert_eq!(answer.status == 200, reaches, "{}", answer.text());
    }
}

// -- limits

#[test]
fn a_key_has_its_own_number_of_sandboxes() {
    let service = Service::with_config(
        "server.api_keys = [{ name = 'one', key = 'key-of-one', max_sandboxes = 2 }, 'key-of-two']",
    );
    let first = create(&service, ONE);
    create(&service, ONE);
    let refused = ask(&service, ONE, "POST", "/sandbox/create", &json!({}));
    refused.refused(429, "too_many_sandboxes_of_key");
    assert!(refused.header("retry-after").is_some());
    let text = call(&service, ONE, "create_sandbox", &json!({}));
    assert!(text.contains("too_many_sandboxes_of_key"), "{text}");
    // Not the other's, and not for ever.
    for _ in 0..3 {
        create(&service, TWO);
    }
    ask(
        &service,
        ONE,
        "POST",
        &format!("/sandbox/{first}/close"),
        &Value::Null,
    )
    .ok();
    create(&service, ONE);
}

#[test]
fn a_key_has_its_own_number_of_executions_in_a_minute() {
    let service = Service::with_config(
        "server.api_keys = [{ name = 'one', key = 'key-of-one', executions_per_minute = 4 }, \
         'key-of-two']",
    );
    let id = create(&service, ONE);
    let start = |verb: &str| {
        let body = match verb {
            "execute" => json!({ "code": "1" }),
            _ => json!({ "command": "true" }),
        };
        ask(
            &service,
            ONE,
            "POST",
            &format!("/sandbox/{id}/{verb}"),
            &body,
        )
    };
    // What is not there costs nothing.
    let path = format!("/sandbox/{UNKNOWN}/command");
    for _ in 0..5 {
        let body = json!({ "command": "true" });
        ask(&service, ONE, "POST", &path, &body).refused(404, "sandbox_not_found");
    }
    for verb in ["execute", "command", "processes"] {
        start(verb).ok();
    }
    let arguments = json!({ "sandbox_id": id, "code": "print(6 * 7)" });
    let text = call(&service, ONE, "execute_python_code", &arguments);
    assert!(text.contains("42"), "{text}");
    for verb in ["execute", "command", "processes"] {
        let refused = start(verb);
        refused.refused(429, "too_many_executions");
        let seconds = refused.header("retry-after").expect("advice").parse();
        assert!((1..=15).contains(&seconds.expect("seconds")));
    }
    let text = call(&service, ONE, "execute_python_code", &arguments);
    assert!(text.contains("too_many_executions"), "{text}");
    // The negative control: a key without a limit.
    let id = create(&service, TWO);
    for _ in 0..8 {
        let path = format!("/sandbox/{id}/command");
        ask(&service, TWO, "POST", &path, &json!({ "command": "true" })).ok();
    }
}

// -- MCP

fn initialize(version: &str) -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" },
        },
    })
}

/// A session of the revisions that have them.
struct Session<'a> {
    service: &'a Service,
    path: &'a str,
    id: String,
}

impl<'a> Session<'a> {
    fn open(service: &'a Service, key: &str) -> Self {
        Self::open_at(service, key, "/mcp")
    }

    fn open_at(service: &'a Service, key: &str, path: &'a str) -> Self {
        let body = initialize("2025-06-18");
        let answer = ask(service, key, "POST", path, &body).ok();
        let id = answer
            .header("mcp-session-id")
            .expect("a session")
            .to_owned();
        let session = Self { service, path, id };
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let answer = session.send(key, "POST", &ready);
        assert_eq!(answer.status, 202, "{}", answer.text());
        session
    }

    fn send(&self, key: &str, method: &str, body: &Value) -> Answer {
        let body = body.to_string();
        self.service.send(&Request {
            method,
            path: self.path,
            headers: &[
                ("X-API-Key", key),
                ("Content-Type", "application/json"),
                ("Accept", "application/json, text/event-stream"),
                ("Mcp-Session-Id", &self.id),
                ("MCP-Protocol-Version", "2025-06-18"),
            ],
            body: body.as_bytes(),
        })
    }

    fn ask(&self, key: &str, method: &str, params: &Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 2, "method": method, "params": params });
        message(&self.send(key, "POST", &body).ok())
    }
}

/// The answer in a stream of events, or in a body of its own.
fn message(answer: &Answer) -> Value {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let found = data
        .chain([text.as_str()])
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .find(|message| message["id"] == 2);
    found.unwrap_or_else(|| panic!("no answer in {text}"))
}

/// Text of a tool's answer.
fn call(service: &Service, key: &str, name: &str, arguments: &Value) -> String {
    let session = Session::open(service, key);
    let params = json!({ "name": name, "arguments": arguments });
    let answer = session.ask(key, "tools/call", &params);
    answer["result"]["content"].to_string()
}

/// The least that a tool takes.
fn arguments(schema: &Value, id: &str) -> Value {
    let mut arguments = json!({});
    let properties = schema["properties"].as_object().expect("properties");
    // Where one of two has to be given.
    let one_of_two = ["content", "dest_path"].map(Value::from);
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required.chain(&one_of_two) {
        let name = name.as_str().expect("a name");
        if !properties.contains_key(name) {
            continue;
        }
        arguments[name] = match schema["properties"][name]["type"].as_str() {
            _ if IDS.contains(&name) => json!(id),
            Some("integer" | "number") => json!(1),
            Some("array") => json!(["x"]),
            Some("object") => json!({}),
            Some("boolean") => json!(true),
            _ => json!("x"),
        };
    }
    arguments
}

#[test]
fn in_every_tool_another_keys_sandbox_is_as_unknown_as_one_that_never_was() {
    let service = Service::with_config(KEYS);
    for (path, least) in [("/mcp", 8), ("/mcp/env", 3), ("/mcp/workspace", 6)] {
        check_tools(&service, path, least);
    }
}

fn check_tools(service: &Service, path: &str, least: usize) {
    let one = Session::open_at(service, ONE, path);
    let two = Session::open_at(service, TWO, path);
    let id = if path == "/mcp/workspace" {
        let wish =
            json!({ "name": "sandbox_initialize", "arguments": { "use_persistent": false } });
        let made = one.ask(ONE, "tools/call", &wish);
        let id = &made["result"]["structuredContent"]["container_id"];
        id.as_str().expect("an id").to_owned()
    } else {
        create(service, ONE)
    };
    let tools = two.ask(TWO, "tools/list", &json!({}));
    let tools = tools["result"]["tools"].as_array().expect("tools").clone();
    let takes = |tool: &&Value| {
        let properties = &tool["inputSchema"]["properties"];
        IDS.iter().any(|name| properties[name].is_object())
    };
    let tools: Vec<_> = tools.iter().filter(takes).collect();
    assert!(tools.len() >= least, "{tools:?}");
    let ask = |session: &Session<'_>, key: &str, tool: &Value, id: &str| {
        let arguments = arguments(&tool["inputSchema"], id);
        let params = json!({ "name": tool["name"], "arguments": arguments });
        let answer = session.ask(key, "tools/call", &params);
        answer.to_string().replace(id, "ID")
    };
    let unknown = |told: &str| NOT_FOUND.iter().any(|code| told.contains(code));
    for tool in &tools {
        let strange = ask(&two, TWO, tool, &id);
        assert_eq!(strange, ask(&two, TWO, tool, UNKNOWN), "{}", tool["name"]);
        // A path of the host that no tool may read is refused whoever asks.
        let local = strange.contains("local_");
        assert!(unknown(&strange) || local, "{}: {strange}", tool["name"]);
    }
    // The negative control.
    let closes = |tool: &&&Value| {
        let name = tool["name"].as_str().unwrap_or_default();
        ["close_sandbox", "clean_workspace", "sandbox_stop"].contains(&name)
    };
    for tool in (tools.iter().filter(|t| !closes(t))).chain(tools.iter().filter(closes).take(1)) {
        let own = ask(&one, ONE, tool, &id);
        let own_workspace = own.contains("workspace_not_found");
        assert!(!unknown(&own) || own_workspace, "{}: {own}", tool["name"]);
    }
    if path == "/mcp" {
        let wish = json!({ "name": "list_sandboxes", "arguments": {} });
        let list = two.ask(TWO, "tools/call", &wish);
        assert!(
            list.to_string().contains("There are no sandboxes"),
            "{list}"
        );
    }
}

#[test]
fn a_session_is_of_use_with_its_own_key_only() {
    let service = Service::with_config(KEYS);
    let session = Session::open(&service, ONE);
    let nobodys = Session {
        service: &service,
        path: "/mcp",
        id: "00000000-0000-0000-0000-000000000000".into(),
    };
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {} });
    let done = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    for (method, body) in [("POST", &list), ("POST", &done), ("GET", &Value::Null)] {
        let strange = session.send(TWO, method, body);
        assert_eq!(strange.status, 404, "{method}: {}", strange.text());
        assert_eq!(strange.text(), nobodys.send(TWO, method, body).text());
    }
    // Nor can it be ended.
    let strange = session.send(TWO, "DELETE", &Value::Null);
    let unknown = nobodys.send(TWO, "DELETE", &Value::Null);
    assert_eq!(
        (strange.status, strange.text()),
        (unknown.status, unknown.text())
    );
    // The negative control: all of this works with its own key.
    message(&session.send(ONE, "POST", &list).ok());
    assert_eq!(session.send(ONE, "POST", &done).status, 202);
    let stream = service.begin(&Request {
        method: "GET",
        path: "/mcp",
        headers: &[
            ("X-API-Key", ONE),
            ("Accept", "text/event-stream"),
            ("Mcp-Session-Id", &session.id),
        ],
        body: b"",
    });
    assert_eq!(stream.status, 200);
    session.send(ONE, "DELETE", &Value::Null).ok();
    assert_eq!(session.send(ONE, "POST", &list).status, 404);
}

/// `MAX_SESSIONS_OF_KEY` of `src/api/mcp/sessions.rs`.
const SESSIONS_OF_KEY: usize = 256;

#[test]
fn too_many_sessions_of_one_key_end_only_its_own() {
    let service = Service::with_config(KEYS);
    let of_another = Session::open(&service, TWO);
    let first = Session::open(&service, ONE);
    let second = Session::open(&service, ONE);
    for _ in 1..SESSIONS_OF_KEY {
        Session::open(&service, ONE);
    }
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping", "params": {} });
    assert_eq!(first.send(ONE, "POST", &ping).status, 404);
    assert_eq!(second.ask(ONE, "ping", &json!({}))["result"], json!({}));
    assert_eq!(of_another.ask(TWO, "ping", &json!({}))["result"], json!({}));
}

// -- the configuration

#[test]
fn a_key_may_be_in_a_file_and_is_in_no_log() {
    let dir = temp_dir();
    let file = dir.path().join("ci.key");
    fs::write(&file, "key-in-a-file\n").expect("a file can be written");
    let service = Service::launch(&Launch {
        config: &format!(
            "server.api_keys = [{{ name = 'ci', key_file = '{}' }}]",
            file.display()
        ),
        env: &[("RUST_LOG", "trace")],
        ..Launch::default()
    });
    create(&service, "key-in-a-file");
    ask(&service, "key-in-a-fil", "GET", "/sandboxes", &Value::Null).refused(401, "unauthorized");
    assert!(!service.log().contains("key-in-a-fil"));
}
