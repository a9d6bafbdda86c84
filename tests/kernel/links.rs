//! Symbolic links among what an execution did to files.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::Sandbox;

/// As `+path`, with `@` for a link, `~path` and `-path`.
fn changes(outcome: &Value) -> Vec<String> {
    assert_eq!(outcome["outcome"], "ok", "{outcome}");
    let files = outcome["files"].as_array().expect("a list").iter();
    files
        .map(|file| {
            let sign = match file["change"].as_str() {
                Some("created") => '+',
                Some("changed") => '~',
                _ => '-',
            };
            let is_link = file["type"] == "symlink";
            assert!(is_link || file["type"].is_null(), "{file}");
            assert_eq!(file["url"].is_null(), is_link || sign == '-', "{file}");
            format!(
                "{sign}{}{}",
                file["path"].as_str().expect("a path"),
                if is_link { "@" } else { "" }
            )
        })
        .collect()
}

fn told(sandbox: &Sandbox<'_>) {
    for (code, expected) in [
        (
            "import os; open('a.csv', 'w').close(); os.symlink('a.csv', 'latest')",
            &["+a.csv", "+latest@"][..],
        ),
        (
            "os.symlink('/etc/passwd', 'out'); os.symlink('nowhere', 'dangling'); os.symlink('.', 'here')",
            &["+dangling@", "+here@", "+out@"],
        ),
        (
            "os.symlink('loop', 'loop'); os.symlink('/proc/self/fd/0', '.hidden')",
            &["+loop@"],
        ),
        // What a link leads to is a file of its own.
        ("open('latest', 'w').write('x'); 0", &["~a.csv"]),
        ("1 + 1", &[]),
        (
            "open('b.csv', 'w').close(); os.symlink('b.csv', 'n'); os.replace('n', 'latest')",
            &["+b.csv", "~latest@"],
        ),
        (
            "os.remove('latest'); _ = open('latest', 'w').write('abc')",
            &["~latest"],
        ),
        (
            "os.remove('loop'); os.rename('here', 'there')",
            &["-here@", "-loop@", "+there@"],
        ),
        (
            "from pathlib import Path; Path('p').symlink_to(Path.cwd() / 'a.csv')",
            &["+p@"],
        ),
        ("!ln -s a.csv by_a_command", &["+by_a_command@"]),
    ] {
        assert_eq!(changes(&sandbox.execute(code)), expected, "{code}");
    }
    // The host follows none, wherever it leads.
    for link in ["out", "p", "there/a.csv", "dangling"] {
        sandbox.download(link).refused(400, "symbolic_link");
    }
}

#[test]
fn new_links_are_told() {
    let service = Service::start();
    told(&service.create());
}

#[test]
fn a_journal_of_many_files_tells_the_same() {
    let service = Service::start();
    let sandbox = service.create();
    let made = sandbox.execute("for n in range(300): open(f'z{n}', 'w').close()");
    assert_eq!(changes(&made).len(), 300);
    told(&sandbox);
}

#[test]
fn models_get_no_link_to_a_link() {
    let service = Service::start();
    let sandbox = service.create();
    let arguments = json!({ "sandbox_id": sandbox.id, "code": "import os; open('f', 'w').close(); os.symlink('f', 'l')" });
    let ran = service
        .post_json("/mcp/tools/execute_python_code", &arguments)
        .ok()
        .json();
    assert_eq!(ran["files"][1]["type"], "symlink", "{ran}");
    assert_eq!(ran["files"][1]["url"], Value::Null, "{ran}");
}
