//! Bytes both ways between two sockets.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::exchange::Exchange;

/// Bytes that a direction holds while something flows; none while nothing does.
const BUFFER_BYTES: usize = 128 * 1024;

/// A tunnel whose ends are connected.
pub(super) struct Tunnel {
    pub(super) client: TcpStream,
    pub(super) upstream: TcpStream,
    /// What the client sent ahead of the answer.
    pub(super) early: Bytes,
    pub(super) exchange: Arc<Exchange>,
}

impl Tunnel {
    /// Runs until both directions ended, one failed or it is cut. What is cut is reset, so that neither
    /// end takes it for the end of the data.
    pub(super) async fn run(mut self, cut: impl Future<Output = ()>) {
        let exchange = &self.exchange;
        let (from_client, mut to_client) = self.client.split();
        let (from_upstream, mut to_upstream) = self.upstream.split();
        let early = std::mem::take(&mut self.early);
        let up = async {
            to_upstream.write_all(&early).await?;
            exchange.add_sent(early.len());
            pump(&from_client, &mut to_upstream, |bytes| {
                exchange.add_sent(bytes)
            })
            .await
        };
        let down = pump(&from_upstream, &mut to_client, |bytes| {
            exchange.add_received(bytes)
        });
        let ended = tokio::select! {
            ended = async { tokio::try_join!(up, down) } => ended.is_ok(),
            () = cut => false,
        };
        if !ended {
            exchange.end_with("broken off");
            let _ = self.client.set_zero_linger();
            let _ = self.upstream.set_zero_linger();
        }
    }
}

/// Copies until the end of the data, and passes that on.
async fn pump(
    from: &ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    count: impl Fn(usize),
) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        buffer.reserve_exact(BUFFER_BYTES);
        match from.try_read_buf(&mut buffer) {
            Ok(0) => return to.shutdown().await,
            Ok(bytes) => {
                to.write_all(&buffer).await?;
                count(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                buffer = Vec::new();
                from.readable().await?;
            }
            Err(error) => return Err(error),
        }
    }
}
