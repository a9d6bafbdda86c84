//! Connections to servers inside. A sandbox has no route and the host has no address in it, so init,
//! which lives in the sandbox's network namespace, makes the socket (a socket belongs to the namespace
//! that it was made in, network_namespaces(7)) and passes it up. Its buffers count against the memory
//! of the sandbox, in whose cgroup init is.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::channel;
use super::error::{Context, Error};
use super::host::{Init, SETUP_TIMEOUT};
use super::spec::{Reply, ToInit};

/// The step whose failure [`word`] names.
pub(super) const CONNECT: &str = "connect to a port";
/// The word of [`Reply::Failed`] where nothing listens.
const CLOSED: &str = "port_closed";

// -- in init

/// Begins to connect and sends the socket. Never waits: user code decides whether and when a
/// connection comes about, with a full queue for one.
pub(super) fn answer(port: u16, v6: bool, reply: BorrowedFd<'_>) -> Result<(), Error> {
    use std::os::fd::AsFd;
    let socket = begin(loopback(port, v6)).context(CONNECT)?;
    channel::send_json(reply, &Reply::Ok {}, &[socket.as_fd()]).context("answer")
}

fn loopback(port: u16, v6: bool) -> SocketAddr {
    if v6 {
        (Ipv6Addr::LOCALHOST, port).into()
    } else {
        (Ipv4Addr::LOCALHOST, port).into()
    }
}

fn begin(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e.into()),
    }
}

/// How [`Reply::Failed`] names a failed [`CONNECT`].
pub(super) fn word(error: &io::Error) -> &'static str {
    // The latter two where the host has no IPv6: nothing can listen there.
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => CLOSED,
        _ => "not_connected",
    }
}

// -- in the supervisor

impl Init {
    /// Connects to a TCP port of the sandbox's loopback interface; `None` where nothing listens. Waits
    /// for as long as the connection takes: callers have a limit.
    ///
    /// # Errors
    /// Init is gone, or the kernel makes no such connection.
    pub async fn dial(&self, port: u16, v6: bool) -> Result<Option<TcpStream>, Error> {
        let reply = self.request(&ToInit::Dial { port, v6 }, &[]).await?;
        let packet = timeout(SETUP_TIMEOUT, reply.receive())
            .await
            .map_err(|_| Error::Refused("init does not answer".into()))?
            .context("hear from init")?
            .ok_or_else(|| Error::Refused("init has died".into()))?;
        let socket = match packet.decode().context("read init's answer")? {
            Reply::Ok {} => packet.fds.into_iter().next(),
            Reply::Failed { code, .. } if code == CLOSED => return Ok(None),
            Reply::Failed { detail, .. } => return Err(Error::Refused(detail)),
            other => return Err(Error::Refused(format!("init said {other:?}"))),
        };
        let socket = socket.ok_or_else(|| Error::Refused("init sent no socket".into()))?;
        connected(socket).await
    }
}

/// Waits until a socket has connected: it is writable then, and its error tells how it went
/// (connect(2), EINPROGRESS).
async fn connected(socket: OwnedFd) -> Result<Option<TcpStream>, Error> {
    let stream = TcpStream::from_std(socket.into()).context("watch a connection")?;
    stream.writable().await.context(CONNECT)?;
    if let Some(error) = stream.take_error().context("look at a connection")? {
        return match word(&error) {
            CLOSED => Ok(None),
            _ => Err(Error::step(CONNECT)(error)),
        };
    }
    // Where nothing listens on a port of the range that the kernel picks from for us, it may pick that
    // very port, and the socket connects to itself (RFC 9293, 3.5: simultaneous open).
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) if local != peer => Ok(Some(stream)),
        _ => Ok(None),
    }
}
