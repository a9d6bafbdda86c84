//! Both ways, as it comes, in no more memory than before.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use tungstenite::Message;

use super::{ECHO, Server};
use crate::fixture::Service;
use crate::fixture::http::{Incoming, head};

const BYTES: usize = 100 << 20;
/// Of the service, while 100 MB pass.
const GROWTH: u64 = 24 << 20;

#[test]
fn big_bodies_pass_both_ways_and_are_not_kept() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    server.get("/size?n=1000").ok();
    let before = service.process().rss_bytes();
    // A client that takes its time at first: the server waits for it.
    let slow = server.begin(&format!("/size?n={BYTES}"));
    std::thread::sleep(Duration::from_millis(500));
    let grown = |what: &str| {
        let growth = service.process().rss_bytes().saturating_sub(before);
        assert!(growth < GROWTH, "{what}: {growth} bytes");
    };
    grown("nobody reads");
    assert_eq!(slow.finish().expect("an end").body.len(), BYTES);
    grown("downloaded");
    let path = server.path("/count");
    let length = BYTES.to_string();
    let request = crate::fixture::http::Request {
        method: "PUT",
        path: &path,
        headers: &[("Content-Length", &length)],
        body: b"",
    };
    let mut stream = service.connect();
    stream
        .write_all(&head(service.address, &request))
        .expect("sent");
    let block = vec![b'x'; 1 << 20];
    for _ in 0..BYTES >> 20 {
        stream.write_all(&block).expect("sent");
    }
    let answer = Incoming::of(stream)
        .expect("an answer")
        .finish()
        .expect("an end");
    assert_eq!(answer.ok().json()["bytes"], BYTES);
    grown("uploaded");
}

#[test]
fn events_arrive_as_they_happen_and_requests_run_side_by_side() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, ECHO);
    let begun = Instant::now();
    let mut events = server.begin("/events?n=4&pause=0.7");
    let first = events.line().expect("an event");
    assert!(first.starts_with("data: 0"), "{first}");
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    // Meanwhile.
    server.get("/").ok();
    let mut lines = 1;
    while events.line().is_some() {
        lines += 1;
    }
    assert_eq!(lines, 8, "an empty line after each");
    assert!(begun.elapsed() > Duration::from_millis(2000));
}

#[test]
fn websockets_reach_a_server_inside() {
    let service = Service::start();
    let sandbox = service.create();
    let server = Server::python(&sandbox, 8000, include_str!("websocket.py"));
    for (path, host) in [
        (server.path("/socket?x=1"), service.address.to_string()),
        ("/socket?x=1".into(), server.host()),
    ] {
        let url = format!("ws://{host}{path}");
        let (mut socket, answer) =
            tungstenite::client(url, service.connect()).expect("the protocol is changed");
        assert_eq!(answer.headers()["x-path"], "/socket?x=1");
        for text in ["hello", "\u{e9}\u{1f600}"] {
            socket.send(Message::Text(text.into())).expect("sent");
            assert_eq!(socket.read().expect("a frame"), Message::Text(text.into()));
        }
        let large: Vec<u8> = (0..200_000).map(|n| n as u8).collect();
        socket
            .send(Message::Binary(large.clone().into()))
            .expect("sent");
        assert_eq!(
            socket.read().expect("a frame"),
            Message::Binary(large.into())
        );
        // The server ends it.
        socket.send(Message::Text("end".into())).expect("sent");
        let mut rest = Vec::new();
        let _ = socket.get_mut().read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
}
