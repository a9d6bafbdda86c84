//! The proxy: one port, on which HTTP `CONNECT`, HTTP requests in absolute form, SOCKS5 and requests to
//! the package gateway are told apart by their first bytes.
//!
//! ```text
//! accept ── too many? ──► answered 429, slowly          a head that does not come ──► closed
//!   │
//!   ▼ first byte
//! SOCKS5 ─┐                                        ┌─► refused: 403 or SOCKS reply 2, logged
//! CONNECT ┼─► Target (parsed once) ─► Policy ─► addresses (looked up once) ─► each public? ─► connect
//! http:// ┘                                                                                   │
//! path ─────► policy has packages? ─► Gateway           tunnel, or one request forwarded ◄────┘
//! ```
//!
//! Every connection is one task. It ends when the policy no longer allows what it does, when nothing
//! moves for the idle time, or with [`Egress::serve`].

mod connection;
mod dial;
mod exchange;
mod http;
mod link;
mod resolver;
mod socks;
mod stream;
mod tunnel;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use ipnet::IpNet;
use nix::libc;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use self::connection::Connection;
pub use self::link::{Link, Refused, Stats};
pub use self::resolver::Resolver;
use super::refusal::{Code, Refusal};
use super::rule::parse_network;
use crate::config;

/// Connections of one sandbox over its limit that are told so at once; more are closed unanswered.
const REFUSED_AT_ONCE: usize = 16;
/// Pause after each connection over a limit: refusing costs the service's time, not the sandbox's.
const EXCESS_PAUSE: Duration = Duration::from_millis(5);
/// Of the descriptors that this process may have, one connection of all sandboxes' for so many. Each
/// takes up to two, so that half are left to sandboxes and to clients.
const DESCRIPTORS_PER_CONNECTION: u64 = 4;
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// In this time the head of a request must have arrived, or the next on a connection that stays open.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Lookups at once of the whole service: each holds a thread of the runtime's until the resolver gives
/// up, whoever waits for it or not.
const LOOKUPS: usize = 64;

/// What answers requests for a path of the listener itself: the package index, for a sandbox's id.
pub type Index =
    Arc<dyn Fn(&str, Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// The proxy of all sandboxes.
pub struct Egress {
    limits: Limits,
    private: Vec<IpNet>,
    gateway: Option<Index>,
    resolver: Resolver,
    lookups: Arc<Semaphore>,
    /// One for each connection of any sandbox.
    slots: Arc<Semaphore>,
    checks_addresses: bool,
}

/// [`config::Network`], as it is used here.
struct Limits {
    connections: usize,
    connections_per_second: u32,
    head: Duration,
    connect: Duration,
    idle: Duration,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").finish_non_exhaustive()
    }
}

impl Egress {
    /// A proxy with these limits, in front of a gateway.
    ///
    /// # Errors
    /// Names the key of the configuration that is not right, and what would be.
    pub fn new(network: &config::Network, gateway: Option<Index>) -> Result<Self, String> {
        let at_least_1 = [
            ("connections", network.connections as u64),
            (
                "connections_per_second",
                network.connections_per_second.into(),
            ),
            ("connect_timeout_seconds", network.connect_timeout_seconds),
            ("idle_timeout_seconds", network.idle_timeout_seconds),
        ];
        if let Some((key, _)) = at_least_1.iter().find(|(_, value)| *value == 0) {
            return Err(format!("network.{key} must be 1 or more"));
        }
        let parse = |(index, text): (usize, &String)| {
            parse_network(text)
                .map_err(|why| format!("network.private_cidrs[{index}] ({text:?}): {why}"))
        };
        let private: Result<_, String> = network
            .private_cidrs
            .iter()
            .enumerate()
            .map(parse)
            .collect();
        Ok(Self {
            limits: Limits {
                connections: network.connections,
                connections_per_second: network.connections_per_second,
                head: HEAD_TIME,
                connect: Duration::from_secs(network.connect_timeout_seconds),
                idle: Duration::from_secs(network.idle_timeout_seconds),
            },
            private: private?,
            gateway,
            resolver: Resolver::Host,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            slots: Arc::new(Semaphore::new(slots())),
            checks_addresses: true,
        })
    }

    /// The same with names looked up otherwise than the host does.
    #[doc(hidden)]
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// The same with another time for heads, of which tests cannot wait for half a minute.
    #[doc(hidden)]
    #[must_use]
    pub fn with_head_time(mut self, head: Duration) -> Self {
        self.limits.head = head;
        self
    }

    /// The same with every address taken for a public one: what tests of the refusals are compared with.
    #[doc(hidden)]
    #[must_use]
    pub fn without_address_checks(mut self) -> Self {
        self.checks_addresses = false;
        self
    }

    /// Serves one sandbox's listener until that fails. All connections end when the future is dropped.
    ///
    /// # Errors
    /// What `accept` failed with, where trying again is no use.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, link: Arc<Link>) -> io::Error {
        let mut connections = JoinSet::new();
        let mut refused = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    report(ended);
                    continue;
                }
                Some(ended) = refused.join_next(), if !refused.is_empty() => {
                    report(ended);
                    continue;
                }
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) if is_passing(&error) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
                Err(error) => return error,
            };
            while connections.try_join_next().map(report).is_some() {}
            let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
                let text = "the service has no connection left for sandboxes: try again later";
                link.note_refusal("", 0, &Refusal::new(Code::Limit, text));
                drop(stream);
                tokio::time::sleep(EXCESS_PAUSE).await;
                continue;
            };
            let excess = self.excess(&link, connections.len());
            if excess.is_none() {
                connections.spawn(run(self.connection(&link, None), stream, slot));
                continue;
            }
            if refused.len() < REFUSED_AT_ONCE {
                refused.spawn(run(self.connection(&link, excess), stream, slot));
            }
            tokio::time::sleep(EXCESS_PAUSE).await;
        }
    }

    /// Why a further connection is too many, if it is.
    fn excess(&self, link: &Link, open: usize) -> Option<Refusal> {
        let most = self.limits.connections;
        if open >= most {
            let text = format!(
                "the sandbox has {most} connections already: close some, or use them again"
            );
            return Some(Refusal::new(Code::Limit, &text));
        }
        self.take_turn(link).err()
    }

    /// Takes one of the connections that a sandbox may make in a second.
    fn take_turn(&self, link: &Link) -> Result<(), Refusal> {
        let per_second = self.limits.connections_per_second;
        if link.take_connection(per_second) {
            return Ok(());
        }
        let text = format!(
            "the sandbox makes more than {per_second} connections in a second: wait a second"
        );
        Err(Refusal::new(Code::Limit, &text))
    }

    fn connection(self: &Arc<Self>, link: &Arc<Link>, excess: Option<Refusal>) -> Arc<Connection> {
        Connection::new(Arc::clone(self), Arc::clone(link), excess)
    }
}

async fn run(connection: Arc<Connection>, stream: TcpStream, _slot: OwnedSemaphorePermit) {
    connection.run(stream).await;
}

/// Connections of all sandboxes that the limit of descriptors (getrlimit(2)) leaves room for.
fn slots() -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let slots = usize::try_from(most / DESCRIPTORS_PER_CONNECTION).unwrap_or(usize::MAX);
    slots.clamp(1, Semaphore::MAX_PERMITS)
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("a connection of a sandbox panicked");
    }
}

/// Whether `accept` may work again after an error (accept(2)): a connection that was gone already, or
/// want of descriptors or memory.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPERM
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOBUFS
                | libc::ENOMEM
        )
    )
}
