//! What printing costs, beside the same program under `python3 -u` whose output is read from pipes.

use serde_json::Value;

use crate::fixture::Service;
use crate::fixture::sandbox::{Sandbox, shown};

const MANY: &str = "for n in range(300_000): print(n)";
const ALTERNATING: &str = "import sys\nfor n in range(10_000):\n    print('out', n)\n    \
                           print('err', n, file=sys.stderr)";

/// Runs a program with `python3 -u` and gives how long that took.
const REFERENCE: &str = "\
import os, subprocess, sys, threading, time
def reference(code):
    with open('/tmp/program.py', 'w') as file: file.write(code)
    begun = time.perf_counter()
    child = subprocess.Popen([sys.executable, '-u', '/tmp/program.py'],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    def drain(pipe):
        while os.read(pipe.fileno(), 65536): pass
    threads = [threading.Thread(target=drain, args=(pipe,)) for pipe in (child.stdout, child.stderr)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    child.wait()
    return time.perf_counter() - begun";

/// Median of three measurements, each of the two taken one after the other.
fn ratio(sandbox: &Sandbox<'_>, code: &str, check: impl Fn(&Value)) -> f64 {
    let mut ratios: Vec<f64> = (0..3)
        .map(|_| {
            let text = serde_json::to_string(code).expect("JSON, which Python reads");
            let outcome = sandbox.execute(&format!("reference({text})"));
            let seconds = outcome["results"][0]["data"].as_str().expect("a number");
            let reference: f64 = seconds.parse().expect("a number");
            let outcome = sandbox.execute(code);
            check(&outcome);
            outcome["usage"]["wall_seconds"].as_f64().expect("a number") / reference
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("{code}: {ratios:?}");
    ratios[1]
}

#[test]
fn printing_costs_no_more_than_in_a_script() {
    let service = Service::with_config("limits.output_bytes = 10000000");
    let sandbox = service.create();
    assert_eq!(sandbox.execute(REFERENCE)["outcome"], "ok");
    let many = ratio(&sandbox, MANY, |outcome| {
        let text = outcome["stdout"].as_str().expect("a text");
        assert_eq!(text.len(), 1_988_890, "{}", shown(outcome));
    });
    assert!(
        many <= 1.2,
        "many small prints take {many:.2} times as long"
    );
    let alternating = ratio(&sandbox, ALTERNATING, |outcome| {
        for (stream, word) in [("stdout", "out"), ("stderr", "err")] {
            let expected: String = (0..10_000).map(|n| format!("{word} {n}\n")).collect();
            assert_eq!(outcome[stream], expected);
        }
    });
    assert!(
        alternating <= 3.0,
        "alternating writes take {alternating:.2} times as long"
    );
}

/// Signals and non-blocking descriptors cut writes short: what is left must be written all the same.
#[test]
fn nothing_of_a_large_print_is_lost() {
    let service = Service::with_config("limits.output_bytes = 50000000");
    let sandbox = service.create();
    let code = "\
import os, signal, sys
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(20): print('x' * 1_000_000)
signal.setitimer(signal.ITIMER_REAL, 0)";
    let outcome = sandbox.execute(code);
    assert_eq!(outcome["outcome"], "ok", "{}", shown(&outcome));
    assert_eq!(outcome["stdout"].as_str().map(str::len), Some(20_000_020));
    let code = "os.set_blocking(1, False)\nfor _ in range(20): print('x' * 1_000_000)";
    let outcome = sandbox.execute(code);
    assert_eq!(outcome["stdout"].as_str().map(str::len), Some(20_000_020));
}

/// Who looks on sees everything in the order in which it was written.
#[test]
fn a_stream_of_events_keeps_the_order_of_both_streams() {
    let service = Service::start();
    let sandbox = service.create();
    let code = "import sys\nfor n in range(500):\n    print('o', n)\n    print('e', n, file=sys.stderr)\n    \
                if n % 100 == 0: display(n)";
    let mut events = sandbox.stream(code);
    let mut seen = String::new();
    while let Some(event) = events.event() {
        match event["type"].as_str() {
            Some("stdout" | "stderr") => seen += event["text"].as_str().expect("text"),
            Some("result") => {
                seen += event["data"]["text/plain"].as_str().expect("text");
                seen.push('\n');
            }
            _ => {}
        }
    }
    let expected: String = (0..500)
        .map(|n| {
            let shown = if n % 100 == 0 {
                format!("{n}\n")
            } else {
                String::new()
            };
            format!("o {n}\ne {n}\n{shown}")
        })
        .collect();
    assert_eq!(seen, expected);
}
