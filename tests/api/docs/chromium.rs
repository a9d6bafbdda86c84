//! A headless Chromium, driven over the DevTools protocol.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

use crate::fixture::http::{self, Request};
use crate::fixture::temp_dir;

/// Longest start, and longest that a page may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A browser with one page.
pub struct Chromium {
    child: Child,
    _profile: TempDir,
    socket: WebSocket<TcpStream>,
    sent: u64,
    /// What the page reported so far: `method` and `params`.
    pub events: Vec<Value>,
}

impl Chromium {
    /// Starts one that finds no host but 127.0.0.1.
    pub fn start() -> Self {
        let profile = temp_dir();
        let child = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--no-first-run", "--window-size=1280,1600"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg("--remote-debugging-port=0")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium is installed");
        let port_file = profile.path().join("DevToolsActivePort");
        let port: u16 = until("chromium listens", || {
            let text = fs::read_to_string(&port_file).ok()?;
            text.lines().next()?.parse().ok()
        });
        let address = ([127, 0, 0, 1], port).into();
        let list = Request {
            method: "GET",
            path: "/json/list",
            ..Request::default()
        };
        let page = until("chromium has a page", || {
            let pages = http::begin(address, &list).ok()?.finish().ok()?.json();
            let mut pages = pages.as_array()?.iter();
            let page = pages.find(|page| page["type"] == "page")?;
            Some(page["webSocketDebuggerUrl"].as_str()?.to_owned())
        });
        let (socket, _) =
            tungstenite::client(page, http::connect(address)).expect("the page can be driven");
        let mut chromium = Self {
            child,
            _profile: profile,
            socket,
            sent: 0,
            events: Vec::new(),
        };
        for domain in ["Network", "Page", "Log", "Runtime"] {
            chromium.call(&format!("{domain}.enable"), json!({}));
        }
        chromium
    }

    /// Calls a method of the protocol and gives its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let call = json!({ "id": self.sent, "method": method, "params": params });
        let sent = self.socket.send(Message::text(call.to_string()));
        sent.expect("chromium takes calls");
        loop {
            let message = self.socket.read().expect("chromium answers");
            let Ok(text) = message.to_text() else {
                continue;
            };
            let Ok(value) = serde_json::from_str::<Value>(text) else {
                continue;
            };
            if value["id"] == self.sent {
                assert!(value.get("error").is_none(), "{method}: {value}");
                return value["result"].clone();
            }
            self.events.push(value);
        }
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let result = self.call("Runtime.evaluate", asked);
        assert!(
            result.get("exceptionDetails").is_none(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.eval(&format!("Boolean({expression})")) != true {
            if begun.elapsed() > PATIENCE {
                self.save_screenshot();
                let text = self.eval("document.body.innerText");
                panic!(
                    "never: {expression}\n{text}\n{:?}",
                    self.events_of("Log.entryAdded")
                );
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Clicks what a selector finds, once it is there.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let found = format!("document.querySelector({})", json!(selector));
        self.wait_for(&found);
        self.eval(&format!("{found}.click()"));
    }

    /// Types into what a selector finds.
    #[track_caller]
    pub fn write(&mut self, selector: &str, text: &str) {
        let found = format!("document.querySelector({})", json!(selector));
        self.wait_for(&found);
        self.eval(&format!("{found}.focus()"));
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Writes what it looks like to the file that `DOCS_SCREENSHOT` names.
    pub fn save_screenshot(&mut self) {
        let Some(path) = std::env::var_os("DOCS_SCREENSHOT") else {
            return;
        };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let picture = BASE64.decode(shot["data"].as_str().expect("a picture"));
        fs::write(path, picture.expect("Base64")).expect("a file can be written");
    }

    /// Parameters of all events of a kind so far.
    pub fn events_of(&self, method: &str) -> Vec<&Value> {
        let events = self.events.iter();
        let events = events.filter(|event| event["method"] == method);
        events.map(|event| &event["params"]).collect()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
