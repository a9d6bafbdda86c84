//! Network policies: what user code can and cannot reach, whatever it tries.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::http::Request;
use crate::fixture::sandbox::Sandbox;
use crate::fixture::{Launch, Service, temp_dir};

/// A host's own server on loopback, which counts who reaches it and then sends without end.
struct Canary {
    address: SocketAddr,
    visits: Arc<AtomicUsize>,
}

impl Canary {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let visits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&visits);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                    while stream.write_all(b"tick\n").is_ok() {
                        thread::sleep(Duration::from_millis(5));
                    }
                });
            }
        });
        Self { address, visits }
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

#[track_caller]
fn set(sandbox: &Sandbox<'_>, policy: &Value) -> Value {
    let body = policy.to_string();
    let path = sandbox.path("network");
    let answer = sandbox.service.send(&Request {
        method: "PUT",
        path: &path,
        headers: &[("Content-Type", "application/json")],
        body: body.as_bytes(),
    });
    answer.ok().json()
}

/// Everything that user code may try beside the proxy; prints what got out.
fn attempts(port: u16, abstract_name: &str) -> String {
    format!(
        r#"
import socket, struct, subprocess
got = []
def attempt(name, act):
    try:
        act(); got.append(name)
    except OSError:
        pass
def tcp(family, address):
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(1); s.connect(address)
def udp(family, address):
    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(0.3)
    s.sendto(b'\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01', address); s.recv(512)
for address in ['127.0.0.1', '169.254.169.254', '93.184.216.34', '10.0.0.1', '0.0.0.0']:
    attempt('tcp ' + address, lambda: tcp(socket.AF_INET, (address, {port})))
    attempt('udp ' + address, lambda: udp(socket.AF_INET, (address, 53)))
for address in ['::1', '::ffff:127.0.0.1', 'fe80::1', '2606:4700:4700::1111']:
    attempt('tcp ' + address, lambda: tcp(socket.AF_INET6, (address, {port})))
    attempt('udp ' + address, lambda: udp(socket.AF_INET6, (address, 53)))
attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP))
attempt('icmp raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
def ping():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.settimeout(0.3)
    s.sendto(struct.pack('!BBHHH', 8, 0, 0xf7ff, 0, 0), ('93.184.216.34', 0)); s.recv(100)
attempt('icmp', ping)
attempt('packet', lambda: socket.socket(17, socket.SOCK_RAW))
attempt('netlink', lambda: socket.socket(16, socket.SOCK_RAW))
attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
attempt('dns', lambda: socket.getaddrinfo('example.com', 80))
def abstract():
    s = socket.socket(socket.AF_UNIX); s.connect('\0{abstract_name}')
attempt('abstract', abstract)
def curl(*arguments):
    run = subprocess.run(['curl', '-sS', '-m', '2', '-f', *arguments], capture_output=True)
    if run.returncode: raise OSError(run.stderr)
attempt('noproxy', lambda: curl('--noproxy', '*', 'http://127.0.0.1:{port}/'))
attempt('noproxy name', lambda: curl('--noproxy', '*', 'http://example.com/'))
print(got)
"#
    )
}

/// What the proxy is asked for; prints which requests were not refused.
fn requests(port: u16) -> String {
    format!(
        r#"
import socket
def ask(data):
    try: s = socket.create_connection(('127.0.0.1', 3128), 1)
    except OSError: return b'no proxy'
    s.settimeout(5); s.sendall(data)
    try: return s.recv(4096)
    except OSError as e: return repr(e).encode()
hosts = ['127.0.0.1', 'localhost', '127.1', '2130706433', '0x7f.1', '0177.0.0.1', '0', '[::1]', '[::ffff:127.0.0.1]',
         '[::ffff:7f00:1]', '169.254.169.254', '[fd00:ec2::254]', '10.0.0.1', '192.168.1.1', '172.16.0.1', '100.64.0.1',
         '224.0.0.1', '255.255.255.255', '[64:ff9b::7f00:1]', '[2002:7f00:1::]', 'localhost.', 'a@127.0.0.1', '127.0.0.1%00.example.com']
passed = []
for host in hosts:
    for kind, data in [
        ('connect', f'CONNECT {{host}}:{port} HTTP/1.1\r\nHost: {{host}}:{port}\r\n\r\n'),
        ('http', f'GET http://{{host}}:{port}/ HTTP/1.1\r\nHost: {{host}}:{port}\r\n\r\n'),
    ]:
        answer = ask(data.encode())
        if answer != b'no proxy' and not answer.startswith((b'HTTP/1.1 403', b'HTTP/1.1 400')):
            passed.append((kind, host, answer[:60]))
port = ({port}).to_bytes(2, 'big')
for name, target in [('socks v4', b'\x01\x7f\0\0\1'), ('socks v6', b'\x04' + bytes(15) + b'\1'), ('socks name', b'\x03\x09localhost')]:
    try: s = socket.create_connection(('127.0.0.1', 3128), 1)
    except OSError: continue
    s.settimeout(5); s.sendall(b'\x05\x01\x00'); s.recv(2); s.sendall(b'\x05\x01\x00' + target + port)
    answer = s.recv(10)
    if answer[1:2] != b'\x02': passed.append((name, answer))
print(passed)
"#
    )
}

