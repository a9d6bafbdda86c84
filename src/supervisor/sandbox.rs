//! One sandbox, from its preparation to its end.
//!
//! ```text
//! Prepared (pool) ──claim──► Idle ◄──► Busy
//!        └──────────────┬─────┴──────────┘
//!                       ▼
//!                    Closing ──► gone: killed, reaped, cgroups removed, user id given back
//! ```
//!
//! It is destroyed once, in [`Sandbox::destroy`], whoever asks: a close, its lease, the drain.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::error::{Error, ErrorKind};
use super::host::{Host, User};
use super::setup::{self, DEATH_TIMEOUT, OOM_SCORE_ADJ};
use super::types::{
    Ended, Ending, Event, ExecuteSpec, KernelState, SandboxInfo, SandboxState, Usage,
};
use crate::isolation::cgroup::{CgroupLimits, SandboxCgroup};
use crate::isolation::host::Init;
use crate::isolation::spec::SandboxSpec;
use crate::isolation::{self};
use crate::kernel::execution::{self, Request};
use crate::kernel::handle::{Forked, Kernel};

/// Events on their way to a client.
const EVENT_QUEUE: usize = 64;
/// A sandbox.
#[derive(Debug)]
pub struct Sandbox {
    id: String,
    pub(super) host: Arc<Host>,
    pub(super) cgroup: SandboxCgroup,
    pub(super) init: Init,
    user: User,
    kernel: tokio::sync::Mutex<Option<Kernel>>,
    queue: Arc<Semaphore>,
    interrupt: Notify,
    /// Executions and commands under way.
    uses: AtomicUsize,
    closing: AtomicBool,
    closed: Notify,
    pub(super) next_command: AtomicU64,
    /// Cgroups of commands that left processes behind.
    pub(super) left_leaves: Mutex<Vec<String>>,
    claim: Mutex<Claim>,
}

/// What a claim sets.
#[derive(Debug, Clone)]
struct Claim {
    name: String,
    created_at: SystemTime,
    expires_at: SystemTime,
    last_used_at: SystemTime,
    last_used: Instant,
    expires: Instant,
    idle: Option<Duration>,
    env: BTreeMap<String, String>,
    threads: u32,
}

/// What a sandbox is to be, all defaults filled in.
#[derive(Debug, Clone)]
pub struct Plan {
    /// For people.
    pub name: Option<String>,
    /// Enforced by cgroups.
    pub limits: CgroupLimits,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// Life.
    pub lease: Duration,
    /// Life without requests.
    pub idle: Option<Duration>,
    /// Of every execution and command.
    pub env: BTreeMap<String, String>,
}

/// See [`Sandbox::begin_use`].
pub(super) struct InUse<'a>(&'a Sandbox);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Sandbox {
    /// Makes a sandbox with a ready kernel. Nothing is left of one that failed.
    pub async fn prepare(host: &Arc<Host>, plan: &Plan) -> Result<Arc<Self>, isolation::Error> {
        let id = new_id();
        let user = host.take_user()?;
        let limits = if host.ablation.no_cgroup {
            &CgroupLimits::NONE
        } else {
            &plan.limits
        };
        let cgroup = host.cgroup.sandbox(&id)?;
        let config = &host.config.limits;
        let spec = SandboxSpec {
            user_id: user.id(),
            disk_bytes: setup::upper_bytes(plan, config),
            inodes: setup::inodes(plan, config),
            root_from_host: false,
            rlimits: setup::rlimits(config, plan.disk_bytes),
            oom_score_adj: OOM_SCORE_ADJ,
            ablation: host.ablation,
        };
        let fork = setup::fork_spec(config, setup::threads(plan.limits.cpus));
        let made = setup::set_up(host, spec, &cgroup, limits, &fork, user.host_id()).await;
        let (init, kernel) = match made {
            Ok(made) => made,
            Err(e) => {
                let _ = cgroup.kill();
                setup::remove_cgroup(&cgroup).await;
                return Err(e);
            }
        };
        let now = SystemTime::now();
        let sandbox = Arc::new(Self {
            host: Arc::clone(host),
            cgroup,
            init,
            user,
            kernel: tokio::sync::Mutex::new(Some(kernel)),
            queue: Arc::new(Semaphore::new(config.queue + 1)),
            interrupt: Notify::new(),
            uses: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            next_command: AtomicU64::new(0),
            left_leaves: Mutex::default(),
            claim: Mutex::new(Claim {
                name: id.clone(),
                created_at: now,
                expires_at: now,
                last_used_at: now,
                last_used: Instant::now(),
                expires: Instant::now(),
                idle: None,
                env: BTreeMap::new(),
                threads: setup::threads(plan.limits.cpus),
            }),
            id,
        });
        Ok(sandbox)
    }

