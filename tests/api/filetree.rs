//! What is in the working directory, and changes of its tree.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{self, Answer};
use crate::fixture::sandbox::Sandbox;

const TREE: &str = "import os\n\
    os.makedirs('d/e'); os.mkdir('empty'); os.mkfifo('fifo')\n\
    for n in ['a.csv', 'b.txt', 'd/c.csv', 'd/e/f.csv', '.hidden']: open(n, 'w').write('x' * 3)\n\
    os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'd/out'); os.chmod('a.csv', 0o640)\n\
    os.utime('a.csv', ns=(10**18 + 5 * 10**8,) * 2)";

fn listed(sandbox: &Sandbox<'_>, query: &str) -> Vec<String> {
    let answer = sandbox.service.get(&sandbox.path(&format!("files{query}")));
    let entries = answer.ok().json();
    let entries = entries.as_array().expect("a list").iter();
    entries
        .map(|entry| entry["path"].as_str().expect("a path").to_owned())
        .collect()
}

fn stat(sandbox: &Sandbox<'_>, path: &[u8]) -> Answer {
    let query = format!("files/stat?path={}", http::encode(path));
    sandbox.service.get(&sandbox.path(&query))
}

fn change(sandbox: &Sandbox<'_>, verb: &str, request: &Value) -> Answer {
    let path = sandbox.path(&format!("files/{verb}"));
    sandbox.service.post_json(&path, request)
}

#[test]
fn a_listing_has_what_was_asked_for() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(TREE);
    let files = [".hidden", "a.csv", "b.txt", "d/c.csv", "d/e/f.csv"];
    for (query, paths) in [
        ("", &files[..]),
        ("?kind=file", &files),
        ("?path=.", &files),
        ("?path=/home/user", &files),
        ("?path=/app/results/d", &["d/c.csv", "d/e/f.csv"]),
        ("?recursive=false", &[".hidden", "a.csv", "b.txt"]),
        ("?kind=directory", &["d", "d/e", "empty"]),
        ("?kind=symlink", &["d/out", "link"]),
        ("?kind=other", &["fifo"]),
        ("?kind=any&recursive=0&path=d", &["d/c.csv", "d/e", "d/out"]),
        ("?glob=*.csv", &["a.csv"]),
        ("?glob=**/*.csv", &["a.csv", "d/c.csv", "d/e/f.csv"]),
        ("?glob=*.csv&path=d", &["d/c.csv"]),
        ("?glob=%5Bab%5D.*", &["a.csv", "b.txt"]),
        ("?glob=?/e&kind=any", &["d/e"]),
        ("?glob=nothing", &[]),
        ("?path=empty", &[]),
    ] {
        assert_eq!(listed(&sandbox, query), paths, "{query}");
    }
    let files = sandbox.path("files");
    for (query, field) in [
        ("?glob=%5B", "glob"),
        ("?glob=", "glob"),
        ("?kind=files", "kind"),
        ("?recursive=maybe", "recursive"),
        ("?path=d&path=e", "path"),
    ] {
        service.get(&format!("{files}{query}")).refused_field(field);
    }
    let long = format!("?glob={}", "a".repeat(1025));
    service.get(&format!("{files}{long}")).refused_field("glob");
    for (path, status, code) in [
        ("absent", 404, "file_not_found"),
        ("a.csv", 400, "not_a_directory"),
        ("link", 400, "symbolic_link"),
        ("d/out", 400, "symbolic_link"),
        ("d/out/ssl", 400, "symbolic_link"),
        ("..", 400, "bad_path"),
        ("/etc", 400, "bad_path"),
    ] {
        let answer = service.get(&format!("{files}?path={path}"));
        answer.refused(status, code);
    }
}

#[test]
fn entries_tell_what_they_are() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(TREE);
    let entry = stat(&sandbox, b"a.csv").ok().json();
    assert_eq!(
        entry,
        json!({
            "path": "a.csv", "type": "file", "size": 3, "mode": "0640",
            "modified_at": "2001-09-09T01:46:40.500Z",
            "url": format!("/sandbox/{}/download/a.csv", sandbox.id),
        })
    );
    for (path, kind) in [
        ("d", "directory"),
        ("d/", "directory"),
        ("link", "symlink"),
        ("fifo", "other"),
    ] {
        let entry = stat(&sandbox, path.as_bytes()).ok().json();
        assert_eq!(entry["type"], kind, "{path}");
        assert_eq!(entry["path"], path.trim_end_matches('/'));
        assert_eq!(entry["url"], Value::Null, "{path}");
    }
    assert_eq!(stat(&sandbox, b".").ok().json()["type"], "directory");
    stat(&sandbox, b"absent").refused(404, "file_not_found");
    stat(&sandbox, b"d/out/ssl").refused(400, "symbolic_link");
    stat(&sandbox, b"../x").refused(400, "bad_path");
    let without = service.get(&sandbox.path("files/stat"));
    without.refused_field("path");
    // A time that no calendar has is no reason for a broken answer.
    sandbox.execute("os.utime('b.txt', (2**40, 2**40))");
    let far = stat(&sandbox, b"b.txt").ok().json();
    assert_eq!(far["modified_at"], "9999-12-31T23:59:59.000Z");
}

