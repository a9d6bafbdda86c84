//! Requests that must be refused, and how.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{self, Incoming, Request};

const UNKNOWN: &str = "00000000000000000000000000";
const MIB: usize = 1024 * 1024;
/// A refusal that waits for nothing.
const AT_ONCE: Duration = Duration::from_secs(2);
/// What the service's memory may grow by while it refuses 10 GB.
const GROWTH_BYTES: u64 = 16 << 20;

#[test]
fn an_unknown_sandbox_is_not_found_on_every_route() {
    let service = Service::start();
    let form = http::form(&[("file_path", None, b"a"), ("file", Some("a"), b"x")]);
    for id in [
        UNKNOWN,
        "nonsense",
        "%2e%2e",
        "..%2f..%2fetc",
        "%00",
        &"x".repeat(5000),
    ] {
        let path = |verb: &str| format!("/sandbox/{id}/{verb}");
        let answers = [
            service.post(&path("execute"), "text/plain", b"1"),
            service.post_json(&path("execute"), &json!({ "code": "1" })),
            service.post_json(&path("command"), &json!({ "command": "true" })),
            service.post(&path("upload"), &form.0, &form.1),
            service.get(&path("files")),
            service.get(&path("files/stat?path=a")),
            service.get(&path("files/archive")),
            service.get(&path("files/watch")),
            service.post_json(&path("files/mkdir"), &json!({ "path": "a" })),
            service.post_json(&path("files/rename"), &json!({ "from": "a", "to": "b" })),
            service.post_json(&path("files/remove"), &json!({ "path": "a" })),
            service.post(&path("files/unpack"), "application/x-tar", b"x"),
            service.post_json(&path("renew"), &json!({})),
            service.get(&format!("/sandbox/{id}")),
            service.get(&path("download/a")),
            service.post(&path("close"), "text/plain", b""),
        ];
        for answer in answers {
            answer.refused(404, "sandbox_not_found");
        }
    }
    assert_eq!(service.get("/nothing/here").status, 404);
    assert_eq!(service.get("/sandbox/create").status, 405);
}

#[test]
fn empty_code_is_fine() {
    let service = Service::start();
    let sandbox = service.create();
    for outcome in [
        sandbox.execute(""),
        sandbox.execute_json(&json!({ "code": "" })),
    ] {
        assert_eq!(outcome["outcome"], "ok");
        assert_eq!(outcome["stdout"], "");
        assert_eq!(outcome["error"], Value::Null);
    }
}

#[test]
fn code_that_is_not_utf8_is_refused() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("execute");
    let refusal = service
        .post(&path, "text/plain", b"print('a')\xff")
        .refused(400, "invalid_utf8");
    assert!(
        refusal["detail"]
            .as_str()
            .is_some_and(|d| d.contains("byte 10")),
        "{refusal}"
    );
    service
        .post(&path, "application/json", b"{\"code\": \"\xff\"}")
        .refused(400, "malformed_json");
    sandbox.assert_usable();
}

#[test]
fn ten_megabytes_of_code_run() {
    let service = Service::start();
    let sandbox = service.create();
    let code = format!("text = '{}'\nprint(len(text))", "x".repeat(10 * MIB));
    assert_eq!(sandbox.stdout(&code), format!("{}\n", 10 * MIB));
}

#[test]
fn code_over_its_limit_is_refused() {
    let service = Service::with_config("limits.code_bytes = 1048576");
    let sandbox = service.create();
    let code = "#".repeat(MIB + 1);
    let path = sandbox.path("execute");
    service
        .post(&path, "text/plain", code.as_bytes())
        .refused(413, "code_too_large");
    service
        .post_json(&path, &json!({ "code": code }))
        .refused(413, "code_too_large");
    assert_eq!(sandbox.execute(&code[1..])["outcome"], "ok");
}

#[test]
fn a_syntax_error_is_an_outcome_with_its_place() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute("x = 1\nif x print(x)\n");
    assert_eq!(outcome["outcome"], "error");
    assert_eq!(outcome["error"], "SyntaxError");
    let traceback = outcome["traceback"].as_str().expect("a traceback");
    assert!(
        traceback.contains("line 2") && traceback.contains("if x print(x)"),
        "{traceback}"
    );
    assert!(
        !traceback.contains('\u{1b}'),
        "no colour codes: {traceback}"
    );
    sandbox.assert_usable();
}

