//! How executions end, and what they tell meanwhile.

use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{Incoming, Request};
use crate::fixture::sandbox::shown;

#[test]
fn an_exception_is_an_outcome() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute("def f():\n    raise ValueError('no 💥')\nprint('before')\nf()");
    assert_eq!(outcome["outcome"], "error");
    assert_eq!(outcome["state"], "kept");
    assert_eq!(outcome["error"], "ValueError");
    assert_eq!(outcome["error_value"], "no 💥");
    assert_eq!(outcome["stdout"], "before\n");
    let traceback = outcome["traceback"].as_str().expect("a traceback");
    assert!(
        traceback.contains("line 2, in f") && traceback.contains("ValueError: no 💥"),
        "{traceback}"
    );
    for leaked in ["/run/sandcell", "_sandcell", "\u{1b}"] {
        assert!(!traceback.contains(leaked), "{leaked}: {traceback}");
    }
    sandbox.assert_usable();
}

#[test]
fn the_memory_limit_ends_the_kernel_and_the_next_execution_works() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 256 << 20 }));
    sandbox.execute("x = 1\nopen('kept', 'w').write('x')");
    let outcome = sandbox.execute("b = bytearray(512 << 20)\nprint('survived')");
    assert_eq!(outcome["outcome"], "out_of_memory", "{}", shown(&outcome));
    assert_eq!(outcome["error"], "out_of_memory");
    assert_eq!(outcome["state"], "restored");
    assert_eq!(outcome["usage"]["limits_hit"], json!(["memory"]));
    assert_eq!(outcome["usage"]["limit_hits"], json!({ "memory": 1 }));
    assert_eq!(outcome["usage"]["read_bytes"], Value::Null);
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
    assert_eq!(sandbox.stdout("print(open('kept').read())"), "x\n");
    // The limit is what ended it: with more, the same code runs.
    let larger = service.create_with(&json!({ "memory_bytes": 1024 << 20 }));
    assert_eq!(
        larger.stdout("b = bytearray(512 << 20)\nprint('survived')"),
        "survived\n"
    );
}

#[test]
fn an_exit_of_the_process_is_told_with_its_code_and_the_next_execution_works() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute("import os\nprint('last words')\nos._exit(3)");
    assert_eq!(outcome["outcome"], "kernel_died", "{}", shown(&outcome));
    assert_eq!(outcome["error"], "kernel_died");
    assert_eq!(outcome["exit_code"], 3);
    assert_eq!(outcome["signal"], Value::Null);
    assert_eq!(outcome["state"], "restored");
    assert_eq!(outcome["stdout"], "last words\n");
    sandbox.assert_usable();
}

#[test]
fn a_segmentation_fault_is_told_with_its_signal_and_the_next_execution_works() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute("import ctypes\nctypes.string_at(0)");
    assert_eq!(outcome["outcome"], "kernel_died", "{}", shown(&outcome));
    assert_eq!(outcome["signal"], 11);
    assert_eq!(outcome["state"], "restored");
    let stderr = outcome["stderr"].as_str().expect("a text");
    assert!(
        stderr.contains("Segmentation fault"),
        "where it was is told: {stderr}"
    );
    sandbox.assert_usable();
}

#[test]
fn sys_exit_is_an_outcome_and_keeps_the_state() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute("x = 5\nimport sys\nsys.exit(3)");
    assert_eq!(outcome["outcome"], "error", "{}", shown(&outcome));
    assert_eq!(outcome["error"], "SystemExit");
    assert_eq!(outcome["error_value"], "3");
    assert_eq!(sandbox.stdout("print(x)"), "5\n");
}

#[test]
fn a_timeout_interrupts_the_code_and_keeps_its_state() {
    let service = Service::start();
    let sandbox = service.create();
    let begun = Instant::now();
    let outcome = sandbox.execute_within(1.0, "x = 7\nprint('begun')\nwhile True: pass");
    assert_eq!(outcome["outcome"], "timeout", "{}", shown(&outcome));
    assert_eq!(outcome["state"], "kept");
    assert_eq!(outcome["stdout"], "begun\n");
    assert_eq!(outcome["usage"]["limits_hit"], json!(["time"]));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(sandbox.stdout("print(x)"), "7\n");
}

