//! The service is told to end.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::fixture::program::run;
use crate::fixture::{Launch, SANDCELL, Service, host, mirrors_dir};

const SOON: Duration = Duration::from_secs(10);

/// Ends a service with sandboxes at every kind of work.
fn stop_busy_service(signal: Signal) {
    let service = Service::launch(&Launch {
        args: &["--pool", "2"],
        ..Launch::default()
    });
    let address = service.address;
    let (loops, commands, _idle) = (service.create(), service.create(), service.create());
    let mut events = loops.stream("print('begun', flush=True)\nwhile True: pass");
    while events.event().expect("code that prints")["type"] != "stdout" {}
    let command = json!({ "command": "touch begun; sleep 1000" }).to_string();
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{command}",
        commands.path("command"),
        command.len()
    );
    let mut running = service.connect();
    std::io::Write::write_all(&mut running, request.as_bytes()).expect("sent");
    host::wait_until("the command has begun", SOON, || {
        !commands.files().is_empty()
    });
    let reader = thread::spawn(move || std::iter::from_fn(|| events.event()).last());
    service.end_with(signal);
    // The stream ended, whole or broken off, and nobody hangs.
    let _ = reader.join();
}

#[test]
fn sigterm_drains_a_busy_service() {
    stop_busy_service(Signal::TERM);
}

#[test]
fn sigint_drains_a_busy_service() {
    stop_busy_service(Signal::INT);
}

#[test]
fn an_idle_service_ends_at_once() {
    let service = Service::launch(&Launch {
        args: &["--pool", "2"],
        ..Launch::default()
    });
    let _sandboxes = [service.create().id, service.create().id];
    let begun = std::time::Instant::now();
    service.end_with(Signal::TERM);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_second_service_on_the_same_data_is_refused_by_name() {
    let service = Service::start();
    let second = run(
        std::process::Command::new(SANDCELL)
            .args(["serve", "--port", "0", "--data-dir"])
            .arg(service.data_dir())
            .arg("--mirrors-dir")
            .arg(mirrors_dir()),
        Duration::from_secs(20),
    );
    assert_eq!(second.code, Some(1), "{second:?}");
    let pid = format!("pid {}", service.process().pid);
    let dir = service.data_dir().to_string_lossy().into_owned();
    assert!(
        second.stderr.contains(&pid) && second.stderr.contains(&dir),
        "{}",
        second.stderr
    );
    service.assert_healthy();
}

#[test]
fn two_services_side_by_side_share_nothing_but_the_mirror() {
    let (first, second) = (Service::start(), Service::start());
    assert_ne!(first.instance, second.instance);
    assert!(first.ids.end <= second.ids.start || second.ids.end <= first.ids.start);
    let (a, b) = (first.create(), second.create());
    a.assert_usable();
    first
        .get(&b.path("files"))
        .refused(404, "sandbox_not_found");
    drop(first);
    b.assert_usable();
}
