//! Tools called over plain HTTP, as the second seed's README does it.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::http::{self, Answer, Request};
use crate::fixture::{Launch, Service};

#[track_caller]
fn tool(service: &Service, name: &str, arguments: &Value) -> Answer {
    service.post_json(&format!("/mcp/tools/{name}"), arguments)
}

#[track_caller]
fn create(service: &Service) -> String {
    let made = service.post("/mcp/tools/create_sandbox", "text/plain", b"");
    let made = made.ok().json();
    made["sandbox_id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_tool_answers_with_its_structured_result() {
    let service = Service::launch(&Launch {
        preload: true,
        ..Launch::default()
    });
    let id = create(&service);
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('drawn')\n6 * 7";
    let arguments = json!({ "sandbox_id": id, "code": code });
    let answer = tool(&service, "execute_python_code", &arguments)
        .ok()
        .json();
    assert_eq!(answer["stdout"], "drawn\n", "{answer}");
    assert_eq!(answer["results"][0]["text"], "42");
    assert_eq!(answer["image_count"], 1);
    assert_eq!(answer["images"][0]["mime_type"], "image/png");
    let data = answer["images"][0]["data"].as_str().expect("base64");
    assert!(data.starts_with("iVBORw0KGgo"), "{data:.20}");
    // A Python exception is an answer.
    let arguments = json!({ "sandbox_id": id, "code": "1 / 0" });
    let answer = tool(&service, "execute_python_code", &arguments)
        .ok()
        .json();
    assert_eq!(answer["error"], "ZeroDivisionError");
    assert_eq!(answer["images"], json!([]));
    let listed = service.post("/mcp/tools/list_sandboxes", "text/plain", b"");
    assert_eq!(listed.ok().json()["sandboxes"][0]["sandbox_id"], id);
    let arguments = json!({ "sandbox_id": id, "command": "exit 3" });
    let answer = tool(&service, "execute_terminal_command", &arguments);
    assert_eq!(answer.ok().json()["exit_code"], 3);
}

#[test]
fn refusals_are_those_of_the_rest_routes() {
    let service = Service::start();
    let id = create(&service);
    tool(&service, "no_such_tool", &json!({})).refused(404, "tool_not_found");
    tool(&service, "create_python_env", &json!({})).refused(404, "tool_not_found");
    service
        .get("/mcp/tools/create_sandbox")
        .refused(405, "method_not_allowed");
    let unknown = json!({ "sandbox_id": "a".repeat(26), "code": "1" });
    let refused = tool(&service, "execute_python_code", &unknown);
    let detail = refused.refused(404, "sandbox_not_found")["detail"].to_string();
    assert!(!detail.contains("(sandbox_not_found)"), "{detail}");
    for (field, arguments) in [
        ("code", json!({ "sandbox_id": id })),
        ("code", json!({ "sandbox_id": id, "code": 1 })),
        (
            "nonsense",
            json!({ "sandbox_id": id, "code": "1", "nonsense": 1 }),
        ),
        (
            "timeout_seconds",
            json!({ "sandbox_id": id, "code": "1", "timeout_seconds": "soon" }),
        ),
        (
            "timeout_seconds",
            json!({ "sandbox_id": id, "code": "1", "timeout_seconds": -1 }),
        ),
    ] {
        tool(&service, "execute_python_code", &arguments).refused_field(field);
    }
    tool(&service, "create_sandbox", &json!([])).refused(422, "invalid_body");
    service
        .post("/mcp/tools/create_sandbox", "application/json", b"{")
        .refused(400, "malformed_json");
    service
        .post("/mcp/tools/create_sandbox", "text/plain", b"{}")
        .refused(400, "unsupported_content_type");
}

#[test]
fn a_client_that_hangs_up_interrupts_its_code() {
    let service = Service::start();
    let id = create(&service);
    let body = json!({ "sandbox_id": id, "code": "while True: pass" }).to_string();
    let request = Request {
        method: "POST",
        path: "/mcp/tools/execute_python_code",
        headers: &[("Content-Type", "application/json")],
        body: body.as_bytes(),
    };
    let mut connection = service.connect();
    let mut bytes = http::head(service.address, &request);
    bytes.extend_from_slice(request.body);
    connection.write_all(&bytes).expect("the service reads");
    let state = || service.get("/sandboxes").ok().json()[&id]["state"].clone();
    let begun = Instant::now();
    while state() != "busy" {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "the code does not run"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    // The control: with its client there, it goes on.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(state(), "busy");
    drop(connection);
    let begun = Instant::now();
    while state() != "idle" {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "the code still runs"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
