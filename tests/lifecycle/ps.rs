//! `sandcell ps` and `sandcell kill`.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::program::{Ran, run};
use crate::fixture::{SANDCELL, Service};

fn sandcell(service: &Service, args: &[&str]) -> Ran {
    let mut command = Command::new(SANDCELL);
    command.args(args).arg("--data-dir").arg(service.data_dir());
    run(&mut command, Duration::from_secs(30))
}

#[test]
fn sandboxes_are_shown_and_closed_by_id_and_by_name() {
    let service = Service::start();
    let first = service.create_with(&json!({ "name": "the first" }));
    let second = service.create_with(&json!({ "name": "twin" }));
    let third = service.create_with(&json!({ "name": "twin", "lease_seconds": 7200 }));
    let shown = sandcell(&service, &["ps"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let lines: Vec<_> = shown.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", shown.stdout);
    assert!(lines[0].starts_with("ID ") && lines[0].contains("EXPIRES"));
    let third_line = lines.iter().find(|line| line.starts_with(&third.id));
    let words: Vec<_> = third_line.expect("its line").split_whitespace().collect();
    assert_eq!(words[1..3], ["twin", "idle"]);
    assert!(words[3].ends_with('s') && words[4] == "119m", "{words:?}");
    let json = sandcell(&service, &["ps", "--json"]);
    let list: Value = serde_json::from_str(&json.stdout).expect("JSON");
    let ids: Vec<_> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|s| s["id"].clone())
        .collect();
    assert_eq!(ids, [&*first.id, &*second.id, &*third.id]);

    // A name of two is nobody's; the others are closed all the same.
    let killed = sandcell(
        &service,
        &["kill", "the first", "twin", "nobody", &second.id],
    );
    assert_eq!(killed.code, Some(1), "{killed:?}");
    assert_eq!(killed.stdout, format!("{}\n{}\n", first.id, second.id));
    assert!(killed.stderr.contains("several") && killed.stderr.contains("nobody"));
    let killed = sandcell(&service, &["kill", "twin"]);
    assert_eq!(
        (killed.code, killed.stdout),
        (Some(0), format!("{}\n", third.id))
    );
    assert_eq!(service.get("/sandboxes").ok().json(), json!({}));
}

#[test]
fn a_key_shows_its_own_sandboxes_and_a_service_can_be_named() {
    let service = Service::with_config("server.api_keys = ['first-key', 'second-key']");
    let url = format!("http://{}", service.address);
    let mut create = Command::new(SANDCELL);
    create.args(["ps", "--url", &url, "--key", "first-key"]);
    assert_eq!(run(&mut create, Duration::from_secs(30)).code, Some(0));
    let created = service.send(&crate::fixture::http::Request {
        method: "POST",
        path: "/sandbox/create",
        headers: &[("X-API-Key", "first-key")],
        body: b"",
    });
    let id = created.ok().json()["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let with = |key: &str, args: &[&str]| {
        let mut command = Command::new(SANDCELL);
        command
            .args(args)
            .env("SANDCELL_URL", &url)
            .env("SANDCELL_API_KEY", key);
        run(&mut command, Duration::from_secs(30))
    };
    let shown = with("first-key", &["ps"]);
    assert!(
        shown.stdout.contains(&id) && shown.stdout.contains("key-1"),
        "{shown:?}"
    );
    assert!(!with("second-key", &["ps"]).stdout.contains(&id));
    assert_eq!(with("second-key", &["kill", &id]).code, Some(1));
    let refused = with("wrong", &["ps"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("401"), "{}", refused.stderr);
    assert_eq!(with("first-key", &["kill", &id]).code, Some(0));
}

#[test]
fn without_a_service_there_is_nothing_to_show() {
    let dir = crate::fixture::temp_dir();
    let mut command = Command::new(SANDCELL);
    command.args(["ps", "--data-dir"]).arg(dir.path());
    let ran = run(&mut command, Duration::from_secs(30));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no service runs on"), "{}", ran.stderr);
}
