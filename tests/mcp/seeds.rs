//! The third and the fourth seed's tools, driven by the official client as their users do.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clients::{CLIENTS, python};
use crate::fixture::index::Index;
use crate::fixture::program::run;
use crate::fixture::{Launch, Service, temp_dir};
use crate::rpc::{call, post_as};

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

/// Calls a tool with a key; gives its result.
#[track_caller]
fn tool(service: &Service, key: &str, path: &str, name: &str, arguments: &Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    let answer = post_as(service, Some(key), path, "tools/call", params);
    answer.ok().json()["result"].clone()
}

/// The least that a tool takes, for a container.
fn arguments(schema: &Value, container: &str, workspace: &str) -> Value {
    let mut arguments = json!({});
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().expect("a name");
        arguments[name] = match schema["properties"][name]["type"].as_str() {
            Some("array") => json!(["true"]),
            _ if name == "container_id" => json!(container),
            _ if name == "workspace_id" => json!(workspace),
            _ => json!("x"),
        };
    }
    arguments
}

#[test]
fn containers_are_their_keys_alone() {
    let service = Service::with_config("server.api_keys = ['key-of-one', 'key-of-two']");
    let (one, two) = ("key-of-one", "key-of-two");
    let open = |key| {
        let made = tool(
            &service,
            key,
            "/mcp/workspace",
            "sandbox_initialize",
            &json!({}),
        );
        let text = |name: &str| made["structuredContent"][name].as_str().map(str::to_owned);
        let ids = text("container_id").zip(text("workspace_id"));
        ids.unwrap_or_else(|| panic!("{made}"))
    };
    let (container, workspace) = open(one);
    let again = open(one);
    assert_eq!(
        again.0, container,
        "a key's lasting container stays the same"
    );
    let others = open(two);
    assert_ne!(others.0, container);
    let create = tool(&service, one, "/mcp/env", "create_python_env", &json!({}));
    let env = create["structuredContent"]["container_id"].as_str();
    let env = env.expect("an id").to_owned();
    let unknown = "0".repeat(26);
    for (path, container, words) in [
        (
            "/mcp/workspace",
            &container,
            ["container_not_found", "workspace_not_found"],
        ),
        ("/mcp/env", &env, ["sandbox_not_found", "sandbox_not_found"]),
    ] {
        let listed = post_as(&service, Some(two), path, "tools/list", json!({}));
        let listed = listed.ok().json()["result"]["tools"].clone();
        let tools = listed.as_array().expect("a list");
        let takes = |tool: &&Value| tool["inputSchema"]["properties"]["container_id"].is_object();
        let tools: Vec<&Value> = tools.iter().filter(takes).collect();
        assert!(tools.len() >= 3, "{listed}");
        // Those that end it last.
        let ends = |name: &str| ["clean_workspace", "sandbox_stop"].contains(&name);
        for end in [false, true] {
            for told in &tools {
                let name = told["name"].as_str().expect("a name");
                if ends(name) != end {
                    continue;
                }
                let schema = &told["inputSchema"];
                let ask = |key: &str, container: &str| {
                    let arguments = arguments(schema, container, &workspace);
                    tool(&service, key, path, name, &arguments).to_string()
                };
                let strange = ask(two, container);
                assert!(
                    words.iter().any(|word| strange.contains(word)),
                    "{name}: {strange}"
                );
                let same = ask(two, &unknown).replace(&unknown, container);
                assert_eq!(strange, same, "{name}");
                // The negative control.
                let own = ask(one, container);
                assert!(
                    !words.iter().any(|word| own.contains(word)),
                    "{name}: {own}"
                );
            }
        }
    }
}
