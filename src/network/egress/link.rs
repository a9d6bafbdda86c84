//! One sandbox's side of the proxy: its policy, its counts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use super::super::policy::Policy;
use super::super::refusal::Refusal;

/// Refusals that are kept: the last.
const KEPT_REFUSALS: usize = 32;
/// Lookups at once of one sandbox, so that one with slow names leaves some to the others.
const LOOKUPS: usize = 8;

/// One sandbox's side of the proxy: its policy, which may change at any time, and its counts.
#[derive(Debug)]
pub struct Link {
    sandbox_id: String,
    policy: watch::Sender<Policy>,
    pub(super) lookups: Arc<Semaphore>,
    pub(super) open: AtomicUsize,
    pub(super) allowed: AtomicU64,
    refused: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    refusals: Mutex<VecDeque<Refused>>,
    made: Mutex<Bucket>,
    asked: Mutex<Bucket>,
}

/// What a sandbox did on the network so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Connections to the proxy that are open now.
    pub open: usize,
    /// Connections and requests that reached a host, or the package index.
    pub allowed: u64,
    /// Those that did not.
    pub refused: u64,
    /// Bytes sent to hosts.
    pub bytes_sent: u64,
    /// Bytes received from hosts, and from the package index.
    pub bytes_received: u64,
    /// The last of those that were refused or failed, at most 32, the oldest first.
    pub refusals: Vec<Refused>,
}

/// A connection or request that reached nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// What it was for, as far as it could be read; printable ASCII.
    pub host: String,
    /// Likewise; 0 where there was none.
    pub port: u16,
    /// Which kind: `policy`, `address`, `host`, `request`, `limit`, `lookup`, `unreachable` or `timeout`.
    pub reason: &'static str,
    /// The line that was answered.
    pub message: String,
}

/// A token bucket: it fills at a rate, and holds what comes in a second.
#[derive(Debug, Default)]
struct Bucket {
    tokens: f64,
    filled: Option<Instant>,
}

impl Bucket {
    fn take(&mut self, per_second: u32) -> bool {
        let (now, most) = (Instant::now(), f64::from(per_second));
        let more = self.filled.map_or(most, |filled| {
            now.duration_since(filled).as_secs_f64() * most
        });
        self.filled = Some(now);
        self.tokens = (self.tokens + more).min(most);
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

impl Link {
    /// A sandbox that may reach what a policy allows.
    pub fn new(sandbox_id: impl Into<String>, policy: Policy) -> Self {
        Self {
            sandbox_id: sandbox_id.into(),
            policy: watch::Sender::new(policy),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            open: AtomicUsize::new(0),
            allowed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            refusals: Mutex::default(),
            made: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// The sandbox.
    pub fn sandbox_id(&self) -> &str {
        &self.sandbox_id
    }

    /// The policy as it is now.
    pub fn policy(&self) -> Policy {
        self.policy.borrow().clone()
    }

    /// Another policy from now on. What it does not allow is cut, in milliseconds.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(policy);
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        Stats {
            open: self.open.load(Ordering::Relaxed),
            allowed: self.allowed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
            bytes_received: self.bytes_received.load(Ordering::Relaxed),
            refusals: refusals.iter().cloned().collect(),
        }
    }

    pub(super) fn changes(&self) -> watch::Receiver<Policy> {
        self.policy.subscribe()
    }

    pub(super) fn with_policy<T>(&self, look: impl FnOnce(&Policy) -> T) -> T {
        look(&self.policy.borrow())
    }

    pub(super) fn note_refusal(&self, host: &str, port: u16, refusal: &Refusal) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() == KEPT_REFUSALS {
            refusals.pop_front();
        }
        refusals.push_back(Refused {
            host: host.to_owned(),
            port,
            reason: refusal.code().word(),
            message: refusal.line().to_owned(),
        });
    }

    /// Takes one of the connections that may be made in a second.
    pub(super) fn take_connection(&self, per_second: u32) -> bool {
        let mut bucket = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(per_second)
    }

    /// Takes one of the requests that the gateway answers in a second.
    pub(super) fn take_request(&self, per_second: u32) -> bool {
        let mut bucket = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(per_second)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_gives_what_fits_into_a_second_and_fills_again() {
        let link = Link::new("s", Policy::None);
        let taken = (0..1000).filter(|_| link.take_connection(100)).count();
        assert!((100..110).contains(&taken), "{taken}");
        std::thread::sleep(Duration::from_millis(100));
        let taken = (0..1000).filter(|_| link.take_connection(100)).count();
        assert!((10..60).contains(&taken), "{taken}");
    }
}
