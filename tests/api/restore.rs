//! Variables that outlive the death of the process that holds them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

/// Ways to die, each with its `outcome`; all of them change `x` first and leave a file.
const DEATHS: [(&str, &str); 4] = [
    ("import os\nos._exit(3)", "kernel_died"),
    ("import ctypes\nctypes.string_at(0)", "kernel_died"),
    (
        "hoard = []\nwhile True: hoard.append(bytearray(32 << 20))",
        "out_of_memory",
    ),
    (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
         signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass",
        "timeout",
    ),
];

fn service() -> Service {
    Service::with_config("[limits]\ninterrupt_grace_seconds = 1\nmemory_bytes = 402653184")
}

fn run(sandbox: &Sandbox<'_>, code: &str, restore: &str) -> Value {
    // To fill the memory takes as long as it takes.
    let timeout_seconds = if code.contains("bytearray") { 60 } else { 1 };
    sandbox.execute_json(
        &json!({ "code": code, "restore": restore, "timeout_seconds": timeout_seconds }),
    )
}

#[test]
fn variables_outlive_every_death_and_files_are_as_they_were_left() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("x = 1");
    for (n, (death, outcome)) in DEATHS.iter().enumerate() {
        sandbox.stdout(&format!("x += 1; y{n} = [x]"));
        let code = format!("x = 'lost'\nopen('f{n}', 'w').write('kept')\n{death}");
        let ended = run(&sandbox, &code, "auto");
        assert_eq!(ended["outcome"], *outcome, "{}", shown(&ended));
        assert_eq!(ended["state"], "restored", "{}", shown(&ended));
        let said = ended["error_value"].as_str().expect("a sentence");
        assert!(
            said.contains("variables are as they were before it"),
            "{said}"
        );
        assert!(said.contains("files are as it left them"), "{said}");
        let seen = sandbox.stdout(&format!("print(x, y{n}, open('f{n}').read())"));
        assert_eq!(seen, format!("{0} [{0}] kept\n", n + 2));
    }
}

#[test]
fn two_deaths_in_a_row_and_a_death_at_the_start_lose_nothing() {
    let service = service();
    let sandbox = service.create();
    let first = run(&sandbox, "import os\nos._exit(1)", "auto");
    assert_eq!(first["state"], "restored", "there was nothing to lose");
    sandbox.stdout("x = 5");
    for _ in 0..3 {
        let ended = run(&sandbox, "import os\nos._exit(1)", "auto");
        assert_eq!(ended["state"], "restored", "{}", shown(&ended));
        assert_eq!(ended["exit_code"], 1, "{}", shown(&ended));
    }
    let ended = run(&sandbox, "import ctypes\nctypes.string_at(0)", "auto");
    assert_eq!(ended["signal"], 11, "{}", shown(&ended));
    assert_eq!(sandbox.stdout("print(x)"), "5\n");
}

#[test]
fn the_counter_goes_on_where_the_code_died_without_a_word() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("x = 5");
    // One request right after the other, and after a pause.
    for pause in [0, 0, 0, 30, 30] {
        std::thread::sleep(Duration::from_millis(pause));
        let ended = run(&sandbox, "import os\nos._exit(1)", "auto");
        assert_eq!(ended["execution_count"], 2, "{}", shown(&ended));
        assert_eq!(ended["state"], "restored", "{}", shown(&ended));
    }
    let outcome = sandbox.execute("get_ipython().execution_count = 40");
    assert_eq!(outcome["execution_count"], 2, "{}", shown(&outcome));
    let ended = run(&sandbox, "import os\nos._exit(1)", "auto");
    assert_eq!(ended["execution_count"], 40, "{}", shown(&ended));
    assert_eq!(sandbox.execute("x")["execution_count"], 40);
}

#[test]
fn never_loses_them_and_says_why() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("x = 1");
    let ended = run(&sandbox, "import os\nos._exit(1)", "never");
    assert_eq!(ended["state"], "lost", "{}", shown(&ended));
    assert_eq!(ended["state_reason"], "restore was \"never\"");
    assert_eq!(sandbox.execute("x")["error"], "NameError");
}

#[test]
fn auto_weighs_memory_and_always_does_not() {
    let service = service();
    for (restore, state) in [("auto", "lost"), ("always", "restored")] {
        let sandbox = service.create();
        // More than a quarter of the sandbox's memory.
        run(&sandbox, "x = bytearray(110 << 20)", restore);
        let ended = run(&sandbox, "import os\nos._exit(1)", restore);
        assert_eq!(ended["state"], state, "{restore}: {}", shown(&ended));
        if restore == "auto" {
            let reason = ended["state_reason"].as_str().expect("a reason");
            assert!(reason.contains("MiB"), "{reason}");
        } else {
            assert_eq!(sandbox.stdout("print(len(x) >> 20)"), "110\n");
        }
    }
}

