//! User code finds the kernel's own socket and speaks for it. Whatever it says, only its own
//! sandbox is harmed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::Scene;
use crate::fixture::sandbox::{Sandbox, shown};

const SOON: Duration = Duration::from_secs(15);

/// Finds the control socket and the id of the execution that runs; `frame` makes a frame of an
/// object or of bytes.
pub(crate) const FIND: &str = "import gc, json, os, socket, stat, struct\n\
    mine = next(o.id for o in gc.get_objects() if type(o).__name__ == 'Execution')\n\
    control = [int(n) for n in os.listdir('/proc/self/fd')\n    \
        if os.path.exists(f'/proc/self/fd/{n}') and stat.S_ISSOCK(os.fstat(int(n)).st_mode)]\n\
    assert control, 'no socket was found'\n\
    def frame(message):\n    \
        body = message if isinstance(message, bytes) else json.dumps(message).encode()\n    \
        return struct.pack('>I', len(body)) + body\n\
    def send(data):\n    \
        for fd in control:\n        \
            left = data\n        \
            while left: left = left[os.write(fd, left):]\n";

#[track_caller]
fn attack(scene: &Scene, attacker: &Sandbox<'_>, code: &str) -> serde_json::Value {
    let before = scene.service.process().rss_bytes();
    let begun = Instant::now();
    let outcome = attacker.execute_within(5.0, &format!("{FIND}{code}"));
    assert!(begun.elapsed() < SOON, "{code}: {:?}", begun.elapsed());
    let growth = scene.service.process().rss_bytes().saturating_sub(before);
    assert!(growth < 100 << 20, "{code}: {growth} bytes of memory");
    scene.assert_others_unharmed();
    outcome
}

/// After at most two reports of a kernel that cannot be spoken with it is itself again.
#[track_caller]
fn assert_recovers(attacker: &Sandbox<'_>) {
    let recovered = (0..3).any(|_| {
        let outcome = attacker.execute_within(5.0, "print(1 + 1)");
        outcome["outcome"] == "ok" && outcome["stdout"] == "2\n"
    });
    assert!(recovered, "the sandbox does not recover");
    attacker.assert_usable();
}

#[test]
fn garbage_ends_the_kernel_and_nothing_else() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    for code in [
        "send(b'\\xff' * 100)",
        "send(b'\\x00\\x00\\x00\\x05hello')",
        "send(struct.pack('>I', 0xffffffff) + b'x' * 1000)",
        "send(struct.pack('>I', 33 << 20) + b'x')",
        "send(frame(b'[' * 1_000_000))",
        "send(frame(b'{\"type\":\"result\",\"id\":%d,\"kind\":\"display\",\"data\":' % mine + b'{\"a\":' * 100_000 + b'1' + b'}' * 100_000 + b'}'))",
        "send(frame({'type': 'nonsense'}))",
        "send(frame({'type': 'done', 'id': -1}))",
        "send(frame({'type': 'done', 'id': 'x', 'files': None}))",
    ] {
        // Who asks again within 5 ms has the next checkpoint forked with the answer: one of which the garbage
        // keeps the service from hearing.
        std::thread::sleep(Duration::from_millis(20));
        let outcome = attack(&scene, &attacker, code);
        assert_eq!(
            (&outcome["outcome"], &outcome["state"]),
            (&json!("kernel_died"), &json!("restored")),
            "{code}: {}",
            shown(&outcome)
        );
        assert_recovers(&attacker);
    }
}

#[test]
fn a_frame_that_never_ends_is_given_up_with_the_time() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    let outcome = attack(
        &scene,
        &attacker,
        "send(struct.pack('>I', 32 << 20) + b'x')\nimport time\ntime.sleep(100)",
    );
    assert!(
        ["timeout", "kernel_died"].contains(&outcome["outcome"].as_str().unwrap_or_default()),
        "{}",
        shown(&outcome)
    );
    assert_recovers(&attacker);
}

