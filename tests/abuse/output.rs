//! Output without end. What is kept is bounded, and so is the service's memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::sandbox::shown;
use crate::{Scene, assert_raised};

/// What a flood may leave in the service's memory.
const FLAT_BYTES: u64 = 48 << 20;
const MIB: usize = 1 << 20;
const SOON: Duration = Duration::from_secs(10);

/// Runs a flood; asserts that the outcome is small and marked, and that memory stays flat.
#[track_caller]
fn assert_bounded(scene: &Scene, code: &str, most_bytes: usize) -> Value {
    let attacker = scene.attacker(&json!({}));
    let before = scene.service.process().rss_bytes();
    let path = attacker.path("execute");
    let answer = scene
        .service
        .post(&path, "text/plain", code.as_bytes())
        .ok();
    let outcome = answer.json();
    assert!(
        answer.body.len() < most_bytes,
        "{} bytes",
        answer.body.len()
    );
    let growth = scene.service.process().rss_bytes().saturating_sub(before);
    assert!(growth < FLAT_BYTES, "{growth} bytes of memory");
    scene.assert_unharmed(&attacker);
    outcome
}

#[test]
fn half_a_gigabyte_of_text_is_cut_and_marked() {
    let scene = Scene::new("");
    let outcome = assert_bounded(
        &scene,
        "import os\nblock = b'x' * (1 << 16)\nfor _ in range(1 << 13):\n    left = block\n    while left: left = left[os.write(1, left):]",
        2 * MIB,
    );
    assert_eq!(outcome["outcome"], "ok");
    let truncated = &outcome["truncated"];
    assert_eq!(truncated["stdout_bytes"], 512 * MIB, "{truncated}");
    assert_eq!(truncated["kept"], MIB, "{truncated}");
    assert_eq!(outcome["usage"]["limits_hit"], json!(["output"]));
    let stdout = outcome["stdout"].as_str().expect("a text");
    let (head, tail) = (MIB * 3 / 4, MIB / 4);
    let marker = &stdout[head..stdout.len() - tail];
    let left_out = (512 * MIB - MIB).to_string();
    assert!(marker.len() < 200 && marker.contains(&left_out), "{marker}");
}

#[test]
fn output_of_children_is_cut_too() {
    let scene = Scene::new("");
    let outcome = assert_bounded(
        &scene,
        "!head -c 200000000 /dev/zero >&2; head -c 200000000 /dev/zero",
        20 * MIB,
    );
    assert_eq!(
        outcome["truncated"]["stderr_bytes"],
        200_000_000,
        "{}",
        shown(&outcome)
    );
}

