//! Folders as archives, both ways. Python in the sandbox, which knows nothing of how the service does
//! it, makes what is unpacked and reads what is packed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::wait_until;
use crate::fixture::http::{Answer, Request};
use crate::fixture::sandbox::Sandbox;

const SOON: Duration = Duration::from_secs(20);

fn unpack(sandbox: &Sandbox<'_>, query: &str, archive: &[u8]) -> Answer {
    let path = sandbox.path(&format!("files/unpack{query}"));
    let kind = "application/octet-stream";
    sandbox.service.post(&path, kind, archive)
}

/// What Python makes as `/tmp/archive`, sent in by `code`.
#[track_caller]
fn made(sandbox: &Sandbox<'_>, code: &str) -> Vec<u8> {
    let done = sandbox.execute(&format!(
        "{MAKERS}{code}\nos.replace('/tmp/archive', 'archive')"
    ));
    assert_eq!(done["outcome"], "ok", "{done:#}");
    let archive = sandbox.download("archive").ok().body;
    sandbox.command("rm archive");
    archive
}

const MAKERS: &str = "import io, os, stat, tarfile, zipfile\n\
    def tar(*entries, mode='w', form=tarfile.PAX_FORMAT):\n    \
        with tarfile.open('/tmp/archive', mode, format=form) as t:\n        \
            for name, kind, more in entries:\n            \
                info = tarfile.TarInfo(name); info.type = kind; info.mode = 0o644\n            \
                data = b''\n            \
                if kind == tarfile.REGTYPE: data = more; info.size = len(data)\n            \
                elif more: info.linkname = more\n            \
                t.addfile(info, io.BytesIO(data))\n\
    def zipped(*entries, **more):\n    \
        with zipfile.ZipFile('/tmp/archive', 'w', zipfile.ZIP_DEFLATED) as z:\n        \
            for name, mode, data in entries:\n            \
                info = zipfile.ZipInfo(name); info.create_system = 3; info.external_attr = mode << 16\n            \
                z.writestr(info, data)\n\
    F, D, L, H = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE\n";

fn everything(sandbox: &Sandbox<'_>) -> Vec<String> {
    let answer = sandbox.service.get(&sandbox.path("files?kind=any"));
    let entries = answer.ok().json();
    let entries = entries.as_array().expect("a list").iter();
    let path = |entry: &Value| entry["path"].as_str().expect("a path").to_owned();
    entries.map(path).collect()
}

