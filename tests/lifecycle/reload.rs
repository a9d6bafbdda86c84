//! SIGHUP: what may change does, what may not is named, and a mistake changes nothing.

use serde_json::{Value, json};

use crate::fixture::http::{Answer, Request};
use crate::fixture::{Launch, Service};

const READ: &str = "the configuration was read again";
const KEPT: &str = "the configuration stays as it was";

fn ask(service: &Service, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    service.send(&Request {
        method,
        path,
        headers: &[("X-API-Key", key), ("Content-Type", "application/json")],
        body: body.to_string().as_bytes(),
    })
}

fn keys(keys: &[(&str, &str)], more: &str) -> String {
    let entry = |(name, key): &(&str, &str)| format!("{{ name = '{name}', key = '{key}' }}");
    let list: Vec<_> = keys.iter().map(entry).collect();
    format!("server.api_keys = [{}]\n{more}", list.join(", "))
}

#[test]
fn keys_come_and_go_and_requests_under_way_go_on() {
    let service = Service::with_config(&keys(&[("one", "key-of-one"), ("two", "key-of-two")], ""));
    let create = |key: &str| {
        let created = ask(&service, key, "POST", "/sandbox/create", &json!({}));
        created.ok().json()["sandbox_id"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let list = |key: &str| ask(&service, key, "GET", "/sandboxes", &Value::Null);
    let (first, second) = (create("key-of-one"), create("key-of-two"));
    // Something runs while the key is taken away.
    let code = json!({ "code": "import time\nprint('begun', flush=True)\ntime.sleep(3)\nprint('done')", "stream": true });
    let body = code.to_string();
    let mut running = service.begin(&Request {
        method: "POST",
        path: &format!("/sandbox/{first}/execute"),
        headers: &[
            ("X-API-Key", "key-of-one"),
            ("Content-Type", "application/json"),
        ],
        body: body.as_bytes(),
    });
    while running.event().expect("an event")["type"] != "stdout" {}
    service.reload(
        &keys(&[("two", "key-of-two"), ("three", "key-of-three")], ""),
        READ,
    );
    list("key-of-one").refused(401, "unauthorized");
    assert!(list("key-of-two").ok().json()[&second].is_object());
    assert_eq!(list("key-of-three").ok().json(), json!({}));
    let rest = running.finish().expect("the answer goes on to its end");
    assert!(rest.text().contains("done"), "{}", rest.text());
    // What the removed key has made stays, and another key of that name finds it again.
    service.reload(&keys(&[("one", "another-key")], ""), READ);
    list("key-of-one").refused(401, "unauthorized");
    assert!(list("another-key").ok().json()[&first].is_object());
    assert!(!service.log().contains("key-of-one"));
}

#[test]
fn what_has_no_end_of_its_own_ends_with_its_key() {
    let service = Service::with_config(&keys(&[("one", "key-of-one"), ("two", "key-of-two")], ""));
    let watch = |key: &str| {
        let created = ask(&service, key, "POST", "/sandbox/create", &json!({}));
        let created = created.ok().json();
        let id = created["sandbox_id"].as_str().expect("an id");
        let mut events = service.begin(&Request {
            method: "GET",
            path: &format!("/sandbox/{id}/files/watch"),
            headers: &[("X-API-Key", key)],
            body: b"",
        });
        assert_eq!(events.event().expect("a beginning")["event"], "watching");
        events
    };
    let (one, mut two) = (watch("key-of-one"), watch("key-of-two"));
    service.reload(&keys(&[("two", "key-of-two")], ""), READ);
    one.finish().expect("an orderly end");
    // The negative control: what was opened with a key that stays goes on.
    assert_eq!(two.event().expect("another event")["event"], "keepalive");
    // A file that is half written has no keys, and does not open the service to everyone.
    service.reload("", KEPT);
    let list = |key: &str| ask(&service, key, "GET", "/sandboxes", &Value::Null);
    list("key-of-one").refused(401, "unauthorized");
    list("key-of-two").ok();
}

#[test]
fn a_key_without_a_name_does_not_inherit_from_the_one_that_had_its_place() {
    let service = Service::with_config("server.api_keys = ['first-key', 'second-key']");
    let created = ask(&service, "first-key", "POST", "/sandbox/create", &json!({}));
    let id = created.ok().json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    service.reload("server.api_keys = ['second-key', 'first-key']", READ);
    let list = |key: &str| {
        ask(&service, key, "GET", "/sandboxes", &Value::Null)
            .ok()
            .json()
    };
    assert_eq!(list("second-key"), json!({}), "it is key-1 now");
    assert_eq!(list("first-key"), json!({}), "it is key-2 now");
    // The negative control: in its old place it is the same again.
    service.reload("server.api_keys = ['first-key']", READ);
    assert!(list("first-key")[&id].is_object());
}

#[test]
fn hosts_origins_and_defaults_of_sandboxes_change_and_an_address_does_not() {
    let service = Service::with_config("limits.max_lease_seconds = 100000");
    let from = |name: &str, value: &str| {
        service.send(&Request {
            method: "GET",
            path: "/sandboxes",
            headers: &[(name, value)],
            body: b"",
        })
    };
    let (host, origin) = (("Host", "box.example"), ("Origin", "https://app.example"));
    from(host.0, host.1).refused(403, "host_not_allowed");
    from(origin.0, origin.1).refused(403, "origin_not_allowed");
    let old = service.create();
    let policy = |sandbox: &crate::fixture::sandbox::Sandbox<'_>| {
        service.get(&sandbox.path("network")).ok().json()["network"].clone()
    };
    assert_eq!(policy(&old), "none");
    service.reload(
        "server.allowed_hosts = ['box.example']\nserver.allowed_origins = ['https://app.example']\n\
         server.listen = '127.0.0.1:1'\nserver.max_connections = 1\nlimits.max_lease_seconds = 100\n\
         limits.lease_seconds = 50\nnetwork.default = { allow = ['a.example'] }\n\
         service.max_sandboxes = 2",
        READ,
    );
    from(host.0, host.1).ok();
    from(origin.0, origin.1).ok();
    let log = service.log();
    assert!(
        log.contains("server.max_connections has changed, which needs a restart"),
        "{log}"
    );
    assert!(log.contains("server.allowed_hosts"), "{log}");
    assert_eq!(policy(&old), "none");
    let new = service.create();
    assert_eq!(policy(&new)["allow"], json!(["a.example"]));
    let wish = json!({ "lease_seconds": 101 });
    for path in ["/sandbox/create", &old.path("renew")] {
        service
            .post_json(path, &wish)
            .refused_field("lease_seconds");
    }
    service
        .post_json("/sandbox/create", &json!({}))
        .refused(429, "too_many_sandboxes");
    old.assert_usable();
}

#[test]
fn a_mistake_changes_nothing() {
    let right = keys(&[("one", "key-of-one")], "");
    let service = Service::launch(&Launch {
        config: &right,
        args: &["--host", "0.0.0.0"],
        ..Launch::default()
    });
    let port = service.address.port();
    let request = |path: &str| {
        let head = http_head(path, port);
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        std::io::Write::write_all(&mut stream, head.as_bytes()).expect("sent");
        crate::fixture::http::Incoming::of(stream)
            .expect("an answer")
            .status
    };
    for (wrong, named) in [
        ("bogus = 1", "bogus"),
        ("server.api_keys = ['", "line"),
        // Nobody would be asked for a key any more.
        ("", "without keys"),
        ("limits.lease_seconds = 0", "limits.lease_seconds"),
        ("logging.file = '/proc/none'", "logging.file"),
    ] {
        let config = match wrong {
            "" | "server.api_keys = ['" => wrong.to_owned(),
            _ => format!("{right}\n{wrong}"),
        };
        service.reload(&config, KEPT);
        let log = service.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(log.contains(named), "{wrong}: {last}");
        assert_eq!(request("/sandboxes"), 200, "{wrong}");
    }
    service.reload(&right, READ);
    assert_eq!(request("/sandboxes"), 200);
}

fn http_head(path: &str, port: u16) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-API-Key: key-of-one\r\n\
         Connection: close\r\n\r\n"
    )
}
