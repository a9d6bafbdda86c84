//! When bytes last went to and fro between a client and a server inside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

/// Of one connection.
#[derive(Debug)]
pub(super) struct Clock {
    begun: Instant,
    /// Milliseconds from there to the last byte in either direction,
    moved: AtomicU64,
    /// and to the last that the client gave or the server took.
    sent: AtomicU64,
    /// The server waits for more of the request.
    client_owes: AtomicBool,
}

/// Who keeps the other waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    Client,
    Server,
}

impl Clock {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            client_owes: AtomicBool::new(false),
        })
    }

    fn mark(&self, what: &AtomicU64) {
        let now = self.begun.elapsed().as_millis() as u64;
        what.store(now, Ordering::Relaxed);
    }

    fn at(&self, what: &AtomicU64) -> Instant {
        self.begun + Duration::from_millis(what.load(Ordering::Relaxed))
    }

    /// Resolves when no byte went in either direction for so long.
    pub(super) async fn idle(&self, longest: Duration) {
        loop {
            let until = self.at(&self.moved) + longest;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    /// Resolves when the client has sent nothing for `client` though more must come, or the server has
    /// taken nothing and not begun its answer for `server`. What it sends does not count: a head that
    /// comes byte by byte is late all the same.
    pub(super) async fn late(&self, client: Duration, server: Duration) -> Late {
        /// The other one may be to blame from one moment to the next.
        const LOOK: Duration = Duration::from_millis(250);
        loop {
            let owes = self.client_owes.load(Ordering::Relaxed);
            let (late, longest) = match owes {
                true => (Late::Client, client),
                false => (Late::Server, server),
            };
            let (now, until) = (Instant::now(), self.at(&self.sent) + longest);
            if until <= now {
                return late;
            }
            sleep_until(until.min(now + LOOK)).await;
        }
    }
}

/// A request's body on its way in.
pub(super) struct Counted {
    pub(super) body: Body,
    pub(super) clock: Arc<Clock>,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let owes = polled.is_pending();
        // Also when waiting begins: a server that was slow to take the last bytes held the client up.
        if self.clock.client_owes.swap(owes, Ordering::Relaxed) != owes || !owes {
            self.clock.mark(&self.clock.sent);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The connection to the server inside.
pub(super) struct Watched {
    pub(super) tcp: TcpStream,
    pub(super) clock: Arc<Clock>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.clock.mark(&self.clock.moved);
        }
        Poll::Ready(Ok(()))
    }
}

impl Watched {
    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.clock.mark(&self.clock.moved);
            self.clock.mark(&self.clock.sent);
        }
        written
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(cx, bytes);
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write_vectored(cx, slices);
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
