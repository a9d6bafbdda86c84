//! `sandcell run`: one script on the terminal, through the running service or by itself.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::Common;
use super::client::Client;
use crate::network::Policy;
use crate::supervisor::host::running_service;
use crate::supervisor::{
    CreateSpec, Ending, Event, ExecuteSpec, Prepared, Restore, Supervisor, Wish,
};

/// As timeout(1) has it.
const EXIT_TIMED_OUT: u8 = 124;
/// As a shell tells a process that SIGKILL ended.
const EXIT_OUT_OF_MEMORY: u8 = 137;
/// Seconds after which a service closes the sandbox of a `sandcell run` that was killed.
const ABANDONED_SECONDS: u64 = 60;
/// As a shell tells a process that SIGINT ended.
const EXIT_INTERRUPTED: u8 = 130;

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Code to run, instead of a file; what follows are its arguments
    #[arg(short = 'c', value_name = "CODE")]
    code: Option<String>,
    /// Script to run, `-` for standard input
    #[arg(value_name = "FILE", required_unless_present = "code")]
    script: Option<PathBuf>,
    /// Arguments of the script, its `sys.argv[1:]`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
    /// Memory, for example 512M or 2G
    #[arg(long, value_parser = super::parse_bytes)]
    memory: Option<u64>,
    /// Processors, a fraction is fine
    #[arg(long)]
    cpus: Option<f64>,
    /// Seconds until the script is ended
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// What the script may reach: none, packages, open, or hosts separated by commas
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    network: Option<Policy>,
    /// GPUs: all, a number of them, or UUIDs (or device=0,1) separated by commas
    #[arg(long, value_name = "WHICH")]
    gpus: Option<Wish>,
    /// Copy the files that the script left in its working directory into DIR
    #[arg(long, value_name = "DIR")]
    keep_files: Option<PathBuf>,
}

/// A script and what it asks for.
struct Job {
    code: String,
    /// Code that sets `sys.argv`: an execution of its own, so that the script begins at its own
    /// first line.
    set_argv: String,
    create: CreateSpec,
    timeout: Option<Duration>,
    keep_files: Option<PathBuf>,
}

/// Runs the script; the exit status is its own, 124 when its time was over, 137 out of memory.
pub fn main(common: &Common, args: &RunArgs) -> Result<ExitCode, String> {
    let config = common.load()?;
    let job = Job {
        code: read_code(args)?,
        set_argv: set_argv(args),
        create: CreateSpec {
            name: Some("run".into()),
            memory_bytes: args.memory,
            cpus: args.cpus,
            network: args.network.clone(),
            gpus: args.gpus.clone(),
            ..CreateSpec::default()
        },
        timeout: args.timeout.map(duration).transpose()?,
        keep_files: args.keep_files.clone(),
    };
    if let Some(address) = running_service(&config.data_dir) {
        return super::runtime()?.block_on(through_service(&address, job));
    }
    if args.network == Some(Policy::Packages) {
        return Err(
            "the package index is a running service's: start `sandcell serve` first".into(),
        );
    }
    let mut config = config;
    // One sandbox, once: importing ahead what the script may not need would take longer.
    config.service.pool = 0;
    config.service.preload.clear();
    // The sandbox ends with the script: nobody could download it.
    config.limits.saved_output_bytes = 0;
    let mirror = super::base_mirror(&config)?;
    let prepared =
        Prepared::ephemeral(config, &super::program(), mirror.root()).map_err(|e| e.to_string())?;
    super::runtime()?.block_on(by_itself(prepared, job))
}

/// A word, or what would be in a list.
fn parse_policy(text: &str) -> Result<Policy, String> {
    let value = match text {
        "none" | "packages" | "open" => json!(text),
        hosts => json!({ "allow": hosts.split(',').map(str::trim).collect::<Vec<_>>() }),
    };
    serde_json::from_value(value).map_err(|e| e.to_string())
}

fn duration(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|_| "--timeout must be a number of seconds".into())
}

fn read_code(args: &RunArgs) -> Result<String, String> {
    match (&args.code, &args.script) {
        (Some(code), _) => Ok(code.clone()),
        (None, Some(path)) if path == Path::new("-") => {
            let mut code = String::new();
            std::io::stdin()
                .read_to_string(&mut code)
                .map_err(|e| format!("failed to read standard input: {e}"))?;
            Ok(code)
        }
        (None, Some(path)) => std::fs::read_to_string(path)
            .map_err(|e| format!("failed to read {}: {e}", path.display())),
        (None, None) => Err("give a script or -c CODE".into()),
    }
}

