//! Requests that schemathesis makes up from `/openapi.json`: none may be answered with a 500, or in a way
//! that is not described. For half a minute; `FUZZ_SECONDS=300 cargo test --test api fuzz` does it longer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::fixture::Service;
use crate::fixture::http::Request;
use crate::fixture::program::run;

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
/// Downloading and installing on a slow line.
const INSTALL: Duration = Duration::from_secs(300);
const SECONDS: u64 = 30;
/// What may come on top: cases that run when the time is over, and the report.
const GRACE: Duration = Duration::from_secs(90);
/// Few and small sandboxes, no index, and code that ends soon.
const SMALL: &str = "
service.max_sandboxes = 6
packages.index_url = 'http://127.0.0.1:9/simple'
limits.memory_bytes = 268435456
limits.max_memory_bytes = 268435456
limits.max_cpus = 1.0
limits.processes = 64
limits.max_processes = 64
limits.disk_bytes = 134217728
limits.max_disk_bytes = 134217728
limits.timeout_seconds = 2
limits.max_timeout_seconds = 2
";

/// A virtual environment with the pinned program, made once and kept in `target/`.
fn schemathesis() -> PathBuf {
    let requirements = Path::new(CLIENTS).join("fuzz-requirements.txt");
    let wanted = fs::read_to_string(&requirements).expect("requirements");
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis");
    // Written last: an interrupted installation is made again.
    let installed = venv.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|i| i == wanted) {
        return venv.join("bin/schemathesis");
    }
    let _ = fs::remove_dir_all(&venv);
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&venv);
    let mut install = Command::new(venv.join("bin/python"));
    install
        .args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(&requirements);
    for mut step in [make, install] {
        let made = run(&mut step, INSTALL);
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    fs::write(&installed, wanted).expect("a file can be written");
    venv.join("bin/schemathesis")
}

#[test]
fn made_up_requests_are_answered_as_described() {
    let seconds = std::env::var("FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |s| s.parse().expect("FUZZ_SECONDS is a number"));
    let seed = std::env::var("FUZZ_SEED").unwrap_or_else(|_| "1".to_owned());
    let schemathesis = schemathesis();
    let service = Service::with_config(SMALL);
    let address = format!("http://{}", service.address);
    let mut fuzz = Command::new(schemathesis);
    fuzz.arg(format!("--config-file={CLIENTS}/fuzz.toml"))
        .args(["--no-color", "run"])
        .arg(format!("{address}/openapi.json"))
        .args(["--seed", &seed, "--workers", "1", "--no-shrink"])
        .args(["--max-time", &seconds.to_string()])
        .args(["--request-timeout", "20", "--generation-database", "none"])
        // Its answer has no end.
        .args(["--exclude-operation-id", "watch_files"])
        // A schema cannot say which packages there are, nor which limits are configured; and the hooks
        // swap ids, so that what was created is not always what is asked for.
        .arg("--exclude-checks=positive_data_acceptance,ensure_resource_availability")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .env("SCHEMATHESIS_HOOKS", "fuzz_hooks")
        .env("PYTHONPATH", CLIENTS)
        .env("FUZZ_SERVICE", &address);
    let ran = run(&mut fuzz, Duration::from_secs(seconds) + GRACE);
    println!("{}", ran.stdout);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(!service.log().contains("panicked"), "{}", service.log());
    // There may be as many sandboxes as the service takes.
    let left = service.get("/sandboxes").ok().json();
    for id in left.as_object().expect("sandboxes by id").keys() {
        service
            .post_json(&format!("/sandbox/{id}/close"), &serde_json::json!({}))
            .ok();
    }
    let mirrors = service.get("/mirrors").ok().json();
    for mirror in mirrors.as_array().expect("a list") {
        let id = mirror["mirror_id"].as_str().expect("an id");
        let path = format!("/mirrors/{id}");
        // The base stays, whoever asks.
        service.send(&Request {
            method: "DELETE",
            path: &path,
            ..Request::default()
        });
    }
    service.assert_healthy();
}
