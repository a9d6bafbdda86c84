//! A change of the policy reaches what is open.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client::{by_name, connect, echoes, socks};
use super::lab::{ECHO, PUBLIC, Proxy, STREAM, gateway, policy, run, wide};

const LIMIT: Duration = Duration::from_millis(100);

/// Reads until the connection ends.
async fn end(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

async fn request(proxy: &Proxy, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut some = [0; 100];
    stream.read_exact(&mut some).await.unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200 "));
    stream
}

/// A connection of every kind, each with something under way.
async fn one_of_each(proxy: &Proxy) -> Vec<(&'static str, TcpStream)> {
    let mut tunnel = connect(proxy.address, &format!("{PUBLIC}:{ECHO}"))
        .await
        .unwrap();
    assert!(echoes(&mut tunnel).await);
    let mut socks = socks(proxy.address, 1, &by_name(PUBLIC.as_bytes()), ECHO)
        .await
        .unwrap();
    assert!(echoes(&mut socks).await);
    let http = format!("GET http://{PUBLIC}:{STREAM}/ HTTP/1.1\r\nHost: x\r\n\r\n");
    let http = request(proxy, &http).await;
    let download = request(proxy, "GET /file HTTP/1.1\r\nHost: x\r\n\r\n").await;
    vec![
        ("CONNECT", tunnel),
        ("SOCKS", socks),
        ("HTTP", http),
        ("download", download),
    ]
}

async fn start(json: &str) -> Proxy {
    let endless = || {
        let pieces = futures_util::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok::<_, std::io::Error>("piece"), ()))
        });
        axum::body::Body::from_stream(pieces)
    };
    let egress = sandcell::network::Egress::new(&wide(), Some(gateway(endless))).unwrap();
    Proxy::start(egress, json).await
}

#[test]
fn what_is_open_is_cut_when_the_policy_no_longer_allows_it() {
    run(|_| async move {
        for next in [r#""none""#, r#"{"allow":["93.184.216.35"]}"#] {
            let proxy = start(r#""open""#).await;
            let mut open = one_of_each(&proxy).await;
            assert_eq!(proxy.link.stats().open, open.len());
            let changed = Instant::now();
            proxy.link.set_policy(policy(next));
            for (kind, stream) in &mut open {
                timeout(Duration::from_secs(5), end(stream))
                    .await
                    .unwrap_or_else(|_| panic!("{kind} is open"));
                println!("{kind} cut after {:?}", changed.elapsed());
                assert!(
                    changed.elapsed() < LIMIT,
                    "{kind} after {:?}",
                    changed.elapsed()
                );
            }
            let refused = connect(proxy.address, &format!("{PUBLIC}:{ECHO}")).await;
            assert!(refused.is_err());
            tokio::time::sleep(LIMIT).await;
            assert_eq!(proxy.link.stats().open, 0);
        }
    });
}

/// The negative control: a change that allows it still cuts nothing.
#[test]
fn what_the_new_policy_allows_stays_open() {
    run(|_| async move {
        let proxy = start(r#""open""#).await;
        let mut open = one_of_each(&proxy).await;
        proxy
            .link
            .set_policy(policy(r#"{"allow":["93.184.0.0/16"],"packages":true}"#));
        for (kind, stream) in &mut open {
            let ended = timeout(2 * LIMIT, end(stream)).await;
            assert!(ended.is_err(), "{kind} ended");
        }
        assert!(echoes(&mut open[0].1).await);
    });
}

#[test]
fn all_ends_with_the_service_of_the_sandbox() {
    run(|_| async move {
        let proxy = start(r#""open""#).await;
        let mut open = one_of_each(&proxy).await;
        proxy.serving.abort();
        for (kind, stream) in &mut open {
            let ended = timeout(LIMIT, end(stream)).await;
            assert!(ended.is_ok(), "{kind} is open");
        }
        assert_eq!(proxy.link.stats().open, 0);
    });
}
