//! The index that this host is configured to use, through the gateway, with the mirror's uv and pip.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use sandcell::mirror::Store;

use super::serving::Serving;
use crate::fixture::{base_mirror, mirrors_dir};

fn serving() -> Serving {
    let store = Store::open(mirrors_dir()).expect("the store can be read");
    let base = store.find_base().expect("it can").expect("it has a base");
    Serving::host(&base.record.default_index)
}

/// Sets up a mount namespace of its own in which `$ROOT` is read-only and `/tmp` is `$FRESH`, and runs the
/// arguments in it. The mirror's programs run on the mirror's libraries; the mirror itself stays as it is.
const IN_MIRROR: &str = r#"
mount --bind "$ROOT" "$ROOT" && mount -o remount,bind,ro "$ROOT" && mount --bind "$FRESH" "$ROOT/tmp" &&
mount --rbind /dev "$ROOT/dev" && mount --rbind /proc "$ROOT/proc" && exec chroot "$ROOT" "$@""#;

/// A program of the mirror with nothing of the host's settings: it knows the gateway and no other index.
/// What it writes is in `fresh`, its `/tmp`.
fn command(serving: &Serving, fresh: &Path) -> Command {
    let index = format!("http://{}/simple/", serving.address);
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            IN_MIRROR,
            "sh",
        ])
        .env_clear()
        .env("ROOT", base_mirror())
        .env("FRESH", fresh)
        .env("PATH", "/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/tmp")
        .env("UV_CACHE_DIR", "/tmp/uv")
        .env("UV_NO_CONFIG", "1")
        .env("UV_DEFAULT_INDEX", &index)
        .env("UV_PYTHON_DOWNLOADS", "never")
        .env("PIP_INDEX_URL", &index)
        .env("PIP_CONFIG_FILE", "/dev/null");
    command
}

fn fresh(serving: &Serving, name: &str) -> PathBuf {
    let fresh = serving.dir.path().join(name);
    std::fs::create_dir(&fresh).expect("a directory");
    fresh
}

fn install(serving: &Serving, name: &str, packages: &[&str]) -> Output {
    command(serving, &fresh(serving, name))
        .args(["uv", "pip", "install", "--python", "/opt/venv/bin/python3"])
        .args(["--target", "/tmp/target"])
        .args(packages)
        .output()
        .expect("unshare starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn uv_installs_and_the_second_time_nothing_is_downloaded() {
    let serving = serving();
    for (packages, file) in [
        (&["rich"][..], "rich/__init__.py"),
        (&["markupsafe"], "markupsafe/__init__.py"),
    ] {
        let first = install(&serving, &format!("first-{}", packages[0]), packages);
        assert!(first.status.success(), "{}", said(&first));
        let before = serving.gateway.stats();
        assert!(before.file_bytes > 0);
        let start = Instant::now();
        let name = format!("second-{}", packages[0]);
        let second = install(&serving, &name, packages);
        let took = start.elapsed();
        assert!(second.status.success(), "{}", said(&second));
        assert!(
            serving
                .dir
                .path()
                .join(name)
                .join("target")
                .join(file)
                .exists()
        );
        assert_eq!(
            serving.gateway.stats(),
            before,
            "something was fetched again"
        );
        eprintln!("second install of {packages:?}: {took:?}, upstream {before:?}");
    }
}

#[test]
fn a_name_that_the_index_does_not_have_is_told_so() {
    let serving = serving();
    let output = install(&serving, "missing", &["sandcell-no-such-package-4711"]);
    assert!(!output.status.success());
    let said = said(&output);
    assert!(
        said.contains("was not found in the package registry"),
        "{said}"
    );
}

#[test]
fn pip_installs_too() {
    let serving = serving();
    for round in ["first", "second"] {
        let before = serving.gateway.stats();
        let fresh = fresh(&serving, round);
        let output = command(&serving, &fresh)
            .args([
                "pip",
                "install",
                "--no-cache-dir",
                "--target",
                "/tmp/target",
            ])
            .args(["--disable-pip-version-check", "rich", "markupsafe"])
            .output()
            .expect("unshare starts");
        assert!(output.status.success(), "{}", said(&output));
        assert!(fresh.join("target/rich/__init__.py").exists());
        let nothing = serving.gateway.stats() == before;
        assert_eq!(nothing, round == "second", "{round}: {before:?}");
    }
}
