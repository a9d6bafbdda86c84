//! MCP, driven by the official client from PyPI in both generations of the protocol.

#[path = "fixture/mod.rs"]
mod fixture;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fixture::program::run;
use fixture::{Launch, Service};

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
/// Downloading and installing on a slow line.
const INSTALL: Duration = Duration::from_secs(300);
const FLOW: Duration = Duration::from_secs(240);

/// A virtual environment with the pinned client, made once and kept in `target/`.
fn python() -> PathBuf {
    let requirements = Path::new(CLIENTS).join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).expect("requirements");
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mcp-client");
    let python = venv.join("bin/python");
    // Written last: an interrupted installation is made again.
    let installed = venv.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|i| i == wanted) {
        return python;
    }
    let _ = fs::remove_dir_all(&venv);
    let made = run(
        Command::new("python3").args(["-m", "venv"]).arg(&venv),
        INSTALL,
    );
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(&requirements);
    let made = run(&mut install, INSTALL);
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::write(&installed, wanted).expect("a file can be written");
    python
}

#[track_caller]
fn drive(service: &Service, key: &[&str]) {
    let mut flow = Command::new(python());
    flow.arg(Path::new(CLIENTS).join("mcp_flow.py"))
        .arg(format!("http://{}/mcp", service.address))
        .args(key);
    let ran = run(&mut flow, FLOW);
    println!("{}", ran.stdout);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
}

#[test]
fn the_official_client_does_everything_with_a_key() {
    let service = Service::launch(&Launch {
        config: "server.api_keys = ['a-key']",
        preload: true,
        ..Launch::default()
    });
    drive(&service, &["a-key"]);
}
