//! `sandcell bench`: what a client sees, every sample counted, with a floor beside it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Common;
use super::client::Client;
use crate::isolation::sys;

/// Measurements.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time to interactive: from sending create to having the result of `print(1+1)`
    Tti(TtiArgs),
    /// One execution of `1+1` in a live sandbox, over one connection
    Execute(ExecuteArgs),
}

/// Options of both.
#[derive(Debug, Args)]
struct BenchArgs {
    /// Samples of each row
    #[arg(long, default_value_t = 200)]
    samples: usize,
    /// Measure this running service instead of one started for it
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `tti`.
#[derive(Debug, Args)]
pub struct TtiArgs {
    #[command(flatten)]
    bench: BenchArgs,
    /// Milliseconds of quiet before each sample of a pool hit, in which the pool fills up
    #[arg(long, default_value_t = 50)]
    gap_ms: u64,
    /// Sandboxes that stay alive meanwhile; their memory is reported
    #[arg(long, default_value_t = 0)]
    resident: usize,
}

/// Options of `execute`.
#[derive(Debug, Args)]
pub struct ExecuteArgs {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Samples of one measure.
struct Row {
    name: &'static str,
    samples: Vec<Duration>,
    failures: usize,
}

/// Runs a measurement and prints its table.
pub fn main(common: &Common, command: &BenchCommand) -> Result<ExitCode, String> {
    let runtime = super::runtime()?;
    let (bench, rows, extra) = match command {
        BenchCommand::Tti(args) => {
            let (rows, extra) = runtime.block_on(tti(common, args))?;
            (&args.bench, rows, extra)
        }
        BenchCommand::Execute(args) => (
            &args.bench,
            runtime.block_on(execute(common, args))?,
            json!({}),
        ),
    };
    if bench.json {
        let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
        println!("{:#}", json!({ "rows": rows, "extra": extra }));
    } else {
        println!(
            "{:<40} {:>8} {:>8} {:>8} {:>8} {:>7} {:>8}",
            "ms", "p50", "p95", "p99", "max", "samples", "failures"
        );
        for row in &rows {
            println!("{row}");
        }
        for (key, value) in extra.as_object().into_iter().flatten() {
            println!("{key}: {value}");
        }
    }
    let failed = rows.iter().any(|r| r.failures > 0);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn tti(common: &Common, args: &TtiArgs) -> Result<(Vec<Row>, Value), String> {
    let mut rows = vec![floor(args.bench.samples)];
    let mut extra = json!({});
    if let Some(url) = &args.bench.url {
        rows.push(tti_row("tti", url, args, Duration::ZERO).await?);
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
            Duration::from_secs(1),
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
                samples: self.bench.samples.min(20),
                url: None,
                json: self.bench.json,
            },
            gap_ms: self.gap_ms,
            resident: self.resident,
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
        tokio::time::sleep(gap).await;
        let started = Instant::now();
        let created = client.json("POST", "/sandbox/create", &json!({})).await?;
        let id = created["sandbox_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let ran = client
            .bytes(
                "POST",
                &format!("/sandbox/{id}/execute"),
                "text/plain",
                "print(1+1)",
            )
            .await;
        let took = started.elapsed();
        let right = ran
            .is_ok_and(|b| serde_json::from_slice::<Value>(&b).is_ok_and(|v| v["stdout"] == "2\n"));
        row.add(n, right.then_some(took));
        client
            .json("POST", &format!("/sandbox/{id}/close"), &json!({}))
            .await?;
    }
    Ok(row)
}

async fn execute(common: &Common, args: &ExecuteArgs) -> Result<Vec<Row>, String> {
    let service = match &args.bench.url {
        Some(_) => None,
        None => Some(Service::start(common, 0)?),
    };
    let url = args
        .bench
        .url
        .clone()
        .or_else(|| service.as_ref().map(|s| s.url.clone()))
        .unwrap_or_default();
    let mut client = Client::connect(&url).await?;
    let created = client.json("POST", "/sandbox/create", &json!({})).await?;
    let id = created["sandbox_id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let path = format!("/sandbox/{id}/execute");
    let samples = args.bench.samples;
    let mut health = Row::new("GET /health");
    let never = json!({ "code": "1+1", "restore": "never" }).to_string();
    let mut plain = Row::new("execute 1+1, restore never");
    for n in 0..=samples {
        let started = Instant::now();
        client.bytes("GET", "/health", "text/plain", "").await?;
        let answered = started.elapsed();
        plain.add(n, timed_execution(&mut client, &path, &never).await?);
        if n > 0 {
            health.samples.push(answered);
        }
    }
    let frame = json!({ "code": FRAME_OF_50_MIB });
    client.json("POST", &path, &frame).await?;
    let auto = json!({ "code": "1+1", "restore": "auto" }).to_string();
    let mut restorable = Row::new("the same, restore auto, 50 MiB DataFrame");
    for n in 0..=samples {
        restorable.add(n, timed_execution(&mut client, &path, &auto).await?);
    }
    client
        .json("POST", &format!("/sandbox/{id}/close"), &json!({}))
        .await?;
    Ok(vec![floor(samples), health, plain, restorable])
}

/// What the kernel holds for one of the rows.
const FRAME_OF_50_MIB: &str =
    "import numpy, pandas\nframe = pandas.DataFrame(numpy.random.rand(655_360, 10))";

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

/// The bare floor of this moment: fork a small process and wait for it.
fn floor(samples: usize) -> Row {
    let mut row = Row::new("floor: fork and wait");
    for _ in 0..samples {
        let started = Instant::now();
        match sys::fork_into(0, None) {
            Ok(sys::Fork::Child) => sys::exit_now(0),
            Ok(sys::Fork::Parent { pidfd, .. }) => {
                let _ = rustix::process::waitid(
                    rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
                    rustix::process::WaitIdOptions::EXITED,
                );
                row.samples.push(started.elapsed());
            }
            Err(_) => row.failures += 1,
        }
    }
    row
}

/// Creates `n` sandboxes and leaves them; what the host's memory and the cgroups say they cost.
async fn resident(service: &Service, n: usize) -> Result<Value, String> {
    let mut client = Client::connect(&service.url).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = available_bytes();
    for _ in 0..n {
        let created = client.json("POST", "/sandbox/create", &json!({})).await?;
        let id = created["sandbox_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
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

/// A service of its own for the measurement.
struct Service {
    child: Child,
    url: String,
    data_dir: PathBuf,
}

impl Service {
    fn start(common: &Common, pool: usize) -> Result<Self, String> {
        let config = common.load()?;
        let data_dir =
            std::env::temp_dir().join(format!("sandcell-bench-{}-{pool}", std::process::id()));
        let mut command = Command::new("/proc/self/exe");
        command
            .args([
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--pool",
                &pool.to_string(),
            ])
            .arg("--data-dir")
            .arg(&data_dir)
            .arg("--mirrors-dir")
            .arg(config.mirrors_dir())
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped());
        if let Some(file) = &common.config {
            command.arg("--config").arg(file);
        }
        let mut child = command
            .spawn()
            .map_err(|e| format!("failed to start a service: {e}"))?;
        let out = child.stdout.take().ok_or("the service has no output")?;
        let mut line = String::new();
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        let url = line
            .split_whitespace()
            .find(|w| w.starts_with("http://"))
            .map(str::to_owned);
        let mut service = Self {
            child,
            url: String::new(),
            data_dir,
        };
        service.url = url.ok_or("the service did not start")?;
        // The pool fills up and the probe of the start goes away.
        std::thread::sleep(Duration::from_millis(500));
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data_dir);
    }
}

impl Row {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            samples: Vec::new(),
            failures: 0,
        }
    }

    /// Sample `n`; the first (0) warms up. `None` is a wrong answer.
    fn add(&mut self, n: usize, took: Option<Duration>) {
        match (n, took) {
            (0, _) => {}
            (_, Some(took)) => self.samples.push(took),
            (_, None) => self.failures += 1,
        }
    }

    /// Milliseconds of a quantile of all samples.
    fn quantile_ms(&self, q: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        let index = ((sorted.len() as f64 * q) as usize).min(last);
        sorted
            .get(index)
            .map_or(f64::NAN, |d| d.as_secs_f64() * 1e3)
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "p50_ms": self.quantile_ms(0.5),
            "p95_ms": self.quantile_ms(0.95),
            "p99_ms": self.quantile_ms(0.99),
            "max_ms": self.quantile_ms(1.0),
            "samples": self.samples.len(),
            "failures": self.failures,
        })
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:<40} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>7} {:>8}",
            self.name,
            self.quantile_ms(0.5),
            self.quantile_ms(0.95),
            self.quantile_ms(0.99),
            self.quantile_ms(1.0),
            self.samples.len(),
            self.failures
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_all_samples() {
        let samples = (1..=100).map(Duration::from_millis).collect();
        let row = Row {
            name: "x",
            samples,
            failures: 0,
        };
        assert_eq!(row.quantile_ms(0.5), 51.0);
        assert_eq!(row.quantile_ms(0.99), 100.0);
        assert_eq!(row.quantile_ms(1.0), 100.0);
    }
}
