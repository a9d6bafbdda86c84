//! Packets with descriptors over `SOCK_SEQPACKET` pairs (unix(7)): how the supervisor, the nursery,
//! the zygote and inits speak. A packet is whole or absent, so nothing here parses a stream.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;

use super::sys;

/// Longest packet, in bytes; below the default socket buffer (208 KiB), so that one always fits.
pub const MAX_PACKET_BYTES: usize = 128 * 1024;
/// Most descriptors in a packet.
pub const MAX_PACKET_FDS: usize = 16;

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// JSON or, where a protocol says so, raw bytes.
    pub bytes: Vec<u8>,
    /// Close-on-exec, in the order sent.
    pub fds: Vec<OwnedFd>,
}

impl Packet {
    /// Decodes the bytes as JSON.
    pub fn decode<T: DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.bytes)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }
}

/// Two connected ends, close-on-exec, blocking.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one packet. An end that was closed gives `EPIPE`, never a signal.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one packet"));
    }
    let iov = [IoSlice::new(bytes)];
    loop {
        match sendmsg(socket, &iov, &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Sends one packet of JSON.
pub fn send_json<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send(socket, &encode(message)?, fds)
}

/// Receives one packet; `None` at the end of the file.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; MAX_PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let received = loop {
        match recvmsg(socket, &mut iov, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            // ECONNRESET is told once when the other end was closed with packets unread; what it sent
            // before is still there.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            other => break other?,
        }
    };
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "packet over its limit",
        ));
    }
    if received.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    bytes.truncate(received.bytes);
    Ok(Some(Packet { bytes, fds }))
}

fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_PACKET_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "message over the packet limit",
        ));
    }
    Ok(bytes)
}

/// One end, for tokio.
#[derive(Debug)]
pub struct Channel {
    socket: AsyncFd<OwnedFd>,
}

impl Channel {
    /// Takes over `socket` and makes it non-blocking.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket: sys::watch(socket)?,
        })
    }

    /// Sends one packet of JSON, waiting while the other end's buffer is full.
    pub async fn send_json<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send(&encode(message)?, fds).await
    }

    /// Sends one packet of bytes, waiting while the other end's buffer is full.
    pub async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(result) = ready.try_io(|s| send(s.get_ref().as_fd(), bytes, fds)) {
                return result;
            }
        }
    }

    /// Sends no more: the other end sees that (`POLLRDHUP`), and can still send.
    pub fn shut(&self) {
        // It fails only where the other end has gone.
        let _ = rustix::net::shutdown(self.socket.get_ref(), rustix::net::Shutdown::Write);
    }

    /// Receives one packet; `None` at the end of the file.
    pub async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(result) = ready.try_io(|s| receive(s.get_ref().as_fd())) {
                return result;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_bounds_and_descriptors() {
        let (a, b) = pair().unwrap();
        send(a.as_fd(), b"one", &[a.as_fd(), b.as_fd()]).unwrap();
        send(a.as_fd(), b"two", &[]).unwrap();
        let one = receive(b.as_fd()).unwrap().unwrap();
        assert_eq!(
            (one.bytes.as_slice(), one.fds.len()),
            (b"one".as_slice(), 2)
        );
        assert_eq!(receive(b.as_fd()).unwrap().unwrap().bytes, b"two");
        drop((a, one));
        assert!(receive(b.as_fd()).unwrap().is_none());
        assert_eq!(
            send(b.as_fd(), b"x", &[]).unwrap_err().raw_os_error(),
            Some(libc::EPIPE)
        );
    }
}