#[test]
fn events_come_as_lines_while_the_code_runs() {
    let service = Service::start();
    let sandbox = service.create();
    // The second half waits for a file that is made once the first half was read.
    let code = "import os, sys, time\n\
                print('one ✓', flush=True)\n\
                while not os.path.exists('go'): time.sleep(0.01)\n\
                print('two', file=sys.stderr, flush=True)\n\
                6 * 7";
    let mut events = sandbox.stream(code);
    assert_eq!(events.status, 200);
    assert_eq!(
        events.event().expect("a start"),
        json!({ "type": "started", "execution_count": 1 })
    );
    assert_eq!(text_until_newline(&mut events, "stdout"), "one ✓\n");
    sandbox.upload("go", b"").ok();
    assert_eq!(text_until_newline(&mut events, "stderr"), "two\n");
    let result = events.event().expect("a result");
    assert_eq!(
        (&result["type"], &result["data"]["text/plain"]),
        (&json!("result"), &json!("42"))
    );
    let files = events.event().expect("files");
    assert_eq!(
        (&files["type"], &files["files"][0]["path"]),
        (&json!("files"), &json!("go"))
    );
    let usage = events.event().expect("usage");
    assert_eq!(usage["type"], "usage");
    assert!(
        usage["usage"]["wall_seconds"].as_f64() > Some(0.0),
        "{usage}"
    );
    let ended = events.event().expect("an end");
    assert_eq!(ended["type"], "ended");
    assert_eq!(ended["outcome"], "ok");
    assert_eq!(ended["truncated"], Value::Null);
    assert_eq!(
        (&ended["files"], &ended["usage"]),
        (&files["files"], &usage["usage"])
    );
    assert!(events.event().is_none(), "nothing follows the end");
}

#[test]
fn values_come_where_they_were_shown_and_outlive_a_death_right_after() {
    let service = Service::start();
    let sandbox = service.create();
    let code = "for n in range(3):\n    get_ipython().run_cell(str(n))\n    print('after', n)\n\
                import _thread, sys, time\n_thread.start_new_thread(sys.displayhook, (3,))\n\
                time.sleep(0.2)\nprint('after', 3)\n\
                import subprocess\nsubprocess.run(['echo', 'before 4'])\ndisplay(4)\n\
                print('after', 4)\n5";
    let mut events = sandbox.stream(code);
    let mut seen = Vec::new();
    while let Some(event) = events.event() {
        match event["type"].as_str() {
            Some("result") => seen.push(shown_text(&event)),
            Some("stdout") => seen.push(event["text"].as_str().expect("text").to_owned()),
            _ => {}
        }
    }
    let expected: String = (0..5).map(|n| format!("{n}after {n}\n")).collect();
    let expected = expected.replace("4after", "before 4\n4after") + "5";
    assert_eq!(seen.concat(), expected);
    for n in 0..20 {
        let outcome = sandbox.execute("display(3)\nimport os\nos.kill(os.getpid(), 9)");
        assert_eq!(outcome["outcome"], "kernel_died", "{}", shown(&outcome));
        assert_eq!(
            outcome["results"][0]["data"],
            "3",
            "{n}: {}",
            shown(&outcome)
        );
    }
}

fn shown_text(event: &Value) -> String {
    event["data"]["text/plain"].as_str().expect("text").into()
}

/// From the write inside to the client's hands, on the clock that both share. The median, as the machine
/// that tests run on may do something else for a while.
#[test]
fn output_is_with_the_client_within_5_ms_of_the_write() {
    const LINES: usize = 100;
    let service = Service::start();
    let sandbox = service.create();
    for (writer, code) in [
        ("print", "print(time.time_ns())"),
        ("a write", "os.write(1, b'%d\\n' % time.time_ns())"),
    ] {
        let code =
            format!("import os, time\nfor _ in range({LINES}):\n    time.sleep(0.01)\n    {code}");
        let mut events = sandbox.stream(&code);
        let mut late: Vec<Duration> = Vec::new();
        while late.len() < LINES {
            let event = events.event().expect("output");
            let now = UNIX_EPOCH.elapsed().expect("a time after 1970");
            if event["type"] != "stdout" {
                continue;
            }
            // The end of a line may come by itself.
            let text = event["text"].as_str().expect("a text");
            for line in text.lines().filter(|line| !line.is_empty()) {
                let written = Duration::from_nanos(line.parse().expect("a time"));
                late.push(now.saturating_sub(written));
            }
        }
        late.sort_unstable();
        let [median, worst] = [late[LINES / 2], late[LINES - 1]];
        println!("{writer}: median {median:?}, worst {worst:?}");
        assert!(median <= Duration::from_millis(5), "{writer}: {late:?}");
    }
}

