//! How fast bytes go through a tunnel, and what it costs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use sandcell::config::Network;

use super::lab::{Proxy, egress, wide};

const BYTES: usize = 400_000_000;
/// Of the speed without a proxy; a debug build on a machine that does other things reaches it.
const LEAST_SHARE: f64 = 0.05;
/// Bytes a second that a release build must reach.
const LEAST_SPEED: f64 = 300e6;
/// Growth of the process's memory while the bytes pass: buffers, and what other tests do meanwhile.
const MOST_GROWTH_BYTES: usize = BYTES / 8;

/// Sends [`BYTES`] to whoever connects.
fn source() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let piece = vec![7; 256 * 1024];
            let mut left = BYTES;
            while left > 0 {
                let most = left.min(piece.len());
                stream.write_all(&piece[..most]).unwrap();
                left -= most;
            }
        }
    });
    address
}

/// Reads to the end; bytes a second.
fn drain(mut stream: TcpStream) -> f64 {
    let (begun, mut total) = (Instant::now(), 0);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            bytes => total += bytes,
        }
    }
    assert_eq!(total, BYTES);
    total as f64 / begun.elapsed().as_secs_f64()
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_tunnel_is_fast_and_takes_no_memory() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let network = Network {
        private_cidrs: vec!["127.0.0.0/8".into()],
        ..wide()
    };
    let proxy = runtime.block_on(Proxy::start(egress(&network), r#""open""#));
    let source = source();
    let through = || {
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        let request = format!("CONNECT {source} HTTP/1.1\r\nHost: {source}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 "));
        drain(stream)
    };
    through();
    let before = resident_bytes();
    let proxied = through().max(through());
    let growth = resident_bytes().saturating_sub(before);
    let direct = drain(TcpStream::connect(source).unwrap());
    let share = proxied / direct;
    println!(
        "{:.0} MB/s through the proxy, {:.0} MB/s without, {share:.2} of it; {growth} bytes of memory more",
        proxied / 1e6,
        direct / 1e6
    );
    assert!(share > LEAST_SHARE);
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
    if !cfg!(debug_assertions) {
        assert!(proxied >= LEAST_SPEED, "{proxied} bytes a second");
    }
}
