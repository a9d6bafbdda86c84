//! Clients from npm, and the published conformance suite, on the Node that they want.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::clients::{CLIENTS, FLOW, python_of};
use crate::fixture::program::{Ran, run};
use crate::fixture::{SANDCELL, Service, mirrors_dir, temp_dir};

/// Downloading and installing on a slow line.
const INSTALL: Duration = Duration::from_secs(600);
const KEY: &str = "a-key";
const KEYED: &str = "server.api_keys = ['a-key']";
const SETS: [(&str, &str); 3] = [
    ("default", "/mcp"),
    ("env", "/mcp/env"),
    ("workspace", "/mcp/workspace"),
];

/// A directory with the pinned packages and the programs that use them; made once and kept below
/// `target/`.
fn node_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let from = Path::new(CLIENTS).join("node");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mcp-node");
        fs::create_dir_all(&dir).expect("a directory can be made");
        let wanted = fs::read_to_string(from.join("package-lock.json")).expect("a lock file");
        // Written last: an interrupted installation is made again.
        let installed = dir.join("installed.json");
        for file in fs::read_dir(&from).expect("a directory").flatten() {
            fs::copy(file.path(), dir.join(file.file_name())).expect("a file can be copied");
        }
        if !fs::read_to_string(&installed).is_ok_and(|i| i == wanted) {
            let mut install = Command::new("npm");
            install.current_dir(&dir);
            // Not `ci`: it wants an entry for a package of another system that has none to give.
            install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"]);
            let ran = run(&mut install, INSTALL);
            assert_eq!(ran.code, Some(0), "{ran:?}");
            fs::write(&installed, wanted).expect("a file can be written");
        }
        dir
    })
}

/// Node 22: the host's own may be older than what the programs want.
fn node_bin() -> PathBuf {
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "x64",
    };
    let package = format!("node_modules/node-linux-{arch}/bin");
    node_dir().join(package)
}

/// Runs a program with Node 22.
#[track_caller]
fn node(program: &str, args: &[&str]) -> Ran {
    let mut command = Command::new(node_bin().join("node"));
    let path = std::env::var("PATH").unwrap_or_default();
    // Some keep what they were told there.
    let home = temp_dir();
    command
        .current_dir(node_dir())
        .env("HOME", home.path())
        .env("PATH", format!("{}:{path}", node_bin().display()))
        .arg(node_dir().join(program))
        .args(args);
    run(&mut command, FLOW)
}

#[track_caller]
fn passes(ran: &Ran) {
    println!("{}", ran.stdout);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let complaints = ran.stderr.contains("unknown format");
    assert!(!complaints, "{}", ran.stderr);
}

/// `sandcell mcp` as a client starts it.
fn stdio_command(dir: &Path, more: &[&str]) -> Vec<String> {
    let config = dir.join("config.toml");
    fs::write(&config, "").expect("a file can be written");
    let paths = [&config, &dir.join("data"), mirrors_dir()].map(|p| p.display().to_string());
    let [config, data, mirrors] = paths;
    let options = [
        "--config",
        &config,
        "--data-dir",
        &data,
        "--mirrors-dir",
        &mirrors,
    ];
    let words = [SANDCELL, "mcp"].into_iter().chain(options);
    words
        .chain(more.iter().copied())
        .map(str::to_owned)
        .collect()
}

#[test]
fn both_generations_of_the_sdk_use_every_set_over_http() {
    let service = Service::with_config(KEYED);
    for program in ["v1.mjs", "v2.mjs"] {
        for (set, path) in SETS {
            let url = format!("http://{}{path}", service.address);
            passes(&node(program, &[set, "http", &url, KEY]));
        }
    }
}

#[test]
fn both_generations_of_the_sdk_use_the_older_transport() {
    let service = Service::with_config(KEYED);
    let url = format!("http://{}/sse", service.address);
    for program in ["v1.mjs", "v2.mjs"] {
        passes(&node(program, &["env", "sse", &url, KEY]));
    }
}

