//! Pages: both forms, what an index may do wrong, and what must not get inside.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandcell::config::Packages;
use sandcell::mirror::host::PythonIndex;
use serde_json::json;

use super::fake::{
    Fake, JSON, file, get, get_json, missing, page, path_of, quick, raw, reply, send, sha256,
};
use super::serving::Serving;

#[test]
fn both_forms_are_given_whatever_form_the_index_has() {
    let hash = sha256(b"a");
    let html = format!(
        "<!DOCTYPE html><html><body>\n<a href='../../f/a-1-py3-none-any.whl#sha256={hash}' \
         data-requires-python='&gt;=3.8' data-yanked='bad &amp; old' \
         data-dist-info-metadata='sha256={hash}'>a-1-py3-none-any.whl</a><br>\
         <a href='/f/unhashed-1.whl'>unhashed-1.whl</a>\
         <a href='/f/x#sha256={hash}'>../../etc/passwd</a></body></html>"
    );
    let listed = json!({
        "filename": "a-1-py3-none-any.whl", "url": "../../f/a-1-py3-none-any.whl",
        "hashes": {"sha256": hash}, "requires-python": ">=3.8", "yanked": "bad & old",
        "core-metadata": {"sha256": hash}, "size": 1, "upload-time": "2022-01-01T00:00:00Z"});
    let wrong = [
        json!({"filename": "../../etc/passwd", "url": "/f", "hashes": {"sha256": hash}}),
        json!({"filename": "unhashed-1.whl", "url": "/f", "hashes": {}}),
        json!({"filename": "a.whl", "url": "file:///etc/passwd", "hashes": {"sha256": hash}}),
    ];
    let fake = Fake::start(move |seen| match seen.path.as_str() {
        "/simple/html/" => reply(
            200,
            "content-type: text/html; charset=utf-8\r\n",
            html.clone(),
        ),
        "/simple/json/" => page(&[std::slice::from_ref(&listed), &wrong[..]].concat()),
        "/f/a-1-py3-none-any.whl" | "/f/a-1-py3-none-any.whl.metadata" => reply(200, "", "a"),
        _ => missing(),
    });
    let serving = Serving::of(&quick(), &fake.index(), "");
    for project in ["json", "html"] {
        let page = get_json(serving.address, &format!("/simple/{project}/")).json();
        let files = page["files"].as_array().unwrap();
        assert_eq!(files.len(), 1, "{page}");
        let path = path_of(project, "a-1-py3-none-any.whl", b"a");
        assert_eq!(files[0]["url"], path);
        assert_eq!(files[0]["requires-python"], ">=3.8");
        assert_eq!(files[0]["yanked"], "bad & old");
        assert_eq!(files[0]["core-metadata"]["sha256"], hash);
        assert_eq!(files[0]["size"].as_u64(), (project == "json").then_some(1));
        let html = get(serving.address, &format!("/simple/{project}/"));
        assert!(
            html.head.contains("content-type: text/html"),
            "{}",
            html.head
        );
        let html = html.text();
        assert!(
            html.contains(&format!("href=\"{path}#sha256={hash}\"")),
            "{html}"
        );
        assert!(html.contains("data-requires-python=\"&gt;=3.8\""), "{html}");
        assert!(html.contains("data-yanked=\"bad &amp; old\""), "{html}");
        for end in ["", ".metadata"] {
            assert_eq!(get(serving.address, &format!("{path}{end}")).text(), "a");
        }
    }
}

#[test]
fn requests_that_no_installer_makes_are_refused_and_reach_no_index() {
    let fake = Fake::start(|_| missing());
    let serving = Serving::of(&quick(), &fake.index(), "");
    let at = serving.address;
    assert_eq!(send(at, "POST", "/simple/a/", "").status, 405);
    for path in [
        "/",
        "/simple/../a/",
        "/simple/a?x=1",
        "/simple/a%2fb/",
        "/files/a/b/c",
        "http://x/simple/a/",
        &format!("{}/../x", path_of("a", "a.whl", b"")),
    ] {
        assert_eq!(get(at, path).status, 404, "{path}");
    }
    assert!(fake.seen("").is_empty());
    let moved = get(at, "/simple/A.b");
    assert_eq!(moved.status, 301);
    assert!(
        moved.head.contains("location: /simple/a-b/"),
        "{}",
        moved.head
    );
    let root = get_json(at, "/simple/");
    assert_eq!(
        (root.status, root.json()["projects"].clone()),
        (200, json!([]))
    );
}

#[test]
fn a_missing_project_is_asked_for_once() {
    let fake = Fake::start(|_| missing());
    let serving = Serving::of(&quick(), &fake.index(), "");
    for _ in 0..3 {
        let answer = get(serving.address, "/simple/nothing/");
        assert_eq!(answer.status, 404);
        assert!(answer.text().contains("has no package \"nothing\""));
    }
    assert_eq!(fake.seen("").len(), 1);
}