#[test]
fn directories_are_made() {
    let service = Service::start();
    let sandbox = service.create();
    let mkdir = |request: Value| change(&sandbox, "mkdir", &request);
    let made = mkdir(json!({ "path": "a/b//c/" })).ok().json();
    assert_eq!(made, json!({ "path": "a/b/c" }));
    mkdir(json!({ "path": "a/b/c" })).ok();
    mkdir(json!({ "path": "a/b/c", "parents": false })).refused(409, "file_exists");
    mkdir(json!({ "path": "x/y", "parents": false })).refused(404, "file_not_found");
    sandbox.upload("file", b"x").ok();
    mkdir(json!({ "path": "file" })).refused(409, "file_exists");
    sandbox.execute("import os; os.symlink('/tmp', 'link')");
    mkdir(json!({ "path": "link/x" })).refused(400, "symbolic_link");
    mkdir(json!({ "path": "link" })).refused(409, "file_exists");
    for path in ["", ".", "..", "/etc/x", "a/../../x"] {
        mkdir(json!({ "path": path })).refused(400, "bad_path");
    }
    mkdir(json!({ "path": "x", "mode": 7 })).refused_field("mode");
    let outside = "print(os.path.isdir('a/b/c'), os.path.exists('/tmp/x'), os.path.exists('x'))";
    assert_eq!(sandbox.stdout(outside), "True False False\n");
}

#[test]
fn things_get_other_names() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(TREE);
    let rename = |request: Value| change(&sandbox, "rename", &request);
    let moved = rename(json!({ "from": "a.csv", "to": "new/folder/./a.csv" }));
    assert_eq!(moved.ok().json(), json!({ "path": "new/folder/a.csv" }));
    rename(json!({ "from": "d", "to": "new/d" })).ok();
    // A link itself, not what it points to.
    rename(json!({ "from": "link", "to": "other link" })).ok();
    assert_eq!(
        sandbox.stdout(
            "print(sorted(os.listdir('.')), sorted(os.listdir('new')), os.readlink('other link'))"
        ),
        "['.hidden', 'b.txt', 'empty', 'fifo', 'new', 'other link'] ['d', 'folder'] /etc/passwd\n"
    );
    rename(json!({ "from": "b.txt", "to": ".hidden" })).refused(409, "file_exists");
    rename(json!({ "from": "b.txt", "to": ".hidden", "overwrite": true })).ok();
    rename(json!({ "from": "b.txt", "to": "c" })).refused(404, "file_not_found");
    rename(json!({ "from": ".hidden", "to": "new/d/out/x" })).refused(400, "symbolic_link");
    rename(json!({ "from": ".hidden", "to": "../x" })).refused(400, "bad_path");
    rename(json!({ "from": "/etc/passwd", "to": "x" })).refused(400, "bad_path");
    rename(json!({ "from": "new", "to": "new/d/x" })).refused(400, "bad_path");
    rename(json!({ "from": "empty", "to": "new", "overwrite": true }))
        .refused(409, "directory_not_empty");
    assert_eq!(sandbox.download(".hidden").ok().body, b"xxx");
}

#[test]
fn things_are_removed_with_or_without_what_is_in_them() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(TREE);
    sandbox.execute(
        "os.mkdir('/tmp/kept'); open('/tmp/kept/f', 'w'); os.symlink('/tmp/kept', 'd/kept')",
    );
    let remove = |request: Value| change(&sandbox, "remove", &request);
    assert_eq!(
        remove(json!({ "path": "b.txt" })).ok().json(),
        json!({ "path": "b.txt" })
    );
    remove(json!({ "path": "b.txt" })).refused(404, "file_not_found");
    for path in ["empty", "fifo", "link"] {
        remove(json!({ "path": path })).ok();
    }
    remove(json!({ "path": "d" })).refused(409, "directory_not_empty");
    remove(json!({ "path": "d/out/passwd" })).refused(400, "symbolic_link");
    remove(json!({ "path": "d", "recursive": true })).ok();
    for path in ["", ".", "..", "/tmp/kept", "/home/user"] {
        remove(json!({ "path": path, "recursive": true })).refused(400, "bad_path");
    }
    assert_eq!(
        sandbox.stdout("print(sorted(os.listdir('.')), os.listdir('/tmp/kept'))"),
        "['.hidden', 'a.csv'] ['f']\n",
        "a link is removed and not what it leads to"
    );
    // Deeper than it goes: told, and nothing hangs.
    sandbox
        .execute("for i in range(600): os.mkdir('deep'); os.chdir('deep')\nos.chdir('/home/user')");
    remove(json!({ "path": "deep", "recursive": true })).refused(400, "bad_path");
    sandbox.assert_usable();
}

#[test]
fn names_that_are_no_text_are_found_by_what_is_listed() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(
        "import os\nos.mkdir(b'd\\xff%'); open(b'd\\xff%/f\\xfe', 'w'); open('d%41', 'w')",
    );
    assert_eq!(listed(&sandbox, "?glob=**/f*"), ["d%FF%25/f%FE"]);
    // As told, and as it is.
    for path in [&b"d%FF%25"[..], b"d\xff%"] {
        assert_eq!(stat(&sandbox, path).ok().json()["type"], "directory");
        let query = format!("?path={}", http::encode(path));
        assert_eq!(listed(&sandbox, &query), ["d%FF%25/f%FE"]);
    }
    assert_eq!(stat(&sandbox, b"d%41").ok().json()["path"], "d%41");
    stat(&sandbox, b"dA").refused(404, "file_not_found");
    change(
        &sandbox,
        "rename",
        &json!({ "from": "d%FF%25/f%FE", "to": "f" }),
    )
    .ok();
    change(&sandbox, "remove", &json!({ "path": "d%FF%25" })).ok();
    assert_eq!(listed(&sandbox, "?kind=any"), ["d%41", "f"]);
}
