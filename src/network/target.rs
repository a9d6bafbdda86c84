//! What a request wants to reach: parsed once, here, and nowhere else.
//!
//! Resolvers, URL libraries and `inet_aton` read `2130706433`, `0177.0.0.1`, `0x7f.1` and `127.1` as
//! addresses, each a little differently. Here a host is a canonical address or a name that no such
//! reader takes for one; everything in between is refused, so that nothing reaches the resolver that
//! could come back as an address nobody checked.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name in bytes, without the dot at its end (RFC 1035, section 2.3.4).
pub(super) const NAME_BYTES: usize = 253;
/// Longest part between dots (the same).
const LABEL_BYTES: usize = 63;

/// A host: an address, or a name in lower case without a dot at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A canonical address; a mapped IPv6 one is the IPv4 address in it.
    Address(IpAddr),
    /// A name of letters, digits, `-` and `_`, whose last label is no number.
    Name(String),
}

/// A host and a port that is not 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where to.
    pub host: Host,
    /// 1 to 65535.
    pub port: u16,
}

impl Host {
    /// Reads a name or an address. IPv6 stands with or without brackets.
    ///
    /// # Errors
    /// Says what is wrong, without the text itself.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or("a bracket is not closed")?;
            return parse_v6(inner);
        }
        if text.contains(':') {
            return parse_v6(text);
        }
        parse_name(text)
    }
}

fn parse_v6(text: &str) -> Result<Host, &'static str> {
    if text.contains('%') {
        return Err("an IPv6 address with a zone means nothing outside the host that has the zone");
    }
    let address: Ipv6Addr = text.parse().map_err(|_| "not an IPv6 address")?;
    Ok(Host::Address(IpAddr::V6(address).to_canonical()))
}

fn parse_name(text: &str) -> Result<Host, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("no host");
    }
    if name.len() > NAME_BYTES {
        return Err("longer than a host name can be, 253 bytes");
    }
    if !name.is_ascii() {
        return Err("not ASCII: write the name in punycode (xn--...)");
    }
    if let Ok(address) = name.parse::<Ipv4Addr>() {
        return Ok(Host::Address(address.into()));
    }
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.bytes().all(good) {
        return Err("a host name has letters, digits, '-', '_' and '.' only");
    }
    let bad_label = |label: &str| {
        label.is_empty()
            || label.len() > LABEL_BYTES
            || label.starts_with('-')
            || label.ends_with('-')
    };
    if name.split('.').any(bad_label) {
        return Err("each part of a host name has 1 to 63 bytes and no '-' at its ends");
    }
    let name = name.to_ascii_lowercase();
    if name.rsplit('.').next().is_some_and(is_number) {
        return Err("an IPv4 address is written as four decimal numbers without leading zeros");
    }
    Ok(Host::Name(name))
}

/// The rule of the URL standard for "ends in a number": such a host is an IPv4 address or nothing.
fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit()) || label.starts_with("0x")
}

impl Target {
    /// Reads `host:port` or `[v6]:port`; without a port, `default_port` where there is one.
    ///
    /// # Errors
    /// Says what is wrong, without the text itself.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, &'static str> {
        if text.contains('@') {
            return Err("a user name or password has no place in it");
        }
        let (host, port) = split_port(text)?;
        let port = match port {
            Some(port) => parse_port(port)?,
            None => default_port.ok_or("the port is missing")?,
        };
        if host.contains(':') && !host.starts_with('[') {
            return Err("an IPv6 address with a port stands in brackets");
        }
        let host = Host::parse(host)?;
        Ok(Self { host, port })
    }
}

/// Splits `host:port`, `[v6]:port` or either without port; bare IPv6 stays whole.
pub(super) fn split_port(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    if text.starts_with('[') {
        let end = text.find(']').ok_or("a bracket is not closed")? + 1;
        let (host, rest) = text.split_at(end);
        if rest.is_empty() {
            return Ok((host, None));
        }
        let port = rest.strip_prefix(':');
        return port
            .map(|port| (host, Some(port)))
            .ok_or("only ':' and a port may follow the bracket");
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

/// Digits only: `u16::from_str` takes a plus sign.
pub(super) fn parse_port(text: &str) -> Result<u16, &'static str> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.then(|| text.parse().ok()).flatten();
    port.filter(|port| *port != 0 && !text.starts_with('0'))
        .ok_or("a port is a number from 1 to 65535")
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lowered_and_lose_the_dot_at_their_end() {
        for (text, name) in [
            ("Example.COM.", "example.com"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("_dmarc.example", "_dmarc.example"),
            ("1.2.3.4.example", "1.2.3.4.example"),
            ("0x7f.example", "0x7f.example"),
        ] {
            assert_eq!(Host::parse(text), Ok(Host::Name(name.into())), "{text}");
        }
    }

    #[test]
    fn addresses_are_read_in_their_one_form() {
        for (text, address) in [
            ("93.184.216.34", "93.184.216.34"),
            ("127.0.0.1.", "127.0.0.1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("[::ffff:127.0.0.1]", "127.0.0.1"),
            ("[::FFFF:7f00:1]", "127.0.0.1"),
            ("0:0:0:0:0:ffff:a9fe:a9fe", "169.254.169.254"),
        ] {
            assert_eq!(
                Host::parse(text),
                Ok(Host::Address(address.parse().unwrap())),
                "{text}"
            );
        }
    }

    #[test]
    fn what_some_reader_takes_for_an_address_is_nothing() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long_name = ["a"; 128].join(".");
        for text in [
            "",
            ".",
            "..",
            "2130706433",
            "0177.0.0.1",
            "0x7f.1",
            "0x7f000001",
            "0X7F.0.0.1",
            "127.1",
            "127.0.1",
            "0",
            "1.2.3.4.5",
            "256.1.1.1",
            "127.0.0.1..",
            "example.0x",
            "example.12",
            "127.0.0.01",
            "a..b",
            ".a",
            "-a.example",
            "a-.example",
            "a b",
            "a\0.example",
            "a\r\nX: y",
            "a%2eexample",
            "127.0.0.1%00",
            "user@example",
            "[fe80::1%eth0]",
            "fe80::1%25eth0",
            "[::1",
            "::1]",
            "[127.0.0.1]",
            "[example]",
            "[v1.x]",
            "１２７.0.0.1",
            "ⓔxample.com",
            "127。0。0。1",
            "bücher.example",
            "a/b",
            "a\\b",
            "a#b",
            "a?b",
            "*.example",
            ":::",
            "1:2:3:4:5:6:7:8:9",
            &long_label,
            &long_name,
        ] {
            assert!(
                Host::parse(text).is_err(),
                "{text:?}: {:?}",
                Host::parse(text)
            );
        }
    }

    #[test]
    fn a_target_has_a_port() {
        let target = Target::parse("Example.com:443", None).unwrap();
        assert_eq!(target.to_string(), "example.com:443");
        assert_eq!(
            Target::parse("[2600::1]:80", None).unwrap().to_string(),
            "[2600::1]:80"
        );
        assert_eq!(Target::parse("example.com", Some(80)).unwrap().port, 80);
        for text in [
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:+80",
            "example.com:080",
            "example.com:65536",
            "example.com:80:80",
            "2600::1:80",
            "[2600::1]",
            "[2600::1]x:80",
            "user@example.com:80",
            "user:secret@example.com:80",
            "example.com:80@127.0.0.1:80",
            ":80",
            "example.com: 80",
            "example.com:8O",
            "example.com:８０",
        ] {
            assert!(Target::parse(text, None).is_err(), "{text:?}");
        }
    }
}
