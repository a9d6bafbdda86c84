//! Variables that a sandbox, a context or an execution sets: what a kernel follows, what it puts back, and
//! what it says that it cannot follow.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

/// Runs code with variables, and gives what it printed.
#[track_caller]
fn with(sandbox: &Sandbox<'_>, env: &Value, code: &str) -> String {
    let outcome = sandbox.execute_json(&json!({ "code": code, "env": env }));
    assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
    assert_eq!(
        outcome["env_not_applied"],
        Value::Null,
        "{}",
        shown(&outcome)
    );
    outcome["stdout"].as_str().expect("a text").to_owned()
}

/// Variables, code, what it prints with them, and what before and after.
const FOLLOWED: &[(&str, &str, &str, &str, &str)] = &[
    (
        "TZ",
        "Asia/Tokyo",
        "import time; print(time.tzname[0], time.localtime(0).tm_hour)",
        "JST 9",
        "UTC 0",
    ),
    (
        "PYTHONPATH",
        "/tmp/first:/tmp/second",
        "import sys; print([p for p in sys.path if p.startswith('/tmp')])",
        "['/tmp/first', '/tmp/second']",
        "[]",
    ),
    (
        "PYTHONWARNINGS",
        "error::UserWarning",
        "import warnings\ntry: warnings.warn('w'); print('warned')\nexcept UserWarning: print('raised')",
        "raised",
        "warned",
    ),
    (
        "PYTHONWARNINGS",
        "ignore",
        "import sys, warnings; print(warnings.filters[0][0] == 'ignore' and warnings.filters[0][1] is None, sys.warnoptions)",
        "True ['ignore']",
        "False []",
    ),
    (
        "PYTHONDONTWRITEBYTECODE",
        "",
        "import sys; print(sys.dont_write_bytecode)",
        "False",
        "True",
    ),
    (
        "PYTHONPYCACHEPREFIX",
        "/tmp/cache",
        "import sys; print(sys.pycache_prefix)",
        "/tmp/cache",
        "None",
    ),
    (
        "PYTHONINTMAXSTRDIGITS",
        "5000",
        "import sys; print(sys.get_int_max_str_digits())",
        "5000",
        "4300",
    ),
    (
        "PYTHONTRACEMALLOC",
        "3",
        "import tracemalloc as t; print(t.is_tracing())",
        "True",
        "False",
    ),
    (
        "PYTHONSAFEPATH",
        "1",
        "import sys; print('' in sys.path)",
        "False",
        "True",
    ),
    (
        "PYTHON_CPU_COUNT",
        "7",
        "import os; print(os.cpu_count(), os.process_cpu_count())",
        "7 7",
        "1 1",
    ),
    (
        "TMPDIR",
        "/home/user",
        "import tempfile; print(tempfile.gettempdir())",
        "/home/user",
        "/tmp",
    ),
    (
        "PYTHONASYNCIODEBUG",
        "1",
        "import asyncio; print(asyncio.new_event_loop().get_debug())",
        "True",
        "False",
    ),
    (
        "LC_ALL",
        "C.UTF-8",
        "import locale; print(locale.setlocale(locale.LC_CTYPE))",
        "C.UTF-8",
        "C.UTF-8",
    ),
    (
        "PYTHONBREAKPOINT",
        "builtins.print",
        "breakpoint('stopped')",
        "stopped",
        "",
    ),
];

#[test]
fn an_execution_follows_its_variables_and_puts_them_back() {
    let service = Service::start();
    let sandbox = service.create();
    for (name, value, code, within, otherwise) in FOLLOWED {
        let env = json!({ *name: value });
        let printed = |env: &Value| with(&sandbox, env, code).trim().to_owned();
        assert_eq!(printed(&json!({})), *otherwise, "{name} before");
        assert_eq!(printed(&env), *within, "{name}={value}");
        assert_eq!(printed(&json!({})), *otherwise, "{name} after");
        // Code that raises puts them back as well.
        sandbox.execute_json(&json!({ "code": "1/0", "env": env }));
        assert_eq!(printed(&json!({})), *otherwise, "{name} after an error");
    }
    // What is started sees the same.
    let child = "import subprocess; print(subprocess.run(['date', '+%Z'], capture_output=True, text=True).stdout)";
    assert_eq!(
        with(&sandbox, &json!({ "TZ": "Asia/Tokyo" }), child).trim(),
        "JST"
    );
}

