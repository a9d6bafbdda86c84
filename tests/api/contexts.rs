//! Contexts: several kernels over the files of one sandbox, and the interrupt.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::{sandbox_leaves, wait_until};
use crate::fixture::http::{Answer, Incoming, Request};
use crate::fixture::sandbox::{Sandbox, shown};

const SOON: Duration = Duration::from_secs(20);

fn send(sandbox: &Sandbox<'_>, method: &str, verb: &str) -> Answer {
    let path = sandbox.path(verb);
    sandbox.service.send(&Request {
        method,
        path: &path,
        ..Request::default()
    })
}

/// Creates a context; gives its id.
#[track_caller]
pub fn create(sandbox: &Sandbox<'_>, spec: &Value) -> String {
    let path = sandbox.path("contexts");
    let created = sandbox.service.post_json(&path, spec).ok().json();
    created["context_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn list(sandbox: &Sandbox<'_>) -> Vec<Value> {
    let listed = send(sandbox, "GET", "contexts").ok().json();
    listed.as_array().expect("a list").clone()
}

#[track_caller]
fn delete(sandbox: &Sandbox<'_>, context: &str) -> Answer {
    send(sandbox, "DELETE", &format!("contexts/{context}"))
}

#[track_caller]
fn restart(sandbox: &Sandbox<'_>, context: &str) -> Answer {
    send(sandbox, "POST", &format!("contexts/{context}/restart"))
}

#[track_caller]
fn interrupt(sandbox: &Sandbox<'_>, request: &Value) -> Value {
    let path = sandbox.path("interrupt");
    let answer = sandbox.service.post_json(&path, request).ok().json();
    assert_eq!(answer["status"], "success");
    answer["interrupted"].clone()
}

#[track_caller]
fn execute(sandbox: &Sandbox<'_>, context: &str, code: &str) -> Value {
    sandbox.execute_json(&json!({ "code": code, "context_id": context }))
}

/// Runs code that must succeed; gives what it printed.
#[track_caller]
fn stdout(sandbox: &Sandbox<'_>, context: &str, code: &str) -> String {
    let outcome = execute(sandbox, context, code);
    assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
    outcome["stdout"].as_str().expect("a text").to_owned()
}

/// Begins code in a context and waits until it has printed something.
#[track_caller]
fn begin(sandbox: &Sandbox<'_>, context: &str, code: &str) -> Incoming {
    let body = json!({ "code": code, "context_id": context, "stream": true }).to_string();
    let path = sandbox.path("execute");
    let mut running = sandbox.service.begin(&Request {
        method: "POST",
        path: &path,
        headers: &[("Content-Type", "application/json")],
        body: body.as_bytes(),
    });
    assert_eq!(running.status, 200);
    while running.event().expect("code that prints")["type"] != "stdout" {}
    running
}

/// The last event of an execution.
#[track_caller]
fn end(mut running: Incoming) -> Value {
    loop {
        let event = running.event().expect("an end");
        if event["type"] == "ended" {
            return event;
        }
    }
}

#[track_caller]
fn assert_missing(answer: &Answer) {
    answer.refused(404, "context_not_found");
}

#[test]
fn every_sandbox_has_one_and_tells_of_the_others() {
    let service = Service::start();
    let sandbox = service.create();
    let created_at = &sandbox.created["created_at"];
    assert_eq!(
        list(&sandbox),
        [json!({
            "context_id": "default", "name": "default", "cwd": "/home/user",
            "created_at": created_at, "state": "idle", "execution_count": 0,
        })]
    );
    let made = send(&sandbox, "POST", "contexts").ok().json();
    let id = made["context_id"].as_str().expect("an id");
    assert_eq!(id.len(), 26);
    assert_eq!(made["cwd"], "/home/user");
    assert_eq!(
        (&made["state"], &made["execution_count"]),
        (&json!("idle"), &json!(0))
    );
    assert!(made["name"].as_str().is_some_and(|name| !name.is_empty()));
    // To a millisecond, in which both may happen.
    assert!(made["created_at"].as_str() >= created_at.as_str());
    assert_eq!(list(&sandbox)[1], made);
    let named = create(&sandbox, &json!({ "name": "plots" }));
    stdout(&sandbox, &named, "print(1)");
    stdout(&sandbox, &named, "print(1)");
    let running = begin(
        &sandbox,
        id,
        "import time\nprint('begun', flush=True)\ntime.sleep(60)",
    );
    let shown: Vec<_> = list(&sandbox)
        .iter()
        .map(|c| json!([c["name"], c["state"], c["execution_count"]]))
        .collect();
    let name = &made["name"];
    assert_eq!(
        shown,
        [
            json!(["default", "idle", 0]),
            json!([name, "busy", 0]),
            json!(["plots", "idle", 2])
        ]
    );
    drop(running);
    assert_eq!(
        delete(&sandbox, &named).ok().json(),
        json!({ "status": "success", "message": "Context deleted" })
    );
    assert_eq!(list(&sandbox).len(), 2);
    assert_missing(&delete(&sandbox, &named));
}

#[test]
fn variables_and_directories_are_separate_and_files_are_shared() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("import os\nx = 'of default'\nos.makedirs('a/b')\nopen('a/f', 'w').write('f')");
    let one = create(&sandbox, &json!({ "cwd": "a" }));
    let two = create(&sandbox, &json!({ "cwd": "/tmp" }));
    assert_eq!(execute(&sandbox, &one, "x")["error"], "NameError");
    assert_eq!(list(&sandbox)[1]["cwd"], "/home/user/a");
    let code = "import os\nx = os.getcwd()\nprint(x)";
    assert_eq!(stdout(&sandbox, &one, code), "/home/user/a\n");
    assert_eq!(stdout(&sandbox, &two, code), "/tmp\n");
    assert_eq!(
        stdout(&sandbox, "default", "print(x, os.getcwd())"),
        "of default /home/user\n"
    );
    assert_eq!(stdout(&sandbox, &one, "print(open('f').read())"), "f\n");
    execute(
        &sandbox,
        &two,
        "open('/home/user/a/f', 'w').write('of two')",
    );
    assert_eq!(
        stdout(&sandbox, &one, "print(open('f').read(), x)"),
        "of two /home/user/a\n"
    );
    assert_eq!(sandbox.download("a/f").ok().body, b"of two");
}

