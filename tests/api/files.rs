//! Upload, list and download.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::fixture::Service;
use crate::fixture::http::{self, Request};
use crate::fixture::sandbox::Sandbox;

/// A typed refusal is a matter of milliseconds; a test machine is slow.
const AT_ONCE: Duration = Duration::from_secs(2);

#[test]
fn bytes_come_back_as_they_were_sent() {
    let service = Service::start();
    let sandbox = service.create();
    let large: Vec<u8> = (0..3_000_001u32).flat_map(|n| n.to_le_bytes()).collect();
    for (name, content) in [
        ("empty", &b""[..]),
        ("bytes", &(0..=255).collect::<Vec<u8>>()),
        ("deep/er/and/deeper/file.bin", b"\0\r\n--a-boundary"),
        ("large", &large),
    ] {
        let answer = sandbox.upload(name, content).ok().json();
        assert_eq!(answer, json!({ "file_path": name }));
        assert!(
            sandbox.download(name).ok().body == content,
            "{name} differs"
        );
    }
    let mut sizes = sandbox.files();
    sizes.sort();
    assert_eq!(
        sizes,
        [
            ("bytes".to_owned(), 256),
            ("deep/er/and/deeper/file.bin".to_owned(), 15),
            ("empty".to_owned(), 0),
            ("large".to_owned(), large.len() as u64),
        ]
    );
    assert_eq!(
        sandbox.stdout("import os\nprint(os.stat('large').st_uid, os.access('large', os.W_OK))"),
        "1000 True\n"
    );
}

#[test]
fn the_path_of_an_upload_comes_as_part_query_or_file_name() {
    let service = Service::start();
    let sandbox = service.create();
    let upload = |query: &str, parts: &[(&str, Option<&str>, &[u8])]| {
        let (content_type, body) = http::form(parts);
        let path = format!("{}{query}", sandbox.path("upload"));
        service.post(&path, &content_type, &body)
    };
    for (query, parts, placed) in [
        (
            "",
            vec![("file", Some("own name.txt"), &b"1"[..])],
            "own name.txt",
        ),
        (
            "",
            vec![
                ("file", Some("x"), b"1"),
                ("file_path", None, &b"after.txt"[..]),
            ],
            "after.txt",
        ),
        (
            "?file_path=q/%C3%A4.txt",
            vec![("file", Some("x"), &b"1"[..])],
            "q/ä.txt",
        ),
        (
            "?file_path=dir/",
            vec![("file", Some("../../x.txt"), &b"1"[..])],
            "dir/x.txt",
        ),
        (
            "?file_path=/home/user/home.txt",
            vec![("file", Some("x"), &b"1"[..])],
            "home.txt",
        ),
        (
            "?file_path=/app/results/app.txt",
            vec![("file", Some("x"), &b"1"[..])],
            "app.txt",
        ),
    ] {
        assert_eq!(
            upload(query, &parts).ok().json(),
            json!({ "file_path": placed })
        );
        assert_eq!(sandbox.download(placed).ok().body, b"1");
    }
    upload("", &[("other", None, b"1")]).refused_field("file");
    upload("", &[("file", None, b"1")]).refused_field("file_path");
}

#[test]
fn paths_that_leave_the_working_directory_are_refused() {
    let service = Service::start();
    let sandbox = service.create();
    for path in [
        "../x",
        "a/../../x",
        "..",
        "/etc/passwd",
        "//etc/passwd",
        "/home/user2/x",
        "/home/user/../x",
        "/app/results/../x",
        "a/..",
        "a\0b",
        ".",
    ] {
        let begun = Instant::now();
        for (verb, answer) in [
            ("upload", sandbox.upload(path, b"x")),
            ("download", sandbox.download(path)),
        ] {
            assert!(
                [400, 404].contains(&answer.status),
                "{verb} {path:?}: {} {}",
                answer.status,
                answer.text()
            );
            assert!(!answer.text().contains("root:"), "{verb} {path:?}");
        }
        assert!(begun.elapsed() < AT_ONCE);
    }
    for raw in [
        "%2e%2e/x",
        "..%2fx",
        "%2fetc%2fpasswd",
        "%252e%252e%252fx",
        "..%5cx",
    ] {
        let answer = service.get(&format!("{}/{raw}", sandbox.path("download")));
        assert!(
            [400, 404].contains(&answer.status),
            "{raw}: {}",
            answer.status
        );
    }
    assert_eq!(sandbox.files(), [], "nothing was made");
}

