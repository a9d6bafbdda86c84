//! What trips kernels up, where code alone does not show it: time, memory, threads that go on.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::wait_until;
use crate::fixture::sandbox::shown;

use std::time::Duration;

#[test]
fn code_that_ignores_interrupts_is_ended_all_the_same() {
    let service = Service::with_config("limits.interrupt_grace_seconds = 1");
    let sandbox = service.create();
    let outcome = sandbox.execute_within(
        1.0,
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    );
    assert_eq!(outcome["outcome"], "timeout", "{}", shown(&outcome));
    assert_eq!(outcome["state"], "restored");
    sandbox.assert_usable();
    // Ignored in one execution, heard again in the next.
    sandbox.execute("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)");
    let outcome = sandbox.execute_within(1.0, "while True: pass");
    assert_eq!(outcome["outcome"], "timeout", "{}", shown(&outcome));
    assert_eq!(outcome["state"], "kept");
}

/// Code is not shown to IPython's transformers where there is nothing in it for them; what they would have
/// made of it is what runs.
#[test]
fn plain_code_is_what_ipython_would_make_of_it() {
    let service = Service::start();
    let sandbox = service.create();
    let said = sandbox.stdout(PLAIN_CODE);
    let last = said.lines().last().unwrap_or_default();
    let counts: Vec<u32> = last
        .split_whitespace()
        .map(|word| word.parse().expect("two counts"))
        .collect();
    let [plain, other] = counts[..] else {
        panic!("{said}");
    };
    assert!(plain > 1000 && other > 1000, "{said}");
}

/// Random code of pieces that mean something to IPython somewhere, transformed both ways.
const PLAIN_CODE: &str = r#"
import random
from IPython.core.interactiveshell import InteractiveShell
shell, draw = get_ipython(), random.Random(11)
%alias_magic shout time
from IPython.core.macro import Macro
again = Macro('1+1')
pieces = ['x', '1', ' ', '  ', '\t', '\n', '\n\n', '\n    ', '+', '=', ' = ', '(', ')', "'", '"""', '#', ',', ';', '/', '.',
          '...', '>>> ', 'In [1]: ', '%', '%%', '!', '?', '\\', '\\\n', '\r\n', '\f', '\v', '\x85', '\u2028', '\x1c', 'ls', 'cd x',
          'print', 'pwd', 'shout', 'again', 'exit', 'quit', 'time x', 'if x:', 'def f():', 'await ', 'async ', '@', ':', '[', ']', 'é',
          'x.y', '*', 'emacs # PYTHON-MODE', '\ud800', '\0', 'b', "f'{x!r}'", 'None', '\n\t\n']

def outcome(transform, code):
    try:
        return transform(code)
    except BaseException as error:
        return type(error)

counts = [0, 0]
for _ in range(12000):
    code = ''.join(draw.choices(pieces, k=draw.randrange(6)))
    plain = shell._is_python(code)
    counts[not plain] += 1
    if plain:
        ours = shell.transform_cell(code)
        theirs = outcome(lambda text: InteractiveShell.transform_cell(shell, text), code)
        if isinstance(theirs, type):  # text that has no UTF-8: the compiler refuses it too
            ours = outcome(lambda text: compile(text, 'x', 'exec'), ours)
        assert ours == theirs, (code, ours, theirs)
print('\n', *counts)
"#;

#[test]
fn memory_that_is_freed_can_be_used_again() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 256 << 20 }));
    // Large blocks and many small ones are freed in different ways.
    for code in [
        "x = bytearray(160 << 20)",
        "x = [str(n) for n in range(1_500_000)]",
    ] {
        for _ in 0..4 {
            let outcome = sandbox.execute(&format!("{code}\ndel x"));
            assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
        }
    }
}

