//! `sandcell mcp`: by itself, and in front of a service.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::host::{self, Process};
use crate::fixture::{Launch, SANDCELL, Service, mirrors_dir, temp_dir};

/// Longest start and longest orderly end, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client's server.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    dir: TempDir,
    family: Vec<Process>,
}

impl Server {
    fn start(data_dir: &Path, args: &[&str]) -> Self {
        let dir = temp_dir();
        let config = dir.path().join("config.toml");
        std::fs::write(&config, "").expect("a file can be written");
        let log = File::create(dir.path().join("log")).expect("a file can be made");
        // setpriv: a test run that is killed takes it along.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", SANDCELL, "mcp", "--config"])
            .arg(&config)
            .arg("--data-dir")
            .arg(data_dir)
            .arg("--mirrors-dir")
            .arg(mirrors_dir())
            .args(args)
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("setpriv exists");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            lines,
            dir,
            family: Vec::new(),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn write(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open");
        input.write_all(line.as_bytes()).expect("it reads");
        input.write_all(b"\n").expect("it reads");
    }

    fn send(&mut self, id: u64, method: &str, params: Value) {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(&message.to_string());
    }

    #[track_caller]
    fn answer(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|_| panic!("no answer\n{}", self.log()));
        let answer = serde_json::from_str::<Value>(&line);
        let answer = answer.unwrap_or_else(|e| panic!("{line:?} is not JSON: {e}"));
        assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
        answer
    }

    #[track_caller]
    fn call(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.send(id, method, params);
        let answer = self.answer();
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"].clone()
    }

    #[track_caller]
    fn tool(&mut self, id: u64, name: &str, arguments: Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let result = self.call(id, "tools/call", params);
        assert_eq!(result["isError"], false, "{result}\n{}", self.log());
        result["structuredContent"].clone()
    }

    #[track_caller]
    fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "by hand", "version": "1" },
        });
        let result = self.call(0, "initialize", params);
        assert_eq!(result["protocolVersion"], "2025-06-18", "{result}");
        self.write("{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}");
    }

    /// Makes a sandbox and calculates in it; gives its id.
    #[track_caller]
    fn works(&mut self) -> String {
        self.initialize();
        let made = self.tool(1, "create_sandbox", json!({}));
        let id = made["sandbox_id"].as_str().expect("an id").to_owned();
        let arguments = json!({ "sandbox_id": id, "code": "print(6 * 7)" });
        let answer = self.tool(2, "execute_python_code", arguments);
        assert_eq!(answer["stdout"], "42\n", "{answer}");
        self.family = host::descendants(self.child.id() as i32);
        id
    }

    /// Waits for its end, which must leave nothing.
    #[track_caller]
    fn ends(mut self, longest: Duration) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                break status;
            }
            assert!(begun.elapsed() < longest, "it goes on\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}\n{}", self.log());
        let left: Vec<_> = self.family.iter().filter(|p| p.exists()).collect();
        assert!(left.is_empty(), "processes are left: {left:?}");
        let name = format!("run-{}", self.child.id());
        let left = host::cgroups(&name);
        assert!(left.is_empty(), "cgroups are left: {left:?}");
    }

    #[track_caller]
    fn ends_at_eof(mut self) {
        drop(self.input.take());
        self.ends(PATIENCE);
    }
}

