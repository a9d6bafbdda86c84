//! One line of the log for each connection, whatever comes from inside.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;

use super::client::{by_name, connect, echoes, get, socks};
use super::lab::{ECHO, HTTP, PUBLIC, Proxy, egress, run, wide};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn each_connection_leaves_one_line() {
    run(|_| async move {
        let lines = Lines::default();
        let text = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(lines.clone());
        let _guard = tracing::subscriber::set_default(text.finish());
        let proxy = Proxy::start(egress(&wide()), r#"{"allow":["93.184.216.34"]}"#).await;
        let mut tunnel = connect(proxy.address, &format!("{PUBLIC}:{ECHO}"))
            .await
            .unwrap();
        assert!(echoes(&mut tunnel).await);
        drop(tunnel);
        get(proxy.address, PUBLIC).await;
        get(proxy.address, "127.0.0.1").await;
        get(proxy.address, "0x7f.1").await;
        let hostile = b"a\r\n2026-01-01 INFO egress sandbox=\"other\" \x1b[2J";
        let _ = socks(proxy.address, 1, &by_name(hostile), HTTP).await;
        while proxy.link.stats().open > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let bytes = lines.0.lock().unwrap().clone();
        let log = String::from_utf8(bytes).unwrap();
        let found: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("egress sandbox="))
            .collect();
        assert_eq!(found.len(), 5, "{log}");
        assert_eq!(log.lines().count(), 5, "{log}");
        assert!(
            log.bytes()
                .all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)),
            "{log:?}"
        );
        for part in [
            "sandbox=\"sandbox\"",
            "host=\"93.184.216.34\" port=7",
            "bytes_sent=4",
            "bytes_received=4",
        ] {
            assert!(log.contains(part), "{part} in {log}");
        }
        for end in ["closed", "policy", "host"] {
            assert!(log.contains(&format!("end=\"{end}\"")), "{end} in {log}");
        }
    });
}
