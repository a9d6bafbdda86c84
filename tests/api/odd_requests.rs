//! Requests that no proper client sends.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::Service;
use crate::fixture::http::Incoming;

/// A second of patience, and a machine full of tests.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// Sends raw bytes and gives the status of the answer, if one comes before the connection ends.
fn status_of(service: &Service, bytes: &[u8]) -> Option<u16> {
    let mut stream = service.connect();
    // A service that has heard enough may close while we speak.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    Incoming::of(stream).ok().map(|answer| answer.status)
}

#[test]
fn malformed_requests_are_refused_and_forgotten() {
    let service = Service::start();
    let sandbox = service.create();
    let execute = sandbox.path("execute");
    let long = "x".repeat(200_000);
    let many: String = (0..500).map(|n| format!("x-{n}: 1\r\n")).collect();
    let post =
        format!("POST {execute} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n");
    let corpus: Vec<Vec<u8>> = vec![
        b"\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\n\r\n".to_vec(),
        b"G\xffT /health HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes(),
        format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n").into_bytes(),
        format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").into_bytes(),
        format!("{post}Content-Length: -1\r\n\r\n1").into_bytes(),
        format!("{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\n12").into_bytes(),
        format!("{post}Content-Length: 99999999999999999999\r\n\r\n1").into_bytes(),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n1\r\n0\r\n\r\n").into_bytes(),
        format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n1").into_bytes(),
        format!("{post}Transfer-Encoding: identity, nonsense\r\n\r\n1").into_bytes(),
    ];
    for bytes in corpus {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(90)]).into_owned();
        let status = status_of(&service, &bytes);
        assert!(
            status.is_none_or(|s| (400..500).contains(&s) || s == 501),
            "{status:?}: {shown}"
        );
    }
    service.assert_healthy();
}

#[test]
fn a_request_in_the_body_of_another_is_not_a_request() {
    let service = Service::start();
    let sandbox = service.create();
    // Both lengths given: whichever counts, the rest of the connection may not be read as another.
    let close = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        sandbox.path("close")
    );
    let smuggled = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{close}",
        sandbox.path("execute"),
        5 + close.len(),
    );
    let mut stream = service.connect();
    stream.write_all(smuggled.as_bytes()).expect("sent");
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut all = String::new();
    let _ = stream.read_to_string(&mut all);
    assert!(all.matches("HTTP/1.1 ").count() <= 1, "{all}");
    sandbox.assert_usable();
}

#[test]
fn slow_requests_are_given_up() {
    let service =
        Service::with_config("server.header_timeout_seconds = 1\nserver.body_timeout_seconds = 1");
    let sandbox = service.create();
    let half_a_head = "POST /sandbox/create HTTP/1.1\r\nHost: loc".to_owned();
    let half_a_body = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nprint(",
        sandbox.path("execute")
    );
    let half_an_upload = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n--b\r\nContent-Disp",
        sandbox.path("upload")
    );
    for (request, statuses) in [
        (half_a_head, &[408, 0][..]),
        (half_a_body, &[400]),
        (half_an_upload, &[400]),
    ] {
        let begun = Instant::now();
        let mut stream = service.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let status = Incoming::of(stream).map_or(0, |answer| answer.status);
        assert!(statuses.contains(&status), "{status}: {request}");
        assert!(
            begun.elapsed() < GIVEN_UP,
            "{:?}: {request}",
            begun.elapsed()
        );
    }
    assert_eq!(sandbox.files(), []);
    sandbox.assert_usable();
}

#[test]
fn connections_beyond_the_limit_wait_their_turn() {
    let service =
        Service::with_config("server.max_connections = 8\nserver.header_timeout_seconds = 2");
    let idle: Vec<_> = (0..8).map(|_| service.connect()).collect();
    // Served once the idle ones are given up.
    assert_eq!(
        service.get("/health").ok().json(),
        json!({ "status": "healthy" })
    );
    drop(idle);
    service.assert_healthy();
}
