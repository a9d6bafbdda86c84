//! `/docs` in a real browser, and `/openapi.json` as it is served.

mod chromium;

use crate::fixture::http::Request;
use crate::fixture::{Launch, Service};
use chromium::Chromium;

const CREATE: &str = "#operations-sandboxes-create_sandbox";

/// Status of the last answer of an operation, as the page shows it.
fn status(operation: &str) -> String {
    let cell = format!("{operation} .live-responses-table tbody td.response-col_status");
    format!("(document.querySelector('{cell}') || {{}}).textContent")
}

#[test]
fn a_browser_without_the_internet_creates_a_sandbox_from_the_page() {
    let service = Service::launch(&Launch {
        config: "server.api_keys = ['a-key-of-sixteen-characters']",
        ..Launch::default()
    });
    let address = format!("http://{}", service.address);
    let mut page = Chromium::start();
    page.open(&format!("{address}/docs"));
    page.wait_for("document.querySelectorAll('.opblock').length > 30");
    page.click(&format!("{CREATE} .opblock-summary-control"));
    page.click(&format!("{CREATE} .try-out__btn"));
    page.click(&format!("{CREATE} .execute"));
    page.wait_for(&format!("{} === '401'", status(CREATE)));

    page.click(".auth-wrapper .authorize");
    page.write("#auth-bearer-value", "a-key-of-sixteen-characters");
    page.click("form:has(#auth-bearer-value) .authorize");
    page.click(".auth-container .btn-done");
    page.click(&format!("{CREATE} .execute"));
    page.wait_for(&format!("{} === '200'", status(CREATE)));

    let listed = service.send(&Request {
        method: "GET",
        path: "/sandboxes",
        headers: &[("X-API-Key", "a-key-of-sixteen-characters")],
        body: b"",
    });
    let listed = listed.ok().json();
    assert_eq!(
        listed.as_object().map(serde_json::Map::len),
        Some(1),
        "{listed}"
    );
    let shown = page.eval(&format!("document.querySelector('{CREATE}').textContent"));
    let shown = shown.as_str().expect("text");
    let id = listed.as_object().expect("an object").keys().next();
    assert!(
        id.is_some_and(|id| shown.contains(&**id)),
        "{listed}: {shown}"
    );

    page.eval(&format!(
        "document.querySelector('{CREATE}').scrollIntoView()"
    ));
    page.save_screenshot();
    let requests = page.events_of("Network.requestWillBeSent");
    assert!(requests.len() >= 6, "{requests:?}");
    for request in requests {
        let url = request["request"]["url"].as_str().expect("a URL");
        let inside = url.starts_with(&format!("{address}/")) || url.starts_with("data:");
        assert!(inside, "the page asks {url}");
    }
    for entry in page.events_of("Log.entryAdded") {
        let entry = &entry["entry"];
        // The 401 is one.
        assert!(
            entry["source"] == "network" || entry["level"] != "error",
            "{entry}"
        );
    }
    let thrown = page.events_of("Runtime.exceptionThrown");
    assert!(thrown.is_empty(), "{thrown:?}");
}

#[test]
fn the_page_and_the_description_need_no_key_and_nothing_else_goes_without() {
    let service = Service::with_config("server.api_keys = ['a-key-of-sixteen-characters']");
    let page = service.get("/docs").ok();
    let policy = page.header("content-security-policy").unwrap_or_default();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(
        !policy.contains("http") && !policy.contains('*'),
        "{policy}"
    );
    let document = service.get("/openapi.json").ok().json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let method = method.to_ascii_uppercase();
            let path = path.replace(['{', '}'], "");
            let answer = service.send(&Request {
                method: &method,
                path: &path,
                ..Request::default()
            });
            match operation.get("security") {
                Some(_) => assert_eq!(answer.status, 200, "{method} {path}"),
                None => {
                    answer.refused(401, "unauthorized");
                }
            }
        }
    }
}

#[test]
fn parts_of_the_page_come_packed_and_unpacked() {
    let service = Service::start();
    for (file, begins) in [
        ("swagger-ui.js", "/*! For license information"),
        ("swagger-ui.css", ".swagger-ui"),
        ("page.js", "SwaggerUIBundle"),
    ] {
        let path = format!("/docs/{file}");
        let plain = service.get(&path).ok();
        assert!(plain.text().starts_with(begins), "{file}");
        assert_eq!(plain.header("content-encoding"), None);
        let packed = service.send(&Request {
            method: "GET",
            path: &path,
            headers: &[("Accept-Encoding", "gzip, deflate")],
            body: b"",
        });
        if packed.header("content-encoding") == Some("gzip") {
            assert!(packed.body.len() * 3 < plain.body.len(), "{file}");
            assert!(packed.body.starts_with(&[0x1f, 0x8b]));
        } else {
            assert!(plain.body.len() < 4096, "{file} is sent as it is");
        }
    }
    service.get("/docs/other").refused(404, "not_found");
}
