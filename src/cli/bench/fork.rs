//! Contexts forked from one that holds something: ten branches at a time, as a tree search does.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rows::{Row, floor};
use super::{BenchArgs, FRAME_OF_50_MIB, Target, close, create};
use crate::cli::Common;
use crate::cli::client::Client;

/// Branches before they are deleted again.
const BRANCHES: usize = 10;

/// Forks, the first execution in each branch, and branches in a second of both.
pub(super) async fn measure(
    common: &Common,
    args: &BenchArgs,
) -> Result<(Vec<Row>, Value), String> {
    let mut target = Target::of(common, args).await?;
    let client = &mut target.client;
    let id = create(client).await?;
    let execute = format!("/sandbox/{id}/execute");
    let frame = json!({ "code": FRAME_OF_50_MIB });
    client.json("POST", &execute, &frame).await?;
    let mut forks = Row::new("fork of a context, 50 MiB DataFrame");
    let mut firsts = Row::new("first execution in the branch");
    let mut busy = Duration::ZERO;
    let mut n = 0;
    while n <= args.samples {
        let mut branches = Vec::new();
        for _ in 0..BRANCHES.min(args.samples + 1 - n) {
            let started = Instant::now();
            let branch = fork(client, &id).await?;
            let forked = started.elapsed();
            let right = count(client, &execute, &branch).await?;
            let took = started.elapsed();
            forks.add(n, Some(forked));
            firsts.add(n, right.then(|| took - forked));
            busy += took;
            n += 1;
            branches.push(branch);
        }
        for branch in branches {
            let path = format!("/sandbox/{id}/contexts/{branch}");
            client.json("DELETE", &path, &json!({})).await?;
        }
    }
    close(client, &id).await?;
    let per_second = (n as f64 / busy.as_secs_f64() * 10.0).round() / 10.0;
    let extra = json!({ "branches with a result per second": per_second });
    Ok((vec![floor(args.samples), forks, firsts], extra))
}

async fn fork(client: &mut Client, id: &str) -> Result<String, String> {
    let path = format!("/sandbox/{id}/contexts/default/fork");
    let forked = client.json("POST", &path, &json!({})).await?;
    let branch = forked["context_id"].as_str().map(str::to_owned);
    branch.ok_or_else(|| "the service forked no context".to_owned())
}

/// Whether the branch has the rows of the frame.
async fn count(client: &mut Client, path: &str, branch: &str) -> Result<bool, String> {
    let request = json!({ "code": "len(frame)", "context_id": branch, "restore": "never" });
    let outcome = client.json("POST", path, &request).await?;
    Ok(outcome["results"][0]["data"] == "655360")
}
