//! Pages and names: who may call whom.

use serde_json::json;

use super::{ECHO, Server};
use crate::fixture::Service;
use crate::fixture::http::Request;

#[test]
fn pages_from_inside_have_no_power_over_the_service() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    let harmful = "/headers?Set-Cookie=a%3Db%3BDomain%3Dlocalhost&Clear-Site-Data=%22*%22\
        &Service-Worker-Allowed=%2F&Location=%2F..%2Fsandboxes&Access-Control-Allow-Origin=*";
    let by_path = server.get(harmful);
    let policy = by_path.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("sandbox") && !policy.contains("same-origin"));
    for gone in [
        "set-cookie",
        "clear-site-data",
        "service-worker-allowed",
        "access-control-allow-origin",
    ] {
        assert_eq!(by_path.header(gone), None, "{gone}");
    }
    assert_eq!(
        by_path.header("location"),
        Some(&*server.path("/sandboxes"))
    );
    assert_eq!(by_path.header("x-content-type-options"), Some("nosniff"));
    let by_name = server.get_by_name(harmful, &[]);
    assert_eq!(by_name.header("content-security-policy"), None);
    assert_eq!(by_name.header("set-cookie"), Some("a=b"));
    assert_eq!(by_name.header("clear-site-data"), None);
    assert_eq!(by_name.header("access-control-allow-origin"), Some("*"));
    assert_eq!(by_name.header("location"), Some("/sandboxes"));
    assert_eq!(by_name.header("x-content-type-options"), None);

    let from = |origin: &str, path: &str| {
        service.send(&Request {
            method: "GET",
            path,
            headers: &[("Origin", origin)],
            body: b"",
        })
    };
    // A page that was served by path calls its own server, and nothing else.
    let own = from("null", &server.path("/")).ok();
    assert_eq!(own.header("access-control-allow-origin"), Some("null"));
    for path in [
        "/sandboxes",
        "/mcp",
        &sandbox.path("files"),
        &sandbox.path("ports"),
    ] {
        from("null", path).refused(403, "origin_not_allowed");
        let named = format!("http://{}", server.host());
        from(&named, path).refused(403, "origin_not_allowed");
    }
    let evil = from("https://evil.example", &server.path("/"));
    evil.refused(403, "origin_not_allowed");
    let preflight = service.send(&Request {
        method: "OPTIONS",
        path: &server.path("/"),
        headers: &[
            ("Origin", "null"),
            ("Access-Control-Request-Method", "PUT"),
            ("Access-Control-Request-Headers", "x-own"),
        ],
        body: b"",
    });
    let preflight = preflight.ok();
    assert_eq!(
        preflight.header("access-control-allow-methods"),
        Some("PUT")
    );
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("x-own")
    );
    let worker = service.send(&Request {
        method: "GET",
        path: &server.path("/"),
        headers: &[("Service-Worker", "script")],
        body: b"",
    });
    worker.refused(403, "no_service_worker");

    // By name, its own pages and those of the same sandbox.
    let (own, sibling) = (
        format!("http://{}", server.host()),
        format!("http://{}", server.host().replacen("8000", "3000", 1)),
    );
    for (origin, inner) in [
        (own, "http://localhost:8000"),
        (sibling, "http://localhost:3000"),
    ] {
        let seen = server.get_by_name("/", &[("Origin", &origin)]).ok().json();
        assert_eq!(seen["headers"]["origin"], json!([inner]));
    }
    for origin in ["null", "https://evil.example", "http://evil.localhost"] {
        let answer = server.get_by_name("/", &[("Origin", origin)]);
        answer.refused(403, "origin_not_allowed");
    }
}

#[test]
fn no_route_of_the_service_is_below_a_servers_name() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    for path in ["/health", "/sandboxes", "/mcp", "/sandbox/create"] {
        let seen = server.get_by_name(path, &[]).ok().json();
        assert_eq!(seen["line"], format!("GET {path} HTTP/1.1"));
    }
    let id = &sandbox.id;
    for host in [
        format!("8000-{id}.localhost."),
        format!("8000-{id}.localhost.evil.example"),
        format!("8000-{id}x.localhost"),
        format!("08000-{id}.localhost"),
        format!("x.8000-{id}.localhost"),
        format!("{id}.localhost"),
        format!("8000-{id}.evillocalhost"),
    ] {
        let request = Request {
            method: "GET",
            path: "/health",
            headers: &[("Host", &host)],
            body: b"",
        };
        service.send(&request).refused(403, "host_not_allowed");
    }
    let crossed = |path: &str, host: &str| {
        service.send(&Request {
            method: "GET",
            path,
            headers: &[("Host", host)],
            body: b"",
        })
    };
    let (absolute, host) = (format!("http://{}/", server.host()), server.host());
    crossed(&absolute, "localhost").refused(403, "host_not_allowed");
    crossed("http://localhost/sandboxes", &host).refused(403, "host_not_allowed");
    crossed(&absolute, &host).ok();
    let unknown = format!("8000-{}.localhost", "0".repeat(26));
    crossed("/", &unknown).refused(404, "sandbox_not_found");
}
