//! Servers inside, from outside: by path and by name.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::wait_until;
use crate::fixture::http::{Answer, Incoming, Request};
use crate::fixture::sandbox::Sandbox;

mod browser;
mod keys;
mod origins;
mod streams;

/// Longest that a server may take to listen.
const SOON: Duration = Duration::from_secs(20);
/// Of every request: what arrived, as JSON.
const ECHO: &str = include_str!("ports/echo.py");

/// A server in a sandbox.
pub(crate) struct Server<'a> {
    sandbox: &'a Sandbox<'a>,
    port: u16,
}

impl<'a> Server<'a> {
    /// Runs Python code that listens on a port, and waits until it does.
    #[track_caller]
    pub(crate) fn python(sandbox: &'a Sandbox<'a>, port: u16, code: &str) -> Self {
        let file = format!("server-{port}.py");
        sandbox.upload(&file, code.as_bytes()).ok();
        Self::command(sandbox, port, &format!("exec python3 {file}"))
    }

    #[track_caller]
    pub(crate) fn command(sandbox: &'a Sandbox<'a>, port: u16, command: &str) -> Self {
        let process = json!({ "command": command });
        sandbox
            .service
            .post_json(&sandbox.path("processes"), &process)
            .ok();
        let server = Self { sandbox, port };
        wait_until("a server listens", SOON, || {
            ports(sandbox).iter().any(|found| found["port"] == port)
        });
        server
    }

    pub(crate) fn path(&self, path: &str) -> String {
        self.sandbox.path(&format!("port/{}{path}", self.port))
    }

    pub(crate) fn host(&self) -> String {
        let outer = self.sandbox.service.address.port();
        format!("{}-{}.localhost:{outer}", self.port, self.sandbox.id)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.sandbox.service.get(&self.path(path))
    }

    #[track_caller]
    pub(crate) fn begin(&self, path: &str) -> Incoming {
        let path = self.path(path);
        self.sandbox.service.begin(&Request {
            method: "GET",
            path: &path,
            ..Request::default()
        })
    }

    #[track_caller]
    pub(crate) fn send_by_name(&self, request: &Request<'_>) -> Answer {
        let host = self.host();
        let headers = [request.headers, &[("Host", host.as_str())]].concat();
        self.sandbox.service.send(&Request {
            headers: &headers,
            ..request.clone()
        })
    }

    #[track_caller]
    pub(crate) fn get_by_name(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send_by_name(&Request {
            method: "GET",
            path,
            headers,
            body: b"",
        })
    }
}

/// What `GET …/ports` tells.
#[track_caller]
pub(crate) fn ports(sandbox: &Sandbox<'_>) -> Vec<Value> {
    let ports = sandbox.service.get(&sandbox.path("ports")).ok().json();
    ports.as_array().expect("a list").clone()
}

#[test]
fn listening_ports_are_listed_and_reached() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(ports(&sandbox), Vec::<Value>::new());
    sandbox.upload("index.html", b"<p>hello</p>").ok();
    let serve = |port, bind| format!("exec python3 -m http.server {port} --bind {bind}");
    let all = [
        (8003, "::1", "::1"),
        (8000, "127.0.0.1", "127.0.0.1"),
        (8001, "0.0.0.0", "0.0.0.0"),
        (8002, "::", "::"),
    ];
    for (port, bind, address) in all {
        let server = Server::command(&sandbox, port, &serve(port, bind));
        assert_eq!(server.get("/").ok().text(), "<p>hello</p>");
        let by_name = server.get_by_name("/index.html", &[]).ok();
        assert_eq!(by_name.text(), "<p>hello</p>");
        let listed = ports(&sandbox);
        let id = &sandbox.id;
        let expected = json!({
            "port": port,
            "address": address,
            "url": format!("/sandbox/{id}/port/{port}/"),
            "host": format!("{port}-{id}.localhost"),
        });
        assert!(listed.contains(&expected), "{listed:?}");
    }
    let numbers: Vec<_> = ports(&sandbox).iter().map(|p| p["port"].clone()).collect();
    assert_eq!(numbers, [8000, 8001, 8002, 8003]);
    sandbox.close().ok();
    let gone = service.get(&sandbox.path("ports"));
    gone.refused(404, "sandbox_not_found");
    let gone = service.get(&sandbox.path("port/8000/"));
    gone.refused(404, "sandbox_not_found");
}

#[test]
fn a_port_without_a_server_is_refused_by_name_and_by_path() {
    let service = Service::start();
    let sandbox = service.create();
    let closed = Server {
        sandbox: &sandbox,
        port: 8000,
    };
    let refused = closed.get("/").refused(502, "port_closed");
    assert!(
        refused["detail"]
            .as_str()
            .is_some_and(|d| d.contains("8000"))
    );
    closed.get_by_name("/", &[]).refused(502, "port_closed");
    for wrong in ["0", "65536", "-1", "x", "08000", "+80", "3128", "8%3000"] {
        let answer = service.get(&sandbox.path(&format!("port/{wrong}/")));
        answer.refused_field("port");
    }
    // Another sandbox's loopback interface is another one.
    let neighbour = service.create();
    let _server = Server::command(&neighbour, 8000, "exec python3 -m http.server 8000");
    closed.get("/").refused(502, "port_closed");
}