#[test]
fn what_a_fork_does_not_carry_is_named() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout(
        "import socket, threading, time\n\
         threading.Thread(target=time.sleep, args=(100,), name='worker', daemon=True).start()\n\
         a, b = socket.socketpair()",
    );
    let ended = run(&sandbox, "import os\nos._exit(1)", "auto");
    assert_eq!(ended["state"], "restored", "{}", shown(&ended));
    let missing = ended["not_restored"].to_string();
    assert!(missing.contains("thread worker"), "{missing}");
    assert!(missing.contains("socket on descriptor"), "{missing}");
    assert_eq!(sandbox.stdout("print(threading.active_count())"), "1\n");
}

#[test]
fn a_restored_kernel_is_whole() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("import os, random, subprocess, time\nrandom.seed(7)\nexpected = random.random()\nrandom.seed(7)");
    let ended = run(
        &sandbox,
        "subprocess.Popen(['sleep', '1000'])\nos._exit(1)",
        "auto",
    );
    assert_eq!(ended["state"], "restored", "{}", shown(&ended));
    let left = sandbox.processes("kernel");
    assert!(left.len() <= 2, "what the code started has ended: {left:?}");
    // Its state, its children, its output, its interrupts.
    assert_eq!(
        sandbox.stdout("print(random.random() == expected)"),
        "True\n"
    );
    assert_eq!(sandbox.stdout("!echo from a shell"), "from a shell\n");
    let child = "if os.fork() == 0: os._exit(7)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))";
    assert_eq!(sandbox.stdout(child), "7\n");
    let stopped = run(&sandbox, "time.sleep(100)", "auto");
    assert_eq!(stopped["outcome"], "timeout", "{}", shown(&stopped));
    assert_eq!(stopped["state"], "kept", "{}", shown(&stopped));
}

#[test]
fn a_checkpoint_keeps_no_pipe_open() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout(
        "import subprocess\n\
         cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)",
    );
    let read = "cat.stdin.write(b'all of it')\ncat.stdin.close()\nprint(cat.stdout.read())";
    let outcome = run(&sandbox, read, "auto");
    assert_eq!(outcome["stdout"], "b'all of it'\n", "{}", shown(&outcome));
}

#[test]
fn a_restored_kernel_awaits_again() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout(
        "import asyncio, os\nx = 1\n\
         task = asyncio.create_task(asyncio.sleep(1000), name='slow')\nawait asyncio.sleep(0)",
    );
    let ended = run(&sandbox, "os._exit(1)", "auto");
    assert_eq!(ended["state"], "restored", "{}", shown(&ended));
    let missing = ended["not_restored"].to_string();
    assert!(missing.contains("asyncio task slow"), "{missing}");
    assert_eq!(sandbox.stdout("await asyncio.sleep(0.01)\nprint(x)"), "1\n");
}

#[test]
fn user_code_does_not_meet_its_checkpoint_in_wait() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("import os");
    let waited = "try: os.wait()\nexcept ChildProcessError: print('no child')";
    assert_eq!(sandbox.stdout(waited), "no child\n");
}

#[test]
fn a_checkpoint_that_user_code_killed_is_told_as_lost() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("import os, signal\nx = 1");
    let kill = "for pid in filter(str.isdigit, os.listdir('/proc')):\n    \
                    if int(pid) not in (1, os.getpid()):\n        \
                        try: os.kill(int(pid), signal.SIGKILL)\n        \
                        except OSError: pass\n\
                os._exit(1)";
    let ended = run(&sandbox, kill, "auto");
    assert_eq!(ended["state"], "lost", "{}", shown(&ended));
    let reason = ended["state_reason"].as_str().expect("a reason");
    assert!(reason.contains("checkpoint"), "{reason}");
    sandbox.assert_usable();
}

#[test]
fn a_checkpoint_that_user_code_stopped_goes_on() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("import os, signal\nx = 1");
    let ended = run(&sandbox, "os.kill(-1, signal.SIGSTOP)\nos._exit(1)", "auto");
    assert_eq!(ended["state"], "restored", "{}", shown(&ended));
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
}

#[test]
fn a_counter_is_exact_through_any_number_of_deaths() {
    let rounds: usize =
        std::env::var("SANDCELL_TEST_DEATHS").map_or(60, |n| n.parse().expect("a number"));
    let service = service();
    let sandbox = service.create();
    sandbox.stdout("counter = 0");
    for round in 1..=rounds {
        if round % 5 == 0 {
            let (death, outcome) = DEATHS[round / 5 % DEATHS.len()];
            let ended = run(&sandbox, &format!("counter = -1\n{death}"), "auto");
            assert_eq!(ended["outcome"], outcome, "{round}: {}", shown(&ended));
            assert_eq!(ended["state"], "restored", "{round}: {}", shown(&ended));
        } else {
            sandbox.stdout("counter += 1");
        }
    }
    let expected = rounds - rounds / 5;
    assert_eq!(sandbox.stdout("print(counter)"), format!("{expected}\n"));
}

#[test]
fn an_unknown_word_for_restore_is_refused_by_name() {
    let service = service();
    let sandbox = service.create();
    let request = json!({ "code": "1", "restore": "sometimes" });
    let answer = service.post_json(&sandbox.path("execute"), &request);
    assert_eq!(answer.status, 422);
    assert!(
        answer.json()["detail"]
            .as_str()
            .is_some_and(|d| d.contains("restore"))
    );
}
