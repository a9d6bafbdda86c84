//! What executions change where there are many files: told exactly, at the cost of what changed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::Sandbox;

/// Enough to look at for a while.
const MANY_FOLDERS: usize = 100;

/// A sandbox with folders of a hundred files each, of which a journal is kept.
fn full(service: &Service, folders: usize) -> Sandbox<'_> {
    let sandbox = service.create();
    let made = sandbox.execute(&format!(
        "import mmap, os, shutil, time\n\
         for folder in range({folders}):\n    \
             os.mkdir(f'd{{folder}}')\n    \
             for file in range(100): open(f'd{{folder}}/f{{file}}', 'w').close()"
    ));
    assert_eq!(changes(&made).len(), 100 * folders);
    sandbox
}

/// As `+path`, `~path` and `-path`, with the size of those that are there.
fn changes(outcome: &Value) -> Vec<String> {
    assert_eq!(outcome["outcome"], "ok", "{outcome}");
    assert_eq!(outcome["truncated"], Value::Null, "all are told");
    let files = outcome["files"].as_array().expect("a list");
    let told = files.iter().map(|file| {
        let path = file["path"].as_str().expect("a path");
        match file["change"].as_str() {
            Some("created") => format!("+{path} {}", file["size"]),
            Some("changed") => format!("~{path} {}", file["size"]),
            _ => format!("-{path}"),
        }
    });
    told.collect()
}

#[test]
fn changes_among_many_files_are_told_exactly() {
    let service = Service::start();
    let sandbox = full(&service, MANY_FOLDERS);
    for (code, told) in [
        ("1 + 1", &[][..]),
        ("_ = open('d3/f7', 'w').write('hello')", &["~d3/f7 5"]),
        (
            "os.remove('d3/f8'); os.utime('d3/f9'); _ = open('new', 'w').write('x')",
            &["-d3/f8", "~d3/f9 0", "+new 1"],
        ),
        ("os.listdir('d3'); open('new').read(); 0", &[]),
        ("open('t', 'w').close(); os.remove('t')", &[]),
        (
            "open('.hidden', 'w').close(); os.makedirs('__pycache__/x')",
            &[],
        ),
        // In the place of another, as editors save.
        (
            "open('new~', 'w').close(); os.rename('new~', 'new')",
            &["~new 0"],
        ),
        (
            "!echo xy > by_a_command; echo z >> d1/f1",
            &["+by_a_command 3", "~d1/f1 2"],
        ),
        // Folders that come, move, change places and go.
        (
            "os.makedirs('a/deep/er'); os.mkdir('b'); open('a/deep/er/1', 'w').close(); open('b/2', 'w').close()",
            &["+a/deep/er/1 0", "+b/2 0"],
        ),
        (
            "os.rename('a', 'c'); os.rename('b', 'a'); os.rename('c', 'b')",
            &["+a/2 0", "-a/deep/er/1", "-b/2", "+b/deep/er/1 0"],
        ),
        (
            "_ = open('b/deep/er/1', 'w').write('11'); open('a/3', 'w').close()",
            &["+a/3 0", "~b/deep/er/1 2"],
        ),
        (
            "os.rename('b', '/tmp/b'); _ = open('/tmp/b/deep/er/1', 'w').write('1')",
            &["-b/deep/er/1"],
        ),
        ("_ = open('/tmp/b/deep/er/1', 'w').write('1111')", &[]),
        ("_ = shutil.move('/tmp/b', 'd0')", &["+d0/b/deep/er/1 4"]),
        (
            "shutil.rmtree('a'); os.mkdir('a'); open('a/3', 'w').close()",
            &["-a/2", "~a/3 0"],
        ),
        // Several names of one file.
        ("os.link('d1/f2', 'name')", &["~d1/f2 0", "+name 0"]),
        ("_ = open('name', 'w').write('1')", &["~d1/f2 1", "~name 1"]),
        // A file that is written through a mapping that an earlier execution has made.
        (
            "_ = open('m', 'wb').write(bytes(4096)); f = open('m', 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close()",
            &["+m 4096"],
        ),
        ("1 + 1", &[]),
        ("m[0] = 1", &["~m 4096"]),
        (
            "_ = open('m').read(); n = mmap.mmap(m_fd := os.open('m', os.O_RDWR), 0)",
            &[],
        ),
        ("_ = open('m').read(); n[8] = 1", &["~m 4096"]),
        ("os.rename('m', 'm2')", &["-m", "+m2 4096"]),
        ("p = mmap.mmap(m_fd, 0); p[16] = 1", &["~m2 4096"]),
        ("m.close(); n.close(); p.close(); os.close(m_fd)", &[]),
        // Folders that are closed, and opened.
        ("os.mkdir('x', 0o644); os.mkdir('y', 0)", &[]),
        ("os.chmod('y', 0o755); os.chmod('x', 0o755)", &[]),
        (
            "open('x/1', 'w').close(); open('y/1', 'w').close()",
            &["+x/1 0", "+y/1 0"],
        ),
        ("os.chmod('x', 0)", &["-x/1"]),
        ("os.chmod('x', 0o755)", &["+x/1 0"]),
        // A name that is not told of, of a file that is.
        ("os.link('d1/f4', '.z')", &["~d1/f4 0"]),
        ("_ = open('.z', 'w').write('z')", &["~d1/f4 1"]),
        // More than the host keeps events of.
        (
            "for _ in range(20000): open('d9/f1', 'w').close(); open('d9/f2', 'a').close()",
            &["~d9/f1 0"],
        ),
        ("_ = open('d9/f3', 'w').write('3')", &["~d9/f3 1"]),
    ] {
        assert_eq!(changes(&sandbox.execute(code)), told, "{code}");
    }
    // What others do between two executions is none of theirs.
    sandbox.upload("d5/uploaded", b"x").ok();
    sandbox.command("rm d5/f1; echo x > d5/f2");
    assert_eq!(
        changes(&sandbox.execute("open('d5/f3', 'a').write('x')")),
        ["~d5/f3 1"]
    );
    // It is not the kernel's: one that has died, or was forked, goes on with it.
    let died = sandbox.execute("_ = open('d6/last', 'w').write('x'); os._exit(3)");
    assert_eq!(
        died["files"],
        json!([{"path": "d6/last", "size": 1, "change": "created",
        "url": sandbox.path("download/d6/last")}]),
        "{died}"
    );
    assert_eq!(
        changes(&sandbox.execute("open('d6/f1', 'w').close()")),
        ["~d6/f1 0"]
    );
}