#[test]
fn a_folder_comes_as_an_archive_that_python_reads() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute(
        "import os\nos.makedirs('p/d/empty'); open('p/a.txt', 'w').write('a' * 100)\n\
         open('p/d/big', 'wb').write(os.urandom(3 << 20)); open(b'p/d/\\xff', 'w').write('odd')\n\
         open('p/d/run', 'w').write('#!'); os.chmod('p/d/run', 0o755); open('p/' + 'l' * 200, 'w')\n\
         os.symlink('../a.txt', 'p/d/in'); os.symlink('/etc', 'p/out'); os.symlink('../x', 'p/up')\n\
         os.mkfifo('p/fifo'); open('p/ä', 'w').write('ä')",
    );
    for (format, mime) in [
        ("tar", "application/x-tar"),
        ("tar.gz", "application/gzip"),
        ("zip", "application/zip"),
    ] {
        let path = sandbox.path(&format!("files/archive?path=p&format={format}"));
        let answer = service.get(&path).ok();
        assert_eq!(answer.header("content-type"), Some(mime));
        let disposition = answer.header("content-disposition").expect("a name");
        assert!(disposition.starts_with(&format!("attachment; filename=\"p.{format}\"")));
        sandbox.upload("archive", &answer.body).ok();
        sandbox.execute("import shutil; shutil.rmtree('/tmp/out', ignore_errors=True)");
        // bsdtar's and Info-ZIP's rules are Python's here: what is strange fails.
        let seen = sandbox.printed(&format!(
            "import json, tarfile, zipfile, os, hashlib\n\
             if '{format}' == 'zip':\n    \
                 z = zipfile.ZipFile('archive'); assert z.testzip() is None; z.extractall('/tmp/out')\n\
             else:\n    \
                 tarfile.open('archive').extractall('/tmp/out', filter='data')\n\
             seen = []\n\
             for root, dirs, files in os.walk('/tmp/out'):\n    \
                 for n in dirs + files:\n        \
                     p = os.path.join(root, n)\n        \
                     seen.append(os.fsencode(os.path.relpath(p, '/tmp/out')).decode('latin1'))\n\
             same = open('/tmp/out/d/big', 'rb').read() == open('p/d/big', 'rb').read()\n\
             print(json.dumps([sorted(seen), same]))"
        ));
        let long = "l".repeat(200);
        let mut expected = vec!["a.txt", "d", "d/big", "d/empty", "d/run", &long, "Ã¤"];
        expected.extend(if format == "zip" {
            &["d/%FF"][..]
        } else {
            &["d/\u{ff}", "d/in"]
        });
        expected.sort_unstable();
        assert_eq!(seen, json!([expected, true]), "{format}");
    }
    let whole = service.get(&sandbox.path("files/archive")).ok();
    assert!(whole.body.starts_with(b"PK"), "a ZIP file unless asked");
    for (query, status, code) in [
        ("?path=absent", 404, "file_not_found"),
        ("?path=p/a.txt", 400, "not_a_directory"),
        ("?path=p/out", 400, "symbolic_link"),
        ("?path=..", 400, "bad_path"),
        ("?path=/etc", 400, "bad_path"),
    ] {
        let answer = service.get(&sandbox.path(&format!("files/archive{query}")));
        answer.refused(status, code);
    }
    let other = service.get(&sandbox.path("files/archive?format=rar"));
    other.refused_field("format");
}

#[test]
fn archives_are_unpacked_where_they_are_to() {
    let service = Service::start();
    let sandbox = service.create();
    let entries = "('d/', D, None), ('d/a', F, b'1' * 5000), ('b', F, b'22'), ('d/in', L, '../b'), ('hard', H, 'b')";
    for (query, code) in [
        ("?path=x", format!("tar({entries})")),
        (
            "?path=x&format=tar",
            format!("tar({entries}, form=tarfile.GNU_FORMAT)"),
        ),
        ("?path=x/", format!("tar({entries}, mode='w:gz')")),
        (
            "?path=/home/user/x&format=tar.gz",
            format!("tar({entries}, mode='w:gz')"),
        ),
        (
            "?path=x&format=zip",
            "zipped(('d/', 0o40755, ''), ('d/a', 0o100644, b'1' * 5000), ('b', 0o100644, b'22'), \
             ('d/in', stat.S_IFLNK | 0o777, '../b'), ('hard', 0, b'22'))"
                .to_owned(),
        ),
    ] {
        let archive = made(&sandbox, &code);
        let answer = unpack(&sandbox, query, &archive).ok().json();
        let bytes = if query.contains("zip") { 5004 } else { 5002 };
        assert_eq!(
            (&answer["files"], &answer["bytes"]),
            (&json!(3), &json!(bytes)),
            "{query}"
        );
        let all = ["x", "x/b", "x/d", "x/d/a", "x/d/in", "x/hard"];
        assert_eq!(everything(&sandbox), all, "{query}");
        assert_eq!(
            sandbox.stdout(
                "print(os.readlink('x/d/in'), open('x/hard').read(), os.stat('x/d/a').st_uid)"
            ),
            "../b 22 1000\n"
        );
        sandbox.command("rm -rf x");
    }
    // Over what is there, beside what is there.
    sandbox.upload("d/old", b"old").ok();
    sandbox.upload("d/a", b"old").ok();
    let archive = made(&sandbox, "tar(('d/a', F, b'new'), ('d/e/b', F, b'new'))");
    unpack(&sandbox, "", &archive).ok();
    assert_eq!(everything(&sandbox), ["d", "d/a", "d/e", "d/e/b", "d/old"]);
    assert_eq!(sandbox.download("d/a").ok().body, b"new");
    let archive = made(&sandbox, "tar(('d', F, b'a file'))");
    unpack(&sandbox, "", &archive).refused(409, "file_exists");
    // Names of other times and places.
    let archive = made(
        &sandbox,
        "tar((os.fsdecode(b'n\\xff'), F, b'x'), ('l' * 150 + '/' + 'm' * 200, F, b'x'), form=tarfile.GNU_FORMAT)",
    );
    unpack(&sandbox, "?path=odd", &archive).ok();
    let odd = [
        "odd".to_owned(),
        format!("odd/{}", "l".repeat(150)),
        format!("odd/{0}/{1}", "l".repeat(150), "m".repeat(200)),
        "odd/n%FF".to_owned(),
    ];
    assert_eq!(everything(&sandbox)[5..], odd);
}

