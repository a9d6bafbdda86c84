//! Pages of other origins, as browsers ask on their behalf.

use crate::fixture::Service;
use crate::fixture::http::{Answer, Request};

const KEY: &str = "a-long-enough-key";
/// What a page has to be able to read.
const EXPOSED: [&str; 5] = [
    "mcp-session-id",
    "etag",
    "content-disposition",
    "retry-after",
    "content-range",
];

fn preflight(service: &Service, origin: &str, method: &str, headers: &str) -> Answer {
    service.send(&Request {
        method: "OPTIONS",
        path: "/mcp",
        headers: &[
            ("Origin", origin),
            ("Access-Control-Request-Method", method),
            ("Access-Control-Request-Headers", headers),
            ("Access-Control-Request-Private-Network", "true"),
        ],
        body: b"",
    })
}

fn list(service: &Service, origin: &str, key: &str) -> Answer {
    service.send(&Request {
        method: "GET",
        path: "/sandboxes",
        headers: &[
            ("Origin", origin),
            ("Authorization", &format!("Bearer {key}")),
        ],
        body: b"",
    })
}

#[test]
fn a_listed_page_may_send_what_it_asks_for_and_read_the_answer() {
    let service = Service::with_config(&format!(
        "server.allowed_origins = ['https://app.example']\nserver.api_keys = ['{KEY}']"
    ));
    let origin = "https://app.example";
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        // No key comes with the question.
        let asked = "authorization,content-type,mcp-session-id,mcp-protocol-version";
        let answer = preflight(&service, origin, method, asked).ok();
        let of = |name: &str| answer.header(name).unwrap_or_default().to_ascii_lowercase();
        assert_eq!(of("access-control-allow-origin"), origin);
        assert_eq!(of("access-control-allow-credentials"), "true");
        assert_eq!(of("access-control-allow-headers"), asked);
        assert_eq!(of("access-control-allow-private-network"), "true");
        assert!(of("access-control-allow-methods").contains(&method.to_ascii_lowercase()));
        assert_eq!(of("access-control-max-age"), "600");
        assert!(of("vary").contains("origin"), "{}", of("vary"));
    }
    for key in [KEY, "wrong"] {
        // A refusal can be read too.
        let answer = list(&service, origin, key);
        assert_eq!(answer.status == 200, key == KEY);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert_eq!(
            answer.header("access-control-allow-credentials"),
            Some("true")
        );
        let exposed = answer.header("access-control-expose-headers");
        let exposed = exposed.expect("a list").to_ascii_lowercase();
        for name in EXPOSED {
            assert!(exposed.split(',').any(|e| e.trim() == name), "{exposed}");
        }
    }
    // The negative control: another page gets nothing of this.
    let answer = preflight(&service, "https://evil.example", "POST", "authorization");
    answer.refused(403, "origin_not_allowed");
    assert_eq!(answer.header("access-control-allow-origin"), None);
    assert_eq!(list(&service, "https://evil.example", KEY).status, 403);
}

#[test]
fn where_every_page_may_call_none_gets_credentials_with_it() {
    let service = Service::with_config(&format!(
        "server.allowed_origins = ['*']\nserver.api_keys = ['{KEY}']"
    ));
    for origin in ["https://any.example", "http://other.example:8080"] {
        preflight(&service, origin, "POST", "authorization").ok();
        let answer = list(&service, origin, KEY).ok();
        let allowed = answer.header("access-control-allow-origin");
        assert_eq!(allowed, Some(origin));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        list(&service, origin, "wrong").refused(401, "unauthorized");
    }
    let port = service.address.port();
    let inside = format!("http://8000-0123456789abcdefghjkmnpqrs.localhost:{port}");
    for origin in ["null", &inside] {
        list(&service, origin, KEY).refused(403, "origin_not_allowed");
    }
}

#[test]
fn every_page_needs_keys() {
    let dir = crate::fixture::temp_dir();
    let file = dir.path().join("sandcell.toml");
    std::fs::write(&file, "server.allowed_origins = ['*']").expect("a file can be written");
    let mut serve = std::process::Command::new(crate::fixture::SANDCELL);
    serve.args(["serve", "--port", "0", "--config"]).arg(&file);
    serve.arg("--data-dir").arg(dir.path());
    let longest = std::time::Duration::from_secs(20);
    let ran = crate::fixture::program::run(&mut serve, longest);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("needs api_keys"), "{}", ran.stderr);
}
