//! Who may talk to the port: the name it was called by (`Host`), the page that calls (`Origin`),
//! and the caller's key.
//!
//! A web page can make a browser on this machine send requests to a loopback port. What it cannot
//! choose is the `Host` header, which is the name in its own address bar even after that name was
//! rebound to 127.0.0.1, nor the `Origin` header of a cross-site call. So a request is for us when
//! `Host` is an address literal or name that no outsider controls, and comes from us when `Origin`
//! is absent (not a browser) or on the list. Everything is parsed strictly: what is not a plain
//! `host[:port]` is refused, never normalised, because each normalisation (userinfo, trailing dots,
//! octal and decimal addresses) has been a bypass somewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::{HeaderMap, Uri, header};
use sha2::{Digest, Sha256};

use super::error::{Error, Refusal};
use crate::config::{self, ApiKey};
use crate::supervisor::Owner;

/// Entry of `allowed_origins` that stands for all.
const ANY_ORIGIN: &str = "*";
const API_KEY_HEADER: &str = "x-api-key";

/// The checks of one listening address.
#[derive(Debug)]
pub(crate) struct Guard {
    listen: IpAddr,
    hosts: Vec<Authority>,
    origins: Vec<String>,
    /// Whether `*` is listed: pages of everywhere, but for those from inside sandboxes.
    any_origin: bool,
    keys: Vec<Key>,
    /// Lower case, with a dot before it.
    ports_suffix: String,
}

/// One who may use the service.
#[derive(Debug)]
struct Key {
    digest: [u8; 32],
    owner: Owner,
}

impl Key {
    fn new(place: usize, key: &ApiKey) -> Self {
        let digest = key.digest();
        // A key without a name is a stranger to the one that has its place in another list.
        let tag = key.name.is_none().then_some(digest);
        let (most, rate) = (key.max_sandboxes, key.executions_per_minute);
        let owner = Owner::new(key.name_at(place), tag, most, rate);
        Self { digest, owner }
    }
}

/// A host and, where given, its port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authority {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    /// Lower case.
    Name(String),
}

impl Guard {
    /// Checks for a service that listens on `listen`; refuses what [`check`] refuses.
    pub(crate) fn new(server: &config::Server, listen: SocketAddr) -> Result<Self, Error> {
        check(server, listen)?;
        Ok(Self {
            listen: listen.ip(),
            hosts: server
                .allowed_hosts
                .iter()
                .filter_map(|entry| Authority::parse(entry))
                .collect(),
            origins: server
                .allowed_origins
                .iter()
                .map(|origin| origin.to_ascii_lowercase())
                .collect(),
            any_origin: server.allowed_origins.iter().any(|o| o == ANY_ORIGIN),
            keys: (server.api_keys.iter().enumerate())
                .map(|(place, key)| Key::new(place, key))
                .collect(),
            ports_suffix: format!(".{}", server.ports_domain.to_ascii_lowercase()),
        })
    }

    /// Goes on with what the keys of another guard have left of their allowances.
    pub(crate) fn succeed(&mut self, old: &Self) {
        for key in &mut self.keys {
            if let Some(before) = old.keys.iter().find(|before| before.owner == key.owner) {
                let same_key = same(&before.digest, &key.digest);
                key.owner = key.owner.succeed(&before.owner, same_key);
            }
        }
    }

    /// Ends what was opened with keys of this guard that another has no more, or as somebody else's.
    pub(crate) fn revoke_for(&self, new: &Self) {
        let stays = |key: &Key| {
            (new.keys.iter()).any(|n| n.owner == key.owner && same(&n.digest, &key.digest))
        };
        for gone in self.keys.iter().filter(|key| !stays(key)) {
            gone.owner.revoke();
        }
    }

