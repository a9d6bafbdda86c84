//! Several files in one upload, and folders.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{self, Answer};
use crate::fixture::sandbox::Sandbox;

type Part<'a> = (&'a str, Option<&'a str>, &'a [u8]);

fn upload(sandbox: &Sandbox<'_>, query: &str, parts: &[Part<'_>]) -> Answer {
    let (content_type, body) = http::form(parts);
    let path = format!("{}{query}", sandbox.path("upload"));
    sandbox.service.post(&path, &content_type, &body)
}

fn placed(files: &[(&str, u64)]) -> Value {
    let listed: Vec<Value> = files
        .iter()
        .map(|(path, size)| json!({ "path": path, "size": size }))
        .collect();
    json!({ "file_path": files[0].0, "files": listed })
}

#[test]
fn several_files_come_in_one_upload() {
    let service = Service::start();
    let sandbox = service.create();
    let large = vec![7; 3 << 20];
    let path = |path: &'static str| ("file_path", None, path.as_bytes());
    for (query, parts, files) in [
        // By their own names.
        (
            "",
            vec![("file", Some("a"), &b"1"[..]), ("file", Some("b"), b"22")],
            vec![("a", 1), ("b", 2)],
        ),
        // Into a folder, wherever that is said, as browsers send a folder.
        (
            "?file_path=in/",
            vec![
                ("file", Some("p/a.py"), b"1"),
                ("file", Some("p/d/b.py"), &large),
            ],
            vec![("in/p/a.py", 1), ("in/p/d/b.py", 3 << 20)],
        ),
        (
            "",
            vec![
                ("file", Some("p/a"), b"1"),
                ("file", Some("p/b"), b"1"),
                path("late/"),
            ],
            vec![("late/p/a", 1), ("late/p/b", 1)],
        ),
        // Each to where it is to, said before or after it.
        (
            "",
            vec![
                path("x/1"),
                ("file", Some("a"), &large),
                path("x/2"),
                ("file", Some("b"), b"2"),
            ],
            vec![("x/1", 3 << 20), ("x/2", 1)],
        ),
        (
            "",
            vec![
                ("file", Some("a"), b"1"),
                path("y/1"),
                ("file", Some("b"), b"2"),
                path("y/2"),
            ],
            vec![("y/1", 1), ("y/2", 1)],
        ),
        // One for itself, a folder for the others.
        (
            "?file_path=z/",
            vec![
                path("own"),
                ("file", Some("a"), b"1"),
                ("file", Some("b"), b"2"),
            ],
            vec![("own", 1), ("z/b", 1)],
        ),
        // A path of a client's machine is no path here.
        (
            "?file_path=w/",
            vec![
                ("file", Some("C:\\u\\a"), b"1"),
                ("file", Some("/etc/b"), b"2"),
                ("file", Some("../c"), b"3"),
            ],
            vec![("w/a", 1), ("w/b", 1), ("w/c", 1)],
        ),
    ] {
        let answer = upload(&sandbox, query, &parts).ok().json();
        assert_eq!(answer, placed(&files), "{query}");
        for (path, size) in files {
            assert_eq!(
                sandbox.download(path).ok().body.len() as u64,
                size,
                "{path}"
            );
        }
    }
    let one = upload(&sandbox, "", &[("file", Some("folder/only"), b"1")]);
    assert_eq!(one.ok().json(), json!({ "file_path": "folder/only" }));
}

#[test]
fn uploads_of_which_it_is_not_clear_where_they_go_are_refused() {
    let service = Service::start();
    let sandbox = service.create();
    let large = vec![7; 2 << 20];
    let path = |path: &'static str| ("file_path", None, path.as_bytes());
    let (a, b): (Part<'_>, Part<'_>) = (("file", Some("a"), b"1"), ("file", Some("b"), b"2"));
    for (query, parts) in [
        ("?file_path=one", vec![a, b]),
        ("?file_path=one", vec![a, ("file", Some("b"), &large)]),
        ("", vec![path("one"), path("two"), a]),
        ("", vec![path("d/"), path("e/"), a]),
        ("", vec![a, path("one"), path("two")]),
        ("", vec![("file", Some("b"), &large), path("late")]),
        ("", vec![("file", Some("b"), &large), path("late/")]),
        ("?file_path=d/", vec![("file", None, b"1")]),
    ] {
        let refused = upload(&sandbox, query, &parts);
        assert_eq!(
            refused.status,
            422,
            "{query} {}: {}",
            parts.len(),
            refused.text()
        );
        refused.refused_field("file_path");
    }
    let many = vec![a; 1001];
    upload(&sandbox, "", &many).refused_field("file");
}
