//! Code that ends with `sys.exit()`: its exit code, the outcome, and what it says.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::shown;

/// Code, its exit code, and what its standard error contains.
const EXITS: [(&str, u8, &str); 22] = [
    ("import sys\nsys.exit(0)", 0, ""),
    ("sys.exit()", 0, ""),
    ("sys.exit(None)", 0, ""),
    ("sys.exit(False)", 0, ""),
    ("exit()", 0, ""),
    ("exit", 0, ""),
    ("quit()", 0, ""),
    ("raise SystemExit", 0, ""),
    ("sys.exit(3)", 3, ""),
    ("exit(4)", 4, ""),
    ("sys.exit(True)", 1, ""),
    ("sys.exit(-1)", 255, ""),
    ("sys.exit(256)", 0, ""),
    ("sys.exit('message')", 1, "message\n"),
    ("quit('bye')", 1, "bye\n"),
    ("raise SystemExit(1, 2)", 1, "(1, 2)\n"),
    ("sys.exit({'a': 1})", 1, "{'a': 1}\n"),
    ("class E(SystemExit): pass\nraise E(5)", 5, ""),
    (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\nunittest.main()",
        0,
        "OK",
    ),
    (
        "class T(unittest.TestCase):\n    def test(self): self.fail('no')\nunittest.main()",
        1,
        "FAILED (failures=1)",
    ),
    (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('x')\np.parse_args([])",
        2,
        "required: x",
    ),
    ("async def f(): sys.exit(6)\nawait f()", 6, ""),
];

#[test]
fn an_exit_code_is_given_and_zero_is_ok() {
    let service = Service::start();
    let sandbox = service.create();
    for (code, exit_code, stderr) in EXITS {
        let outcome = sandbox.execute(code);
        assert_eq!(
            outcome["exit_code"],
            exit_code,
            "{code}: {}",
            shown(&outcome)
        );
        assert_eq!(outcome["state"], "kept", "{code}");
        let said = outcome["stderr"].as_str().expect("a text");
        assert!(said.contains(stderr), "{code}: {said}");
        assert_eq!(said.is_empty(), stderr.is_empty(), "{code}: {said}");
        if exit_code == 0 {
            assert_eq!(outcome["outcome"], "ok", "{code}: {}", shown(&outcome));
            for key in ["error", "error_value", "traceback"] {
                assert_eq!(outcome[key], Value::Null, "{code}");
            }
        } else {
            assert_eq!(outcome["outcome"], "error", "{code}: {}", shown(&outcome));
            let error = outcome["error"].as_str().expect("a name");
            assert!(["SystemExit", "E"].contains(&error), "{code}: {error}");
        }
    }
    for code in ["1", "1/0", "raise ValueError('SystemExit')"] {
        assert!(sandbox.execute(code).get("exit_code").is_none(), "{code}");
    }
    let died = sandbox.execute("import os\nos._exit(7)");
    assert_eq!(
        (&died["outcome"], &died["exit_code"]),
        (&json!("kernel_died"), &json!(7))
    );
}

#[test]
fn streams_give_the_exit_code_at_their_end() {
    let service = Service::start();
    let sandbox = service.create();
    for (code, outcome, exit_code) in [("0", "ok", 0), ("'no'", "error", 1), ("9", "error", 9)] {
        let mut events = sandbox.stream(&format!("import sys\nprint('x')\nsys.exit({code})"));
        let mut raised = false;
        let ended = loop {
            let event = events.event().expect("an end");
            raised |= event["type"] == "error";
            if event["type"] == "ended" {
                break event;
            }
        };
        assert_eq!(
            (&ended["outcome"], &ended["exit_code"]),
            (&json!(outcome), &json!(exit_code))
        );
        assert_eq!(raised, exit_code != 0, "{code}");
    }
}

#[test]
fn a_forked_child_exits_with_its_own_code() {
    let service = Service::start();
    let sandbox = service.create();
    for (code, status) in [("0", 0), ("7", 7), ("'no'", 1), ("None", 0)] {
        let code = format!(
            "import os, sys\npid = os.fork()\nif not pid:\n    sys.exit({code})\n\
             os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        );
        let outcome = sandbox.execute(&code);
        assert_eq!(
            outcome["results"][0]["data"],
            status.to_string(),
            "{}",
            shown(&outcome)
        );
    }
}