    /// Whether the request is for a name of ours.
    pub(crate) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut values = headers.get_all(header::HOST).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(Refusal::bad_request(
                "bad_host",
                "a request needs exactly one Host header",
            ));
        };
        let named = value.to_str().ok().and_then(Authority::parse);
        // The target of an absolute-form request (`GET http://name/ HTTP/1.1`) overrules `Host`.
        let target = uri
            .authority()
            .map(|authority| Authority::parse(authority.as_str()));
        let allowed = named.is_some_and(|host| self.serves(&host))
            && target.is_none_or(|host| host.is_some_and(|host| self.serves(&host)));
        if allowed {
            return Ok(());
        }
        Err(Refusal::forbidden(
            "host_not_allowed",
            "this service does not answer to that Host; [server] allowed_hosts lists more names",
        ))
    }

    /// Whether a browser sent this from a page that may call us, or is ours. Other clients send no
    /// `Origin`. The `Host` must have been checked before.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut values = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = values.next() else {
            return Ok(());
        };
        let allowed = values.next().is_none()
            && origin
                .to_str()
                .is_ok_and(|origin| self.admits_origin(origin) || is_own(origin, headers));
        if allowed {
            return Ok(());
        }
        Err(Refusal::forbidden(
            "origin_not_allowed",
            "pages of that Origin may not call this service; [server] allowed_origins lists more",
        ))
    }

    /// Whether a page of this `Origin` may call: it is trusted, or every page may.
    pub(crate) fn admits_origin(&self, origin: &str) -> bool {
        let elsewhere = || {
            let (_, host) = origin.split_once("://")?;
            let inside = self.is_inside(&host.to_ascii_lowercase());
            (is_origin(origin) && !inside).then_some(())
        };
        self.trusts_origin(origin) || self.any_origin && elsewhere().is_some()
    }

    /// Whether the list holds this `Origin` by name, or it is a page of this machine.
    pub(crate) fn trusts_origin(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        self.origins.contains(&origin)
            || origin
                .strip_prefix("http://")
                .or_else(|| origin.strip_prefix("https://"))
                .and_then(Authority::parse)
                .is_some_and(|authority| authority.host.is_loopback())
    }

    /// Whose key the request carries; `None` where there are no keys.
    ///
    /// # Errors
    /// There are keys, and it carries none of them.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Option<Owner>, Refusal> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let owner = self.presented(headers).ok_or_else(unauthorized)?;
        Ok(Some(owner.clone()))
    }

    /// Whether the request carries one of the keys in a header.
    pub(crate) fn presents_key(&self, headers: &HeaderMap) -> bool {
        self.presented(headers).is_some()
    }

    /// The owner of the first header's key that is one.
    fn presented(&self, headers: &HeaderMap) -> Option<&Owner> {
        // None is skipped once one was right, so that time tells nothing.
        presented_keys(headers).fold(None, |known, key| {
            let owner = self.owner_of(key);
            known.or(owner)
        })
    }

    /// Whose key this is.
    fn owner_of(&self, text: &str) -> Option<&Owner> {
        let presented = digest(text);
        self.owner_where(|key| same(&key.digest, &presented))
    }

    /// Whose key this is true of; all are asked.
    fn owner_where(&self, mut is_it: impl FnMut(&Key) -> bool) -> Option<&Owner> {
        self.keys.iter().fold(None, |known, key| {
            let found = is_it(key);
            known.or(found.then_some(&key.owner))
        })
    }

    fn serves(&self, called: &Authority) -> bool {
        let ours = match &called.host {
            host if host.is_loopback() => true,
            // A name can be rebound, an address cannot: whoever wrote an address meant it.
            Host::Address(address) => *address == self.listen || self.listen.is_unspecified(),
            Host::Name(_) => false,
        };
        ours || self.hosts.iter().any(|entry| {
            entry.host == called.host && entry.port.is_none_or(|p| called.port == Some(p))
        })
    }
}

