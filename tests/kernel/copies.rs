//! What survives a death, a fork and an asked-for restore, and what is refused with a reason: a table of
//! libraries, each idle and busy. No cell may wait for a time limit. docs/copies.md shows the same table.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::fixture::sandbox::{Sandbox, shown};
use crate::fixture::{Launch, Service, temp_dir};

/// What a copy of a kernel must be that ran some code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Copy {
    /// It is made, and the library works in it.
    Works,
    /// There is none, with a reason.
    Refused,
    /// One or the other, by the moment at which it is asked for.
    Either,
}

/// `tests/data/copies.json`, as the file itself says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(rename = "about")]
    _about: Vec<String>,
    cells: Vec<Cell>,
}

/// A library in a state.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    library: String,
    state: String,
    /// Brings it there.
    before: Code,
    /// Uses the library, in the copy too; prints `fine`.
    after: Code,
    copy: Copy,
    /// Of the index, where the base has not got it.
    package: Option<String>,
    /// What the reason of a refusal must name.
    #[serde(default)]
    names: String,
}

/// A text or its lines.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Code {
    Text(String),
    Lines(Vec<String>),
}

impl Code {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Lines(lines) => lines.join("\n"),
        }
    }
}

fn table() -> Table {
    serde_json::from_str(include_str!("../data/copies.json")).expect("the table is well-formed")
}

/// Longest that code of a cell may take, in seconds: many times what it does.
const LIMIT_SECONDS: u32 = 60;

fn service() -> Service {
    Service::launch(&Launch {
        config: "limits.interrupt_grace_seconds = 1\nlimits.memory_bytes = 6442450944\nlimits.cpus = 2\n\
                 limits.disk_bytes = 3221225472\nlimits.processes = 1024",
        preload: true,
        ..Launch::default()
    })
}

fn run(sandbox: &Sandbox<'_>, context: &str, code: &str) -> Value {
    sandbox.execute_json(
        &json!({ "code": code, "context_id": context, "timeout_seconds": LIMIT_SECONDS }),
    )
}

/// What is wrong with a copy that must work; nothing is well.
fn use_fault(sandbox: &Sandbox<'_>, context: &str, cell: &Cell) -> Option<String> {
    let used = run(sandbox, context, &cell.after.text());
    let fine = used["outcome"] == "ok"
        && used["stdout"]
            .as_str()
            .is_some_and(|s| s.contains("fine\n"));
    (!fine).then(|| shown(&used))
}

fn reason_fault(cell: &Cell, reason: &str) -> Option<String> {
    if cell.copy == Copy::Works {
        return Some(format!("refused: {reason}"));
    }
    let named = reason.to_lowercase().contains(&cell.names.to_lowercase());
    (!named || reason.is_empty()).then(|| format!("the reason names nothing: {reason}"))
}

/// Tries one cell: a fork, a checkpoint and its restore, and a death. Gives what is wrong.
fn faults(sandbox: &Sandbox<'_>, cell: &Cell) -> Vec<String> {
    let mut faults = Vec::new();
    let service = sandbox.service;
    let made = service
        .post_json(&sandbox.path("contexts"), &json!({}))
        .ok();
    let context = made.json()["context_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let begun = run(sandbox, &context, &cell.before.text());
    if begun["outcome"] != "ok" {
        return vec![format!("before: {}", shown(&begun))];
    }
    for verb in ["fork", "checkpoint"] {
        let path = sandbox.path(&format!("contexts/{context}/{verb}"));
        let answer = service.post_json(&path, &json!({}));
        let told = answer.json();
        if answer.status != 200 {
            let reason = told["detail"].as_str().unwrap_or_default();
            if (answer.status, told["code"].as_str()) != (409, Some("not_copyable")) {
                faults.push(format!("{verb}: {told}"));
            }
            faults.extend(reason_fault(cell, reason).map(|f| format!("{verb}: {f}")));
            continue;
        }
        if cell.copy == Copy::Refused {
            faults.push(format!("{verb} was made"));
        }
        let copy = match verb {
            "fork" => told["context_id"].as_str().expect("an id").to_owned(),
            _ => {
                let made = service
                    .post_json(&sandbox.path("contexts"), &json!({}))
                    .ok();
                let into = made.json()["context_id"]
                    .as_str()
                    .expect("an id")
                    .to_owned();
                let path = sandbox.path(&format!("contexts/{into}/restore"));
                let request = json!({ "checkpoint_id": told["checkpoint_id"] });
                service.post_json(&path, &request).ok();
                into
            }
        };
        faults.extend(use_fault(sandbox, &copy, cell).map(|f| format!("in the {verb}: {f}")));
        delete(sandbox, &format!("contexts/{copy}"));
        if verb == "checkpoint" {
            delete(
                sandbox,
                &format!(
                    "checkpoints/{}",
                    told["checkpoint_id"].as_str().expect("an id")
                ),
            );
        }
    }
    let died = run(sandbox, &context, "import os; os._exit(1)");
    match died["state"].as_str() {
        Some("restored") => {
            if cell.copy == Copy::Refused {
                faults.push("death: was restored".into());
            }
            // Twice: what the copy uses, its own copy can use.
            faults.extend(use_fault(sandbox, &context, cell).map(|f| format!("restored: {f}")));
        }
        Some("lost") => {
            let reason = died["state_reason"].as_str().unwrap_or_default();
            faults.extend(reason_fault(cell, reason).map(|f| format!("death: {f}")));
        }
        _ => faults.push(format!("death: {}", shown(&died))),
    }
    delete(sandbox, &format!("contexts/{context}"));
    faults
}

fn delete(sandbox: &Sandbox<'_>, path: &str) {
    let path = sandbox.path(path);
    let request = crate::fixture::http::Request {
        method: "DELETE",
        path: &path,
        ..Default::default()
    };
    sandbox.service.send(&request).ok();
}

/// The library of a cell that comes from the test.
fn pool_library() -> Vec<u8> {
    let dir = temp_dir();
    let library = dir.path().join("pool.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel/pool.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-pthread", "-o"])
        .args([library.as_path(), source.as_ref()])
        .status();
    assert!(built.is_ok_and(|s| s.success()), "cc builds a library");
    fs::read(library).expect("it is there")
}

