//! How long sandboxes live, what is told of them, and what is left of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::host::wait_until;
use crate::fixture::http::{Answer, Request};
use crate::fixture::sandbox::Sandbox;

/// An end is exact to this.
const EXACT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(20);

fn link(service: &Service, query: &str) -> Answer {
    service.get(&format!("/sandbox/file?{query}"))
}

fn is_live(sandbox: &Sandbox<'_>) -> bool {
    sandbox
        .service
        .get(&format!("/sandbox/{}", sandbox.id))
        .status
        == 200
}

/// Waits for the end of a sandbox, and asserts that it comes `seconds` after `begun`.
#[track_caller]
fn ends_after(sandbox: &Sandbox<'_>, begun: Instant, seconds: u64) {
    wait_until("the sandbox ends", SOON, || !is_live(sandbox));
    let lived = begun.elapsed();
    let expected = Duration::from_secs(seconds);
    // The creation, and one more question of a machine full of tests.
    let most = expected + EXACT + Duration::from_millis(500);
    assert!(lived + EXACT > expected && lived < most, "{lived:?}");
}

#[test]
fn a_lease_begins_anew_as_long_as_asked() {
    let service = Service::start();
    let renew =
        |sandbox: &Sandbox<'_>, request: Value| service.post_json(&sandbox.path("renew"), &request);
    let longer = service.create_with(&json!({ "lease_seconds": 2 }));
    let shorter = service.create();
    let told = renew(&longer, json!({ "lease_seconds": 5 })).ok().json();
    let begun = Instant::now();
    assert_eq!(told["sandbox_id"], *longer.id);
    assert_ne!(told["expires_at"], longer.created["expires_at"]);
    let now = service.get(&format!("/sandbox/{}", longer.id)).ok().json();
    assert_eq!(now["expires_at"], told["expires_at"]);
    renew(&shorter, json!({ "lease_seconds": 2 })).ok();
    ends_after(&shorter, begun, 2);
    ends_after(&longer, begun, 5);
    // Without wishes, as long as it was.
    let again = service.create_with(&json!({ "lease_seconds": 3 }));
    std::thread::sleep(Duration::from_secs(2));
    service
        .post(&again.path("renew"), "application/json", b"")
        .ok();
    ends_after(&again, Instant::now(), 3);
    for (request, field) in [
        (json!({ "lease_seconds": 0 }), "lease_seconds"),
        (json!({ "lease_seconds": 1u64 << 40 }), "lease_seconds"),
        (json!({ "idle_seconds": 0 }), "idle_seconds"),
        (json!({ "seconds": 1 }), "seconds"),
    ] {
        let sandbox = service.create();
        renew(&sandbox, request).refused_field(field);
        sandbox.close().ok();
        renew(&sandbox, json!({})).refused(404, "sandbox_not_found");
    }
}

#[test]
fn an_idle_time_is_exact_and_can_be_changed() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "idle_seconds": 3 }));
    let begun = Instant::now();
    // What looks at it does not use it.
    wait_until("two seconds have passed", SOON, || {
        assert!(is_live(&sandbox));
        service.get("/sandboxes").ok();
        begun.elapsed() > Duration::from_secs(2)
    });
    // What works on its files does.
    sandbox.upload("f", b"x").ok();
    ends_after(&sandbox, Instant::now(), 3);
    let sandbox = service.create_with(&json!({ "idle_seconds": 60 }));
    let expires_at = sandbox.created["expires_at"].clone();
    let request = json!({ "idle_seconds": 2 });
    let renewed = service.post_json(&sandbox.path("renew"), &request).ok();
    assert_eq!(
        renewed.json()["expires_at"],
        expires_at,
        "the lease is as it was"
    );
    ends_after(&sandbox, Instant::now(), 2);
}

