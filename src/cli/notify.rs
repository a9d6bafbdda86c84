//! What systemd wants to hear of a service of `Type=notify`: datagrams of `NAME=value` lines to the socket
//! that `NOTIFY_SOCKET` names (sd_notify(3)). Without the variable nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Speaks to whoever started the service.
pub(super) struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As the environment says.
    ///
    /// # Errors
    /// `NOTIFY_SOCKET` names nothing that a message can be sent to.
    pub(super) fn from_environment() -> Result<Self, String> {
        let socket = match std::env::var("NOTIFY_SOCKET") {
            Ok(name) if !name.is_empty() => {
                let socket = UnixDatagram::unbound().and_then(|s| Ok((s, address(&name)?)));
                Some(socket.map_err(|e| format!("NOTIFY_SOCKET: {name:?}: {e}"))?)
            }
            _ => None,
        };
        let ours =
            std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let watchdog = std::env::var("WATCHDOG_USEC")
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|microseconds| ours && *microseconds > 0)
            .map(Duration::from_micros);
        Ok(Self { socket, watchdog })
    }

    /// It serves, at this address.
    pub(super) fn ready(&self, address: std::net::SocketAddr) {
        self.send(&format!("READY=1\nSTATUS=serves http://{address}"));
    }

    /// It reads its configuration again; [`Notifier::reloaded`] is to follow.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// It has.
    pub(super) fn reloaded(&self) {
        self.send("READY=1");
    }

    /// It ends.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Says that the runtime still turns, as often as it is wanted, for ever.
    pub(super) async fn watch(&self) {
        let Some(longest) = self.watchdog else {
            return std::future::pending().await;
        };
        // Half of it, as sd_watchdog_enabled(3) advises.
        let mut ticks = tokio::time::interval((longest / 2).max(Duration::from_millis(1)));
        loop {
            ticks.tick().await;
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::warn!(%error, "failed to notify the service manager");
        }
    }
}

/// A path, or a name without one (`@`, unix(7)).
fn address(name: &str) -> std::io::Result<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}
