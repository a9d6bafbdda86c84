//! WebSockets to processes.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket};

use super::{Process, SOON, start, start_json};
use crate::fixture::Service;
use crate::fixture::host::{processes_of, wait_until};
use crate::fixture::http::Request;

impl Process<'_> {
    /// A WebSocket to it.
    fn attach(&self, offset: u64) -> WebSocket<TcpStream> {
        let stream = self.sandbox.service.connect();
        let address = self.sandbox.service.address;
        let path = self.sandbox.path(&self.verb("/attach"));
        let url = format!("ws://{address}{path}?offset={offset}");
        tungstenite::client(url, stream)
            .expect("the connection is taken over")
            .0
    }
}

/// Output bytes of a WebSocket until they hold a text or the process ends; and the last frame.
#[track_caller]
fn read_until(socket: &mut WebSocket<TcpStream>, text: &str) -> (Vec<u8>, Option<Value>) {
    let mut bytes = Vec::new();
    loop {
        match socket.read().expect("a frame") {
            Message::Binary(more) => bytes.extend_from_slice(&more),
            Message::Text(frame) => {
                let frame: Value = serde_json::from_str(frame.as_str()).expect("JSON");
                if frame["type"] != "output" {
                    return (bytes, Some(frame));
                }
                assert_eq!(frame["lost_bytes"], 0, "{frame}");
            }
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
        if !text.is_empty() && String::from_utf8_lossy(&bytes).contains(text) {
            return (bytes, None);
        }
    }
}

#[test]
fn a_websocket_carries_both_ways_and_loses_nothing_over_a_reconnect() {
    let service = Service::start();
    let sandbox = service.create();
    let process = start(
        &sandbox,
        "for i in $(seq 20000); do echo line-$i; done; echo to-stderr >&2; cat; echo over",
    );
    let mut all = Vec::new();
    let mut parts = 0;
    // Away in the middle, again and again, at any byte.
    while !String::from_utf8_lossy(&all).contains("to-stderr") {
        let mut socket = process.attach(all.len() as u64);
        let (more, _) = read_until(&mut socket, "\n");
        assert!(!more.is_empty());
        all.extend(more);
        parts += 1;
        drop(socket);
        assert_eq!(process.info()["state"], "running", "it outlives its client");
    }
    let mut socket = process.attach(all.len() as u64);
    socket
        .send(Message::Binary(b"\x00\xffraw\n".to_vec().into()))
        .expect("sent");
    let (more, _) = read_until(&mut socket, "raw");
    assert_eq!(more, b"\x00\xffraw\n");
    all.extend(more);
    socket
        .send(Message::Text(
            json!({ "type": "close_stdin" }).to_string().into(),
        ))
        .expect("sent");
    let (more, last) = read_until(&mut socket, "");
    all.extend(more);
    let last = last.expect("the end");
    assert_eq!(
        (&last["type"], &last["exit_code"], &last["signal"]),
        (&json!("exited"), &json!(0), &Value::Null)
    );
    assert!(
        matches!(socket.read(), Ok(Message::Close(Some(frame))) if u16::from(frame.code) == 1000)
    );
    let expected: String = (1..=20000).map(|i| format!("line-{i}\n")).collect();
    let text = String::from_utf8_lossy(&all);
    assert!(
        text.contains("to-stderr\n") && text.ends_with("raw\nover\n"),
        "{parts} parts"
    );
    assert_eq!(
        text.replace("to-stderr\n", "")
            .lines()
            .filter(|l| l.starts_with("line-"))
            .count(),
        20000
    );
    assert!(text.starts_with(&expected[..100_000]));
    // Late: the end is still told.
    let mut late = process.attach(all.len() as u64);
    assert_eq!(read_until(&mut late, "").1, Some(last));
}

#[test]
fn a_websocket_takes_orders_and_refuses_nonsense() {
    let service = Service::with_config("server.max_frame_bytes = 10000");
    let sandbox = service.create();
    let shell = start_json(&sandbox, &json!({ "pty": { "columns": 80, "rows": 24 } }));
    let mut socket = shell.attach(0);
    let mut tell = |value: Value| {
        socket
            .send(Message::Text(value.to_string().into()))
            .expect("sent")
    };
    tell(json!({ "type": "resize", "columns": 44, "rows": 11 }));
    tell(json!({ "type": "resize", "columns": 0, "rows": 11 }));
    assert_eq!(
        read_until(&mut socket, "").1.expect("an error")["code"],
        "invalid_field"
    );
    socket
        .send(Message::Binary(b"stty size; echo e''nd\n".to_vec().into()))
        .expect("sent");
    let (said, _) = read_until(&mut socket, "end");
    assert!(String::from_utf8_lossy(&said).contains("11 44"));
    for wrong in [
        "[]",
        "{}",
        "not JSON",
        r#"{"type":"resize"}"#,
        r#"{"type":"signal","signal":"KILL"}"#,
    ] {
        socket.send(Message::Text(wrong.into())).expect("sent");
        let error = read_until(&mut socket, "").1.expect("an error");
        assert_eq!(error["type"], "error", "{wrong}: {error}");
    }
    socket
        .send(Message::Binary(vec![b'x'; 20000].into()))
        .expect("sent");
    loop {
        match socket.read() {
            Ok(Message::Close(frame)) => {
                assert_eq!(frame.map(|f| u16::from(f.code)), Some(1009));
                break;
            }
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let mut again = shell.attach(0);
    again
        .send(Message::Text(
            json!({ "type": "signal", "signal": "SIGKILL" })
                .to_string()
                .into(),
        ))
        .expect("sent");
    let (_, last) = read_until(&mut again, "");
    assert_eq!(last.expect("an end")["signal"], "SIGKILL");
    shell.get("/attach").refused(400, "websocket_required");
}

#[test]
fn a_websocket_passes_the_same_checks_as_any_request() {
    let service = Service::with_config("server.api_keys = ['a-long-enough-key']");
    let id = "0".repeat(26);
    let path = format!("/sandbox/{id}/processes/{id}/attach");
    let upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let ask = |more: &[(&str, &str)]| {
        let headers = [&upgrade, more].concat();
        service.send(&Request {
            method: "GET",
            path: &path,
            headers: &headers,
            ..Request::default()
        })
    };
    let key = ("X-API-Key", "a-long-enough-key");
    ask(&[]).refused(401, "unauthorized");
    ask(&[key, ("Origin", "http://evil.example")]).refused(403, "origin_not_allowed");
    ask(&[key, ("Host", "evil.example")]).refused(403, "host_not_allowed");
    ask(&[key]).refused(404, "sandbox_not_found");
}

#[test]
fn the_service_stops_in_spite_of_websockets() {
    let service = Service::start();
    let sandbox = service.create();
    let process = start(&sandbox, "sleep 1000");
    let mut socket = process.attach(0);
    drop(process);
    let closing = std::thread::spawn(move || socket.read());
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    drop(sandbox);
    service.end_with(rustix::process::Signal::TERM);
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    let last = closing.join().expect("a thread");
    assert!(
        matches!(&last, Ok(Message::Close(Some(f))) if u16::from(f.code) == 1001),
        "{last:?}"
    );
}

#[test]
fn a_slow_websocket_holds_the_process_up_and_gets_everything() {
    let service = Service::start();
    let sandbox = service.create();
    let process = start(&sandbox, "read go; head -c 20M /dev/zero; echo done");
    let mut socket = process.attach(0);
    process.write(b"\n").ok();
    std::thread::sleep(Duration::from_secs(1));
    let written = process.info()["output_bytes"].as_u64().expect("a number");
    assert!(written < 20 << 20, "it waits: {written}");
    let (bytes, last) = read_until(&mut socket, "");
    assert_eq!(bytes.len(), (20 << 20) + 5);
    assert_eq!(last.expect("an end")["exit_code"], 0);
}

#[test]
fn pings_of_a_client_that_does_not_read_are_not_kept() {
    const PINGS: usize = 800_000;
    let service = Service::start();
    let sandbox = service.create();
    let process = start(&sandbox, "sleep 1000");
    let socket = process.attach(0);
    let mut stream = socket.get_ref();
    let longest = Some(Duration::from_secs(2));
    stream.set_write_timeout(longest).expect("a time limit");
    let before = service.process().rss_bytes();
    // Masked with zeros (RFC 6455, 5.2).
    let ping = [[0x89, 0x80 | 125, 0, 0, 0, 0].as_slice(), &[b'p'; 125]].concat();
    let thousand = ping.repeat(1000);
    // The service may stop reading, or end the connection.
    let _sent = (0..PINGS / 1000).try_for_each(|_| stream.write_all(&thousand));
    let growth = service.process().rss_bytes().saturating_sub(before);
    assert!(growth < 32 << 20, "{growth} bytes of memory");
    service.assert_healthy();
}

#[test]
fn closing_the_sandbox_ends_all_of_them() {
    let service = Service::start();
    let sandbox = service.create();
    let shell = start_json(&sandbox, &json!({ "pty": { "columns": 80, "rows": 24 } }));
    let plain = start(&sandbox, "(setsid sleep 1000 &); sleep 1000");
    let mut socket = shell.attach(0);
    sandbox.close().ok();
    let (_, last) = read_until(&mut socket, "no such text");
    assert_eq!(last.expect("an end")["signal"], "SIGKILL");
    plain.get("").refused(404, "sandbox_not_found");
    wait_until("no process is left", SOON, || {
        processes_of(service.ids.clone())
            .iter()
            .all(|p| p.status("Name") != "sleep")
    });
}