#[track_caller]
fn assert_nothing_gets_out(service: &Service, canary: &Canary, name: &str) {
    for policy in [json!("none"), json!("packages"), json!("open")] {
        let sandbox = service.create_with(&json!({"network": policy, "lease_seconds": 300}));
        let got = sandbox.stdout(&attempts(canary.address.port(), name));
        assert_eq!(got, "[]\n", "{policy}");
        let port = service.address.port();
        for port in [canary.address.port(), port] {
            assert_eq!(sandbox.stdout(&requests(port)), "[]\n", "{policy}");
        }
        assert_eq!(canary.visits(), 0, "{policy}");
    }
}

#[test]
fn nothing_gets_out_past_the_policy_not_after_a_restart_either() {
    let canary = Canary::start();
    let name = format!("sandcell-test-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap()).unwrap();
    let data = temp_dir();
    let launch = Launch {
        config: "network.connections_per_second = 1000",
        data_dir: Some(data.path()),
        ..Launch::default()
    };
    for _ in 0..2 {
        let service = Service::launch(&launch);
        assert_nothing_gets_out(&service, &canary, &name);
        drop(service);
    }
    // With an operator who lets that address be reached, the same request arrives.
    let service = Service::with_config(
        "network.private_cidrs = [\"127.0.0.0/8\"]\nnetwork.connections_per_second = 1000",
    );
    let allowed = json!({"allow": [canary.address.to_string()]});
    let sandbox = service.create_with(&json!({"network": allowed}));
    let passed = sandbox.stdout(&requests(canary.address.port()));
    assert!(passed.contains("('connect', '127.0.0.1'"), "{passed}");
    assert!(passed.contains("('socks v4'"), "{passed}");
    assert!(canary.visits() > 0);
    // And beside the proxy still nothing does.
    let got = sandbox.stdout(&attempts(canary.address.port(), &name));
    assert_eq!(got, "[]\n");
}

#[test]
fn a_change_of_policy_cuts_what_is_open() {
    let canary = Canary::start();
    let service = Service::with_config("network.private_cidrs = [\"127.0.0.0/8\"]");
    let sandbox = service.create();
    let shown = service.get(&sandbox.path("network")).ok().json();
    assert_eq!(shown["network"], "none", "{shown}");
    let allowed = json!({"allow": [canary.address.to_string()]});
    assert_eq!(set(&sandbox, &allowed)["network"], {
        let mut shown = allowed.clone();
        shown["packages"] = json!(false);
        shown
    });
    let address = canary.address;
    let code = format!(
        "import socket, time\n\
         s = socket.create_connection(('127.0.0.1', 3128)); s.settimeout(10)\n\
         s.sendall(b'CONNECT {address} HTTP/1.1\\r\\nHost: {address}\\r\\n\\r\\n')\n\
         head = s.recv(4096); assert b' 200 ' in head, head\n\
         s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n\
         last = time.time()\n\
         print('open', flush=True)\n\
         try:\n    \
             while s.recv(65536): last = time.time()\n\
         except OSError: pass\n\
         print(last, time.time())"
    );
    let mut stream = sandbox.stream(&code);
    let said = loop {
        let event = stream.event().expect("it says that it is open");
        if event["type"] == "stdout" {
            break event;
        }
    };
    assert_eq!(said["text"].as_str().unwrap().trim(), "open", "{said}");
    thread::sleep(Duration::from_millis(200));
    let before = std::time::SystemTime::now();
    let answer = set(&sandbox, &json!({"network": "none"}));
    assert_eq!(answer["network"], "none");
    let mut text = String::new();
    while let Some(event) = stream.event() {
        if event["type"] == "stdout" {
            text.push_str(event["text"].as_str().unwrap());
        }
    }
    let times: Vec<f64> = text
        .split_whitespace()
        .map(|t| t.parse().unwrap())
        .collect();
    let changed = before
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    println!(
        "cut {:.1} ms after the request",
        (times[1] - changed) * 1000.0
    );
    assert!(times[1] - changed < 0.1, "{times:?} {changed}");
    // What comes later is refused with a line.
    let refused = sandbox.stdout(&format!(
        "import urllib.request, urllib.error\n\
         opener = urllib.request.build_opener(urllib.request.ProxyHandler({{'http': 'http://127.0.0.1:3128'}}))\n\
         try: opener.open('http://{address}/')\n\
         except urllib.error.HTTPError as e: print(e.code, e.read().decode())"
    ));
    assert!(refused.starts_with("403 sandcell: "), "{refused}");
    let shown = service.get(&sandbox.path("network")).ok().json();
    assert_eq!(shown["open"], 0, "{shown}");
    assert!(shown["bytes_received"].as_u64().unwrap() > 0, "{shown}");
    assert_eq!(shown["refused"], 1, "{shown}");
}

#[test]
fn clients_find_the_proxy_by_themselves() {
    let canary = Canary::start();
    let port = canary.address.port();
    let service = Service::with_config("network.private_cidrs = [\"127.0.0.0/8\"]");
    // A name that is not local: local ones clients do not send to a proxy.
    let sandbox = service.create_with(&json!({"network": {"allow": ["127.0.0.0/8"]}}));
    let url = format!("http://127.0.0.1:{port}/");
    let code = format!(
        "import os, urllib.request, requests, httpx\n\
         os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n\
         def first(lines): return next(iter(lines)).strip()\n\
         print(first(urllib.request.urlopen({url:?})))\n\
         print(first(requests.get({url:?}, stream=True).iter_lines()))\n\
         with httpx.stream('GET', {url:?}) as r: print(first(r.iter_lines()))\n\
         !curl -sS -N --noproxy '' {url} | head -n 1"
    );
    let said = sandbox.stdout(&code);
    assert_eq!(said, "b'tick'\nb'tick'\ntick\ntick\n");
    let installed = service.post_json(&sandbox.path("install"), &json!({"packages": ["aiohttp"]}));
    assert_eq!(installed.ok().json()["success"], true);
    let code = format!(
        "import aiohttp\n\
         async with aiohttp.ClientSession() as session:\n    \
             async with session.get({url:?}) as answer:\n        \
                 print(await answer.content.readline())"
    );
    let before = canary.visits();
    assert_eq!(
        sandbox.stdout(&format!(
            "os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\n{code}"
        )),
        "b'tick\\n'\n"
    );
    assert_eq!(canary.visits(), before + 1);
    sandbox.stdout(&format!(
        "!no_proxy= NO_PROXY= timeout 3 git ls-remote {url} 2>&1 | head -n 1"
    ));
    assert_eq!(canary.visits(), before + 2);
    // Variables of the client's own come first, and a sandbox without a network has none.
    let own = json!({"network": "open", "env": {"http_proxy": "http://own.example"}});
    let own = service.create_with(&own);
    let code = "import os; print(os.environ['http_proxy'], os.environ['https_proxy'])";
    assert_eq!(
        own.stdout(code),
        "http://own.example http://127.0.0.1:3128\n"
    );
    let none = service.create();
    assert_eq!(
        none.stdout("import os; print(os.environ.get('http_proxy'))"),
        "None\n"
    );
}

#[test]
fn a_policy_that_is_none_is_refused_by_name() {
    let service = Service::start();
    for network in [
        json!("blah"),
        json!({"allow": ["bad host"]}),
        json!({"deny": []}),
        json!(1),
    ] {
        let answer = service.post_json("/sandbox/create", &json!({"network": network}));
        answer.refused_field("network");
    }
    // Code that has the proxy's port keeps it, and is told of.
    let sandbox = service.create();
    sandbox.stdout("import socket; s = socket.create_server(('127.0.0.1', 3128))");
    let path = sandbox.path("network");
    let answer = service.send(&Request {
        method: "PUT",
        path: &path,
        headers: &[("Content-Type", "application/json")],
        body: br#"{"network": "open"}"#,
    });
    answer.refused(409, "proxy_port_in_use");
    let shown = service.get(&path).ok().json();
    assert_eq!(shown["network"], "none", "{shown}");
}
