//! Processes on a terminal of the sandbox's own.

use serde_json::json;

use super::{SOON, start, start_json};
use crate::fixture::Service;
use crate::fixture::host::wait_until;

#[test]
fn a_terminal_is_a_real_one() {
    let service = Service::start();
    let sandbox = service.create();
    let shell = start_json(&sandbox, &json!({ "pty": { "columns": 91, "rows": 33 } }));
    assert_eq!(shell.started["pty"], json!({ "columns": 91, "rows": 33 }));
    shell.write(b"tty; stty size; echo $TERM; python3 -c 'import sys; print(sys.stdin.isatty(), sys.stdout.isatty())'; echo e''nd\n").ok();
    let (said, at) = shell.says_since(0, "end");
    for expected in ["/dev/pts/0", "33 91", "xterm-256color", "True True"] {
        assert!(said.contains(expected), "{expected}: {said:?}");
    }
    assert!(!said.contains("no job control"), "{said:?}");
    let resized = shell
        .post("/resize", &json!({ "columns": 40, "rows": 10 }))
        .ok()
        .json();
    assert_eq!(resized["pty"], json!({ "columns": 40, "rows": 10 }));
    shell.write(b"stty size; echo si''zed\n").ok();
    let (said, at) = shell.says_since(at, "sized");
    assert!(said.contains("10 40"), "{said:?}");
    // Ctrl-C, typed and as a signal: the job ends, the shell does not.
    for typed in [true, false] {
        shell.write(b"echo be''gun; sleep 1000; echo $?\n").ok();
        let (_, begun) = shell.says_since(at, "begun");
        wait_until("it sleeps", SOON, || {
            sandbox.command("pgrep -x sleep")["exit_code"] == 0
        });
        if typed {
            shell.write(b"\x03").ok();
        } else {
            shell.signal("SIGINT").ok();
        }
        wait_until("it was interrupted", SOON, || {
            sandbox.command("pgrep -x sleep")["exit_code"] == 1
        });
        shell.write(b"echo a''live\n").ok();
        shell.says_since(begun, "alive");
    }
    // Job control: stopped, listed, continued.
    shell
        .write(b"sleep 1000 &\njobs; kill %1; echo jo''bs\n")
        .ok();
    shell.says("jobs");
    shell.write(b"cat > typed\n").ok();
    wait_until("it reads", SOON, || {
        sandbox.command("pgrep -x cat")["exit_code"] == 0
    });
    shell.write(b"some text\n\x04").ok();
    wait_until("the text is there", SOON, || {
        sandbox.files().contains(&("typed".into(), 10))
    });
    shell.post("/stdin", &json!({ "close": true })).ok();
    let end = shell.wait();
    assert_eq!(end["exit_code"], 0, "{end}");
    let one = start_json(
        &sandbox,
        &json!({ "command": "tput cols; echo to-stderr >&2; exit 4", "pty": { "columns": 50, "rows": 5 } }),
    );
    let end = one.wait();
    assert_eq!(end["exit_code"], 4);
    assert_eq!(
        one.output(0)["chunks"],
        json!([{ "stream": "pty", "text": "50\r\nto-stderr\r\n" }])
    );
    one.post("/resize", &json!({ "columns": 9, "rows": 9 }))
        .refused(409, "process_ended");
    let plain = start(&sandbox, "cat");
    plain
        .post("/resize", &json!({ "columns": 9, "rows": 9 }))
        .refused(409, "no_terminal");
}

#[test]
fn a_terminal_of_a_sandbox_is_not_of_the_host() {
    let service = Service::start();
    let sandbox = service.create();
    let of_host = || {
        let mut names: Vec<_> = std::fs::read_dir("/dev/pts")
            .expect("the host has terminals")
            .flatten()
            .map(|e| e.file_name())
            .collect();
        names.sort();
        names
    };
    let before = of_host();
    let terminals: Vec<_> = (0..3)
        .map(|_| start_json(&sandbox, &json!({ "pty": { "columns": 80, "rows": 24 } })))
        .collect();
    for (n, terminal) in terminals.iter().enumerate() {
        terminal
            .write(b"stat -c %U.%F $(tty); tty; echo e''nd\n")
            .ok();
        let said = terminal.says("end");
        assert!(said.contains(&format!("/dev/pts/{n}")), "{said:?}");
        assert!(said.contains("user.character special file"), "{said:?}");
    }
    assert_eq!(of_host(), before, "the host has no terminal more");
    // What types into a terminal, or loads drivers for it, is refused on its own one too.
    let tricks = start_json(
        &sandbox,
        &json!({
            "command": "python3 -c 'import fcntl\nfor request in 0x5412, 0x541c, 0x5423, (1 << 32) + 0x5412:\n try:\n  fcntl.ioctl(0, request, b\"x\")\n  print(\"done\")\n except (OSError, OverflowError) as e:\n  print(type(e).__name__, e.args[0])\nfor n in 4, 5, 100:\n try: open(f\"/dev/pts/{n}\")\n except OSError as e: print(e.args[0])'; ls /dev",
            "pty": { "columns": 80, "rows": 24 },
        }),
    );
    tricks.wait();
    let said = tricks.says("");
    assert!(!said.contains("done"), "{said}");
    assert_eq!(said.matches("PermissionError 1\r\n").count(), 4, "{said}");
    assert!(
        !said.contains("console") && !said.contains("tty0"),
        "{said}"
    );
    // The supervisor has no terminal, and leads no session of one.
    let of_service =
        std::fs::read_to_string(format!("/proc/{}/stat", service.process().pid)).expect("it lives");
    let fields: Vec<_> = of_service
        .rsplit_once(')')
        .expect("a name")
        .1
        .split_whitespace()
        .collect();
    let test = std::fs::read_to_string("/proc/self/stat").expect("it lives");
    let own: Vec<_> = test
        .rsplit_once(')')
        .expect("a name")
        .1
        .split_whitespace()
        .collect();
    assert!(
        fields[4] == "0" || fields[4] == own[4],
        "its terminal is the one it was started with"
    );
    sandbox.assert_usable();
}
