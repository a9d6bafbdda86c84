//! `sandcell serve`.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{self, SignalKind};

use super::Common;
use super::log::Log;
use super::notify::Notifier;
use crate::api::Access;
use crate::config::{Config, Reload};
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

impl ServeArgs {
    /// The configuration as everything but the command line has it, and these flags over it.
    fn load(&self, common: &Common) -> Result<Config, String> {
        let mut config = common.load()?;
        let listen = &mut config.server.listen;
        *listen = SocketAddr::new(
            self.host.unwrap_or(listen.ip()),
            self.port.unwrap_or(listen.port()),
        );
        if let Some(pool) = self.pool {
            config.service.pool = pool;
        }
        Ok(config)
    }
}

/// Refuses a configuration that nothing could run with, or that strangers could use.
fn check(config: &Config) -> Result<(), String> {
    crate::api::check_exposure(config).map_err(|e| e.to_string())?;
    config.check()
}

/// Runs the service until SIGINT or SIGTERM.
pub fn main(common: &Common, args: &ServeArgs) -> Result<ExitCode, String> {
    let config = args.load(common)?;
    check(&config)?;
    let log = Log::start(&config.logging)?;
    let notifier = Notifier::from_environment()?;
    raise_descriptor_limit();
    let mirror = super::base_mirror(&config)?;
    let prepared =
        Prepared::new(config, &super::program(), mirror.root()).map_err(|e| e.to_string())?;
    let prepared = prepared.with_default_index(mirror.default_index());
    super::runtime()?.block_on(async {
        // Before anything is started, so that no signal finds us without a handler.
        let mut signals = Signals::new()?;
        let supervisor = Supervisor::start(prepared)
            .await
            .map_err(|e| e.to_string())?;
        let mut service = Service {
            common,
            args,
            log,
            notifier,
            config: supervisor.config().clone(),
            supervisor: supervisor.clone(),
        };
        let result = service.serve(&mut signals).await;
        supervisor.drain().await;
        result
    })
}

/// A sandbox takes fifteen descriptors; the soft limit is often 1024 for the sake of select(2).
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

/// What is needed to serve, and to read the configuration again.
struct Service<'a> {
    common: &'a Common,
    args: &'a ServeArgs,
    log: Log,
    notifier: Notifier,
    /// As it is now.
    config: Config,
    supervisor: Supervisor,
}

impl Service<'_> {
    async fn serve(&mut self, signals: &mut Signals) -> Result<ExitCode, String> {
        let config = self.config.clone();
        let listener = TcpListener::bind(config.server.listen)
            .await
            .map_err(|e| format!("failed to listen on {}: {e}", config.server.listen))?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let access = Access::new(&config.server, address).map_err(|e| e.to_string())?;
        self.supervisor
            .announce(address)
            .map_err(|e| e.to_string())?;
        println!("sandcell is ready: http://{address}");
        self.notifier.ready(address);
        let mut failed = false;
        let supervisor = self.supervisor.clone();
        let ended = async {
            loop {
                tokio::select! {
                    () = self.supervisor.failed() => {
                        failed = true;
                        break;
                    }
                    () = self.notifier.watch() => {}
                    signal = signals.next() => match signal {
                        Signal::Reload => self.reload(&access),
                        Signal::Stop => break,
                    },
                }
            }
            self.notifier.stopping();
        };
        crate::api::serve(listener, supervisor, &config, access.clone(), ended)
            .await
            .map_err(|e| e.to_string())?;
        if failed {
            return Err(
                "the nursery died, and every sandbox with it; start the service again".into(),
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reads the configuration again; with a mistake in it everything stays as it is.
    fn reload(&mut self, access: &Access) {
        self.notifier.reloading();
        match self.try_reload(access) {
            Ok(reload) => {
                let changed: Vec<_> = reload.changed.into_iter().collect();
                tracing::info!(
                    changed = changed.join(", "),
                    "the configuration was read again"
                );
                for key in reload.left {
                    tracing::warn!("{key} has changed, which needs a restart; it stays as it was");
                }
            }
            Err(e) => tracing::error!("the configuration stays as it was: {e}"),
        }
        self.notifier.reloaded();
    }

    fn try_reload(&mut self, access: &Access) -> Result<Reload, String> {
        let new = self.args.load(self.common)?;
        check(&new)?;
        let reload = self.config.reload(&new);
        // What stays may not go with what changes.
        check(&reload.config)?;
        let has_keys = |config: &Config| !config.server.api_keys.is_empty();
        if has_keys(&self.config) && !has_keys(&reload.config) {
            // More likely a file that is half written than a wish: everyone would own everything.
            return Err(
                "[server] api_keys: none is left; going on without keys takes a restart".into(),
            );
        }
        self.log.change(&reload.config.logging)?;
        access
            .change(&reload.config.server)
            .map_err(|e| e.to_string())?;
        self.supervisor.reconfigure(reload.config.clone());
        self.config = reload.config.clone();
        Ok(reload)
    }
}

enum Signal {
    Reload,
    Stop,
}

/// SIGINT and SIGTERM end the service, SIGHUP has it read its configuration again. A terminal that is
/// closed sends SIGHUP too; its service ends with it.
struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    terminate: unix::Signal,
    of_terminal: bool,
}

impl Signals {
    fn new() -> Result<Self, String> {
        let watch = |kind| unix::signal(kind).map_err(|e| format!("failed to watch signals: {e}"));
        Ok(Self {
            hangup: watch(SignalKind::hangup())?,
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            of_terminal: has_terminal(),
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => {
                if self.of_terminal && !has_terminal() {
                    Signal::Stop
                } else {
                    Signal::Reload
                }
            }
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
        }
    }
}

/// Whether this process has a controlling terminal (tty(4): without one it cannot be opened).
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}
