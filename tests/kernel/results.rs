//! Results whose formatters fail, and results that are too large: an entry is never null, and what was
//! left out is told.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::shown;

const CLASSES: &str = "\
import sys
class R:
    def __repr__(self): raise ValueError('no repr')
class T:
    def __repr__(self): return 5
class Q:
    def __repr__(self): return repr(self)
class H:
    def __repr__(self): return 'H'
    def _repr_html_(self): raise KeyError('html')
class D:
    def __repr__(self): return 'D'
    def _ipython_display_(self): raise OSError('display')
class M:
    def __init__(self, bundle): self.bundle = bundle
    def __repr__(self): return 'M'
    def _repr_mimebundle_(self, include=None, exclude=None): return self.bundle
class I(int): pass
class L:
    def __repr__(self): return 'y' * 20_000_000
x = []; x.append(x)";

/// Code, what the text of its last result begins with, and the exception that it ends with.
const TEXTS: [(&str, &str, Option<&str>); 29] = [
    (
        "10**5000",
        "<int object whose repr raised ValueError: Exceeds the limit (4300 digits)",
        Some("ValueError"),
    ),
    (
        "[10**5000]",
        "<list object whose repr raised ValueError: Exceeds",
        Some("ValueError"),
    ),
    (
        "{'a': 10**5000}",
        "<dict object whose repr raised ValueError: Exceeds",
        Some("ValueError"),
    ),
    (
        "I(10**5000)",
        "<I object whose repr raised ValueError: Exceeds",
        Some("ValueError"),
    ),
    (
        "display(10**5000)",
        "<int object whose repr raised ValueError: Exceeds",
        Some("ValueError"),
    ),
    (
        "R()",
        "<R object whose repr raised ValueError: no repr>",
        Some("ValueError"),
    ),
    (
        "[R(), 1]",
        "<list object whose repr raised ValueError: no repr>",
        Some("ValueError"),
    ),
    (
        "display(R())",
        "<R object whose repr raised ValueError: no repr>",
        Some("ValueError"),
    ),
    (
        "T()",
        "<T object whose repr raised TypeError: __repr__ returned non-string",
        Some("TypeError"),
    ),
    (
        "Q()",
        "<Q object whose repr raised RecursionError: maximum recursion",
        Some("RecursionError"),
    ),
    ("H()", "H", Some("KeyError")),
    ("D()", "D", Some("OSError")),
    ("M(None)", "M", None),
    ("M(5)", "M", None),
    ("M('text')", "M", None),
    ("M(())", "M", None),
    ("M({1: 'x', None: 'y'})", "M", None),
    ("M({'text/plain': None})", "M", None),
    ("M(({'text/plain': 'a'}, 5))", "a", None),
    ("M(({'text/plain': 'a'}, {5: R()}))", "a", None),
    (
        "M({'text/plain': R()})",
        "<R object whose str raised ValueError: no repr>",
        None,
    ),
    ("M({'application/json': float('nan')})", "M", None),
    ("M({'application/json': {'a': [float('inf')]}})", "M", None),
    ("display({'text/plain': None}, raw=True)", "None", None),
    ("I(5)", "5", None),
    ("x", "[[...]]", None),
    ("'\\udcff'", "'\\udcff'", None),
    ("float('nan')", "nan", None),
    ("sys.set_int_max_str_digits(0)\n10**5000", "1000000", None),
];

#[test]
fn an_entry_is_never_null() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(sandbox.execute(CLASSES)["outcome"], "ok");
    for (code, text, error) in TEXTS {
        let outcome = sandbox.execute(code);
        assert_eq!(
            outcome["error"].as_str(),
            error,
            "{code}: {}",
            shown(&outcome)
        );
        assert_eq!(outcome["truncated"], Value::Null, "{code}");
        let results = outcome["results"].as_array().expect("a list");
        assert!(
            results.iter().all(|entry| !entry["data"].is_null()),
            "{code}: {results:?}"
        );
        let plain = results.iter().rfind(|entry| entry["type"] == "text/plain");
        let data = plain.map(|entry| entry["data"].as_str().expect("a text"));
        assert!(
            data.is_some_and(|data| data.starts_with(text)),
            "{code}: {results:?}"
        );
    }
    let outcome = sandbox.execute("M(({},))");
    assert!(
        outcome["results"][0]["data"].is_string(),
        "{}",
        shown(&outcome)
    );
    let exits = sandbox.execute("class X:\n    def __repr__(self): sys.exit(3)\nX()");
    assert_eq!(exits["exit_code"], 3, "{}", shown(&exits));
    assert_eq!(sandbox.stdout("print(1)"), "1\n");
}