#[test]
fn requests_arrive_as_they_were_sent() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    let body: Vec<u8> = (0..=255).collect();
    for target in ["/", "//a//", "/a/../b/./c?d=%2F&&e", "/%E4%00;x=1?"] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "MADEUP"] {
            let path = server.path(target);
            let headers: &[_] = &[("Content-Length", "256"), ("X-Own", "caf\u{e9}")];
            let mut request = Request {
                method,
                path: &path,
                headers,
                body: &body,
            };
            let by_path = service.send(&request).ok().json();
            request.path = target;
            let by_name = server.send_by_name(&request).ok().json();
            for seen in [by_path, by_name] {
                assert_eq!(seen["line"], format!("{method} {target} HTTP/1.1"));
                assert_eq!(seen["body"], json!(body));
                assert_eq!(seen["headers"]["host"], json!(["localhost:8000"]));
                assert_eq!(seen["headers"]["x-forwarded-for"], json!(["127.0.0.1"]));
            }
        }
    }
    let path = server.path("");
    let headers: &[_] = &[("Transfer-Encoding", "chunked")];
    for target in [&format!("{path}/x"), &format!("{path}/")] {
        let chunked = Request {
            method: "GET",
            path: target,
            headers,
            body: b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        };
        let seen = service.send(&chunked).ok().json();
        assert_eq!(seen["body"], json!(b"abcde"), "of a GET, too");
    }
    let head = Request {
        method: "HEAD",
        path: &format!("{path}/"),
        ..Request::default()
    };
    let head = service.begin(&head);
    assert_eq!(head.status, 200);
}

#[test]
fn a_path_without_its_slash_is_sent_there() {
    let service = Service::start();
    let sandbox = service.create();
    let answer = service.get(&sandbox.path("port/8000?a=b"));
    assert_eq!(answer.status, 308);
    let expected = sandbox.path("port/8000/?a=b");
    assert_eq!(answer.header("location"), Some(&*expected));
    let id = "0".repeat(26);
    let unknown = service.get(&format!("/sandbox/{id}/port/8000"));
    unknown.refused(404, "sandbox_not_found");
}

#[test]
fn requests_are_use_of_the_sandbox() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "idle_seconds": 3 }));
    let server = Server::python(&sandbox, 8000, ECHO);
    // One that is open all the time.
    let mut open = server.begin("/events?n=12&pause=0.5");
    while open.line().is_some() {}
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        server.get("/").ok();
        std::thread::sleep(Duration::from_secs(1));
    }
    wait_until("the sandbox ends when nobody asks", SOON, || {
        service.get("/sandboxes").ok().json() == json!({})
    });
}

#[test]
fn closing_the_sandbox_cuts_connections() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    let mut open = server.begin("/events?n=1000&pause=0.1");
    assert!(open.line().is_some());
    let mut tunnel = upgraded(&server);
    let began = Instant::now();
    sandbox.close().ok();
    assert!(open.finish().is_err(), "the answer has no end");
    let mut rest = Vec::new();
    let _ = tunnel.read_to_end(&mut rest);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    service.assert_healthy();
}

#[test]
fn a_sandbox_has_so_many_connections_at_once() {
    let service = Service::with_config("limits.port_connections = 2");
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    let mut one = server.begin("/events?n=1000&pause=0.05");
    let mut two = server.begin("/events?n=1000&pause=0.05");
    assert!(one.line().is_some() && two.line().is_some(), "both at once");
    let busy = server.get("/");
    let refused = busy.refused(429, "too_many_port_connections");
    assert!(
        refused["detail"]
            .as_str()
            .is_some_and(|d| d.contains("limits.port_connections"))
    );
    assert!(busy.header("retry-after").is_some());
    // A client that goes away gives its place back, and the server sees it go.
    drop(one);
    wait_until("there is room again", SOON, || {
        server.get("/").status == 200
    });
    let gone = || server.get("/gone").ok().json()["gone"].as_u64();
    wait_until("the server has seen it", SOON, || gone() >= Some(1));
    assert!(two.line().is_some());
}

/// A connection that changed to a protocol of the server's own, which says everything again.
#[track_caller]
fn upgraded(server: &Server<'_>) -> TcpStream {
    let service = server.sandbox.service;
    let mut stream = service.connect();
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: parrot\r\n\r\n",
        server.path("/parrot"),
        service.address
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let answer = Incoming::of(stream.try_clone().expect("a descriptor")).expect("an answer");
    assert_eq!(answer.status, 101);
    stream
}

#[test]
fn any_protocol_may_be_changed_to() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    let mut stream = upgraded(&server);
    for said in [&b"\x00\xff"[..], &[b'x'; 100_000]] {
        let mut writer = stream.try_clone().expect("a descriptor");
        let bytes = said.to_vec();
        let writing = std::thread::spawn(move || writer.write_all(&bytes));
        let mut heard = vec![0; said.len()];
        stream.read_exact(&mut heard).expect("all comes back");
        assert_eq!(heard, said);
        writing.join().expect("a thread").expect("sent");
    }
    // Our end first: the server sees it and ends.
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("an end");
    assert_eq!(rest, b"bye");
    let plain = server.get("/parrot");
    plain.refused(502, "bad_answer");
}
