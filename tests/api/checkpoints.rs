//! Variables that are kept when a client asks for it, and contexts that go on from them.

use std::thread;

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{Answer, Request};
use crate::fixture::sandbox::{Sandbox, shown};

fn post(sandbox: &Sandbox<'_>, verb: &str, body: &Value) -> Answer {
    sandbox.service.post_json(&sandbox.path(verb), body)
}

fn delete(sandbox: &Sandbox<'_>, verb: &str) -> Answer {
    let path = sandbox.path(verb);
    sandbox.service.send(&Request {
        method: "DELETE",
        path: &path,
        ..Request::default()
    })
}

/// Keeps what a context holds; gives the checkpoint's id.
#[track_caller]
fn keep(sandbox: &Sandbox<'_>, context: &str) -> String {
    let verb = format!("contexts/{context}/checkpoint");
    let made = post(sandbox, &verb, &json!({})).ok().json();
    made["checkpoint_id"].as_str().expect("an id").to_owned()
}

fn restore(sandbox: &Sandbox<'_>, context: &str, checkpoint: &str) -> Answer {
    let verb = format!("contexts/{context}/restore");
    post(sandbox, &verb, &json!({ "checkpoint_id": checkpoint }))
}

/// Forks a context; gives the id of the branch.
#[track_caller]
fn fork(sandbox: &Sandbox<'_>, context: &str, request: &Value) -> String {
    let verb = format!("contexts/{context}/fork");
    let made = post(sandbox, &verb, request).ok().json();
    made["context_id"].as_str().expect("an id").to_owned()
}

fn execute(sandbox: &Sandbox<'_>, context: &str, code: &str) -> Value {
    sandbox.execute_json(&json!({ "code": code, "context_id": context }))
}

#[track_caller]
fn stdout(sandbox: &Sandbox<'_>, context: &str, code: &str) -> String {
    let outcome = execute(sandbox, context, code);
    assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
    outcome["stdout"].as_str().expect("a text").to_owned()
}

#[test]
fn a_checkpoint_brings_variables_back_as_often_as_wanted() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout("x = [1]; open('f', 'w').write('before')");
    let kept = post(
        &sandbox,
        "contexts/default/checkpoint",
        &json!({ "name": "one" }),
    );
    let kept = kept.ok().json();
    assert_eq!(
        (&kept["name"], &kept["context_id"], &kept["execution_count"]),
        (&json!("one"), &json!("default"), &json!(1))
    );
    assert_eq!(kept["not_carried"], json!([]));
    assert!(
        kept["note"]
            .as_str()
            .expect("a note")
            .contains("files are shared")
    );
    let id = kept["checkpoint_id"].as_str().expect("an id");
    for n in 0..3 {
        sandbox.stdout(&format!(
            "x.append({n}); y = 1; open('f', 'w').write('after')"
        ));
        let restored = restore(&sandbox, "default", id).ok().json();
        assert_eq!(restored["context_id"], "default");
        assert_eq!(restored["execution_count"], 1);
        let seen = sandbox.stdout("print(x, 'y' in globals(), open('f').read())");
        assert_eq!(seen, "[1] False after\n");
    }
    let listed = service.get(&sandbox.path("checkpoints")).ok().json();
    assert_eq!(listed, json!([kept]));
    let gone = delete(&sandbox, &format!("checkpoints/{id}")).ok().json();
    assert_eq!(gone["message"], "Checkpoint deleted");
    restore(&sandbox, "default", id).refused(404, "checkpoint_not_found");
    delete(&sandbox, &format!("checkpoints/{id}")).refused(404, "checkpoint_not_found");
}

#[test]
fn branches_start_with_the_same_variables_and_go_separate_ways() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout(
        "import random, os\nrandom.seed(7); x = [0]\nos.makedirs('d'); os.chdir('d')\n\
         def f(): return x\nkernel = os.getpid()",
    );
    let branches: Vec<String> = (0..10)
        .map(|_| fork(&sandbox, "default", &json!({})))
        .collect();
    thread::scope(|scope| {
        for (n, branch) in branches.iter().enumerate() {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let code = format!("x.append({n}); print(f(), os.getcwd(), os.getpid() != kernel)");
                let seen = stdout(sandbox, branch, &code);
                assert_eq!(seen, format!("[0, {n}] /home/user/d True\n"));
            });
        }
    });
    let random = |context: &str| stdout(&sandbox, context, "print(random.random())");
    assert_eq!(random("default"), random(&branches[0]));
    assert_eq!(sandbox.stdout("print(x)"), "[0]\n");
    // No child that the code can wait for, and a process group of its own.
    let waits = "import os\ntry: os.wait()\nexcept ChildProcessError: print('none')\n\
                 print(os.getpgrp() == os.getpid())";
    assert_eq!(sandbox.stdout(waits), "none\nTrue\n");
    assert_eq!(stdout(&sandbox, &branches[0], waits), "none\nTrue\n");
}

