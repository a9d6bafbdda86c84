//! One use of the network: a tunnel, or a request. It is counted as it runs and logged when it ends.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::super::policy::Policy;
use super::super::refusal::Refusal;
use super::super::target::Target;
use super::link::Link;

/// Bytes of text from inside that a log line carries where it could not be read.
const SHOWN_BYTES: usize = 120;

/// What it is for.
pub(super) enum Aim {
    /// A host, as far as the words of the request go.
    Target(Target),
    /// The package gateway.
    Packages,
    /// Nothing that could be read: this.
    Unreadable(String),
}

/// One use of the network. Its line is written when the last owner lets go of it, however that comes.
pub(super) struct Exchange {
    pub(super) aim: Aim,
    link: Arc<Link>,
    begun: Instant,
    address: OnceLock<IpAddr>,
    end: OnceLock<&'static str>,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Exchange {
    pub(super) fn new(link: Arc<Link>, aim: Aim) -> Self {
        Self {
            aim,
            link,
            begun: Instant::now(),
            address: OnceLock::new(),
            end: OnceLock::new(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Whether a policy allows what this does.
    pub(super) fn check(&self, policy: &Policy) -> Result<(), Refusal> {
        match &self.aim {
            Aim::Target(target) => policy.check(target),
            Aim::Packages if policy.packages() => Ok(()),
            Aim::Packages => Err(Refusal::new(
                super::Code::Policy,
                &format!("request to the package index refused: {policy}"),
            )),
            Aim::Unreadable(_) => Ok(()),
        }
    }

    /// The host was reached at an address.
    pub(super) fn reached(&self, address: IpAddr) {
        self.address.get_or_init(|| address);
        self.link.allowed.fetch_add(1, Ordering::Relaxed);
    }

    /// The gateway answers.
    pub(super) fn answered(&self) {
        self.link.allowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing was reached.
    pub(super) fn refuse(&self, refusal: &Refusal) {
        let (host, port) = self.shown();
        self.link.note_refusal(&host, port, refusal);
        self.end_with(refusal.code().word());
    }

    /// Why it ended; the first word stays.
    pub(super) fn end_with(&self, word: &'static str) {
        self.end.get_or_init(|| word);
    }

    pub(super) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.link
            .bytes_sent
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.link
            .bytes_received
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes in both directions so far.
    pub(super) fn bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }

    /// Completes when nothing has moved for a time.
    pub(super) async fn stalled(&self, idle: Duration) {
        let mut bytes = self.bytes();
        loop {
            tokio::time::sleep(idle).await;
            let now = self.bytes();
            if now == bytes {
                return;
            }
            bytes = now;
        }
    }

    fn shown(&self) -> (String, u16) {
        match &self.aim {
            Aim::Target(target) => (target.host.to_string(), target.port),
            Aim::Packages => ("packages".into(), 0),
            Aim::Unreadable(text) => {
                let escaped = text.chars().flat_map(char::escape_default);
                (escaped.take(SHOWN_BYTES).collect(), 0)
            }
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let sandbox = self.link.sandbox_id();
        let (host, port) = self.shown();
        let address = self
            .address
            .get()
            .map(ToString::to_string)
            .unwrap_or_default();
        let bytes_sent = self.sent.load(Ordering::Relaxed);
        let bytes_received = self.received.load(Ordering::Relaxed);
        let milliseconds = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let end = self.end.get().copied().unwrap_or("closed");
        if matches!(self.aim, Aim::Packages) {
            tracing::debug!(
                sandbox,
                host,
                port,
                bytes_received,
                milliseconds,
                end,
                "package index asked"
            );
            return;
        }
        tracing::info!(
            sandbox,
            host,
            port,
            address,
            bytes_sent,
            bytes_received,
            milliseconds,
            end,
            "egress"
        );
    }
}
