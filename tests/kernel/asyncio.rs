//! asyncio as in Python 3.13 and in notebooks: the main thread has a loop, and what it has to do goes on while
//! the kernel is idle.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

const DEFINITIONS: &str = "import asyncio, time\n\
    async def f():\n    await asyncio.sleep(0.01)\n    return 7\n\
    async def numbers():\n    for i in range(3): yield i\n\
    ticks = 0\n\
    async def tick():\n    global ticks\n    while True:\n        await asyncio.sleep(0.01)\n        ticks += 1";

#[track_caller]
fn shows(sandbox: &Sandbox<'_>, code: &str, expected: &str) -> Value {
    let outcome = sandbox.execute_within(20.0, code);
    let printed = outcome["stdout"].as_str().expect("a text");
    let result = outcome["results"][0]["data"].as_str().unwrap_or_default();
    assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
    assert_eq!(outcome["stderr"], "", "{code}\n{}", shown(&outcome));
    assert_eq!(
        format!("{printed}{result}"),
        expected,
        "{code}\n{}",
        shown(&outcome)
    );
    outcome
}

fn fresh(service: &Service) -> Sandbox<'_> {
    let sandbox = service.create();
    sandbox.stdout(DEFINITIONS);
    sandbox
}

fn idle(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds));
}

/// Each in a fresh kernel first, and all in one after the other then.
const IDIOMS: &[(&str, &str)] = &[
    (
        "loop = asyncio.get_event_loop()\nloop.run_until_complete(f())",
        "7",
    ),
    ("asyncio.run(f())", "7"),
    ("asyncio.run(f()) + asyncio.run(f())", "14"),
    ("await f()", "7"),
    (
        "asyncio.get_event_loop().run_until_complete(asyncio.gather(f(), f()))",
        "[7, 7]",
    ),
    (
        "both = asyncio.gather(f(), f())\nasyncio.get_event_loop().run_until_complete(both)",
        "[7, 7]",
    ),
    (
        "task = asyncio.ensure_future(f())\nasyncio.get_event_loop().run_until_complete(task)",
        "7",
    ),
    (
        "task = asyncio.get_event_loop().create_task(f())\nasyncio.get_event_loop().run_until_complete(task)",
        "7",
    ),
    ("task = asyncio.create_task(f())\nawait task", "7"),
    (
        "future = asyncio.Future()\nfuture.set_result(3)\nawait future",
        "3",
    ),
    (
        "with asyncio.Runner() as runner: print(runner.run(f()))",
        "7\n",
    ),
    ("async for i in numbers(): print(i)", "0\n1\n2\n"),
    ("[i async for i in numbers()]", "[0, 1, 2]"),
    ("async with asyncio.timeout(1): print(await f())", "7\n"),
    (
        "async with asyncio.TaskGroup() as group: task = group.create_task(f())\ntask.result()",
        "7",
    ),
    (
        "loop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nprint(loop.run_until_complete(f()))\nloop.close()",
        "7\n",
    ),
    (
        "asyncio.run(f())\nasyncio.get_event_loop().run_until_complete(f())",
        "7",
    ),
    (
        "loop = asyncio.get_event_loop()\nprint(loop.run_until_complete(f()))\nloop.close()",
        "7\n",
    ),
    (
        "try: asyncio.get_running_loop()\nexcept RuntimeError: print(asyncio.run(f()))",
        "7\n",
    ),
    (
        "async def here(): return asyncio.get_running_loop() is asyncio.get_event_loop()\nawait here()",
        "True",
    ),
    (
        "asyncio.get_event_loop() is asyncio.get_event_loop()",
        "True",
    ),
    (
        "await asyncio.get_event_loop().run_in_executor(None, lambda: 5)",
        "5",
    ),
    ("await asyncio.to_thread(lambda: 5)", "5"),
    (
        "process = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n(await process.communicate())[0]",
        r"b'hi\n'",
    ),
    (
        "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())\nasyncio.get_event_loop().run_until_complete(f())",
        "7",
    ),
    ("asyncio.set_event_loop_policy(None)\nawait f()", "7"),
    ("asyncio.set_event_loop(None)\nawait f()", "7"),
    (
        "import warnings\nwarnings.simplefilter('error')\nasyncio.get_event_loop().run_until_complete(f())",
        "7",
    ),
    (
        "import threading\ndef ask():\n    try: asyncio.get_event_loop()\n    except RuntimeError as error: print(error)\n\
         thread = threading.Thread(target=ask, name='other'); thread.start(); thread.join()",
        "There is no current event loop in thread 'other'.\n",
    ),
];

