//! Each endpoint has its own tools and its own sessions.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{Answer, Request};
use crate::rpc::call;

fn names(service: &Service, path: &str) -> Vec<String> {
    let listed = call(service, path, "tools/list", json!({}));
    let tools = listed["tools"].as_array().expect("a list").iter();
    tools
        .map(|tool| tool["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn each_endpoint_has_tools_of_its_own() {
    let service = Service::start();
    for (path, first, of_another) in [
        ("/mcp", "create_sandbox", "create_python_env"),
        ("/mcp/env", "create_python_env", "create_sandbox"),
        ("/mcp/workspace", "sandbox_initialize", "create_sandbox"),
    ] {
        let names = names(&service, path);
        assert!(names.iter().any(|name| name == first), "{path}: {names:?}");
        assert!(
            !names.iter().any(|name| name == of_another),
            "{path}: {names:?}"
        );
        let made = call(
            &service,
            path,
            "tools/call",
            json!({ "name": first, "arguments": {} }),
        );
        assert_eq!(made["isError"], false, "{made}");
        let made = &made["structuredContent"];
        let id = made["sandbox_id"]
            .as_str()
            .or(made["container_id"].as_str());
        assert!(id.is_some_and(|id| !id.is_empty()), "{made}");
        let refused = crate::rpc::post(
            &service,
            path,
            "tools/call",
            json!({ "name": of_another, "arguments": {} }),
        );
        assert!(
            refused.json()["error"]["code"].is_i64(),
            "{}",
            refused.text()
        );
    }
}

#[test]
fn a_session_belongs_to_its_endpoint() {
    let service = Service::start();
    let session = |path: &str| {
        let answer = legacy(&service, path, None, 1, "initialize", initialize());
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = answer.header("mcp-session-id").expect("a session");
        id.to_owned()
    };
    let (default, env) = (session("/mcp"), session("/mcp/env"));
    for (path, id, status) in [
        ("/mcp", &default, 200),
        ("/mcp/env", &env, 200),
        ("/mcp/env", &default, 404),
        ("/mcp/workspace", &env, 404),
        ("/mcp", &env, 404),
    ] {
        let answer = legacy(&service, path, Some(id), 2, "tools/list", json!({}));
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
}

fn initialize() -> Value {
    json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": { "name": "by hand", "version": "1" },
    })
}

/// A request of an older revision.
fn legacy(
    service: &Service,
    path: &str,
    session: Option<&str>,
    id: u64,
    method: &str,
    params: Value,
) -> Answer {
    let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let body = body.to_string();
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
    ];
    if let Some(session) = session {
        headers.push(("Mcp-Session-Id", session));
        headers.push(("MCP-Protocol-Version", "2025-06-18"));
    }
    service.send(&Request {
        method: "POST",
        path,
        headers: &headers,
        body: body.as_bytes(),
    })
}
