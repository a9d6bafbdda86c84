//! Processes and threads without end, and processes that do not want to go.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::host;
use crate::fixture::sandbox::shown;
use crate::{Scene, assert_ended, assert_raised};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn forking_without_end_raises_and_all_is_reaped_at_close() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "processes": 64 }));
    let outcome = attacker.execute(
        "import os, time\n\
         forks = 0\n\
         while True:\n    \
             if os.fork() == 0:\n        \
                 time.sleep(1000); os._exit(0)\n    \
             forks += 1",
    );
    assert_raised(&outcome, "BlockingIOError");
    assert_eq!(
        outcome["usage"]["limits_hit"],
        json!(["processes"]),
        "{}",
        shown(&outcome)
    );
    let uid = attacker.processes("kernel")[0].uid();
    let alive = host::processes_of(uid..uid + 1).len();
    assert!((50..=64).contains(&alive), "{alive} of 64");
    // Not even a command can be started, and that is said; nothing else is harmed.
    scene.assert_others_unharmed();
    attacker.close().ok();
    host::wait_until("all are gone", SOON, || {
        host::processes_of(uid..uid + 1).is_empty()
    });
}

#[test]
fn a_fork_bomb_ends_with_its_time() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({ "processes": 100 }));
    let begun = Instant::now();
    let outcome = attacker.execute_within(
        2.0,
        "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
    );
    // Kept where the interrupt found the one moment between two attempts.
    assert_eq!(outcome["outcome"], "timeout", "{}", shown(&outcome));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    scene.assert_unharmed(&attacker);
    let uid = attacker.processes("kernel")[0].uid();
    attacker.close().ok();
    assert_eq!(host::processes_of(uid..uid + 1), []);
}

#[test]
fn a_shell_s_fork_bomb_ends_with_its_time() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "processes": 100 }));
    let bomb =
        json!({ "command": "bomb() { bomb | bomb & }; bomb; sleep 1000", "timeout_seconds": 2 });
    let answer = attacker.command_json(&bomb);
    assert_eq!(answer["timed_out"], true, "{}", shown(&answer));
    host::wait_until("the bomb is gone", SOON, || {
        attacker.processes("command-0").is_empty()
    });
    scene.assert_unharmed(&attacker);
}

#[test]
fn threads_without_end_raise() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "processes": 64 }));
    let outcome = attacker.execute(
        "import threading\n\
         stop = threading.Event()\n\
         while True: threading.Thread(target=stop.wait, daemon=True).start()",
    );
    assert_raised(&outcome, "RuntimeError");
    assert_eq!(attacker.stdout("stop.set(); print('over')"), "over\n");
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_process_that_stops_itself_is_killed_when_its_time_is_over() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    let begun = Instant::now();
    let outcome = attacker.execute_within(
        1.0,
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    );
    assert_ended(&outcome, "timeout", "restored");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    scene.assert_unharmed(&attacker);
}

#[test]
fn everything_stopped_does_not_stop_files_or_the_close() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.upload("f", b"x").ok();
    attacker.execute("import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.2; while :; do kill -STOP -1; done'])");
    let begun = Instant::now();
    attacker.close().ok();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    scene.assert_others_unharmed();
}

#[test]
fn a_program_in_place_of_the_kernel_is_told() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    for program in [
        "['/bin/sleep', 'sleep', '1000']",
        "['/bin/true', 'true']",
        "['/opt/venv/bin/python', 'python', '-c', 'while True: pass']",
    ] {
        let begun = Instant::now();
        let outcome = attacker.execute(&format!("import os\nos.execl(*{program})"));
        assert_ended(&outcome, "kernel_died", "restored");
        assert!(begun.elapsed() < SOON, "{program}: {:?}", begun.elapsed());
    }
    scene.assert_unharmed(&attacker);
}

#[test]
fn daemons_are_gone_at_close() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.execute(
        "import os, signal, time, threading\n\
         for _ in range(5):\n    \
             if os.fork() == 0:\n        \
                 os.setsid()\n        \
                 if os.fork() == 0:\n            \
                     for s in range(1, 65):\n                \
                         try: signal.signal(s, signal.SIG_IGN)\n                \
                         except (OSError, ValueError): pass\n            \
                     os.closerange(0, 2000)\n            \
                     while True: time.sleep(1000)\n        \
                 os._exit(0)\n\
         threading.Thread(target=time.sleep, args=(1000,)).start()",
    );
    attacker.command(
        "for i in 1 2 3; do nohup setsid sh -c 'trap \"\" TERM; sleep 1000' >/dev/null 2>&1 & done",
    );
    let uid = attacker.processes("kernel")[0].uid();
    assert!(host::processes_of(uid..uid + 1).len() > 8);
    let begun = Instant::now();
    attacker.close().ok();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(host::processes_of(uid..uid + 1), []);
    scene.assert_others_unharmed();
}

#[test]
fn exits_of_every_kind_are_told() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    for (code, exit_code, signal) in [
        ("import os; os._exit(0)", Some(0), None),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            None,
            Some(9),
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            None,
            Some(15),
        ),
        ("import os; os.abort()", None, Some(6)),
        (
            "import sys; sys.setrecursionlimit(10**9)\nimport ctypes; ctypes.memset(0, 1, 1)",
            None,
            Some(11),
        ),
        ("import ctypes; ctypes.CDLL(None).exit(7)", Some(7), None),
    ] {
        let outcome = attacker.execute(code);
        assert_ended(&outcome, "kernel_died", "restored");
        assert_eq!(
            outcome.get("exit_code"),
            exit_code.map(|c: i32| json!(c)).as_ref(),
            "{code}"
        );
        assert_eq!(
            outcome.get("signal"),
            signal.map(|s: i32| json!(s)).as_ref(),
            "{code}"
        );
    }
    scene.assert_unharmed(&attacker);
}

#[test]
fn recursion_without_end_is_an_exception_or_a_reported_death() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    assert_raised(
        &attacker.execute("def f(): return f()\nf()"),
        "RecursionError",
    );
    attacker.assert_usable();
    let outcome = attacker.execute("import sys\nsys.setrecursionlimit(10**9)\nclass C:\n    def __getattr__(self, n): return getattr(self, n)\nC().x");
    assert_ne!(outcome["outcome"], "ok", "{}", shown(&outcome));
    scene.assert_unharmed(&attacker);
}

#[test]
fn twenty_attackers_at_once_harm_nobody() {
    let scene = Scene::new("service.max_sandboxes = 21\nlimits.interrupt_grace_seconds = 1");
    let attacks = [
        "while True: pass",
        "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
        "b = []\nwhile True: b.append(bytearray(1 << 20))",
        "while True: print('x' * 100000)",
        "f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))",
    ];
    std::thread::scope(|scope| {
        for number in 0..20 {
            let scene = &scene;
            scope.spawn(move || {
                let attacker = scene
                    .attacker(&json!({ "memory_bytes": 96 << 20, "cpus": 0.2, "processes": 32 }));
                let outcome = attacker.execute_within(2.0, attacks[number % attacks.len()]);
                assert_ne!(outcome["outcome"], "ok", "{}", shown(&outcome));
            });
        }
    });
    scene
        .service
        .post_json("/sandbox/create", &json!({}))
        .refused(429, "too_many_sandboxes");
    scene.assert_others_unharmed();
}
