//! `sandcell serve`.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::Common;
use crate::config::Config;
use crate::supervisor::{Prepared, Supervisor};

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1]; any but loopback needs `server.api_keys`
    #[arg(long, env = "SANDCELL_HOST", value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Port to listen on, 0 picks one [default: 8000]
    #[arg(long, env = "SANDCELL_PORT")]
    port: Option<u16>,
    /// Sandboxes kept ready [default: 4]
    #[arg(long, env = "SANDCELL_POOL", value_name = "N")]
    pool: Option<usize>,
}

/// Runs the service until SIGINT or SIGTERM.
pub fn main(common: &Common, args: &ServeArgs) -> Result<ExitCode, String> {
    super::log_to_stderr();
    let mut config = common.load()?;
    let listen = &mut config.server.listen;
    *listen = SocketAddr::new(
        args.host.unwrap_or(listen.ip()),
        args.port.unwrap_or(listen.port()),
    );
    if let Some(pool) = args.pool {
        config.service.pool = pool;
    }
    crate::api::check_exposure(&config).map_err(|e| e.to_string())?;
    config.check()?;
    raise_descriptor_limit();
    let mirror = super::base_mirror(&config)?;
    let prepared =
        Prepared::new(config, &super::program(), mirror.root()).map_err(|e| e.to_string())?;
    let prepared = prepared.with_default_index(mirror.default_index());
    super::runtime()?.block_on(serve(prepared))
}

/// A sandbox takes six descriptors; the soft limit is often 1024 for the sake of select(2).
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(e) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    ) {
        tracing::warn!("failed to raise the limit of descriptors: {e}");
    }
}

async fn serve(prepared: Prepared) -> Result<ExitCode, String> {
    // Before anything is started, so that no signal finds us without a handler.
    let mut stop = Stop::new()?;
    let supervisor = Supervisor::start(prepared)
        .await
        .map_err(|e| e.to_string())?;
    let result = listen_until(&supervisor, &mut stop).await;
    supervisor.drain().await;
    result
}

async fn listen_until(supervisor: &Supervisor, stop: &mut Stop) -> Result<ExitCode, String> {
    let config: Config = supervisor.config().clone();
    let listener = TcpListener::bind(config.server.listen)
        .await
        .map_err(|e| format!("failed to listen on {}: {e}", config.server.listen))?;
    let address = listener.local_addr().map_err(|e| e.to_string())?;
    supervisor.announce(address).map_err(|e| e.to_string())?;
    println!("sandcell is ready: http://{address}");
    let mut failed = false;
    let ended = async {
        tokio::select! {
            () = stop.asked() => {}
            () = supervisor.failed() => failed = true,
        }
    };
    crate::api::serve(listener, supervisor.clone(), &config, ended)
        .await
        .map_err(|e| e.to_string())?;
    if failed {
        return Err("the nursery died, and every sandbox with it; start the service again".into());
    }
    Ok(ExitCode::SUCCESS)
}

/// SIGINT, SIGTERM, and SIGHUP of a terminal that was closed.
struct Stop {
    hangup: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> Result<Self, String> {
        let watch = |kind| signal(kind).map_err(|e| format!("failed to watch signals: {e}"));
        Ok(Self {
            hangup: watch(SignalKind::hangup())?,
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
