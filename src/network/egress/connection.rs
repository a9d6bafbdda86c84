//! One connection from inside a sandbox, and what may end it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

use super::super::refusal::{Code, Refusal};
use super::exchange::{Aim, Exchange};
use super::link::Link;
use super::tunnel::Tunnel;
use super::{Egress, http, socks};

/// Time for the head of a request on a connection that is refused anyway.
const REFUSED_TIME: Duration = Duration::from_secs(2);
/// Looks at whether anything moved, in each idle time.
const IDLE_LOOKS: u32 = 8;

/// One connection from inside a sandbox.
pub(super) struct Connection {
    pub(super) egress: Arc<Egress>,
    pub(super) link: Arc<Link>,
    /// Why this connection is too many: all that it asks for is refused with it.
    excess: Option<Refusal>,
    current: Mutex<Option<Arc<Exchange>>>,
    used: AtomicBool,
}

impl Connection {
    pub(super) fn new(egress: Arc<Egress>, link: Arc<Link>, excess: Option<Refusal>) -> Arc<Self> {
        link.open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            egress,
            link,
            excess,
            current: Mutex::default(),
            used: AtomicBool::new(false),
        })
    }

    /// Serves it to its end.
    pub(super) async fn run(self: Arc<Self>, stream: TcpStream) {
        // Subscribed before anything is decided: no change is missed.
        let mut changes = self.link.changes();
        let _ = stream.set_nodelay(true);
        let serve = self.serve(stream);
        let negotiated = tokio::select! {
            tunnel = serve => tunnel,
            () = self.cut(&mut changes) => None,
        };
        if let Some(tunnel) = negotiated {
            tunnel.run(self.cut(&mut changes)).await;
        }
    }

    async fn serve(self: &Arc<Self>, stream: TcpStream) -> Option<Tunnel> {
        let limit = if self.excess.is_some() {
            REFUSED_TIME
        } else {
            self.egress.limits.head
        };
        let mut first = [0];
        match timeout(limit, stream.peek(&mut first)).await {
            Ok(Ok(1)) => {}
            _ => return None,
        }
        match first[0] {
            socks::VERSION => socks::serve(self, stream, limit).await,
            socks::VERSION_4 => {
                socks::refuse_version_4(stream).await;
                None
            }
            _ => http::serve(self, stream, limit).await,
        }
    }

    /// Begins a use of the network, where the policy and the limits allow it.
    pub(super) fn begin(&self, aim: Aim) -> Result<Arc<Exchange>, Refusal> {
        let proxied = !matches!(aim, Aim::Packages);
        let exchange = Arc::new(Exchange::new(Arc::clone(&self.link), aim));
        // First of all, so that a change of the policy from here on finds it.
        self.set_current(Some(Arc::clone(&exchange)));
        let begun = match &self.excess {
            Some(refusal) => Err(refusal.clone()),
            // A connection has paid for its first request.
            None if proxied && self.used.swap(true, Ordering::Relaxed) => {
                self.egress.take_turn(&self.link)
            }
            None => Ok(()),
        };
        let begun = begun.and_then(|()| self.link.with_policy(|policy| exchange.check(policy)));
        match begun {
            Ok(()) => Ok(exchange),
            Err(refusal) => {
                exchange.refuse(&refusal);
                self.finish();
                Err(refusal)
            }
        }
    }

    /// Refuses what could not be read.
    pub(super) fn refuse_unreadable(&self, code: Code, text: &str, why: &str) -> Refusal {
        let refusal = Refusal::new(code, why);
        let aim = Aim::Unreadable(text.to_owned());
        Exchange::new(Arc::clone(&self.link), aim).refuse(&refusal);
        refusal
    }

    /// The use of the network that was begun last is over.
    pub(super) fn finish(&self) {
        self.set_current(None);
    }

    fn set_current(&self, exchange: Option<Arc<Exchange>>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, exchange);
        drop(current);
        // Its line is written without the lock.
        drop(before);
    }

    fn current(&self) -> Option<Arc<Exchange>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    /// Completes when the connection must end: the policy no longer allows what it does, or nothing
    /// moved for too long: a little more than the idle time, in which [`Exchange::stalled`] comes first.
    async fn cut(&self, changes: &mut tokio::sync::watch::Receiver<super::super::Policy>) {
        let idle = self.egress.limits.idle;
        let mut looks = interval(idle / IDLE_LOOKS);
        let (mut bytes, mut moved) = (0, Instant::now());
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    let Some(exchange) = self.current() else { continue };
                    let allowed = exchange.check(&changes.borrow_and_update());
                    if changed.is_err() || allowed.is_err() {
                        exchange.end_with("policy changed");
                        return;
                    }
                }
                _ = looks.tick() => {
                    let Some(exchange) = self.current() else {
                        moved = Instant::now();
                        continue;
                    };
                    if exchange.bytes() != bytes {
                        (bytes, moved) = (exchange.bytes(), Instant::now());
                    } else if moved.elapsed() > idle + idle / IDLE_LOOKS {
                        exchange.end_with("idle");
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.link.open.fetch_sub(1, Ordering::Relaxed);
    }
}
