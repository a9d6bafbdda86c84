//! Background processes: output, input, signals and limits; terminals and WebSockets below.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::{sandbox_leaves, wait_until};
use crate::fixture::http::{Answer, Request};
use crate::fixture::sandbox::Sandbox;

mod sockets;
mod terminals;

const SOON: Duration = Duration::from_secs(20);

fn send(sandbox: &Sandbox<'_>, method: &str, verb: &str) -> Answer {
    let path = sandbox.path(verb);
    sandbox.service.send(&Request {
        method,
        path: &path,
        ..Request::default()
    })
}

/// A background process of a sandbox.
struct Process<'a> {
    sandbox: &'a Sandbox<'a>,
    id: String,
    started: Value,
}

#[track_caller]
fn start<'a>(sandbox: &'a Sandbox<'a>, command: &str) -> Process<'a> {
    start_json(sandbox, &json!({ "command": command }))
}

#[track_caller]
fn start_json<'a>(sandbox: &'a Sandbox<'a>, request: &Value) -> Process<'a> {
    let path = sandbox.path("processes");
    let started = sandbox.service.post_json(&path, request).ok().json();
    Process {
        sandbox,
        id: started["process_id"].as_str().expect("an id").to_owned(),
        started,
    }
}

#[track_caller]
fn list(sandbox: &Sandbox<'_>) -> Vec<Value> {
    let listed = send(sandbox, "GET", "processes").ok().json();
    listed.as_array().expect("a list").clone()
}

impl Process<'_> {
    fn verb(&self, verb: &str) -> String {
        format!("processes/{}{verb}", self.id)
    }

    #[track_caller]
    fn get(&self, verb: &str) -> Answer {
        send(self.sandbox, "GET", &self.verb(verb))
    }

    #[track_caller]
    fn post(&self, verb: &str, request: &Value) -> Answer {
        let path = self.sandbox.path(&self.verb(verb));
        self.sandbox.service.post_json(&path, request)
    }

    #[track_caller]
    fn info(&self) -> Value {
        self.get("").ok().json()
    }

    #[track_caller]
    fn wait(&self) -> Value {
        let info = self
            .post("/wait", &json!({ "timeout_seconds": 30 }))
            .ok()
            .json();
        assert_eq!(info["state"], "exited", "{info}");
        info
    }

    #[track_caller]
    fn output(&self, offset: u64) -> Value {
        self.get(&format!("/output?offset={offset}&wait_seconds=20"))
            .ok()
            .json()
    }

    /// Waits until its output holds a text; gives all of it.
    #[track_caller]
    fn says(&self, text: &str) -> String {
        self.says_since(0, text).0
    }

    /// Waits until its output since an offset holds a text; gives all of that, and where to go on.
    #[track_caller]
    fn says_since(&self, mut offset: u64, text: &str) -> (String, u64) {
        let mut said = String::new();
        loop {
            let output = self.output(offset);
            for chunk in output["chunks"].as_array().expect("a list") {
                said += chunk["text"].as_str().expect("a text");
            }
            offset = output["next_offset"].as_u64().expect("a number");
            if said.contains(text) {
                return (said, offset);
            }
            assert_eq!(output["state"], "running", "not {text:?}: {said:?}");
            assert!(
                !output["chunks"].as_array().expect("a list").is_empty(),
                "not {text:?}: {said:?}"
            );
        }
    }

    /// Sends bytes to its standard input.
    #[track_caller]
    fn write(&self, bytes: &[u8]) -> Answer {
        let path = self.sandbox.path(&self.verb("/stdin"));
        self.sandbox
            .service
            .post(&path, "application/octet-stream", bytes)
    }

    #[track_caller]
    fn signal(&self, name: &str) -> Answer {
        self.post("/signal", &json!({ "signal": name }))
    }

    #[track_caller]
    fn delete(&self) -> Answer {
        send(self.sandbox, "DELETE", &self.verb(""))
    }
}

