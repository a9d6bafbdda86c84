//! Frames on a kernel's socket, both ways: a length and that many bytes of JSON, which `frame` reads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as UnixSocket;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;

use super::protocol::{MAX_KERNEL_FRAME_BYTES, ToKernel};
use crate::isolation::{Context, Error, channel, sys};

/// Room for one read of a frame that has not all come.
const READ_BYTES: usize = 256 * 1024;
/// Room for the frames of a small execution in one read.
const MIN_READ_BYTES: usize = 4096;
/// Most that is read of what a dead kernel has left in its socket, whose buffer holds less: 416 KiB at
/// most with the default `net.core.wmem_max` (socket(7)). Others that it started may write as fast as it
/// is read, and whoever reads without waiting holds a thread of the service up.
pub(super) const LEFT_BYTES: usize = 512 * 1024;
/// Likewise, frames: each small one takes some 768 bytes of that buffer.
pub(super) const LEFT_FRAMES: usize = 1000;
/// Between two tries to send to a kernel that cannot be waited for.
const WRITE_PAUSE: Duration = Duration::from_millis(5);

/// Length-prefixed JSON over a stream socket. [`Frames::next`] may be cancelled at any point.
#[derive(Debug)]
pub(super) struct Frames {
    /// Watched for what comes only: as the kernel takes what was sent, we have nothing to do.
    socket: AsyncFd<OwnedFd>,
    buffer: BytesMut,
}

impl Frames {
    pub(super) fn new(socket: UnixSocket) -> Result<Self, Error> {
        socket.set_nonblocking(true).context("watch the kernel")?;
        let watched = sys::watch_for(socket.into(), Interest::READABLE);
        Ok(Self {
            socket: watched.context("watch the kernel")?,
            buffer: BytesMut::new(),
        })
    }

    pub(super) async fn send(&mut self, message: &ToKernel<'_>) -> io::Result<()> {
        let frame = frame_of(message)?;
        let mut left = &frame[..];
        while !left.is_empty() {
            match rustix::net::send(self.socket.get_ref(), left, SendFlags::NOSIGNAL) {
                Ok(sent) => left = &left[sent..],
                Err(Errno::AGAIN) => self.writable().await?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until the kernel has taken some of what was sent.
    async fn writable(&self) -> io::Result<()> {
        let Ok(again) = self.socket.get_ref().try_clone() else {
            // No descriptor is free.
            sleep(WRITE_PAUSE).await;
            return Ok(());
        };
        let watched = sys::watch_for(again, Interest::WRITABLE)?;
        let _ready = watched.writable().await?;
        Ok(())
    }

    /// Sends a message that descriptors come with; small, and to a kernel that waits for it.
    pub(super) async fn send_with(
        &mut self,
        message: &ToKernel<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let frame = frame_of(message)?;
        loop {
            match channel::send(self.socket.get_ref().as_fd(), &frame, fds) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                sent => return sent,
            }
        }
    }

    /// The next frame's body, `None` at the end of the file. The length is checked before memory is
    /// taken.
    pub(super) async fn next(&mut self) -> io::Result<Option<BytesMut>> {
        loop {
            // Frames that never end must not keep the others on this thread waiting, nor the clock.
            consume_budget().await;
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let buffer = &mut self.buffer;
            let read = |socket: &mut OwnedFd| read_into(buffer, socket);
            if self.socket.async_io_mut(Interest::READABLE, read).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next frame's body if it is there and no more than `left` bytes must be read for it, asking
    /// the kernel itself: tokio knows only what its reactor has seen so far.
    pub(super) fn next_now(&mut self, left: &mut usize) -> io::Result<Option<BytesMut>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let read = self.read_now()?;
            *left = left.saturating_sub(read);
            if read == 0 || *left == 0 {
                return Ok(None);
            }
        }
    }

    /// Drops what was sent so far, a part of a frame at its end too. The sender is dead; a checkpoint
    /// that writes all the same is none.
    pub(super) fn discard(&mut self) {
        let mut left = LEFT_BYTES;
        self.buffer.clear();
        while left > 0 && self.read_now().is_ok_and(|read| read > 0) {
            left = left.saturating_sub(self.buffer.len());
            self.buffer.clear();
        }
    }

    fn read_now(&mut self) -> io::Result<usize> {
        read_into(&mut self.buffer, self.socket.get_ref())
    }

    fn take(&mut self) -> io::Result<Option<BytesMut>> {
        let Some(head) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*head) as usize;
        if length > MAX_KERNEL_FRAME_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "frame over its limit",
            ));
        }
        if self.buffer.len() < 4 + length {
            // Memory is taken as bytes come, not as they are announced.
            self.buffer
                .reserve((4 + length - self.buffer.len()).min(READ_BYTES));
            return Ok(None);
        }
        self.buffer.advance(4);
        let body = self.buffer.split_to(length);
        if self.buffer.is_empty() || length > READ_BYTES {
            // A large frame must not stay as a large buffer for an idle sandbox's life.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        Ok(Some(body))
    }
}

/// Reads once what is there now, as much as there is room for; bytes read, 0 at the end of the file.
fn read_into(buffer: &mut BytesMut, socket: &OwnedFd) -> io::Result<usize> {
    let before = buffer.len();
    let room = (buffer.capacity() - before).max(MIN_READ_BYTES);
    buffer.resize(before + room, 0);
    let read = rustix::io::read(socket, &mut buffer[before..]);
    buffer.truncate(before + *read.as_ref().unwrap_or(&0));
    Ok(read?)
}

/// Length and body in one piece: the kernel wakes up once.
fn frame_of(message: &ToKernel<'_>) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; size_of::<u32>()];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - size_of::<u32>());
    let length = length.map_err(|_| io::ErrorKind::InvalidInput)?;
    frame[..size_of::<u32>()].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}
