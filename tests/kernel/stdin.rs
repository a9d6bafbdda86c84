//! What is given as `stdin` is on descriptor 0, for Python, C code and programs that the code starts.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

const LINES: &str = "a\nb\nc";

#[track_caller]
fn with(sandbox: &Sandbox<'_>, stdin: &str, code: &str) -> Value {
    let request = json!({ "code": code, "stdin": stdin, "timeout_seconds": 20 });
    let outcome = sandbox.execute_json(&request);
    assert_eq!(outcome["state"], "kept", "{code}\n{}", shown(&outcome));
    outcome
}

/// Text of the last expression's value, after what was printed.
fn text(outcome: &Value) -> String {
    let printed = outcome["stdout"].as_str().expect("a text");
    let result = outcome["results"][0]["data"].as_str().unwrap_or_default();
    format!("{printed}{result}")
}

/// Code that reads `LINES`, and what it shows.
const READERS: &[(&str, &str)] = &[
    ("print(open(0).read())", "a\nb\nc\n"),
    ("import os\nos.read(0, 100)", r"b'a\nb\nc'"),
    ("open('/dev/stdin').read()", r"'a\nb\nc'"),
    ("open('/proc/self/fd/0').read()", r"'a\nb\nc'"),
    ("import sys\nsys.stdin.buffer.read()", r"b'a\nb\nc'"),
    ("sys.stdin.buffer.raw.read()", r"b'a\nb\nc'"),
    (
        "sys.stdin.fileno(), sys.stdin.name, sys.stdin.isatty()",
        "(0, '<stdin>', False)",
    ),
    ("os.fstat(0).st_size", "5"),
    ("[line for line in sys.stdin]", r"['a\n', 'b\n', 'c']"),
    ("sys.stdin.readlines()", r"['a\n', 'b\n', 'c']"),
    ("list(map(str.strip, open(0)))", "['a', 'b', 'c']"),
    (
        "import fileinput\nlist(fileinput.input(files=['-']))",
        r"['a\n', 'b\n', 'c']",
    ),
    (
        "import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout",
        r"b'a\nb\nc'",
    ),
    ("subprocess.check_output('cat', shell=True)", r"b'a\nb\nc'"),
    ("os.popen('cat').read()", r"'a\nb\nc'"),
    ("!cat", "a\nb\nc"),
    ("x = !cat\nx", "['a', 'b', 'c']"),
    ("os.system('cat')", "a\nb\nc0"),
    ("%%bash\ncat", "a\nb\nc"),
    ("%%sh\nread x; echo got $x", "got a\n"),
    ("%%bash -s one two\necho $1 $2; cat", "one two\na\nb\nc"),
    ("%%script bash\ncat", "a\nb\nc"),
    ("%%bash --out kept\ncat", ""),
    ("kept", r"'a\nb\nc'"),
    (
        "import ctypes\nlibc = ctypes.CDLL(None)\n[libc.getchar() for _ in range(7)]",
        "[97, 10, 98, 10, 99, -1, -1]",
    ),
    (
        "word = ctypes.create_string_buffer(9)\nlibc.scanf(b'%8s', word), word.value",
        "(1, b'a')",
    ),
    (
        "input(), sys.stdin.readline(), input()",
        r"('a', 'b\n', 'c')",
    ),
    ("for _ in range(3): print(input('> '))", "> a\n> b\n> c\n"),
    ("import getpass\ngetpass.getpass('')", "'a'"),
    ("import io\nsys.stdin = io.StringIO('z\\n')\ninput()", "'z'"),
    (
        "__import__('select').select([sys.stdin], [], [], 0)[0] == [sys.stdin]",
        "True",
    ),
    // A program that read more than it needed puts the position back, and the next goes on there.
    ("os.system('head -1'); os.system('cat')", "a\nb\nc0"),
    // Whoever opens it anew begins at the beginning, as with a file that a shell redirects from.
    (
        "open('/dev/stdin').read(1), open('/dev/stdin').read(), os.read(0, 1)",
        r"('a', 'a\nb\nc', b'a')",
    ),
    (
        "os.read(0, 2), os.read(0, 2), open(0, closefd=False).read(), os.read(0, 2)",
        r"(b'a\n', b'b\n', 'c', b'')",
    ),
    (
        "pid = os.fork()\nif pid == 0: os._exit(os.read(0, 1)[0])\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
        "97",
    ),
    (
        "try: os.write(0, b'x')\nexcept PermissionError: print('read only')",
        "read only\n",
    ),
    (
        "try: [input() for _ in range(4)]\nexcept EOFError as error: print(error)",
        "EOF when reading a line\n",
    ),
];