#[test]
fn output_is_told_since_an_offset_and_the_end_is_kept() {
    let service = Service::start();
    let sandbox = service.create();
    let process = start_json(
        &sandbox,
        &json!({
            "command": "echo one; echo two >&2; read line; echo \"$line $X\"; pwd; exit 3",
            "env": { "X": "äx" }, "cwd": "/tmp",
        }),
    );
    assert_eq!(process.id.len(), 26);
    assert_eq!(
        (&process.started["state"], &process.started["exit_code"]),
        (&json!("running"), &Value::Null)
    );
    assert!(process.started["pid"].as_i64().is_some_and(|pid| pid > 1));
    assert_eq!(process.says("two"), "one\ntwo\n");
    let first = process.output(0);
    let mut streams: Vec<_> = first["chunks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["stream"].clone())
        .collect();
    streams.sort_by_key(Value::to_string);
    assert_eq!(streams, ["stderr", "stdout"]);
    assert_eq!(first["next_offset"], 8);
    let began = Instant::now();
    let nothing = process.get("/output?offset=8&wait_seconds=0.5").ok().json();
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert_eq!(
        (&nothing["chunks"], &nothing["next_offset"]),
        (&json!([]), &json!(8))
    );
    process.write(b"three\n").ok();
    let end = process.wait();
    assert_eq!(
        (&end["exit_code"], &end["signal"]),
        (&json!(3), &Value::Null)
    );
    let rest = process.output(8);
    assert_eq!(
        rest["chunks"],
        json!([{ "stream": "stdout", "text": "three äx\n/tmp\n" }])
    );
    assert_eq!(
        (&rest["state"], &rest["exit_code"]),
        (&json!("exited"), &json!(3))
    );
    assert_eq!(rest["next_offset"], end["output_bytes"]);
    assert_eq!(list(&sandbox), [end]);
    process.write(b"x").refused(409, "process_ended");
    process.signal("SIGTERM").refused(409, "process_ended");
    process.delete().ok();
    assert!(list(&sandbox).is_empty());
    process.get("").refused(404, "process_not_found");
}

#[test]
fn standard_input_makes_a_round_trip_and_can_be_closed() {
    let service = Service::with_config("limits.stdin_seconds = 1");
    let sandbox = service.create();
    let cat = start(&sandbox, "cat");
    cat.write(b"first\n").ok();
    assert_eq!(cat.says("first"), "first\n");
    let answer = cat
        .post("/stdin", &json!({ "text": "läst", "close": true }))
        .ok()
        .json();
    assert_eq!(answer["written_bytes"], 5);
    assert_eq!(cat.wait()["exit_code"], 0);
    assert_eq!(cat.says("läst"), "first\nläst");

    let python = start(&sandbox, "python3 -i -q 2>&1");
    python.write(b"x = 20\nprint(x + 1)\n").ok();
    python.says("21");
    python.write(b"print(x * 2)\nexit(7)\n").ok();
    assert_eq!(python.wait()["exit_code"], 7);
    assert!(python.says("40").contains("40"));

    let deaf = start(&sandbox, "sleep 1000");
    let full = deaf.write(&[b'x'; 1 << 20]).refused(429, "stdin_full");
    assert!(
        full["detail"]
            .as_str()
            .is_some_and(|d| d.contains("of 1048576 bytes")),
        "{full}"
    );
    deaf.post("/stdin", &json!({ "close": true })).ok();
    deaf.write(b"x").refused(409, "stdin_closed");
    deaf.post("/stdin", &json!({ "close": true }))
        .refused(409, "stdin_closed");
    let closed = start(&sandbox, "exec <&-; echo closed; sleep 1000");
    closed.says("closed");
    closed.write(b"x").refused(409, "stdin_closed");
}

#[test]
fn a_signal_can_be_caught_and_ends_a_process_otherwise() {
    let service = Service::start();
    let sandbox = service.create();
    let python = start(
        &sandbox,
        "python3 -c 'import time\ntry:\n print(\"ready\")\n time.sleep(1000)\nexcept KeyboardInterrupt:\n print(\"caught\")'",
    );
    python.says("ready");
    python.signal("SIGINT").ok();
    assert_eq!(python.wait()["exit_code"], 0);
    python.says("caught");
    let trapping = start(
        &sandbox,
        "trap 'echo got' USR1; trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done 2>/dev/null",
    );
    trapping.says("ready");
    trapping.signal("SIGUSR1").ok();
    trapping.says("got");
    trapping.signal("SIGTERM").ok();
    assert_eq!(trapping.wait()["exit_code"], 5);
    let group = start(&sandbox, "sleep 1000 & echo ready; wait");
    group.says("ready");
    group.signal("SIGTERM").ok();
    let end = group.wait();
    assert_eq!(
        (&end["signal"], &end["exit_code"]),
        (&json!("SIGTERM"), &json!(143))
    );
    assert_eq!(
        sandbox.command("pgrep sleep")["exit_code"],
        1,
        "its child got it too"
    );
}

#[test]
fn a_kill_ends_grandchildren_and_daemons() {
    let service = Service::start();
    let sandbox = service.create();
    for how in ["SIGKILL", "delete"] {
        let tree = start(
            &sandbox,
            "trap '' TERM INT HUP; (setsid sleep 1000 &); (bash -c 'trap \"\" TERM; sleep 1000' & sleep 1000 & wait) & echo ready; wait",
        );
        tree.says("ready");
        wait_until("all of it runs", SOON, || {
            sandbox.command("pgrep -c sleep")["stdout"] == "3\n"
        });
        if how == "delete" {
            tree.delete().ok();
            tree.get("").refused(404, "process_not_found");
        } else {
            tree.signal(how).ok();
            let end = tree.wait();
            assert_eq!(
                (&end["signal"], &end["exit_code"]),
                (&json!("SIGKILL"), &json!(137))
            );
        }
        wait_until("all of it is gone", SOON, || {
            sandbox.command("pgrep sleep")["exit_code"] == 1
        });
    }
    let daemon = start(&sandbox, "setsid sleep 1000 & echo gone");
    daemon.wait();
    assert_eq!(
        sandbox.command("pgrep -c sleep")["stdout"],
        "1\n",
        "it goes on"
    );
    daemon.delete().ok();
    wait_until("it is gone", SOON, || {
        sandbox.command("pgrep sleep")["exit_code"] == 1
    });
    wait_until("no leaf is left", SOON, || {
        sandbox.command("true");
        !sandbox_leaves(&sandbox.id)
            .iter()
            .any(|leaf| leaf.starts_with("command-"))
    });
}

#[test]
fn a_timeout_kills_a_process() {
    let service = Service::start();
    let sandbox = service.create();
    let process = start_json(
        &sandbox,
        &json!({ "command": "echo begun; sleep 1000", "timeout_seconds": 0.5 }),
    );
    let end = process.wait();
    assert_eq!(
        (&end["timed_out"], &end["exit_code"]),
        (&json!(true), &json!(124))
    );
    process.says("begun");
    let running = start(&sandbox, "sleep 1000");
    let waited = running
        .post("/wait", &json!({ "timeout_seconds": 0.2 }))
        .ok()
        .json();
    assert_eq!(waited["state"], "running");
}

#[test]
fn running_processes_are_limited_and_ended_ones_forgotten_in_turn() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("processes");
    let running: Vec<_> = (0..16).map(|_| start(&sandbox, "sleep 1000")).collect();
    let refused = service
        .post_json(&path, &json!({ "command": "true" }))
        .refused(429, "too_many_background_processes");
    assert!(
        refused["detail"]
            .as_str()
            .is_some_and(|d| d.contains("limits.background_processes"))
    );
    running[0].signal("SIGKILL").ok();
    running[0].wait();
    let last: Vec<_> = (0..17)
        .map(|n| {
            let process = start(&sandbox, &format!("echo {n}"));
            process.wait();
            process.id
        })
        .collect();
    let listed = list(&sandbox);
    let ended: Vec<_> = listed
        .iter()
        .filter(|p| p["state"] == "exited")
        .map(|p| p["process_id"].clone())
        .collect();
    // The limit holds whenever one is started; the last has ended since.
    assert_eq!(ended, last, "the 16 that ended last, and the newest");
    assert_eq!(listed.len(), 32);
    sandbox.assert_usable();
}