#[test]
fn a_branch_is_locked_down_as_any_kernel() {
    let service = Service::start();
    let sandbox = service.create();
    let fields = "NoNewPrivs|Seccomp|CapInh|CapPrm|CapEff|CapBnd|CapAmb|Uid|Gid";
    let look = format!(
        "import re\nprint(re.findall(r'^({fields}).*$', open('/proc/self/status').read(), re.M),\n\
         [l for l in open('/proc/self/status') if re.match('({fields}):', l)])"
    );
    let kernel = sandbox.stdout(&look);
    let branch = fork(&sandbox, "default", &json!({}));
    assert_eq!(stdout(&sandbox, &branch, &look), kernel);
    let refused = "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000))";
    assert_eq!(stdout(&sandbox, &branch, refused), "-1\n");
}

#[test]
fn a_branch_outlives_what_it_was_forked_from_and_has_checkpoints_of_its_own() {
    let service = Service::start();
    let sandbox = service.create();
    let verb = "contexts";
    let parent = post(&sandbox, verb, &json!({ "env": { "MINE": "1" } }))
        .ok()
        .json();
    let parent = parent["context_id"].as_str().expect("an id");
    stdout(&sandbox, parent, "x = 1");
    let kept = keep(&sandbox, parent);
    let branch = fork(&sandbox, parent, &json!({ "name": "b" }));
    // Its parent lives: who reaps it is another than in the end.
    let died = execute(&sandbox, &branch, "import os\nx = 2\nos._exit(7)");
    assert_eq!(
        (&died["outcome"], &died["exit_code"], &died["state"]),
        (&json!("kernel_died"), &json!(7), &json!("restored")),
        "{}",
        shown(&died)
    );
    delete(&sandbox, &format!("contexts/{parent}")).ok();
    assert_eq!(
        stdout(&sandbox, &branch, "import os; print(x, os.environ['MINE'])"),
        "1 1\n"
    );
    let died = execute(&sandbox, &branch, "import ctypes; ctypes.string_at(0)");
    assert_eq!(
        (&died["signal"], &died["state"]),
        (&json!(11), &json!("restored"))
    );
    // The checkpoint is the sandbox's, and so is what is made from it.
    let second = fork(&sandbox, "default", &json!({ "checkpoint_id": kept }));
    assert_eq!(
        stdout(&sandbox, &second, "import os; print(x, os.environ['MINE'])"),
        "1 1\n"
    );
    sandbox.stdout("x = 'default'");
    restore(&sandbox, "default", &kept).ok();
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
    post(&sandbox, "contexts/default/restart", &json!({})).ok();
    assert_eq!(sandbox.stdout("print('x' in globals())"), "False\n");
    restore(&sandbox, "default", &kept).ok();
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
}

#[test]
fn what_a_fork_does_not_carry_is_said() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout(
        "import threading, socket, time, asyncio\n\
         stop = threading.Event()\n\
         thread = threading.Thread(target=stop.wait, name='worker'); thread.start()\n\
         a, b = socket.socketpair()\n\
         async def later(): await asyncio.sleep(60)\n\
         task = asyncio.ensure_future(later()); await asyncio.sleep(0)\ntask.set_name('later')",
    );
    let made = post(&sandbox, "contexts/default/fork", &json!({}))
        .ok()
        .json();
    let said = made["not_carried"].to_string();
    for wanted in [
        "thread worker",
        "socket on descriptor",
        "asyncio task later",
    ] {
        assert!(said.contains(wanted), "{said}");
    }
    let branch = made["context_id"].as_str().expect("an id");
    assert_eq!(
        stdout(
            &sandbox,
            branch,
            "print(thread.is_alive(), threading.active_count())"
        ),
        "False 1\n"
    );
    // The kernel that was forked goes on with all of it.
    let here = "a.send(b'x'); print(b.recv(1), thread.is_alive()); stop.set(); thread.join()";
    assert_eq!(sandbox.stdout(here), "b'x' True\n");
}

