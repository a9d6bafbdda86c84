//! Servers inside that do not speak as they should.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::Scene;
use crate::fixture::host::wait_until;
use crate::fixture::http::{self, Incoming, Request};
use crate::fixture::sandbox::Sandbox;

const CONFIG: &str = "limits.port_head_seconds = 2\nlimits.port_idle_seconds = 4";
/// Each path another way to answer wrongly.
const SERVER: &str = include_str!("ports/server.py");

#[track_caller]
fn serve(sandbox: &Sandbox<'_>) {
    sandbox.upload("server.py", SERVER.as_bytes()).ok();
    let process = json!({ "command": "exec python3 server.py" });
    let path = sandbox.path("processes");
    sandbox.service.post_json(&path, &process).ok();
    wait_until("it listens", Duration::from_secs(20), || {
        let ports = sandbox.service.get(&sandbox.path("ports")).ok().json();
        ports.as_array().is_some_and(|ports| ports.len() == 2)
    });
}

#[test]
fn answers_that_are_none_are_bad_gateways() {
    let scene = Scene::new(CONFIG);
    let attacker = scene.attacker(&json!({}));
    serve(&attacker);
    let get = |way: &str| {
        scene
            .service
            .get(&attacker.path(&format!("port/8000/{way}")))
    };
    get("well").ok();
    for way in [
        "nothing",
        "garbage",
        "old",
        "endless-head",
        "endless-header",
        "many-headers",
        "two-lengths",
        "bad-length",
        "odd-coding",
        "unasked",
        "half-a-head",
        "split",
    ] {
        let begun = Instant::now();
        let answer = get(way);
        assert_eq!(answer.status, 502, "{way}: {}", answer.text());
        answer.refused(502, "bad_answer");
        assert!(begun.elapsed() < Duration::from_secs(2), "{way}");
    }
    for way in ["silence", "slow-head", "informing"] {
        let begun = Instant::now();
        get(way).refused(504, "port_timeout");
        assert!(begun.elapsed() >= Duration::from_secs(2), "{way}");
        assert!(begun.elapsed() < Duration::from_secs(6), "{way}");
    }
    scene.assert_unharmed(&attacker);
}

#[test]
fn bodies_that_break_off_or_stand_still_have_no_good_end() {
    let scene = Scene::new(CONFIG);
    let attacker = scene.attacker(&json!({}));
    serve(&attacker);
    for way in ["half-a-body", "half-a-chunk", "bad-chunk", "still-body"] {
        let path = attacker.path(&format!("port/8000/{way}"));
        let begun = Instant::now();
        let request = Request {
            method: "GET",
            path: &path,
            ..Request::default()
        };
        // Where the end comes at once, the head may not have been sent.
        let answer = http::begin(scene.service.address, &request);
        assert!(answer.and_then(Incoming::finish).is_err(), "{way}");
        assert!(begun.elapsed() < Duration::from_secs(8), "{way}");
    }
    // More than it said is not taken for the answer to another request.
    let path = attacker.path("port/8000/too-much");
    assert_eq!(scene.service.get(&path).ok().text(), "abc");
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_server_that_takes_no_connections_is_given_up() {
    let scene = Scene::new(CONFIG);
    let attacker = scene.attacker(&json!({}));
    serve(&attacker);
    let path = attacker.path("port/8001/");
    // Its queue is full of its own connections.
    let answer = scene.service.get(&path);
    answer.refused(504, "port_timeout");
    scene.assert_unharmed(&attacker);
}