#[test]
fn modules_come_and_filters_of_the_code_stay() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("lib/only_there.py", b"X = 42\n").ok();
    let env = json!({ "PYTHONPATH": "/home/user/lib" });
    assert_eq!(
        with(&sandbox, &env, "import only_there; print(only_there.X)"),
        "42\n"
    );
    let forget = "import sys; del sys.modules['only_there']\n\
        try: import only_there\nexcept ModuleNotFoundError: print('gone')";
    assert_eq!(sandbox.stdout(forget), "gone\n");
    // A relative entry is below the working directory, as at the start of an interpreter.
    assert_eq!(
        with(
            &sandbox,
            &json!({ "PYTHONPATH": "lib" }),
            "import only_there; print(only_there.X)"
        ),
        "42\n"
    );
    // Code's own change of what a variable led to is the code's.
    let own = "import warnings; warnings.simplefilter('always', ResourceWarning)";
    with(&sandbox, &json!({ "PYTHONWARNINGS": "error" }), own);
    let left = "import warnings\n\
        print([f[0] for f in warnings.filters if f[2] is ResourceWarning][0], any(f[0] == 'error' for f in warnings.filters))";
    assert_eq!(sandbox.stdout(left), "always False\n");
}

#[test]
fn a_sandbox_and_a_context_follow_theirs_for_life() {
    let service = Service::start();
    let env = json!({ "TZ": "Asia/Tokyo", "PYTHONPATH": "/tmp/a", "PYTHONHASHSEED": "1", "PYTHONUTF8": "1" });
    let sandbox = service.create_with(&json!({ "env": env }));
    let fixed = json!(["PYTHONHASHSEED", "PYTHONUTF8"]);
    assert_eq!(sandbox.created["env_not_applied"], fixed);
    let look =
        "import sys, time; print(time.tzname[0], [p for p in sys.path if p.startswith('/tmp')])";
    assert_eq!(sandbox.stdout(look), "JST ['/tmp/a']\n");
    // An execution's own go over them, and theirs are back afterwards.
    let own = json!({ "TZ": "America/New_York", "PYTHONPATH": "/tmp/b" });
    assert_eq!(with(&sandbox, &own, look), "EST ['/tmp/b']\n");
    assert_eq!(sandbox.stdout(look), "JST ['/tmp/a']\n");
    // Programs have those too that the kernel cannot follow.
    assert_eq!(
        sandbox.command("python3 -c 'import sys; print(sys.flags.utf8_mode)'")["stdout"],
        "1\n"
    );
    let context = json!({ "env": { "TZ": "Europe/Berlin", "PYTHONMALLOC": "debug" } });
    let context = service
        .post_json(&sandbox.path("contexts"), &context)
        .ok()
        .json();
    assert_eq!(
        context["env_not_applied"],
        json!(["PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONUTF8"])
    );
    let id = &context["context_id"];
    let ask = |id: &Value| {
        sandbox.execute_json(&json!({ "code": look, "context_id": id }))["stdout"].clone()
    };
    assert_eq!(ask(id), "CET ['/tmp/a']\n");
    // A new kernel has them as well.
    let restart = format!("contexts/{}/restart", id.as_str().expect("an id"));
    service.post_json(&sandbox.path(&restart), &json!({})).ok();
    assert_eq!(ask(id), "CET ['/tmp/a']\n");
    assert_eq!(ask(&json!("default")), "JST ['/tmp/a']\n");
}

