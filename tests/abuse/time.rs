//! Code that does not want to end. Each ends within its time and the grace after the interrupt.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{Scene, assert_ended};

const GRACE: &str = "limits.interrupt_grace_seconds = 1";
/// One second of time, one of grace, and a machine full of tests.
const IN_TIME: Duration = Duration::from_secs(8);

#[track_caller]
fn ends_in_time(code: &str, state: &str) {
    let scene = Scene::new(GRACE);
    let attacker = scene.attacker(&json!({}));
    attacker.execute("kept = 1");
    let begun = Instant::now();
    let outcome = attacker.execute_within(1.0, code);
    assert_ended(&outcome, "timeout", state);
    assert!(
        begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < IN_TIME,
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(attacker.stdout("print(kept)"), "1\n");
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_loop() {
    ends_in_time("while True: pass", "kept");
}

#[test]
fn a_sleep() {
    ends_in_time("import time\ntime.sleep(1000)", "kept");
}

#[test]
fn an_awaited_sleep() {
    ends_in_time("import asyncio\nawait asyncio.sleep(1000)", "kept");
}

#[test]
fn a_child_that_is_waited_for() {
    ends_in_time(
        "import subprocess\nsubprocess.run(['sleep', '1000'])",
        "kept",
    );
}

#[test]
fn children_of_code_that_is_stopped_end_with_it_and_older_ones_do_not() {
    let scene = Scene::new(GRACE);
    let attacker = scene.attacker(&json!({}));
    attacker.execute("import subprocess\nserver = subprocess.Popen(['sleep', '1001'])");
    let outcome = attacker.execute_within(
        1.0,
        "child = subprocess.Popen(['sleep', '1002'])\n\
         subprocess.Popen('setsid sleep 1003 & exit', shell=True).wait()\nwhile True: pass",
    );
    assert_ended(&outcome, "timeout", "kept");
    let said = outcome["error_value"].as_str().expect("a sentence");
    assert!(
        said.contains("2 processes that it had started were killed"),
        "{said}"
    );
    assert_eq!(
        attacker.stdout("print(child.wait(), server.poll())"),
        "-9 None\n"
    );
    let died = attacker.execute_within(1.0, "import os\nos._exit(1)");
    assert_ended(&died, "kernel_died", "restored");
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_shell_command_of_ipython() {
    ends_in_time("!sleep 1000", "kept");
}

#[test]
fn an_ignored_interrupt() {
    ends_in_time(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "restored",
    );
}

#[test]
fn a_masked_interrupt() {
    ends_in_time(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "restored",
    );
}

#[test]
fn an_interrupt_that_is_caught() {
    ends_in_time(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "restored",
    );
}

#[test]
fn a_loop_in_c() {
    ends_in_time("import itertools\nsum(itertools.repeat(1))", "restored");
}

#[test]
fn a_finally_that_hangs() {
    ends_in_time(
        "try:\n    while True: pass\nfinally:\n    import itertools; sum(itertools.repeat(1))",
        "restored",
    );
}

#[test]
fn a_thread_that_is_joined() {
    ends_in_time(
        "import threading\ndef spin():\n    while True: pass\nt = threading.Thread(target=spin, daemon=True)\nt.start()\nt.join()",
        "kept",
    );
}

#[test]
fn a_thread_left_spinning_slows_only_itself() {
    let scene = Scene::new(GRACE);
    let attacker = scene.attacker(&json!({}));
    let outcome = attacker.execute(
        "import threading\ndef spin():\n    while True: pass\nfor _ in range(3): threading.Thread(target=spin).start()",
    );
    assert_ended(&outcome, "ok", "kept");
    scene.assert_unharmed(&attacker);
    let begun = Instant::now();
    attacker.close().ok();
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
}

#[test]
fn exit_handlers_that_hang_do_not_hold_a_close() {
    let scene = Scene::new(GRACE);
    let attacker = scene.attacker(&json!({}));
    attacker.execute("import atexit, time\natexit.register(time.sleep, 1000)");
    let begun = Instant::now();
    attacker.close().ok();
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    scene.assert_others_unharmed();
}

#[test]
fn asking_for_input_never_hangs() {
    let scene = Scene::new(GRACE);
    let attacker = scene.attacker(&json!({}));
    for code in [
        "input('name? ')",
        "import getpass\ngetpass.getpass()",
        "import sys\nraise EOFError if sys.stdin.read() == '' else 0",
    ] {
        assert_eq!(
            attacker.execute_within(5.0, code)["error"],
            "EOFError",
            "{code}"
        );
    }
    assert_eq!(
        attacker.execute_within(5.0, "breakpoint()\nprint('on')")["stdout"],
        "on\n"
    );
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_hog_gets_no_more_than_its_share() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "cpus": 0.25 }));
    let outcome = attacker.execute(
        "import os, time\n\
         for _ in range(3): os.fork()\n\
         end = time.monotonic() + 3\n\
         while time.monotonic() < end: pass\n\
         if os.getppid() != 0: os._exit(0)",
    );
    let used = ["cpu_user_seconds", "cpu_system_seconds"]
        .map(|key| outcome["usage"][key].as_f64().expect("a number"));
    let share =
        used.iter().sum::<f64>() / outcome["usage"]["wall_seconds"].as_f64().expect("a number");
    assert!(share < 0.4, "{share}: {}", outcome["usage"]);
    scene.assert_unharmed(&attacker);
}
