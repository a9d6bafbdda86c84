//! `sandcell bench`: what a client sees, every sample counted, with a floor beside it.

mod execute;
mod fork;
mod rows;
mod service;
mod tti;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Common;
use super::client::Client;
use rows::Row;
use service::Service;

/// Measurements.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time to interactive: from sending create to having the result of `print(1+1)`
    Tti(TtiArgs),
    /// One execution of `1+1` in a live sandbox, over one connection
    Execute(ExecuteArgs),
    /// A context forked from one that holds a DataFrame of 50 MiB, over one connection
    Fork(ForkArgs),
}

/// Options of all.
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
    /// With --url: measure sandboxes of this mirror too, in turn with those of the base
    #[arg(long, requires = "url", value_name = "NAME")]
    mirror: Option<String>,
}

/// Options of `execute`.
#[derive(Debug, Args)]
pub struct ExecuteArgs {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Options of `fork`.
#[derive(Debug, Args)]
pub struct ForkArgs {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Runs a measurement and prints its table.
pub fn main(common: &Common, command: &BenchCommand) -> Result<ExitCode, String> {
    let runtime = super::runtime()?;
    let (bench, (rows, extra)) = match command {
        BenchCommand::Tti(args) => (&args.bench, runtime.block_on(tti::measure(common, args))?),
        BenchCommand::Execute(args) => {
            let rows = runtime.block_on(execute::measure(common, &args.bench))?;
            (&args.bench, (rows, json!({})))
        }
        BenchCommand::Fork(args) => {
            let measured = runtime.block_on(fork::measure(common, &args.bench))?;
            (&args.bench, measured)
        }
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

/// The service to measure: a running one that was named, else one of its own.
struct Target {
    client: Client,
    /// Ends with the measurement.
    _own: Option<Service>,
}

impl Target {
    async fn of(common: &Common, args: &BenchArgs) -> Result<Self, String> {
        if let Some(url) = &args.url {
            return Ok(Self {
                client: Client::connect(url).await?,
                _own: None,
            });
        }
        let own = Service::start(common, 0)?;
        Ok(Self {
            client: Client::connect(&own.url).await?,
            _own: Some(own),
        })
    }
}

/// Makes a sandbox; gives its id.
async fn create(client: &mut Client) -> Result<String, String> {
    create_with(client, &json!({})).await
}

async fn create_with(client: &mut Client, wish: &Value) -> Result<String, String> {
    let created = client.json("POST", "/sandbox/create", wish).await?;
    let id = created["sandbox_id"].as_str().map(str::to_owned);
    id.ok_or_else(|| "the service made no sandbox".to_owned())
}

async fn close(client: &mut Client, id: &str) -> Result<(), String> {
    let path = format!("/sandbox/{id}/close");
    client.json("POST", &path, &json!({})).await.map(drop)
}

/// A pause before a sample, as when somebody thinks.
const QUIET: Duration = Duration::from_secs(1);

/// Fewer samples where each waits so long.
fn quiet_samples(samples: usize) -> usize {
    samples.min(20)
}

/// What the kernel holds for some of the rows.
const FRAME_OF_50_MIB: &str =
    "import numpy, pandas\nframe = pandas.DataFrame(numpy.random.rand(655_360, 10))";
