//! The log: where it goes, what it says and what never.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::fixture::http::Request;
use crate::fixture::{Service, temp_dir};

#[test]
fn a_file_is_the_owners_only_is_appended_to_and_opened_anew_after_a_rotation() {
    let dir = temp_dir();
    let file = dir.path().join("logs/sandcell.log");
    fs::create_dir(dir.path().join("logs")).expect("a directory can be made");
    fs::write(&file, "what was there\n").expect("a file can be written");
    fs::remove_file(&file).expect("removed");
    let config = |level: &str| {
        format!(
            "logging.file = '{}'\nlogging.level = '{level}'",
            file.display()
        )
    };
    let service = Service::with_config(&config("debug"));
    service.get("/sandboxes").ok();
    let text = || fs::read_to_string(&file).unwrap_or_default();
    assert!(text().contains("/sandboxes"), "{}", text());
    let mode = fs::metadata(&file)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        !service.log().contains("/sandboxes"),
        "it is not on standard error"
    );
    // As logrotate does it.
    let rotated = dir.path().join("logs/sandcell.log.1");
    fs::rename(&file, &rotated).expect("renamed");
    service.get("/mirrors").ok();
    assert!(!file.exists());
    service.process().signal(rustix::process::Signal::HUP);
    let longest = std::time::Duration::from_secs(10);
    crate::fixture::host::wait_until("a new file", longest, || text().contains("read again"));
    service.get("/sandboxes?again").ok();
    assert!(text().contains("/sandboxes") && !text().contains("/mirrors"));
    assert!(
        fs::read_to_string(&rotated)
            .expect("kept")
            .contains("/mirrors")
    );
}

#[test]
fn json_is_an_object_a_line_and_holds_no_key() {
    let dir = temp_dir();
    let file = dir.path().join("sandcell.log");
    let service = Service::with_config(&format!(
        "logging = {{ file = '{}', format = 'json', level = 'trace' }}\n\
         server.api_keys = ['s3cr3t-key']",
        file.display()
    ));
    for headers in [
        [("X-API-Key", "s3cr3t-key")],
        [("Authorization", "Bearer s3cr3t-key")],
    ] {
        service
            .send(&Request {
                method: "GET",
                path: "/sandboxes",
                headers: &headers,
                body: b"",
            })
            .ok();
    }
    let host = format!(
        "8000-0123456789abcdefghjkmnpqrs.localhost:{}",
        service.address.port()
    );
    let entered = service.send(&Request {
        method: "GET",
        path: "/?sandcell_key=s3cr3t-key",
        headers: &[("Host", &host)],
        body: b"",
    });
    assert_eq!(entered.status, 302);
    let text = fs::read_to_string(&file).expect("it is there");
    assert!(text.lines().count() > 2, "{text}");
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).expect("a JSON object");
        assert!(
            message["level"].is_string() && message["timestamp"].is_string(),
            "{line}"
        );
    }
    assert!(text.contains("/sandboxes"));
    assert!(!text.contains("s3cr3t"), "{text}");
}
