//! Output over its limit: both ends are kept, the middle is counted.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

const CONFIG: &str = "limits.output_bytes = 1000";

/// An execution's events.
#[track_caller]
fn events(sandbox: &Sandbox<'_>, code: &str) -> Vec<Value> {
    let mut incoming = sandbox.stream(code);
    std::iter::from_fn(|| incoming.event()).collect()
}

fn text(events: &[Value], stream: &str) -> String {
    let told = events.iter().filter(|event| event["type"] == stream);
    told.map(|event| event["text"].as_str().expect("a text"))
        .collect()
}

#[test]
fn up_to_the_limit_nothing_is_cut() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    let outcome = sandbox.execute("print('x' * 999)");
    assert_eq!(outcome["stdout"], "x".repeat(999) + "\n");
    assert_eq!(outcome["truncated"], Value::Null);
    assert_eq!(outcome["usage"]["limits_hit"], json!([]));
}

#[test]
fn the_first_and_the_last_part_are_kept_and_the_rest_is_counted() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    let code = "import sys\n\
                for n in range(1000): print(f'line {n:04}')\n\
                print('é' * 600, 'end', sep='\\n', end='', file=sys.stderr)";
    let outcome = sandbox.execute(code);
    let stdout = outcome["stdout"].as_str().expect("a text");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[..2], ["line 0000", "line 0001"]);
    assert_eq!(lines[lines.len() - 2..], ["line 0998", "line 0999"]);
    assert!(
        stdout.contains("[stdout: 9000 bytes are left out here (limits.output_bytes is 1000)]\n"),
        "{stdout}"
    );
    let stderr = outcome["stderr"].as_str().expect("a text");
    assert!(
        stderr.starts_with("éé") && stderr.ends_with("é\nend") && !stderr.contains('\u{fffd}'),
        "{stderr}"
    );
    let truncated = &outcome["truncated"];
    assert_eq!(truncated["stdout_bytes"], 10_000, "{truncated}");
    assert_eq!(truncated["stderr_bytes"], 1204, "{truncated}");
    assert_eq!(truncated["results_dropped"], false);
    let kept = truncated["kept"].as_u64().expect("a number");
    assert!((1998..=2000).contains(&kept), "{truncated}");
    assert_eq!(outcome["usage"]["limits_hit"], json!(["output"]));
    assert_eq!(sandbox.execute("1")["truncated"], Value::Null);
}

#[test]
fn a_stream_tells_the_first_part_as_it_comes_and_the_last_at_the_end() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    let events = events(&sandbox, "print('a' * 2000); display(1); print('b' * 2000)");
    let kinds: Vec<&str> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    let at = |kind: &str| kinds.iter().position(|k| *k == kind).expect(kind);
    assert!(at("stdout") < at("result"), "{kinds:?}");
    let last_text = kinds.iter().rposition(|k| *k == "stdout").expect("text");
    assert!(at("result") < last_text, "{kinds:?}");
    let stdout = text(&events, "stdout");
    assert!(stdout.starts_with(&"a".repeat(750)) && stdout.ends_with(&("b".repeat(249) + "\n")));
    let ended = events.last().expect("an end");
    assert_eq!(ended["truncated"]["stdout_bytes"], 4002, "{ended}");
    assert_eq!(ended["truncated"]["kept"], 1000, "{ended}");
    assert_eq!(ended["stdout_dropped_bytes"], 3002, "{ended}");
}

#[test]
fn cleared_output_does_not_come_back_with_the_last_part() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    let cleared = sandbox.execute(
        "from IPython.display import clear_output\n\
         print('a' * 900); clear_output(); print('b' * 900)",
    );
    assert_eq!(
        cleared["stdout"],
        "b".repeat(900) + "\n",
        "{}",
        shown(&cleared)
    );
    assert_eq!(cleared["truncated"], Value::Null);
}

#[test]
fn late_output_is_shown_with_the_next_execution_and_counted_there() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    let late = |bytes: usize| {
        sandbox.execute(&format!(
            "import os, threading\n\
             go, told = threading.Event(), threading.Event()\n\
             def tell():\n    \
                 go.wait(); os.write(1, b'<' + b'l' * {bytes} + b'>'); told.set()\n\
             threading.Thread(target=tell).start()"
        ));
        // Nobody reads before the next execution has begun.
        sandbox.execute("threading.Timer(0.05, go.set).start()");
        std::thread::sleep(std::time::Duration::from_millis(300));
        sandbox.execute("told.is_set()")
    };
    let outcome = late(100);
    let text = format!("<{}>", "l".repeat(100));
    assert_eq!(outcome["stdout"], text, "{}", shown(&outcome));
    assert_eq!(outcome["truncated"], Value::Null);
    let outcome = late(4998);
    let stdout = outcome["stdout"].as_str().expect("a text");
    assert!(
        stdout.starts_with("<l") && stdout.ends_with("l>"),
        "{stdout}"
    );
    assert!(stdout.contains("4000 bytes are left out"), "{stdout}");
    assert_eq!(outcome["truncated"]["stdout_bytes"], 5000);
}
