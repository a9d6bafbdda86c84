//! Names to addresses.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::net::lookup_host;

/// Addresses of one name that are looked at.
pub(super) const ADDRESSES: usize = 16;

/// Where addresses of names come from.
#[derive(Clone)]
pub enum Resolver {
    /// The host: its files, its name servers, in the order that it is configured with (getaddrinfo(3)).
    Host,
    /// A function; for tests.
    #[doc(hidden)]
    Fixed(Arc<Answers>),
}

/// The addresses of a name.
#[doc(hidden)]
pub type Answers = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

impl Resolver {
    /// The first addresses of a name, mapped IPv6 ones as the IPv4 ones that they are.
    pub(super) async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found: Vec<IpAddr> = match self {
            Self::Host => {
                let found = lookup_host((name, 0)).await?;
                found.map(|address| address.ip()).take(ADDRESSES).collect()
            }
            Self::Fixed(answer) => answer(name),
        };
        let canonical = found.iter().map(IpAddr::to_canonical);
        Ok(canonical.take(ADDRESSES).collect())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "Host",
            Self::Fixed(_) => "Fixed",
        })
    }
}
