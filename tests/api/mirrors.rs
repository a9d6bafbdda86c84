//! Layered mirrors: made once, warm, apart from each other, gone when they are deleted. Their packages
//! come from an index of the test's own, so some of them are hostile.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::host::{self, Process};
use crate::fixture::http::{Answer, Request};
use crate::fixture::index::Index;
use crate::fixture::{Launch, Service, temp_dir, zygote_of};

const PLAIN: (&str, &str) = ("plainpkg", "import time\nMADE = time.time()\nVALUE = 7\n");

fn delete(service: &Service, mirror: &str) -> Answer {
    service.send(&Request {
        method: "DELETE",
        path: &format!("/mirrors/{mirror}"),
        ..Request::default()
    })
}

#[track_caller]
fn make(service: &Service, name: &str, package: &str) -> Value {
    let wish = json!({ "name": name, "packages": [package], "preload": [package] });
    service.post_json("/mirrors", &wish).ok().json()
}

#[test]
fn a_mirror_is_made_once_and_its_sandboxes_are_apart_from_those_of_the_base() {
    let index = Index::start(&[PLAIN]);
    let service = Service::with_config(&index.config());
    let before = host::descendants(service.process().pid).len();
    let made = make(&service, "mine", "plainpkg");
    assert_eq!(made["status"], "ready", "{made}");
    assert_eq!(
        made["packages"],
        json!([{ "name": "plainpkg", "version": "1.0" }])
    );
    let began = Instant::now();
    assert_eq!(make(&service, "mine", "plainpkg"), made);
    assert!(began.elapsed() < Duration::from_secs(1));
    let id = made["mirror_id"].as_str().expect("an id");
    assert_eq!(service.get(&format!("/mirrors/{id}")).ok().json(), made);
    let listed = service.get("/mirrors").ok().json();
    assert_eq!((&listed[0]["name"], &listed[1]), (&json!("default"), &made));

    let layered = service.create_with(&json!({ "mirror": "mine" }));
    let look = "import sys, os; warm = 'plainpkg' in sys.modules\nimport plainpkg\n\
                print(warm, plainpkg.VALUE, os.path.exists(plainpkg.__cached__))";
    assert_eq!(layered.stdout(look), "True 7 True\n");
    // In a new process it is imported from its byte code.
    let fresh = layered.command("python -c 'import plainpkg; print(plainpkg.VALUE)'");
    assert_eq!(fresh["stdout"], "7\n", "{fresh}");
    let base = service.create();
    let outcome = base.execute("import plainpkg");
    assert_eq!(outcome["error"], "ModuleNotFoundError");
    let uid = |s: &crate::fixture::sandbox::Sandbox<'_>| s.processes("kernel")[0].uid();
    assert!(service.ids.contains(&uid(&base)));
    assert!(!service.ids.contains(&uid(&layered)));
    let mount = layered.stdout("print(open('/proc/self/mountinfo').read())");
    assert!(mount.contains("lowerdir=/layer:/mirror,"), "{mount}");

    delete(&service, "mine").refused(409, "mirror_in_use");
    delete(&service, "default").refused(409, "mirror_is_base");
    layered.close().ok();
    base.close().ok();
    delete(&service, "mine").ok();
    delete(&service, "mine").refused(404, "mirror_not_found");
    let wish = json!({ "mirror": "mine" });
    service
        .post_json("/sandbox/create", &wish)
        .refused(404, "mirror_not_found");
    host::wait_until("its processes are gone", Duration::from_secs(20), || {
        host::descendants(service.process().pid).len() <= before
    });
    // What is left when the service ends its own end looks for.
}