#[test]
fn there_are_as_many_checkpoints_as_allowed() {
    let service = Service::with_config("limits.checkpoints = 2\nlimits.contexts = 2");
    let sandbox = service.create();
    let first = keep(&sandbox, "default");
    keep(&sandbox, "default");
    let third = post(&sandbox, "contexts/default/checkpoint", &json!({}));
    third.refused(429, "too_many_checkpoints");
    delete(&sandbox, &format!("checkpoints/{first}")).ok();
    keep(&sandbox, "default");
    fork(&sandbox, "default", &json!({}));
    let refused = post(&sandbox, "contexts/default/fork", &json!({}));
    refused.refused(429, "too_many_contexts");
    assert_eq!(sandbox.processes("kernel").len(), 1);
}

#[test]
fn processes_of_the_sandbox_limit_branches() {
    let service = Service::with_config("limits.processes = 6");
    let sandbox = service.create();
    let mut made = 0;
    let refused = loop {
        let answer = post(&sandbox, "contexts/default/checkpoint", &json!({}));
        if answer.status != 200 {
            break answer;
        }
        made += 1;
    };
    refused.refused(429, "too_many_processes");
    assert!((2..6).contains(&made), "{made}");
    sandbox.assert_usable();
}

#[test]
fn a_checkpoint_dies_before_the_code_when_memory_is_short() {
    let service = Service::with_config("limits.memory_bytes = 402653184");
    let sandbox = service.create();
    // Its copy of the array is what makes memory short.
    sandbox.stdout("import numpy\nx = numpy.ones(20 << 20, dtype='u1')");
    let kept = keep(&sandbox, "default");
    let more = "y = numpy.ones(150 << 20, dtype='u1'); x += 1\nprint(x[0])\n";
    let grown = "z = []\nfor n in range(40): z.append(numpy.ones(10 << 20, dtype='u1'))";
    assert_eq!(sandbox.stdout(more), "2\n");
    let ended = sandbox.execute_json(&json!({ "code": grown, "restore": "never" }));
    assert_ne!(ended["outcome"], "ok");
    let restored = restore(&sandbox, "default", &kept);
    assert!(
        restored.status == 200 || restored.status == 409,
        "{restored:?}"
    );
    if restored.status == 409 {
        restored.refused(409, "checkpoint_lost");
    }
    sandbox.assert_usable();
}

#[test]
fn code_that_breaks_its_kernel_gets_a_clear_answer() {
    let service = Service::start();
    for breaks in [
        "from _sandcell import checkpoints\ncheckpoints._syscall = lambda *_: 1/0",
        "from _sandcell import checkpoints\ncheckpoints._syscall = lambda *_: 12345",
        "import os\nfrom _sandcell import checkpoints\ncheckpoints._syscall = lambda *_: os._exit(1)",
    ] {
        let sandbox = service.create();
        sandbox.execute(breaks);
        let refused = post(&sandbox, "contexts/default/fork", &json!({}));
        refused.refused(409, "not_forked");
        post(&sandbox, "contexts/default/restart", &json!({})).ok();
        fork(&sandbox, "default", &json!({}));
        sandbox.assert_usable();
        sandbox.close().ok();
    }
}

#[test]
fn a_branch_waits_for_what_runs() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout("x = 0");
    thread::scope(|scope| {
        scope.spawn(|| sandbox.stdout("import time\nopen('on', 'w')\ntime.sleep(0.5); x = 1"));
        while !sandbox.files().iter().any(|(path, _)| path == "on") {}
        let branch = fork(&sandbox, "default", &json!({}));
        assert_eq!(stdout(&sandbox, &branch, "print(x)"), "1\n");
    });
}

#[test]
fn bad_requests_are_named() {
    let service = Service::start();
    let sandbox = service.create();
    let unknown = post(&sandbox, "contexts/nope/checkpoint", &json!({}));
    unknown.refused(404, "context_not_found");
    post(&sandbox, "contexts/nope/fork", &json!({})).refused(404, "context_not_found");
    restore(&sandbox, "default", "nope").refused(404, "checkpoint_not_found");
    let missing = post(&sandbox, "contexts/default/restore", &json!({}));
    missing.refused(422, "invalid_field");
    let long = json!({ "name": "x".repeat(129) });
    post(&sandbox, "contexts/default/fork", &long).refused(422, "invalid_field");
    post(&sandbox, "contexts/default/checkpoint", &long).refused(422, "invalid_field");
    let field = json!({ "nonsense": 1 });
    let refused = post(&sandbox, "contexts/default/fork", &field);
    assert!(refused.status == 422 || refused.status == 400);
    let missing = "/sandbox/00000000000000000000000000/contexts/default/fork";
    service
        .post_json(missing, &json!({}))
        .refused(404, "sandbox_not_found");
}
