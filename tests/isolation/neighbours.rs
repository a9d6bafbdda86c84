//! Two sandboxes side by side, and the base that they share.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use sandcell::isolation::spec::Ablation;
use serde_json::json;

use crate::fixture::program::run;
use crate::fixture::{SANDCELL, Service, base_mirror, mirrors_dir, temp_dir};
use crate::{Found, Place, between_upheld_by, require};

/// How long links are flipped under the host's hands.
const FLIPPING: Duration = Duration::from_secs(5);

fn abstract_sockets_are_apart(a: &dyn Place, b: &dyn Place) -> Found {
    a.python(
        "import socket\ns = socket.socket(socket.AF_UNIX); s.bind('\\0rendezvous'); s.listen()",
    );
    let seen = b.python(
        "import socket\n\
         c = socket.socket(socket.AF_UNIX)\n\
         try: c.connect('\\0rendezvous'); print('connected')\n\
         except OSError as e: print(type(e).__name__)",
    );
    require(seen == "ConnectionRefusedError\n", || seen.clone())
}

#[test]
fn abstract_sockets_do_not_meet() {
    between_upheld_by(
        abstract_sockets_are_apart,
        Ablation {
            no_netns: true,
            ..Ablation::default()
        },
    );
}

fn loopbacks_are_apart(a: &dyn Place, b: &dyn Place) -> Found {
    let listen = "import socket\ns = socket.create_server(('127.0.0.1', 5001))";
    a.python(listen);
    let seen = b.python(
        "import socket\n\
         try: socket.create_connection(('127.0.0.1', 5001), timeout=5); print('connected')\n\
         except OSError as e: print(type(e).__name__)\n\
         try: s = socket.create_server(('127.0.0.1', 5001)); print('free')\n\
         except OSError as e: print('taken')",
    );
    require(seen == "ConnectionRefusedError\nfree\n", || seen.clone())
}

#[test]
fn ports_do_not_meet() {
    between_upheld_by(
        loopbacks_are_apart,
        Ablation {
            no_netns: true,
            ..Ablation::default()
        },
    );
}

const SYSV: &str = "import ctypes\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    libc.shmat.restype = ctypes.c_void_p\n\
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]\n";

fn shared_memory_is_apart(a: &dyn Place, b: &dyn Place) -> Found {
    // 0o1666: create, for everyone.
    let made = a.python(&format!(
        "{SYSV}print(libc.shmget(0x5ca1ab1e, 4096, 0o1666) >= 0)"
    ));
    require(made == "True\n", || {
        panic!("System V shared memory does not work at all: {made}")
    })?;
    let seen = b.python(&format!(
        "{SYSV}print(libc.shmget(0x5ca1ab1e, 4096, 0o666) >= 0)"
    ));
    require(seen == "False\n", || "the segment of A is there".to_owned())
}

#[test]
fn system_v_shared_memory_does_not_meet() {
    between_upheld_by(
        shared_memory_is_apart,
        Ablation {
            no_ipcns: true,
            ..Ablation::default()
        },
    );
}

#[test]
fn files_do_not_meet() {
    let service = Service::start();
    let (a, b) = (service.create(), service.create());
    a.stdout("for d in ['/tmp', '/dev/shm', '/home/user', '/var/tmp']:\n    open(d + '/of-a', 'w').write('x')");
    let listing = "import os\nprint([d for d in ['/tmp', '/dev/shm', '/home/user', '/var/tmp'] if os.listdir(d)])";
    assert_eq!(
        a.stdout(listing),
        "['/tmp', '/dev/shm', '/home/user', '/var/tmp']\n"
    );
    assert_eq!(b.stdout(listing), "[]\n");
    // One after the other: a sandbox that is made anew has nothing of the old one.
    a.close().ok();
    assert_eq!(service.create().stdout(listing), "[]\n");
}

#[test]
fn signals_do_not_reach_a_neighbour() {
    let service = Service::start();
    let (a, b) = (service.create(), service.create());
    b.execute("alive = True");
    let before = b.kernel();
    let sent = a.printed(
        "import json, os\n\
         sent = []\n\
         for pid in range(2, 4000):\n    \
             if pid == os.getpid(): continue\n    \
             try: os.kill(pid, 9); sent.append(pid)\n    \
             except ProcessLookupError: pass\n    \
             except OSError as e: sent.append(str(e))\n\
         print(json.dumps(sent))",
    );
    assert_eq!(sent, json!([]), "there is nobody else");
    a.command("kill -9 -1");
    assert_eq!(b.kernel(), before);
    assert_eq!(b.stdout("print(alive)"), "True\n");
}

#[test]
fn deleting_everything_harms_only_oneself() {
    let service = Service::start();
    let (a, b) = (service.create(), service.create());
    let canaries = temp_dir();
    fs::write(canaries.path().join("canary"), "of the host").expect("a file can be written");
    b.stdout("open('mine', 'w').write('of b')");
    a.stdout("open('mine', 'w').write('of a')");
    let before = fingerprint();
    a.command("rm -rf --no-preserve-root / 2>/dev/null");
    a.execute("import os, shutil\nfor d in ['/', '/etc', '/opt/venv', '/home', '/proc', '/dev']: shutil.rmtree(d, ignore_errors=True)");
    assert_eq!(
        fs::read_to_string(canaries.path().join("canary")).expect("it is there"),
        "of the host"
    );
    assert_eq!(fingerprint(), before, "the base is as it was");
    assert_eq!(a.files(), [], "its own files are gone");
    a.assert_usable();
    assert_eq!(b.stdout("import json, email, decimal\nprint(open('mine').read(), 'root' in open('/etc/passwd').read())"), "of b True\n");
    assert_eq!(
        service
            .create()
            .stdout("import sympy\nprint(sympy.Integer(2) ** 10)"),
        "1024\n"
    );
}

