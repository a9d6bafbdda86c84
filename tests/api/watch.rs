//! Changes of files as they happen.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::wait_until;
use crate::fixture::http::{Incoming, Request};
use crate::fixture::sandbox::Sandbox;

const SOON: Duration = Duration::from_secs(20);

/// Begins a watch, which has begun when this returns.
#[track_caller]
fn watch(sandbox: &Sandbox<'_>, query: &str) -> Incoming {
    let path = sandbox.path(&format!("files/watch{query}"));
    let mut events = sandbox.service.begin(&Request {
        method: "GET",
        path: &path,
        ..Request::default()
    });
    let first = events.event().expect("it begins");
    assert_eq!(first["event"], "watching", "{first}");
    events
}

/// The next events, as `event path`, until one is `last`.
#[track_caller]
fn until(events: &mut Incoming, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let begun = Instant::now();
    while seen.last().is_none_or(|event| event != last) {
        assert!(begun.elapsed() < SOON, "no {last:?} in {seen:?}");
        let event = events.event().unwrap_or_else(|| panic!("an end: {seen:?}"));
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str().expect("an event") {
            "keepalive" => {}
            "renamed" => seen.push(format!("renamed {} to {}", text("from"), text("path"))),
            kind => seen.push(format!("{kind} {}", text("path"))),
        }
    }
    seen
}

#[test]
fn changes_are_told_as_they_happen() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.command("mkdir d; echo x > old");
    let mut events = watch(&sandbox, "");
    for (command, told) in [
        ("echo x > new", &["created new"][..]),
        ("echo y >> old", &["changed old"]),
        ("chmod 600 old", &["changed old"]),
        ("mv old 'other name'", &["renamed old to other name"]),
        ("rm new", &["deleted new"]),
        ("mkdir folder", &["created folder"]),
        ("mv 'other name' /tmp/", &["deleted other name"]),
        ("mv '/tmp/other name' back", &["created back"]),
        ("ln -s /etc/passwd link", &["created link"]),
        // What is in folders is of no interest, what goes there is gone.
        (
            "echo x > d/inner; mv back d/; rmdir folder",
            &["deleted back", "deleted folder"],
        ),
    ] {
        sandbox.command(command);
        assert_eq!(until(&mut events, told[told.len() - 1]), told, "{command}");
    }
    // A client's own changes too.
    sandbox.upload("uploaded", b"x").ok();
    let placed = std::iter::from_fn(|| events.event()).find(|event| event["path"] == "uploaded");
    assert_eq!(placed.expect("an event")["event"], "renamed");
}

#[test]
fn what_is_below_is_told_on_request() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.command("mkdir -p a/b");
    let mut events = watch(&sandbox, "?recursive=true");
    sandbox.command("echo x > a/b/c");
    assert_eq!(until(&mut events, "created a/b/c"), ["created a/b/c"]);
    // Folders that come are watched, and nothing that was in them before is missed.
    sandbox.command("mkdir -p n/e/w; echo x > n/e/w/1");
    let seen = until(&mut events, "created n/e/w/1");
    assert_eq!(
        seen,
        [
            "created n",
            "created n/e",
            "created n/e/w",
            "created n/e/w/1"
        ]
    );
    sandbox.command("echo x > n/e/w/2");
    assert_eq!(until(&mut events, "created n/e/w/2"), ["created n/e/w/2"]);
    // By the name that they have now.
    sandbox.command("mv n m");
    assert_eq!(until(&mut events, "renamed n to m"), ["renamed n to m"]);
    sandbox.command("echo x > m/e/w/3");
    assert_eq!(until(&mut events, "created m/e/w/3"), ["created m/e/w/3"]);
    sandbox.command("mv m /tmp/; echo x > /tmp/m/e/4; touch end");
    assert_eq!(
        until(&mut events, "created end"),
        ["deleted m", "created end"]
    );
    let mut below = watch(&sandbox, "?path=a/b");
    sandbox.execute("import os; open(b'a/b/\\xff', 'w')");
    assert_eq!(until(&mut below, "created a/b/%FF"), ["created a/b/%FF"]);
}

