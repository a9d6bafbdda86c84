//! JSON-RPC by hand, as the stateless revision has it.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::http::{Answer, Request};

const VERSION: &str = "2026-07-28";

/// Sends one request to an endpoint; the parameters get the metadata that the revision asks for.
#[track_caller]
pub fn post(service: &Service, path: &str, method: &str, params: Value) -> Answer {
    post_as(service, None, path, method, params)
}

/// The same with a key.
#[track_caller]
pub fn post_as(
    service: &Service,
    key: Option<&str>,
    path: &str,
    method: &str,
    mut params: Value,
) -> Answer {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "1" },
    });
    let name = params["name"].as_str().or(params["uri"].as_str());
    let name = name.unwrap_or_default().to_owned();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", VERSION),
        ("Mcp-Method", method),
    ];
    if let Some(key) = key {
        headers.push(("X-API-Key", key));
    }
    if !name.is_empty() {
        headers.push(("Mcp-Name", &name));
    }
    service.send(&Request {
        method: "POST",
        path,
        headers: &headers,
        body: body.as_bytes(),
    })
}

/// The result of one request.
#[track_caller]
pub fn call(service: &Service, path: &str, method: &str, params: Value) -> Value {
    let answer = post(service, path, method, params).ok().json();
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}
