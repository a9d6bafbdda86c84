//! From a target to a connected socket: looked up once, and connected to the address that was checked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::address::{behind_nat64, excepted, special};
use super::super::refusal::{Code, Refusal};
use super::super::target::{Host, Target};
use super::Egress;
use super::connection::Connection;
use super::exchange::{Aim, Exchange};

/// An address that has others behind it gets at least this, before the next is tried.
const LEAST_TRY: Duration = Duration::from_millis(250);

impl Connection {
    /// Begins an exchange with a target and connects to it. What fails is counted and logged.
    pub(super) async fn reach(
        &self,
        target: Target,
    ) -> Result<(Arc<Exchange>, TcpStream), Refusal> {
        let exchange = self.begin(Aim::Target(target.clone()))?;
        match self.dial(&target).await {
            Ok((stream, address)) => {
                exchange.reached(address);
                Ok((exchange, stream))
            }
            Err(refusal) => {
                exchange.refuse(&refusal);
                self.finish();
                Err(refusal)
            }
        }
    }

    async fn dial(&self, target: &Target) -> Result<(TcpStream, IpAddr), Refusal> {
        let deadline = Instant::now() + self.egress.limits.connect;
        let found = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let found = timeout_at(deadline, self.lookup(name)).await;
                let found = found.map_err(|_| {
                    failure(Code::Timeout, target, "looking up the name took too long")
                })?;
                found
                    .map_err(|_| failure(Code::Lookup, target, "the name could not be looked up"))?
            }
        };
        let addresses = self.egress.permitted(&found).map_err(|(address, why)| {
            let text = match (address, &target.host) {
                (None, _) => "the name has no address".to_owned(),
                (Some(address), Host::Name(name)) => {
                    format!("{name} is at {address}, which is not a public address ({why})")
                }
                (Some(address), Host::Address(_)) => {
                    format!("{address} is not a public address ({why})")
                }
            };
            let code = if address.is_some() {
                Code::Address
            } else {
                Code::Lookup
            };
            Refusal::of_target(code, target, &text)
        })?;
        let mut last = failure(Code::Timeout, target, "the host did not answer in time");
        for (index, address) in addresses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let behind = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            let most = (left / behind).max(LEAST_TRY).min(left);
            match timeout(
                most,
                TcpStream::connect(SocketAddr::new(*address, target.port)),
            )
            .await
            {
                Ok(Ok(stream)) => {
                    self.egress.check_connected(&stream, *address, target)?;
                    let _ = stream.set_nodelay(true);
                    return Ok((stream, *address));
                }
                Ok(Err(error)) => last = failure(Code::Unreachable, target, words(&error)),
                Err(_) => last = failure(Code::Timeout, target, "the host did not answer in time"),
            }
        }
        Err(last)
    }

    /// Runs on when the caller gives up: nothing can stop getaddrinfo(3), and its place is taken till then.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let closed = io::Error::other;
        let ours = Arc::clone(&self.link.lookups)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let all = Arc::clone(&self.egress.lookups)
            .acquire_owned()
            .await
            .map_err(closed)?;
        let (resolver, name) = (self.egress.resolver.clone(), name.to_owned());
        let lookup = tokio::spawn(async move {
            let found = resolver.lookup(&name).await;
            drop((ours, all));
            found
        });
        lookup.await?
    }
}

impl Egress {
    /// Those addresses that may be reached; where there is none, the first and why it may not.
    fn permitted(&self, found: &[IpAddr]) -> Result<Vec<IpAddr>, (Option<IpAddr>, &'static str)> {
        if !self.checks_addresses {
            return Ok(found.to_vec());
        }
        let own = own_addresses();
        let (mut permitted, mut first) = (Vec::new(), (None, ""));
        for address in found {
            match self.check_address(*address, &own) {
                Ok(()) => permitted.push(*address),
                Err(why) if first.0.is_none() => first = (Some(*address), why),
                Err(_) => {}
            }
        }
        if permitted.is_empty() {
            return Err(first);
        }
        Ok(permitted)
    }

    fn check_address(
        &self,
        address: IpAddr,
        own: &io::Result<Vec<IpAddr>>,
    ) -> Result<(), &'static str> {
        if excepted(address, &self.private) {
            return Ok(());
        }
        if let Some(why) = special(address) {
            return Err(why);
        }
        let own = own
            .as_ref()
            .map_err(|_| "the host's own addresses are not known")?;
        let behind = behind_nat64(address).map(IpAddr::V4);
        if own
            .iter()
            .any(|ours| *ours == address || Some(*ours) == behind)
        {
            return Err("an address of the host itself");
        }
        Ok(())
    }

    /// The kernel connected to what was checked, and not to this host: addresses come and go, and routes
    /// can make more of them local than interfaces have.
    fn check_connected(
        &self,
        stream: &TcpStream,
        address: IpAddr,
        target: &Target,
    ) -> Result<(), Refusal> {
        if !self.checks_addresses {
            return Ok(());
        }
        let ends = stream
            .peer_addr()
            .and_then(|peer| Ok((peer, stream.local_addr()?)));
        let (peer, local) =
            ends.map_err(|_| failure(Code::Unreachable, target, "the host broke off"))?;
        let to_itself = peer.ip() == local.ip() && !excepted(address, &self.private);
        if peer.ip() != address || to_itself {
            let why = format!("{address} is not a public address (an address of the host itself)");
            return Err(Refusal::of_target(Code::Address, target, &why));
        }
        Ok(())
    }
}

fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let interfaces = getifaddrs()?;
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addresses.collect())
}

fn failure(code: Code, target: &Target, why: &str) -> Refusal {
    Refusal::of_target(code, target, why)
}

/// What a failed connect means to the one who asked; nothing about this host.
fn words(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "nothing listens on that port there",
        io::ErrorKind::ConnectionReset => "the host broke off",
        io::ErrorKind::TimedOut => "the host did not answer in time",
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "there is no way to the host"
        }
        _ => "connecting failed",
    }
}