#[test]
fn all_usual_idioms_work() {
    let service = Service::start();
    let all = fresh(&service);
    for (code, expected) in IDIOMS {
        shows(&fresh(&service), code, expected);
        shows(&all, code, expected);
    }
    for (code, expected) in [
        ("import nest_asyncio\nnest_asyncio.apply()", ""),
        (
            "async def nested(): return asyncio.get_event_loop().run_until_complete(f())\nawait nested()",
            "7",
        ),
        ("asyncio.run(nested())", "7"),
        ("await f(), asyncio.run(f())", "(7, 7)"),
        ("task = asyncio.create_task(tick())", ""),
    ] {
        shows(&all, code, expected);
    }
    idle(300);
    shows(&all, "ticks > 5", "True");
}

#[test]
fn code_that_runs_in_a_loop_is_still_told_so() {
    let service = Service::start();
    let sandbox = fresh(&service);
    let outcome = sandbox.execute("await f()\nasyncio.run(f())");
    assert_eq!(outcome["error"], "RuntimeError", "{}", shown(&outcome));
    shows(&sandbox, "await f()", "7");
}

#[test]
fn tasks_go_on_while_the_kernel_is_idle() {
    let service = Service::start();
    for begin in [
        "task = asyncio.create_task(tick())",
        "task = asyncio.ensure_future(tick())",
        "task = asyncio.get_event_loop().create_task(tick())",
        "task = asyncio.create_task(tick())\nawait asyncio.sleep(0)",
        "asyncio.run(f())\ntask = asyncio.get_event_loop().create_task(tick())",
        "loop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\ntask = loop.create_task(tick())",
        // Two loops that the main thread has.
        "await f()\nother = asyncio.create_task(asyncio.sleep(1000))\n\
         asyncio.set_event_loop(asyncio.new_event_loop())\n\
         task = asyncio.get_event_loop().create_task(tick())",
    ] {
        let sandbox = fresh(&service);
        shows(&sandbox, begin, "");
        let seen: Vec<u64> = (0..2)
            .map(|_| {
                idle(300);
                let ticks = sandbox.stdout("print(ticks)");
                ticks.trim().parse().expect("a number")
            })
            .collect();
        assert!(seen[0] > 5 && seen[1] > seen[0] + 5, "{begin}: {seen:?}");
        shows(&sandbox, "task.cancel()\nawait f()", "7");
    }
    // A thread that calls into the loop.
    let sandbox = fresh(&service);
    shows(
        &sandbox,
        "import threading\nloop, got = asyncio.get_event_loop(), []\n\
         timer = threading.Timer(0.1, lambda: asyncio.run_coroutine_threadsafe(f(), loop).add_done_callback(\n    \
             lambda done: got.append(done.result())))\ntimer.start()",
        "",
    );
    idle(400);
    shows(&sandbox, "got", "[7]");
}

const SERVER: &str = "async def answer(reader, writer):\n    \
        await reader.readline()\n    \
        writer.write(b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nhi')\n    \
        await writer.drain()\n    writer.close()\n\
    server = await asyncio.start_server(answer, '127.0.0.1', 8765)";

#[test]
fn a_server_answers_while_the_kernel_is_idle() {
    let service = Service::start();
    let sandbox = fresh(&service);
    shows(&sandbox, SERVER, "");
    for _ in 0..3 {
        let answer = service.get(&sandbox.path("port/8765/")).ok();
        assert_eq!(answer.body, b"hi");
    }
    // So it does to a client of another execution that outlives it.
    shows(
        &sandbox,
        "import threading, urllib.request\ngot = []\n\
         def ask(): got.append(urllib.request.urlopen('http://127.0.0.1:8765/', timeout=5).read())\n\
         thread = threading.Thread(target=ask); thread.start()",
        "",
    );
    idle(300);
    shows(&sandbox, "got", "[b'hi']");
    shows(
        &sandbox,
        "server.close(); await server.wait_closed()\nawait f()",
        "7",
    );
}