/// What archives can do to whoever trusts them.
const HOSTILE: [&str; 16] = [
    "tar(('../outside', F, b'x'))",
    "tar(('a/../../outside', F, b'x'))",
    "tar(('/home/user/outside', F, b'x'))",
    "tar(('out', L, '/home/user'), ('out/outside', F, b'x'))",
    "tar(('out', L, '..'), ('out/outside', F, b'x'))",
    "tar(('here', L, '.'), ('up', L, 'here/..'), ('up/outside', F, b'x'))",
    "tar(('in', L, 'd'), ('d', D, None), ('in/inside', F, b'x'))",
    "tar(('hard', H, '/home/user/secret'), ('hard', F, b'x'))",
    "tar(('hard', H, '../secret'))",
    "tar(('device', tarfile.CHRTYPE, None))",
    "tar(('fifo', tarfile.FIFOTYPE, None))",
    "tar(('../outside', F, b'x'), mode='w:gz')",
    "zipped(('../outside', 0o100644, b'x'))",
    "zipped(('/home/user/outside', 0o100644, b'x'))",
    "zipped(('out', stat.S_IFLNK | 0o777, '/home/user'), ('out/outside', 0o100644, b'x'))",
    "zipped(('fifo', stat.S_IFIFO | 0o644, b''))",
];

#[test]
fn hostile_archives_are_refused_and_leave_nothing() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("secret", b"secret").ok();
    for code in HOSTILE {
        let archive = made(&sandbox, code);
        let begun = Instant::now();
        let refused = unpack(&sandbox, "?path=target", &archive);
        refused.refused(400, "unsafe_archive");
        assert!(begun.elapsed() < SOON, "{code}");
        assert_eq!(everything(&sandbox), ["secret", "target"], "{code}");
        assert_eq!(sandbox.download("secret").ok().body, b"secret", "{code}");
    }
    // Permissions are kept as far as they are no privilege of others.
    let archive = made(
        &sandbox,
        "with tarfile.open('/tmp/archive', 'w') as t:\n    \
             info = tarfile.TarInfo('s'); info.mode = 0o6777; info.uid = 0; t.addfile(info)",
    );
    unpack(&sandbox, "?path=target", &archive).ok();
    let mode = "print(oct(os.stat('target/s').st_mode & 0o7777), os.stat('target/s').st_uid)";
    assert_eq!(sandbox.stdout(mode), "0o755 1000\n");
}

/// The corpus does what it says to a program that does not look.
#[test]
fn the_hostile_archives_are_hostile() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.upload("secret", b"secret").ok();
    for code in HOSTILE.iter().filter(|code| code.starts_with("tar(")) {
        if code.contains("device") || code.contains("FIFO") || code.contains("inside") {
            continue;
        }
        let archive = made(&sandbox, code);
        sandbox.upload("archive", &archive).ok();
        let harmed = sandbox.stdout(
            "import shutil\nos.mkdir('target')\n\
             tarfile.open('archive').extractall('target', filter='fully_trusted')\n\
             links = os.stat('secret').st_nlink\n\
             print(os.path.exists('outside') or links > 1 or open('secret').read() != 'secret')\n\
             shutil.rmtree('target'); os.remove('archive')\n\
             if os.path.exists('outside'): os.remove('outside')\n\
             open('secret', 'w').write('secret')",
        );
        assert_eq!(harmed, "True\n", "{code}");
    }
}

