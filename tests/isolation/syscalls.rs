//! The system call filter, tried from inside.

use sandcell::isolation::spec::Ablation;
use serde_json::{Value, json};

use crate::fixture::Service;
use crate::{Found, Place, require, upheld_by};

const PROBE: &[u8] = include_bytes!("../data/syscalls.py");
const GOLDEN: &[u8] = include_bytes!("../data/syscalls_golden.json");

#[test]
fn every_number_in_three_abis_answers_as_the_golden_table_says() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("syscalls.py", PROBE).ok();
    sandbox.upload("golden.json", GOLDEN).ok();
    let by_command = sandbox.command("python syscalls.py golden.json > seen.json; echo $?");
    assert_eq!(by_command["stdout"], "0\n", "{by_command}");
    let seen = sandbox.printed(
        "import json\nseen = json.load(open('seen.json'))\nprint(json.dumps([seen['mismatches'], len(seen['native'])]))",
    );
    assert_eq!(seen[0], json!([]));
    assert!(seen[1].as_u64().is_some_and(|n| n > 590), "{seen}");
    // What the kernel starts inherits the kernel's own filters.
    let by_kernel = sandbox.stdout("import subprocess\nprint(subprocess.run(['python', 'syscalls.py', 'golden.json'], stdout=open('seen.json', 'w')).returncode)");
    assert_eq!(by_kernel, "0\n");
}

const CALLS: &str = r"
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return 'ok' if libc.syscall(ctypes.c_long(number), *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
def in_child(attempt):
    r, w = os.pipe()
    if (pid := os.fork()) == 0:
        try: os.write(w, attempt().encode())
        finally: os._exit(0)
    os.waitpid(pid, 0); os.close(w)
    return os.read(r, 64).decode()
";

fn list_of(place: &dyn Place, code: &str) -> Vec<String> {
    let seen = place.python(&format!("{CALLS}{code}"));
    serde_json::from_str::<Value>(&seen)
        .expect("JSON")
        .as_array()
        .expect("a list")
        .iter()
        .map(|v| v.as_str().expect("texts").to_owned())
        .collect()
}

fn no_namespace_can_be_made(place: &dyn Place) -> Found {
    let answers = list_of(
        place,
        "flags = [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x80]\n\
         answers = [in_child(lambda f=f: call(272, ctypes.c_long(f))) for f in flags]\n\
         answers += [in_child(lambda f=f: call(272, ctypes.c_long(f | 1 << 40))) for f in flags]\n\
         for kind in ['user', 'mnt', 'net', 'pid']:\n    \
             fd = os.open('/proc/self/ns/' + kind, os.O_RDONLY)\n    \
             answers.append(in_child(lambda: call(308, fd, 0)))\n\
         answers.append(in_child(lambda: call(165, b'none', b'/tmp', b'tmpfs', 0, 0)))\n\
         answers.append(in_child(lambda: call(166, b'/proc', 2)))\n\
         answers.append(in_child(lambda: call(155, b'/', b'/')))\n\
         answers.append(in_child(lambda: call(161, b'/tmp')))\n\
         print(json.dumps(answers))",
    );
    require(
        answers.iter().all(|a| a == "ENOSYS" || a == "EPERM"),
        || format!("{answers:?}"),
    )
}

#[test]
fn namespaces_and_mounts_are_refused() {
    upheld_by(
        no_namespace_can_be_made,
        Ablation {
            no_seccomp: true,
            ..Ablation::default()
        },
    );
}

fn three_socket_families(place: &dyn Place) -> Found {
    let seen = place.python(
        "import socket, json\n\
         opened = set()\n\
         for family in range(46):\n    \
             for kind in [1, 2, 3, 5]:\n        \
                 try: socket.socket(family, kind).close(); opened.add(family)\n        \
                 except OSError: pass\n\
         print(json.dumps(sorted(opened)))",
    );
    require(seen == "[1, 2, 10]\n", || seen.clone())
}

#[test]
fn only_unix_and_internet_sockets_can_be_opened() {
    upheld_by(
        three_socket_families,
        Ablation {
            no_seccomp: true,
            ..Ablation::default()
        },
    );
}

/// With and without bits that the kernel ignores.
fn no_keystroke_can_be_faked(place: &dyn Place) -> Found {
    let answers = list_of(
        place,
        "import pty\n\
         controller, terminal = pty.openpty()\n\
         key = ctypes.c_char_p(b'x')\n\
         answers = [call(16, terminal, ctypes.c_ulong(c), key) for c in [0x5412, 1 << 32 | 0x5412, 0xff << 56 | 0x5412, 0x541c, 1 << 32 | 0x541c]]\n\
         print(json.dumps(answers))",
    );
    require(answers.iter().all(|a| a == "EPERM"), || {
        format!("{answers:?}")
    })
}

#[test]
fn terminals_take_no_faked_input() {
    upheld_by(
        no_keystroke_can_be_faked,
        Ablation {
            no_seccomp: true,
            ..Ablation::default()
        },
    );
}
