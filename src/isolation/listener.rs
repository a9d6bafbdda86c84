//! The socket inside a sandbox's network namespace on which the supervisor listens.

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketAddrV4, SocketFlags, SocketType, bind, listen as start, socket_with,
};

use super::error::{Context, Error};
use crate::network::PROXY_PORT;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Listens on [`PROXY_PORT`] of the loopback of this process's network namespace. Without
/// SO_REUSEADDR and SO_REUSEPORT nobody else can bind that port while the socket lives (socket(7)).
pub fn listen() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .context("make a socket")?;
    let address = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, PROXY_PORT);
    bind(&socket, &address).context("bind the proxy's port")?;
    start(&socket, BACKLOG).context("listen on the proxy's port")?;
    Ok(socket)
}
