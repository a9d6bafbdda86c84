//! The zygote's handle: one Python process with everything imported, from which kernels are forked.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::protocol::{FromZygote, ToZygote, VERSION};
use crate::isolation::channel::{self, Channel};
use crate::isolation::host::{Nursery, Process};
use crate::isolation::seccomp::Filters;
use crate::isolation::{Context, Error};

/// Longest that importing everything may take: tens of seconds under emulation or on a cold disk.
pub const START_TIMEOUT: Duration = Duration::from_secs(180);
/// Longest that a fork may take.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);

/// How a kernel ended; at most one is set, none where nobody could tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: Option<i32>,
    /// Signal number.
    pub signal: Option<i32>,
}

impl Exit {
    /// From a wait status (wait(2)).
    pub fn of_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self {
                code: Some(status >> 8 & 0xff),
                signal: None,
            },
            signal => Self {
                code: None,
                signal: Some(signal),
            },
        }
    }
}

/// What a fork needs to know; see [`ToZygote::Fork`].
#[derive(Debug, Clone)]
pub struct ForkSpec {
    /// By name.
    pub rlimits: BTreeMap<String, u64>,
    /// Of numeric libraries.
    pub threads: u32,
    /// Of the kernel.
    pub oom_score_adj: u32,
    /// The sandbox has GPUs.
    pub gpu: bool,
}

/// What kernels install.
#[derive(Debug, Clone, Copy)]
pub struct FilterSets<'a> {
    /// In most sandboxes.
    pub default: &'a Filters,
    /// In those with GPUs.
    pub gpu: &'a Filters,
}

/// A running zygote.
#[derive(Debug)]
pub struct Zygote {
    channel: Channel,
    process: Process,
    next_id: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    forks: HashMap<u64, oneshot::Sender<Result<OwnedFd, String>>>,
    exits: HashMap<u64, oneshot::Sender<Exit>>,
    dead: bool,
}

impl Zygote {
    /// Starts a zygote and waits until it has imported everything, up to `longest`; gives the modules
    /// that could not be imported too, each with a colon and the reason. Its kernels leave the steps
    /// `without` of their lock-down out: [`ToZygote::Start`].
    pub async fn start(
        nursery: &Nursery,
        filters: Option<FilterSets<'_>>,
        preload: &[String],
        without: &[&str],
        longest: Duration,
    ) -> Result<(Arc<Self>, Vec<String>), Error> {
        let (ours, theirs) = channel::pair().context("make a socket pair")?;
        let process = nursery
            .start_zygote(
                theirs,
                super::sources(),
                super::zygote_env(),
                filters.is_some(),
            )
            .await?;
        let channel = Channel::new(ours).context("watch the zygote")?;
        let imported = import(&channel, filters, preload, without, longest).await;
        let failed = imported.inspect_err(|_| process.kill())?;
        let zygote = Arc::new(Self {
            channel,
            process,
            next_id: AtomicU64::new(1),
            waiting: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&zygote).listen());
        Ok((zygote, failed))
    }

    /// The process, for its memory.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Whether it can still fork.
    pub fn is_dead(&self) -> bool {
        self.waiting.lock().expect("not poisoned").dead
    }