/// Refuses a configuration that would let strangers run code, or that cannot mean what it says.
pub(crate) fn check(server: &config::Server, listen: SocketAddr) -> Result<(), Error> {
    config::key::check(&server.api_keys).map_err(Error::Useless)?;
    if !listen.ip().is_loopback() && server.api_keys.is_empty() {
        return Err(Error::Exposed(listen));
    }
    let domain = Authority::parse(&server.ports_domain);
    if !domain.is_some_and(|d| d.port.is_none() && matches!(d.host, Host::Name(_))) {
        return Err(Error::BadEntry {
            list: "ports_domain",
            entry: server.ports_domain.clone(),
            expected: "a domain name such as localhost",
        });
    }
    for entry in &server.allowed_hosts {
        if Authority::parse(entry).is_none() {
            return Err(Error::BadEntry {
                list: "allowed_hosts",
                entry: entry.clone(),
                expected: "a host name or address, optionally with a port",
            });
        }
    }
    for entry in &server.allowed_origins {
        if entry == ANY_ORIGIN && server.api_keys.is_empty() {
            return Err(Error::Useless(
                "[server] allowed_origins: \"*\" needs api_keys: without them every page of the web \
                 could run code here"
                    .into(),
            ));
        }
        if entry != ANY_ORIGIN && !is_origin(entry) {
            return Err(Error::BadEntry {
                list: "allowed_origins",
                entry: entry.clone(),
                expected: "an origin such as https://app.example.com, or \"*\"",
            });
        }
    }
    Ok(())
}

fn is_origin(entry: &str) -> bool {
    entry.split_once("://").is_some_and(|(scheme, rest)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        !scheme.is_empty() && scheme.chars().all(plain) && Authority::parse(rest).is_some()
    })
}

/// Whether the page that calls is one of ours: its origin is the `Host` that the request is for, which
/// is a name of ours ([`Guard::check_host`]) that no other server has on this port.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    let page = ["http://", "https://"]
        .iter()
        .find_map(|scheme| origin.strip_prefix(scheme));
    let called = headers.get(header::HOST).and_then(|h| h.to_str().ok());
    let page = page.and_then(Authority::parse);
    page.is_some() && page == called.and_then(Authority::parse)
}

fn unauthorized() -> Refusal {
    Refusal::new(
        axum::http::StatusCode::UNAUTHORIZED,
        "unauthorized",
        "send a key as `Authorization: Bearer KEY` or `X-API-Key: KEY`",
    )
    .with_header(
        header::WWW_AUTHENTICATE,
        header::HeaderValue::from_static("Bearer"),
    )
}

fn bearer(value: &header::HeaderValue) -> Option<&str> {
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn presented_keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(bearer);
    let plain = headers
        .get(API_KEY_HEADER)
        .and_then(|value| value.to_str().ok());
    bearer.into_iter().chain(plain)
}

/// Keys are kept and compared as digests: equal length, and nothing to read out of memory.
fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn same(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left
        .iter()
        .zip(right)
        .fold(0, |sum, (left, right)| sum | (left ^ right));
    std::hint::black_box(difference) == 0
}

impl Authority {
    /// `name`, `name:port`, `1.2.3.4:port`, `[::1]:port` and nothing else.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (
                    Host::Address(IpAddr::V6(address.parse::<Ipv6Addr>().ok()?)),
                    port,
                )
            }
            None => {
                let end = text.find(':').unwrap_or(text.len());
                let (name, port) = text.split_at(end);
                (Host::parse_name(name)?, port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            _ => return None,
        };
        Some(Self { host, port })
    }
}

impl Host {
    fn parse_name(name: &str) -> Option<Self> {
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Some(Self::Address(IpAddr::V4(address)));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let label = |label: &str| !label.is_empty() && label.bytes().all(plain);
        // A last label that is a number makes the whole an address to some resolvers (`127.1`,
        // `0x7f.1`), so it is no name.
        let numeric = name.rsplit('.').next().is_some_and(|last| {
            let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
            last.bytes().all(|byte| byte.is_ascii_digit())
                || hex.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
        });
        (name.split('.').all(label) && !numeric).then(|| Self::Name(name.to_ascii_lowercase()))
    }

    /// Names and addresses that lead to this machine whatever a name server says. 0.0.0.0 is what
    /// clients copy from "listening on 0.0.0.0", and connects to loopback.
    fn is_loopback(&self) -> bool {
        match self {
            Self::Address(address) => address.is_loopback() || address.is_unspecified(),
            Self::Name(name) => name == "localhost",
        }
    }
}

mod ports;

pub(crate) use ports::{KEY_NAME, PortName, port_number};

#[cfg(test)]
mod tests;
