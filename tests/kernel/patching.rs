//! Whatever user code replaces or deletes, its sandbox answers the next execution with its variables.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

/// Modules whose every attribute is replaced, in groups that tests take side by side.
const GROUPS: &[&[&str]] = &[
    &[
        "os", "time", "sys", "io", "json", "ast", "re", "types", "codecs", "asyncio",
    ],
    &[
        "posix",
        "signal",
        "threading",
        "select",
        "traceback",
        "linecache",
        "contextlib",
    ],
    &[
        "builtins",
        "socket",
        "warnings",
        "tempfile",
        "functools",
        "asyncio.events",
        "inspect",
    ],
];

/// Replaces attributes one by one, or a module's all at once. Uses no builtins itself.
const REPLACE: &str = "
import importlib
kept = 42
class Raiser:
    def __call__(self, *args, **kwargs): raise LookupError('replaced')
    def __getattr__(self, name): raise LookupError('replaced')
    def __eq__(self, other): raise LookupError('replaced')
    def __repr__(self): raise LookupError('replaced')
    __hash__ = None
raiser = Raiser()
put = dict.__setitem__
def attributes(module):
    values = vars(importlib.import_module(module))
    return [(values, name, values[name], f'{module}.{name}') for name in list(values)
            if module == 'builtins' or not name.startswith('__')]
todo = [entry for module in MODULES for entry in attributes(module)]
number = len(todo)
advance = iter(todo).__next__
last = None
def step():
    global last
    if last is not None: put(last[0], last[1], last[2])
    last = None
    last = advance()
    put(last[0], last[1], raiser)
    return last[3]
modules = {module: attributes(module) for module in MODULES}
def replace(entries):
    for values, name, _, _ in entries: put(values, name, raiser)
def put_back(entries):
    for values, name, value, _ in entries: put(values, name, value)
";

#[track_caller]
fn run(sandbox: &Sandbox<'_>, code: &str) -> Value {
    let request = json!({ "code": code, "restore": "never", "timeout_seconds": 20 });
    let outcome = sandbox.execute_json(&request);
    assert_eq!(outcome["state"], "kept", "{code}\n{}", shown(&outcome));
    outcome
}

#[track_caller]
fn shows(sandbox: &Sandbox<'_>, code: &str, expected: &str) {
    let outcome = run(sandbox, code);
    let printed = outcome["stdout"].as_str().expect("a text");
    let result = outcome["results"][0]["data"].as_str().unwrap_or_default();
    assert_eq!(
        format!("{printed}{result}"),
        expected,
        "{code}\n{}",
        shown(&outcome)
    );
}

fn prepare(service: &Service, modules: &[&str]) -> String {
    let sandbox = service.create_with(&json!({ "lease_seconds": 600 }));
    let list = serde_json::to_string(modules).expect("texts");
    run(&sandbox, &REPLACE.replace("MODULES", &list));
    sandbox.id
}

#[test]
fn any_attribute_may_be_replaced() {
    let service = Service::start();
    std::thread::scope(|scope| {
        for modules in GROUPS {
            let service = &service;
            scope.spawn(move || {
                let id = prepare(service, modules);
                let sandbox = service.sandbox(&id);
                let number = run(&sandbox, "number");
                let number = number["results"][0]["data"].as_str().expect("a number");
                let number: usize = number.parse().expect("a number");
                assert!(number > 400, "{number}");
                for _ in 0..number {
                    // Runs with the attribute before it still replaced, and shows its value with the next.
                    let outcome = run(&sandbox, "step()");
                    let name = outcome["results"][0]["data"].as_str().unwrap_or_default();
                    // Values are shown by the one, and IPython asks the other whether a line is open.
                    let own =
                        ["'sys.stdout'", ""].contains(&name) && outcome["error"] == "LookupError";
                    assert!(
                        outcome["outcome"] == "ok" || own,
                        "{name}\n{}",
                        shown(&outcome)
                    );
                }
                let ended = run(&sandbox, "step()");
                assert_eq!(ended["error"], "StopIteration", "{}", shown(&ended));
                shows(&sandbox, "kept", "42");
            });
        }
    });
}

#[test]
fn whole_modules_may_be_replaced() {
    let service = Service::start();
    for modules in GROUPS {
        let id = prepare(&service, modules);
        let sandbox = service.sandbox(&id);
        for module in *modules {
            let replaced = sandbox.execute(&format!("replace(modules['{module}'])"));
            assert_eq!(replaced["state"], "kept", "{module}\n{}", shown(&replaced));
            // With a checkpoint too, and with an exception.
            let next = sandbox.execute("kept");
            assert_eq!(next["outcome"], "ok", "{module}\n{}", shown(&next));
            assert_eq!(
                next["results"][0]["data"],
                "42",
                "{module}\n{}",
                shown(&next)
            );
            let raised = sandbox.execute("1/0");
            assert_eq!(
                raised["error"],
                "ZeroDivisionError",
                "{module}\n{}",
                shown(&raised)
            );
            assert_eq!(raised["state"], "kept", "{module}\n{}", shown(&raised));
            let traceback = raised["traceback"].as_str().expect("a text");
            assert!(traceback.contains("1/0"), "{module}\n{traceback}");
            run(&sandbox, &format!("put_back(modules['{module}'])"));
            shows(&sandbox, "print(kept)", "42\n");
        }
    }
}