/// Against what a look at all files before and after says.
#[test]
fn whatever_is_done_to_files_is_told_as_a_look_at_all_of_them_would() {
    let service = Service::start();
    let sandbox = full(&service, 6);
    sandbox.stdout(include_str!("../data/churn.py"));
    let mut all = 0;
    for seed in 0..100 {
        let outcome = sandbox.execute(&format!("churn({seed}, {})", 1 + seed % 20));
        let stdout = outcome["stdout"].as_str().expect("a text");
        let seen: Value = serde_json::from_str(stdout).unwrap_or_else(|e| panic!("{e}: {outcome}"));
        let files = outcome["files"].as_array().expect("a list");
        let told: Vec<Value> = files
            .iter()
            .map(|file| json!([file["path"], file["change"], file["size"]]))
            .collect();
        all += told.len();
        assert_eq!(Value::Array(told), seen, "seed {seed}");
    }
    assert!(all > 1000, "{all} changes are too few to tell anything");
}

/// The cost in units of what looking at all of the files takes, which without a journal would be paid
/// twice by each execution.
#[test]
fn what_changed_among_many_files_costs_less_than_to_look_at_all() {
    let service = Service::start();
    let sandbox = full(&service, MANY_FOLDERS);
    let look = "begun = time.monotonic()\n\
                for folder in os.scandir():\n    \
                    for file in os.scandir(folder): file.stat(follow_symlinks=False)\n\
                print(time.monotonic() - begun)";
    let all: f64 = sandbox.stdout(look).trim().parse().expect("seconds");
    let mut taken: Vec<Duration> = (0..31)
        .map(|number| {
            let begun = Instant::now();
            let outcome = sandbox.execute(&format!("open('d7/f7', 'a').write('x'); {number}"));
            let taken = begun.elapsed();
            assert_eq!(changes(&outcome), [format!("~d7/f7 {}", number + 1)]);
            taken
        })
        .collect();
    taken.sort_unstable();
    let median = taken[taken.len() / 2].as_secs_f64();
    println!("to look at all: {all:.4} s, an execution: {median:.4} s");
    assert!(
        median < all,
        "an execution took {median} s, looking at all files {all} s"
    );
}

