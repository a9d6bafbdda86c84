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
        stdout.contains("[stdout: 9000 bytes are left out here, over the limit of 1000]\n"),
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
fn what_is_printed_after_a_clear_is_never_cleared_with_what_was_before() {
    let service = Service::start();
    let sandbox = service.create();
    for wait in ["False", "True"] {
        for _ in 0..5 {
            let code = format!(
                "import os\n\
                 for n in range(50):\n    \
                     os.system(f'echo of a child {{n}}'); display(n)\n    \
                     clear_output(wait={wait}); print(n)"
            );
            let outcome =
                sandbox.execute(&format!("from IPython.display import clear_output\n{code}"));
            assert_eq!(outcome["stdout"], "49\n", "{}", shown(&outcome));
            assert_eq!(outcome["results"], json!([]));
        }
    }
}

#[test]
fn what_python_writes_to_both_streams_comes_in_order() {
    let service = Service::start();
    let sandbox = service.create();
    let code = "import sys\n\
                for n in range(50):\n    print(f'{n}a'); print(f'{n}b', file=sys.stderr)";
    let wanted: Vec<String> = (0..50)
        .flat_map(|n| [format!("{n}a"), format!("{n}b")])
        .collect();
    for _ in 0..5 {
        let mut seen = String::new();
        let mut events = sandbox.stream(code);
        while let Some(event) = events.event() {
            if event["type"] == "stdout" || event["type"] == "stderr" {
                seen.push_str(event["text"].as_str().expect("a text"));
            }
        }
        assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), wanted);
    }
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

#[test]
fn all_of_an_over_long_stream_can_be_downloaded() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    let outcome = sandbox.execute("for n in range(100_000): print(f'line {n:06}')");
    let file = &outcome["truncated"]["stdout_file"];
    assert_eq!(file["size"], 1_200_000, "{}", shown(&outcome));
    assert_eq!(file["complete"], true);
    assert_eq!(outcome["truncated"]["stderr_file"], Value::Null);
    assert_eq!(outcome["truncated"]["not_saved"], Value::Null);
    assert_eq!(outcome["files"], json!([]), "it is no result of the code");
    let url = file["url"].as_str().expect("a URL");
    let all: String = (0..100_000).map(|n| format!("line {n:06}\n")).collect();
    assert!(service.get(url).ok().body == all.as_bytes());
    let path = file["path"].as_str().expect("a path");
    assert_eq!(
        sandbox.stdout(&format!("print(len(open('{path}').read()))")),
        "1200000\n"
    );
    // Both streams of one execution, told to a reader of events.
    let events = events(
        &sandbox,
        "import os\nos.write(1, b'\\xff' * 5000); os.write(2, b'e' * 6000)",
    );
    let truncated = &events.last().expect("an end")["truncated"];
    for (stream, bytes) in [("stdout", vec![255; 5000]), ("stderr", vec![b'e'; 6000])] {
        let url = truncated[format!("{stream}_file")]["url"].as_str();
        assert!(service.get(url.expect("a URL")).ok().body == bytes);
    }
}

#[test]
fn nothing_is_saved_of_output_within_the_limit_or_where_saving_is_off() {
    let service = Service::with_config(CONFIG);
    let sandbox = service.create();
    sandbox.execute("print('x' * 900)");
    assert_eq!(sandbox.files(), []);
    let service = Service::with_config(&format!("{CONFIG}\nlimits.saved_output_bytes = 0"));
    let sandbox = service.create();
    let outcome = sandbox.execute("print('x' * 9000)");
    assert_eq!(outcome["truncated"]["stdout_bytes"], 9001);
    assert_eq!(outcome["truncated"]["stdout_file"], Value::Null);
    assert_eq!(sandbox.files(), []);
}

#[test]
fn a_saved_file_is_cut_at_its_limit() {
    let service = Service::with_config(&format!("{CONFIG}\nlimits.saved_output_bytes = 5000"));
    let sandbox = service.create();
    for (bytes, complete) in [(5000, true), (5001, false), (100_000, false)] {
        let outcome = sandbox.execute(&format!("import os\nn = os.write(1, b'x' * {bytes})"));
        let file = &outcome["truncated"]["stdout_file"];
        assert_eq!(file["size"], 5000, "{}", shown(&outcome));
        assert_eq!(file["complete"], complete, "{bytes}");
        let url = file["url"].as_str().expect("a URL");
        assert_eq!(service.get(url).ok().body, vec![b'x'; 5000]);
    }
}

#[test]
fn older_saved_files_make_room_for_newer_ones() {
    let service = Service::with_config(CONFIG);
    // One file may take 64 KiB of such a disk, all of them 128.
    let sandbox = service.create_with(&json!({ "disk_bytes": 1 << 20 }));
    let urls: Vec<String> = (0..4)
        .map(|_| {
            let outcome = sandbox.execute("print('x' * 59_999)");
            let url = &outcome["truncated"]["stdout_file"]["url"];
            url.as_str().expect("a URL").to_owned()
        })
        .collect();
    for (url, status) in urls.iter().zip([404, 404, 200, 200]) {
        assert_eq!(service.get(url).status, status, "{url}");
    }
}

#[test]
fn what_stands_in_the_way_of_the_file_costs_the_file_only() {
    let service = Service::with_config(CONFIG);
    let fill = "try:\n    with open('filler', 'wb') as f:\n        while True: f.write(bytes(4096))\nexcept OSError: pass\n";
    for in_the_way in [
        "os.symlink('/tmp', '.outputs')\n",
        "open('.outputs', 'w').close()\n",
        "os.mkdir('.outputs', 0o000)\n",
        fill,
    ] {
        let sandbox = service.create_with(&json!({ "disk_bytes": 4 << 20 }));
        let code = format!("import os\n{in_the_way}print('x' * 50_000)\n'result'");
        let outcome = sandbox.execute(&code);
        assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
        assert_eq!(outcome["results"][0]["data"], "'result'");
        let truncated = &outcome["truncated"];
        assert_eq!(truncated["stdout_bytes"], 50_001, "{truncated}");
        assert_eq!(truncated["stdout_file"], Value::Null, "{truncated}");
        let why = truncated["not_saved"].as_str().expect("a reason");
        assert!(why.starts_with("stdout: "), "{why}");
        println!("{in_the_way}: {why}");
        sandbox.assert_usable();
    }
}
