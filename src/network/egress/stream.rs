//! Sockets and bodies that count what passes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::connection::Connection;
use super::exchange::Exchange;

/// A socket to a host whose bytes are counted.
pub(super) struct Counted {
    stream: TcpStream,
    exchange: Arc<Exchange>,
}

impl Counted {
    pub(super) fn new(stream: TcpStream, exchange: &Arc<Exchange>) -> Self {
        Self {
            stream,
            exchange: Arc::clone(exchange),
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.exchange.add_received(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.exchange.add_sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.exchange.add_sent(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of an answer. With it, the connection's use of the network is over.
pub(super) struct Watched {
    body: Body,
    connection: Arc<Connection>,
    /// Whose bytes these are, where no socket counts them.
    counted: Option<Arc<Exchange>>,
    /// The connection to the host, which ends with the body.
    _driver: Option<AbortOnDropHandle<()>>,
}

impl Watched {
    /// A body that comes from this host.
    pub(super) fn counting(
        body: Body,
        connection: &Arc<Connection>,
        exchange: Arc<Exchange>,
    ) -> Self {
        Self {
            body,
            connection: Arc::clone(connection),
            counted: Some(exchange),
            _driver: None,
        }
    }

    /// A body that comes over a connection to a host.
    pub(super) fn driven(
        body: Body,
        connection: &Arc<Connection>,
        driver: AbortOnDropHandle<()>,
    ) -> Self {
        Self {
            body,
            connection: Arc::clone(connection),
            counted: None,
            _driver: Some(driver),
        }
    }
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let (Some(exchange), Some(Ok(frame))) = (&self.counted, &frame)
            && let Some(data) = frame.data_ref()
        {
            exchange.add_received(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.connection.finish();
    }
}