#[test]
fn pages_that_are_too_large_slow_broken_or_no_pages_are_refused() {
    let fake = Fake::start(|seen| match seen.path.as_str() {
        "/simple/endless/" => raw(JSON, |to| {
            loop {
                to.write_all(&[b' '; 4096])?;
            }
        }),
        "/simple/bomb/" => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            gzip.write_all(&vec![b' '; 4 << 20]).unwrap();
            reply(
                200,
                &format!("{JSON}content-encoding: gzip\r\n"),
                gzip.finish().unwrap(),
            )
        }
        "/simple/slow/" => raw(JSON, |to| {
            loop {
                to.write_all(b" ")?;
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
        }),
        "/simple/loop/" => reply(302, "location: /simple/loop/\r\n", ""),
        "/simple/version/" => reply(200, JSON, r#"{"meta":{"api-version":"2.0"},"files":[]}"#),
        "/simple/picture/" => reply(200, "content-type: image/png\r\n", "x"),
        "/simple/closed/" => reply(401, "", ""),
        "/simple/ill/" => reply(500, "", "stack trace"),
        _ => reply(200, JSON, "{"),
    });
    let config = Packages {
        max_page_bytes: 1 << 20,
        ..quick()
    };
    let serving = Serving::of(&config, &fake.index(), "");
    for (name, status, text) in [
        ("endless", 507, "packages.max_page_bytes"),
        ("bomb", 507, "packages.max_page_bytes"),
        ("slow", 503, "did not answer in time"),
        ("loop", 502, "redirects"),
        ("version", 502, "unknown version"),
        ("picture", 502, "neither the JSON nor the HTML"),
        ("closed", 502, "credentials"),
        ("ill", 503, "overloaded"),
        ("garbage", 502, "no page of an index"),
    ] {
        let answer = get(serving.address, &format!("/simple/{name}/"));
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        assert!(answer.text().contains(text), "{name}: {}", answer.text());
        assert!(
            !answer.text().contains("127.0.0.1"),
            "{name}: {}",
            answer.text()
        );
    }
}

#[test]
fn an_old_page_is_revalidated_and_used_while_the_index_is_down() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let fake = Fake::start(move |seen| {
        if is_down.load(Ordering::Relaxed) {
            reply(503, "", "")
        } else if seen.head.contains("if-none-match: \"one\"") {
            reply(304, "", "")
        } else {
            let tagged = format!("{JSON}etag: \"one\"\r\n");
            reply(
                200,
                &tagged,
                r#"{"meta":{"api-version":"1.0"},"name":"a","files":[]}"#,
            )
        }
    });
    let config = Packages {
        page_seconds: 0,
        ..quick()
    };
    let serving = Serving::of(&config, &fake.index(), "");
    for _ in 0..2 {
        assert_eq!(get(serving.address, "/simple/a/").status, 200);
    }
    assert_eq!(fake.seen("").len(), 2);
    assert!(fake.seen("")[1].head.contains("if-none-match"));
    down.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(get(serving.address, "/simple/a/").status, 200);
    }
    // One try, and then not again at once.
    assert_eq!(fake.seen("").len(), 3);
    assert_eq!(get(serving.address, "/simple/b/").status, 503);
}

#[test]
fn credentials_go_to_their_index_and_nowhere_else() {
    let other = Fake::start(|_| reply(200, "", "content"));
    let link = other.url("/f/a-1.tar.gz");
    let elsewhere = other.url("/simple/gone/");
    let fake = Fake::start(move |seen| match seen.path.as_str() {
        "/simple/gone/" => reply(302, &format!("location: {elsewhere}\r\n"), ""),
        _ => page(&[file("a-1.tar.gz", &link, b"content")]),
    });
    let index = PythonIndex {
        url: Some(format!("http://user:s%40cret@{}/simple/", fake.address)),
        ..PythonIndex::default()
    };
    let serving = Serving::of(&quick(), &index, "");
    let page = get_json(serving.address, "/simple/a/");
    assert_eq!(page.status, 200);
    let content = get(serving.address, &path_of("a", "a-1.tar.gz", b"content"));
    assert_eq!(content.text(), "content");
    let gone = get(serving.address, "/simple/gone/");
    // base64 of user:s@cret, in lower case as `Seen` has it
    let secret = "dxnlcjpzqgnyzxq=";
    assert!(
        fake.seen("/simple/a/")[0].head.contains(secret),
        "{:?}",
        fake.seen("")
    );
    assert_eq!(other.seen("").len(), 2);
    for seen in other.seen("") {
        assert!(!seen.head.contains("authorization"), "{seen:?}");
    }
    for answer in [page, content, gone] {
        let all = answer.head.clone() + &answer.text();
        for leak in ["cret", "user", "127.0.0.1"] {
            assert!(!all.contains(leak), "{leak}: {all}");
        }
    }
}

#[test]
fn the_first_index_that_has_a_project_wins_and_a_failing_one_is_not_skipped() {
    let first = Fake::start(|seen| match seen.path.as_str() {
        "/simple/both/" => page(&[file("first-1.whl", "/f", b"1")]),
        "/simple/ill/" => reply(500, "", ""),
        _ => missing(),
    });
    let second = Fake::start(|_| page(&[file("second-1.whl", "/f", b"2")]));
    let index = PythonIndex {
        extra_urls: vec![second.url("/simple/")],
        ..first.index()
    };
    let serving = Serving::of(&quick(), &index, "");
    let has = |project: &str| get(serving.address, &format!("/simple/{project}/")).text();
    assert!(has("both").contains("first-1.whl") && !has("both").contains("second-1.whl"));
    assert!(has("only").contains("second-1.whl"));
    assert!(has("ill").contains("cannot be reached"));
    assert!(second.seen("/simple/ill/").is_empty());
}