    /// Hands a prepared sandbox to a client: from here its lease runs.
    pub async fn claim(&self, plan: &Plan) -> Result<(), isolation::Error> {
        let now = SystemTime::now();
        {
            let mut claim = self.claim.lock().expect("not poisoned");
            *claim = Claim {
                name: plan
                    .name
                    .clone()
                    .unwrap_or_else(|| format!("sandbox-{}", &self.id[..6])),
                created_at: now,
                expires_at: now + plan.lease,
                last_used_at: now,
                last_used: Instant::now(),
                expires: Instant::now() + plan.lease,
                idle: plan.idle,
                env: plan.env.clone(),
                threads: setup::threads(plan.limits.cpus),
            };
        }
        if plan.env.is_empty() {
            return Ok(());
        }
        match self.kernel.lock().await.as_mut() {
            Some(kernel) => kernel
                .set_env(&plan.env)
                .await
                .map_err(isolation::Error::step("set a kernel's variables")),
            None => Ok(()),
        }
    }

    /// Has the kernel run something that nobody sees, so that the first execution finds the pages
    /// that it writes its own already.
    pub async fn rehearse(&self) -> Result<(), isolation::Error> {
        match self.kernel.lock().await.as_mut() {
            Some(kernel) => kernel
                .rehearse()
                .await
                .map_err(isolation::Error::step("rehearse")),
            None => Ok(()),
        }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// For clients.
    pub fn info(&self) -> SandboxInfo {
        let claim = self.claim.lock().expect("not poisoned");
        SandboxInfo {
            id: self.id.clone(),
            name: claim.name.clone(),
            created_at: claim.created_at,
            expires_at: claim.expires_at,
            last_used_at: claim.last_used_at,
            state: if self.closing.load(Ordering::Acquire) {
                SandboxState::Closing
            } else if self.in_use() {
                SandboxState::Busy
            } else {
                SandboxState::Idle
            },
        }
    }

    /// Notes a request.
    pub fn touch(&self) {
        let mut claim = self.claim.lock().expect("not poisoned");
        claim.last_used = Instant::now();
        claim.last_used_at = SystemTime::now();
    }

    /// Something runs in it.
    fn in_use(&self) -> bool {
        self.uses.load(Ordering::Acquire) > 0
    }

    /// It is in use, and so not idle, until the value is dropped.
    pub(super) fn begin_use(&self) -> InUse<'_> {
        self.uses.fetch_add(1, Ordering::AcqRel);
        InUse(self)
    }

    /// Variables of every execution and command.
    pub fn env(&self) -> BTreeMap<String, String> {
        self.claim.lock().expect("not poisoned").env.clone()
    }