#[test]
fn links_are_not_followed() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(
        "import os\n\
         os.makedirs('dir'); open('dir/file', 'w').write('x')\n\
         os.symlink('/etc/passwd', 'absolute'); os.symlink('dir/file', 'inside')\n\
         os.symlink('/etc', 'etc'); os.symlink('dir', 'linked'); os.symlink('loop', 'loop')",
    );
    for path in ["absolute", "inside", "etc/passwd", "linked/file", "loop"] {
        sandbox.download(path).refused(400, "symbolic_link");
        sandbox.upload(path, b"x").refused(400, "symbolic_link");
    }
    assert_eq!(
        sandbox.files(),
        [("dir/file".to_owned(), 1)],
        "links are not listed"
    );
    assert_eq!(
        sandbox.stdout("print(open('dir/file').read(), len(os.listdir('/etc')) > 5)"),
        "x True\n"
    );
}

#[test]
fn what_is_not_a_regular_file_is_refused_at_once() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(
        "import os, socket\n\
         os.mkfifo('fifo'); os.mkdir('dir')\n\
         s = socket.socket(socket.AF_UNIX); s.bind('socket')",
    );
    for path in ["fifo", "dir", "socket"] {
        let begun = Instant::now();
        sandbox.download(path).refused(400, "not_a_regular_file");
        sandbox
            .upload(path, b"x")
            .refused(400, "not_a_regular_file");
        assert!(begun.elapsed() < AT_ONCE, "{path}: {:?}", begun.elapsed());
    }
    assert_eq!(sandbox.files(), []);
    sandbox.download("absent").refused(404, "file_not_found");
    sandbox
        .download("dir/absent")
        .refused(404, "file_not_found");
}

#[test]
fn files_that_the_user_may_not_touch_are_refused() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("import os\nopen('closed', 'w').write('x'); os.chmod('closed', 0); os.mkdir('ro'); os.chmod('ro', 0o500)");
    sandbox.download("closed").refused(400, "not_permitted");
    sandbox.upload("ro/new", b"x").refused(400, "not_permitted");
}

fn odd_names() -> Vec<&'static [u8]> {
    vec![
        b"new\nline",
        b"tab\tand \x1b[31mred",
        "ünïcödé 漢字 🎨".as_bytes(),
        b"per%cent %41",
        b"not utf8 \xff\xfe",
        b"\xc3(%)",
        b"quote\"'`$(x)",
        b"back\\slash",
        b"-rf",
        b" leading and trailing ",
        b"...",
        b"#?&;=+",
    ]
}

#[test]
fn odd_names_round_trip_through_list_and_download() {
    let service = Service::start();
    let sandbox = service.create();
    let names = odd_names();
    let list = names
        .iter()
        .map(|n| format!("bytes({:?})", n))
        .collect::<Vec<_>>()
        .join(",");
    sandbox.execute(&format!("for n in [{list}]:\n    open(n, 'wb').write(n)\nlong = 'l' * 255\nopen(long, 'w').write(long)"));
    let listed = service.get(&sandbox.path("files")).ok().json();
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), names.len() + 1);
    let mut contents: Vec<Vec<u8>> = Vec::new();
    for file in listed {
        let path = file["path"].as_str().expect("a path");
        let by_path = sandbox.download(path).ok().body;
        let by_url = service.get(file["url"].as_str().expect("a url")).ok().body;
        assert_eq!(by_path, by_url, "{path:?}");
        assert_eq!(
            by_path.len() as u64,
            file["size"].as_u64().expect("a size"),
            "{path:?}"
        );
        contents.push(by_path);
    }
    // The content is the name: everything was found under its own.
    let mut expected: Vec<Vec<u8>> = names.iter().map(|n| n.to_vec()).collect();
    expected.push(vec![b'l'; 255]);
    contents.sort();
    expected.sort();
    assert_eq!(contents, expected);
    for name in names {
        assert_eq!(
            sandbox.download_bytes(name).ok().body,
            name,
            "raw bytes in the URL"
        );
    }
}

#[test]
fn odd_names_can_be_uploaded() {
    let service = Service::start();
    let sandbox = service.create();
    for name in odd_names()
        .into_iter()
        .filter_map(|n| std::str::from_utf8(n).ok())
    {
        let answer = sandbox.upload(name, name.as_bytes()).ok().json();
        assert_eq!(answer["file_path"], name);
        assert_eq!(sandbox.download(name).ok().body, name.as_bytes());
    }
    let too_long = "x".repeat(256);
    assert_eq!(sandbox.upload(&too_long, b"x").status, 400);
    assert_eq!(sandbox.download(&too_long).status, 400);
}

fn range(sandbox: &Sandbox<'_>, path: &str, range: &str) -> http::Answer {
    let path = format!("{}/{path}", sandbox.path("download"));
    sandbox.service.send(&Request {
        method: "GET",
        path: &path,
        headers: &[("Range", range)],
        body: b"",
    })
}

