//! Kernels that lie when they are to fork, or to go on from a fork.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Scene;
use crate::fixture::http::Request;
use crate::fixture::sandbox::{Sandbox, shown};
use crate::forgery::FIND;

const SOON: Duration = Duration::from_secs(15);

#[track_caller]
fn post(sandbox: &Sandbox<'_>, verb: &str) -> (u16, Value) {
    let answer = sandbox.service.post_json(&sandbox.path(verb), &json!({}));
    (answer.status, answer.json())
}

#[test]
fn a_kernel_is_not_its_own_branch() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout(&format!(
        "{FIND}import sys\nf = sys._getframe()\n\
         while type(f.f_locals.get('self')).__name__ != 'Kernel': f = f.f_back\n\
         kernel = f.f_locals['self']\n\
         def lie(message, descriptors):\n    \
             kernel.tell({{'type': 'branched', 'pid': os.getpid(), 'objection': None}})\n    \
             os.write(descriptors[0], frame({{'type': 'restored', 'missing': []}}))\n    \
             kernel.kept = descriptors\n\
         kernel.branch = lie"
    ));
    let (status, refused) = post(&attacker, "contexts/default/checkpoint");
    assert_eq!((status, &refused["code"]), (409, &json!("not_forked")));
    let begun = Instant::now();
    let (status, restarted) = post(&attacker, "contexts/default/restart");
    assert_eq!(status, 200, "{restarted}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_kernel_is_not_its_own_checkpoint() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout("x = 1");
    let begun = Instant::now();
    let outcome = attacker.execute_within(
        2.0,
        &format!(
            "{FIND}import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
             send(frame({{'type': 'checkpoint', 'pid': os.getpid(), 'objection': None}}))\n\
             while True: pass"
        ),
    );
    assert_eq!(
        (&outcome["outcome"], &outcome["state"]),
        (&json!("timeout"), &json!("lost")),
        "{}",
        shown(&outcome)
    );
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    scene.assert_unharmed(&attacker);
}

#[test]
fn frames_without_end_hold_nobody_up_when_the_kernel_has_died() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attackers = [(); 2].map(|()| scene.attacker(&json!({})));
    // Empty frames: the first ends the kernel, and those who write them go on.
    let code = format!(
        "{FIND}import time\nfor _ in range(3):\n    \
             if os.fork() == 0:\n        \
                 while True: send(bytes(1 << 20))\n\
         time.sleep(100)"
    );
    thread::scope(|scope| {
        for attacker in &attackers {
            attacker.stdout("x = 1");
            scope.spawn(|| {
                let begun = Instant::now();
                let outcome = attacker.execute_within(3.0, &code);
                assert_eq!(outcome["outcome"], "kernel_died", "{}", shown(&outcome));
                assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
            });
        }
        for _ in 0..20 {
            let begun = Instant::now();
            scene.service.assert_healthy();
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
            thread::sleep(Duration::from_millis(100));
        }
    });
    for attacker in &attackers {
        scene.assert_unharmed(attacker);
    }
}

#[test]
fn branches_that_have_ended_leave_no_descriptor() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout("x = 1");
    let branch = || {
        let (status, made) = post(&attacker, "contexts/default/checkpoint");
        assert_eq!(status, 200, "{made}");
        let id = made["checkpoint_id"].as_str().expect("an id");
        let path = attacker.path(&format!("checkpoints/{id}"));
        let deleted = scene.service.send(&Request {
            method: "DELETE",
            path: &path,
            ..Request::default()
        });
        deleted.ok();
    };
    let init = attacker.processes("init")[0];
    let descriptors = || {
        let service = scene.service.process().descriptors().len();
        [service, init.descriptors().len()]
    };
    (0..3).for_each(|_| branch());
    let before = descriptors();
    (0..20).for_each(|_| branch());
    let after = descriptors();
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + 10, "{before} → {after}");
    }
}