/// `sys.argv` as an interpreter sets it.
fn set_argv(args: &RunArgs) -> String {
    let script = args.script.as_ref().map(|path| path.display().to_string());
    // With code the first word is no script but its first argument.
    let (name, first) = match &args.code {
        Some(_) => (Some("-c".to_owned()), script),
        None => (script, None),
    };
    let rest = args.args.iter().cloned();
    let argv: Vec<String> = name.into_iter().chain(first).chain(rest).collect();
    // A JSON list of strings is a Python list of strings.
    format!("__import__('sys').argv[:] = {}", json!(argv))
}

async fn by_itself(prepared: Prepared, job: Job) -> Result<ExitCode, String> {
    let supervisor = Supervisor::start(prepared)
        .await
        .map_err(|e| e.to_string())?;
    let status = tokio::select! {
        status = run_in(&supervisor, job) => status,
        _ = tokio::signal::ctrl_c() => Ok(EXIT_INTERRUPTED),
    };
    supervisor.drain().await;
    status.map(ExitCode::from)
}

async fn run_in(supervisor: &Supervisor, job: Job) -> Result<u8, String> {
    let said = |e: crate::supervisor::Error| e.to_string();
    let sandbox = supervisor.create(job.create).await.map_err(said)?;
    let set_argv = ExecuteSpec {
        code: job.set_argv,
        restore: Restore::Never,
        ..ExecuteSpec::default()
    };
    let mut execution = supervisor
        .execute(&sandbox.id, set_argv)
        .await
        .map_err(said)?;
    while execution.next().await.is_some() {}
    let script = ExecuteSpec {
        code: job.code,
        timeout: job.timeout,
        prompt: true,
        restore: Restore::Never,
        ..ExecuteSpec::default()
    };
    let mut execution = supervisor
        .execute(&sandbox.id, script)
        .await
        .map_err(said)?;
    let mut status = 0;
    while let Some(event) = execution.next().await {
        match event {
            Event::Stdout(text) => write_out(&text)?,
            Event::Stderr(text) => eprint!("{text}"),
            Event::Error(e) => status = exit_status(&e.name, &e.traceback),
            Event::Ended(ended) => status = ending_status(ended.ending, status, ended.exit_code),
            Event::Started { .. } | Event::Result(_) | Event::ClearOutput { .. } => {}
        }
    }
    if let Some(dir) = &job.keep_files {
        for file in supervisor.list_files(&sandbox.id).await.map_err(said)? {
            let open = supervisor
                .open_file(&sandbox.id, &file.path)
                .await
                .map_err(said)?;
            let mut to = create_kept(dir, &file.path)?;
            std::io::copy(&mut { open.file }, &mut to)
                .map_err(|e| format!("failed to keep {}: {e}", file.path))?;
        }
    }
    Ok(status)
}

/// Creates a kept file below `dir`. Names come from the sandbox, so every part of the way is made
/// here, and a name that is not plain is refused.
fn create_kept(dir: &Path, name: &str) -> Result<std::fs::File, String> {
    let relative = Path::new(name);
    let plain = relative
        .components()
        .all(|c| matches!(c, std::path::Component::Normal(_)));
    if !plain {
        return Err(format!("a file with the name {name:?} cannot be kept"));
    }
    let path = dir.join(relative);
    let failed = |e: std::io::Error| format!("failed to write {}: {e}", path.display());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::File::create(&path).map_err(failed)
}

/// What a script's exception exits with; its traceback goes to standard error. With `SystemExit` the
/// kernel has said what is to be said.
fn exit_status(name: &str, traceback: &str) -> u8 {
    if name != "SystemExit" {
        eprintln!("{}", traceback.trim_end());
    }
    1
}

/// `status` is that of its exception, `exit_code` what it chose.
fn ending_status(ending: Ending, status: u8, exit_code: Option<i32>) -> u8 {
    match ending {
        Ending::Ok | Ending::Error => exit_code.map_or(status, |code| (code & 0xff) as u8),
        Ending::Timeout => {
            eprintln!("sandcell: the time is over");
            EXIT_TIMED_OUT
        }
        Ending::Interrupted => EXIT_INTERRUPTED,
        Ending::OutOfMemory => {
            eprintln!("sandcell: out of memory");
            EXIT_OUT_OF_MEMORY
        }
        Ending::KernelDied {
            code: Some(code), ..
        } => (code & 0xff) as u8,
        Ending::KernelDied {
            signal: Some(signal),
            ..
        } => {
            eprintln!("sandcell: ended by signal {signal}");
            128u8.saturating_add(signal as u8)
        }
        Ending::KernelDied { .. } => 1,
    }
}

