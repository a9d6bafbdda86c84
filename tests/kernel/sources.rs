//! Source that `inspect` finds, and modules that are written twice in a second.

use crate::fixture::Service;

#[test]
fn inspect_finds_the_source_of_what_executions_define() {
    let service = Service::start();
    let sandbox = service.create();
    let definitions = "\
import inspect, dataclasses, enum, typing
class A:
    x = 1
    class B:
        y = 2
    def m(self):
        return 1
@dataclasses.dataclass
class D:
    a: int
@dataclasses.dataclass(slots=True)
class S:
    a: int
class E(enum.Enum):
    X = 1
class N(typing.NamedTuple):
    a: int
def f():
    class L:
        z = 1
    return L
";
    assert_eq!(sandbox.execute(definitions)["outcome"], "ok");
    for (name, source) in [
        (
            "A",
            "class A:\n    x = 1\n    class B:\n        y = 2\n    def m(self):\n        return 1\n",
        ),
        ("A.B", "    class B:\n        y = 2\n"),
        ("A.m", "    def m(self):\n        return 1\n"),
        ("D", "@dataclasses.dataclass\nclass D:\n    a: int\n"),
        (
            "S",
            "@dataclasses.dataclass(slots=True)\nclass S:\n    a: int\n",
        ),
        ("E", "class E(enum.Enum):\n    X = 1\n"),
        ("N", "class N(typing.NamedTuple):\n    a: int\n"),
        ("f", "def f():\n    class L:\n        z = 1\n    return L\n"),
        ("f()", "    class L:\n        z = 1\n"),
    ] {
        let printed = sandbox.stdout(&format!("print(inspect.getsource({name}), end='')"));
        assert_eq!(printed, source, "{name}");
    }
    // Defined again, in another execution and in the same, at the same line and at another.
    sandbox.execute("\nclass A:\n    x = 2\n");
    let again = "print(inspect.getsource(A), end='')\nclass A:\n    x = 3\nprint(inspect.getsource(A), end='')";
    assert_eq!(
        sandbox.stdout(again),
        "class A:\n    x = 2\nclass A:\n    x = 3\n"
    );
    let none = "for kind in (type('T', (), {}), int):\n    try: inspect.getsource(kind)\n    \
                except (OSError, TypeError) as error: print(type(error).__name__)";
    assert_eq!(sandbox.stdout(none), "OSError\nTypeError\n");
    assert_eq!(
        sandbox.stdout(
            "import json\nprint('class JSONDecoder' in inspect.getsource(json.JSONDecoder))"
        ),
        "True\n"
    );
}

#[test]
fn a_module_written_twice_in_a_second_is_the_newer_one() {
    let service = Service::start();
    let sandbox = service.create();
    let code = "\
import importlib, os, subprocess, sys
def write(n):
    with open('mod.py', 'w') as file: file.write(f'X = {n}\\n')
def child():
    code = 'import mod; print(mod.X)'
    return subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout.strip()
write(1)
import mod
seen = [(mod.X, child())]
write(2)
importlib.reload(mod)
seen.append((mod.X, child()))
write(3)
del sys.modules['mod']
import mod
seen.append((mod.X, child()))
print(seen)";
    assert_eq!(sandbox.stdout(code), "[(1, '1'), (2, '2'), (3, '3')]\n");
    assert_eq!(
        sandbox.stdout("write(4)\nimportlib.reload(mod)\nprint(mod.X, child())"),
        "4 4\n"
    );
    let command = "echo 'X = 5' > mod.py; python -c 'import mod; print(mod.X)'; \
                   echo 'X = 6' > mod.py; python -c 'import mod; print(mod.X)'";
    assert_eq!(sandbox.command(command)["stdout"], "5\n6\n");
}