#[test]
fn what_is_no_archive_is_refused() {
    let service = Service::start();
    let sandbox = service.create();
    let tar = made(&sandbox, "tar(('a', F, b'x' * 100000))");
    let gzip = made(&sandbox, "tar(('a', F, os.urandom(100000)), mode='w:gz')");
    let zip = made(&sandbox, "zipped(('a', 0o100644, os.urandom(100000)))");
    let mut flipped = zip.clone();
    flipped[50_000] ^= 1;
    let mut wrong_sum = gzip.clone();
    let at = wrong_sum.len() - 6;
    wrong_sum[at] ^= 1;
    for (what, archive) in [
        (
            "text",
            &b"this is no archive at all, but it is long enough"[..],
        ),
        ("half a tar", &tar[..50_000]),
        ("half a gzip", &gzip[..50_000]),
        ("half a zip", &zip[..50_000]),
        ("a flipped bit", &flipped),
        ("a wrong sum", &wrong_sum),
    ] {
        let refused = unpack(&sandbox, "", archive);
        assert_eq!(refused.status, 400, "{what}: {}", refused.text());
        assert_eq!(refused.json()["code"], "bad_archive", "{what}");
        assert_eq!(everything(&sandbox), [""; 0], "{what}");
    }
    unpack(&sandbox, "?format=zip", &tar).refused(400, "bad_archive");
    unpack(&sandbox, "?format=tar", &gzip).refused(400, "bad_archive");
    unpack(&sandbox, "?format=7z", &tar).refused_field("format");
    unpack(&sandbox, "?path=..", &tar).refused(400, "bad_path");
    unpack(&sandbox, "?path=/etc", &tar).refused(400, "bad_path");
    assert_eq!(everything(&sandbox), [""; 0]);
}

#[test]
fn bombs_meet_the_limits_of_the_sandbox() {
    let service = Service::with_config("limits.inodes = 3000");
    let sandbox = service.create_with(&json!({ "disk_bytes": 16 << 20 }));
    let maker = service.create();
    // 1 GB of zeros from 1 MB; a name of 64 MB; many files; many entries of one file.
    let bombs = [
        (
            "import zipfile, os\nwith zipfile.ZipFile('/tmp/archive', 'w', zipfile.ZIP_DEFLATED) as z:\n    \
             with z.open('zeros', 'w') as f:\n        for _ in range(1000): f.write(bytes(1 << 20))",
            507,
        ),
        (
            "import tarfile, os, io\nclass Zeros(io.RawIOBase):\n    \
                 def readable(self): return True\n    \
                 def readinto(self, b): b[:] = bytes(len(b)); return len(b)\n\
             with tarfile.open('/tmp/archive', 'w:gz') as t:\n    \
                 i = tarfile.TarInfo('zeros'); i.size = 1000 << 20; t.addfile(i, Zeros())",
            507,
        ),
        (
            "import tarfile, os, io\nwith tarfile.open('/tmp/archive', 'w:gz') as t:\n    \
                 i = tarfile.TarInfo('././@LongLink'); i.type = b'L'; i.size = 64 << 20\n    \
                 t.addfile(i, io.BytesIO(b'n' * (64 << 20))); t.addfile(tarfile.TarInfo('x'))",
            400,
        ),
        (
            "import tarfile, os\nwith tarfile.open('/tmp/archive', 'w:gz') as t:\n    \
                 for n in range(5000): t.addfile(tarfile.TarInfo('same'))",
            413,
        ),
        (
            "import zipfile, os\nwith zipfile.ZipFile('/tmp/archive', 'w') as z:\n    \
                 for n in range(5000): z.writestr(f'f{n}', '')",
            413,
        ),
    ];
    for (code, status) in bombs {
        let archive = made(&maker, code);
        let begun = Instant::now();
        let refused = unpack(&sandbox, "", &archive);
        // A file that is larger than the disk is refused before the disk is full.
        let seen = if refused.status == 413 && status == 507 {
            507
        } else {
            refused.status
        };
        assert_eq!(seen, status, "{code}: {}", refused.text());
        assert!(begun.elapsed() < 3 * SOON, "{code}: {:?}", begun.elapsed());
        assert_eq!(everything(&sandbox), [""; 0], "{code}");
        sandbox.upload("room", &vec![1; 4 << 20]).ok();
        sandbox.command("rm room");
    }
    sandbox.assert_usable();
    service.assert_healthy();
}

