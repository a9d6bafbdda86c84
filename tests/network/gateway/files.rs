//! Files: verified, downloaded once, bounded, and mended when they are damaged.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sandcell::config::Packages;
use sandcell::network::Gateway;

use super::fake::{Fake, Reply, file, get, missing, page, path_of, quick, raw, reply, sha256};
use super::serving::Serving;

/// An index with one project `p`, whose files are at `/f/<name>`.
fn index(files: &'static [(&'static str, &'static [u8])], answer: fn(&str) -> Reply) -> Fake {
    Fake::start(move |seen| match seen.path.strip_prefix("/f/") {
        Some(name) => answer(name),
        None if seen.path == "/simple/p/" => {
            let files: Vec<_> = files
                .iter()
                .map(|(name, content)| file(name, &format!("/f/{name}"), content))
                .collect();
            page(&files)
        }
        None => missing(),
    })
}

fn kept(cache: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![cache.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found
}

const PARTS: &[u8] = &[7; 200_000];

fn slowly(content: &'static [u8], pieces: usize, pause: Duration) -> Reply {
    raw(
        &format!("content-length: {}\r\n", content.len()),
        move |to| {
            for piece in content.chunks(content.len().div_ceil(pieces)) {
                to.write_all(piece)?;
                to.flush()?;
                thread::sleep(pause);
            }
            Ok(())
        },
    )
}

#[test]
fn a_file_that_is_not_the_listed_one_is_not_passed_on_and_not_kept() {
    let fake = index(
        &[
            ("wrong.whl", b"right"),
            ("short.whl", b"short"),
            ("long.whl", b"x"),
            ("gone.whl", b"y"),
        ],
        |name| match name {
            "wrong.whl" => reply(200, "", "wrong"),
            "short.whl" => raw("content-length: 5\r\n", |to| to.write_all(b"sho")),
            "long.whl" => raw("", |to| {
                loop {
                    to.write_all(&[b'x'; 4096])?;
                }
            }),
            _ => missing(),
        },
    );
    let config = Packages {
        max_file_bytes: 1 << 20,
        ..quick()
    };
    let serving = Serving::of(&config, &fake.index(), "");
    for (name, content, status, text) in [
        ("wrong.whl", &b"right"[..], 502, "does not have the SHA-256"),
        ("short.whl", b"short", 503, "the connection broke"),
        ("long.whl", b"x", 507, "packages.max_file_bytes"),
        ("gone.whl", b"y", 404, "does not have it"),
    ] {
        let answer = get(serving.address, &path_of("p", name, content));
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        assert!(answer.text().contains(text), "{name}: {}", answer.text());
    }
    assert_eq!(kept(&serving.cache), [] as [PathBuf; 0]);
    let before = serving.gateway.stats();
    assert_eq!(
        get(serving.address, &path_of("p", "unlisted.whl", b"right")).status,
        404
    );
    assert_eq!(
        get(serving.address, &path_of("p", "wrong.whl", b"other")).status,
        404
    );
    assert_eq!(serving.gateway.stats(), before);
}

#[test]
fn a_large_wrong_file_is_cut_before_its_end() {
    const WRONG: &[u8] = &[8; 200_000];
    let fake = index(
        &[("a.whl", PARTS), ("good.whl", &[9; 200_000])],
        |name| match name {
            "a.whl" => slowly(WRONG, 5, Duration::from_millis(900)),
            _ => slowly(&[9; 200_000], 5, Duration::from_millis(900)),
        },
    );
    let serving = Serving::of(&quick(), &fake.index(), "");
    let answer = get(serving.address, &path_of("p", "a.whl", PARTS));
    assert_eq!(answer.status, 200);
    assert!(!answer.whole && answer.body.len() < WRONG.len());
    assert_eq!(kept(&serving.cache), [] as [PathBuf; 0]);
    // The same with the right bytes comes whole.
    let answer = get(serving.address, &path_of("p", "good.whl", &[9; 200_000]));
    assert!(answer.whole && answer.body == [9; 200_000]);
}

#[test]
fn twenty_clients_are_one_download_and_one_that_leaves_stops_nobody() {
    let fake = index(&[("a.whl", PARTS)], |_| {
        slowly(PARTS, 10, Duration::from_millis(100))
    });
    let serving = Serving::of(&quick(), &fake.index(), "");
    let (address, path) = (serving.address, path_of("p", "a.whl", PARTS));
    let mut leaves = TcpStream::connect(address).unwrap();
    write!(leaves, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    thread::sleep(Duration::from_millis(200));
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || get(address, &path))
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    drop(leaves);
    for client in clients {
        let answer = client.join().unwrap();
        assert!(answer.status == 200 && answer.body == PARTS);
    }
    assert_eq!(fake.seen("/f/").len(), 1);
    assert_eq!(fake.seen("/simple/").len(), 1);
}

#[test]
fn a_download_that_nobody_waits_for_stops() {
    let fake = index(&[("a.whl", PARTS)], |_| {
        slowly(PARTS, 100, Duration::from_millis(100))
    });
    let serving = Serving::of(&quick(), &fake.index(), "");
    let mut leaves = TcpStream::connect(serving.address).unwrap();
    let path = path_of("p", "a.whl", PARTS);
    write!(leaves, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    leaves.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(kept(&serving.cache).len(), 1);
    drop(leaves);
    let gone = (0..40).any(|_| {
        thread::sleep(Duration::from_millis(50));
        kept(&serving.cache).is_empty()
    });
    assert!(gone, "the download goes on for nobody");
}

#[test]
fn the_least_recently_used_file_goes_first() {
    let fake = index(
        &[
            ("a.whl", &[1; 400]),
            ("b.whl", &[2; 400]),
            ("c.whl", &[3; 400]),
        ],
        |name| {
            let byte = name.as_bytes()[0] - b'a' + 1;
            reply(200, "", [byte; 400])
        },
    );
    let config = Packages {
        cache_bytes: 1000,
        ..quick()
    };
    let serving = Serving::of(&config, &fake.index(), "");
    for (name, byte) in [("a", 1), ("b", 2), ("a", 1), ("c", 3), ("a", 1), ("b", 2)] {
        let path = path_of("p", &format!("{name}.whl"), &[byte; 400]);
        assert_eq!(get(serving.address, &path).body, [byte; 400]);
        assert!(kept(&serving.cache).len() <= 2);
    }
    let times = |name: &str| fake.seen(&format!("/f/{name}.whl")).len();
    assert_eq!((times("a"), times("b"), times("c")), (1, 2, 1));
}

#[test]
fn a_damaged_file_is_downloaded_anew_at_once_and_after_a_restart() {
    let fake = index(&[("a.whl", b"content")], |_| reply(200, "", "content"));
    let serving = Serving::of(&quick(), &fake.index(), "");
    let path = path_of("p", "a.whl", b"content");
    let hash = sha256(b"content");
    let stored = serving.cache.join("sha256").join(&hash[..2]).join(&hash);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(get(serving.address, &path).text(), "content");
    assert_eq!((mode(&serving.cache), mode(&stored)), (0o700, 0o400));
    for damage in ["c0ntent", "cont", ""] {
        fs::write(&stored, damage).unwrap();
        assert_eq!(get(serving.address, &path).text(), "content");
        assert_eq!(fs::read(&stored).unwrap(), b"content");
    }
    fs::remove_file(&stored).unwrap();
    assert_eq!(get(serving.address, &path).text(), "content");
    assert_eq!(fake.seen("/f/").len(), 5);

    // What an earlier run left: half a download, a stranger, and a file that the disk damaged.
    fs::write(serving.cache.join("tmp/1"), "half").unwrap();
    fs::write(
        serving
            .cache
            .join("sha256")
            .join(&hash[..2])
            .join("stranger"),
        "x",
    )
    .unwrap();
    let again = |damage: Option<&str>| {
        if let Some(damage) = damage {
            fs::write(&stored, damage).unwrap();
        }
        let index = fake.index();
        let gateway = Gateway::with_host(&quick(), serving.cache.clone(), "", &index, "").unwrap();
        assert!(kept(&serving.cache) == std::slice::from_ref(&stored));
        let address = serving
            .runtime
            .block_on(super::serving::serve(gateway.clone()));
        assert_eq!(get(address, &path).text(), "content");
        gateway.stats().file_requests
    };
    assert_eq!(again(Some("c0ntent")), 1);
    assert_eq!(again(None), 0);
}
