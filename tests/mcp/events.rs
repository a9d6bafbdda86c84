//! The transport of 2024-11-05, by hand.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{Answer, Incoming, Request};

/// A session: its stream, and where to post.
struct Session<'a> {
    service: &'a Service,
    stream: Incoming,
    place: String,
}

const KEYS: &str = "server.api_keys = ['a-key', 'another']";

#[test]
fn a_session_is_its_makers() {
    let service = Service::with_config(KEYS);
    let get = |key: &str| {
        service.begin(&Request {
            method: "GET",
            path: "/sse",
            headers: &[("X-API-Key", key)],
            body: b"",
        })
    };
    assert_eq!(get("wrong").status, 401);
    let mut stream = get("a-key");
    let (_, place) = event(&mut stream).expect("a first event");
    let post = |key: &str| {
        let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
        service.send(&Request {
            method: "POST",
            path: &place,
            headers: &[("X-API-Key", key), ("Content-Type", "application/json")],
            body: ping.as_bytes(),
        })
    };
    post("another").refused(404, "session_not_found");
    post("wrong").refused(401, "unauthorized");
    assert_eq!(post("a-key").status, 202);
    let (_, pong) = event(&mut stream).expect("an answer");
    assert!(pong.contains("\"result\""), "{pong}");
}

impl<'a> Session<'a> {
    #[track_caller]
    fn open(service: &'a Service) -> Self {
        let mut stream = service.begin(&Request {
            method: "GET",
            path: "/sse",
            headers: &[("Accept", "text/event-stream")],
            body: b"",
        });
        assert_eq!(stream.status, 200);
        let (name, place) = event(&mut stream).expect("a first event");
        assert_eq!(name, "endpoint");
        assert!(place.starts_with("/messages/?session_id="), "{place}");
        Self {
            service,
            stream,
            place,
        }
    }

    #[track_caller]
    fn begun(service: &'a Service) -> Self {
        let mut session = Self::open(service);
        let params = json!({
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": { "name": "by hand", "version": "1" },
        });
        let result = session.call(0, "initialize", &params)["result"].clone();
        assert_eq!(result["protocolVersion"], "2024-11-05", "{result}");
        let note = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(session.post(&note).status, 202);
        session
    }

    fn post(&self, message: &Value) -> Answer {
        self.service.post_json(&self.place, message)
    }

    #[track_caller]
    fn send(&self, id: u64, method: &str, params: &Value) {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answer = self.post(&message);
        assert_eq!((answer.status, answer.text().as_str()), (202, "Accepted"));
    }

    #[track_caller]
    fn answer(&mut self) -> Value {
        let (name, data) = event(&mut self.stream).expect("the stream goes on");
        assert_eq!(name, "message");
        serde_json::from_str(&data).expect("JSON")
    }

