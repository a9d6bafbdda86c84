//! With a canary outside, and ways that lead to it.

use super::*;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

/// `outer/canary`, and in `outer/listed` ways to it.
fn trap() -> (tempfile::TempDir, LocalDirs) {
    let outer = tempfile::tempdir().unwrap();
    let listed = outer.path().join("listed");
    fs::create_dir_all(listed.join("sub")).unwrap();
    fs::create_dir(outer.path().join("private")).unwrap();
    fs::write(outer.path().join("private/canary"), "canary").unwrap();
    fs::write(listed.join("sub/mine"), "mine").unwrap();
    symlink("../private/canary", listed.join("link")).unwrap();
    symlink("../private", listed.join("dir-link")).unwrap();
    symlink(outer.path().join("private"), listed.join("absolute")).unwrap();
    symlink("sub/mine", listed.join("inner")).unwrap();
    let dirs = LocalDirs::new([listed]);
    (outer, dirs)
}

fn read(dirs: &LocalDirs, path: &str) -> Result<String, Error> {
    let mut text = String::new();
    dirs.open_file(path)?.read_to_string(&mut text).unwrap();
    Ok(text)
}

const LINKED: [&str; 3] = ["link", "dir-link/canary", "absolute/canary"];

#[test]
fn files_inside_are_read_by_absolute_and_relative_paths() {
    let (outer, dirs) = trap();
    assert_eq!(read(&dirs, "sub/mine").unwrap(), "mine");
    assert_eq!(read(&dirs, "./sub//mine").unwrap(), "mine");
    let absolute = outer.path().join("listed/sub/mine");
    assert_eq!(read(&dirs, absolute.to_str().unwrap()).unwrap(), "mine");
    assert!(dirs.open_dir("sub").is_ok());
    assert!(dirs.open_dir(".").is_ok());
}

#[test]
fn what_is_hidden_is_neither_read_nor_written() {
    let (outer, dirs) = trap();
    let listed = outer.path().join("listed");
    std::fs::create_dir(listed.join(".git")).unwrap();
    std::fs::write(listed.join(".git/config"), "mine").unwrap();
    for path in [".git/config", "sub/.env", "./.git/../.git/config"] {
        assert!(read(&dirs, path).is_err(), "{path}");
        assert!(dirs.create(path).is_err(), "{path}");
    }
    // The negative control: with other names they are.
    assert!(dirs.create("./git/config").is_ok());
    assert_eq!(read(&dirs, "./sub/mine").unwrap(), "mine");
}

#[test]
fn nothing_outside_is_read() {
    let (outer, dirs) = trap();
    let outside = outer.path().to_str().unwrap();
    let lexical = [
        "../private/canary".to_owned(),
        "sub/../../private/canary".to_owned(),
        format!("{outside}/private/canary"),
        format!("{outside}/listed/../private/canary"),
        format!("{outside}/listedx"),
        "/etc/passwd".to_owned(),
        "/proc/self/environ".to_owned(),
        String::new(),
        "a\0b".to_owned(),
        "a/".repeat(2049),
    ];
    for path in &lexical {
        let e = read(&dirs, path).unwrap_err();
        assert_eq!(e.code, "local_path_not_allowed", "{path:?}: {e}");
        assert!(dirs.create(path).is_err() && dirs.open_dir(path).is_err());
    }
    for path in LINKED.into_iter().chain(["inner"]) {
        let e = read(&dirs, path).unwrap_err();
        assert_eq!(e.code, "symbolic_link", "{path:?}: {e}");
        assert!(dirs.create(path).is_err(), "{path}");
    }
    assert!(dirs.open_dir("dir-link").is_err());
    assert!(dirs.create("dir-link/new").is_err());
    assert!(!outer.path().join("private/new").exists());
    let none = LocalDirs::new([]);
    let e = none.open_file("sub/mine").unwrap_err();
    assert!(e.detail.contains("mcp.local_dirs"), "{e}");
}

/// Without what the kernel is asked for, the same links lead out: the test above proves something.
#[test]
fn control_without_the_flags_links_lead_out() {
    let (outer, mut dirs) = trap();
    dirs.resolve = ResolveFlags::empty();
    for path in LINKED {
        assert_eq!(read(&dirs, path).unwrap(), "canary", "{path}");
    }
    let file = dirs.create("dir-link/new").unwrap();
    file.place().unwrap();
    assert!(outer.path().join("private/new").exists());
}

#[test]
fn other_mounts_are_another_file_system() {
    let mut dirs = LocalDirs::new([PathBuf::from("/")]);
    let e = read(&dirs, "/proc/self/status").unwrap_err();
    assert_eq!(e.code, "local_path_not_allowed", "{e}");
    dirs.resolve = RESOLVE.difference(ResolveFlags::NO_XDEV);
    // `self` is a magic link: still refused. By number it is not, which is the control.
    assert!(read(&dirs, "/proc/self/status").is_err());
    assert!(read(&dirs, "/proc/1/status").is_ok());
}

#[test]
fn pipes_devices_and_directories_are_refused_at_once() {
    let (outer, dirs) = trap();
    let listed = outer.path().join("listed");
    let fifo = listed.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let device = nix::sys::stat::makedev(1, 5);
    let kind = nix::sys::stat::SFlag::S_IFCHR;
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::sys::stat::mknod(&listed.join("zero"), kind, mode, device).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(listed.join("socket")).unwrap();
    let begun = Instant::now();
    for path in ["fifo", "zero", "socket", "sub", "."] {
        let e = dirs.open_file(path).unwrap_err();
        assert_eq!(e.code, "not_a_regular_file", "{path}: {e}");
        assert!(dirs.create(path).is_err(), "{path}");
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(
        dirs.open_file("missing").unwrap_err().kind,
        ErrorKind::NotFound
    );
    assert_eq!(
        dirs.open_file("sub/mine/x").unwrap_err().kind,
        ErrorKind::NotFound
    );
}

#[test]
fn a_new_file_appears_whole_or_not_at_all() {
    let (outer, dirs) = trap();
    let listed = outer.path().join("listed");
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    let mut file = dirs.create("out/of/here.txt").unwrap();
    file.file.write_all(b"half").unwrap();
    drop(file);
    assert_eq!(names(&listed.join("out/of")), 0);
    let mut file = dirs.create("sub/mine").unwrap();
    file.file.write_all(b"replaced").unwrap();
    assert_eq!(read(&dirs, "sub/mine").unwrap(), "mine");
    file.place().unwrap();
    assert_eq!(read(&dirs, "sub/mine").unwrap(), "replaced");
    assert_eq!(names(&listed.join("sub")), 1);
    assert!(dirs.create("new/").is_err() && dirs.create(".").is_err());
}

/// A link that is swapped in and out leads nowhere at any moment.
#[test]
fn a_race_with_links_is_lost_by_whoever_swaps() {
    let (outer, dirs) = trap();
    let listed = outer.path().join("listed");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = fs::create_dir(listed.join("flip"));
                let _ = fs::write(listed.join("flip/canary"), "mine");
                let _ = fs::remove_dir_all(listed.join("flip"));
                let _ = symlink("../private", listed.join("flip"));
                let _ = fs::remove_file(listed.join("flip"));
            }
        });
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            if let Ok(text) = read(&dirs, "flip/canary") {
                assert_ne!(text, "canary");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
