//! multiprocessing, `ProcessPoolExecutor` and joblib with what executions define, on every start method.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

const METHODS: [&str; 3] = ["spawn", "forkserver", "fork"];

/// Of several executions, the first with a `__future__` import.
const DEFINITIONS: [&str; 3] = [
    "from __future__ import annotations\nimport multiprocessing as mp\nimport math as m\nK = 2\n\
     try:\n    import json as j\nexcept ImportError:\n    j = None\n\
     if K:\n    from collections import namedtuple\n\
     P = namedtuple('P', 'x y')\ndouble = lambda x: x * K",
    "import array, dataclasses, enum, functools, os, signal, socket, sys, threading\n\
     lock = threading.Lock()\nfile = open('/tmp/open', 'w')\ngenerator = (x for x in range(3))\n\
     pair = socket.socketpair()\nlarge = bytearray(200_000_000)\nnumbers = array.array('i', [1, 2, 3])",
    "\
class Color(enum.Enum):
    RED = 1
    GREEN = 2
    def other(self): return Color.GREEN if self is Color.RED else Color.RED
@dataclasses.dataclass
class D:
    x: int
    color: Color = Color.RED
    def next(self): return D(self.x + K, self.color.other())
    @classmethod
    def make(cls, x): return cls(x)
class Bad(Exception):
    def __init__(self, a, b):
        super().__init__(f'{a} and {b}')
        self.a = a
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
@functools.lru_cache
def cached(n): return n if n < 2 else cached(n - 1) + cached(n - 2)
def outer(k):
    def inner(x): return x * k + K
    return inner
def point(p): return P(m.floor(p.x) + K, j.dumps(p.y))
def bad(x): raise Bad(x, 'b')
def locked(x):
    with lock: return x
def add(a, b): return a + b
def total(x): return sum(numbers) + x
state = None
def begin(value):
    global state
    state = value
def of_state(x): return state",
];

fn defined(sandbox: &Sandbox<'_>) {
    for code in DEFINITIONS {
        sandbox.stdout(code);
    }
}

#[test]
fn what_main_holds_reaches_every_child() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 1 << 30 }));
    defined(&sandbox);
    for method in METHODS {
        sandbox.stdout(&format!("ctx = mp.get_context('{method}')"));
        let code = "\
if __name__ == '__main__':
    with ctx.Pool(2) as pool:
        print(pool.map(double, [1, 2]), pool.map(lambda x: x + K, [1]), pool.map(fib, [10]))
        print(pool.map(cached, [20]), pool.map(outer(3), [1]), pool.map(functools.partial(add, 5), [1]))
        print(pool.map(total, [1]), list(pool.imap_unordered(m.floor, [1.5])), pool.map(bytes.upper, [b'a']))
        point_of, = pool.map(point, [P(1.5, 'a')])
        print(point_of, type(point_of) is P)
        d, = pool.map(D.next, [D(1)])
        print(d, type(d) is D, d.color is Color.GREEN, pool.map(D.make, [4]), pool.apply(Color.RED.other))
        try: pool.map(bad, [1])
        except Bad as error: print(error, error.a)";
        assert_eq!(
            sandbox.stdout(code),
            "[2, 4] [3] [55]\n[6765] [5] [6]\n[7] [1] [b'A']\nP(x=3, y='\"a\"') True\n\
             D(x=3, color=<Color.GREEN: 2>) True True [D(x=4, color=<Color.RED: 1>)] Color.GREEN\n\
             1 and b 1\n",
            "{method}"
        );
        let code = "\
from concurrent.futures import ProcessPoolExecutor
def here(x): return D(x * K)
with ProcessPoolExecutor(2, mp_context=ctx, initializer=begin, initargs=(7,)) as pool:
    print(list(pool.map(of_state, range(3))), list(pool.map(here, [1])))
    print(pool.submit(lambda: lambda x: x + K).result()(5))
    try: pool.submit(bad, 1).result()
    except Bad as error: print(error, error.a)
with ctx.Pool(2, begin, (9,)) as pool: print(pool.map(of_state, range(3)))";
        assert_eq!(
            sandbox.stdout(code),
            "[7, 7, 7] [D(x=2, color=<Color.RED: 1>)]\n7\n1 and b 1\n[9, 9, 9]\n",
            "{method}"
        );
        let code = "\
from multiprocessing.shared_memory import SharedMemory
def work(queue, lock, n, name):
    memory = SharedMemory(name=name); memory.buf[n] = n + 1; memory.close()
    with lock: queue.put((n * K, D(n)))
queue, mutex, memory = ctx.Queue(), ctx.Lock(), SharedMemory(create=True, size=8)
workers = [ctx.Process(target=work, args=(queue, mutex, n, memory.name)) for n in range(2)]
for worker in workers: worker.start()
got = sorted((queue.get() for _ in workers), key=lambda pair: pair[0])
for worker in workers: worker.join()
print(got, type(got[0][1]) is D, bytes(memory.buf[:2]), [worker.exitcode for worker in workers])
memory.close(); memory.unlink()
counter, done = ctx.Value('i', 0), ctx.Event()
def count():
    with counter.get_lock(): counter.value += 1
    done.set()
class Worker(type(workers[0])):
    def run(self): count()
workers = [ctx.Process(target=count), ctx.Process(target=lambda: count()), Worker()]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(counter.value, done.is_set())
with ctx.Manager() as manager:
    shared = manager.dict()
    worker = ctx.Process(target=lambda d: d.update(k=K), args=(shared,)); worker.start(); worker.join()
    print(dict(shared))";
        assert_eq!(
            sandbox.stdout(code),
            "[(0, D(x=0, color=<Color.RED: 1>)), (2, D(x=1, color=<Color.RED: 1>))] True b'\\x01\\x02' \
             [0, 0]\n3 True\n{'k': 2}\n",
            "{method}"
        );
    }
    // What cannot be sent fails where it is used, and says so.
    let code = "with mp.get_context('spawn').Pool(1) as pool: pool.map(locked, [1])";
    let outcome = sandbox.execute(code);
    assert_eq!(outcome["error"], "RuntimeError", "{}", shown(&outcome));
    let value = outcome["error_value"].as_str().expect("a text");
    assert!(
        value.contains("'lock' of __main__ could not be sent"),
        "{value}"
    );
}