/// The kernel by itself gives up at 20 000.
#[test]
fn more_files_than_a_kernel_looks_at_are_no_limit() {
    let service = Service::start();
    let sandbox = full(&service, MANY_FOLDERS);
    for half in 0..2 {
        let made = sandbox.execute(&format!(
            "os.mkdir('more{half}')\nfor file in range(9000): open(f'more{half}/{{file}}', 'w').close()"
        ));
        assert_eq!(changes(&made).len(), 9000);
    }
    let one = sandbox.execute("os.remove('more1/8999')");
    assert_eq!(changes(&one), ["-more1/8999"]);
}

/// Executions of two contexts at once are told what changed while they ran, each by itself.
#[test]
fn executions_side_by_side_are_told_each_their_own_time() {
    let service = Service::start();
    let sandbox = full(&service, MANY_FOLDERS);
    let other = crate::contexts::create(&sandbox, &json!({}));
    let mut long = sandbox.stream(
        "import os, time\nopen('of_the_long_one', 'w').close()\nprint('begun', flush=True)\n\
         while not os.path.exists('go'): time.sleep(0.01)",
    );
    while long.event().expect("an event")["type"] != "stdout" {}
    let short = sandbox.execute_json(&json!({"context_id": other,
        "code": "open('of_the_short_one', 'w').close(); open('t', 'w').close()"}));
    assert_eq!(changes(&short), ["+of_the_short_one 0", "+t 0"]);
    let last = sandbox.execute_json(&json!({"context_id": other,
        "code": "import os\nos.remove('t'); open('go', 'w').close()"}));
    assert_eq!(changes(&last), ["+go 0", "-t"]);
    let ended = std::iter::from_fn(|| long.event()).last().expect("an end");
    assert_eq!(
        changes(&ended),
        ["+go 0", "+of_the_long_one 0", "+of_the_short_one 0"]
    );
}

/// Names are the code's, and the service holds them while the code runs: not any amount.
#[test]
fn long_names_are_left_out_beyond_their_limit() {
    let service = Service::start();
    let sandbox = full(&service, 6);
    let made = sandbox.execute(
        "deep = '/'.join(['n' * 250] * 15)\nos.makedirs(deep)\nos.chdir(deep)\n\
         for file in range(2000): open(f'f{file}', 'w').close()\nos.chdir('/home/user')",
    );
    assert_eq!(
        made["truncated"]["files_dropped"], true,
        "{}",
        made["truncated"]
    );
    let told = made["files"].as_array().expect("a list");
    assert!((100..1000).contains(&told.len()), "{}", told.len());
    assert_eq!(
        changes(&sandbox.execute("open('f', 'w').close()")),
        ["+f 0"]
    );
}

/// User code may stop or kill what has its identity. It has then the fewer files told, and no more.
#[test]
fn code_that_stops_the_journal_harms_itself() {
    let service = Service::start();
    for signal in ["SIGSTOP", "SIGKILL"] {
        let sandbox = full(&service, MANY_FOLDERS);
        let begun = Instant::now();
        let stopped = sandbox.execute(&format!(
            "import signal\n\
             for pid in filter(str.isdigit, os.listdir('/proc')):\n    \
                 if int(pid) not in (1, os.getpid()):\n        \
                     try: os.kill(int(pid), signal.{signal})\n        \
                     except PermissionError: pass\n\
             open('after', 'w').close()"
        ));
        assert!(begun.elapsed() < Duration::from_secs(15), "{signal}");
        assert_eq!(stopped["outcome"], "ok", "{signal}: {stopped}");
        assert_eq!(
            stopped["truncated"]["files_dropped"], true,
            "{signal}: {stopped}"
        );
        let next = sandbox.execute("open('next', 'w').close()");
        assert_eq!(changes(&next), ["+next 0"], "{signal}");
    }
}