#[test]
fn everything_reads_what_was_given() {
    let service = Service::start();
    let sandbox = service.create();
    for (code, expected) in READERS {
        let outcome = with(&sandbox, LINES, code);
        assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
        assert_eq!(text(&outcome), *expected, "{code}\n{}", shown(&outcome));
    }
}

#[test]
fn where_nothing_is_given_everything_is_at_its_end_at_once() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout("import ctypes, os, sys, subprocess\nlibc = ctypes.CDLL(None)");
    for (code, expected) in [
        ("open(0).read()", "''"),
        ("os.read(0, 100)", "b''"),
        ("sys.stdin.read()", "''"),
        ("sys.stdin.buffer.read()", "b''"),
        ("list(sys.stdin)", "[]"),
        ("libc.getchar()", "-1"),
        ("subprocess.run(['cat'], capture_output=True).stdout", "b''"),
        ("!cat", ""),
        ("os.system('cat')", "0"),
        ("%%bash\ncat", ""),
        ("os.readlink('/proc/self/fd/0')", "'/dev/null'"),
    ] {
        // What came with the execution before is gone, read or not.
        for given in ["", "left over\n"] {
            with(&sandbox, given, "libc.getchar(); sys.stdin.readline()");
            for request in [
                json!({ "code": code }),
                json!({ "code": code, "stdin": "" }),
            ] {
                let outcome = sandbox.execute_json(&request);
                assert_eq!(outcome["outcome"], "ok", "{code}\n{}", shown(&outcome));
                assert_eq!(text(&outcome), expected, "{code}\n{}", shown(&outcome));
            }
        }
        with(&sandbox, "left over\n", "pass");
    }
    let outcome = sandbox.execute("input()");
    assert_eq!(outcome["error"], "EOFError", "{}", shown(&outcome));
}

#[test]
fn what_one_execution_did_to_its_input_ends_with_it() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout("import ctypes, io, os, sys\nlibc = ctypes.CDLL(None)");
    for spoil in [
        "sys.stdin.close()",
        "sys.stdin.detach()",
        "sys.stdin = None",
        "sys.stdin = io.StringIO('other')",
        "os.close(0)",
        "r, w = os.pipe(); os.write(w, b'other\\n'); os.dup2(r, 0); os.close(r); input()",
        "os.dup2(os.open('/dev/zero', os.O_RDONLY), 0)",
        "os.lseek(0, 2, 0)",
        "libc.getchar(); libc.getchar()",
        "input()",
    ] {
        with(&sandbox, "left\nover\n", spoil);
        let outcome = with(&sandbox, "q\nr", "libc.getchar(), sys.stdin.readline()");
        assert_eq!(
            text(&outcome),
            r"(113, '\n')",
            "{spoil}\n{}",
            shown(&outcome)
        );
        with(&sandbox, "left\nover\n", spoil);
        let outcome = with(&sandbox, "q\nr", "sys.stdin.read()");
        assert_eq!(text(&outcome), r"'q\nr'", "{spoil}\n{}", shown(&outcome));
        with(&sandbox, "left\nover\n", spoil);
        let outcome = sandbox.execute("sys.stdin.read(), os.read(0, 9), libc.getchar()");
        assert_eq!(
            text(&outcome),
            "('', b'', -1)",
            "{spoil}\n{}",
            shown(&outcome)
        );
    }
}

#[test]
fn a_long_input_is_whole() {
    let service = Service::start();
    let sandbox = service.create();
    let long = "0123456789abcde\n".repeat(1 << 20);
    for (code, expected) in [
        (
            "import sys\ns = sys.stdin.read()\nlen(s), s.count('\\n')",
            "(16777216, 1048576)",
        ),
        ("sum(1 for _ in sys.stdin)", "1048576"),
        ("!wc -c", "16777216\n"),
        ("!head -c 5", "01234"),
    ] {
        let outcome = with(&sandbox, &long, code);
        assert_eq!(text(&outcome), expected, "{code}\n{}", shown(&outcome));
    }
}

#[test]
fn the_input_is_there_where_no_descriptor_is_free() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))");
    assert_eq!(text(&with(&sandbox, "k\n", "input()")), "'k'");
    let outcome = sandbox.execute("input()");
    assert_eq!(outcome["error"], "EOFError", "{}", shown(&outcome));
    assert_eq!(outcome["state"], "kept", "{}", shown(&outcome));
    assert_eq!(
        text(&with(
            &sandbox,
            "k\n",
            "open(0).read() if False else input()"
        )),
        "'k'"
    );
}