/// Text may come in any number of events.
fn text_until_newline(events: &mut Incoming, stream: &str) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') {
        let event = events.event().expect("output");
        assert_eq!(event["type"], stream, "{event}");
        text.push_str(event["text"].as_str().expect("a text"));
    }
    text
}

#[test]
fn lines_are_sent_to_whoever_accepts_them() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("execute");
    let headers: &[_] = &[("Accept", "text/html, application/x-ndjson;q=0.5")];
    let request = Request {
        method: "POST",
        path: &path,
        headers,
        body: b"1/0",
    };
    let answer = service.send(&request).ok();
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let text = answer.text();
    let kinds: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["type"].clone())
        .collect();
    assert_eq!(kinds, ["started", "error", "files", "usage", "ended"]);
}

#[test]
fn server_sent_events_are_the_same_objects() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("execute");
    let ask = |accept: &str, content_type: &str, body: &[u8]| {
        service
            .send(&Request {
                method: "POST",
                path: &path,
                headers: &[("Accept", accept), ("Content-Type", content_type)],
                body,
            })
            .ok()
    };
    // Longer than the interval of keepalives.
    let code = "import time; time.sleep(5.5); print('é\\u2028', end='')\nopen('a', 'w').close()";
    let answer = ask("text/event-stream", "text/plain", code.as_bytes());
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let text = answer.text();
    assert!(text.is_ascii() && text.ends_with("\n\n"), "{text}");
    let events: Vec<(&str, Value)> = text
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("a name");
            let data = data.strip_prefix("data: ").expect("data");
            (name, serde_json::from_str(data).expect("JSON"))
        })
        .collect();
    assert!(events.iter().all(|(name, data)| data["type"] == *name));
    let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        ["started", "keepalive", "stdout", "files", "usage", "ended"]
    );
    assert_eq!(events[2].1["text"], "é\u{2028}");
    assert_eq!(events[3].1["files"][0]["path"], "a");
    // Who takes both gets lines, and `stream` decides against any `Accept`.
    let both = ask(
        "text/event-stream, application/x-ndjson",
        "text/plain",
        b"1",
    );
    assert_eq!(both.header("content-type"), Some("application/x-ndjson"));
    let json = "application/json";
    let plain = ask(
        "text/event-stream",
        json,
        br#"{"code": "1", "stream": false}"#,
    );
    assert_eq!(plain.json()["outcome"], "ok");
    let asked = ask(
        "text/event-stream",
        json,
        br#"{"code": "1", "stream": true}"#,
    );
    assert_eq!(asked.header("content-type"), Some("text/event-stream"));
}

#[test]
fn executions_of_one_sandbox_run_one_after_the_other() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("log = []");
    let code = "import time\nlog.append('in')\ntime.sleep(0.05)\nlog.append('out')";
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(sandbox.execute(code)["outcome"], "ok"));
        }
    });
    assert_eq!(sandbox.stdout("print(log == ['in', 'out'] * 6)"), "True\n");
}

#[test]
fn a_full_queue_refuses_more_and_says_when_to_come_again() {
    let service = Service::with_config("limits.queue = 1");
    let sandbox = service.create();
    let mut running = sandbox.stream("import time\nprint('begun', flush=True)\ntime.sleep(60)");
    while running.event().expect("code that prints")["type"] != "stdout" {}
    // One may wait; of two more at most one does.
    let refused = thread::scope(|scope| {
        let ask = || {
            let begun = service.begin(&Request {
                method: "POST",
                path: &sandbox.path("execute"),
                headers: &[("Accept", "application/x-ndjson")],
                body: b"1",
            });
            (begun.status, begun.finish())
        };
        let others: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        crate::fixture::host::wait_until("two are refused", Duration::from_secs(20), || {
            others.iter().filter(|o| o.is_finished()).count() >= 2
        });
        drop(running);
        let answers = others.into_iter().map(|o| o.join().expect("no panic"));
        answers
            .filter(|(status, _)| *status == 429)
            .map(|(_, a)| a.expect("an answer"))
            .collect::<Vec<_>>()
    });
    assert_eq!(refused.len(), 2);
    for answer in refused {
        answer.refused(429, "queue_full");
        assert!(answer.header("retry-after").is_some());
    }
    sandbox.assert_usable();
}