async fn through_service(address: &str, job: Job) -> Result<ExitCode, String> {
    let mut client = Client::connect(address).await?;
    // Idle, it is one whose `sandcell run` was killed.
    let mut create = json!({ "name": job.create.name, "idle_seconds": ABANDONED_SECONDS });
    if let Some(bytes) = job.create.memory_bytes {
        create["memory_bytes"] = json!(bytes);
    }
    if let Some(cpus) = job.create.cpus {
        create["cpus"] = json!(cpus);
    }
    if let Some(network) = &job.create.network {
        create["network"] = json!(network);
    }
    if let Some(gpus) = &job.create.gpus {
        create["gpus"] = json!(gpus);
    }
    let created = client.json("POST", "/sandbox/create", &create).await?;
    let id = created["sandbox_id"]
        .as_str()
        .ok_or("the service gave no sandbox_id")?
        .to_owned();
    let status = tokio::select! {
        status = stream_execution(&mut client, &id, &job) => status,
        _ = tokio::signal::ctrl_c() => Ok(EXIT_INTERRUPTED),
    };
    // The connection may be in the middle of an answer.
    let closed = async {
        Client::connect(address)
            .await?
            .json("POST", &format!("/sandbox/{id}/close"), &json!({}))
            .await
    };
    let closed = closed.await;
    let status = status?;
    closed?;
    Ok(ExitCode::from(status))
}

async fn stream_execution(client: &mut Client, id: &str, job: &Job) -> Result<u8, String> {
    let path = format!("/sandbox/{id}/execute");
    client
        .json("POST", &path, &json!({ "code": job.set_argv }))
        .await?;
    let mut body = json!({ "code": job.code, "stream": true });
    if let Some(timeout) = job.timeout {
        body["timeout_seconds"] = json!(timeout.as_secs_f64());
    }
    let response = client
        .send("POST", &path, "application/json", body.to_string())
        .await?;
    if response.status() != hyper::StatusCode::OK {
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|e| e.to_string())?
            .to_bytes();
        return Err(String::from_utf8_lossy(&body).into_owned());
    }
    let mut status = 0;
    let mut pending = Vec::new();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("the answer broke off: {e}"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        pending.extend_from_slice(&data);
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).map_err(|e| e.to_string())?;
            status = show_line(&event, status)?;
        }
    }
    if let Some(dir) = &job.keep_files {
        keep_files(client, id, dir).await?;
    }
    Ok(status)
}

/// One line of the event stream.
fn show_line(event: &Value, status: u8) -> Result<u8, String> {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    match text("type") {
        "stdout" => write_out(text("text"))?,
        "stderr" => eprint!("{}", text("text")),
        "error" => return Ok(exit_status(text("name"), text("traceback"))),
        "ended" => {
            let number = |key: &str| event[key].as_i64().map(|n| n as i32);
            let ending = match text("outcome") {
                "ok" => Ending::Ok,
                "timeout" => Ending::Timeout,
                "interrupted" => Ending::Interrupted,
                "out_of_memory" => Ending::OutOfMemory,
                "kernel_died" => Ending::KernelDied {
                    code: number("exit_code"),
                    signal: number("signal"),
                },
                _ => Ending::Error,
            };
            return Ok(ending_status(ending, status, number("exit_code")));
        }
        _ => {}
    }
    Ok(status)
}

async fn keep_files(client: &mut Client, id: &str, dir: &Path) -> Result<(), String> {
    let files = client
        .bytes("GET", &format!("/sandbox/{id}/files"), "text/plain", "")
        .await?;
    let files: Value = serde_json::from_slice(&files).map_err(|e| e.to_string())?;
    for file in files.as_array().into_iter().flatten() {
        let name = file["path"].as_str().unwrap_or_default();
        let path = format!("/sandbox/{id}/download/{}", escape(name));
        let bytes = client.bytes("GET", &path, "text/plain", "").await?;
        let mut to = tokio::fs::File::from_std(create_kept(dir, name)?);
        to.write_all(&bytes)
            .await
            .map_err(|e| format!("failed to keep {name}: {e}"))?;
        to.flush()
            .await
            .map_err(|e| format!("failed to keep {name}: {e}"))?;
    }
    Ok(())
}

/// Percent-encodes what a URL's path may not hold.
fn escape(path: &str) -> String {
    path.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                char::from(b).to_string()
            }
            b => format!("%{b:02X}"),
        })
        .collect()
}

fn write_out(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("failed to write output: {e}"))
}
