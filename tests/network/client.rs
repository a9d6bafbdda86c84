//! Clients of the proxy that send what no library would.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Nothing here takes as long.
const LONG: Duration = Duration::from_secs(20);

/// Sends bytes, reads to the end.
pub async fn raw(proxy: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    timeout(LONG, stream.read_to_end(&mut answer))
        .await
        .expect("the end")
        .ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Asks for `http://<authority>/`; the whole answer.
pub async fn get(proxy: SocketAddr, authority: &str) -> String {
    let request =
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    raw(proxy, request.as_bytes()).await
}

/// A tunnel, or the whole answer.
pub async fn connect(proxy: SocketAddr, authority: &str) -> Result<TcpStream, String> {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    let _ = stream.write_all(request.as_bytes()).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match timeout(LONG, stream.read_u8()).await.expect("an answer") {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    if head.starts_with(b"HTTP/1.1 200 ") {
        return Ok(stream);
    }
    let _ = timeout(LONG, stream.read_to_end(&mut head))
        .await
        .expect("the end");
    Err(String::from_utf8_lossy(&head).into_owned())
}

/// The address part of a SOCKS5 request.
pub fn by_name(name: &[u8]) -> Vec<u8> {
    [&[3, u8::try_from(name.len()).unwrap()], name].concat()
}

pub fn by_address(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => [&[1], &address.octets()[..]].concat(),
        IpAddr::V6(address) => [&[4], &address.octets()[..]].concat(),
    }
}

/// A tunnel, or the reply that says why not.
pub async fn socks(
    proxy: SocketAddr,
    command: u8,
    host: &[u8],
    port: u16,
) -> Result<TcpStream, u8> {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    stream.write_all(&[5, 2, 0, 2]).await.unwrap();
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await.unwrap();
    assert_eq!(chosen, [5, 0]);
    let request = [&[5, command, 0], host, &port.to_be_bytes()].concat();
    stream.write_all(&request).await.unwrap();
    let mut reply = [0; 10];
    timeout(LONG, stream.read_exact(&mut reply))
        .await
        .expect("a reply")
        .unwrap();
    assert_eq!(
        (reply[0], &reply[4..]),
        (5, &[0; 6][..]),
        "no address of the host's"
    );
    match reply[1] {
        0 => Ok(stream),
        code => Err(code),
    }
}

/// Whether what goes into a tunnel comes back.
pub async fn echoes(stream: &mut TcpStream) -> bool {
    let mut back = [0; 4];
    let sent = stream.write_all(b"ping").await.is_ok();
    let read = timeout(LONG, stream.read_exact(&mut back)).await;
    sent && matches!(read, Ok(Ok(_))) && &back == b"ping"
}