#[test]
fn contexts_run_at_the_same_time_and_each_in_order() {
    let service = Service::start();
    let sandbox = service.create();
    let other = create(&sandbox, &json!({}));
    let nap = "import time\ntime.sleep(1)";
    let begun = Instant::now();
    thread::scope(|scope| {
        for context in ["default", &other] {
            let sandbox = &sandbox;
            scope.spawn(move || assert_eq!(execute(sandbox, context, nap)["outcome"], "ok"));
        }
    });
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(1800), "{took:?}");
    execute(&sandbox, &other, "log = []");
    let code = "log.append('in')\ntime.sleep(0.05)\nlog.append('out')";
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(execute(&sandbox, &other, code)["outcome"], "ok"));
        }
    });
    let order = stdout(&sandbox, &other, "print(log == ['in', 'out'] * 6)");
    assert_eq!(order, "True\n");
}

#[test]
fn a_full_queue_of_one_context_refuses_only_there() {
    let service = Service::with_config("limits.queue = 0");
    let sandbox = service.create();
    let other = create(&sandbox, &json!({}));
    let running = begin(
        &sandbox,
        &other,
        "import time\nprint('begun', flush=True)\ntime.sleep(60)",
    );
    let request = json!({ "code": "1", "context_id": other });
    let refused = service.post_json(&sandbox.path("execute"), &request);
    refused.refused(429, "queue_full");
    assert!(refused.header("retry-after").is_some());
    sandbox.assert_usable();
    drop(running);
    wait_until("the queue is free", SOON, || {
        list(&sandbox)[1]["state"] == "idle"
    });
}