    /// Resolves when its lease or its idle time is over; exact, as it sleeps until then.
    pub async fn expired(&self) {
        loop {
            let until = {
                let claim = self.claim.lock().expect("not poisoned");
                match claim.idle {
                    Some(idle) if !self.in_use() => claim.expires.min(claim.last_used + idle),
                    Some(idle) => claim.expires.min(Instant::now() + idle),
                    None => claim.expires,
                }
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Resolves when init has died without being asked to: the sandbox is of no more use.
    pub async fn died(&self) {
        self.init.process().exited().await;
    }

    /// A new kernel in place of one that died.
    async fn launch_kernel(&self) -> Result<Kernel, isolation::Error> {
        let zygote = self.host.zygote().await?;
        let (env, threads) = {
            let claim = self.claim.lock().expect("not poisoned");
            (claim.env.clone(), claim.threads)
        };
        let spec = setup::fork_spec(&self.host.config.limits, threads);
        let init = self.init.process().pidfd();
        let forked = Forked::start(&zygote, init, &self.cgroup, &spec).await?;
        let place = setup::place(&self.host, &self.init, self.user.host_id());
        let mut kernel = forked.join(&place).await?;
        // Never by way of the zygote: what it once read, every later kernel has a copy of.
        if !env.is_empty() {
            kernel
                .set_env(&env)
                .await
                .map_err(isolation::Error::step("set a kernel's variables"))?;
        }
        Ok(kernel)
    }

    /// Queues an execution and runs it; events go to the receiver returned.
    pub fn execute(self: &Arc<Self>, spec: ExecuteSpec) -> Result<mpsc::Receiver<Event>, Error> {
        self.refuse_closing()?;
        self.touch();
        let Ok(place) = Arc::clone(&self.queue).try_acquire_owned() else {
            let mut error = Error::new(
                ErrorKind::Busy,
                "queue_full",
                format!(
                    "{} executions already wait in this sandbox (limits.queue)",
                    self.host.config.limits.queue
                ),
            );
            error.retry_after_seconds = Some(1);
            return Err(error);
        };
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let sandbox = Arc::clone(self);
        tokio::spawn(async move {
            sandbox.run_execution(spec, events).await;
            drop(place);
        });
        Ok(receiver)
    }

    async fn run_execution(&self, spec: ExecuteSpec, events: mpsc::Sender<Event>) {
        let mut slot = tokio::select! {
            slot = self.kernel.lock() => slot,
            // The client went away while it waited.
            () = events.closed() => return,
            () = self.wait_closed() => return,
        };
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        let in_use = self.begin_use();
        let started = Instant::now();
        let before = self.cgroup.counters();
        let ended = match self.ready_kernel(&mut slot).await {
            Ok(()) => {
                self.run_in_kernel(&mut slot, &spec, &events, before.oom_kills)
                    .await
            }
            Err(e) => {
                tracing::error!(sandbox = self.id, "no kernel: {e}");
                let out_of_memory = self.cgroup.oom_kills() > before.oom_kills;
                no_kernel(if out_of_memory {
                    Ending::OutOfMemory
                } else {
                    Ending::KernelDied {
                        code: None,
                        signal: None,
                    }
                })
            }
        };
        let usage = self.usage(started.elapsed(), &before, &ended);
        // The next request finds the sandbox idle.
        drop(in_use);
        let lost = ended.state == KernelState::Lost;
        let _ = timeout(
            Duration::from_secs(30),
            events.send(Event::Ended(Box::new(Ended { usage, ..ended }))),
        )
        .await;
        if lost
            && !self.closing.load(Ordering::Acquire)
            && let Err(e) = self.ready_kernel(&mut slot).await
        {
            tracing::warn!(sandbox = self.id, "no new kernel yet: {e}");
        }
    }

    async fn ready_kernel(&self, slot: &mut Option<Kernel>) -> Result<(), isolation::Error> {
        if slot.is_none() {
            *slot = Some(self.launch_kernel().await?);
        }
        Ok(())
    }

    async fn run_in_kernel(
        &self,
        slot: &mut Option<Kernel>,
        spec: &ExecuteSpec,
        events: &mpsc::Sender<Event>,
        oom_kills: u64,
    ) -> Ended {
        let limits = &self.host.config.limits;
        let request = Request {
            code: &spec.code,
            env: &spec.env,
            stdin: spec.stdin.as_deref(),
            timeout: spec
                .timeout
                .unwrap_or(Duration::from_secs(limits.timeout_seconds)),
            grace: Duration::from_secs(limits.interrupt_grace_seconds),
            output_bytes: limits.output_bytes,
            result_bytes: limits.result_bytes,
            traceback_bytes: limits.traceback_bytes,
            files: limits.files,
        };
        let Some(kernel) = slot.as_mut() else {
            return no_kernel(Ending::KernelDied {
                code: None,
                signal: None,
            });
        };
        let finish = execution::run(
            kernel,
            &self.cgroup,
            &request,
            events,
            &self.interrupt,
            oom_kills,
        )
        .await;
        if !finish.kernel_alive {
            *slot = None;
        }
        let closing = self.closing.load(Ordering::Acquire);
        Ended {
            ending: if closing {
                Ending::Interrupted
            } else {
                finish.ending
            },
            state: if finish.kernel_alive {
                KernelState::Kept
            } else {
                KernelState::Lost
            },
            execution_count: finish.execution_count,
            files: finish.files,
            files_truncated: finish.files_truncated,
            results_dropped: finish.results_dropped,
            usage: Usage::default(),
            stdout_dropped_bytes: finish.stdout_dropped_bytes,
            stderr_dropped_bytes: finish.stderr_dropped_bytes,
        }
    }

    fn usage(
        &self,
        wall: Duration,
        before: &crate::isolation::cgroup::Counters,
        ended: &Ended,
    ) -> Usage {
        let after = self.cgroup.counters();
        let mut limits_hit = Vec::new();
        if after.oom_kills > before.oom_kills {
            limits_hit.push("memory");
        }
        if after.fork_failures > before.fork_failures {
            limits_hit.push("processes");
        }
        if ended.stdout_dropped_bytes > 0 || ended.stderr_dropped_bytes > 0 || ended.results_dropped
        {
            limits_hit.push("output");
        }
        if ended.ending == Ending::Timeout {
            limits_hit.push("time");
        }
        Usage {
            wall,
            cpu_user: after.cpu_user.saturating_sub(before.cpu_user),
            cpu_system: after.cpu_system.saturating_sub(before.cpu_system),
            peak_memory_bytes: after.peak_memory_bytes,
            // Init is ours.
            processes: after.processes.saturating_sub(1),
            limits_hit,
        }
    }

    pub(super) fn refuse_closing(&self) -> Result<(), Error> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Conflict,
                "sandbox_closing",
                "the sandbox is being closed",
            ));
        }
        Ok(())
    }

    async fn wait_closed(&self) {
        let closed = self.closed.notified();
        if !self.closing.load(Ordering::Acquire) {
            closed.await;
        }
    }

    /// Marks it as closing; true for the one caller that must destroy it.
    pub fn begin_close(&self) -> bool {
        let first = !self.closing.swap(true, Ordering::AcqRel);
        self.closed.notify_waiters();
        first
    }

    /// Kills everything inside; returns when the processes are gone.
    pub async fn kill(&self) {
        self.begin_close();
        if let Err(e) = self.cgroup.kill() {
            tracing::warn!(sandbox = self.id, "{e}");
            self.init.process().kill();
        }
        if timeout(DEATH_TIMEOUT, self.init.process().exited())
            .await
            .is_err()
        {
            tracing::error!(sandbox = self.id, "init does not die");
        }
    }

    /// The one way in which a sandbox ends: kill, reap, remove the cgroups. Its file system goes
    /// with its mount namespace, its user id is free again when the last handle is dropped.
    pub async fn destroy(&self) {
        self.kill().await;
        // Whoever executes sees its kernel die and gives the lock back.
        self.kernel.lock().await.take();
        setup::remove_cgroup(&self.cgroup).await;
    }
}

fn no_kernel(ending: Ending) -> Ended {
    Ended {
        ending,
        state: KernelState::Lost,
        execution_count: 0,
        files: Vec::new(),
        files_truncated: false,
        results_dropped: false,
        usage: Usage::default(),
        stdout_dropped_bytes: 0,
        stderr_dropped_bytes: 0,
    }
}

/// 128 random bits as 26 characters of Crockford's base 32, in lower case.
fn new_id() -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut bits: u128 = rand::random();
    let mut id = [0u8; 26];
    for c in &mut id {
        *c = ALPHABET[(bits & 31) as usize];
        bits >>= 5;
    }
    String::from_utf8_lossy(&id).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_that_clients_rely_on() {
        let id = new_id();
        assert_eq!(id.len(), 26);
        assert!(
            id.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        );
        assert_ne!(id, new_id());
    }
}