/// What is done once, and then code with what it shows.
const CASES: &[(&str, &[(&str, &str)])] = &[
    (
        "from unittest import mock\nmock.patch('os.getcwd', side_effect=PermissionError).start()",
        &[
            (
                "import os\ntry: os.getcwd()\nexcept PermissionError: print('denied')",
                "denied\n",
            ),
            ("mock.patch.stopall(); os.getcwd()", "'/home/user'"),
        ],
    ),
    // The guard that HumanEval and its like put before what they grade.
    (
        "import builtins, faulthandler, os, shutil, subprocess, sys\n\
         faulthandler.disable()\n\
         builtins.exit = builtins.quit = builtins.help = None\n\
         os.environ['OMP_NUM_THREADS'] = '1'\n\
         for name in ('kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename '\n\
                      'renames truncate replace unlink fchmod fchown chmod chown chroot lchown getcwd '\n\
                      'chdir').split():\n    setattr(os, name, None)\n\
         shutil.rmtree = shutil.move = shutil.chown = subprocess.Popen = None\n\
         for name in 'ipdb joblib resource psutil tkinter'.split(): sys.modules[name] = None",
        &[
            (
                "os.kill, os.system, subprocess.Popen, builtins.exit",
                "(None, None, None, None)",
            ),
            ("!echo hi", "hi\n"),
            (
                "try: import resource\nexcept ImportError: print('no')",
                "no\n",
            ),
        ],
    ),
    // As freezegun does it: the functions, and wherever a module has them.
    (
        "import sys, time\n\
         real = {time.time: lambda: 5.0, time.monotonic: lambda: 6.0, time.sleep: lambda seconds: None,\n\
                 time.perf_counter: lambda: 7.0, time.time_ns: lambda: 8}\n\
         for module in list(sys.modules.values()):\n\
             \x20   for name, value in list(vars(module).items()):\n\
             \x20       try: fake = real.get(value)\n\
             \x20       except TypeError: continue\n\
             \x20       if fake: setattr(module, name, fake)",
        &[
            (
                "time.time(), time.monotonic(), time.sleep(1000)",
                "(5.0, 6.0, None)",
            ),
            (
                "for i in range(3): print(i); print(i, file=sys.stderr)",
                "0\n1\n2\n",
            ),
            (
                "import asyncio\nawait asyncio.sleep(0)\nprint('awaited')",
                "awaited\n",
            ),
        ],
    ),
    // As pyfakefs does it: other modules in their place, in all modules.
    (
        "import builtins, io, os, sys, types\n\
         class Fake(types.ModuleType):\n\
             \x20   def __getattr__(self, name): raise FileNotFoundError(name)\n\
         def no_file(*args, **kwargs): raise FileNotFoundError(args)\n\
         builtins.open = io.open = os.stat = os.listdir = os.scandir = os.getcwd = os.lstat = no_file\n\
         os.path.exists = os.path.isfile = os.path.isdir = lambda path: False\n\
         fakes = {module: Fake('fake') for module in (os, os.path, io)}\n\
         for module in list(sys.modules.values()):\n\
             \x20   if module not in (sys.modules['__main__'], sys, builtins) and module not in fakes:\n\
             \x20       for name, value in list(vars(module).items()):\n\
             \x20           if isinstance(value, types.ModuleType) and value in fakes:\n\
             \x20               setattr(module, name, fakes[value])",
        &[
            (
                "try: open('/etc/passwd')\nexcept FileNotFoundError: print('none')",
                "none\n",
            ),
            ("os.path.exists('/etc/passwd')", "False"),
        ],
    ),
    (
        "import builtins\ndel builtins.print\ndel builtins.len, builtins.str\n\
         def broken(*args): raise LookupError\n\
         builtins.isinstance = builtins.__import__ = builtins.__build_class__ = broken\n\
         builtins.compile = builtins.exec = builtins.eval = builtins.type = builtins.repr = None",
        &[
            ("try: print\nexcept NameError: kept", ""),
            (
                "try: isinstance(1, int)\nexcept LookupError as error: found = error\nfound",
                "LookupError()",
            ),
            ("[kept, {'a': 1.5}]", "[1, {'a': 1.5}]"),
            ("def f(): return kept\nf()", "1"),
        ],
    ),
    (
        "import builtins\nvars(builtins).clear()",
        &[("kept + 1", "2"), ("[item for item in (1, 2)]", "[1, 2]")],
    ),
    (
        "import os, sys, time\nfor module in os, time, sys: vars(module).clear()",
        &[("kept + 1", "2"), ("print('out')", "out\n")],
    ),
    ("import sys\nsys.modules.clear()", &[("kept + 1", "2")]),
    (
        "import sys\n\
         for name in 'os re ast inspect traceback linecache tokenize IPython.core.history'.split():\n\
             \x20   sys.modules[name] = None",
        &[
            ("kept + 1", "2"),
            ("try: import re\nexcept ImportError: print('no')", "no\n"),
        ],
    ),
    (
        "import importlib, inspect, linecache, os, threading, traceback, warnings\n\
         for module in (os, threading, inspect, traceback, linecache, warnings): importlib.reload(module)",
        &[
            ("os.path.exists('/usr')", "True"),
            ("import threading; threading.active_count() > 0", "True"),
        ],
    ),
    (
        "import json, select, signal, socket, threading\n\
         def broken(*args, **kwargs): raise LookupError\n\
         json.dumps = socket.socket = select.poll = signal.signal = signal.getsignal = threading.Lock = broken\n\
         threading.RLock = threading.enumerate = threading.current_thread = broken",
        &[
            (
                "try: json.dumps({})\nexcept LookupError: print('broken')",
                "broken\n",
            ),
            ("!echo hi", "hi\n"),
        ],
    ),
    (
        "import linecache\nlinecache.cache = linecache.getlines = linecache.checkcache = None",
        &[("kept + 1", "2")],
    ),
    // These can never be taken away.
    (
        "import sys\n\
         def hook(event, args):\n\
             \x20   if event.partition('.')[0] in ('open', 'os', 'subprocess', 'socket', 'shutil', 'ctypes'):\n\
             \x20       raise RuntimeError(event)\n\
         sys.addaudithook(hook)",
        &[
            (
                "try: open('/etc/passwd')\nexcept RuntimeError as error: print(error)",
                "open\n",
            ),
            ("kept + 1", "2"),
        ],
    ),
];