#[test]
fn any_type_but_json_is_code_and_only_json_is_json() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("execute");
    for content_type in [
        "text/plain",
        "text/x-python; charset=utf-8",
        "application/octet-stream",
        "nonsense",
    ] {
        let outcome = service
            .post(&path, content_type, b"print('{}')")
            .ok()
            .json();
        assert_eq!(outcome["stdout"], "{}\n", "{content_type}");
    }
    for content_type in [
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.x+json",
    ] {
        let outcome = service
            .post(&path, content_type, b"{\"code\": \"print(1)\"}")
            .ok()
            .json();
        assert_eq!(outcome["stdout"], "1\n", "{content_type}");
        service
            .post(&path, content_type, b"print(1)")
            .refused(400, "malformed_json");
    }
}

#[test]
fn a_body_of_the_wrong_type_is_refused() {
    let service = Service::start();
    let sandbox = service.create();
    for (path, body) in [
        ("/sandbox/create".to_owned(), json!({})),
        (sandbox.path("command"), json!({ "command": "true" })),
    ] {
        let body = body.to_string();
        service
            .post(&path, "text/plain", body.as_bytes())
            .refused(400, "unsupported_content_type");
    }
    for content_type in ["text/plain", "application/json", "multipart/form-data"] {
        let refused = service.post(&sandbox.path("upload"), content_type, b"x");
        refused.refused(400, "unsupported_content_type");
    }
}

#[test]
fn json_with_wrong_types_names_the_field() {
    let service = Service::start();
    let sandbox = service.create();
    let execute = sandbox.path("execute");
    let command = sandbox.path("command");
    for (path, body, field) in [
        (
            "/sandbox/create",
            json!({ "memory_bytes": "1" }),
            "memory_bytes",
        ),
        (
            "/sandbox/create",
            json!({ "memory_bytes": -1 }),
            "memory_bytes",
        ),
        (
            "/sandbox/create",
            json!({ "memory_bytes": 1 }),
            "memory_bytes",
        ),
        (
            "/sandbox/create",
            json!({ "memory_bytes": 1e30 }),
            "memory_bytes",
        ),
        ("/sandbox/create", json!({ "cpus": 0 }), "cpus"),
        ("/sandbox/create", json!({ "cpus": "two" }), "cpus"),
        (
            "/sandbox/create",
            json!({ "disk_bytes": true }),
            "disk_bytes",
        ),
        ("/sandbox/create", json!({ "processes": 1.5 }), "processes"),
        (
            "/sandbox/create",
            json!({ "lease_seconds": 0 }),
            "lease_seconds",
        ),
        (
            "/sandbox/create",
            json!({ "idle_seconds": 0 }),
            "idle_seconds",
        ),
        ("/sandbox/create", json!({ "name": 7 }), "name"),
        ("/sandbox/create", json!({ "name": "a\nb" }), "name"),
        (
            "/sandbox/create",
            json!({ "name": "x".repeat(129) }),
            "name",
        ),
        ("/sandbox/create", json!({ "env": { "A": 1 } }), "env.A"),
        ("/sandbox/create", json!({ "env": { "A=B": "" } }), "env"),
        ("/sandbox/create", json!({ "mirror": 1 }), "mirror"),
        ("/sandbox/create", json!({ "network": "all" }), "network"),
        (&execute, json!({}), "code"),
        (&execute, json!({ "code": 1 }), "code"),
        (&execute, json!({ "code": null }), "code"),
        (
            &execute,
            json!({ "code": "", "timeout_seconds": "1" }),
            "timeout_seconds",
        ),
        (
            &execute,
            json!({ "code": "", "timeout_seconds": 0 }),
            "timeout_seconds",
        ),
        (
            &execute,
            json!({ "code": "", "timeout_seconds": -1 }),
            "timeout_seconds",
        ),
        (
            &execute,
            json!({ "code": "", "timeout_seconds": 1e9 }),
            "timeout_seconds",
        ),
        (&execute, json!({ "code": "", "env": [] }), "env"),
        (&execute, json!({ "code": "", "env": { "": "x" } }), "env"),
        (&execute, json!({ "code": "", "stream": "yes" }), "stream"),
        (&command, json!({}), "command"),
        (&command, json!({ "command": ["ls"] }), "command"),
        (&command, json!({ "command": "a\0b" }), "command"),
        (&command, json!({ "command": "true", "cwd": 1 }), "cwd"),
        (
            &command,
            json!({ "command": "true", "cwd": "no/such/directory" }),
            "cwd",
        ),
    ] {
        let answer = service.post_json(path, &body);
        assert_eq!(answer.status, 422, "{body}: {}", answer.text());
        answer.refused_field(field);
    }
    sandbox.assert_usable();
}

