//! Leases, idle times and closes.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::sandbox::Sandbox;
use crate::fixture::{Service, host};

/// An end is exact to this.
const EXACT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);

fn is_listed(sandbox: &Sandbox<'_>) -> bool {
    sandbox
        .service
        .get("/sandboxes")
        .ok()
        .json()
        .get(&sandbox.id)
        .is_some()
}

/// Waits until a sandbox is no longer listed.
#[track_caller]
fn await_end(sandbox: &Sandbox<'_>) {
    host::wait_until("the sandbox ends", SOON, || !is_listed(sandbox));
}

/// Asserts that nothing of a sandbox is left.
#[track_caller]
fn assert_gone(sandbox: &Sandbox<'_>, uid: u32) {
    host::wait_until("its processes are gone", SOON, || {
        host::processes_of(uid..uid + 1).is_empty()
    });
    let marker = format!("s-{}", sandbox.id);
    let is_its = |dir: &std::path::PathBuf| dir.to_string_lossy().contains(&marker);
    host::wait_until("its cgroups are gone", SOON, || {
        !host::cgroups(&sandbox.service.instance).iter().any(is_its)
    });
}

#[test]
fn a_lease_ends_to_the_second_whatever_the_sandbox_does() {
    let service = Service::start();
    let other = service.create();
    let begun = Instant::now();
    let sandbox = service.create_with(&json!({ "lease_seconds": 2 }));
    let made = begun.elapsed();
    let uid = sandbox.processes("kernel")[0].uid();
    let mut events = sandbox.stream("while True: pass");
    let last = std::iter::from_fn(|| events.event())
        .last()
        .expect("an end");
    assert_eq!(last["outcome"], "interrupted", "{last}");
    await_end(&sandbox);
    let lived = begun.elapsed();
    assert!(
        lived >= Duration::from_secs(2) && lived < Duration::from_secs(2) + made + EXACT,
        "{lived:?}"
    );
    for answer in [service.get(&sandbox.path("files")), sandbox.close()] {
        answer.refused(404, "sandbox_not_found");
    }
    assert_gone(&sandbox, uid);
    other.assert_usable();
}

#[test]
fn the_answer_to_a_create_tells_when_the_lease_ends() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "lease_seconds": 3600 }));
    let parse = "from datetime import datetime as d\n\
        print((d.fromisoformat('EXPIRES') - d.fromisoformat('CREATED')).total_seconds())";
    let told = |key: &str| sandbox.created[key].as_str().expect("a time").to_owned();
    let parse = parse
        .replace("EXPIRES", &told("expires_at"))
        .replace("CREATED", &told("created_at"));
    assert_eq!(sandbox.stdout(&parse), "3600.0\n");
}

#[test]
fn an_idle_sandbox_ends_and_a_used_one_does_not() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "idle_seconds": 1 }));
    // Longer than it may be idle, in one execution.
    assert_eq!(
        sandbox.stdout("import time; time.sleep(1.5); print('awake')"),
        "awake\n"
    );
    // And in many.
    for _ in 0..4 {
        assert_eq!(sandbox.stdout("time.sleep(0.4)"), "");
    }
    let idle_since = Instant::now();
    // Looking at the list is not using it.
    await_end(&sandbox);
    let idle = idle_since.elapsed();
    assert!(
        idle >= Duration::from_millis(950) && idle < 2 * EXACT,
        "{idle:?}"
    );
}

#[test]
fn a_close_leaves_nothing_of_the_sandbox() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox
        .execute("import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)");
    sandbox.command("nohup setsid sleep 1000 >/dev/null 2>&1 &");
    sandbox.execute("import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execv('/bin/sleep', ['sleep', '1000'])\n    os._exit(0)");
    let uid = sandbox.processes("kernel")[0].uid();
    assert!(host::processes_of(uid..uid + 1).len() >= 4);
    let begun = Instant::now();
    sandbox.close().ok();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(
        host::processes_of(uid..uid + 1),
        [],
        "gone when the close returns"
    );
    assert_gone(&sandbox, uid);
}