#[test]
fn what_graders_and_tests_replace_is_theirs_alone() {
    let service = Service::start();
    for (replace, probes) in CASES {
        let sandbox = service.create();
        sandbox.stdout("kept = 1");
        let replaced = sandbox.execute(replace);
        assert_eq!(replaced["state"], "kept", "{replace}\n{}", shown(&replaced));
        for restore in ["auto", "never"] {
            let request = json!({ "code": "kept", "restore": restore });
            let outcome = sandbox.execute_json(&request);
            assert_eq!(outcome["outcome"], "ok", "{replace}\n{}", shown(&outcome));
            assert_eq!(outcome["state"], "kept", "{replace}\n{}", shown(&outcome));
            let raised = sandbox.execute("1/0");
            assert_eq!(
                raised["error"],
                "ZeroDivisionError",
                "{replace}\n{}",
                shown(&raised)
            );
            let asked = sandbox
                .execute_json(&json!({ "code": "try: raise KeyError\nfinally: kept",
                                                      "stdin": "a\n", "env": { "A": "b" } }));
            assert_eq!(asked["error"], "KeyError", "{replace}\n{}", shown(&asked));
            assert_eq!(asked["state"], "kept", "{replace}\n{}", shown(&asked));
        }
        for (code, expected) in *probes {
            shows(&sandbox, code, expected);
        }
        shows(&sandbox, "kept", "1");
    }
}

#[test]
fn a_hook_that_forbids_everything_is_an_outcome() {
    let service = Service::start();
    let sandbox = service.create();
    run(
        &sandbox,
        "import sys\ndef hook(event, args): raise RuntimeError(event)\nsys.addaudithook(hook)",
    );
    for code in ["1", "print(1)", "1"] {
        let outcome = sandbox.execute(code);
        assert_eq!(outcome["error"], "RuntimeError", "{}", shown(&outcome));
        assert_eq!(outcome["state"], "kept", "{}", shown(&outcome));
    }
}

#[test]
fn a_thread_sees_what_was_replaced_while_nothing_runs() {
    let service = Service::start();
    let sandbox = service.create();
    run(
        &sandbox,
        "import os, threading, time\nsleep, seen = time.sleep, set()\n\
         os.getcwd = lambda: 'replaced'\n\
         def watch():\n    sleep(0.1)\n    for _ in range(20): seen.add(os.getcwd()); sleep(0.01)\n\
         thread = threading.Thread(target=watch); thread.start()",
    );
    std::thread::sleep(std::time::Duration::from_millis(500));
    shows(
        &sandbox,
        "thread.join(); seen, os.getcwd()",
        "({'replaced'}, 'replaced')",
    );
}

#[test]
fn a_death_is_restored_with_what_was_replaced() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout(
        "import os\nkept, end = 1, os._exit\nos.getcwd = lambda: 'replaced'\nos.kill = None",
    );
    let died = sandbox.execute("end(3)");
    assert_eq!(died["state"], "restored", "{}", shown(&died));
    shows(
        &sandbox,
        "kept, os.getcwd(), os.kill",
        "(1, 'replaced', None)",
    );
}