#[test]
fn an_early_end_harms_only_the_forger() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    for code in [
        "send(frame({'type': 'done', 'id': mine, 'execution_count': 1}))",
        "for n in range(50): send(frame({'type': 'done', 'id': mine + n, 'execution_count': 1}))",
        "send(frame({'type': 'started', 'id': mine, 'execution_count': 1 << 60}) * 50)",
        "send(frame({'type': 'error', 'id': mine, 'name': 'Forged', 'value': '', 'traceback': 'x' * 100000}) * 50)",
        "send(frame({'type': 'done', 'id': mine, 'execution_count': 1, 'files': [{'path': '../../etc/passwd', 'size': 1 << 62, 'change': 'created'}] * 1000}))",
        "send(frame({'type': 'ready'}) * 10)",
        "send(frame({'type': 'failed', 'step': 's', 'error': 'e'}) * 10)",
        "send(frame({'type': 'done', 'id': 1 << 63, 'execution_count': 1}))",
        "import time\nsend(frame({'type': 'done', 'id': mine, 'execution_count': 1}))\ntime.sleep(1000)",
    ] {
        let outcome = attack(&scene, &attacker, code);
        assert!(
            outcome["outcome"].is_string(),
            "{code}: {}",
            shown(&outcome)
        );
        assert_recovers(&attacker);
    }
}

/// Once the budget is used up empty frames are dropped unread. The socket never runs empty: neither the time nor anybody else on that thread may wait for it to.
#[test]
fn floods_of_frames_end_with_their_time_and_hold_nobody_up() {
    const TIME: Duration = Duration::from_secs(2);
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attackers = [scene.attacker(&json!({})), scene.attacker(&json!({}))];
    let flood = format!(
        "{FIND}import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
         other = frame({{'type': 'started', 'id': 1, 'execution_count': 1}}) * 2000\n\
         for _ in range(60): os.write(control[0], other)\n\
         none = frame(b'') * 16000\n\
         while True: os.write(control[0], none)"
    );
    let begun = Instant::now();
    std::thread::scope(|threads| {
        let floods = attackers.each_ref().map(|attacker| {
            threads.spawn(|| {
                let outcome = attacker.execute_within(TIME.as_secs_f64(), &flood);
                (outcome, begun.elapsed())
            })
        });
        while begun.elapsed() < TIME {
            let asked = Instant::now();
            scene.assert_others_unharmed();
            let waited = asked.elapsed();
            assert!(waited < Duration::from_millis(1500), "{waited:?}");
        }
        for flood in floods {
            let (outcome, elapsed) = flood.join().expect("an outcome");
            let in_time = TIME..TIME + Duration::from_millis(2500);
            assert!(
                outcome["outcome"] == "kernel_died" || in_time.contains(&elapsed),
                "{elapsed:?}: {}",
                shown(&outcome)
            );
        }
    });
    for attacker in &attackers {
        assert_recovers(attacker);
    }
}

#[test]
fn results_without_end_are_bounded() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1\nlimits.result_bytes = 1000000");
    let attacker = scene.attacker(&json!({}));
    let outcome = attack(
        &scene,
        &attacker,
        "for _ in range(300): send(frame({'type': 'result', 'id': mine, 'kind': 'display', 'data': {'text/plain': 'x' * 1_000_000}}))",
    );
    assert!(
        outcome.to_string().len() < 4_000_000,
        "{} bytes",
        outcome.to_string().len()
    );
    assert_recovers(&attacker);
    // And bundles of nothing.
    let outcome = attack(
        &scene,
        &attacker,
        "empty = frame({'type': 'result', 'id': mine, 'kind': 'display', 'data': {}, 'metadata': {'m': 'x' * 1000}}) * 1000\nfor _ in range(100): send(empty)",
    );
    assert!(
        outcome.to_string().len() < 8_000_000,
        "{} bytes",
        outcome.to_string().len()
    );
    assert_recovers(&attacker);
}

#[test]
fn a_socket_that_is_shut_down_is_told_at_once() {
    let scene = Scene::new("limits.interrupt_grace_seconds = 1");
    let attacker = scene.attacker(&json!({}));
    for code in [
        "for fd in control: socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)\nimport time\ntime.sleep(1000)",
        // The checkpoint still has it: this is told when the code ends, at the latest with its time.
        "for fd in control: os.close(fd)\nimport time\ntime.sleep(1)",
    ] {
        let begun = Instant::now();
        let outcome = attack(&scene, &attacker, code);
        assert_eq!(outcome["outcome"], "kernel_died", "{}", shown(&outcome));
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        assert_recovers(&attacker);
    }
}
