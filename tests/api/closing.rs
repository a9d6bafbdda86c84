//! What happens while a sandbox is being closed, or its client goes away.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::http::Request;
use crate::fixture::{Service, host};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn of_two_closes_at_once_one_wins() {
    let service = Service::start();
    for _ in 0..5 {
        let sandbox = service.create();
        let barrier = Barrier::new(2);
        let close = || {
            barrier.wait();
            sandbox.close().status
        };
        let mut statuses = thread::scope(|scope| {
            let other = scope.spawn(close);
            [close(), other.join().expect("no panic")]
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 404]);
        sandbox.close().refused(404, "sandbox_not_found");
    }
}

#[test]
fn an_execution_ends_when_its_sandbox_is_closed() {
    let service = Service::start();
    let sandbox = service.create();
    let mut events = sandbox.stream("print('begun', flush=True)\nwhile True: pass");
    while events.event().expect("code that prints")["type"] != "stdout" {}
    let begun = Instant::now();
    sandbox.close().ok();
    assert!(begun.elapsed() < SOON);
    let last = std::iter::from_fn(|| events.event())
        .last()
        .expect("an end");
    assert_eq!(last["type"], "ended", "{last}");
    assert_eq!(last["outcome"], "interrupted", "{last}");
    assert_eq!(last["state"], "lost", "{last}");
    assert!(begun.elapsed() < SOON);
}

#[test]
fn executing_while_closing_is_refused_or_interrupted_never_stuck() {
    let service = Service::start();
    for _ in 0..5 {
        let sandbox = service.create();
        let barrier = Barrier::new(2);
        let begun = Instant::now();
        let (status, text) = thread::scope(|scope| {
            let execution = scope.spawn(|| {
                barrier.wait();
                let answer =
                    service.post(&sandbox.path("execute"), "text/plain", b"while True: pass");
                (answer.status, answer.text())
            });
            barrier.wait();
            sandbox.close().ok();
            execution.join().expect("no panic")
        });
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        match status {
            200 => assert!(text.contains("\"interrupted\""), "{text}"),
            404 | 409 | 503 => {}
            other => panic!("{other}: {text}"),
        }
    }
}

#[test]
fn a_command_ends_when_its_sandbox_is_closed() {
    let service = Service::start();
    let sandbox = service.create();
    let (status, text) = thread::scope(|scope| {
        let command = scope.spawn(|| {
            let body = json!({ "command": "touch begun; sleep 1000" });
            let answer = service.post_json(&sandbox.path("command"), &body);
            (answer.status, answer.text())
        });
        host::wait_until("the command has begun", SOON, || {
            !sandbox.files().is_empty()
        });
        sandbox.close().ok();
        command.join().expect("no panic")
    });
    assert!(status == 409 || text.contains("137"), "{status}: {text}");
}

#[test]
fn a_client_that_disconnects_interrupts_its_code() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("state = 'kept'; ticks = 0");
    let code = "import time\nopen('begun', 'w').close()\nwhile True:\n    ticks += 1\n    time.sleep(0.02)";
    let path = sandbox.path("execute");
    let request = Request {
        method: "POST",
        path: &path,
        headers: &[],
        body: code.as_bytes(),
    };
    let mut stream = service.connect();
    std::io::Write::write_all(
        &mut stream,
        &crate::fixture::http::head(service.address, &request),
    )
    .expect("sent");
    std::io::Write::write_all(&mut stream, request.body).expect("sent");
    host::wait_until("the code has begun", SOON, || !sandbox.files().is_empty());
    drop(stream);
    let begun = Instant::now();
    assert_eq!(sandbox.stdout("first = ticks; print(state)"), "kept\n");
    assert!(
        begun.elapsed() < SOON,
        "the code ran on for {:?}",
        begun.elapsed()
    );
    assert_eq!(sandbox.stdout("print(first == ticks > 0)"), "True\n");
}

#[test]
fn a_reader_of_lines_that_disconnects_interrupts_its_code() {
    let service = Service::start();
    let sandbox = service.create();
    let mut events = sandbox.stream("n = 0\nwhile True:\n    n += 1\n    print(n, flush=True)");
    while events.event().expect("code that prints")["type"] != "stdout" {}
    drop(events);
    let begun = Instant::now();
    assert_eq!(sandbox.stdout("print(n > 0)"), "True\n");
    assert!(
        begun.elapsed() < SOON,
        "the code ran on for {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_client_that_disconnects_kills_its_command() {
    let service = Service::start();
    let sandbox = service.create();
    let body = json!({ "command": "touch begun; (sleep 1000 & sleep 1000)" }).to_string();
    let path = sandbox.path("command");
    let headers: &[_] = &[("Content-Type", "application/json")];
    let request = Request {
        method: "POST",
        path: &path,
        headers,
        body: body.as_bytes(),
    };
    let mut stream = service.connect();
    std::io::Write::write_all(
        &mut stream,
        &crate::fixture::http::head(service.address, &request),
    )
    .expect("sent");
    std::io::Write::write_all(&mut stream, request.body).expect("sent");
    host::wait_until("the command has begun", SOON, || {
        !sandbox.files().is_empty()
    });
    assert!(!sandbox.processes("command-0").is_empty());
    drop(stream);
    host::wait_until("the command's processes are gone", SOON, || {
        sandbox.processes("command-0").is_empty()
    });
    sandbox.assert_usable();
}