#[test]
fn sandboxes_are_described_and_found() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({
        "name": "mine", "memory_bytes": 256 << 20, "idle_seconds": 90, "lease_seconds": 100,
    }));
    let other = service.create();
    let described = service.get(&format!("/sandbox/{}", sandbox.id)).ok().json();
    assert_eq!(described["sandbox_id"], *sandbox.id);
    assert_eq!(described["name"], "mine");
    assert_eq!(described["state"], "idle");
    assert_eq!(described["mirror"], "default");
    let limits = &described["limits"];
    assert_eq!(limits["memory_bytes"], 256 << 20);
    assert_eq!(
        (&limits["idle_seconds"], &limits["lease_seconds"]),
        (&json!(90), &json!(100))
    );
    assert!(
        limits["cpus"].is_number() && limits["processes"].is_u64() && limits["disk_bytes"].is_u64()
    );
    let _busy = other.stream("import time; time.sleep(60)");
    let listed = |query: &str| -> Vec<String> {
        let all = service.get(&format!("/sandboxes{query}")).ok().json();
        all.as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect()
    };
    wait_until("it is busy", SOON, || {
        listed("?state=busy") == [other.id.clone()]
    });
    let mut both = [sandbox.id.clone(), other.id.clone()];
    both.sort();
    for (query, found) in [
        ("", &both[..]),
        ("?mirror=default", &both),
        ("?mirror=none", &[]),
        ("?name=mine", std::slice::from_ref(&sandbox.id)),
        ("?state=idle", std::slice::from_ref(&sandbox.id)),
        ("?name=mine&state=busy", &[]),
        ("?limit=1", &both[..1]),
        (&format!("?limit=1&after={}", both[0]), &both[1..]),
        (&format!("?after={}", both[1]), &[]),
    ] {
        assert_eq!(listed(query), found, "{query}");
    }
    service
        .get("/sandboxes?state=sleepy")
        .refused_field("state");
    service.get("/sandboxes?limit=0").refused_field("limit");
    service
        .get("/sandbox/nosuch")
        .refused(404, "sandbox_not_found");
}

#[test]
fn a_link_shows_a_file() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "name": "mine & yours" }));
    sandbox.upload("d/ä b.png", b"\x89PNG").ok();
    let id = &sandbox.id;
    for query in [
        format!("sandbox_id={id}&file_path=d/%C3%A4%20b.png"),
        format!("sandbox_id={id}&file_path=/app/results/d/%C3%A4+b.png"),
        format!("sandbox_id={id}&file_path=%2Fhome%2Fuser%2Fd%2F%C3%A4%20b.png"),
        "sandbox_name=mine+%26+yours&file_path=d/%C3%A4%20b.png".to_owned(),
    ] {
        let answer = link(&service, &query).ok();
        assert_eq!(answer.body, b"\x89PNG");
        assert_eq!(answer.header("content-type"), Some("image/png"));
        let disposition = answer.header("content-disposition").expect("one");
        assert_eq!(
            disposition,
            "inline; filename=\"_ b.png\"; filename*=UTF-8''%C3%A4%20b.png"
        );
    }
    for (query, status, code) in [
        (
            format!("sandbox_id={id}&file_path=absent"),
            404,
            "file_not_found",
        ),
        (format!("sandbox_id={id}&file_path=../x"), 400, "bad_path"),
        (
            format!("sandbox_id={id}&file_path=/etc/passwd"),
            400,
            "bad_path",
        ),
        (
            format!("sandbox_id={id}&file_path=d"),
            400,
            "not_a_regular_file",
        ),
        (
            "sandbox_id=nosuch&file_path=x".to_owned(),
            404,
            "sandbox_not_found",
        ),
        (
            "sandbox_name=nosuch&file_path=x".to_owned(),
            404,
            "sandbox_not_found",
        ),
    ] {
        link(&service, &query).refused(status, code);
    }
    link(&service, &format!("sandbox_id={id}")).refused_field("file_path");
    link(&service, "file_path=x").refused_field("sandbox_id");
    link(
        &service,
        &format!("sandbox_id={id}&sandbox_name=x&file_path=x"),
    )
    .refused_field("sandbox_id");
    // A name that two have means neither.
    let second = service.create_with(&json!({ "name": "mine & yours" }));
    let by_name = "sandbox_name=mine+%26+yours&file_path=x";
    link(&service, by_name).refused(409, "ambiguous_name");
    second.close().ok();
    link(&service, by_name).refused(404, "file_not_found");
}

