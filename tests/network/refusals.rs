//! The refusal matrix: what is refused reaches no server, and with the check switched off it does.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandcell::config::Network;
use sandcell::network::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{by_address, by_name, connect, echoes, get, raw, socks};
use super::lab::{ECHO, HTTP, OWN, PUBLIC, Proxy, egress, ip, names, run, wide};

const REFUSED: u8 = 2;

/// Addresses that are not public, and that a server of the laboratory would answer on.
const REACHABLE: [&str; 27] = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "169.254.170.2",
    "168.63.129.16",
    "172.16.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    OWN,
    "::1",
    "::",
    "fd00:ec2::254",
    "fc00::1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
    "2001:db8::1",
];
/// And others that the kernel itself may not send to.
const UNREACHABLE: [&str; 16] = [
    "0.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "224.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "100::1",
    "5f00::1",
    "3fff::1",
    "2600:11::2",
    "2600::5efe:7f00:1",
];
/// What some reader takes for an address, and other traps.
const TRAPS: [&str; 18] = [
    "2130706433",
    "0177.0.0.1",
    "0x7f.1",
    "0x7f000001",
    "0X7f.0.0.1",
    "127.1",
    "0",
    "127.0.0.1.",
    "127.0.0.01",
    "1.2.3.4.5",
    "localhost",
    "LOCALHOST.",
    "127.0.0.1%2e",
    "[fe80::1%25eth0]",
    "user@127.0.0.1",
    "93.184.216.34:80@127.0.0.1",
    "１２７.0.0.1",
    "127。0。0。1",
];

fn authority(address: &str) -> String {
    match address.parse() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => address.to_owned(),
    }
}

/// Refused by this proxy, or, where no URL can have such a host, by the reader of HTTP.
fn is_refused(host: &str, answer: &str) -> bool {
    let no_url = host.contains('%') || !host.is_ascii();
    answer.starts_with("HTTP/1.1 403 sandcell: ") && answer.contains("x-sandcell-refused: ")
        || no_url && answer.starts_with("HTTP/1.1 400 ")
}

#[test]
fn what_is_not_public_is_refused_in_every_form() {
    run(|lab| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        for host in REACHABLE.iter().chain(&UNREACHABLE).chain(&TRAPS) {
            let written = authority(host);
            let answer = get(proxy, &written).await;
            assert!(is_refused(host, &answer), "GET {host}: {answer}");
            let answer = connect(proxy, &format!("{written}:{HTTP}"))
                .await
                .unwrap_err();
            assert!(is_refused(host, &answer), "CONNECT {host}: {answer}");
            let reply = socks(proxy, 1, &by_name(host.as_bytes()), HTTP)
                .await
                .unwrap_err();
            assert_eq!(reply, REFUSED, "SOCKS, as a name, {host}");
            if let Ok(address) = host.parse() {
                let answer = get(proxy, &written).await;
                assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
                let reply = socks(proxy, 1, &by_address(address), HTTP)
                    .await
                    .unwrap_err();
                assert_eq!(reply, REFUSED, "SOCKS, {host}");
            }
        }
        assert_eq!(lab.counts.both(), 0, "no server saw a connection");
    });
}

