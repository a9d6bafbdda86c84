//! A connection that cannot be held open by a peer which does not read, and that lets a peer which
//! is still sending read its refusal.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// After we closed, bytes of the peer are read and dropped for this long at most. Closing a socket
/// with unread bytes resets the connection, and a reset can overtake the answer: a client in the
/// middle of an upload that is too large would see a broken pipe in place of its 413.
const LINGER: Duration = Duration::from_secs(2);
/// A peer that sends nothing for this long has read its answer.
const LINGER_QUIET: Duration = Duration::from_millis(300);

/// A stream with a limit on how long a write may wait for the peer.
pub(crate) struct Socket {
    tcp: TcpStream,
    stall: Duration,
    write_stalled: Option<Pin<Box<Sleep>>>,
    linger: Option<Linger>,
}

struct Linger {
    until: Instant,
    quiet: Pin<Box<Sleep>>,
}

impl Socket {
    pub(crate) fn new(tcp: TcpStream, stall: Duration) -> Self {
        Self {
            tcp,
            stall,
            write_stalled: None,
            linger: None,
        }
    }

    /// Passes on what a write came to, or fails it when it has waited for too long.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_stalled = None;
            return written;
        }
        let stall = self.stall;
        let timer = self
            .write_stalled
            .get_or_insert_with(|| Box::pin(sleep(stall)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write_vectored(cx, slices);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.tcp).poll_shutdown(cx))?;
        }
        let linger = this.linger.get_or_insert_with(|| Linger {
            until: Instant::now() + LINGER,
            quiet: Box::pin(sleep(LINGER_QUIET)),
        });
        let mut bytes = [0; 16 * 1024];
        while Instant::now() < linger.until {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut this.tcp).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    linger.quiet.as_mut().reset(Instant::now() + LINGER_QUIET);
                }
                Poll::Ready(_) => break,
                Poll::Pending => {
                    ready!(linger.quiet.as_mut().poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