#[test]
fn a_new_definition_reaches_a_pool_that_is_there() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout("import multiprocessing as mp\nK = 1\ndef f(x): return x + K");
    for method in METHODS {
        sandbox.stdout(&format!(
            "K = 1\npool = mp.get_context('{method}').Pool(2)\nprint(pool.map(f, [1]))"
        ));
        sandbox.stdout(
            "K = 10\ndef g(x): return f(x) * 2\nclass C:\n    def __init__(self, x): self.x = x",
        );
        assert_eq!(
            sandbox.stdout("print(pool.map(g, [1, 2]), pool.map(C, [3])[0].x)\npool.terminate()"),
            "[22, 24] 3\n",
            "{method}"
        );
    }
    // A start method may be set again, as by a script that is run again.
    sandbox.stdout("mp.set_start_method('spawn')\nmp.set_start_method('spawn')");
    assert_eq!(
        sandbox.stdout("with mp.Pool(1) as pool: print(mp.get_start_method(), pool.map(f, [1]))"),
        "spawn [11]\n"
    );
    // A file that `__file__` names is not run.
    assert_eq!(
        sandbox.stdout("__file__ = 'none.py'\nwith mp.Pool(1) as pool: print(pool.map(f, [1]))"),
        "[11]\n"
    );
}

/// Each within seconds, where multiprocessing starts workers for ever or waits for ever.
#[test]
fn a_failure_of_a_child_is_one_error() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.stdout(
        "import multiprocessing as mp, os, sys\ndef double(x): return 2 * x\n\
         def boom(): raise ValueError('boom')\ndef die(x): os.kill(os.getpid(), 9)\n\
         class U:\n    def __reduce__(self): return boom, ()\n    def __call__(self, x): return x\n\
         def unreadable(x): return U()",
    );
    for method in METHODS {
        sandbox.stdout(&format!("ctx = mp.get_context('{method}')"));
        for (code, error, value) in [
            ("ctx.Pool(2, boom).map(double, [1])", "ValueError", "boom"),
            ("ctx.Pool(2).map(die, [1])", "RuntimeError", "SIGKILL"),
            (
                "list(ctx.Pool(2).imap(die, [1]))",
                "RuntimeError",
                "SIGKILL",
            ),
            (
                "ctx.Pool(2).apply(sys.exit, (3,))",
                "RuntimeError",
                "exited with code 3",
            ),
            (
                "ctx.Pool(2, os._exit, (4,)).map(double, [1])",
                "RuntimeError",
                "exited with code 4",
            ),
            ("ctx.Pool(2).map(U(), [1])", "ValueError", "boom"),
            ("ctx.Pool(2).map(unreadable, [1])", "ValueError", "boom"),
        ] {
            let begun = Instant::now();
            let outcome = sandbox.execute_within(60.0, code);
            assert_eq!(
                outcome["error"],
                error,
                "{method}: {code}: {}",
                shown(&outcome)
            );
            let said = outcome["error_value"].as_str().expect("a text");
            assert!(said.contains(value), "{method}: {code}: {said}");
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{method}: {code}"
            );
        }
    }
    assert_eq!(
        sandbox
            .stdout("with mp.get_context('spawn').Pool(2) as pool: print(pool.map(double, [1]))"),
        "[2]\n"
    );
}

#[test]
fn joblib_has_what_main_holds() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 1 << 30 }));
    defined(&sandbox);
    let code = "\
from joblib import Parallel, delayed
for options in ({}, {'backend': 'multiprocessing'}, {'prefer': 'threads'}):
    parallel = Parallel(2, **options)
    print(parallel(delayed(lambda x: x * K)(x) for x in range(3)), parallel(delayed(total)(x) for x in range(2)))
    found = parallel(delayed(D.next)(D(x)) for x in range(2))
    print([type(d) is D for d in found], [d.color is Color.GREEN for d in found])
    try: parallel(delayed(bad)(x) for x in range(1))
    except Bad as error: print(error, error.a)";
    let line = "[0, 2, 4] [6, 7]\n[True, True] [True, True]\n0 and b 0\n";
    assert_eq!(sandbox.stdout(code), line.repeat(3));
}

/// 16 MB that a function needs go to each worker once, and not with each task.
#[test]
fn a_large_global_is_sent_once() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 1 << 30 }));
    sandbox.stdout(
        "import multiprocessing as mp, os\ndata = os.urandom(16_000_000)\ndef at(n): return data[n] == old[n]",
    );
    for method in METHODS {
        let code = format!(
            "old = data[:1000]\nwith mp.get_context('{method}').Pool(2) as pool:\n    \
             print(all(pool.map(at, range(1000), 1)))\ndata = os.urandom(16_000_000)\nold = data[:1000]\n\
             with mp.get_context('{method}').Pool(2) as pool: print(all(pool.map(at, range(10), 1)))"
        );
        let outcome = sandbox.execute_within(60.0, &code);
        assert_eq!(
            outcome["stdout"],
            "True\nTrue\n",
            "{method}: {}",
            shown(&outcome)
        );
        let written = outcome["usage"]["written_bytes"]
            .as_u64()
            .expect("a number");
        assert!(written < 200_000_000, "{method}: {written}");
    }
}
