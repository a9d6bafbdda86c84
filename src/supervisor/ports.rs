//! Servers inside a sandbox: which listen, and connections to them.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Supervisor;
use super::error::{Error, ErrorKind};
use super::sandbox::{InUse, Sandbox};
use crate::isolation;
use crate::network::PROXY_PORT;

/// Longest that a connection may take to come about. On the loopback interface that is at once, unless
/// the server's queue of connections is full (listen(2)).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes read of a table of sockets, some 28 000 lines. Sockets that listen come first in it
/// (`tcp_seq_start` of Linux's `net/ipv4/tcp_ipv4.c`), so other ones cannot hide them.
const TABLE_BYTES: u64 = 4 * 1024 * 1024;
/// Ports told of a sandbox: the lowest.
const LISTED_PORTS: usize = 1024;
/// `TCP_LISTEN` in the column `st` (proc_pid_net(5)).
const LISTENS: &str = "0A";

/// A TCP port on which something inside listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListeningPort {
    /// Its number.
    pub port: u16,
    /// The address it is bound to, which [`Supervisor::dial`] reaches: loopback or any.
    pub address: IpAddr,
}

/// Connections to servers of one sandbox.
#[derive(Debug)]
pub(super) struct Ports(Arc<Semaphore>);

impl Ports {
    /// For `most` connections at once.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))))
    }
}

/// A connection to a server inside.
#[derive(Debug)]
pub struct PortConnection {
    /// Hostile content.
    pub stream: TcpStream,
    /// To be held while the stream is.
    pub held: PortUse,
}

/// A connection's place among those that may be, and the use of its sandbox, which is not idle
/// meanwhile.
#[derive(Debug)]
pub struct PortUse {
    _place: OwnedSemaphorePermit,
    _in_use: InUse<Arc<Sandbox>>,
    sandbox: Arc<Sandbox>,
}

impl PortUse {
    /// Resolves when the sandbox is being closed. The stream must be dropped then: a socket keeps its
    /// network namespace.
    pub async fn closed(&self) {
        self.sandbox.wait_closed().await;
    }

    /// Whether [`PortUse::closed`] has resolved.
    pub fn is_closing(&self) -> bool {
        self.sandbox.is_closing()
    }
}

impl Supervisor {
    /// The TCP ports on which something inside listens that [`Supervisor::dial`] reaches, by number.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when the sandbox is being closed.
    pub async fn ports(&self, id: &str) -> Result<Vec<ListeningPort>, Error> {
        let sandbox = self.find(id)?;
        sandbox.refuse_closing()?;
        sandbox.touch();
        let _in_use = sandbox.begin_use();
        let pid = sandbox.init.process().pid();
        // The kernel goes through the whole host's table for it.
        let read = tokio::task::spawn_blocking(move || listening(pid)).await;
        // Until it is reaped no other process can have its id; it is not before it has exited.
        if sandbox.init.process().has_exited() {
            return Err(Error::sandbox_closing());
        }
        let read = read.map_err(io::Error::other).and_then(|read| read);
        read.map_err(|e| {
            Error::new(
                ErrorKind::Internal,
                "ports_failed",
                format!("failed to read the sockets of a sandbox: {e}"),
            )
        })
    }

    /// Connects to a TCP port inside, on 127.0.0.1, else on ::1.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a port that can have no server; `BadGateway` (`port_closed`) where
    /// nothing listens; `GatewayTimeout` where the server takes no connection; `Busy` when there are as
    /// many connections as allowed (`limits.port_connections`).
    pub async fn dial(&self, id: &str, port: u16) -> Result<PortConnection, Error> {
        let sandbox = self.find(id)?;
        // On the latter the supervisor itself answers.
        if port == 0 || port == PROXY_PORT {
            return Err(Error::invalid(
                "port",
                format!(
                    "port must be 1 to 65535 and not {PROXY_PORT}, which is the sandbox's way out"
                ),
            ));
        }
        sandbox.refuse_closing()?;
        sandbox.touch();
        let most = self.config().limits.port_connections;
        let place = Arc::clone(&sandbox.ports.0)
            .try_acquire_owned()
            .map_err(|_| Error::too_many_port_connections(most))?;
        let held = PortUse {
            _place: place,
            _in_use: InUse::of(Arc::clone(&sandbox)),
            sandbox,
        };
        let dialled = tokio::select! {
            dialled = timeout(CONNECT_TIMEOUT, reach(&held.sandbox, port)) => dialled,
            () = held.closed() => return Err(Error::sandbox_closing()),
        };
        match dialled {
            Ok(Ok(Some(stream))) => Ok(PortConnection { stream, held }),
            Ok(Ok(None)) => Err(Error::port_closed(port)),
            Ok(Err(e)) => Err(not_reached(&held.sandbox, port, &e)),
            Err(_) => Err(Error::new(
                ErrorKind::GatewayTimeout,
                "port_timeout",
                format!("the server on port {port} of the sandbox takes no more connections"),
            )),
        }
    }
}

