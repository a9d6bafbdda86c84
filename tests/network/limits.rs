//! Limits of connections, rates, heads and time.

use std::time::{Duration, Instant};

use sandcell::config::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{by_name, connect, echoes, get, raw, socks};
use super::lab::{ECHO, PUBLIC, Proxy, egress, run, wide};

#[test]
fn connections_over_the_limit_are_told_so_at_once() {
    run(|_| async move {
        let network = Network {
            connections: 1000,
            ..wide()
        };
        let proxy = Proxy::start(egress(&network), r#""open""#).await;
        let mut open = Vec::new();
        for _ in 0..1000 {
            open.push(
                connect(proxy.address, &format!("{PUBLIC}:{ECHO}"))
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(proxy.link.stats().open, 1000);
        let begun = Instant::now();
        let answer = connect(proxy.address, &format!("{PUBLIC}:{ECHO}"))
            .await
            .unwrap_err();
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert!(answer.contains("1000 connections"), "{answer}");
        let reply = socks(proxy.address, 1, &by_name(PUBLIC.as_bytes()), ECHO)
            .await
            .unwrap_err();
        assert_eq!(reply, 1);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(echoes(&mut open[999]).await, "those that are open go on");
        open.truncate(10);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(
            connect(proxy.address, &format!("{PUBLIC}:{ECHO}"))
                .await
                .is_ok()
        );
    });
}

#[test]
fn connections_over_the_rate_are_told_so_whether_new_or_used_again() {
    run(|lab| async move {
        let network = Network {
            connections_per_second: 5,
            ..wide()
        };
        let proxy = Proxy::start(egress(&network), r#""open""#).await;
        let mut answers = Vec::new();
        for _ in 0..10 {
            answers.push(get(proxy.address, &format!("{PUBLIC}:81")).await);
        }
        let limited = answers
            .iter()
            .filter(|answer| answer.starts_with("HTTP/1.1 429 "))
            .count();
        assert!((4..=5).contains(&limited), "{answers:?}");
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let one = format!("GET http://{PUBLIC}/ HTTP/1.1\r\nHost: x\r\n\r\n");
        let before = lab.counts.both();
        let answer = raw(proxy.address, one.repeat(20).as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 429 ").count(), 1, "{answer}");
        assert!(lab.counts.both() - before <= 12, "{answer}");
    });
}

#[test]
fn heads_have_limits_in_size_and_time() {
    run(|lab| async move {
        let egress = egress(&wide()).with_head_time(Duration::from_millis(500));
        let proxy = Proxy::start(egress, r#""open""#).await;
        let huge = format!(
            "GET http://{PUBLIC}/ HTTP/1.1\r\nX: {}\r\n\r\n",
            "a".repeat(200_000)
        );
        let many = format!(
            "GET http://{PUBLIC}/ HTTP/1.1\r\n{}\r\n",
            "X: y\r\n".repeat(200)
        );
        for request in [huge, many] {
            let answer = raw(proxy.address, request.as_bytes()).await;
            assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
        }
        for slow in [
            "",
            "G",
            "GET http://93.184.216.34/ HTTP/1.1\r\nX",
            "\x05",
            "\x05\x01\0\x05\x01",
        ] {
            let begun = Instant::now();
            let mut stream = TcpStream::connect(proxy.address).await.unwrap();
            let feed = async {
                let mut answer = Vec::new();
                stream.write_all(slow.as_bytes()).await.unwrap();
                stream.read_to_end(&mut answer).await.ok();
            };
            tokio::time::timeout(Duration::from_secs(5), feed)
                .await
                .expect("an end");
            let took = begun.elapsed();
            assert!(
                took > Duration::from_millis(400) && took < Duration::from_secs(2),
                "{slow:?}: {took:?}"
            );
        }
        assert_eq!(lab.counts.both(), 0);
        assert_eq!(proxy.link.stats().open, 0);
    });
}

#[test]
fn what_does_not_move_is_closed() {
    run(|_| async move {
        let network = Network {
            idle_timeout_seconds: 1,
            ..wide()
        };
        let proxy = Proxy::start(egress(&network), r#""open""#).await;
        let mut tunnel = connect(proxy.address, &format!("{PUBLIC}:{ECHO}"))
            .await
            .unwrap();
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(echoes(&mut tunnel).await, "what moves stays");
        }
        let begun = Instant::now();
        let mut rest = Vec::new();
        tunnel.read_to_end(&mut rest).await.ok();
        let took = begun.elapsed();
        assert!(
            took > Duration::from_millis(800) && took < Duration::from_secs(3),
            "{took:?}"
        );
    });
}