#[test]
fn what_callbacks_print_and_raise_is_late_output() {
    let service = Service::start();
    let sandbox = fresh(&service);
    shows(
        &sandbox,
        "loop = asyncio.get_event_loop()\ndef wrong(): 1/0\n\
         class Odd(BaseException): pass\ndef odd(): raise Odd('strange')\n\
         for delay, function in enumerate((wrong, exit, odd, lambda: print('late'))):\n    \
             _ = loop.call_later(0.05 + delay / 100, function)",
        "",
    );
    idle(400);
    let outcome = sandbox.execute("print('next')");
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert_eq!(outcome["stdout"], "late\nnext\n", "{}", shown(&outcome));
    let stderr = outcome["stderr"].as_str().expect("a text");
    for part in ["ZeroDivisionError", "SystemExit", "Odd: strange"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    shows(&sandbox, "await f()", "7");
}

#[test]
fn a_callback_that_prints_more_than_anybody_reads_delays_nobody_for_long() {
    let service = Service::start();
    let sandbox = fresh(&service);
    let much = "def much():\n    for i in range(60_000): print('line', i)\n\
                _ = asyncio.get_event_loop().call_later(0.05, much)";
    for stream in [false, true] {
        shows(&sandbox, much, "");
        idle(300);
        let begun = Instant::now();
        if stream {
            let mut events =
                sandbox.stream_json(json!({ "code": "print('next')", "timeout_seconds": 20 }));
            let (mut first, mut last) = (String::new(), Value::Null);
            while let Some(event) = events.event() {
                if first.is_empty() {
                    first = event["type"].as_str().expect("a type").to_owned();
                }
                last = event;
            }
            assert_eq!(first, "started");
            assert_eq!(last["outcome"], "ok", "{last}");
        } else {
            let outcome = sandbox.execute_within(20.0, "print('next')");
            assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
            assert!(
                outcome["stdout"]
                    .as_str()
                    .is_some_and(|text| text.ends_with("next\n"))
            );
        }
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn a_callback_that_does_not_end_is_interrupted_by_what_waits_for_it() {
    let service = Service::start();
    let sandbox = fresh(&service);
    sandbox.stdout("ran = 0\ndef block(): time.sleep(1000)\ndef spin():\n    while True: pass\nasync def stuck(): spin()");
    for begin in [
        "_ = asyncio.get_event_loop().call_later(0.05, block)",
        "_ = asyncio.get_event_loop().call_later(0.05, spin)",
        "async def later():\n    await asyncio.sleep(0.05)\n    await stuck()\ntask = asyncio.create_task(later())",
    ] {
        shows(&sandbox, begin, "");
        idle(200);
        let begun = Instant::now();
        let outcome = sandbox.execute_within(1.0, "ran += 1");
        assert_eq!(
            outcome["outcome"],
            "timeout",
            "{begin}\n{}",
            shown(&outcome)
        );
        assert_eq!(outcome["state"], "kept", "{begin}\n{}", shown(&outcome));
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
        // The code did not begin, and the next does.
        shows(&sandbox, "ran", "0");
        shows(&sandbox, "await f()", "7");
    }
}

#[test]
fn a_signal_while_the_kernel_is_idle_is_forgotten() {
    let service = Service::start();
    let sandbox = fresh(&service);
    shows(
        &sandbox,
        "import os, subprocess\nslow = []\n\
         def long():\n    time.sleep(0.5)\n    slow.append('whole')\n\
         task = asyncio.create_task(tick())\n_ = asyncio.get_event_loop().call_later(0.1, long)\n\
         killer = subprocess.Popen(['sh', '-c', f'for i in 1 2 3 4 5; do sleep 0.1; kill -INT {os.getpid()}; done'])",
        "",
    );
    idle(1000);
    shows(
        &sandbox,
        "killer.wait(), slow, task.done(), ticks > 5",
        "(0, ['whole'], False, True)",
    );
}

#[test]
fn what_goes_on_between_executions_is_restored_as_it_was_before_the_one_that_dies() {
    let service = Service::start();
    let sandbox = fresh(&service);
    shows(
        &sandbox,
        "import os\ntask = asyncio.create_task(tick(), name='ticker')\nold = asyncio.get_event_loop()",
        "",
    );
    idle(400);
    let died = sandbox.execute("os._exit(1)");
    assert_eq!(died["state"], "restored", "{}", shown(&died));
    let missing = died["not_restored"].to_string();
    assert!(missing.contains("asyncio task ticker"), "{missing}");
    shows(&sandbox, "ticks > 5, await f()", "(True, 7)");
    shows(
        &sandbox,
        "asyncio.get_event_loop().run_until_complete(f())",
        "7",
    );
    shows(
        &sandbox,
        "task = asyncio.create_task(tick())\nticks = 0",
        "",
    );
    idle(300);
    shows(&sandbox, "ticks > 5", "True");
}

#[test]
fn a_forked_child_has_a_loop_of_its_own() {
    let service = Service::start();
    let sandbox = fresh(&service);
    let child = "import os\nloop = asyncio.get_event_loop()\ntask = loop.create_task(tick())\nawait f()\n\
                 def in_child(code):\n    \
                     pid = os.fork()\n    \
                     if pid == 0: os._exit(code())\n    \
                     return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])";
    shows(&sandbox, child, "");
    for (code, expected) in [
        ("in_child(lambda: asyncio.run(f()))", "7"),
        (
            "in_child(lambda: asyncio.get_event_loop().run_until_complete(f()))",
            "7",
        ),
        (
            "in_child(lambda: asyncio.get_event_loop() is not loop)",
            "1",
        ),
        // One that runs to the end of the code as its parent does.
        ("pid = os.fork()\nif pid: os.waitpid(pid, 0)", ""),
    ] {
        let outcome = sandbox.execute(code);
        assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
        if !expected.is_empty() {
            assert_eq!(
                outcome["results"][0]["data"],
                expected,
                "{code}\n{}",
                shown(&outcome)
            );
        }
    }
    idle(300);
    shows(&sandbox, "ticks > 5, task.done()", "(True, False)");
}
