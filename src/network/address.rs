//! Which addresses are public.
//!
//! The tables are IANA's registries of special-purpose addresses (RFC 6890, and what was added since):
//! <https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>, with multicast (RFC 5771, RFC 4291) and
//! what clouds put behind addresses of their own. Of IPv6 only the part that is global unicast
//! (`2000::/3`, RFC 4291) can be public at all: what IANA has not given out yet is not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(s: [u16; 8], bits: u8) -> Ipv6Net {
    let address = Ipv6Addr::new(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
    Ipv6Net::new_assert(address, bits)
}

/// IPv4 that is not public, the narrower before the wider, with why. The AS112 and AMT networks
/// (192.31.196.0/24, 192.175.48.0/24, 192.52.193.0/24) are globally reachable and so not here.
const SPECIAL_V4: &[(Ipv4Net, &str)] = &[
    (v4(169, 254, 169, 254, 32), "cloud metadata"),
    (v4(169, 254, 170, 2, 32), "cloud metadata"),
    (v4(100, 100, 100, 200, 32), "cloud metadata"),
    (v4(168, 63, 129, 16, 32), "cloud metadata"),
    (v4(192, 0, 0, 192, 32), "cloud metadata"),
    (v4(0, 0, 0, 0, 8), "\"this\" network, RFC 791"),
    (v4(10, 0, 0, 0, 8), "private, RFC 1918"),
    (v4(100, 64, 0, 0, 10), "shared by a carrier's NAT, RFC 6598"),
    (v4(127, 0, 0, 0, 8), "loopback, RFC 1122"),
    (v4(169, 254, 0, 0, 16), "link-local, RFC 3927"),
    (v4(172, 16, 0, 0, 12), "private, RFC 1918"),
    (v4(192, 0, 0, 0, 24), "IETF protocols, RFC 6890"),
    (v4(192, 0, 2, 0, 24), "documentation, RFC 5737"),
    (v4(192, 88, 99, 0, 24), "6to4 relays, RFC 7526"),
    (v4(192, 168, 0, 0, 16), "private, RFC 1918"),
    (v4(198, 18, 0, 0, 15), "benchmarking, RFC 2544"),
    (v4(198, 51, 100, 0, 24), "documentation, RFC 5737"),
    (v4(203, 0, 113, 0, 24), "documentation, RFC 5737"),
    (v4(224, 0, 0, 0, 4), "multicast, RFC 5771"),
    (v4(255, 255, 255, 255, 32), "broadcast, RFC 919"),
    (v4(240, 0, 0, 0, 4), "reserved, RFC 1112"),
];

/// Likewise IPv6. What carries an IPv4 address to a tunnel's end (6to4, Teredo) is refused whatever it
/// carries: the packet would leave for a relay that nobody chose.
const SPECIAL_V6: &[(Ipv6Net, &str)] = &[
    (
        v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128),
        "cloud metadata",
    ),
    (
        v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
        "cloud metadata",
    ),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified, RFC 4291"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback, RFC 4291"),
    (
        v6([0, 0, 0, 0, 0, 0, 0, 0], 96),
        "IPv4-compatible, RFC 4291",
    ),
    (
        v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96),
        "IPv4-mapped, RFC 4291",
    ),
    (
        v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96),
        "IPv4-translated, RFC 2765",
    ),
    (
        v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48),
        "a site's NAT64, RFC 8215",
    ),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded, RFC 6666"),
    (v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64), "dummy, RFC 9780"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo, RFC 4380"),
    (
        v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48),
        "benchmarking, RFC 5180",
    ),
    (v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28), "ORCHID, RFC 4843"),
    (
        v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28),
        "ORCHIDv2, RFC 7343",
    ),
    (
        v6([0x2001, 0x30, 0, 0, 0, 0, 0, 0], 28),
        "drone identifiers, RFC 9374",
    ),
    (
        v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
        "IETF protocols, RFC 2928",
    ),
    (
        v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
        "documentation, RFC 3849",
    ),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4, RFC 3056"),
    (
        v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
        "documentation, RFC 9637",
    ),
    (
        v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16),
        "segment routing, RFC 9602",
    ),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private, RFC 4193"),
    (
        v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
        "link-local, RFC 4291",
    ),
    (
        v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10),
        "site-local, RFC 3879",
    ),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast, RFC 4291"),
];

const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// NAT64 of RFC 6052: on a host without IPv4, the resolver's only way to name an IPv4 address.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);
const METADATA: &str = "cloud metadata";

/// Why an address is not public; `None` where it is.
pub fn special(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// Whether a host's list of networks that are not public, but may be reached, has an address. What is
/// no destination of a connection (unspecified, multicast, broadcast) is never in it, and an address of
/// a cloud's metadata only where it is listed by itself, as it hands out the host's credentials.
pub fn excepted(address: IpAddr, networks: &[IpNet]) -> bool {
    let address = address.to_canonical();
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return false;
    }
    let metadata = special(address) == Some(METADATA);
    networks.iter().any(|network| {
        network.contains(&address)
            && (!metadata || network.prefix_len() == network.max_prefix_len())
    })
}