#[test]
fn what_a_thread_shows_after_the_end_comes_with_the_next_execution() {
    let service = Service::start();
    let sandbox = service.create();
    let outcome = sandbox.execute(
        "import os, threading\n\
         def late():\n    while not os.path.exists('go'): pass\n    \
         print('late print')\n    \
         for n in range(30): display(n)\n    \
         open('gone', 'w').close()\n\
         threading.Thread(target=late).start()",
    );
    assert_eq!(outcome["stdout"], "");
    sandbox.upload("go", b"").ok();
    wait_until("the thread is through", Duration::from_secs(20), || {
        sandbox.files().iter().any(|(path, _)| path == "gone")
    });
    let next = sandbox.execute("print('next')");
    assert_eq!(next["stdout"], "late print\nnext\n", "{}", shown(&next));
    let results: Vec<&Value> = next["results"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|r| &r["data"])
        .collect();
    let kept: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(results, kept.iter().collect::<Vec<_>>(), "the first 20");
    assert_eq!(sandbox.execute("1;")["results"], json!([]));
}

#[test]
fn a_traceback_of_ten_thousand_lines_keeps_head_and_tail() {
    let service = Service::start();
    let sandbox = service.create();
    // Two functions that call each other: lines that repeat are not told apart from a loop's.
    let outcome = sandbox.execute(
        "import sys\nsys.setrecursionlimit(20_000)\n\
         def even(n): return odd(n - 1) if n else 1 / 0\n\
         def odd(n): return even(n - 1)\n\
         even(10_000)",
    );
    assert_eq!(outcome["error"], "ZeroDivisionError", "{}", shown(&outcome));
    let traceback = outcome["traceback"].as_str().expect("a traceback");
    assert!(traceback.len() <= 64 * 1024, "{}", traceback.len());
    assert!(traceback.starts_with("Traceback (most recent call last)"));
    assert!(traceback.contains("even(10_000)"));
    assert!(traceback.contains("bytes left out"));
    assert!(traceback.ends_with("ZeroDivisionError: division by zero"));
    sandbox.assert_usable();
}

#[test]
fn data_that_nobody_asked_for_is_what_a_full_result_drops_first() {
    let service = Service::with_config("limits.result_bytes = 30_000");
    let sandbox = service.create();
    let code = "import pandas as pd\npd.DataFrame({'a': ['x' * 100] * 1000})";
    let outcome = sandbox.execute(code);
    let types: Vec<&str> = outcome["results"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|r| r["type"].as_str())
        .collect();
    assert_eq!(types, ["text/html", "text/plain"], "{}", shown(&outcome));
}

#[test]
fn stdin_is_a_text_of_one_execution() {
    let service = Service::start();
    let sandbox = service.create();
    let read = json!({ "code": "print(input() + input())", "stdin": "one\ntwo" });
    assert_eq!(sandbox.execute_json(&read)["stdout"], "onetwo\n");
    assert_eq!(sandbox.execute("input()")["error"], "EOFError");
    for wrong in [json!(5), json!(["a"])] {
        let request = json!({ "code": "1", "stdin": wrong });
        let answer = service.post_json(&sandbox.path("execute"), &request);
        assert_eq!(answer.status, 422);
    }
}

#[test]
fn figures_updates_and_clearing_come_in_the_order_of_the_code() {
    let service = Service::preloaded();
    let sandbox = service.create();
    let mut events = sandbox.stream(
        "import matplotlib.pyplot as plt\n\
         from IPython.display import clear_output\n\
         handle = display('old', display_id='mine')\n\
         clear_output(wait=True)\n\
         handle.update('new')\n\
         for title in ('first', 'second'):\n    plt.figure(); plt.pie([1]); plt.title(title)",
    );
    let mut told = Vec::new();
    while let Some(event) = events.event() {
        match event["type"].as_str() {
            Some("clear_output") => told.push(json!(["clear", event["wait"]])),
            Some("result") => told.push(json!([
                event["kind"],
                event["display_id"],
                event["data"]["text/plain"],
                event["data"]["application/vnd.e2b.chart.v1+json"]["title"],
            ])),
            _ => {}
        }
    }
    let figure = |title: &str| json!(["display", null, "<Figure size 640x480 with 1 Axes>", title]);
    assert_eq!(
        told,
        [
            json!(["display", "mine", "'old'", null]),
            json!(["clear", true]),
            json!(["update", "mine", "'new'", null]),
            figure("first"),
            figure("second"),
        ]
    );
}
