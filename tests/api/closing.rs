//! What happens while a sandbox is being closed, or its client goes away.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::http::Request;
use crate::fixture::sandbox::Sandbox;
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

/// Begins code that ends once the file `go` is there, and goes away.
#[track_caller]
fn begin_and_leave(sandbox: &Sandbox<'_>, mut request: Value) {
    request["code"] = "import os, time\n\
        print('begun', flush=True)\n\
        while not os.path.exists('go'):\n    print('on', flush=True); time.sleep(0.01)\n\
        end = 'reached'"
        .into();
    let mut events = sandbox.stream_json(request);
    while events.event().expect("code that prints")["type"] != "stdout" {}
    drop(events);
}

/// What the next execution finds, asked before the code can end.
#[track_caller]
fn end_of(sandbox: &Sandbox<'_>) -> String {
    std::thread::scope(|scope| {
        let next =
            scope.spawn(|| sandbox.stdout("print(globals().get('end'), os.path.exists('go'))"));
        std::thread::sleep(Duration::from_millis(500));
        sandbox.upload("go", b"").ok();
        next.join().expect("an answer")
    })
}

#[test]
fn code_may_go_on_without_its_client_and_the_next_waits_for_it() {
    let service = Service::start();
    let sandbox = service.create();
    begin_and_leave(&sandbox, json!({ "on_disconnect": "continue" }));
    let next = sandbox.stream("1");
    let listed = service.get("/sandboxes").ok().json();
    assert_eq!(listed[&sandbox.id]["state"], "busy");
    drop(next);
    assert_eq!(end_of(&sandbox), "reached True\n");
    // One that waits in the queue when its client leaves runs too.
    let mut first = sandbox.stream("print('begun', flush=True); time.sleep(0.5)");
    while first.event().expect("code that prints")["type"] != "stdout" {}
    let waiting = json!({ "code": "waited = 'ran'", "on_disconnect": "continue", "stream": true });
    let body = waiting.to_string();
    drop(service.begin(&Request {
        method: "POST",
        path: &sandbox.path("execute"),
        headers: &[("Content-Type", "application/json")],
        body: body.as_bytes(),
    }));
    assert_eq!(sandbox.stdout("print(waited)"), "ran\n");
}

#[test]
fn code_without_its_client_ends_with_its_time_and_by_request() {
    let service = Service::start();
    let sandbox = service.create();
    let request = json!({ "on_disconnect": "continue", "timeout_seconds": 1.0 });
    begin_and_leave(&sandbox, request);
    assert_eq!(sandbox.stdout("print(globals().get('end'))"), "None\n");
    begin_and_leave(&sandbox, json!({ "on_disconnect": "continue" }));
    let path = sandbox.path("interrupt");
    let answer = service.post_json(&path, &json!({})).ok().json();
    assert_eq!(answer["interrupted"], json!(["default"]), "{answer}");
    assert_eq!(sandbox.stdout("print(globals().get('end'))"), "None\n");
}

#[test]
fn the_configuration_says_what_becomes_of_code_without_its_client() {
    let service = Service::with_config("server.on_disconnect = \"continue\"");
    let sandbox = service.create();
    begin_and_leave(&sandbox, json!({}));
    assert_eq!(end_of(&sandbox), "reached True\n");
    let sandbox = service.create();
    begin_and_leave(&sandbox, json!({ "on_disconnect": "interrupt" }));
    assert_eq!(end_of(&sandbox), "None False\n");
    let wrong = json!({ "code": "1", "on_disconnect": "stay" });
    let answer = service.post_json(&sandbox.path("execute"), &wrong);
    assert_eq!(answer.status, 422, "{}", answer.text());
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
