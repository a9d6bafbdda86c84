//! What is allowed works, over every protocol of the port, and is passed on as it should be.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{by_address, by_name, connect, echoes, get, raw, socks};
use super::lab::{ECHO, PUBLIC, PUBLIC_V6, Proxy, egress, gateway, names, run, wide};

#[test]
fn a_public_host_is_reached_over_every_protocol() {
    run(|lab| async move {
        let resolver = names(|name| match name {
            "v4.example" => vec![PUBLIC],
            "v6.example" => vec![PUBLIC_V6],
            _ => vec![],
        });
        let egress = egress(&wide()).with_resolver(resolver);
        let proxy = Proxy::start(egress, r#""open""#).await;
        for host in [PUBLIC, "[2606:2800:220:1::34]", "v4.example", "V6.example."] {
            let answer = get(proxy.address, host).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
            let mut tunnel = connect(proxy.address, &format!("{host}:{ECHO}"))
                .await
                .unwrap();
            assert!(echoes(&mut tunnel).await, "{host}");
            let mut tunnel = socks(proxy.address, 1, &by_name(host.as_bytes()), ECHO)
                .await
                .unwrap();
            assert!(echoes(&mut tunnel).await, "{host}");
        }
        for address in [PUBLIC, PUBLIC_V6, "::ffff:93.184.216.34"] {
            let address = by_address(address.parse().unwrap());
            let mut tunnel = socks(proxy.address, 1, &address, ECHO).await.unwrap();
            assert!(echoes(&mut tunnel).await);
        }
        assert_eq!(lab.counts.internet.load(Ordering::SeqCst), 15);
        let stats = proxy.link.stats();
        assert_eq!((stats.allowed, stats.refused), (15, 0), "{stats:?}");
        assert!(
            stats.bytes_sent >= 44 && stats.bytes_received >= 44,
            "{stats:?}"
        );
    });
}

/// The server of the laboratory answers with what it was sent.
#[test]
fn a_request_is_written_anew() {
    run(|lab| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        let request = "POST http://93.184.216.34:80/path?q=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\
            Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic c2VjcmV0\r\nX-Kept: 1\r\n\
            Connection: close, X-Named\r\nX-Named: 1\r\nTransfer-Encoding: chunked\r\n\
            Content-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        let answer = raw(proxy, request.as_bytes()).await;
        let seen = answer
            .split_once("\r\n\r\n")
            .map_or(answer.as_str(), |(_, body)| body)
            .to_lowercase();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(seen.starts_with("post /path?q=1 http/1.1\r\n"), "{seen}");
        assert!(
            seen.contains("host: 93.184.216.34\r\n") && seen.contains("x-kept: 1"),
            "{seen}"
        );
        for absent in ["127.0.0.1", "proxy-", "x-named", "content-length"] {
            assert!(!seen.contains(absent), "{absent} in {seen}");
        }
        assert!(seen.ends_with("5\r\nhello\r\n0\r\n\r\n"), "{seen}");
        assert_eq!(lab.counts.both(), 1);
    });
}

#[test]
fn requests_on_one_connection_are_each_decided() {
    run(|lab| async move {
        let proxy = Proxy::start(egress(&wide()), r#"{"allow":["93.184.216.34"]}"#).await;
        let one = |host| format!("GET http://{host}/ HTTP/1.1\r\nHost: 93.184.216.34\r\n\r\n");
        let pipelined = one(PUBLIC) + &one(PUBLIC) + &one("93.184.216.35") + &one(PUBLIC);
        let answer = raw(proxy.address, pipelined.as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 403 ").count(), 1, "{answer}");
        assert_eq!(lab.counts.internet.load(Ordering::SeqCst), 2);
        assert_eq!(proxy.link.stats().refusals[0].host, "93.184.216.35");
    });
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_the_other_goes_on() {
    run(|_| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        let mut tunnel = connect(proxy, &format!("{PUBLIC}:{ECHO}")).await.unwrap();
        tunnel.write_all(&[7; 300_000]).await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut back = Vec::new();
        let read =
            tokio::time::timeout(Duration::from_secs(10), tunnel.read_to_end(&mut back)).await;
        read.expect("an end").unwrap();
        assert_eq!(back.len(), 300_000);
    });
}

#[test]
fn what_follows_a_connect_in_the_same_packet_is_passed_on() {
    run(|_| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        let mut stream = tokio::net::TcpStream::connect(proxy).await.unwrap();
        let early = format!("CONNECT {PUBLIC}:{ECHO} HTTP/1.1\r\nHost: x\r\n\r\nearly");
        stream.write_all(early.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        let read =
            tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await;
        read.expect("an end").unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nearly"),
            "{answer}"
        );
    });
}

#[test]
fn a_host_that_does_not_answer_is_told_from_a_refusal() {
    run(|_| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        let answer = connect(proxy, &format!("{PUBLIC}:81")).await.unwrap_err();
        assert!(
            answer.starts_with("HTTP/1.1 502 sandcell: connection to 93.184.216.34:81 failed"),
            "{answer}"
        );
        let reply = socks(proxy, 1, &by_name(PUBLIC.as_bytes()), 81)
            .await
            .unwrap_err();
        assert_eq!(reply, 5);
    });
}

#[test]
fn paths_of_the_listener_go_to_the_gateway_where_the_policy_has_it() {
    run(|_| async move {
        let request = b"GET /simple/rich/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        for (policy, status) in [
            (r#""none""#, 403),
            (r#""packages""#, 200),
            (r#""open""#, 200),
            (r#"{"allow":[],"packages":true}"#, 200),
            (r#"{"allow":["a.example"]}"#, 403),
        ] {
            let gateway = gateway(|| axum::body::Body::from("an index"));
            let egress = sandcell::network::Egress::new(&wide(), Some(gateway)).unwrap();
            let proxy = Proxy::start(egress, policy).await;
            let answer = raw(proxy.address, request).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{policy}: {answer}"
            );
            assert_eq!(answer.ends_with("an index"), status == 200, "{answer}");
            assert_eq!(
                proxy.link.stats().bytes_received,
                if status == 200 { 8 } else { 0 }
            );
        }
    });
}

#[test]
fn odd_requests_are_forwarded_too() {
    run(|_| async move {
        let proxy = Proxy::start(egress(&wide()), r#""open""#).await.address;
        let head =
            format!("HEAD http://{PUBLIC}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = raw(proxy, head.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        assert!(answer.contains("content-length: "), "{answer}");
        let old = format!("GET http://{PUBLIC}/old HTTP/1.0\r\n\r\n");
        let answer = raw(proxy, old.as_bytes()).await;
        assert!(
            answer.contains(" 200 ") && answer.contains("GET /old HTTP/1.1\r\n"),
            "{answer}"
        );
        let expecting = format!(
            "POST http://{PUBLIC}/ HTTP/1.1\r\nHost: x\r\nConnection: close, host, content-length\r\n\
             Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"
        );
        let answer = raw(proxy, expecting.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "),
            "{answer}"
        );
        assert!(
            answer.contains("content-length: 5\r\n") && answer.ends_with("hello"),
            "{answer}"
        );
        assert!(
            answer.contains("host: 93.184.216.34\r\n") && !answer.contains("expect"),
            "{answer}"
        );
    });
}
