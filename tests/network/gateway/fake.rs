//! An index that does what a test tells it, good or bad, over TCP or TLS; and a client that sees each byte.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sandcell::config::Packages;
use sandcell::mirror::host::PythonIndex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A request as the index saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub path: String,
    /// Header lines, lower case.
    pub head: String,
}

/// Writes an answer.
pub type Reply = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()>>;

pub struct Fake {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Fake {
    pub fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(None, answer)
    }

    pub fn listen(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (answer, log) = (Arc::new(answer), Arc::clone(&seen));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (tls, answer, log) = (tls.clone(), Arc::clone(&answer), Arc::clone(&log));
                thread::spawn(move || -> io::Result<()> {
                    let stream: Box<dyn Stream> = match tls {
                        None => Box::new(stream),
                        Some(config) => {
                            let session =
                                ServerConnection::new(config).map_err(io::Error::other)?;
                            Box::new(StreamOwned::new(session, stream))
                        }
                    };
                    let mut stream = BufReader::new(stream);
                    let request = read_head(&mut stream)?;
                    log.lock().unwrap().push(request.clone());
                    let stream = stream.get_mut();
                    answer(&request)(stream)?;
                    stream.flush()
                });
            }
        });
        Self { address, seen }
    }

    /// Requests whose path starts so.
    pub fn seen(&self, path: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .filter(|s| s.path.starts_with(path))
            .cloned()
            .collect()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn index(&self) -> PythonIndex {
        PythonIndex {
            url: Some(self.url("/simple")),
            ..PythonIndex::default()
        }
    }
}

fn read_head(stream: &mut impl BufRead) -> io::Result<Seen> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let head = head.to_lowercase();
    Ok(Seen { path, head })
}

/// An answer with these header lines and this body.
pub fn reply(status: u16, headers: &str, body: impl Into<Vec<u8>>) -> Reply {
    let (headers, body) = (headers.to_owned(), body.into());
    Box::new(move |to| {
        write!(
            to,
            "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        )?;
        to.write_all(&body)
    })
}

/// A head, and then whatever the test writes until the connection closes.
pub fn raw(headers: &str, body: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'static) -> Reply {
    let head = format!("HTTP/1.1 200 X\r\nconnection: close\r\n{headers}\r\n");
    Box::new(move |to| {
        to.write_all(head.as_bytes())?;
        body(to)
    })
}

pub fn missing() -> Reply {
    reply(404, "", "no")
}

pub const JSON: &str = "content-type: application/vnd.pypi.simple.v1+json\r\n";

pub fn page(files: &[Value]) -> Reply {
    let page = json!({"meta": {"api-version": "1.0"}, "name": "x", "files": files});
    reply(200, JSON, page.to_string())
}

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A file of a page.
pub fn file(name: &str, url: &str, content: &[u8]) -> Value {
    json!({"filename": name, "url": url, "hashes": {"sha256": sha256(content)}})
}

/// Where the gateway has it.
pub fn path_of(project: &str, name: &str, content: &[u8]) -> String {
    format!("/files/{project}/{}/{name}", sha256(content))
}

/// The defaults, for impatient tests.
pub fn quick() -> Packages {
    Packages {
        timeout_seconds: 2,
        ..Packages::default()
    }
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// As many bytes as were promised.
    pub whole: bool,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// Sends a request to a gateway.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the gateway listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n"
    )
    .unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let end = all
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("a head");
    let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
    let body = all[end + 4..].to_vec();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let chunked = head.contains("chunked");
    let whole = if chunked {
        body.ends_with(b"0\r\n\r\n")
    } else {
        length == Some(body.len())
    };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head,
        body,
        whole,
    }
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, "GET", path, "")
}

pub fn get_json(address: SocketAddr, path: &str) -> Answer {
    send(
        address,
        "GET",
        path,
        "accept: application/vnd.pypi.simple.v1+json\r\n",
    )
}