#[test]
fn it_serves_by_itself_and_ends_with_its_input() {
    let dir = temp_dir();
    let data = dir.path().join("data");
    let begun = Instant::now();
    let mut server = Server::start(&data, &[]);
    server.initialize();
    println!(
        "the first answer came after {} ms",
        begun.elapsed().as_millis()
    );
    assert!(begun.elapsed() < Duration::from_secs(20));
    // What is no message is no end either.
    server.write("");
    server.write("not JSON");
    server.works_again();
    server.ends_at_eof();
    let left = std::fs::read_dir(&data).expect("the directory").flatten();
    let left: Vec<_> = left
        .map(|entry| entry.file_name())
        .filter(|n| n != "packages")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

impl Server {
    #[track_caller]
    fn works_again(&mut self) {
        let made = self.tool(1, "create_sandbox", json!({}));
        let arguments = json!({ "sandbox_id": made["sandbox_id"], "code": "print(6 * 7)" });
        let answer = self.tool(2, "execute_python_code", arguments);
        assert_eq!(answer["stdout"], "42\n", "{answer}");
        self.family = host::descendants(self.child.id() as i32);
    }
}

#[test]
fn a_second_one_on_the_same_data_directory_works_too() {
    let dir = temp_dir();
    let mut first = Server::start(dir.path(), &[]);
    first.works();
    let mut second = Server::start(dir.path(), &[]);
    second.works();
    second.ends_at_eof();
    first.tool(3, "list_sandboxes", json!({}));
    first.ends_at_eof();
}

#[test]
fn code_that_runs_does_not_outlive_the_client() {
    for signal in [None, Some(Signal::TERM), Some(Signal::INT)] {
        let dir = temp_dir();
        let mut server = Server::start(dir.path(), &[]);
        let id = server.works();
        let arguments = json!({ "sandbox_id": id, "code": "while True: pass" });
        let params = json!({ "name": "execute_python_code", "arguments": arguments });
        server.send(3, "tools/call", params);
        std::thread::sleep(Duration::from_millis(500));
        server.family = host::descendants(server.child.id() as i32);
        match signal {
            None => server.ends_at_eof(),
            Some(signal) => {
                let pid = Pid::from_raw(server.child.id() as i32).expect("a pid");
                kill_process(pid, signal).expect("it runs");
                server.ends(PATIENCE);
            }
        }
    }
}

#[test]
fn each_set_of_tools_is_served() {
    for (set, tool) in [
        ("env", "create_python_env"),
        ("workspace", "sandbox_initialize"),
    ] {
        let dir = temp_dir();
        let mut server = Server::start(dir.path(), &["--tools", set]);
        server.initialize();
        server.tool(1, tool, json!({}));
        server.ends_at_eof();
    }
}

#[test]
fn it_passes_on_to_a_service_that_runs() {
    let service = Service::with_config("server.api_keys = ['a-key']");
    let address = format!("http://{}", service.address);
    let other = temp_dir();
    let (of_service, other) = (service.data_dir().to_owned(), other.path().to_owned());
    for (data, args) in [
        (&of_service, &["--key", "a-key"][..]),
        (&other, &["--connect", &address, "--key", "a-key"][..]),
    ] {
        let mut server = Server::start(data, args);
        let id = server.works();
        let listed = service.send(&crate::fixture::http::Request {
            method: "GET",
            path: "/sandboxes",
            headers: &[("X-API-Key", "a-key")],
            body: b"",
        });
        assert!(
            listed.ok().json()[&id].is_object(),
            "the sandbox is not the service's"
        );
        server.write("[]");
        assert_eq!(server.answer()["error"]["code"], -32600);
        server.ends_at_eof();
    }
}

#[test]
fn a_service_that_cannot_be_used_is_told_of() {
    let service = Service::launch(&Launch {
        config: "server.api_keys = ['a-key']",
        ..Launch::default()
    });
    let address = format!("http://{}", service.address);
    let dir = temp_dir();
    let unreachable = ["--connect", "http://127.0.0.1:1"];
    let keyless = ["--connect", &*address, "--key", "another"];
    for (args, said) in [(unreachable.as_slice(), "127.0.0.1:1"), (&keyless, "401")] {
        let mut server = Server::start(dir.path(), args);
        server.send(0, "initialize", json!({}));
        let answer = server.answer();
        assert_eq!(answer["id"], 0);
        let text = answer["error"]["message"].as_str().expect("a text");
        assert!(text.contains(said), "{text}");
        server.ends_at_eof();
    }
}

#[test]
fn local_paths_are_those_of_the_directory_it_was_started_in() {
    let data = temp_dir();
    let mut server = Server::start(data.path(), &["--tools", "workspace"]);
    std::fs::write(server.dir.path().join("table.csv"), "a,b\n").expect("a file can be written");
    server.initialize();
    let made = server.tool(1, "sandbox_initialize", json!({}));
    let id = &made["container_id"];
    let arguments = json!({ "container_id": id, "local_src_file": "table.csv" });
    let copied = server.tool(2, "copy_file", arguments);
    assert_eq!(copied["file_size"], 4, "{copied}");
    let arguments = json!({
        "container_id": id,
        "container_src_path": "table.csv",
        "local_dest_path": "./output/copy.csv",
    });
    server.tool(3, "copy_file_from_sandbox", arguments);
    let copy = std::fs::read_to_string(server.dir.path().join("output/copy.csv"));
    assert_eq!(copy.expect("a copy"), "a,b\n");
    let arguments = json!({ "container_id": id, "local_src_file": "/etc/passwd" });
    let params = json!({ "name": "copy_file", "arguments": arguments });
    let refused = server.call(4, "tools/call", params);
    assert_eq!(refused["isError"], true, "{refused}");
    server.family = host::descendants(server.child.id() as i32);
    server.ends_at_eof();
}