async fn reach(sandbox: &Sandbox, port: u16) -> Result<Option<TcpStream>, isolation::Error> {
    match sandbox.init.dial(port, false).await? {
        Some(stream) => Ok(Some(stream)),
        None => sandbox.init.dial(port, true).await,
    }
}

fn not_reached(sandbox: &Sandbox, port: u16, error: &isolation::Error) -> Error {
    if sandbox.is_closing() || sandbox.init.process().has_exited() {
        return Error::sandbox_closing();
    }
    tracing::info!(
        sandbox = sandbox.id(),
        port,
        "a port was not reached: {error}"
    );
    Error::new(
        ErrorKind::BadGateway,
        "port_unreachable",
        format!("port {port} of the sandbox could not be reached"),
    )
}

/// From the tables of the network namespace that a process is in (proc_pid_net(5)).
fn listening(pid: i32) -> io::Result<Vec<ListeningPort>> {
    let mut all = Vec::new();
    for table in ["tcp", "tcp6"] {
        let file = match File::open(format!("/proc/{pid}/net/{table}")) {
            // A host without IPv6 has no second table.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let mut text = String::new();
        file.take(TABLE_BYTES).read_to_string(&mut text)?;
        all.extend(text.lines().skip(1).filter_map(listener));
    }
    all.retain(|found| found.port != PROXY_PORT && is_dialled(found.address));
    all.sort_unstable();
    all.dedup_by_key(|found| found.port);
    all.truncate(LISTED_PORTS);
    Ok(all)
}

/// Whether a connection to 127.0.0.1 or ::1 gets to a socket that is bound to this.
fn is_dialled(address: IpAddr) -> bool {
    address.is_unspecified()
        || [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].contains(&address)
}

/// A line of the table, where its socket listens.
fn listener(line: &str) -> Option<ListeningPort> {
    let mut columns = line.split_ascii_whitespace().skip(1);
    let (address, port) = columns.next()?.split_once(':')?;
    columns.next()?;
    (columns.next()? == LISTENS).then_some(())?;
    Some(ListeningPort {
        port: u16::from_str_radix(port, 16).ok()?,
        address: address_of(address)?,
    })
}

/// Addresses are written as 32-bit numbers in the machine's byte order, the memory as it is. An
/// IPv4 address in IPv6's table is given as such.
fn address_of(hex: &str) -> Option<IpAddr> {
    let words: Vec<[u8; 4]> = hex
        .as_bytes()
        .chunks(8)
        .map(|word| {
            let word = std::str::from_utf8(word).ok()?;
            Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
        })
        .collect::<Option<_>>()?;
    match words.as_slice() {
        [v4] => Some(Ipv4Addr::from(*v4).into()),
        words => {
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(octets).to_canonical())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn lines_of_sockets_that_listen_are_read() {
        let of = |address, port, state| {
            listener(&format!(
                "   0: {address}:{port} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  \
                 1000        0 4242 1 0000000000000000 100 0 0 10 0"
            ))
        };
        let found = |port, address: &str| {
            let address = address.parse().expect("an address");
            Some(ListeningPort { port, address })
        };
        assert_eq!(of("0100007F", "1F90", "0A"), found(8080, "127.0.0.1"));
        assert_eq!(of("00000000", "0050", "0A"), found(80, "0.0.0.0"));
        let loopback = "00000000000000000000000001000000";
        assert_eq!(of(loopback, "1F90", "0A"), found(8080, "::1"));
        let mapped = "0000000000000000FFFF00000100007F";
        assert_eq!(of(mapped, "1F90", "0A"), found(8080, "127.0.0.1"));
        assert_eq!(of("0100007F", "1F90", "01"), None, "one that is connected");
        for nonsense in [
            "",
            "x",
            "0: 0100007F",
            "0: zz:1F90 x 0A",
            "0: 01:1F90:2 x 0A",
        ] {
            assert_eq!(listener(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn what_listens_here_is_found_where_a_dial_would_reach_it() {
        let reached = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let elsewhere = std::net::TcpListener::bind("127.0.0.2:0").expect("a port");
        let port =
            |listener: &std::net::TcpListener| listener.local_addr().expect("an address").port();
        let pid = std::process::id() as i32;
        let all = listening(pid).expect("the tables can be read");
        let listed = |port| all.iter().any(|found| found.port == port);
        assert!(listed(port(&reached)), "{all:?}");
        assert!(!listed(port(&elsewhere)), "{all:?}");
    }
}