#[test]
fn a_mirror_outlives_the_service_and_an_interrupted_build_leaves_nothing() {
    let index = Index::start(&[PLAIN, ("slowpkg", "import time\ntime.sleep(600)\n")]);
    let dir = temp_dir();
    let config = index.config();
    let launch = Launch {
        config: &config,
        data_dir: Some(dir.path()),
        ..Launch::default()
    };
    let mut service = Service::launch(&launch);
    let made = make(&service, "kept", "plainpkg");
    let wish = json!({ "packages": ["slowpkg"], "preload": ["slowpkg"], "wait_seconds": 3 });
    let slow = service.post_json("/mirrors", &wish).ok().json();
    assert_eq!(slow["status"], "building", "{slow}");
    let family = service.kill();
    host::wait_until("all of it is dead", Duration::from_secs(20), || {
        !family.iter().any(Process::exists)
    });
    let service = Service::launch(&launch);
    let listed = service.get("/mirrors").ok().json();
    assert_eq!(listed.as_array().expect("a list").len(), 2, "{listed}");
    assert_eq!(listed[1], made);
    let left: Vec<_> = std::fs::read_dir(dir.path().join("layers"))
        .expect("there is a layer")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let sandbox = service.create_with(&json!({ "mirror": made["mirror_id"] }));
    assert_eq!(
        sandbox.stdout("import plainpkg; print(plainpkg.VALUE)"),
        "7\n"
    );
    sandbox.close().ok();
    delete(&service, "kept").ok();
}

#[test]
fn a_wish_that_cannot_be_granted_says_why() {
    let index = Index::start(&[PLAIN, ("broken", "raise ValueError('no such luck')\n")]);
    let service = Service::with_config(&format!("{}mirrors.max = 1\n", index.config()));
    let refused = |wish: &Value, field: &str| {
        let answer = service.post_json("/mirrors", wish);
        assert_eq!(answer.status, 422, "{wish}");
        assert_eq!(answer.json()["field"], field, "{wish}");
    };
    refused(&json!({ "packages": [] }), "packages");
    refused(&json!({ "packages": ["--index-url=x"] }), "packages");
    refused(&json!({ "packages": ["x-1-py3-none-any.whl"] }), "packages");
    refused(
        &json!({ "packages": ["x"], "preload": ["os; exit()"] }),
        "preload",
    );
    refused(&json!({ "packages": ["x"], "name": "default" }), "name");
    refused(&json!({ "packages": ["x"], "name": "a/b" }), "name");
    refused(&json!({ "packages": ["x"], "base": "other" }), "base");
    refused(
        &json!({ "packages": ["x"], "wait_seconds": -1 }),
        "wait_seconds",
    );
    let failed = make(&service, "broken", "broken");
    assert_eq!(failed["status"], "failed");
    let detail = failed["detail"].as_str().expect("a reason");
    assert!(detail.contains("ValueError: no such luck"), "{detail}");
    let missing = make(&service, "missing", "nowhere");
    assert!(
        missing["detail"].to_string().contains("nowhere"),
        "{missing}"
    );
    // Those that failed take nobody's room.
    assert_eq!(make(&service, "one", "plainpkg")["status"], "ready");
    let wish = json!({ "packages": ["plainpkg"] });
    service
        .post_json("/mirrors", &wish)
        .refused(429, "too_many_mirrors");
    let other = json!({ "name": "two", "packages": ["plainpkg"], "preload": ["plainpkg"] });
    service
        .post_json("/mirrors", &other)
        .refused(409, "mirror_exists");
    delete(&service, "one").ok();
}