#[test]
fn a_watch_ends_with_its_folder_its_sandbox_or_its_client() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.command("mkdir d");
    let mut of_folder = watch(&sandbox, "?path=d");
    sandbox.command("rmdir d");
    let last = of_folder.event().expect("an end");
    assert_eq!(
        (&last["event"], &last["code"]),
        (&json!("ended"), &json!("file_not_found"))
    );
    assert!(of_folder.event().is_none());
    let left = watch(&sandbox, "");
    assert_eq!(sandbox.processes("init").len(), 2);
    drop(left);
    wait_until("no worker is left", SOON, || {
        sandbox.processes("init").len() == 1
    });
    let mut of_sandbox = watch(&sandbox, "");
    sandbox.close().ok();
    let last = of_sandbox.event().expect("an end");
    assert_eq!(
        (&last["event"], &last["code"]),
        (&json!("ended"), &json!("sandbox_closing"))
    );
}

#[test]
fn a_watch_is_bounded_and_says_what_it_missed() {
    let service = Service::start();
    let sandbox = service.create();
    let mut watches: Vec<Incoming> = (0..8).map(|_| watch(&sandbox, "")).collect();
    let path = sandbox.path("files/watch");
    let refused = service.get(&path);
    refused.refused(429, "too_many_watches");
    assert!(refused.header("retry-after").is_some());
    let other = service.create();
    let mut events = watch(&other, "?recursive=1");
    watches.truncate(1);
    wait_until("places are free", SOON, || {
        sandbox.processes("init").len() == 2
    });
    drop(watch(&sandbox, ""));
    // More than the kernel's queue holds while nobody reads: nothing hangs, and it is said.
    let flood =
        "import os\nfor n in range(60000):\n    os.mkdir(f'd{n % 9}'); os.rmdir(f'd{n % 9}')";
    assert_eq!(other.execute(flood)["outcome"], "ok");
    let mut lines = 0;
    loop {
        let event = events.event().expect("events");
        lines += 1;
        if event["event"] == "overflow" {
            break;
        }
        assert!(lines < 200_000, "no overflow was told");
    }
    other.assert_usable();
    for (query, status, code) in [
        ("?path=absent", 404, "file_not_found"),
        ("?path=..", 400, "bad_path"),
        ("?path=/etc", 400, "bad_path"),
    ] {
        service.get(&format!("{path}{query}")).refused(status, code);
    }
    service
        .get(&format!("{path}?recursive=x"))
        .refused_field("recursive");
}

#[test]
fn a_silent_watch_says_that_it_lives() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "idle_seconds": 9 }));
    let path = sandbox.path("files/watch");
    let begun = Instant::now();
    let mut events = service.begin(&Request {
        method: "GET",
        path: &path,
        headers: &[("Accept", "text/event-stream")],
        body: b"",
    });
    let mut lines = std::iter::from_fn(|| events.line());
    assert_eq!(lines.next().as_deref(), Some("event: watching\n"));
    let keepalive = lines.find(|line| line.starts_with("event: keepalive"));
    assert!(keepalive.is_some());
    let waited = begun.elapsed();
    assert!((5..8).contains(&waited.as_secs()), "{waited:?}");
    // To be watched is not to be used.
    let ended = lines.find(|line| line.starts_with("event: ended"));
    assert!(ended.is_some());
    let data = lines.next().expect("data");
    let data: Value = serde_json::from_str(data.trim_start_matches("data: ")).expect("JSON");
    assert_eq!(data["code"], "sandbox_closing");
    assert!(begun.elapsed() < Duration::from_secs(13));
}

/// Only the worker has an instance: user code can make none, and an instance is what
/// `inotify_add_watch` needs.
#[test]
fn user_code_has_no_inotify_of_its_own() {
    let service = Service::start();
    let sandbox = service.create();
    let _watch = watch(&sandbox, "");
    let answers = sandbox.stdout(
        "import ctypes, errno\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def call(*a): return 'ok' if libc.syscall(*a) >= 0 else errno.errorcode[ctypes.get_errno()]\n\
         print(call(253), call(294, 0), [call(254, n, b'/tmp', 0x100) for n in (0, 1, 2)])",
    );
    assert_eq!(answers, "ENOSYS ENOSYS ['EINVAL', 'EINVAL', 'EINVAL']\n");
}