/// The negative control.
#[test]
fn without_the_check_the_same_requests_arrive() {
    run(|lab| async move {
        let egress = egress(&wide()).without_address_checks();
        let proxy = Proxy::start(egress, r#""open""#).await.address;
        for host in REACHABLE {
            let before = lab.counts.both();
            let answer = get(proxy, &authority(host)).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
            assert_eq!(lab.counts.both(), before + 1, "{host}");
            let tunnel = connect(proxy, &format!("{}:{ECHO}", authority(host))).await;
            assert!(echoes(&mut tunnel.unwrap()).await, "{host}");
        }
    });
}

/// Why these never come to the resolver: it takes them for addresses.
#[test]
fn the_traps_are_traps() {
    for trap in ["2130706433", "0177.0.0.1", "0x7f.1", "127.1"] {
        let mut found = (trap, 80).to_socket_addrs().unwrap();
        assert!(found.all(|address| address.ip().is_loopback()), "{trap}");
    }
}

#[test]
fn names_that_lead_to_private_addresses_are_refused() {
    run(|lab| async move {
        let resolver = names(|name| match name {
            "metadata.example" => vec!["169.254.169.254"],
            "mapped.example" => vec!["::ffff:10.0.0.1"],
            "own.example" => vec![OWN],
            _ => vec![],
        });
        let egress = egress(&wide()).with_resolver(resolver);
        let proxy = Proxy::start(egress, r#"{"allow":["*.example"]}"#).await;
        for name in ["metadata.example", "mapped.example", "own.example"] {
            let answer = get(proxy.address, name).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            assert!(answer.contains("not a public address"), "{answer}");
        }
        let answer = get(proxy.address, "nothing.example").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(lab.counts.both(), 0);
        let reasons: Vec<_> = proxy
            .link
            .stats()
            .refusals
            .iter()
            .map(|one| one.reason)
            .collect();
        assert_eq!(reasons, ["address", "address", "address", "lookup"]);
    });
}

/// A name server that answers a public address to the check and a private one to the connection meets a
/// proxy that asks once.
#[test]
fn a_name_is_looked_up_once_and_the_checked_address_used() {
    run(|lab| async move {
        let asked = Arc::new(AtomicUsize::new(0));
        let lookups = Arc::clone(&asked);
        let resolver = names(move |_| match lookups.fetch_add(1, Ordering::SeqCst) {
            0 => vec![PUBLIC],
            _ => vec!["127.0.0.1"],
        });
        let egress = egress(&wide()).with_resolver(resolver);
        let proxy = Proxy::start(egress, r#""open""#).await.address;
        let answer = get(proxy, "rebind.example").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let answer = get(proxy, "rebind.example").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(lab.counts.own.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn of_mixed_answers_only_public_ones_are_tried() {
    run(|lab| async move {
        let resolver = names(|_| vec!["127.0.0.1", "10.0.0.1", "::1", PUBLIC]);
        let egress = egress(&wide()).with_resolver(resolver);
        let proxy = Proxy::start(egress, r#""open""#).await.address;
        let answer = get(proxy, "mixed.example").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(lab.counts.own.load(Ordering::SeqCst), 0);
        assert_eq!(lab.counts.internet.load(Ordering::SeqCst), 1);
    });
}

/// An address that no interface has, and that a route makes the host's own all the same.
#[test]
fn a_connection_that_comes_back_to_the_host_is_refused() {
    run(|_| async move {
        ip("route add local 12.0.0.9 dev lo");
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        let answer = get(proxy, "12.0.0.9").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("the host itself"), "{answer}");
    });
}

#[test]
fn the_operator_can_except_networks() {
    run(|lab| async move {
        let network = Network {
            private_cidrs: vec!["10.0.0.0/8".into(), "169.254.0.0/16".into()],
            ..wide()
        };
        let proxy = Proxy::start(
            egress(&network),
            r#"{"allow":["10.0.0.0/24", "169.254.0.0/16"]}"#,
        )
        .await;
        let answer = get(proxy.address, "10.0.0.1").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let answer = get(proxy.address, "10.0.1.1").await;
        assert!(answer.contains("allows only 10.0.0.0/24"), "{answer}");
        let answer = get(proxy.address, "169.254.169.254").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(lab.counts.both(), 1);
    });
}

#[test]
fn policies_refuse_before_anything_is_looked_up() {
    run(|lab| async move {
        for policy in [
            r#""none""#,
            r#""packages""#,
            r#"{"allow":["a.example:443","93.0.0.0/8"]}"#,
        ] {
            let resolver = names(|name| panic!("{name} was looked up"));
            let egress = egress(&wide()).with_resolver(resolver);
            let proxy = Proxy::start(egress, policy).await.address;
            for host in ["a.example", "b.example", "1.1.1.1"] {
                let answer = connect(proxy, &format!("{host}:{HTTP}")).await.unwrap_err();
                assert!(
                    answer.starts_with("HTTP/1.1 403 sandcell: connection to "),
                    "{answer}"
                );
                assert!(answer.contains("policy"), "{answer}");
                let reply = socks(proxy, 1, &by_name(host.as_bytes()), HTTP)
                    .await
                    .unwrap_err();
                assert_eq!(reply, REFUSED);
            }
        }
        assert_eq!(lab.counts.both(), 0);
    });
}

#[test]
fn hostile_names_over_socks_and_http_are_refused_and_shown_escaped() {
    run(|lab| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await;
        for name in [
            &b"93.184.216.34\0.example"[..],
            b"a\r\nX: y",
            b"\xff\xfe",
            b"",
            &[b'a'; 255],
            b"a b",
        ] {
            let reply = socks(proxy.address, 1, &by_name(name), HTTP)
                .await
                .unwrap_err();
            assert_eq!(reply, REFUSED, "{name:?}");
        }
        for (command, code) in [(2, 7), (3, 7), (9, 7)] {
            let reply = socks(proxy.address, command, &by_name(PUBLIC.as_bytes()), HTTP).await;
            assert_eq!(reply.unwrap_err(), code);
        }
        for bytes in [
            "GET https://93.184.216.34/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET ftp://93.184.216.34/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http://93.184.216.34/ HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            "CONNECT 93.184.216.34 HTTP/1.1\r\nHost: x\r\n\r\n",
            "CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\x16\x03\x01\x02\0\x01\0\x01",
            "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http://93.184.216.34/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "\x04\x01\0\x50\x5d\x08\x08\x22\0",
        ] {
            let answer = raw(proxy.address, bytes.as_bytes()).await;
            assert!(!answer.starts_with("HTTP/1.1 2"), "{bytes}: {answer}");
        }
        assert_eq!(lab.counts.both(), 0);
        for refused in proxy.link.stats().refusals {
            let text = format!("{}{}", refused.host, refused.message);
            assert!(
                text.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{text:?}"
            );
        }
    });
}

/// A client that sends its body before it looks for an answer finds the answer.
#[test]
fn a_refused_upload_is_told_why() {
    run(|lab| async move {
        let proxy = Proxy::start(egress(&wide()), r#""none""#).await.address;
        let body = "a".repeat(4 << 20);
        let length = body.len();
        let request = format!(
            "POST http://{PUBLIC}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        stream
            .write_all(request.as_bytes())
            .await
            .expect("all is taken");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("an end in order");
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.ends_with("can be reached\n"),
            "{answer}"
        );
        assert_eq!(lab.counts.both(), 0);
    });
}

/// Whatever is a name here is none of the forms in which the resolver reads an address: with no network,
/// only those have an answer.
#[test]
fn no_name_is_an_address_to_the_resolver() {
    const ALPHABET: &[u8] = b"0123456789abcdefx.x.0.1-_";
    run(|_| async move {
        let (mut names, mut state) = (0, 0x9e37_79b9_7f4a_7c15_u64);
        let mut next = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        ip("link set cable down");
        ip("link set lo down");
        for _ in 0..3000 {
            let length = 1 + next(14);
            let text: String = (0..length)
                .map(|_| char::from(ALPHABET[next(ALPHABET.len())]))
                .collect();
            if let Ok(Host::Name(name)) = Host::parse(&text) {
                names += 1;
                let found = (name.as_str(), 80)
                    .to_socket_addrs()
                    .map(Iterator::collect::<Vec<_>>);
                assert!(found.is_err(), "{name}: {found:?}");
            }
        }
        assert!(names > 100, "{names}");
        assert!(
            ("0x7f.1", 80).to_socket_addrs().is_ok(),
            "an address has one"
        );
    });
}