#[test]
fn env_is_of_one_context_and_outlives_its_kernel() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "env": { "A": "sandbox", "B": "sandbox" } }));
    sandbox.execute("import os\nos.mkdir('d')");
    let spec = json!({ "cwd": "d", "env": { "B": "context", "C": "context" } });
    let one = create(&sandbox, &spec);
    let other = create(&sandbox, &json!({}));
    let code = "import os\nprint(*map(os.environ.get, 'ABC'), os.getcwd())";
    let own = "sandbox context context /home/user/d\n";
    let without = "sandbox sandbox None /home/user\n";
    let check = || {
        assert_eq!(stdout(&sandbox, &one, code), own);
        assert_eq!(stdout(&sandbox, &other, code), without);
        assert_eq!(stdout(&sandbox, "default", code), without);
    };
    check();
    restart(&sandbox, &one).ok();
    check();
    assert_eq!(
        execute(&sandbox, &one, "os._exit(1)")["outcome"],
        "kernel_died"
    );
    check();
    assert_eq!(
        sandbox.command("echo $A $B $C")["stdout"],
        "sandbox sandbox\n"
    );
}

#[test]
fn a_directory_that_is_gone_leaves_a_context_that_works() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("import os\nos.mkdir('d')");
    let context = create(&sandbox, &json!({ "cwd": "d" }));
    sandbox.execute("os.rmdir('d')");
    restart(&sandbox, &context).ok();
    assert_eq!(
        stdout(&sandbox, &context, "import os\nprint(os.getcwd())"),
        "/home/user\n"
    );
    sandbox.execute("os.mkdir('d')");
    restart(&sandbox, &context).ok();
    assert_eq!(
        stdout(&sandbox, &context, "import os\nprint(os.getcwd())"),
        "/home/user/d\n"
    );
}

const SLEEPER: &str = "import subprocess, time\n\
    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n\
    print('begun', flush=True)\ntime.sleep(600)";

#[test]
fn a_deleted_context_ends_what_it_runs_and_nothing_else() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("x = 'kept'");
    let context = create(&sandbox, &json!({}));
    let running = begin(&sandbox, &context, SLEEPER);
    assert_eq!(sandbox.processes("kernel-1").len(), 2);
    // One more waits behind it.
    let waiting = thread::scope(|scope| {
        let waiting = scope.spawn(|| execute(&sandbox, &context, "print('never')"));
        thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        delete(&sandbox, &context).ok();
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(sandbox_leaves(&sandbox.id), ["init", "kernel"]);
        waiting.join().expect("no panic")
    });
    let ended = end(running);
    for outcome in [&ended, &waiting] {
        assert_eq!(outcome["outcome"], "interrupted", "{}", shown(outcome));
        assert_eq!(outcome["state"], "lost");
    }
    assert_eq!(waiting["stdout"], "");
    let request = json!({ "code": "1", "context_id": context });
    assert_missing(&service.post_json(&sandbox.path("execute"), &request));
    assert_missing(&restart(&sandbox, &context));
    assert_eq!(sandbox.stdout("print(x)"), "kept\n");
    assert_eq!(list(&sandbox).len(), 1);
}

#[test]
fn a_restart_ends_what_runs_and_what_waits_runs_afterwards() {
    let service = Service::start();
    let sandbox = service.create();
    let other = create(&sandbox, &json!({}));
    execute(&sandbox, &other, "x = 'kept'");
    for (context, leaf) in [("default", "kernel"), (&other, "kernel-1")] {
        execute(&sandbox, context, "y = 1");
        let running = begin(&sandbox, context, SLEEPER);
        // The kernel, its checkpoint and what it started; the checkpoint of before takes a moment to end.
        wait_until("three processes", Duration::from_secs(5), || {
            sandbox.processes(leaf).len() == 3
        });
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| execute(&sandbox, context, "y"));
            thread::sleep(Duration::from_millis(200));
            let fresh = restart(&sandbox, context).ok().json();
            assert_eq!(fresh["context_id"], context);
            waiting.join().expect("no panic")
        });
        let ended = end(running);
        assert_eq!(ended["outcome"], "interrupted", "{}", shown(&ended));
        assert_eq!(ended["state"], "lost");
        assert_eq!(waiting["error"], "NameError", "{}", shown(&waiting));
        // The new kernel, with its checkpoint or without.
        assert!(sandbox.processes(leaf).len() <= 2);
        if context == "default" {
            assert_eq!(stdout(&sandbox, &other, "print(x)"), "kept\n");
        }
    }
}

