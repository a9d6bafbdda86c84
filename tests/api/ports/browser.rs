//! A page in a real browser.

use std::process::Command;
use std::time::Duration;

use super::Server;
use crate::fixture::program::run;
use crate::fixture::{Service, temp_dir};

const PAGE: &[u8] = b"<!doctype html><title>t</title>\
    <link rel=stylesheet href=style.css><p id=p>not yet</p><script src=script.js></script>";
const STYLE: &[u8] = b"#p { color: rgb(1, 2, 3) }";
/// Writes down what it finds: its style, an answer of its server, its power over the service.
const SCRIPT: &[u8] = b"const p = document.getElementById('p');\
    const ask = url => fetch(url).then(r => r.text()).catch(() => 'refused');\
    addEventListener('load', async () => {\
        const color = getComputedStyle(p).color;\
        const own = await ask('data.txt');\
        const api = await ask(SERVICE + '/sandboxes');\
        let store; try { localStorage.x = 1; store = 'kept' } catch { store = 'none' }\
        p.textContent = [color, own.trim(), api, store, origin].join('|');\
    });";

/// The page's own words, after its scripts have run.
fn load(url: &str) -> String {
    let dir = temp_dir();
    let ran = run(
        Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
            .args(["--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--no-first-run", "--virtual-time-budget=20000"])
            .arg(format!("--user-data-dir={}", dir.path().display()))
            .arg(url),
        Duration::from_secs(90),
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout
}

#[test]
fn a_browser_loads_a_page_by_path_and_by_name() {
    let service = Service::start();
    let sandbox = service.create();
    let address = format!("http://{}", service.address);
    let script = format!("const SERVICE = '{address}';");
    for (name, content) in [
        ("index.html", PAGE),
        ("style.css", STYLE),
        ("script.js", &[script.as_bytes(), SCRIPT].concat()),
        ("data.txt", b"from inside"),
    ] {
        sandbox.upload(name, content).ok();
    }
    let server = Server::command(&sandbox, 8000, "exec python3 -m http.server 8000");
    let by_path = load(&format!("{address}{}", server.path("/")));
    assert!(
        by_path.contains("rgb(1, 2, 3)|from inside|refused|none|null"),
        "{by_path}"
    );
    let by_name = load(&format!("http://{}/", server.host()));
    let own = format!("http://{}", server.host());
    assert!(
        by_name.contains(&format!("rgb(1, 2, 3)|from inside|refused|kept|{own}")),
        "{by_name}"
    );
}