#[test]
fn ranges_of_a_file_can_be_downloaded() {
    let service = Service::start();
    let sandbox = service.create();
    let content: Vec<u8> = (0..600_000u32).map(|n| (n % 251) as u8).collect();
    sandbox.upload("f", &content).ok();
    for (asked, first, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=599990-", 599_990, 600_000),
        ("bytes=-5", 599_995, 600_000),
        ("bytes=100000-499999", 100_000, 500_000),
        ("bytes=599999-9999999", 599_999, 600_000),
    ] {
        let answer = range(&sandbox, "f", asked);
        assert_eq!(answer.status, 206, "{asked}");
        assert!(answer.body == content[first..end], "{asked}");
        assert_eq!(
            answer.header("content-range"),
            Some(&*format!("bytes {first}-{}/600000", end - 1))
        );
    }
    let beyond = range(&sandbox, "f", "bytes=600000-");
    beyond.refused(416, "range_not_satisfiable");
    assert_eq!(beyond.header("content-range"), Some("bytes */600000"));
    assert!(
        range(&sandbox, "f", "lines=1-2").ok().body == content,
        "a unit that nobody knows is ignored"
    );
    let etag = sandbox
        .download("f")
        .header("etag")
        .expect("an etag")
        .to_owned();
    let path = format!("{}/f", sandbox.path("download"));
    let if_range = |etag: &str| {
        let headers: &[_] = &[("Range", "bytes=0-0"), ("If-Range", etag)];
        service
            .send(&Request {
                method: "GET",
                path: &path,
                headers,
                body: b"",
            })
            .status
    };
    assert_eq!(if_range(&etag), 206);
    sandbox.upload("f", b"another").ok();
    assert_eq!(
        if_range(&etag),
        200,
        "a part of another version is of no use"
    );
}

#[test]
fn a_browser_may_not_run_what_is_downloaded() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox
        .upload("page.html", b"<script>alert(1)</script>")
        .ok();
    let answer = sandbox.download("page.html").ok();
    assert_eq!(answer.header("content-security-policy"), Some("sandbox"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert!(
        answer
            .header("content-disposition")
            .is_some_and(|d| d.starts_with("attachment"))
    );
}

#[test]
fn an_upload_that_breaks_off_leaves_nothing() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("f", b"old").ok();
    let (content_type, body) = http::form(&[
        ("file_path", None, b"f"),
        ("file", Some("f"), &vec![b'n'; 2 << 20]),
    ]);
    let path = sandbox.path("upload");
    let length = body.len().to_string();
    let headers: &[_] = &[
        ("Content-Type", &*content_type),
        ("Content-Length", &*length),
    ];
    let mut stream = service.connect();
    let request = Request {
        method: "POST",
        path: &path,
        headers,
        body: b"",
    };
    std::io::Write::write_all(&mut stream, &http::head(service.address, &request)).expect("sent");
    std::io::Write::write_all(&mut stream, &body[..1 << 20]).expect("sent");
    drop(stream);
    crate::fixture::host::wait_until("the upload is given up", Duration::from_secs(10), || {
        sandbox.files() == [("f".to_owned(), 3)]
    });
    assert_eq!(sandbox.download("f").ok().body, b"old");
}

#[test]
fn an_upload_over_the_disk_limit_is_refused_and_leaves_room() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "disk_bytes": 8 << 20 }));
    let refused = sandbox.upload("f", &vec![1; 16 << 20]);
    assert!(
        [413, 507].contains(&refused.status),
        "{} {}",
        refused.status,
        refused.text()
    );
    // Many small ones fill it too.
    let full = (0..40)
        .map(|n| sandbox.upload(&format!("small{n}"), &vec![1; 1 << 20]))
        .find(|a| a.status != 200);
    full.expect("8 MiB hold no 40 MiB")
        .refused(507, "disk_full");
    sandbox.command("rm small*");
    sandbox.upload("f", &vec![1; 4 << 20]).ok();
    assert_eq!(sandbox.files(), [("f".to_owned(), 4 << 20)]);
}

#[test]
fn an_upload_over_the_body_limit_is_refused() {
    let service = Service::with_config("server.max_upload_bytes = 1048576");
    let sandbox = service.create();
    sandbox
        .upload("f", &vec![1; 2 << 20])
        .refused(413, "upload_too_large");
    assert_eq!(sandbox.files(), []);
}

#[test]
fn listings_end_at_their_limit() {
    let service = Service::with_config("limits.files = 100");
    let sandbox = service.create();
    sandbox.execute("for i in range(500): open(f'f{i}', 'w').close()");
    assert_eq!(sandbox.files().len(), 100);
}