#[test]
fn a_restart_of_an_idle_context_forgets_its_variables() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("x = 1");
    let fresh = restart(&sandbox, "default").ok().json();
    assert_eq!(
        (&fresh["state"], &fresh["execution_count"]),
        (&json!("idle"), &json!(0))
    );
    let outcome = sandbox.execute("x");
    assert_eq!(outcome["error"], "NameError");
    assert_eq!(outcome["execution_count"], 1);
    // At once and again, while others execute: nobody sees a kernel die.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let outcome = sandbox.execute("print(1)")["outcome"].clone();
                    assert!(outcome == "ok" || outcome == "interrupted", "{outcome}");
                }
            });
        }
        for _ in 0..5 {
            scope.spawn(|| restart(&sandbox, "default").ok());
        }
    });
    sandbox.assert_usable();
}

#[test]
fn an_interrupt_keeps_variables_and_names_what_it_hit() {
    let service = Service::start();
    let sandbox = service.create();
    let other = create(&sandbox, &json!({}));
    let third = create(&sandbox, &json!({}));
    let code = "x = 7\nprint('begun', flush=True)\nwhile True: pass";
    let one = begin(&sandbox, "default", code);
    let two = begin(&sandbox, &other, code);
    assert_eq!(
        interrupt(&sandbox, &json!({ "context_id": third })),
        json!([])
    );
    assert_eq!(
        interrupt(&sandbox, &json!({ "context_id": other })),
        json!([other])
    );
    let ended = end(two);
    assert_eq!(ended["outcome"], "interrupted", "{}", shown(&ended));
    assert_eq!(ended["state"], "kept");
    assert_eq!(stdout(&sandbox, &other, "print(x)"), "7\n");
    // Without a body: every one that runs.
    let answer = send(&sandbox, "POST", "interrupt").ok().json();
    assert_eq!(
        answer,
        json!({ "status": "success", "interrupted": ["default"] })
    );
    assert_eq!(end(one)["state"], "kept");
    assert_eq!(sandbox.stdout("print(x)"), "7\n");
}

#[test]
fn a_client_that_reads_nothing_hinders_neither_interrupt_nor_restart() {
    let service = Service::with_config("limits.result_bytes = 100_000_000");
    let sandbox = service.create();
    let context = create(&sandbox, &json!({}));
    let code = "x = 7\nprint('begun', flush=True)\n\
                while True: display({'text/plain': 'x' * 100_000}, raw=True)";
    for ends in ["interrupt", "restart"] {
        let running = begin(&sandbox, &context, code);
        // Until the pipes, the queue of events and the connection are full.
        thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        if ends == "interrupt" {
            assert_eq!(interrupt(&sandbox, &json!({})), json!([context]));
            wait_until("the code has ended", SOON, || {
                list(&sandbox)[1]["state"] == "idle"
            });
        } else {
            restart(&sandbox, &context).ok();
        }
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert_eq!(list(&sandbox)[1]["state"], "idle");
        drop(running);
        let expected = if ends == "interrupt" { "7" } else { "None" };
        let printed = stdout(&sandbox, &context, "print(globals().get('x'))");
        assert_eq!(printed, format!("{expected}\n"));
    }
}

#[test]
fn an_interrupt_of_what_does_not_stop_kills_it() {
    let service = Service::with_config("limits.interrupt_grace_seconds = 1");
    let sandbox = service.create();
    let deaf = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n\
                print('begun', flush=True)\nwhile True: pass";
    let running = begin(&sandbox, "default", deaf);
    assert_eq!(interrupt(&sandbox, &json!({})), json!(["default"]));
    let ended = end(running);
    assert_eq!(ended["outcome"], "interrupted", "{}", shown(&ended));
    assert_eq!(ended["state"], "restored");
    sandbox.assert_usable();
}

