//! Two network namespaces with a cable between them: a host, where the proxy and its clients run, and an
//! internet, which has every address there is. Servers listen on all addresses of both and count.
//!
//! A namespace belongs to a thread, and the threads that it starts inherit it: those of its runtime too.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use sandcell::config::Network;
use sandcell::network::{Egress, Index, Link, Policy, Resolver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A server here answers HTTP with what it read.
pub const HTTP: u16 = 80;
/// A server here sends back what it reads.
pub const ECHO: u16 = 7;
/// A server here sends an answer that never ends.
pub const STREAM: u16 = 19;
/// The host's own address, which looks public.
pub const OWN: &str = "11.0.0.2";
/// Addresses somewhere in the internet.
pub const PUBLIC: &str = "93.184.216.34";
pub const PUBLIC_V6: &str = "2606:2800:220:1::34";

/// Connections that servers took.
#[derive(Clone, Default)]
pub struct Counts {
    /// On the host itself.
    pub own: Arc<AtomicUsize>,
    /// In the internet.
    pub internet: Arc<AtomicUsize>,
}

impl Counts {
    pub fn both(&self) -> usize {
        self.own.load(Ordering::SeqCst) + self.internet.load(Ordering::SeqCst)
    }
}

/// The host's side.
#[derive(Default)]
pub struct Lab {
    pub counts: Counts,
}

/// A proxy for one sandbox.
pub struct Proxy {
    pub address: SocketAddr,
    pub link: Arc<Link>,
    pub serving: JoinHandle<std::io::Error>,
}

/// Runs a test on the host's side.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(Lab) -> F + Send + 'static) {
    let host = thread::spawn(|| {
        let lab = Lab::default();
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        let (send, receive) = mpsc::channel();
        let counts = lab.counts.internet.clone();
        thread::spawn(move || internet(counts, &send));
        let tid = receive.recv().unwrap();
        ip("link set lo up");
        ip(&format!(
            "link add cable type veth peer name cable netns {tid}"
        ));
        ip("link set cable up");
        ip(&format!("addr add {OWN}/24 dev cable"));
        ip("route add default via 11.0.0.1");
        ip("-6 addr add 2600:11::2/64 dev cable nodad");
        receive.recv().unwrap();
        ip("-6 route add default via 2600:11::1");
        let own = lab.counts.own.clone();
        runtime().block_on(async move {
            serve(&own).await;
            test(lab).await;
        });
    });
    if let Err(panic) = host.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Routes to every address end here.
fn internet(counts: Arc<AtomicUsize>, ready: &mpsc::Sender<i32>) {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ready.send(nix::unistd::gettid().as_raw()).unwrap();
    ip("link set lo up");
    let cable = || {
        Command::new("ip")
            .args(["link", "set", "cable", "up"])
            .output()
            .unwrap()
    };
    while !cable().status.success() {
        thread::sleep(Duration::from_millis(5));
    }
    ip("addr add 11.0.0.1/24 dev cable");
    ip("-6 addr add 2600:11::1/64 dev cable nodad");
    // Not in the table `local`, which would come before the cable's own network.
    ip("route add local 0.0.0.0/0 dev lo table main");
    ip("-6 route add local ::/0 dev lo table main");
    runtime().block_on(async move {
        serve(&counts).await;
        ready.send(0).unwrap();
        std::future::pending::<()>().await;
    });
}

pub fn ip(arguments: &str) {
    let run = Command::new("ip").args(arguments.split(' ')).output();
    let output = run.expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

async fn serve(count: &Arc<AtomicUsize>) {
    for port in [HTTP, ECHO, STREAM] {
        let listener = TcpListener::bind(("::", port)).await.unwrap();
        let count = Arc::clone(count);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let _ = match port {
                        HTTP => repeat(stream).await,
                        ECHO => echo(stream).await,
                        _ => pour(stream).await,
                    };
                });
            }
        });
    }
}

/// Answers with all that came until nothing did for a while.
async fn repeat(mut stream: TcpStream) -> std::io::Result<()> {
    let mut read = Vec::new();
    let pause = Duration::from_millis(50);
    while let Ok(Ok(1..)) = timeout(pause, stream.read_buf(&mut read)).await {}
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        read.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&read).await
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

async fn pour(mut stream: TcpStream) -> std::io::Result<()> {
    stream.read_u8().await?;
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await?;
    loop {
        stream.write_all(b"4\r\nmore\r\n").await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Limits that are in nobody's way.
pub fn wide() -> Network {
    Network {
        connections: 5000,
        connections_per_second: 100_000,
        connect_timeout_seconds: 2,
        ..Network::default()
    }
}

pub fn egress(network: &Network) -> Egress {
    Egress::new(network, None).unwrap()
}

pub fn gateway(answer: fn() -> axum::body::Body) -> Index {
    Arc::new(move |_, _| {
        let response = axum::http::Response::new(answer());
        Box::pin(std::future::ready(response))
    })
}

pub fn policy(json: &str) -> Policy {
    serde_json::from_str(json).unwrap()
}

/// Names of the tests, with their addresses.
pub fn names(answer: impl Fn(&str) -> Vec<&'static str> + Send + Sync + 'static) -> Resolver {
    Resolver::Fixed(Arc::new(move |name| {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        answer(name).into_iter().map(parse).collect()
    }))
}

impl Proxy {
    pub async fn start(egress: Egress, json: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let link = Arc::new(Link::new("sandbox", policy(json)));
        let serving = tokio::spawn(Arc::new(egress).serve(listener, Arc::clone(&link)));
        Self {
            address,
            link,
            serving,
        }
    }
}