#[test]
fn what_cannot_be_followed_is_named() {
    let service = Service::preloaded();
    let sandbox = service.create();
    for (env, named) in [
        (
            json!({ "PYTHONHASHSEED": "0", "OWN": "1" }),
            json!(["PYTHONHASHSEED"]),
        ),
        (
            json!({ "PYTHONOPTIMIZE": "2", "PYTHONMALLOC": "debug" }),
            json!(["PYTHONMALLOC", "PYTHONOPTIMIZE"]),
        ),
        (
            json!({ "LD_LIBRARY_PATH": "/tmp", "LD_PRELOAD": "" }),
            json!(["LD_LIBRARY_PATH", "LD_PRELOAD"]),
        ),
        (
            json!({ "PYTHONIOENCODING": "latin-1" }),
            json!(["PYTHONIOENCODING"]),
        ),
        (json!({ "PYTHONIOENCODING": "utf-8" }), Value::Null),
        // Empty is none, to Python.
        (json!({ "PYTHONDEVMODE": "" }), Value::Null),
        // matplotlib has been imported.
        (json!({ "MPLBACKEND": "svg" }), json!(["MPLBACKEND"])),
        // Values that are of no use to the one who reads them.
        (
            json!({ "PYTHONWARNINGS": "nonsense" }),
            json!(["PYTHONWARNINGS"]),
        ),
        (
            json!({ "PYTHONINTMAXSTRDIGITS": "3" }),
            json!(["PYTHONINTMAXSTRDIGITS"]),
        ),
        (
            json!({ "OMP_NUM_THREADS": "many" }),
            json!(["OMP_NUM_THREADS"]),
        ),
        (json!({ "LC_ALL": "xx_XX.UTF-8" }), json!(["LC_ALL"])),
        (
            json!({ "PYTHON_CPU_COUNT": "-1" }),
            json!(["PYTHON_CPU_COUNT"]),
        ),
    ] {
        let outcome = sandbox.execute_json(&json!({ "code": "print('ran')", "env": env }));
        assert_eq!(outcome["stdout"], "ran\n", "{}", shown(&outcome));
        assert_eq!(outcome["env_not_applied"], named, "{env}");
    }
    // In the last event of a stream too.
    let request = json!({ "code": "1", "env": { "PYTHONHASHSEED": "1" } });
    let events = String::from_utf8(sandbox.stream_json(request).finish().expect("an end").body);
    let events = events.expect("text");
    let last: Value = serde_json::from_str(events.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["env_not_applied"], json!(["PYTHONHASHSEED"]), "{last}");
}

const THREADS: &str = r#"
import ctypes, os, re
import numpy, scipy.linalg, sklearn.cluster
def threads():
    maps = open('/proc/self/maps').read()
    def of(pattern, *names):
        found = []
        for path in sorted(set(re.findall(r'/\S*' + pattern + r'\S*\.so\S*', maps))):
            library = ctypes.CDLL(path)
            found += [getattr(library, n)() for n in names if hasattr(library, n)][:1]
        return found
    blas = of('openblas', 'scipy_openblas_get_num_threads64_', 'scipy_openblas_get_num_threads')
    openmp = of('libgomp', 'omp_get_max_threads')
    assert len(blas) >= 2 and openmp, maps
    return sorted(set(blas)), sorted(set(openmp))
"#;

#[test]
fn threads_of_each_loaded_library_follow() {
    let service = Service::preloaded();
    let sandbox = service.create_with(&json!({ "cpus": 2 }));
    sandbox.stdout(THREADS);
    let seen = |env: Value| with(&sandbox, &env, "print(*threads())");
    assert_eq!(seen(json!({})), "[2] [2]\n");
    assert_eq!(seen(json!({ "OMP_NUM_THREADS": "3" })), "[3] [3]\n");
    assert_eq!(seen(json!({})), "[2] [2]\n");
    assert_eq!(seen(json!({ "OPENBLAS_NUM_THREADS": "1" })), "[1] [2]\n");
    assert_eq!(
        seen(json!({ "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4" })),
        "[4] [1]\n"
    );
    assert_eq!(seen(json!({})), "[2] [2]\n");
    // What is loaded while a variable is set takes the usual number afterwards.
    let other = service.create();
    with(&other, &json!({ "OMP_NUM_THREADS": "2" }), THREADS);
    assert_eq!(other.stdout("print(*threads())"), "[1] [1]\n");
    // Programs follow the sandbox and their own.
    let blas = "python3 -c 'import numpy, re, ctypes; \
        p = re.search(r\"/\\S*openblas\\S*\", open(\"/proc/self/maps\").read())[0]; \
        print(ctypes.CDLL(p).scipy_openblas_get_num_threads64_())'";
    assert_eq!(sandbox.command(blas)["stdout"], "2\n");
    let own = json!({ "command": blas, "env": { "OMP_NUM_THREADS": "1" } });
    assert_eq!(sandbox.command_json(&own)["stdout"], "1\n");
}
