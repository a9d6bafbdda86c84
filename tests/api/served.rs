//! How files are answered with: versions, conditions, parts, names.

use serde_json::json;

use crate::fixture::Service;
use crate::fixture::http::{self, Answer, Request};
use crate::fixture::sandbox::Sandbox;

fn ask(sandbox: &Sandbox<'_>, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let path = format!("{}/{path}", sandbox.path("download"));
    sandbox.service.send(&Request {
        method,
        path: &path,
        headers,
        body: b"",
    })
}

fn get(sandbox: &Sandbox<'_>, headers: &[(&str, &str)]) -> Answer {
    ask(sandbox, "GET", "f", headers)
}

#[test]
fn a_client_that_has_a_version_need_not_load_it_again() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("f", b"0123456789").ok();
    let first = get(&sandbox, &[]).ok();
    let etag = first.header("etag").expect("a tag").to_owned();
    let modified = first.header("last-modified").expect("a date").to_owned();
    assert_eq!(first.header("cache-control"), Some("private, no-cache"));
    for headers in [
        [("If-None-Match", &*etag)],
        [("If-None-Match", "*")],
        [("If-Modified-Since", &modified)],
    ] {
        let same = get(&sandbox, &headers);
        assert_eq!((same.status, same.body.len()), (304, 0), "{headers:?}");
        assert_eq!(same.header("etag"), Some(&*etag));
    }
    get(&sandbox, &[("If-Match", &etag)]).ok();
    get(&sandbox, &[("If-Unmodified-Since", &modified)]).ok();
    let others = format!("\"other\", {etag}");
    assert_eq!(get(&sandbox, &[("If-None-Match", &others)]).status, 304);
    // A condition comes before a range.
    let both = [("If-None-Match", &*etag), ("Range", "bytes=0-1")];
    assert_eq!(get(&sandbox, &both).status, 304);
    // The same size and the same time is not the same file.
    sandbox.execute(
        "import os\ns = os.stat('f'); open('f', 'r+').write('abcdefghij')\n\
         os.utime('f', ns=(s.st_atime_ns, s.st_mtime_ns))",
    );
    assert_eq!(
        get(&sandbox, &[("If-None-Match", &etag)]).ok().body,
        b"abcdefghij"
    );
    get(&sandbox, &[("If-Match", &etag)]).refused(412, "file_changed_since");
    let long_ago = [("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT")];
    get(&sandbox, &long_ago).refused(412, "file_changed_since");
}

#[test]
fn the_head_of_an_answer_is_that_of_the_whole() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("f", &[1; 100_000]).ok();
    let (whole, head) = (get(&sandbox, &[]), ask(&sandbox, "HEAD", "f", &[]));
    assert_eq!((head.status, head.body.len()), (200, 0));
    for name in [
        "content-length",
        "content-type",
        "etag",
        "last-modified",
        "accept-ranges",
        "content-disposition",
    ] {
        assert_eq!(head.header(name), whole.header(name), "{name}");
        assert!(head.header(name).is_some(), "{name}");
    }
    assert_eq!(ask(&sandbox, "HEAD", "absent", &[]).status, 404);
}

/// A server may answer several ranges with the whole (RFC 9110, section 14.2), and ours does.
#[test]
fn several_ranges_get_the_whole() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("f", b"0123456789").ok();
    for ranges in ["bytes=0-1,4-5", "bytes=0-1, -1", "bytes=0-0,0-0,0-0,0-0"] {
        let answer = get(&sandbox, &[("Range", ranges)]).ok();
        assert_eq!(answer.body, b"0123456789", "{ranges}");
        assert_eq!(answer.header("content-range"), None);
    }
}

#[test]
fn the_name_of_a_file_is_read_as_it_is() {
    let service = Service::start();
    let sandbox = service.create();
    let names: [&[u8]; 8] = [
        b"plain.txt",
        b"two words.txt",
        "ünïcödé 漢字 🎨.txt".as_bytes(),
        b"quote\"'`;.txt",
        b"per%41cent.txt",
        b"new\nline\r\nX-Bad: 1",
        b"back\\slash",
        b"\xff.bin",
    ];
    for name in names {
        let make = format!("open(bytes({name:?}), 'w').close()");
        sandbox.execute(&make);
        let answer = ask(&sandbox, "GET", &http::encode(name), &[]).ok();
        let header = answer.header("content-disposition").expect("one");
        assert!(header.is_ascii() && answer.header("x-bad").is_none());
        // Python's own reader of such headers, which knows nothing of our writer. It takes the first of
        // the two names, where RFC 6266 takes the one that is encoded.
        let (kind, names) = header.split_once("; ").expect("a name");
        let (plain, encoded) = names.split_once("; ").expect("two names");
        assert!(
            plain.starts_with("filename=\"") && plain.ends_with('"'),
            "{header}"
        );
        let header = format!("{kind}; {encoded}");
        let read = sandbox.printed(&format!(
            "import email.message, json\nm = email.message.Message()\n\
             m['Content-Disposition'] = json.loads({:?})\n\
             print(json.dumps([m.get_content_disposition(), m.get_filename()]))",
            json!(header).to_string()
        ));
        let expected = String::from_utf8(name.to_vec()).unwrap_or_else(|_| "%FF.bin".to_owned());
        assert_eq!(read, json!(["attachment", expected]), "{header}");
    }
}
