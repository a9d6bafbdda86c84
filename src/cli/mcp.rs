//! `sandcell mcp`: MCP over standard input and output, by itself or in front of a running service.

mod bridge;
mod post;

use std::fs::File;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Common;
use super::log::Log;
use crate::api::{SetName, serve_messages};
use crate::config::{self, Config};
use crate::supervisor::host::running_service;
use crate::supervisor::{Prepared, Supervisor};

/// Longest that the end of the tasks of the runtime may take; they hold nothing by then.
const STOP: Duration = Duration::from_secs(1);

/// Options of `mcp`.
#[derive(Debug, Args)]
pub struct McpArgs {
    /// Which tools the client sees
    #[arg(long, value_enum, default_value = "default")]
    tools: Tools,
    /// Pass everything on to the service at this address (http://host:port, or with the path of an
    /// endpoint), instead of to one on the data directory or a supervisor of its own
    #[arg(long, value_name = "URL")]
    connect: Option<String>,
    /// The service's key
    #[arg(long, env = "SANDCELL_API_KEY", hide_env_values = true)]
    key: Option<String>,
}

/// The sets of tools, as the endpoints of the service have them.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Tools {
    /// All tools, as at /mcp
    Default,
    /// Those of /mcp/env
    Env,
    /// Those of /mcp/workspace
    Workspace,
}

impl Tools {
    fn set(self) -> SetName {
        match self {
            Self::Default => SetName::Default,
            Self::Env => SetName::Env,
            Self::Workspace => SetName::Workspace,
        }
    }
}

/// Serves until standard input ends or a signal comes.
pub fn main(common: &Common, args: &McpArgs) -> Result<ExitCode, String> {
    let output = take_stdout()?;
    let mut config = common.load()?;
    // A file would be the service's.
    config.logging.file = None;
    Log::start(&config.logging)?;
    let service = match &args.connect {
        Some(url) => Some(url.clone()),
        None => running_service(&config.data_dir),
    };
    let runtime;
    let ended = if let Some(url) = service {
        let bridge = bridge::Bridge::new(&url, args.tools.set(), args.key.as_deref())?;
        runtime = super::runtime()?;
        runtime.block_on(async {
            let mut stop = Stop::new()?;
            tokio::select! {
                ended = bridge.run(output) => ended,
                () = stop.asked() => Ok(()),
            }
        })
    } else {
        // One client: what it does not use should not keep it waiting.
        config.service.pool = 0;
        config.service.preload.clear();
        // First: relative paths are meant from there.
        config.mcp.local_dirs.splice(0..0, local_dir());
        config.check()?;
        let mirror = super::base_mirror(&config)?;
        let own = Own::prepare(config, mirror.root(), mirror.default_index())?;
        runtime = super::runtime()?;
        runtime.block_on(own.serve(args.tools.set(), output))
    };
    // Not by its drop: a read of standard input that waits cannot be called off.
    runtime.shutdown_timeout(STOP);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Takes standard output for the protocol alone. Whatever else in this process or its children writes
/// to it writes to standard error from now on.
fn take_stdout() -> Result<File, String> {
    let failed = |e: &dyn std::fmt::Display| format!("failed to take standard output: {e}");
    let output = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3).map_err(|e| failed(&e))?;
    nix::unistd::dup2_stdout(std::io::stderr()).map_err(|e| failed(&e))?;
    Ok(output.into())
}

/// A supervisor of this process's own.
struct Own {
    prepared: Prepared,
    /// Where another has the data directory.
    own_dir: Option<OwnDir>,
}

impl Own {
    fn prepare(config: Config, mirror: &std::path::Path, index: &str) -> Result<Self, String> {
        let program = super::program();
        // Another of these may have the data directory and no address to pass on to.
        let (prepared, own_dir) = match Prepared::new(config.clone(), &program, mirror) {
            Ok(prepared) => (prepared, None),
            Err(error) => {
                tracing::info!("going on without the data directory: {error}");
                let dir = OwnDir::make()?;
                let mut config = config;
                config.data_dir.clone_from(&dir.0);
                let prepared =
                    Prepared::ephemeral(config, &program, mirror).map_err(|e| e.to_string())?;
                (prepared, Some(dir))
            }
        };
        Ok(Self {
            prepared: prepared.with_default_index(index),
            own_dir,
        })
    }

    async fn serve(self, set: SetName, output: File) -> Result<(), String> {
        // Before anything is started, so that no signal finds us without a handler.
        let mut stop = Stop::new()?;
        let supervisor = Supervisor::start(self.prepared)
            .await
            .map_err(|e| e.to_string())?;
        let (input, output) = (tokio::io::stdin(), tokio::fs::File::from_std(output));
        let served = tokio::select! {
            () = serve_messages(&supervisor, set, input, output) => Ok(()),
            () = stop.asked() => Ok(()),
            () = supervisor.failed() => Err("the nursery died, and every sandbox with it".to_owned()),
        };
        supervisor.drain().await;
        drop(self.own_dir);
        served
    }
}

/// Trees of the system, where no client keeps its work.
const SYSTEM: [&str; 8] = [
    "/bin", "/boot", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr",
];

/// The directory that the client started us in, for tools with local paths. Some clients start their
/// servers in `/` or at home, and mean nothing by it: whoever owns a home is not to find it changed.
fn local_dir() -> Option<std::path::PathBuf> {
    let dir = std::env::current_dir().ok()?;
    let homes = std::env::var_os("HOME").map(std::path::PathBuf::from);
    // The last stands for all of them: where homes are is no place to work in either.
    let homes = homes
        .into_iter()
        .chain(["/root".into(), "/home/anyone".into()]);
    let of_the_system = SYSTEM.iter().any(|tree| dir.starts_with(tree));
    let plain = config::Mcp::may_list(&dir) && !of_the_system;
    (plain && !homes.into_iter().any(|home| home.starts_with(&dir))).then_some(dir)
}

/// A directory for the time of this process.
struct OwnDir(std::path::PathBuf);

impl OwnDir {
    fn make() -> Result<Self, String> {
        let name = format!("sandcell-mcp-{:032x}", rand::random::<u128>());
        let path = std::env::temp_dir().join(name);
        let failed = |e| format!("failed to make {}: {e}", path.display());
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .create(&path)
            .map_err(failed)?;
        Ok(Self(path))
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// SIGINT, SIGTERM, and SIGHUP of a terminal that was closed.
struct Stop([Signal; 3]);

impl Stop {
    fn new() -> Result<Self, String> {
        let watch = |kind| signal(kind).map_err(|e| format!("failed to watch signals: {e}"));
        Ok(Self([
            watch(SignalKind::hangup())?,
            watch(SignalKind::interrupt())?,
            watch(SignalKind::terminate())?,
        ]))
    }

    async fn asked(&mut self) {
        let [hangup, interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = hangup.recv() => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}