#[test]
fn both_generations_of_the_sdk_start_a_server_themselves() {
    for program in ["v1.mjs", "v2.mjs"] {
        for (set, _) in SETS {
            let dir = temp_dir();
            let command = stdio_command(dir.path(), &["--tools", set]);
            let mut args = vec![set, "stdio"];
            args.extend(command.iter().map(String::as_str));
            passes(&node(program, &args));
        }
    }
    // In front of a service.
    let service = Service::with_config(KEYED);
    let url = format!("http://{}", service.address);
    for program in ["v1.mjs", "v2.mjs"] {
        let dir = temp_dir();
        let command = stdio_command(dir.path(), &["--connect", &url, "--key", KEY]);
        let mut args = vec!["default", "stdio"];
        args.extend(command.iter().map(String::as_str));
        passes(&node(program, &args));
    }
}

#[test]
fn mcp_remote_passes_everything_on() {
    let service = Service::with_config(KEYED);
    let node = node_bin().join("node").display().to_string();
    let remote = node_dir().join("node_modules/.bin/mcp-remote");
    let remote = remote.display().to_string();
    let header = format!("Authorization: Bearer {KEY}");
    for (set, path, strategy) in [
        ("default", "/mcp", "http-only"),
        ("env", "/sse", "sse-only"),
        // It asks by HTTP, is refused, and falls back.
        ("env", "/sse", "http-first"),
    ] {
        let url = format!("http://{}{path}", service.address);
        let args = [
            set,
            "stdio",
            &node,
            &remote,
            &url,
            "--transport",
            strategy,
            "--allow-http",
            "--header",
            &header,
        ];
        passes(&self::node("v1.mjs", &args));
    }
}

#[test]
fn the_inspector_calls_tools_from_its_command_line() {
    let service = Service::with_config(KEYED);
    let header = format!("Authorization: Bearer {KEY}");
    let inspector = "node_modules/.bin/mcp-inspector";
    for (path, transport, tool) in [
        ("/mcp", "http", "create_sandbox"),
        ("/sse", "sse", "create_python_env"),
    ] {
        let url = format!("http://{}{path}", service.address);
        let at = ["--cli", &url, "--transport", transport, "--header", &header];
        let ask = |more: &[&str]| {
            let args: Vec<&str> = at.iter().chain(more).copied().collect();
            let ran = node(inspector, &args);
            passes(&ran);
            // It warns of schemas that not every client can use.
            assert!(!ran.stderr.contains("portability"), "{}", ran.stderr);
            ran.stdout
        };
        assert!(ask(&["--method", "tools/list"]).contains(tool));
        let made = ask(&["--method", "tools/call", "--tool-name", tool]);
        assert!(made.contains("_id"), "{made}");
        assert!(ask(&["--method", "prompts/list"]).contains("use_"));
        assert!(ask(&["--method", "resources/templates/list"]).contains("sandcell://"));
    }
}

#[test]
fn fastmcp_uses_every_set_over_every_transport() {
    let python = python_of("fastmcp.txt");
    let drive = |args: &[&str]| {
        let mut flow = Command::new(&python);
        flow.arg(Path::new(CLIENTS).join("fastmcp_flow.py"))
            .args(args);
        passes(&run(&mut flow, FLOW));
    };
    let service = Service::with_config(KEYED);
    for (set, path) in SETS {
        let url = format!("http://{}{path}", service.address);
        drive(&[set, "http", &url, KEY]);
        let dir = temp_dir();
        let command = stdio_command(dir.path(), &["--tools", set]);
        let mut args = vec![set, "stdio"];
        args.extend(command.iter().map(String::as_str));
        drive(&args);
    }
    let url = format!("http://{}/sse", service.address);
    drive(&["env", "sse", &url, KEY]);
}

#[test]
fn the_conformance_suite_passes() {
    let service = Service::start();
    let dir = temp_dir();
    let out = dir.path().display().to_string();
    let expected = Path::new(CLIENTS).join("conformance.yml");
    let expected = expected.display().to_string();
    for (_, path) in SETS {
        let url = format!("http://{}{path}", service.address);
        let args = [
            "server",
            "--url",
            &url,
            "--suite",
            "all",
            "--expected-failures",
            &expected,
            "-o",
            &out,
        ];
        passes(&node("node_modules/.bin/conformance", &args));
    }
}
