//! Time to interactive.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rows::{Row, floor};
use super::service::Service;
use super::{BenchArgs, QUIET, TtiArgs, close, create, create_with, quiet_samples};
use crate::cli::Common;
use crate::cli::client::Client;

/// Pool empty, back to back and after quiet, and pool hit.
pub(super) async fn measure(common: &Common, args: &TtiArgs) -> Result<(Vec<Row>, Value), String> {
    let mut rows = vec![floor(args.bench.samples)];
    let mut extra = json!({});
    if let Some(url) = &args.bench.url {
        match &args.mirror {
            None => rows.push(tti_row("tti", url, args, Duration::ZERO).await?),
            Some(mirror) => rows.extend(in_turn(url, args, mirror).await?),
        }
        return Ok((rows, extra));
    }
    let service = Service::start(common, 0)?;
    if args.resident > 0 {
        extra = resident(&service, args.resident).await?;
    }
    rows.push(
        tti_row(
            "tti, pool empty, back to back",
            &service.url,
            args,
            Duration::ZERO,
        )
        .await?,
    );
    rows.push(
        tti_row(
            "tti, pool empty, after a quiet second",
            &service.url,
            &args.short(),
            QUIET,
        )
        .await?,
    );
    drop(service);
    let service = Service::start(common, 4)?;
    let gap = Duration::from_millis(args.gap_ms);
    rows.push(tti_row("tti, pool hit", &service.url, args, gap).await?);
    Ok((rows, extra))
}

impl TtiArgs {
    /// Fewer samples where each waits a second.
    fn short(&self) -> Self {
        Self {
            bench: BenchArgs {
                samples: quiet_samples(self.bench.samples),
                url: None,
                json: self.bench.json,
            },
            gap_ms: self.gap_ms,
            resident: self.resident,
            mirror: None,
        }
    }
}

/// One warm-up sample that is not counted, then `samples` of create to first result; the close is
/// outside of the time, before the next.
async fn tti_row(
    name: &'static str,
    url: &str,
    args: &TtiArgs,
    gap: Duration,
) -> Result<Row, String> {
    let mut client = Client::connect(url).await?;
    let mut row = Row::new(name);
    for n in 0..=args.bench.samples {
        sample(&mut client, &mut row, n, gap, &json!({})).await?;
    }
    Ok(row)
}

/// The base and a mirror in turn, so that what the host does meanwhile slows both.
async fn in_turn(url: &str, args: &TtiArgs, mirror: &str) -> Result<[Row; 2], String> {
    let mut client = Client::connect(url).await?;
    let mut rows = [Row::new("tti, base"), Row::new("tti, mirror")];
    let wishes = [json!({}), json!({ "mirror": mirror })];
    let gap = Duration::from_millis(args.gap_ms);
    for n in 0..=args.bench.samples {
        for (row, wish) in rows.iter_mut().zip(&wishes) {
            sample(&mut client, row, n, gap, wish).await?;
        }
    }
    Ok(rows)
}

async fn sample(
    client: &mut Client,
    row: &mut Row,
    n: usize,
    gap: Duration,
    wish: &Value,
) -> Result<(), String> {
    tokio::time::sleep(gap).await;
    let started = Instant::now();
    let id = create_with(client, wish).await?;
    let path = format!("/sandbox/{id}/execute");
    let ran = client
        .bytes("POST", &path, "text/plain", "print(1+1)")
        .await;
    let took = started.elapsed();
    let right =
        ran.is_ok_and(|b| serde_json::from_slice::<Value>(&b).is_ok_and(|v| v["stdout"] == "2\n"));
    row.add(n, right.then_some(took));
    close(client, &id).await
}

/// Creates `n` sandboxes and leaves them; what the host's memory and the cgroups say they cost.
async fn resident(service: &Service, n: usize) -> Result<Value, String> {
    let mut client = Client::connect(&service.url).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = available_bytes();
    for _ in 0..n {
        let id = create(&mut client).await?;
        client
            .bytes(
                "POST",
                &format!("/sandbox/{id}/execute"),
                "text/plain",
                "print(1+1)",
            )
            .await?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = before.saturating_sub(available_bytes());
    Ok(json!({
        "resident sandboxes": n,
        "MiB of MemAvailable for each": (used as f64 / n as f64 / 1048576.0 * 100.0).round() / 100.0,
    }))
}

fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|v| v.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