#[test]
fn an_archive_that_breaks_off_leaves_nothing() {
    let service = Service::start();
    let sandbox = service.create();
    let archive = made(
        &sandbox,
        "tar(*[(f'f{n}', F, os.urandom(100000)) for n in range(30)])",
    );
    let path = sandbox.path("files/unpack?path=d");
    let length = archive.len().to_string();
    let request = Request {
        method: "POST",
        path: &path,
        headers: &[("Content-Length", &length)],
        body: b"",
    };
    let mut stream = service.connect();
    let head = crate::fixture::http::head(service.address, &request);
    std::io::Write::write_all(&mut stream, &head).expect("sent");
    std::io::Write::write_all(&mut stream, &archive[..1 << 20]).expect("sent");
    wait_until("it is being unpacked", SOON, || {
        everything(&sandbox).len() > 3
    });
    drop(stream);
    wait_until("it is given up", SOON, || everything(&sandbox) == ["d"]);
    // And all of it, when all of it comes.
    unpack(&sandbox, "?path=d", &archive).ok();
    assert_eq!(everything(&sandbox).len(), 31);
}

fn begin_archive(sandbox: &Sandbox<'_>) -> crate::fixture::http::Incoming {
    let path = sandbox.path("files/archive?format=tar");
    sandbox.service.begin(&Request {
        method: "GET",
        path: &path,
        ..Request::default()
    })
}

#[test]
fn a_file_that_changes_is_never_half_in_an_archive() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 512 << 20 }));
    sandbox.execute("open('a', 'wb').write(b'x' * (96 << 20))");
    let grows = begin_archive(&sandbox);
    sandbox.command("head -c 1000000 /dev/zero >> a");
    let whole = grows.finish().expect("it comes to its end");
    // What it was when it was opened: header, content, and the end of the archive.
    let size = whole.body.len();
    assert!((96 << 20..(96 << 20) + 32768).contains(&size), "{size}");
    let shrinks = begin_archive(&sandbox);
    sandbox.command("truncate -s 2000000 a");
    assert!(shrinks.finish().is_err(), "it is broken off");
    wait_until("no worker is left", SOON, || {
        sandbox.processes("init").len() == 1
    });
    sandbox.assert_usable();
}

#[test]
fn packing_takes_no_memory_of_the_service_and_ends_with_its_client() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 512 << 20 }));
    sandbox.execute(
        "import os\nfor n in range(4): open(f'f{n}', 'wb').write(os.urandom(1 << 20) * 64)",
    );
    let peak_kib = || -> u64 {
        let peak = service.process().status("VmHWM");
        let kib = peak
            .split_whitespace()
            .next()
            .and_then(|kib| kib.parse().ok());
        kib.expect("a number of KiB")
    };
    let before = peak_kib();
    let size = begin_archive(&sandbox)
        .finish()
        .expect("an archive")
        .body
        .len();
    assert!(size > 256 << 20, "{size}");
    let more = peak_kib().saturating_sub(before);
    assert!(more < 32 * 1024, "{more} KiB");
    let left = begin_archive(&sandbox);
    wait_until("it is packed", SOON, || {
        sandbox.processes("init").len() == 2
    });
    drop(left);
    wait_until("no worker is left", SOON, || {
        sandbox.processes("init").len() == 1
    });
    sandbox.assert_usable();
}