#[test]
fn output_without_a_reader_ends_with_its_time() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1\nlimits.output_bytes = 1073741824");
    let attacker = scene.attacker(&json!({}));
    let before = scene.service.process().rss_bytes();
    let body =
        json!({ "code": "while True: print('x' * 100000)", "timeout_seconds": 2, "stream": true })
            .to_string();
    let path = attacker.path("execute");
    let headers: &[_] = &[("Content-Type", "application/json")];
    let request = crate::fixture::http::Request {
        method: "POST",
        path: &path,
        headers,
        body: body.as_bytes(),
    };
    let unread = scene.service.begin(&request);
    // The next one has its turn although nobody takes what the first one says.
    let begun = std::time::Instant::now();
    let answer = attacker.execute_within(60.0, "1 + 1");
    println!("{:?} {}", begun.elapsed(), answer["outcome"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
    let growth = scene.service.process().rss_bytes().saturating_sub(before);
    assert!(growth < FLAT_BYTES, "{growth} bytes of memory");
    drop(unread);
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_giant_traceback_is_cut() {
    let scene = Scene::new("");
    let outcome = assert_bounded(&scene, "raise ValueError('x' * 50_000_000)", MIB);
    assert_raised(&outcome, "ValueError");
    let outcome = assert_bounded(
        &scene,
        "raise type('N' * 1_000_000, (Exception,), {})('v')",
        MIB,
    );
    assert_eq!(outcome["outcome"], "error", "{}", shown(&outcome));
    let outcome = assert_bounded(
        &scene,
        "def f(n):\n    try: return f(n - 1) if n else 1 / 0\n    except Exception as e: raise ValueError('x' * 10000) from e\nf(300)",
        MIB,
    );
    assert_raised(&outcome, "ValueError");
}

#[test]
fn a_giant_result_is_cut() {
    let scene = Scene::new("");
    let outcome = assert_bounded(&scene, "'x' * 100_000_000", 20 * MIB);
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    let outcome = assert_bounded(
        &scene,
        "from IPython.display import Image, display\nimport os\ndisplay(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(40_000_000), format='png'))",
        30 * MIB,
    );
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
}

#[test]
fn displays_without_end_are_cut() {
    let scene = Scene::new("limits.result_bytes = 1000000");
    let outcome = assert_bounded(&scene, "for i in range(50_000): display(i)", 32 * MIB);
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    let shown_count = outcome["results"].as_array().expect("a list").len();
    assert!(shown_count < 50_000, "{shown_count}");
    assert_eq!(outcome["truncated"]["results_dropped"], true);
}

#[test]
fn file_changes_without_end_are_cut() {
    let scene = Scene::new("limits.files = 100");
    let outcome = assert_bounded(
        &scene,
        "for i in range(3000): open(f'{i:0200}', 'w').close()",
        MIB,
    );
    assert_eq!(outcome["files"].as_array().map(Vec::len), Some(100));
    assert_eq!(outcome["truncated"]["files_dropped"], true);
}

#[test]
fn stopping_whoever_saves_the_output_does_not_hold_the_answer() {
    let scene = Scene::new("limits.output_bytes = 100000");
    let attacker = scene.attacker(&json!({}));
    let begun = std::time::Instant::now();
    let outcome = attacker.execute(
        "import os, signal, threading\n\
         done = False\n\
         def stop():\n    \
             while not done:\n        \
                 for pid in os.listdir('/proc'):\n            \
                     if pid.isdigit() and int(pid) not in (1, os.getpid()):\n                \
                         try: os.kill(int(pid), signal.SIGSTOP)\n                \
                         except OSError: pass\n\
         thread = threading.Thread(target=stop); thread.start()\n\
         for n in range(300): print('x' * 99_999)\n\
         done = True; thread.join()",
    );
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert_eq!(outcome["truncated"]["stdout_bytes"], 30_000_000);
    let elapsed = begun.elapsed();
    println!("{elapsed:?} {}", outcome["truncated"]);
    assert!(elapsed < std::time::Duration::from_secs(20), "{elapsed:?}");
    scene.assert_unharmed(&attacker);
}

#[test]
fn an_answer_does_not_wait_for_each_old_file_that_cannot_be_removed() {
    let scene = Scene::new("limits.output_bytes = 1000\nlimits.saved_output_bytes = 100_000");
    let attacker = scene.attacker(&json!({}));
    for bytes in [[2000; 60].as_slice(), &[90_000; 2]].concat() {
        attacker.stdout(&format!("print('x' * {bytes})"));
    }
    let begun = Instant::now();
    // The name of the file that is being written tells the id of the worker that writes it. Those that
    // come after it are stopped.
    let outcome = attacker.execute(
        "import subprocess, sys, time\n\
         stopper = '''\n\
         import os, signal\n\
         begun = []\n\
         while not begun: begun = [f for f in os.listdir(\".outputs\") if f.startswith(\".upload-\")]\n\
         writer = int(begun[0].removeprefix(\".upload-\"))\n\
         while True:\n    \
             for pid in range(writer + 1, writer + 100):\n        \
                 try: os.kill(pid, signal.SIGSTOP)\n        \
                 except OSError: pass\n\
         '''\n\
         stopper = subprocess.Popen([sys.executable, '-c', stopper])\n\
         time.sleep(1)\n\
         print('x' * 45_000, flush=True)\n\
         time.sleep(0.5)\n\
         print('x' * 45_000)",
    );
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    attacker.stdout("stopper.kill()");
    scene.assert_unharmed(&attacker);
}

/// Marks tell in which order output came where somebody looks on; code can find out how they begin.
#[test]
fn forged_marks_hold_nobody_up() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    let flood = "import os, sys\n\
                 cells = sys.stdout.buffer.write.__closure__\n\
                 prefix = next(c.cell_contents.prefix for c in cells if hasattr(c.cell_contents, 'prefix'))\n\
                 assert len(prefix) == 17\n\
                 number = 0\n\
                 while True:\n    \
                     marks = bytearray()\n    \
                     for _ in range(2000):\n        \
                         number += 1\n        \
                         marks += prefix + number.to_bytes(4, 'big') + number.to_bytes(4, 'big')\n    \
                     os.write(1, marks)";
    let mut events = attacker.stream_json(json!({ "code": flood, "timeout_seconds": 3 }));
    let begun = Instant::now();
    std::thread::sleep(std::time::Duration::from_secs(1));
    for _ in 0..5 {
        scene.assert_others_unharmed();
    }
    let mut ended = json!(null);
    while let Some(event) = events.event() {
        ended = event;
    }
    assert_eq!(ended["outcome"], "timeout", "{ended}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    scene.assert_unharmed(&attacker);
}