/// What a sandbox writes is shown, and is no page of ours.
#[test]
fn what_is_shown_is_no_page_of_the_service() {
    let service = Service::start();
    let sandbox = service.create();
    for (name, mime) in [
        ("p.html", "text/html; charset=utf-8"),
        ("p.svg", "image/svg+xml"),
    ] {
        sandbox
            .upload(name, b"<script>alert(document.domain)</script>")
            .ok();
        let answer = link(
            &service,
            &format!("sandbox_id={}&file_path={name}", sandbox.id),
        )
        .ok();
        assert_eq!(answer.header("content-type"), Some(mime));
        let policy = answer.header("content-security-policy").expect("one");
        let rules: Vec<&str> = policy.split(';').map(str::trim).collect();
        assert!(
            rules.contains(&"sandbox"),
            "an origin of its own, no scripts: {policy}"
        );
        assert!(
            rules.contains(&"default-src 'none'"),
            "nothing is fetched: {policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(
            answer.header("cross-origin-resource-policy"),
            Some("same-site")
        );
    }
}

#[test]
fn links_into_sandboxes_that_have_ended_say_so() {
    let service = Service::start();
    let closed = service.create_with(&json!({ "name": "closed" }));
    let expired = service.create_with(&json!({ "lease_seconds": 1 }));
    let idle = service.create_with(&json!({ "idle_seconds": 1 }));
    closed.upload("f", b"x").ok();
    closed.close().ok();
    for (sandbox, why) in [(&closed, "closed"), (&expired, "lease"), (&idle, "idle")] {
        wait_until("it ends", SOON, || !is_live(sandbox));
        let by_id = format!("sandbox_id={}&file_path=f", sandbox.id);
        for answer in [sandbox.download("f"), link(&service, &by_id)] {
            let body = answer.refused(410, "sandbox_gone");
            let detail = body["detail"].as_str().expect("a text");
            assert!(detail.contains(why), "{detail}");
        }
        // Of what is no link, there is nothing to remember.
        service
            .get(&sandbox.path("files"))
            .refused(404, "sandbox_not_found");
    }
    link(&service, "sandbox_name=closed&file_path=f").refused(410, "sandbox_gone");
    let unknown = "0".repeat(26);
    service
        .get(&format!("/sandbox/{unknown}/download/f"))
        .refused(404, "sandbox_not_found");
    link(&service, &format!("sandbox_id={unknown}&file_path=f")).refused(404, "sandbox_not_found");
}

/// That a sandbox was there is its owner's to know.
#[test]
fn links_of_others_never_were() {
    let service = Service::with_config(
        "server.api_keys = [\"key-of-one-key-of-one-key-of-one\", \"key-of-two-key-of-two-key-of-two\"]",
    );
    let ask = |key: &str, method: &str, path: &str| {
        let bearer = format!("Bearer {key}");
        service.send(&Request {
            method,
            path,
            headers: &[("Authorization", &bearer)],
            body: b"",
        })
    };
    let (one, two) = (
        "key-of-one-key-of-one-key-of-one",
        "key-of-two-key-of-two-key-of-two",
    );
    let created = ask(one, "POST", "/sandbox/create").ok().json();
    let id = created["sandbox_id"].as_str().expect("an id");
    let name = created["name"].as_str().expect("a name");
    let paths = [
        format!("/sandbox/{id}/download/f"),
        format!("/sandbox/file?sandbox_id={id}&file_path=f"),
        format!("/sandbox/file?sandbox_name={name}&file_path=f"),
    ];
    for path in &paths {
        ask(one, "GET", path).refused(404, "file_not_found");
        ask(two, "GET", path).refused(404, "sandbox_not_found");
    }
    ask(one, "POST", &format!("/sandbox/{id}/close")).ok();
    for path in &paths {
        ask(one, "GET", path).refused(410, "sandbox_gone");
        ask(two, "GET", path).refused(404, "sandbox_not_found");
    }
    let renew = format!("/sandbox/{id}/renew");
    ask(two, "POST", &renew).refused(404, "sandbox_not_found");
}
