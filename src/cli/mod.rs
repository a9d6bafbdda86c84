//! The command line.

mod bench;
pub mod client;
mod doctor;
mod log;
mod mcp;
mod mirror;
mod notify;
mod ps;
mod run;
mod serve;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::config::Config;
use crate::mirror::{Lock, Mirror, Store, TerminalProgress};

/// Warm, isolated, stateful Python sandboxes on bare Linux.
#[derive(Debug, Parser)]
#[command(name = "sandcell", version, about, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

/// Options of every verb.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Configuration file (TOML)
    #[arg(long, global = true, env = "SANDCELL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the service's state and mirrors [default: /var/lib/sandcell]
    #[arg(long, global = true, env = "SANDCELL_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Directory of mirrors [default: `mirrors` in the data directory]
    #[arg(long, global = true, env = "SANDCELL_MIRRORS_DIR", value_name = "DIR")]
    mirrors_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the service: REST and MCP on one port
    Serve(serve::ServeArgs),
    /// Run one script in a fresh sandbox
    Run(run::RunArgs),
    /// List the sandboxes of the running service
    Ps(ps::PsArgs),
    /// Close sandboxes of the running service
    Kill(ps::KillArgs),
    /// Speak MCP on standard input and output, for clients that start their servers
    Mcp(mcp::McpArgs),
    /// Build, list, verify and remove mirrors, the base that sandboxes share
    #[command(subcommand)]
    Mirror(mirror::MirrorCommand),
    /// Say what this host offers, what enforces what, and how to mend what is missing
    Doctor(doctor::DoctorArgs),
    /// Measure this host, from a client's side
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

impl Common {
    /// The configuration: defaults, then the file, then the environment, then these options.
    fn load(&self) -> Result<Config, String> {
        let flags = variables_of(&Cli::command());
        let mut config = Config::load(self.config.as_deref(), std::env::vars_os(), &flags)?;
        if let Some(dir) = &self.data_dir {
            config.data_dir.clone_from(dir);
        }
        if let Some(dir) = &self.mirrors_dir {
            config.mirrors_dir = Some(dir.clone());
        }
        Ok(config)
    }
}

/// Variables of the environment that stand for flags.
fn variables_of(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|flag| flag.get_env());
    let own = own.filter_map(|name| name.to_str().map(str::to_owned));
    let below = command.get_subcommands().flat_map(variables_of);
    own.chain(below).collect()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb {
        Verb::Serve(args) => serve::main(&cli.common, &args),
        Verb::Run(args) => run::main(&cli.common, &args),
        Verb::Ps(args) => ps::ps(&cli.common, &args),
        Verb::Kill(args) => ps::kill(&cli.common, &args),
        Verb::Mcp(args) => mcp::main(&cli.common, &args),
        Verb::Mirror(command) => cli
            .common
            .load()
            .map(|config| mirror::run(command, &config)),
        Verb::Doctor(args) => doctor::main(&cli.common, &args),
        Verb::Bench(command) => bench::main(&cli.common, &command),
    };
    result.unwrap_or_else(|message| {
        eprintln!("sandcell: {message}");
        ExitCode::FAILURE
    })
}

/// Worker threads of the service at most.
const MAX_WORKERS: usize = 8;

/// A runtime for what needs one, made after every process that must be forked early.
fn runtime() -> Result<tokio::runtime::Runtime, String> {
    // Few workers: a request is passed on between tasks several times, and waking another thread for
    // each costs more than the work. The processors are the kernels'.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, MAX_WORKERS))
        .enable_all()
        .build()
        .map_err(|e| format!("failed to start the runtime: {e}"))
}

/// The base mirror, kept from being removed while this value lives.
struct BaseMirror {
    mirror: Mirror,
    _in_use: Lock,
}

impl BaseMirror {
    fn root(&self) -> &Path {
        &self.mirror.root
    }

    /// The package index that pip uses when nobody names one.
    fn default_index(&self) -> &str {
        &self.mirror.record.default_index
    }
}

/// Finds the base mirror, or builds it with a progress bar on standard error.
fn base_mirror(config: &Config) -> Result<BaseMirror, String> {
    let said = |e: crate::mirror::Error| format!("failed to {e}");
    let store = Store::open(&config.mirrors_dir()).map_err(said)?;
    let store = store.with_packages(&config.mirrors.debian_packages);
    let mirror = match store.find_base().map_err(said)? {
        Some(mirror) => mirror,
        None => {
            let mut progress = TerminalProgress::new();
            let built = store.build_base(&mut |event| progress.show(event));
            progress.finish();
            built.map_err(said)?
        }
    };
    let in_use = mirror.lock_shared().map_err(said)?;
    Ok(BaseMirror {
        mirror,
        _in_use: in_use,
    })
}

/// Path of this binary, for the nursery.
fn program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// A number of bytes with an optional binary suffix: `512M`, `1G`, `1048576`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.trim_end_matches(['I', 'B']);
    let (number, unit) = match digits.char_indices().last() {
        Some((i, 'K')) => (&digits[..i], 1 << 10),
        Some((i, 'M')) => (&digits[..i], 1 << 20),
        Some((i, 'G')) => (&digits[..i], 1 << 30),
        _ => (digits, 1),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| format!("{text:?} is not a size; write 512M or 1G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes("1GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes("7"), Ok(7));
        assert!(parse_bytes("many").is_err());
    }
}
