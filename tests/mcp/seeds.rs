//! The third and the fourth seed's tools, driven by the official client as their users do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::clients::{CLIENTS, python};
use crate::fixture::index::Index;
use crate::fixture::program::run;
use crate::fixture::{Launch, Service, temp_dir};
use crate::rpc::call;

/// Packages come from the real index, in both generations of the protocol.
const FLOW: Duration = Duration::from_secs(600);

#[track_caller]
fn drive(flow: &str, service: &Service, path: &str, arguments: &[&Path]) {
    let mut command = Command::new(python());
    command
        .arg(Path::new(CLIENTS).join(flow))
        .arg(format!("http://{}{path}", service.address))
        .args(arguments);
    let ran = run(&mut command, FLOW);
    println!("{}", ran.stdout);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
}

#[test]
fn the_third_seeds_users_find_their_tools() {
    let service = Service::preloaded();
    drive("env_flow.py", &service, "/mcp/env", &[]);
}

#[test]
fn the_fourth_seeds_users_find_their_tools() {
    let outer = temp_dir();
    let local = outer.path().join("local");
    fs::create_dir(&local).expect("a directory can be made");
    let config = format!(
        "mcp.local_dirs = [{local:?}]\nmcp.project_files = 50\nmcp.project_bytes = 1048576\n\
         mcp.local_file_bytes = 1048576\nmcp.log_bytes = 16384"
    );
    let service = Service::launch(&Launch {
        config: &config,
        preload: true,
        ..Launch::default()
    });
    drive("workspace_flow.py", &service, "/mcp/workspace", &[&local]);
}

#[test]
fn an_environment_that_nobody_uses_is_closed() {
    let service = Service::with_config("mcp.env_idle_seconds = 2");
    let create = json!({ "name": "create_python_env", "arguments": {} });
    let made = call(&service, "/mcp/env", "tools/call", create);
    let id = made["structuredContent"]["container_id"].as_str();
    let run = json!({
        "name": "execute_python_code",
        "arguments": { "container_id": id, "code": "import time; time.sleep(3); print(1)" },
    });
    // While it runs something it is used.
    let ran = call(&service, "/mcp/env", "tools/call", run.clone());
    assert_eq!(ran["structuredContent"]["stdout"], "1\n", "{ran}");
    thread::sleep(Duration::from_secs(3));
    let ran = call(&service, "/mcp/env", "tools/call", run);
    assert_eq!(ran["isError"], true, "{ran}");
    let text = ran["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("create_python_env"), "{text}");
}

#[test]
fn dependencies_are_left_alone_where_the_operator_says_so() {
    let index = Index::start(&[("madeup", "answer = 42")]);
    let script = "python3 -c 'import madeup; print(madeup.answer)'";
    for (installs, wish, expected) in [
        ("true", json!(null), true),
        ("false", json!(null), false),
        ("false", json!(true), true),
        ("true", json!(false), false),
    ] {
        let config = format!("mcp.install_dependencies = {installs}\n{}", index.config());
        let service = Service::with_config(&config);
        let create = json!({ "name": "sandbox_initialize", "arguments": {} });
        let made = call(&service, "/mcp/workspace", "tools/call", create);
        let id = &made["structuredContent"]["container_id"];
        let run = json!({
            "name": "sandbox_exec",
            "arguments": { "container_id": id, "commands": [script], "install_dependencies": wish },
        });
        let ran = call(&service, "/mcp/workspace", "tools/call", run);
        let ran = &ran["structuredContent"];
        assert_eq!(ran["success"], expected, "{installs} {wish}: {ran}");
        let installed = ran["dependencies"][0]["installed"][0].as_str();
        assert_eq!(installed.is_some(), expected, "{ran}");
    }
}

#[test]
fn commands_run_where_the_index_cannot_be_reached() {
    let service = Service::with_config("packages.index_url = 'http://127.0.0.1:9/simple'");
    let create = json!({ "name": "sandbox_initialize", "arguments": {} });
    let made = call(&service, "/mcp/workspace", "tools/call", create);
    let id = &made["structuredContent"]["container_id"];
    let command = "python3 -c 'print(\"ran\"); import madeup'";
    let run = json!({
        "name": "sandbox_exec",
        "arguments": { "container_id": id, "commands": [command] },
    });
    let ran = call(&service, "/mcp/workspace", "tools/call", run);
    let ran = &ran["structuredContent"];
    assert_eq!(ran["results"][0]["stdout"], "ran\n", "{ran}");
    let told = &ran["dependencies"][0];
    assert_eq!(told["success"], false, "{ran}");
    let message = told["message"].as_str().expect("a sentence");
    assert!(message.starts_with("nothing was installed"), "{message}");
}