    /// Forks a kernel into the sandbox of `init`; `streams` are its socket, stdout and stderr, and
    /// `joins` the `cgroup.procs` files in which it writes itself.
    pub async fn fork(
        &self,
        spec: &ForkSpec,
        init: BorrowedFd<'_>,
        streams: [BorrowedFd<'_>; 3],
        joins: &[OwnedFd],
    ) -> Result<(Process, oneshot::Receiver<Exit>), Error> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (forked, on_fork) = oneshot::channel();
        let (exited, on_exit) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock().expect("not poisoned");
            if waiting.dead {
                return Err(Error::Refused("the zygote is dead".into()));
            }
            waiting.forks.insert(id, forked);
            waiting.exits.insert(id, exited);
        }
        let mut fds = vec![init];
        fds.extend(streams);
        fds.extend(joins.iter().map(AsFd::as_fd));
        let message = ToZygote::Fork {
            id,
            rlimits: &spec.rlimits,
            threads: spec.threads,
            oom_score_adj: spec.oom_score_adj,
            gpu: spec.gpu,
        };
        let exchange = async {
            self.channel
                .send_json(&message, &fds)
                .await
                .context("ask the zygote")?;
            on_fork
                .await
                .map_err(|_| Error::Refused("the zygote died".into()))
        };
        let answer = timeout(FORK_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(Error::Refused("the zygote does not answer".into())));
        match answer {
            Ok(Ok(pidfd)) => Ok((Process::new(pidfd)?, on_exit)),
            Ok(Err(error)) => {
                self.forget(id);
                Err(Error::Refused(error))
            }
            Err(e) => {
                self.forget(id);
                Err(e)
            }
        }
    }

    fn forget(&self, id: u64) {
        let mut waiting = self.waiting.lock().expect("not poisoned");
        waiting.forks.remove(&id);
        waiting.exits.remove(&id);
    }

    /// Hands out what the zygote says, until it dies.
    async fn listen(self: Arc<Self>) {
        while let Ok(Some(packet)) = self.channel.receive().await {
            let message = packet.decode();
            let mut waiting = self.waiting.lock().expect("not poisoned");
            match message {
                Ok(FromZygote::Forked { id }) => {
                    let pidfd = packet
                        .fds
                        .into_iter()
                        .next()
                        .ok_or("no pidfd came".to_owned());
                    if let Some(forked) = waiting.forks.remove(&id) {
                        let _ = forked.send(pidfd);
                    }
                }
                Ok(FromZygote::Failed { id, error }) => {
                    waiting.exits.remove(&id);
                    if let Some(forked) = waiting.forks.remove(&id) {
                        let _ = forked.send(Err(error));
                    }
                }
                Ok(FromZygote::Exited { id, code, signal }) => {
                    if let Some(exited) = waiting.exits.remove(&id) {
                        let _ = exited.send(Exit { code, signal });
                    }
                }
                Ok(FromZygote::Ready { .. }) | Err(_) => break,
            }
        }
        self.process.kill();
        let mut waiting = self.waiting.lock().expect("not poisoned");
        // Whoever waits learns it from the closed channels.
        *waiting = Waiting {
            dead: true,
            ..Waiting::default()
        };
        tracing::warn!("the zygote ended");
    }
}

/// Has a zygote import everything; gives what could not be imported.
async fn import(
    channel: &Channel,
    filters: Option<FilterSets<'_>>,
    preload: &[String],
    without: &[&str],
    longest: Duration,
) -> Result<Vec<String>, Error> {
    let encoded = |filters: Option<&Filters>| -> Vec<String> {
        let programs = filters.map(Filters::as_bytes).unwrap_or_default();
        programs.iter().map(|f| BASE64_STANDARD.encode(f)).collect()
    };
    channel
        .send_json(
            &ToZygote::Start {
                filters: &encoded(filters.map(|f| f.default)),
                gpu_filters: &encoded(filters.map(|f| f.gpu)),
                preload,
                env: &super::base_env(),
                without,
            },
            &[],
        )
        .await
        .context("start the zygote")?;
    let ready = timeout(longest, channel.receive())
        .await
        .map_err(|_| {
            let longest = longest.as_secs();
            Error::Refused(format!("the imports take longer than {longest} s"))
        })?
        .context("hear from the zygote")?
        .ok_or_else(|| Error::Refused("Python ended while it imported".into()))?;
    match ready.decode().context("read the zygote's answer")? {
        FromZygote::Ready {
            protocol: VERSION,
            python,
            failed_preloads,
        } => {
            tracing::info!(python, "zygote is ready");
            Ok(failed_preloads)
        }
        FromZygote::Failed { error, .. } => Err(Error::Refused(error)),
        other => Err(Error::Refused(format!("the zygote said {other:?}"))),
    }
}
