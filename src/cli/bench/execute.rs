//! One execution in a live sandbox.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::{Row, floor};
use super::{BenchArgs, FRAME_OF_50_MIB, QUIET, Target, close, create, quiet_samples};
use crate::cli::Common;
use crate::cli::client::Client;

/// Without checkpoints, and with them beside a DataFrame; back to back, and after quiet.
pub(super) async fn measure(common: &Common, args: &BenchArgs) -> Result<Vec<Row>, String> {
    let mut target = Target::of(common, args).await?;
    let client = &mut target.client;
    let id = create(client).await?;
    let path = format!("/sandbox/{id}/execute");
    let samples = args.samples;
    let never = json!({ "code": "1+1", "restore": "never" }).to_string();
    let auto = json!({ "code": "1+1", "restore": "auto" }).to_string();
    let mut health = Row::new("GET /health");
    let mut plain = Row::new("execute 1+1, restore never");
    for n in 0..=samples {
        health.add(n, timed_health(client).await?);
        plain.add(n, timed_execution(client, &path, &never).await?);
    }
    let frame = json!({ "code": FRAME_OF_50_MIB });
    client.json("POST", &path, &frame).await?;
    let mut restorable = Row::new("execute 1+1, restore auto, 50 MiB DataFrame");
    for n in 0..=samples {
        restorable.add(n, timed_execution(client, &path, &auto).await?);
    }
    // All that is asleep and out of the caches by then is in these, the host's part too: hence the first.
    let mut quiet_health = Row::new("GET /health, after a quiet second");
    let mut quiet = Row::new("that auto execution, after a quiet second");
    for n in 0..=quiet_samples(samples) {
        sleep(QUIET).await;
        quiet_health.add(n, timed_health(client).await?);
        sleep(QUIET).await;
        quiet.add(n, timed_execution(client, &path, &auto).await?);
    }
    close(client, &id).await?;
    Ok(vec![
        floor(samples),
        health,
        plain,
        restorable,
        quiet_health,
        quiet,
    ])
}

async fn timed_health(client: &mut Client) -> Result<Option<Duration>, String> {
    let started = Instant::now();
    client.bytes("GET", "/health", "text/plain", "").await?;
    Ok(Some(started.elapsed()))
}

/// How long `1+1` takes, `None` where the answer is wrong.
async fn timed_execution(
    client: &mut Client,
    path: &str,
    body: &str,
) -> Result<Option<Duration>, String> {
    let body = body.to_owned();
    let started = Instant::now();
    let outcome = client.bytes("POST", path, "application/json", body).await?;
    let took = started.elapsed();
    let right =
        serde_json::from_slice::<Value>(&outcome).is_ok_and(|v| v["results"][0]["data"] == "2");
    Ok(right.then_some(took))
}