#[test]
fn an_interrupt_of_an_idle_context_has_no_later_effect() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("x = 1");
    for _ in 0..3 {
        assert_eq!(interrupt(&sandbox, &json!({})), json!([]));
        assert_eq!(
            interrupt(&sandbox, &json!({ "context_id": "default" })),
            json!([])
        );
        assert_eq!(
            sandbox.stdout("import time\ntime.sleep(0.3)\nprint(x)"),
            "1\n"
        );
    }
    // Many as executions begin and end: each hits the one that runs then, and none kills a kernel.
    let code = "import time\ntime.sleep(0.01)";
    let hits = thread::scope(|scope| {
        let hits = scope.spawn(|| {
            (0..60)
                .filter(|_| interrupt(&sandbox, &json!({})) == json!(["default"]))
                .count()
        });
        for _ in 0..40 {
            let outcome = sandbox.execute(code);
            let ended = &outcome["outcome"];
            assert!(
                ended == "ok" || ended == "interrupted",
                "{}",
                shown(&outcome)
            );
            assert_eq!(outcome["state"], "kept", "{}", shown(&outcome));
        }
        hits.join().expect("no panic")
    });
    assert!(hits > 0);
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
}

#[test]
fn a_sandbox_closes_while_its_contexts_come_and_go() {
    let service = Service::start();
    for _ in 0..4 {
        let sandbox = service.create();
        let context = create(&sandbox, &json!({}));
        let request = json!({ "code": "while True: pass", "context_id": context });
        let begun = Instant::now();
        let answers = thread::scope(|scope| {
            let asked = [
                scope.spawn(|| send(&sandbox, "POST", "contexts")),
                scope.spawn(|| restart(&sandbox, "default")),
                scope.spawn(|| service.post_json(&sandbox.path("execute"), &request)),
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(5));
                    delete(&sandbox, &context)
                }),
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(10));
                    sandbox.close().ok()
                }),
            ];
            asked.map(|answer| answer.join().expect("no panic"))
        });
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        for answer in answers {
            let expected = [200, 404, 409, 503].contains(&answer.status);
            assert!(expected, "{} {}", answer.status, answer.text());
        }
    }
}

#[test]
fn a_crash_in_one_context_leaves_the_others_alone() {
    let service = Service::start();
    let sandbox = service.create();
    let other = create(&sandbox, &json!({}));
    sandbox.execute("x = 1");
    execute(&sandbox, &other, "x = 2");
    let outcome = execute(&sandbox, &other, "import ctypes\nctypes.string_at(0)");
    assert_eq!(outcome["outcome"], "kernel_died", "{}", shown(&outcome));
    assert_eq!(
        (&outcome["signal"], &outcome["state"]),
        (&json!(11), &json!("restored"))
    );
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
    assert_eq!(stdout(&sandbox, &other, "print(x)"), "2\n");
    sandbox.execute("import os\nos._exit(1)");
    execute(&sandbox, &other, "x = 3");
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
    assert_eq!(stdout(&sandbox, &other, "print(x)"), "3\n");
}

#[test]
fn a_sandbox_has_so_many_contexts_and_no_more() {
    let service = Service::with_config("limits.contexts = 3");
    let sandbox = service.create();
    let made: Vec<_> = (0..2).map(|_| create(&sandbox, &json!({}))).collect();
    let refused = service.post_json(&sandbox.path("contexts"), &json!({}));
    refused.refused(429, "too_many_contexts");
    // One that could not be made takes no room.
    delete(&sandbox, &made[0]).ok();
    let bad = service.post_json(&sandbox.path("contexts"), &json!({ "cwd": "missing" }));
    bad.refused(422, "bad_cwd");
    create(&sandbox, &json!({}));
    delete(&sandbox, "default").refused(409, "default_context");
    assert_eq!(list(&sandbox).len(), 3);
    assert_eq!(
        sandbox_leaves(&sandbox.id).len(),
        4,
        "init and three kernels"
    );
    // Of many at once no more are made either.
    let crowded = service.create();
    let made = thread::scope(|scope| {
        let makers: Vec<_> = (0..12)
            .map(|_| scope.spawn(|| send(&crowded, "POST", "contexts").status))
            .collect();
        let statuses = makers.into_iter().map(|m| m.join().expect("no panic"));
        statuses.filter(|&status| status == 200).count()
    });
    assert_eq!(made, 2);
    sandbox.assert_usable();
}