#[test]
fn a_gigabyte_of_output_leaves_the_service_as_it_was() {
    let service = Service::start();
    let sandbox = service.create();
    let before = service.process().rss_bytes();
    let process = start(
        &sandbox,
        "head -c 1G /dev/zero | tr '\\0' 'x'; echo; echo last >&2",
    );
    let mut peak = 0;
    let end = loop {
        let info = process
            .post("/wait", &json!({ "timeout_seconds": 0.2 }))
            .ok()
            .json();
        peak = peak.max(service.process().rss_bytes());
        if info["state"] == "exited" {
            break info;
        }
    };
    assert_eq!(end["output_bytes"], (1u64 << 30) + 6);
    let all = process.output(0);
    assert_eq!(all["lost_bytes"], (1u64 << 30) + 6 - (1 << 20));
    assert_eq!(all["offset"], all["lost_bytes"]);
    let grown = peak.saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert_eq!(process.output(1 << 30)["chunks"][1]["text"], "last\n");
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let service = Service::start();
    let sandbox = service.create();
    let path = sandbox.path("processes");
    let refused =
        |request: Value, field: &str| service.post_json(&path, &request).refused_field(field);
    refused(json!({}), "command");
    refused(json!({ "command": 1 }), "command");
    refused(json!({ "command": "a\0b" }), "command");
    refused(json!({ "command": "true", "cwd": "no/such" }), "cwd");
    refused(
        json!({ "command": "true", "cwd": "no/such", "pty": { "columns": 80, "rows": 24 } }),
        "cwd",
    );
    refused(
        json!({ "command": "true", "timeout_seconds": 0 }),
        "timeout_seconds",
    );
    refused(
        json!({ "command": "true", "timeout_seconds": 1e9 }),
        "timeout_seconds",
    );
    refused(json!({ "command": "true", "env": { "": "x" } }), "env");
    refused(json!({ "pty": { "columns": 0, "rows": 1 } }), "pty");
    refused(json!({ "pty": { "columns": 5000, "rows": 1 } }), "pty");
    refused(
        json!({ "pty": { "columns": 70000, "rows": 1 } }),
        "pty.columns",
    );
    refused(json!({ "pty": { "rows": 1 } }), "pty.columns");
    refused(json!({ "command": "true", "odd": 1 }), "odd");
    let long = json!({ "command": "x".repeat(40_000) });
    service
        .post_json(&path, &long)
        .refused(413, "command_too_large");

    let process = start(&sandbox, "echo hello; sleep 1000");
    process.says("hello");
    for name in ["", "KILL", "sigint", "SIGNONE", "9"] {
        process.signal(name).refused_field("signal");
    }
    for offset in ["-1", "x", "1.5", "7", "99999999999999999999"] {
        process
            .get(&format!("/output?offset={offset}"))
            .refused_field("offset");
    }
    for wait in ["-1", "x", "nan", "61", "inf"] {
        process
            .get(&format!("/output?wait_seconds={wait}"))
            .refused_field("wait_seconds");
    }
    process.get("/output?odd=1").refused(400, "bad_query");
    process
        .post("/wait", &json!({ "timeout_seconds": -1 }))
        .refused_field("timeout_seconds");
    process
        .post("/stdin", &json!({ "text": 1 }))
        .refused_field("text");
    process
        .post("/resize", &json!({ "columns": 1 }))
        .refused_field("rows");
    process.post("/odd", &json!({})).refused(404, "not_found");
    let unknown = Process {
        sandbox: &sandbox,
        id: "0".repeat(26),
        started: Value::Null,
    };
    for verb in ["", "/output"] {
        unknown.get(verb).refused(404, "process_not_found");
    }
    for verb in ["/signal", "/wait", "/resize", "/stdin"] {
        unknown
            .post(verb, &json!({}))
            .refused(404, "process_not_found");
    }
    unknown.delete().refused(404, "process_not_found");
    let other = service.create();
    let stranger = Process {
        sandbox: &other,
        id: process.id.clone(),
        started: Value::Null,
    };
    stranger.get("").refused(404, "process_not_found");
    process.delete().ok();
    process.delete().refused(404, "process_not_found");
}

#[test]
fn a_background_process_does_not_keep_an_idle_sandbox() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "idle_seconds": 2 }));
    let process = start(&sandbox, "sleep 1000");
    // Whoever waits for it uses the sandbox.
    let waited = process
        .post("/wait", &json!({ "timeout_seconds": 3 }))
        .ok()
        .json();
    assert_eq!(waited["state"], "running");
    std::thread::sleep(Duration::from_secs(3));
    process.get("").refused(404, "sandbox_not_found");
}