#[test]
fn unknown_keys_are_refused_by_name() {
    let service = Service::start();
    let sandbox = service.create();
    service
        .post_json("/sandbox/create", &json!({ "memory": 1 }))
        .refused_field("memory");
    service
        .post_json(
            &sandbox.path("execute"),
            &json!({ "code": "", "timeout": 1 }),
        )
        .refused_field("timeout");
    service
        .post_json(
            &sandbox.path("command"),
            &json!({ "command": "", "shell": 1 }),
        )
        .refused_field("shell");
}

#[test]
fn what_is_not_a_json_object_is_refused() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("execute");
    let deep = format!("{{\"code\": {}", "[".repeat(100_000));
    for body in [
        "",
        "{",
        "nope",
        "{\"code\": \"\"} x",
        "{\"code\": \"\\ud800\"",
        &deep,
    ] {
        let status = service
            .post(&path, "application/json", body.as_bytes())
            .status;
        assert!([400, 422].contains(&status), "{status}: {body:.20}");
    }
    for body in ["[\"print(1)\"]", "1", "\"x\"", "null"] {
        service
            .post(&path, "application/json", body.as_bytes())
            .refused(422, "invalid_body");
    }
}

#[test]
fn a_body_that_declares_ten_gigabytes_is_refused_at_once() {
    let service = Service::start();
    let sandbox = service.create();
    let before = service.process().rss_bytes();
    let boundary = "multipart/form-data; boundary=b";
    for (path, content_type, code) in [
        (
            "/sandbox/create".to_owned(),
            "application/json",
            "body_too_large",
        ),
        (
            sandbox.path("execute"),
            "application/json",
            "body_too_large",
        ),
        (sandbox.path("execute"), "text/plain", "code_too_large"),
        (
            sandbox.path("command"),
            "application/json",
            "body_too_large",
        ),
        (sandbox.path("upload"), boundary, "upload_too_large"),
    ] {
        let begun = Instant::now();
        let headers: &[_] = &[
            ("Content-Type", content_type),
            ("Content-Length", "10000000000"),
        ];
        // Not a byte of the body is sent.
        let request = Request {
            method: "POST",
            path: &path,
            headers,
            body: b"",
        };
        service.send(&request).refused(413, code);
        assert!(begun.elapsed() < AT_ONCE, "{path}: {:?}", begun.elapsed());
    }
    let growth = service.process().rss_bytes().saturating_sub(before);
    assert!(growth < GROWTH_BYTES, "{growth} bytes");
    sandbox.assert_usable();
}

#[test]
fn a_chunked_body_without_end_is_refused_without_being_kept() {
    let service = Service::with_config("server.max_body_bytes = 4194304");
    let sandbox = service.create();
    let before = service.process().rss_bytes();
    for (content_type, code) in [
        ("application/json", "body_too_large"),
        ("text/plain", "code_too_large"),
    ] {
        let path = sandbox.path("execute");
        let headers: &[_] = &[
            ("Content-Type", content_type),
            ("Transfer-Encoding", "chunked"),
        ];
        let request = Request {
            method: "POST",
            path: &path,
            headers,
            body: b"",
        };
        let mut stream = service.connect();
        stream
            .write_all(&http::head(service.address, &request))
            .expect("the head is taken");
        let chunk = [format!("{MIB:x}\r\n").as_bytes(), &vec![b' '; MIB], b"\r\n"].concat();
        // Many times the limit, unless the service has heard enough.
        let _ = (0..256).try_for_each(|_| stream.write_all(&chunk));
        Incoming::of(stream)
            .and_then(Incoming::finish)
            .expect("an answer")
            .refused(413, code);
    }
    let growth = service.process().rss_bytes().saturating_sub(before);
    assert!(growth < 3 * GROWTH_BYTES, "{growth} bytes");
    sandbox.assert_usable();
}

#[test]
fn creating_beyond_the_limit_of_live_sandboxes_is_refused() {
    let service = Service::with_config("service.max_sandboxes = 2");
    let (first, _second) = (service.create(), service.create());
    let refused = service.post_json("/sandbox/create", &json!({}));
    refused.refused(429, "too_many_sandboxes");
    let retry_after = refused
        .header("retry-after")
        .and_then(|v| v.parse::<u32>().ok());
    assert!(
        retry_after.is_some_and(|seconds| seconds >= 1),
        "{retry_after:?}"
    );
    first.close().ok();
    service.create().assert_usable();
}
