//! Keys: asked for as by the service, and never inside.

use super::{ECHO, Server};
use crate::fixture::http::Request;
use crate::fixture::{Service, host};

const KEY: &str = "a-long-enough-key";

#[test]
fn keys_are_asked_for_and_stay_outside() {
    let service = Service::with_config(&format!("server.api_keys = ['{KEY}']"));
    let key = ("X-API-Key", KEY);
    let json = ("Content-Type", "application/json");
    let post = |path: &str, body: &str| {
        let headers = &[key, json];
        let body = body.as_bytes();
        service
            .send(&Request {
                method: "POST",
                path,
                headers,
                body,
            })
            .ok()
            .json()
    };
    let id = post("/sandbox/create", "{}")["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let sandbox = service.sandbox(&id);
    let server = Server {
        sandbox: &sandbox,
        port: 8000,
    };
    let code = serde_json::json!({ "command": format!("exec python3 - <<'X'\n{ECHO}\nX\n") });
    post(&sandbox.path("processes"), &code.to_string());
    let get = |path: &str, headers: &[(&str, &str)]| {
        service.send(&Request {
            method: "GET",
            path,
            headers,
            body: b"",
        })
    };
    let path = server.path("/");
    host::wait_until("the server listens", super::SOON, || {
        get(&path, &[key]).status == 200
    });

    get(&path, &[]).refused(401, "unauthorized");
    get(&path, &[("Cookie", "sandcell_key=x")]).refused(401, "unauthorized");
    get(&format!("{path}?sandcell_key={KEY}"), &[]).refused(401, "unauthorized");
    server.get_by_name("/", &[]).refused(401, "unauthorized");
    server
        .get_by_name("/?sandcell_key=wrong", &[])
        .refused(401, "unauthorized");

    let bearer = format!("Bearer {KEY}");
    let ours: [&[(&str, &str)]; 3] = [
        &[key],
        &[("Authorization", &bearer)],
        &[("Authorization", &bearer), key],
    ];
    for headers in ours {
        for answer in [get(&path, headers), server.get_by_name("/", headers)] {
            assert!(!answer.ok().text().contains(KEY));
        }
    }
    // What is the server's own passes; this shows that the echo would show a key.
    let own = server
        .get_by_name("/", &[key, ("Authorization", "Bearer its-own")])
        .ok();
    assert!(own.text().contains("Bearer its-own"));
    // Whoever sends a key in a header is not led away with it.
    let away = "/headers?Location=https%3A%2F%2Fevil.example%2F";
    assert_eq!(server.get_by_name(away, &[key]).header("location"), None);

    let link = format!("/x?a=1&sandcell_key={KEY}&b=2");
    let entered = server.get_by_name(&link, &[]);
    assert_eq!(entered.status, 302);
    assert_eq!(entered.header("location"), Some("/x?a=1&b=2"));
    let cookie = entered.header("set-cookie").expect("a cookie");
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
        "{cookie}"
    );
    assert!(
        !cookie.contains(KEY) && !cookie.contains("Domain"),
        "{cookie}"
    );
    let pair = cookie.split(';').next().expect("a pair");
    let both = format!("own=1; {pair}");
    let seen = server
        .get_by_name("/x?a=1&b=2", &[("Cookie", &both)])
        .ok()
        .json();
    assert_eq!(seen["headers"]["cookie"], serde_json::json!(["own=1"]));
    // It is good for this name only, and not for the service.
    get("/sandboxes", &[("Cookie", pair)]).refused(401, "unauthorized");
    let other = server.host().replacen("8000", "8001", 1);
    get("/", &[("Host", &other), ("Cookie", pair)]).refused(401, "unauthorized");
    let away = server.get_by_name(away, &[("Cookie", pair)]);
    assert_eq!(away.header("location"), Some("https://evil.example/"));
}
