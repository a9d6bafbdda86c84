//! The limits that cgroups uphold.

use sandcell::isolation::spec::Ablation;
use sandcell::supervisor::{CreateSpec, Ending};

use crate::laboratory::Laboratory;

/// How code ends in a sandbox with little of everything.
fn ends(laboratory: &Laboratory, code: &str) -> (String, Ending) {
    let spec = CreateSpec {
        memory_bytes: Some(128 << 20),
        processes: Some(32),
        cpus: Some(0.25),
        ..CreateSpec::default()
    };
    laboratory.create_with(spec).execute(code)
}

fn without_limits() -> Laboratory {
    Laboratory::without(Ablation {
        no_cgroup: true,
        ..Ablation::default()
    })
}

#[test]
fn memory_is_limited_by_the_cgroup() {
    let code = "b = bytearray(256 << 20)\nprint('survived')";
    assert_eq!(ends(&Laboratory::start(), code).1, Ending::OutOfMemory);
    assert_eq!(
        ends(&without_limits(), code),
        ("survived\n".to_owned(), Ending::Ok)
    );
}

#[test]
fn processes_are_limited_by_the_cgroup() {
    let code = "import os, signal\n\
        children = []\n\
        try:\n    \
            for _ in range(60):\n        \
                if (pid := os.fork()) == 0: signal.pause()\n        \
                children.append(pid)\n    \
            print('all')\n\
        except BlockingIOError: print('refused')\n\
        for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)";
    assert_eq!(ends(&Laboratory::start(), code).0, "refused\n");
    assert_eq!(ends(&without_limits(), code).0, "all\n");
}

#[test]
fn cpu_time_is_limited_by_the_cgroup() {
    // A quarter of a processor makes half a second of work out of two seconds, if not less.
    let code = "import time\nbegun = time.monotonic(), time.process_time()\n\
        while time.monotonic() - begun[0] < 2: pass\n\
        print((time.process_time() - begun[1]) / 2 < 0.4)";
    assert_eq!(ends(&Laboratory::start(), code).0, "True\n");
    assert_eq!(ends(&without_limits(), code).0, "False\n");
}