#[test]
fn a_copy_works_or_is_refused_with_a_name() {
    let service = service();
    let only = std::env::var("SANDCELL_TEST_COPIES").unwrap_or_default();
    let mut cells = table().cells;
    cells.retain(|cell| cell.library.contains(&only));
    // What is installed is imported by others that find it: it has a sandbox of its own.
    let (with, without): (Vec<Cell>, Vec<Cell>) =
        cells.into_iter().partition(|cell| cell.package.is_some());
    let mut wrong = Vec::new();
    for cells in [with, without] {
        let sandbox = service.create();
        let packages: BTreeSet<&String> = cells.iter().filter_map(|c| c.package.as_ref()).collect();
        if !packages.is_empty() {
            let install = json!({ "packages": packages, "wait_seconds": 300 });
            let installed = service.post_json(&sandbox.path("install"), &install).ok();
            assert_eq!(installed.json()["success"], true, "{}", installed.json());
        }
        sandbox.upload("pool.so", &pool_library()).ok();
        for cell in &cells {
            try_cell(&sandbox, cell, &mut wrong);
        }
        sandbox.close().ok();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn try_cell(sandbox: &Sandbox<'_>, cell: &Cell, wrong: &mut Vec<String>) {
    let begun = Instant::now();
    let mut found = faults(sandbox, cell);
    let took = begun.elapsed();
    println!("{} ({}): {took:.1?}", cell.library, cell.state);
    if took > Duration::from_secs(u64::from(LIMIT_SECONDS)) {
        found.push(format!("waited: {took:.1?}"));
    }
    for fault in found {
        println!("    {fault}");
        wrong.push(format!("{} ({}): {fault}", cell.library, cell.state));
    }
}

/// Row of docs/copies.md for a cell.
fn row(cell: &Cell) -> String {
    let becomes = match cell.copy {
        Copy::Works => "carried",
        Copy::Refused => "refused",
        Copy::Either => "carried or refused, by the moment",
    };
    format!("| {} | {} | {becomes} |", cell.library, cell.state)
}

#[test]
fn the_documentation_says_what_survives() {
    let documented = include_str!("../../docs/copies.md");
    let missing: Vec<String> = table()
        .cells
        .iter()
        .map(row)
        .filter(|row| !documented.lines().any(|line| line == row))
        .collect();
    assert!(
        missing.is_empty(),
        "rows are missing:\n{}",
        missing.join("\n")
    );
}

/// Code that takes a kernel with it.
const DIE: &str = "import os; os._exit(1)";

#[test]
fn a_copy_that_hangs_is_not_gone_back_to() {
    let service = service();
    let sandbox = service.create();
    let hang = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass";
    sandbox.stdout("x = 1");
    assert_eq!(sandbox.execute(DIE)["state"], "restored");
    let ended = sandbox.execute_within(1.0, hang);
    assert_eq!(ended["outcome"], "timeout", "{}", shown(&ended));
    assert_eq!(ended["state"], "lost", "{}", shown(&ended));
    let reason = ended["state_reason"].as_str().expect("a reason");
    assert!(reason.contains("copy"), "{reason}");
    // Once it has run something it is a kernel like any other.
    sandbox.stdout("x = 2");
    assert_eq!(sandbox.execute(DIE)["state"], "restored");
    sandbox.stdout("x += 1");
    let ended = sandbox.execute_within(1.0, hang);
    assert_eq!(ended["state"], "restored", "{}", shown(&ended));
    assert_eq!(sandbox.stdout("print(x)"), "3\n");
    // A fork is a copy, too.
    let path = sandbox.path("contexts/default/fork");
    let forked = service.post_json(&path, &json!({})).ok().json();
    let request = json!({ "code": hang, "context_id": forked["context_id"], "timeout_seconds": 1 });
    let ended = sandbox.execute_json(&request);
    assert_eq!(ended["state"], "lost", "{}", shown(&ended));
}

#[test]
fn what_stands_in_the_way_can_be_overridden() {
    let service = service();
    let sandbox = service.create();
    sandbox.stdout(
        "import threading, time\nx, lock = 5, threading.Lock()\n\
         def f():\n    with lock: time.sleep(1000)\n\
         threading.Thread(target=f, name='holder', daemon=True).start()\ntime.sleep(.1)",
    );
    for verb in ["fork", "checkpoint"] {
        let path = sandbox.path(&format!("contexts/default/{verb}"));
        let refused = service.post_json(&path, &json!({}));
        let detail = refused.json()["detail"]
            .as_str()
            .expect("a text")
            .to_owned();
        refused.refused(409, "not_copyable");
        assert!(
            detail.contains("'holder'") && detail.contains("force"),
            "{detail}"
        );
        let forced = service
            .post_json(&path, &json!({ "force": true }))
            .ok()
            .json();
        let missing = forced["not_carried"].to_string();
        assert!(missing.contains("thread holder"), "{forced}");
        if verb == "fork" {
            let context = forced["context_id"].as_str().expect("an id");
            let printed = run(&sandbox, context, "print(x, lock.acquire(blocking=False))");
            assert_eq!(printed["stdout"], "5 False\n", "{}", shown(&printed));
        }
    }
    // The original is as it was.
    assert_eq!(sandbox.stdout("print(x, lock.locked())"), "5 True\n");
}

#[test]
fn no_process_is_left_whatever_code_does_to_the_ends_of_children() {
    let service = service();
    let waiter = "import os, subprocess, threading, time\n\
                  def f():\n    while True:\n        try: os.wait()\n        \
                  except ChildProcessError: time.sleep(0.001)\n\
                  threading.Thread(target=f, daemon=True).start()";
    for (prepare, most) in [
        (
            "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
            2,
        ),
        (
            "import signal\nsignal.signal(signal.SIGCHLD, lambda *_: None)",
            2,
        ),
        (waiter, 2),
        // One that waits for a program of its own, so that it sleeps in the wait.
        (
            &format!("{waiter}\np = subprocess.Popen(['sleep', '1000'])"),
            3,
        ),
    ] {
        let sandbox = service.create();
        sandbox.stdout(prepare);
        for n in 0..20 {
            sandbox.stdout(&format!("x = {n}"));
        }
        crate::fixture::host::wait_until("old checkpoints end", Duration::from_secs(5), || {
            sandbox.processes("kernel").len() <= most
        });
        assert_eq!(sandbox.execute(DIE)["state"], "restored", "{prepare}");
        assert_eq!(sandbox.stdout("print(x)"), "19\n");
        sandbox.close().ok();
    }
}

#[test]
fn rows_of_a_database_are_there_for_all() {
    let service = service();
    let sandbox = service.create();
    let count = "python3 -c \"import sqlite3; print(sqlite3.connect('shop.db').execute('select count(*) from t').fetchone()[0])\"";
    for (mode, state) in [("wal", "lost"), ("delete", "restored")] {
        sandbox.command("rm -f shop.db*");
        sandbox.stdout(&format!(
            "import sqlite3\ndb = sqlite3.connect('shop.db')\ndb.execute('pragma journal_mode={mode}')\n\
             db.execute('create table t(a)'); db.execute('insert into t values (1)'); db.commit()"
        ));
        let other = "python3 -c \"import sqlite3; d = sqlite3.connect('shop.db'); d.execute('insert into t values (2)'); d.commit(); d.close()\"";
        assert_eq!(sandbox.command(other)["exit_code"], 0);
        let died = sandbox.execute(DIE);
        assert_eq!(died["state"], state, "{mode}: {}", shown(&died));
        let again = if state == "lost" {
            "import sqlite3\ndb = sqlite3.connect('shop.db')\n"
        } else {
            ""
        };
        sandbox.stdout(&format!(
            "{again}db.execute('insert into t values (3)'); db.commit()"
        ));
        assert_eq!(sandbox.command(count)["stdout"], "3\n", "{mode}");
        sandbox.stdout("db.close()");
    }
}