/// The IPv4 address that a NAT64 would send an address's packets to.
pub fn behind_nat64(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V6(address) if NAT64.contains(&address) => Some(last_32_bits(address)),
        _ => None,
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let of = |(network, _): &&(Ipv4Net, _)| network.contains(&address);
    SPECIAL_V4.iter().find(of).map(|(_, why)| *why)
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    if NAT64.contains(&address) {
        return special_v4(last_32_bits(address));
    }
    let of = |(network, _): &&(Ipv6Net, _)| network.contains(&address);
    if let Some((_, why)) = SPECIAL_V6.iter().find(of) {
        return Some(why);
    }
    if !GLOBAL_UNICAST.contains(&address) {
        return Some("not global unicast, RFC 4291");
    }
    if is_isatap(address) {
        return special_v4(last_32_bits(address));
    }
    None
}

/// Interface identifiers `[02]00:5efe:a.b.c.d` name the IPv4 end of a tunnel (RFC 5214).
fn is_isatap(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    matches!(segments[4], 0 | 0x0200) && segments[5] == 0x5efe
}

fn last_32_bits(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(address: &str) -> Option<&'static str> {
        special(address.parse().unwrap())
    }

    /// First and last address of every row of IANA's IPv4 registry that is not globally reachable.
    #[test]
    fn no_row_of_the_ipv4_registry_is_public() {
        let rows = [
            "0.0.0.0/8",
            "0.0.0.0/32",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.0.0/29",
            "192.0.0.8/32",
            "192.0.0.170/32",
            "192.0.0.171/32",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.88.99.2/32",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "255.255.255.255/32",
        ];
        for row in rows {
            let network: Ipv4Net = row.parse().unwrap();
            for address in [network.network(), network.broadcast()] {
                assert!(special(address.into()).is_some(), "{address} of {row}");
                let mapped = address.to_ipv6_mapped();
                assert!(special(mapped.into()).is_some(), "{mapped} of {row}");
                for (high, low) in [
                    ("64:ff9b::", ""),
                    ("2002:", "::"),
                    ("::", ""),
                    ("2600::5efe:", ""),
                ] {
                    let [a, b, c, d] = address.octets();
                    let text = format!("{high}{a:02x}{b:02x}:{c:02x}{d:02x}{low}");
                    assert!(why(&text).is_some(), "{text} of {row}");
                }
            }
        }
    }

    #[test]
    fn no_row_of_the_ipv6_registry_is_public() {
        let rows = [
            "::1/128",
            "::/128",
            "::ffff:0:0/96",
            "64:ff9b:1::/48",
            "100::/64",
            "100:0:0:1::/64",
            "2001::/23",
            "2001::/32",
            "2001:1::1/128",
            "2001:1::2/128",
            "2001:1::3/128",
            "2001:2::/48",
            "2001:3::/32",
            "2001:4:112::/48",
            "2001:10::/28",
            "2001:20::/28",
            "2001:30::/28",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
            "5f00::/16",
            "fc00::/7",
            "fe80::/10",
            "fec0::/10",
            "ff00::/8",
            "::/96",
            "::ffff:0:0:0/96",
            "4000::/3",
            "8000::/1",
        ];
        for row in rows {
            let network: Ipv6Net = row.parse().unwrap();
            for address in [network.network(), network.broadcast()] {
                assert!(special(address.into()).is_some(), "{address} of {row}");
            }
        }
    }

    /// What lies just outside the rows, and the rows that are globally reachable.
    #[test]
    fn public_addresses_are_public() {
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.31.196.1",
            "192.52.193.1",
            "192.167.255.255",
            "192.169.0.0",
            "192.175.48.1",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "93.184.216.34",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2606:4700::1111",
            "2001:200::1",
            "2001:4860::8888",
            "2620:4f:8000::1",
            "2003::1",
            "2600::5efe:808:808",
        ];
        for address in public {
            assert_eq!(why(address), None, "{address}");
        }
    }

    #[test]
    fn an_exception_covers_what_it_lists_but_never_metadata_by_the_way() {
        let networks: Vec<IpNet> = ["10.0.0.0/8", "169.254.0.0/16", "fd00::/8", "0.0.0.0/0"]
            .map(|network| network.parse().unwrap())
            .to_vec();
        let may = |address: &str, networks: &[IpNet]| excepted(address.parse().unwrap(), networks);
        assert!(may("10.1.2.3", &networks));
        assert!(may("::ffff:10.1.2.3", &networks));
        assert!(may("fd00::1", &networks));
        assert!(!may("fc00::1", &networks));
        for never in [
            "169.254.169.254",
            "fd00:ec2::254",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
        ] {
            assert!(!may(never, &networks), "{never}");
        }
        assert!(may(
            "169.254.169.254",
            &["169.254.169.254/32".parse().unwrap()]
        ));
    }

    #[test]
    fn an_address_behind_nat64_is_seen() {
        let behind = |address: &str| behind_nat64(address.parse().unwrap());
        assert_eq!(behind("64:ff9b::7f00:1"), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(behind("64:ff9b:1::7f00:1"), None);
    }
}
