//! A sandbox's init is out of reach of the code beside it.

use std::process::Command;
use std::time::Duration;

use sandcell::isolation::spec::Ablation;
use serde_json::json;

use crate::fixture::Service;
use crate::fixture::program::run;
use crate::{Found, Place, require, upheld_by};

#[test]
fn no_signal_reaches_init() {
    let service = Service::start();
    let sandbox = service.create();
    let seen = sandbox.printed(
        "import json, os, signal\n\
         sent = []\n\
         for number in range(0, 65):\n    \
             try: os.kill(1, number); sent.append(number)\n    \
             except PermissionError: pass\n    \
             except OSError as e: sent.append([number, e.errno])\n\
         print(json.dumps(sent))",
    );
    assert_eq!(seen, json!([]));
    assert_ne!(
        sandbox.command("kill -9 1 || kill -STOP 1 || kill -TERM 1")["exit_code"],
        0
    );
    // To everyone it may signal: not init.
    sandbox.command("kill -9 -1");
    let told = sandbox.execute("1");
    assert_eq!(
        (&told["outcome"], &told["state"]),
        (&json!("kernel_died"), &json!("lost")),
        "{told}"
    );
    sandbox.assert_usable();
    assert_eq!(sandbox.command("echo served")["stdout"], "served\n");
}

#[test]
fn init_cannot_be_read_traced_or_opened() {
    let service = Service::start();
    let sandbox = service.create();
    let seen = sandbox.printed(
        "import ctypes, errno, json, os\n\
         opened = []\n\
         for name in ['mem', 'environ', 'maps', 'exe', 'fd', 'cwd', 'root', 'ns/mnt', 'auxv', 'stack', 'syscall', 'fdinfo', 'map_files']:\n    \
             path = '/proc/1/' + name\n    \
             for way in [lambda: open(path, 'rb').read(1), lambda: open(path, 'r+b'), lambda: os.listdir(path), lambda: os.readlink(path)]:\n        \
                 try: way(); opened.append(path)\n        \
                 except OSError: pass\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def call(*arguments):\n    \
             return 'ok' if libc.syscall(*map(ctypes.c_long, arguments)) >= 0 else errno.errorcode[ctypes.get_errno()]\n\
         PTRACE, READV, WRITEV, KCMP, PIDFD_OPEN, PIDFD_GETFD = 101, 310, 311, 312, 434, 438\n\
         attach = [call(PTRACE, 16, 1, 0, 0), call(PTRACE, 0x4206, 1, 0, 0), call(READV, 1, 0, 0, 0, 0, 0),\n    \
             call(WRITEV, 1, 0, 0, 0, 0, 0), call(KCMP, 1, os.getpid(), 0, 0, 0)]\n\
         fd = libc.syscall(PIDFD_OPEN, 1, 0)\n\
         taken = call(PIDFD_GETFD, fd, 3, 0) if fd >= 0 else 'none'\n\
         print(json.dumps([opened, 'ok' in attach, taken == 'ok']))",
    );
    assert_eq!(seen, json!([[], false, false]));
    assert_eq!(sandbox.command("echo served")["stdout"], "served\n");
}

#[test]
fn running_programs_cannot_be_overwritten() {
    let service = Service::start();
    let sandbox = service.create();
    let seen = sandbox.printed(
        "import json, os\n\
         opened = []\n\
         for path in ['/proc/self/exe', '/proc/1/exe', '/proc/%d/exe' % os.getpid(), os.path.realpath('/proc/self/exe')]:\n    \
             for flags in [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC]:\n        \
                 try: os.open(path, flags); opened.append(path)\n        \
                 except OSError: pass\n\
         print(json.dumps(opened))",
    );
    assert_eq!(seen, json!([]));
}

/// A process with init's own ids and in the user namespace above it, but without a capability, is
/// refused only because init is not dumpable.
fn its_own_identity_cannot_read_it(place: &dyn Place) -> Found {
    let init = place.init();
    let nursery = init.status("PPid");
    let attack = format!(
        "grep CapEff /proc/self/status; cat /proc/{}/environ",
        init.pid
    );
    let mut command = Command::new("nsenter");
    command.args([
        "--target",
        &nursery,
        "--user",
        "setpriv",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]);
    let ran = run(command.args(["sh", "-c", &attack]), Duration::from_secs(10));
    assert!(
        ran.stdout.contains("CapEff:\t0000000000000000"),
        "not the intended attacker: {ran:?}"
    );
    require(ran.code != Some(0), || format!("read: {ran:?}"))
}

#[test]
fn init_is_not_dumpable() {
    upheld_by(
        its_own_identity_cannot_read_it,
        Ablation {
            dumpable_init: true,
            ..Ablation::default()
        },
    );
}
