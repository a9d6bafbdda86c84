//! SOCKS5 (RFC 1928): no authentication, `CONNECT` only, names looked up here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::refusal::{Code, Refusal};
use super::super::target::{Host, Target};
use super::connection::Connection;
use super::tunnel::Tunnel;

/// First byte of SOCKS5.
pub(super) const VERSION: u8 = 5;
/// First byte of SOCKS4.
pub(super) const VERSION_4: u8 = 4;

const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const SUCCEEDED: u8 = 0;
const GENERAL_FAILURE: u8 = 1;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;

/// Answers one request; a tunnel where it reached something.
pub(super) async fn serve(
    connection: &Arc<Connection>,
    mut stream: TcpStream,
    limit: Duration,
) -> Option<Tunnel> {
    let asked = match timeout(limit, read_request(connection, &mut stream)).await {
        Ok(Ok(asked)) => asked,
        // Gone, or too slow: there is nobody to tell.
        Ok(Err(_)) | Err(_) => return None,
    };
    let reached = match asked {
        Ok(target) => connection
            .reach(target)
            .await
            .map_err(|refusal| refusal.code().socks_reply()),
        Err(reply) => Err(reply),
    };
    match reached {
        Ok((exchange, upstream)) => {
            reply(&mut stream, SUCCEEDED).await.ok()?;
            Some(Tunnel {
                client: stream,
                upstream,
                early: Bytes::new(),
                exchange,
            })
        }
        Err(code) => {
            let _ = reply(&mut stream, code).await;
            let _ = stream.shutdown().await;
            None
        }
    }
}

/// Tells a client of SOCKS4 (0x5b: rejected or failed) that it is not spoken here.
pub(super) async fn refuse_version_4(mut stream: TcpStream) {
    let _ = stream.write_all(&[0, 0x5b, 0, 0, 0, 0, 0, 0]).await;
    let _ = stream.shutdown().await;
}

/// The target that is asked for, or the reply to a request that is none.
async fn read_request(
    connection: &Connection,
    stream: &mut TcpStream,
) -> io::Result<Result<Target, u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut methods = vec![0; head[1].into()];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        stream.shutdown().await?;
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    let [version, command, _, kind] = request;
    if version != VERSION {
        return Ok(Err(GENERAL_FAILURE));
    }
    let host = match kind {
        1 => {
            let mut octets = [0; 4];
            stream.read_exact(&mut octets).await?;
            Ok(Host::Address(Ipv4Addr::from(octets).into()))
        }
        3 => {
            let mut name = vec![0; stream.read_u8().await?.into()];
            stream.read_exact(&mut name).await?;
            parse_name(connection, &name)
        }
        4 => {
            let mut octets = [0; 16];
            stream.read_exact(&mut octets).await?;
            let address = IpAddr::V6(Ipv6Addr::from(octets));
            Ok(Host::Address(address.to_canonical()))
        }
        _ => return Ok(Err(ADDRESS_TYPE_NOT_SUPPORTED)),
    };
    let port = stream.read_u16().await?;
    if command != CONNECT {
        refused(
            connection,
            Code::Request,
            "",
            "of SOCKS, only CONNECT is possible: no BIND, and no UDP",
        );
        return Ok(Err(COMMAND_NOT_SUPPORTED));
    }
    let host = match host {
        Ok(host) if port != 0 => host,
        Ok(host) => {
            let refusal = refused(
                connection,
                Code::Request,
                &host.to_string(),
                "the port is 0",
            );
            return Ok(Err(refusal.code().socks_reply()));
        }
        Err(refusal) => return Ok(Err(refusal.code().socks_reply())),
    };
    Ok(Ok(Target { host, port }))
}

fn parse_name(connection: &Connection, name: &[u8]) -> Result<Host, Refusal> {
    let text = String::from_utf8_lossy(name);
    Host::parse(&text).map_err(|why| refused(connection, Code::Host, &text, why))
}

fn refused(connection: &Connection, code: Code, text: &str, why: &str) -> Refusal {
    connection.refuse_unreadable(code, text, &format!("SOCKS request refused: {why}"))
}

/// The address of the reply is left out: it would name an interface of the host.
async fn reply(stream: &mut TcpStream, code: u8) -> io::Result<()> {
    stream
        .write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
}
