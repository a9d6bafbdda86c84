//! Which descriptors processes of a sandbox have: exactly those they need, whatever the service
//! itself was started with.

use std::collections::BTreeMap;
use std::time::Duration;

use sandcell::isolation::spec::Ablation;

use crate::fixture::host::{Process, descendants, wait_until};
use crate::fixture::{Launch, Service};
use crate::{Found, Place, require, upheld_by};

/// Targets without what differs from one to the next.
fn kinds(process: &Process) -> BTreeMap<u32, String> {
    // `pipe:[4711]`, but `anon_inode:[signalfd]`.
    let kind = |target: String| match target.split_once(":[") {
        Some((kind, rest)) if rest.starts_with(|c: char| c.is_ascii_digit()) => kind.to_owned(),
        _ => target,
    };
    process
        .descriptors()
        .into_iter()
        .map(|(number, target)| (number, kind(target)))
        .collect()
}

fn golden(list: &[(u32, &str)]) -> BTreeMap<u32, String> {
    list.iter()
        .map(|(number, kind)| (*number, (*kind).to_owned()))
        .collect()
}

fn kernel_holds_what_it_needs(place: &dyn Place) -> Found {
    let seen = kinds(&place.kernel());
    let needed = golden(&[
        (0, "/dev/null"),
        (1, "pipe"),
        (2, "pipe"),
        (1000, "socket"),
        (1001, "pipe"),
        (1002, "pipe"),
    ]);
    require(seen == needed, || format!("{seen:?}"))
}

#[test]
fn descriptors_of_the_zygote_are_closed() {
    upheld_by(
        kernel_holds_what_it_needs,
        Ablation {
            keep_descriptors: true,
            ..Ablation::default()
        },
    );
}

#[test]
fn no_descriptor_of_the_service_gets_inside() {
    let service = Service::launch(&Launch {
        stray_descriptors: 50,
        ..Launch::default()
    });
    let sandbox = service.create();
    let strays = service
        .process()
        .descriptors()
        .values()
        .filter(|t| *t == "/etc/passwd")
        .count();
    assert_eq!(strays, 50, "the service was started with strays");
    // A shell gives what runs in the background `/dev/null` to read.
    sandbox.command("setsid sleep 1000 &");
    kernel_holds_what_it_needs(&sandbox).expect("nothing else");
    let of_init = golden(&[
        (0, "/dev/null"),
        (1, "/dev/null"),
        (2, "/dev/null"),
        (3, "socket"),
        (4, "anon_inode:[signalfd]"),
    ]);
    // The answer to the command is there a moment before the socket that it came on is closed.
    wait_until("init holds what it needs", Duration::from_secs(5), || {
        kinds(&sandbox.init()) == of_init
    });
    let of_daemon = golden(&[(0, "/dev/null"), (1, "pipe"), (2, "pipe")]);
    // The shell that starts it answers before its child has become what it starts.
    wait_until(
        "the daemon holds what it needs",
        Duration::from_secs(5),
        || {
            let daemons = sandbox.processes("command-0");
            daemons.first().is_some_and(|d| kinds(d) == of_daemon)
        },
    );
    for process in descendants(service.process().pid) {
        let strays = process
            .descriptors()
            .into_values()
            .filter(|t| t == "/etc/passwd")
            .count();
        assert_eq!(strays, 0, "{process:?}");
    }
}

#[test]
fn what_user_code_starts_has_three_descriptors() {
    let service = Service::start();
    let sandbox = service.create();
    let listing = "import os, subprocess\nprint(subprocess.run(['ls', '/proc/self/fd'], capture_output=True, text=True).stdout.split())";
    // The fourth is the directory that ls reads.
    assert_eq!(sandbox.stdout(listing), "['0', '1', '2', '3']\n");
    let execed = sandbox.stdout("import os, sys\nif (pid := os.fork()) == 0: os.execv('/bin/ls', ['ls', '/proc/self/fd'])\nos.waitpid(pid, 0)");
    assert_eq!(
        execed.split_whitespace().take(4).collect::<Vec<_>>(),
        ["0", "1", "2", "3"]
    );
    assert_eq!(
        sandbox.command("ls /proc/self/fd")["stdout"],
        "0\n1\n2\n3\n"
    );
}
