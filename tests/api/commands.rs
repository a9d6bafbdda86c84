//! Shell commands.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::{Service, host};

#[test]
fn a_command_tells_its_output_and_exit_code() {
    let service = Service::start();
    let sandbox = service.create();
    let answer = sandbox.command("echo out; echo err >&2; exit 3");
    assert_eq!(answer["stdout"], "out\n");
    assert_eq!(answer["stderr"], "err\n");
    assert_eq!(answer["exit_code"], 3);
    assert_eq!(answer["timed_out"], false);
    assert_eq!(sandbox.command("true")["exit_code"], 0);
    assert_eq!(sandbox.command("no-such-program")["exit_code"], 127);
    assert_eq!(sandbox.command("kill -9 $$")["exit_code"], 137);
    assert_eq!(
        sandbox.command("cat; echo $?")["stdout"],
        "0\n",
        "standard input is empty"
    );
}

#[test]
fn a_command_runs_as_the_user_in_the_working_directory() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(
        sandbox.command("id -u; id -g; id -G; whoami; pwd; echo $HOME")["stdout"],
        "1000\n1000\n1000\nuser\n/home/user\n/home/user\n"
    );
    sandbox.command("mkdir -p a/b");
    let within = |cwd: &str| {
        sandbox.command_json(&json!({ "command": "pwd", "cwd": cwd }))["stdout"].clone()
    };
    assert_eq!(within("a/b"), "/home/user/a/b\n");
    assert_eq!(within("/tmp"), "/tmp\n");
}

#[test]
fn commands_and_executions_see_the_same_files() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("open('from_python', 'w').write('p')");
    assert_eq!(
        sandbox.command("cat from_python; echo s > from_shell")["stdout"],
        "p"
    );
    assert_eq!(sandbox.stdout("print(open('from_shell').read())"), "s\n\n");
}

#[test]
fn a_timeout_kills_the_whole_tree() {
    let service = Service::start();
    let sandbox = service.create();
    let begun = Instant::now();
    let answer = sandbox.command_json(&json!({
        "command": "trap '' TERM INT; (setsid sleep 1000 &) ; (sleep 1000 & wait) & echo begun; sleep 1000",
        "timeout_seconds": 1,
    }));
    assert_eq!(answer["exit_code"], 124);
    assert_eq!(answer["timed_out"], true);
    assert_eq!(answer["stdout"], "begun\n");
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    host::wait_until("its processes are gone", Duration::from_secs(5), || {
        sandbox.processes("command-0").is_empty()
    });
    assert_eq!(sandbox.command("pgrep sleep")["exit_code"], 1);
    sandbox.assert_usable();
}

#[test]
fn a_command_that_leaves_a_daemon_returns_at_once() {
    let service = Service::start();
    let sandbox = service.create();
    let begun = Instant::now();
    // The daemon holds the pipes.
    let answer = sandbox.command("sleep 1000 & echo started");
    assert_eq!(answer["stdout"], "started\n");
    assert_eq!(answer["exit_code"], 0);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(
        sandbox.command("pgrep -c sleep")["stdout"],
        "1\n",
        "the daemon goes on"
    );
}

#[test]
fn of_output_beyond_the_limit_both_ends_are_kept() {
    let service = Service::with_config("limits.output_bytes = 10000");
    let sandbox = service.create();
    let answer = sandbox.command("head -c 25000 /dev/zero | tr '\\0' x; echo; echo last");
    let stdout = answer["stdout"].as_str().expect("a text");
    assert!(
        stdout.starts_with(&"x".repeat(7500)) && stdout.len() < 10_300,
        "{} bytes",
        stdout.len()
    );
    assert!(
        stdout[7500..].starts_with("\n[stdout: 15006 bytes are left out here"),
        "{}",
        &stdout[7500..]
    );
    assert!(stdout.ends_with("x\nlast\n"));
    assert_eq!(answer["truncated"], true);
}

#[test]
fn output_that_is_not_utf8_is_still_json() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(
        sandbox.command("printf 'a\\377b\\000c\\033[31m'")["stdout"],
        "a\u{fffd}b\0c\u{1b}[31m"
    );
    let outcome = sandbox.execute("import os\nos.write(1, b'a\\xffb\\x00c')\nprint('\\ud800')");
    let stdout = outcome["stdout"].as_str().expect("a text");
    assert!(stdout.starts_with("a\u{fffd}b\0c"), "{stdout:?}");
}

#[test]
fn a_command_too_long_is_refused() {
    let service = Service::start();
    let sandbox = service.create();
    let body = json!({ "command": format!("echo {}", "x".repeat(40_000)) });
    service
        .post_json(&sandbox.path("command"), &body)
        .refused(413, "command_too_large");
}