/// Packages that do at their import what they can to the zygote, the mirror and the host.
#[test]
fn a_hostile_package_harms_nobody_but_its_own_mirror() {
    let probe = "import ctypes, os, signal, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                 def attempt(what, wrong):\n    try:\n        if what(): FOUND.append(wrong)\n    except OSError: pass\n\
                 FOUND = []\n\
                 attempt(lambda: open('/opt/venv/planted', 'w'), 'wrote the mirror')\n\
                 libc.mount(b'none', b'/', None, 32 | 4096, None)\n\
                 attempt(lambda: open('/opt/venv/planted', 'w'), 'wrote the remounted mirror')\n\
                 fd = os.pidfd_open(1)\n\
                 if os.fork() == 0:\n    try:\n        os.setns(fd, os.CLONE_NEWNS)\n        for tree in (b'/mirror', b'/layer'):\n            libc.mount(b'none', tree, None, 32 | 4096, None)\n            open(tree.decode() + '/opt/venv/planted', 'w')\n            os._exit(7)\n    except OSError: os._exit(0)\n    os._exit(1)\n\
                 if os.WEXITSTATUS(os.wait()[1]) == 7: FOUND.append('wrote the nursery\\'s mirror')\n\
                 os.close(fd)\nos.kill(1, signal.SIGKILL)\n\
                 def errno_of(number, *arguments):\n    ctypes.set_errno(0)\n    libc.syscall(number, *arguments)\n    return ctypes.get_errno()\n\
                 REFUSED = [errno_of(*call) for call in ((165, b'none', b'/', None, 32 | 4096, None), (272, 0x40000000), (321, 0, 0, 0))]\n";
    let index = Index::start(&[
        PLAIN,
        ("probe", probe),
        ("quits", "import os\nos._exit(0)\n"),
        ("loops", "while True: pass\n"),
        (
            "leaves",
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n",
        ),
        (
            "bombs",
            "import os\ntry:\n    while os.fork() >= 0: pass\nexcept OSError: pass\n",
        ),
        ("eats", "x = bytearray(1 << 40)\n"),
        (
            "threads",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
        ),
    ]);
    let config = format!(
        "{}mirrors.preload_seconds = 20\nmirrors.memory_bytes = 1073741824\n",
        index.config()
    );
    let service = Service::with_config(&config);
    let zygote = zygote_of(service.process().pid);
    assert_eq!(make(&service, "probe", "probe")["status"], "ready");
    let sandbox = service.create_with(&json!({ "mirror": "probe" }));
    assert_eq!(sandbox.stdout("import probe; print(probe.FOUND)"), "[]\n");
    // mount, unshare and bpf do not exist (ENOSYS) for the zygote that imported it.
    assert_eq!(sandbox.stdout("print(probe.REFUSED)"), "[38, 38, 38]\n");
    sandbox.close().ok();
    for name in ["quits", "loops", "bombs", "eats"] {
        let made = make(&service, name, name);
        assert_eq!(made["status"], "failed", "{name}: {made}");
        service.assert_healthy();
    }
    // A kernel that is forked beside another thread could hang: the answer says so.
    let made = make(&service, "threads", "threads");
    assert_eq!(made["status"], "failed", "{made}");
    let detail = made["detail"].as_str().expect("a reason");
    assert!(detail.contains("leave threads running"), "{detail}");
    let made = make(&service, "leaves", "leaves");
    assert_eq!(made["status"], "ready", "{made}");
    assert!(zygote.exists(), "the base's zygote is untouched");
    service.assert_healthy();
    for name in ["probe", "leaves"] {
        delete(&service, name).ok();
    }
}

#[test]
fn a_sandbox_of_a_mirror_is_as_fast_as_one_of_the_base() {
    let index = Index::start(&[PLAIN]);
    let service = Service::with_config(&format!("{}mirrors.pool = 0\n", index.config()));
    assert_eq!(make(&service, "fast", "plainpkg")["status"], "ready");
    let sample = |wish: &Value| {
        let began = Instant::now();
        let sandbox = service.create_with(wish);
        sandbox.assert_usable();
        let took = began.elapsed();
        sandbox.close().ok();
        took
    };
    let median = |mut samples: Vec<Duration>| {
        samples.sort();
        samples[samples.len() / 2]
    };
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let (mut base, mut layered) = (Vec::new(), Vec::new());
        for _ in 0..15 {
            base.push(sample(&json!({})));
            layered.push(sample(&json!({ "mirror": "fast" })));
        }
        let ratio = median(layered).as_secs_f64() / median(base).as_secs_f64();
        if ratio <= 1.2 {
            delete(&service, "fast").ok();
            return;
        }
        ratios.push(ratio);
    }
    panic!("slower than the base each time: {ratios:?}");
}
