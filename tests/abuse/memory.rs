//! Memory without end.

use serde_json::json;

use crate::fixture::sandbox::shown;
use crate::{Scene, assert_ended, assert_raised};

const SMALL: u64 = 192 << 20;

#[test]
fn a_memory_bomb_is_told_and_the_files_are_kept() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "memory_bytes": SMALL }));
    attacker.upload("kept", b"x").ok();
    let outcome = attacker.execute("b = []\nwhile True: b.append(bytearray(1 << 20))");
    assert_ended(&outcome, "out_of_memory", "restored");
    scene.assert_unharmed(&attacker);
    assert_eq!(attacker.download("kept").ok().body, b"x");
}

#[test]
fn files_and_heap_share_one_limit() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "memory_bytes": SMALL }));
    let outcome = attacker.execute(
        "for name in ['/tmp/t', '/dev/shm/s', 'f']:\n    \
             with open(name, 'wb') as f: f.write(bytes(30 << 20))\n\
         print('written', flush=True)\n\
         b = bytearray(120 << 20)",
    );
    assert_eq!(outcome["stdout"], "written\n", "{}", shown(&outcome));
    assert_ended(&outcome, "out_of_memory", "restored");
    scene.assert_unharmed(&attacker);
    // Once the files are gone there is room for the same.
    attacker.command("rm /tmp/t /dev/shm/s f");
    assert_eq!(
        attacker.stdout("b = bytearray(120 << 20); print(len(b))"),
        format!("{}\n", 120 << 20)
    );
}

#[test]
fn files_alone_cannot_take_the_memory_that_a_kernel_needs() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "memory_bytes": SMALL }));
    let outcome =
        attacker.execute("f = open('f', 'wb', buffering=0)\nwhile True: f.write(bytes(1 << 20))");
    assert!(
        ["error", "out_of_memory"].contains(&outcome["outcome"].as_str().unwrap_or_default()),
        "{}",
        shown(&outcome)
    );
    scene.assert_others_unharmed();
    // Whatever happened, the client can find out, delete the file and go on.
    attacker.command("rm f");
    attacker.execute("1");
    attacker.assert_usable();
}

#[test]
fn a_child_s_memory_is_the_sandbox_s() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "memory_bytes": SMALL }));
    let answer = attacker.command("python -c 'b = bytearray(1 << 30)'");
    assert_eq!(answer["exit_code"], 137, "{}", shown(&answer));
    assert_eq!(answer["out_of_memory"], true, "{}", shown(&answer));
    let outcome = attacker.execute(
        "import subprocess\nprint(subprocess.run(['python', '-c', 'b = bytearray(1 << 30)']).returncode)",
    );
    assert_eq!(
        outcome["usage"]["limits_hit"],
        json!(["memory"]),
        "{}",
        shown(&outcome)
    );
    scene.assert_unharmed(&attacker);
}

#[test]
fn an_absurd_request_is_an_exception() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    assert_raised(&attacker.execute("b = bytearray(1 << 60)"), "MemoryError");
    scene.assert_unharmed(&attacker);
}
