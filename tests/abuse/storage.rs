//! Disk, inodes and descriptors without end.

use serde_json::json;

use crate::fixture::sandbox::shown;
use crate::{Scene, assert_ended, assert_raised};

#[test]
fn a_full_disk_is_an_exception_and_nothing_of_it_is_on_the_host_s_disk() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "disk_bytes": 32 << 20 }));
    let before = used_bytes(scene.service.data_dir());
    let outcome = attacker.execute(
        "import errno, os\n\
         n = 0\n\
         try:\n    \
             while True:\n        \
                 with open(f'f{n}', 'wb') as f: f.write(os.urandom(1 << 20))\n        \
                 n += 1\n\
         except OSError as e: print(errno.errorcode[e.errno], 25 <= n <= 32)",
    );
    assert_eq!(outcome["stdout"], "ENOSPC True\n", "{}", shown(&outcome));
    for place in ["/tmp", "/dev/shm", "/var/tmp"] {
        let code = format!(
            "import errno, os\ntry: open('{place}/x', 'wb').write(bytes(4 << 20)); print('written')\nexcept OSError as e: print(errno.errorcode[e.errno])"
        );
        assert_eq!(
            attacker.stdout(&code),
            "ENOSPC\n",
            "{place} has no room of its own"
        );
    }
    attacker
        .upload("more", &vec![0; 4 << 20])
        .refused(507, "disk_full");
    assert_eq!(
        used_bytes(scene.service.data_dir()),
        before,
        "the upper has its place from the start"
    );
    scene.assert_unharmed(&attacker);
    attacker.command("rm -f f* /tmp/x /dev/shm/x /var/tmp/x");
    attacker.upload("more", &vec![0; 4 << 20]).ok();
}

/// Bytes that files of a directory take on the disk.
fn used_bytes(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).expect("the directory is there");
    entries
        .flatten()
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.blocks() * 512)
        .sum()
}

#[test]
fn inodes_are_limited() {
    let scene = Scene::new("limits.inodes = 2000");
    let attacker = scene.attacker(&json!({}));
    let outcome = attacker.execute(
        "import errno, os\n\
         n = 0\n\
         os.mkdir('d')\n\
         try:\n    \
             while True: open(f'd/{n}', 'w').close(); n += 1\n\
         except OSError as e: print(errno.errorcode[e.errno], 1000 < n <= 2000)",
    );
    assert_eq!(outcome["stdout"], "ENOSPC True\n", "{}", shown(&outcome));
    assert!(attacker.files().len() > 1000);
    attacker.upload("one-more", b"").refused(507, "disk_full");
    scene.assert_unharmed(&attacker);
    attacker.command("rm -r d");
    attacker.upload("one-more", b"").ok();
}

#[test]
fn an_exbibyte_of_nothing_is_refused_before_a_byte_is_read() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    let outcome = attacker.execute(
        "import errno, os\n\
         for size in [1 << 60, 1 << 40, (1 << 63) - 1]:\n    \
             fd = os.open('sparse', os.O_RDWR | os.O_CREAT)\n    \
             try: os.ftruncate(fd, size); print('made')\n    \
             except OSError as e: print(errno.errorcode[e.errno])\n    \
             try: os.pwrite(fd, b'x', size - 1); print('made')\n    \
             except OSError as e: print(errno.errorcode[e.errno])\n    \
             os.close(fd)",
    );
    let answers: Vec<&str> = outcome["stdout"]
        .as_str()
        .expect("a text")
        .lines()
        .collect();
    assert_eq!(answers.len(), 6, "{}", shown(&outcome));
    assert!(
        answers
            .iter()
            .all(|a| ["EFBIG", "EINVAL", "ENOSPC"].contains(a)),
        "{answers:?}"
    );
    assert_eq!(attacker.files(), [("sparse".to_owned(), 0)]);
    scene.assert_unharmed(&attacker);
}

#[test]
fn descriptors_are_limited_and_the_next_execution_works() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    let outcome = attacker.execute(
        "import os\nkept = []\nwhile True: kept.append(os.open('/dev/null', os.O_RDONLY))",
    );
    assert_raised(&outcome, "OSError");
    assert!(
        outcome["error_value"]
            .as_str()
            .is_some_and(|v| v.contains("Too many open files")),
        "{}",
        shown(&outcome)
    );
    assert_eq!(
        attacker.stdout("print(len(kept) > 1000)\nfor fd in kept: os.close(fd)"),
        "True\n"
    );
    scene.assert_unharmed(&attacker);
}

#[test]
fn closing_low_descriptors_breaks_nothing() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    let outcome = attacker.execute("import os\nkept = 1\nprint('before')\nos.closerange(0, 256)");
    assert_ended(&outcome, "ok", "kept");
    assert_eq!(outcome["stdout"], "before\n");
    assert_eq!(attacker.stdout("print('after', kept)"), "after 1\n");
    scene.assert_unharmed(&attacker);
}

#[test]
fn closing_every_descriptor_is_told_at_once() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    let outcome = attacker.execute("import os\nos.closerange(0, 100000)");
    assert_ended(&outcome, "kernel_died", "restored");
    scene.assert_unharmed(&attacker);
    let outcome = attacker.execute("import os\nfd = os.open('/dev/null', os.O_RDWR)\nfor n in os.listdir('/proc/self/fd'): os.dup2(fd, int(n))");
    assert_ended(&outcome, "kernel_died", "restored");
    scene.assert_unharmed(&attacker);
}

#[test]
fn directories_without_end_are_listed_up_to_a_limit() {
    let scene = Scene::new("limits.files = 500");
    let attacker = scene.attacker(&json!({}));
    attacker.execute(
        "import os\n\
         for _ in range(2000):\n    \
             open('f', 'w').close(); os.mkdir('d'); os.chdir('d')\n\
         os.chdir('/home/user')\n\
         os.mkdir('wide')\n\
         for i in range(2000): open(f'wide/{i}', 'w').close()",
    );
    let files = attacker.files();
    assert!(!files.is_empty() && files.len() <= 500, "{}", files.len());
    scene.assert_unharmed(&attacker);
}

#[test]
fn files_that_change_while_they_are_read_are_no_torn_success() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout(
        "import os, threading\n\
         stop = threading.Event()\n\
         size = 4 << 20\n\
         open('f', 'wb').write(b'a' * size)\n\
         def change():\n    \
             while not stop.is_set():\n        \
                 os.truncate('f', 1000)\n        \
                 with open('f', 'r+b') as f: f.write(b'a' * size)\n\
         t = threading.Thread(target=change, daemon=True); t.start()",
    );
    let path = format!("{}/f", attacker.path("download"));
    let request = crate::fixture::http::Request {
        method: "GET",
        path: &path,
        ..Default::default()
    };
    let (mut whole, mut broken) = (0, 0);
    for _ in 0..50 {
        let answer = crate::fixture::http::begin(scene.service.address, &request);
        // The length was promised: less of it breaks the connection off, at its begin already where
        // the first read found nothing.
        match answer.and_then(crate::fixture::http::Incoming::finish) {
            Ok(answer) => {
                let length = answer
                    .header("content-length")
                    .and_then(|l| l.parse::<usize>().ok());
                assert_eq!((answer.status, Some(answer.body.len())), (200, length));
                whole += 1;
            }
            Err(_) => broken += 1,
        }
    }
    println!("{whole} whole, {broken} broken off");
    attacker.stdout("stop.set(); t.join()");
    scene.assert_unharmed(&attacker);
}