#[test]
fn bad_input_is_refused_by_name() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("file", b"").ok();
    let contexts = sandbox.path("contexts");
    for (request, field) in [
        (json!({ "nam": "x" }), "nam"),
        (json!({ "name": 1 }), "name"),
        (json!({ "name": "a\nb" }), "name"),
        (json!({ "name": "x".repeat(129) }), "name"),
        (json!({ "env": { "A": 1 } }), "env.A"),
        (json!({ "env": { "A=B": "" } }), "env"),
        (json!({ "cwd": 1 }), "cwd"),
    ] {
        service.post_json(&contexts, &request).refused_field(field);
    }
    let long = "x/".repeat(2500);
    for cwd in ["", "missing", "file", "a\0b", "/root", &long] {
        let refused = service.post_json(&contexts, &json!({ "cwd": cwd }));
        refused.refused(422, "bad_cwd");
        refused.refused_field("cwd");
    }
    let interrupt = sandbox.path("interrupt");
    for (request, field) in [
        (json!({ "context": "x" }), "context"),
        (json!({ "context_id": ["default"] }), "context_id"),
    ] {
        service.post_json(&interrupt, &request).refused_field(field);
    }
    for path in [&contexts, &interrupt] {
        let refused = service.post(path, "application/json", b"[]");
        refused.refused(422, "invalid_body");
        let refused = service.post(path, "text/plain", b"x");
        refused.refused(400, "unsupported_content_type");
    }
    let execute = sandbox.path("execute");
    service
        .post_json(&execute, &json!({ "code": "1", "context_id": 1 }))
        .refused_field("context_id");
    for unknown in [
        "",
        "none",
        "Default",
        &"a".repeat(26),
        "%64efault",
        "../default",
    ] {
        let request = json!({ "code": "1", "context_id": unknown });
        assert_missing(&service.post_json(&execute, &request));
        let request = json!({ "context_id": unknown });
        assert_missing(&service.post_json(&interrupt, &request));
    }
    assert_missing(&delete(&sandbox, "none"));
    assert_missing(&restart(&sandbox, "%64efault"));
    let nowhere = service.sandbox("none");
    for answer in [
        send(&nowhere, "GET", "contexts"),
        send(&nowhere, "POST", "contexts"),
        send(&nowhere, "DELETE", "contexts/default"),
        send(&nowhere, "POST", "contexts/default/restart"),
        send(&nowhere, "POST", "interrupt"),
    ] {
        answer.refused(404, "sandbox_not_found");
    }
    send(&sandbox, "PUT", "contexts").refused(405, "method_not_allowed");
    assert_eq!(list(&sandbox).len(), 1);
    sandbox.assert_usable();
}

#[test]
fn fifty_contexts_in_ten_sandboxes_answer_in_order() {
    let service = Service::start();
    let spec = json!({ "memory_bytes": 256 << 20 });
    let sandboxes: Vec<_> = (0..10).map(|_| service.create_with(&spec)).collect();
    thread::scope(|scope| {
        for (number, sandbox) in sandboxes.iter().enumerate() {
            for context in 0..5 {
                scope.spawn(move || in_order(sandbox, number * 5 + context, context == 0));
            }
        }
    });
    for sandbox in &sandboxes {
        let contexts = list(sandbox);
        assert_eq!(contexts.len(), 5);
        assert!(
            contexts.iter().all(|c| c["execution_count"] == 6),
            "{contexts:?}"
        );
    }
}

/// Makes a context, or takes the one that is there, and has it count.
fn in_order(sandbox: &Sandbox<'_>, mine: usize, default: bool) {
    let context = if default {
        "default".to_owned()
    } else {
        create(sandbox, &json!({}))
    };
    stdout(sandbox, &context, &format!("mine, log = {mine}, []"));
    for step in 0..5 {
        let code = format!("log.append({step})\nprint(mine, log)");
        let log: Vec<_> = (0..=step).collect();
        assert_eq!(
            stdout(sandbox, &context, &code),
            format!("{mine} {log:?}\n")
        );
    }
}
