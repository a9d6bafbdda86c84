//! A connection that is no longer HTTP: a WebSocket, or whatever client and server agreed on.

use std::sync::Arc;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::exchange::{Line, Side};
use crate::api::server::Place;

/// How long one direction may go on after the other has ended.
const HALF_CLOSED: Duration = Duration::from_secs(5);

/// Passes bytes both ways, once both sides have changed, until one side, the sandbox or the service
/// ends, the key is taken away, or nothing moves for `idle`.
pub(super) fn spawn(
    client: Side,
    server: Side,
    line: Line,
    clock: Arc<Clock>,
    idle: Duration,
    place: Place,
    revoked: CancellationToken,
) {
    tokio::spawn(async move {
        let passed = async {
            let (client, server) = tokio::try_join!(client, server)?;
            pass(client, server).await;
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            passed = passed => if let Err(error) = passed {
                tracing::debug!(%error, "a connection did not change its protocol");
            },
            () = place.stopping.cancelled() => {}
            () = revoked.cancelled() => {}
            () = line.held.closed() => {}
            () = clock.idle(idle) => {}
        }
    });
}

async fn pass(client: Upgraded, server: Upgraded) {
    let (client_reads, client_writes) = split(TokioIo::new(client));
    let (server_reads, server_writes) = split(TokioIo::new(server));
    let mut inward = std::pin::pin!(one_way(client_reads, server_writes));
    let mut outward = std::pin::pin!(one_way(server_reads, client_writes));
    let _ = tokio::select! {
        () = inward.as_mut() => timeout(HALF_CLOSED, outward).await,
        () = outward.as_mut() => timeout(HALF_CLOSED, inward).await,
    };
}

async fn one_way(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    // An error is an end like another.
    let _ = copy(&mut from, &mut to).await;
    let _ = to.shutdown().await;
}