    #[track_caller]
    fn call(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(id, method, params);
        let answer = self.answer();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    #[track_caller]
    fn tool(&mut self, id: u64, name: &str, arguments: Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let answer = self.call(id, "tools/call", &params);
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        answer["result"]["structuredContent"].clone()
    }
}

/// The next event, `None` at the stream's end.
fn event(stream: &mut Incoming) -> Option<(String, String)> {
    let (mut name, mut data) = (String::new(), String::new());
    loop {
        let line = stream.line()?;
        let line = line.trim_end_matches('\n');
        if let Some(text) = line.strip_prefix("event: ") {
            text.clone_into(&mut name);
        } else if let Some(text) = line.strip_prefix("data: ") {
            text.clone_into(&mut data);
        } else if line.is_empty() && !name.is_empty() {
            return Some((name, data));
        } else {
            assert!(line.is_empty() || line == ": ping", "{line:?}");
        }
    }
}

#[test]
fn answers_come_on_the_stream() {
    let service = Service::start();
    let mut session = Session::begun(&service);
    let listed = session.call(1, "tools/list", &json!({}))["result"]["tools"].clone();
    let names: Vec<_> = listed
        .as_array()
        .expect("a list")
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert!(names.contains(&&json!("create_python_env")), "{names:?}");
    assert!(!names.contains(&&json!("create_sandbox")), "{names:?}");
    let made = session.tool(2, "create_python_env", json!({}));
    let id = made["container_id"].as_str().expect("an id");
    assert_eq!(service.sandbox(id).stdout("print(1 + 1)"), "2\n");
    // Longer than a keepalive: the pings are comments.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(session.call(3, "ping", &json!({}))["result"], json!({}));
}

#[test]
fn sessions_are_apart_and_end_with_their_streams() {
    let service = Service::start();
    let mut first = Session::begun(&service);
    let mut second = Session::begun(&service);
    assert_ne!(first.place, second.place);
    first.call(1, "ping", &json!({}));
    second.call(1, "ping", &json!({}));
    let place = first.place.clone();
    let ping = json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" });
    drop(first);
    let begun = Instant::now();
    loop {
        let answer = service.post_json(&place, &ping);
        if answer.status == 404 {
            answer.refused(404, "session_not_found");
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "the session goes on"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    second.call(3, "ping", &json!({}));
}

#[test]
fn a_client_that_hangs_up_interrupts_its_code() {
    let service = Service::start();
    let mut session = Session::begun(&service);
    let made = session.tool(1, "create_python_env", json!({}));
    let id = made["container_id"].as_str().expect("an id").to_owned();
    let arguments = json!({ "container_id": id, "code": "while True: pass" });
    let params = json!({ "name": "execute_python_code", "arguments": arguments });
    session.send(2, "tools/call", &params);
    let state = || service.get("/sandboxes").ok().json()[&id]["state"].clone();
    let until = |wanted: &str| {
        let begun = Instant::now();
        while state() != wanted {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it is not {wanted}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until("busy");
    // The control: with its client there, it goes on.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(state(), "busy");
    drop(session);
    until("idle");
}

#[test]
fn a_session_has_a_bounded_number_of_requests_under_way() {
    let service = Service::with_config("limits.queue = 100");
    let mut session = Session::begun(&service);
    let made = session.tool(1, "create_python_env", json!({}));
    let code = "import time; time.sleep(60)";
    let arguments = json!({ "container_id": made["container_id"], "code": code });
    let params = json!({ "name": "execute_python_code", "arguments": arguments });
    let request =
        |id: u64| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
    let taken = (10..200).take_while(|id| session.post(&request(*id)).status == 202);
    let taken = taken.count();
    session
        .post(&request(300))
        .refused(429, "too_many_requests");
    assert_eq!(taken, 32);
    // A request that is called off makes room: the answer of another comes.
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 10 } });
    assert_eq!(session.post(&cancel).status, 202);
    session.send(301, "ping", &json!({}));
    while session.answer()["id"] != 301 {}
}

#[test]
fn messages_are_checked_and_bounded() {
    let service = Service::with_config("server.max_body_bytes = 100000");
    let session = Session::begun(&service);
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let unknown = "/messages/?session_id=0123456789abcdef0123456789abcdef";
    service
        .post_json(unknown, &ping)
        .refused(404, "session_not_found");
    service
        .post_json("/messages/", &ping)
        .refused_field("session_id");
    for body in [
        "",
        "{",
        "[]",
        "{}",
        "1",
        "{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}",
    ] {
        let answer = service.post(&session.place, "application/json", body.as_bytes());
        answer.refused(400, "malformed_message");
    }
    let long = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": { "x": "x".repeat(100_000) } });
    session.post(&long).refused(413, "body_too_large");
    service
        .get(&session.place)
        .refused(405, "method_not_allowed");
    service
        .post_json("/sse", &ping)
        .refused(405, "method_not_allowed");
}

#[test]
fn the_end_of_the_service_ends_the_streams() {
    let mut service = Service::start();
    let mut stream = {
        let session = Session::begun(&service);
        session.stream
    };
    let begun = Instant::now();
    assert!(
        service.stop_with(Signal::TERM).success(),
        "{}",
        service.log()
    );
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "the stream held the service up"
    );
    assert_eq!(event(&mut stream), None);
}