#[test]
fn variables_of_the_sandbox_and_of_one_execution() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "env": { "A": "of the sandbox", "B": "é\n" } }));
    let code =
        "import os\nprint(os.environ.get('A'), repr(os.environ.get('B')), os.environ.get('C'))";
    assert_eq!(sandbox.stdout(code), "of the sandbox 'é\\n' None\n");
    let once = sandbox.execute_json(&json!({ "code": code, "env": { "A": "once", "C": "c" } }));
    assert_eq!(once["stdout"], "once 'é\\n' c\n");
    assert_eq!(sandbox.stdout(code), "of the sandbox 'é\\n' None\n");
    let inherited =
        sandbox.command_json(&json!({ "command": "echo $A $C", "env": { "C": "mine" } }));
    assert_eq!(inherited["stdout"], "of the sandbox mine\n");
}

#[test]
fn usage_is_measured() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute(
        "import time\nheld = bytearray(8_000_000)\nt = time.process_time()\n\
         while time.process_time() - t < 0.2: pass",
    );
    let usage = &outcome["usage"];
    let number = |key: &str| {
        usage[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {usage}"))
    };
    assert!(number("wall_seconds") >= 0.2, "{usage}");
    assert!(
        (0.15..2.0).contains(&(number("cpu_user_seconds") + number("cpu_system_seconds"))),
        "{usage}"
    );
    assert!(
        (8e6..64e6).contains(&number("peak_memory_bytes")),
        "{usage}"
    );
    assert_eq!(usage["processes"], 1, "{usage}");
    assert_eq!(usage["limits_hit"], json!([]));
    assert_eq!(usage["limit_hits"], json!({}));
}

#[test]
fn bytes_read_and_written_are_counted_with_those_of_children() {
    let service = Service::start();
    let sandbox = service.create();
    let transfer = |code: &str| {
        let usage = sandbox.execute(code)["usage"].take();
        let bytes = |key: &str| {
            usage[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {usage}"))
        };
        (bytes("read_bytes"), bytes("written_bytes"))
    };
    // What the kernel itself reads and writes.
    let little = 200_000;
    let (read, written) = transfer("None");
    assert!(read < little && written < little, "{read} {written}");
    let (read, written) = transfer("n = open('f', 'wb').write(bytes(5_000_000))");
    assert!(read < little, "{read}");
    assert!(
        (5_000_000..5_000_000 + little).contains(&written),
        "{written}"
    );
    let (read, _) = transfer("n = len(open('f', 'rb').read())");
    assert!((5_000_000..5_000_000 + little).contains(&read), "{read}");
    let (read, written) = transfer("!cat f | cat > g");
    assert!(
        read >= 10_000_000 && written >= 10_000_000,
        "{read} {written}"
    );
    let (_, written) = transfer("print('x' * 1_000_000)");
    assert!(
        (1_000_000..1_000_000 + little).contains(&written),
        "{written}"
    );
}

#[test]
fn limits_are_told_with_how_often_they_were_hit() {
    let service = Service::with_config("limits.output_bytes = 1000");
    let sandbox = service.create_with(&json!({ "disk_bytes": 4 << 20, "memory_bytes": 256 << 20 }));
    let hits = |code: &str| {
        let usage = sandbox.execute(code)["usage"].take();
        let names: Vec<String> = usage["limit_hits"]
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        let mut listed: Vec<String> =
            serde_json::from_value(usage["limits_hit"].clone()).expect("names");
        listed.sort_unstable();
        assert_eq!(listed, names);
        usage["limit_hits"].clone()
    };
    let both = "import sys; print('x' * 2000); print('x' * 2000, file=sys.stderr)";
    assert_eq!(hits(both), json!({ "output": 2 }));
    let killed = "import subprocess\n\
                  for _ in range(2): subprocess.run(['python', '-c', 'b = bytearray(1 << 30)'])";
    assert_eq!(hits(killed), json!({ "memory": 2 }));
    // Raised, and gone again at the end.
    let raised = "import os\n\
                  try: open('f', 'wb').write(bytes(8 << 20))\n\
                  finally: os.remove('f')";
    assert_eq!(hits(raised), json!({ "disk": 1 }));
    let caught = "try:\n    \
                      with open('f', 'wb') as f:\n        \
                          while True: f.write(bytes(4096))\n\
                  except OSError: pass";
    assert_eq!(hits(caught), json!({ "disk": 1 }));
    assert_eq!(hits("os.remove('f')"), json!({}));
}