#[test]
fn tables_and_arrays_of_what_has_no_repr() {
    let service = Service::start();
    let sandbox = service.create();
    let code = format!("{CLASSES}\nimport numpy as np, pandas as pd");
    assert_eq!(sandbox.execute(&code)["outcome"], "ok");
    for (code, kind) in [
        ("pd.DataFrame({'a': [R()]})", "DataFrame"),
        ("display(pd.DataFrame({'a': [R()]}))", "DataFrame"),
        ("np.array([R()], dtype=object)", "ndarray"),
    ] {
        let outcome = sandbox.execute(code);
        assert_eq!(
            outcome["results"][0]["data"],
            format!("<{kind} object whose repr raised ValueError: no repr>"),
            "{code}: {}",
            shown(&outcome)
        );
    }
}

/// The end of an execution's stream, and what it had shown before.
fn streamed(sandbox: &crate::fixture::sandbox::Sandbox<'_>, code: &str) -> (Value, usize) {
    let mut events = sandbox.stream(code);
    let mut results = 0;
    loop {
        let event = events.event().expect("an end");
        results += usize::from(event["type"] == "result");
        if event["type"] == "ended" {
            return (event, results);
        }
    }
}

#[test]
fn what_is_left_out_of_results_is_told() {
    let service = Service::with_config("limits.result_bytes = 1000000");
    let sandbox = service.create();
    assert_eq!(sandbox.execute(CLASSES)["truncated"], Value::Null);
    for code in ["'x' * 20_000_000", "L()", "display(L())"] {
        let outcome = sandbox.execute(code);
        assert_eq!(outcome["outcome"], "ok", "{code}: {}", shown(&outcome));
        let truncated = &outcome["truncated"];
        assert_eq!(
            (
                &truncated["results_dropped"],
                &truncated["results_left_out"]
            ),
            (&json!(true), &json!(1)),
            "{code}: {truncated}"
        );
        let bytes = truncated["result_bytes_left_out"]
            .as_u64()
            .expect("a number");
        assert!((20_000_000..20_000_100).contains(&bytes), "{code}: {bytes}");
        let text = outcome["results"][0]["data"].as_str().expect("a text");
        assert!(
            text.len() < 10_000 && text.ends_with("the results of this execution are too large]"),
            "{code}: {text}"
        );
        let (ended, results) = streamed(&sandbox, code);
        assert_eq!((&ended["truncated"], results), (truncated, 1), "{code}");
    }
    let images = "import os\nfor _ in range(1000):\n    \
                  display({'image/png': os.urandom(6000)}, raw=True)";
    let outcome = sandbox.execute(images);
    let entries = outcome["results"].as_array().expect("a list");
    let shown_images = entries
        .iter()
        .filter(|entry| entry["type"] == "image/png")
        .count();
    assert!(shown_images > 50, "{shown_images}");
    assert_eq!(
        outcome["truncated"]["results_left_out"],
        1000 - shown_images,
        "{}",
        outcome["truncated"]
    );
    let large = sandbox.execute("display({'application/json': list(range(300_000))}, raw=True)");
    assert_eq!(
        large["truncated"]["results_left_out"], 1,
        "{}",
        large["truncated"]
    );
    assert!(large["results"][0]["data"].is_string());
}

#[test]
fn a_bundle_over_its_bounds_is_cut_and_told() {
    let service = Service::start();
    let sandbox = service.create();
    assert_eq!(sandbox.execute(CLASSES)["outcome"], "ok");
    let outcome = sandbox.execute("M({f'a/{n}': 'x' for n in range(200)})");
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert_eq!(outcome["results"].as_array().map(Vec::len), Some(64));
    assert_eq!(outcome["truncated"]["results_left_out"], 1);
    let outcome = sandbox.execute("display({'n' * 1000: 'x'}, raw=True)");
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert!(outcome["results"][0]["data"].is_string());
    assert_eq!(outcome["truncated"]["results_left_out"], 1);
}
