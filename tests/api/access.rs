//! Who may talk to the port.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;

use crate::fixture::http::{self, Request};
use crate::fixture::program::run;
use crate::fixture::{Launch, SANDCELL, Service, mirrors_dir, temp_dir};

fn with_headers(service: &Service, headers: &[(&str, &str)]) -> http::Answer {
    service.send(&Request {
        method: "GET",
        path: "/sandboxes",
        headers,
        body: b"",
    })
}

#[test]
fn only_hosts_of_ours_are_answered() {
    let service =
        Service::with_config("server.allowed_hosts = ['sandbox.example', 'other.example:8443']");
    let port = service.address.port();
    for host in [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "LOCALHOST",
        &format!("localhost:{port}"),
        "sandbox.example",
        "sandbox.example:99",
        "other.example:8443",
        "127.8.9.1",
    ] {
        with_headers(&service, &[("Host", host)]).ok();
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "localhost@evil.example",
        "evil.example#localhost",
        "sandbox.example.evil.example",
        "other.example",
        "other.example:80",
        "2130706433",
        "0x7f.1",
        "127.1",
        "localhost.",
        "8.8.8.8",
        "[::2]",
        "localhost:",
        "a b",
    ] {
        with_headers(&service, &[("Host", host)]).refused(403, "host_not_allowed");
    }
    with_headers(&service, &[("Host", "localhost"), ("Host", "evil.example")])
        .refused(400, "bad_host");
    let absolute = Request {
        method: "GET",
        path: "http://evil.example/sandboxes",
        ..Request::default()
    };
    service.send(&absolute).refused(403, "host_not_allowed");
}

#[test]
fn pages_of_other_origins_may_not_call() {
    let service = Service::with_config("server.allowed_origins = ['https://app.example']");
    for origin in [
        "http://localhost:3000",
        "http://127.0.0.1",
        "https://[::1]:8443",
        "https://app.example",
    ] {
        let answer = with_headers(&service, &[("Origin", origin)]).ok();
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
    }
    for origin in [
        "https://evil.example",
        "null",
        "https://app.example.evil.example",
        "http://app.example",
        "https://localhost.evil.example",
        "file://",
        "http://localhost@evil.example",
        "x",
    ] {
        with_headers(&service, &[("Origin", origin)]).refused(403, "origin_not_allowed");
    }
    let create = Request {
        method: "POST",
        path: "/sandbox/create",
        headers: &[("Origin", "https://evil.example")],
        body: b"",
    };
    service.send(&create).refused(403, "origin_not_allowed");
    assert_eq!(
        service.get("/sandboxes").ok().json(),
        json!({}),
        "nothing was created"
    );
}

#[test]
fn an_address_that_others_reach_needs_keys() {
    let dir = temp_dir();
    let serve = run(
        std::process::Command::new(SANDCELL)
            .args(["serve", "--host", "0.0.0.0", "--port", "0", "--data-dir"])
            .arg(dir.path())
            .arg("--mirrors-dir")
            .arg(mirrors_dir()),
        std::time::Duration::from_secs(20),
    );
    assert_eq!(serve.code, Some(1), "{serve:?}");
    assert!(serve.stderr.contains("without keys"), "{}", serve.stderr);
}

#[test]
fn keys_are_asked_for_on_every_route_but_health() {
    let mut service = Service::launch(&Launch {
        config: "server.api_keys = ['first-key', 'second-key']",
        args: &["--host", "0.0.0.0"],
        ..Launch::default()
    });
    service.address = SocketAddr::from((Ipv4Addr::LOCALHOST, service.address.port()));
    service.get("/health").ok();
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "Bearer ")],
        &[("Authorization", "Basic first-key")],
        &[("X-API-Key", "")],
        &[("X-API-Key", "first-key2")],
    ] {
        let answer = with_headers(&service, headers);
        answer.refused(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        for path in ["/sandbox/create", "/sandbox/x/execute", "/mcp"] {
            let request = Request {
                method: "POST",
                path,
                headers,
                body: b"",
            };
            service.send(&request).refused(401, "unauthorized");
        }
    }
    for headers in [
        &[("Authorization", "Bearer first-key")][..],
        &[("authorization", "bearer second-key")],
        &[("X-API-Key", "second-key")],
    ] {
        with_headers(&service, headers).ok();
    }
}