/// Names, sizes and times of the base's files: what a write or a removal changes.
fn fingerprint() -> String {
    let mut find = Command::new("find");
    find.arg(base_mirror())
        .args(["-xdev", "-printf", "%P %s %m %U %T@ %C@ %l\\n"]);
    let listed = run(&mut find, Duration::from_secs(60)).stdout;
    assert!(listed.lines().count() > 10_000, "a base is larger");
    let mut lines: Vec<&str> = listed.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn the_base_cannot_be_written_by_any_way() {
    let service = Service::start();
    let sandbox = service.create();
    let before = fingerprint();
    let seen = sandbox.printed(
        "import json, mmap, os\n\
         changed = []\n\
         targets = ['/etc/passwd', '/usr/bin/bash', '/opt/sandcell/bin/uv', '/bin/sh', os.__file__]\n\
         for path in targets:\n    \
             for what, attempt in {\n        \
                 'open': lambda: open(path, 'r+b'), 'truncate': lambda: os.truncate(path, 0), 'unlink': lambda: os.unlink(path),\n        \
                 'rename': lambda: os.rename(path, '/tmp/x'), 'link': lambda: os.link(path, '/tmp/l'), 'chmod': lambda: os.chmod(path, 0o777),\n        \
                 'chown': lambda: os.chown(path, 1000, 1000), 'xattr': lambda: os.setxattr(path, 'user.overlay.redirect', b'/'),\n        \
                 'utime': lambda: os.utime(path), 'mmap': lambda: mmap.mmap(os.open(path, os.O_RDONLY), 0, mmap.MAP_SHARED, mmap.PROT_WRITE),\n    \
             }.items():\n        \
                 try: attempt(); changed.append([path, what])\n        \
                 except OSError: pass\n\
         for name in ['user.overlay.opaque', 'user.overlay.metacopy', 'user.overlay.redirect', 'trusted.overlay.opaque', 'security.capability']:\n    \
             try: os.setxattr('/home/user', name, b'y')\n    \
             except OSError: pass\n\
         print(json.dumps(changed))",
    );
    assert_eq!(seen, json!([]));
    // Packages it may replace and remove: what it changes is its own.
    let seen = sandbox.printed(
        "import json, numpy, os\n\
         open(numpy.__file__, 'a').write('hacked = 1')\n\
         os.unlink('/opt/venv/bin/python')\n\
         os.rename('/opt/venv/bin/pip', '/opt/venv/bin/pop')\n\
         print(json.dumps(os.path.lexists('/opt/venv/bin/python')))",
    );
    assert_eq!(seen, json!(false));
    assert_eq!(fingerprint(), before);
    sandbox.assert_usable();
    let other = service.create();
    let command = other.command(
        "/opt/venv/bin/python -c 'import numpy; print(hasattr(numpy, \"hacked\"))'; pip --version",
    );
    assert_eq!(command["exit_code"], 0, "{command}");
    assert!(
        command["stdout"]
            .as_str()
            .is_some_and(|s| s.starts_with("False")),
        "{command}"
    );
}

#[test]
fn the_base_is_what_its_name_says() {
    let mut verify = Command::new(SANDCELL);
    let id = base_mirror()
        .parent()
        .and_then(|d| d.file_name())
        .expect("a name")
        .to_owned();
    verify
        .args(["mirror", "verify", "--mirrors-dir"])
        .arg(mirrors_dir())
        .arg(id);
    let ran = run(&mut verify, Duration::from_secs(120));
    println!("verified in {:?}", ran.took);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn the_host_follows_no_link_that_is_swapped_in() {
    let service = Service::start();
    let sandbox = service.create();
    let host = temp_dir();
    let canary = host.path().join("f");
    fs::write(&canary, "secret of the host").expect("a file can be written");
    // One thread swaps a directory and a link to the host's own at every moment.
    let target = host.path();
    sandbox.stdout(&format!(
        "import os, threading, ctypes\n\
         os.makedirs('real'); open('real/f', 'w').write('inside'); os.symlink({target:?}, 'link'); os.symlink('real', 'd')\n\
         os.remove('d'); os.rename('real', 'd')\n\
         stop = threading.Event()\n\
         libc = ctypes.CDLL(None)\n\
         def flip():\n    \
             while not stop.is_set(): libc.renameat2(-100, b'd', -100, b'link', 2)\n\
         t = threading.Thread(target=flip, daemon=True); t.start()",
    ));
    let deadline = Instant::now() + FLIPPING;
    let (mut read, mut refused) = (0, 0);
    while Instant::now() < deadline {
        let answer = sandbox.download("d/f");
        match answer.status {
            200 => {
                assert!(
                    answer.body == b"inside" || answer.body == b"uploaded",
                    "{}",
                    answer.text()
                );
                read += 1;
            }
            400 | 404 | 409 => refused += 1,
            other => panic!("{other}: {}", answer.text()),
        }
        let answer = sandbox.upload("d/f", b"uploaded");
        assert!(
            [200, 400, 404, 409].contains(&answer.status),
            "{}: {}",
            answer.status,
            answer.text()
        );
        assert!(
            sandbox
                .files()
                .iter()
                .all(|(path, _)| !path.contains("secret"))
        );
    }
    assert!(
        read > 0 && refused > 0,
        "read {read}, refused {refused}: both happened"
    );
    assert_eq!(
        fs::read_to_string(&canary).expect("it is there"),
        "secret of the host"
    );
    assert_eq!(fs::read_dir(host.path()).expect("it is there").count(), 1);
    sandbox.stdout("stop.set(); t.join()");
}
