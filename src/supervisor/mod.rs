//! The verbs that the API offers, over sandboxes that this process supervises.
//!
//! Each verb finds its sandbox in the registry, and everything that lasts longer than a request
//! (leases, the pool, destruction) runs in tasks that [`Supervisor::drain`] waits for.

mod checkpoints;
mod command;
mod context;
mod copies;
mod dependencies;
mod ended;
mod error;
mod files;
mod gone;
mod gpus;
mod history;
pub mod host;
mod install;
mod launch;
mod layer;
mod lease;
mod local;
mod log;
mod mirrors;
mod network;
mod owner;
mod plan;
mod pool;
mod ports;
mod processes;
mod program;
mod project;
mod realm;
mod requirements;
mod sandbox;
mod saving;
mod sequence;
mod setup;
pub mod types;
mod uv;
mod workspaces;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, SystemTime};

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use command::RunningCommand;
pub use copies::{destination, file_name, relative_to_home};
pub use error::{Error, ErrorKind};
pub use files::{FileWatch, Packed, TreeEvent, Unpacking};
pub use host::Prepared;
pub use local::LocalDirs;
pub use owner::Owner;
pub use ports::{ListeningPort, PortConnection, PortUse};
pub use processes::{Attached, ProcessHandle};
pub use types::*;

use crate::config::Config;
use crate::isolation;
pub use crate::isolation::spec::HOME;
use crate::mirror::Layers;
use crate::network::Policy;
use gone::{End, EndReason, Gone};
use gpus::GpuTable;
use host::Host;
use mirrors::{Mirrors, Site};
use owner::Scope;
use pool::Pool;
use realm::Realm;
use sandbox::{Plan, Sandbox, VIEW_AGE};

/// Longest that destroyed sandboxes may take to be cleaned up at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds after which a create that found no room may try again.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The service's core, as one owner sees it, or whoever asks where there are none
/// ([`Supervisor::on_behalf_of`]). Cheap to clone; every clone is the same supervisor.
#[derive(Debug, Clone)]
pub struct Supervisor {
    inner: Arc<Inner>,
    scope: Scope,
}

#[derive(Debug)]
struct Inner {
    host: Arc<Host>,
    /// The configuration that new sandboxes and requests are checked against.
    current: RwLock<Arc<Config>>,
    /// Of the base.
    base: Arc<Realm>,
    pool: Arc<Pool>,
    mirrors: Mirrors,
    stopping: CancellationToken,
    registry: Mutex<Registry>,
    tasks: Mutex<JoinSet<()>>,
    gpus: Arc<GpuTable>,
    filler: Mutex<Option<AbortHandle>>,
    draining: AtomicBool,
}

#[derive(Debug, Default)]
struct Registry {
    live: HashMap<String, Arc<Sandbox>>,
    gone: Gone,
    /// Creates under way, by whom: they count against the limits of live sandboxes.
    creating: Vec<Option<Owner>>,
}

impl Registry {
    /// Live sandboxes and creates under way of an owner.
    fn count_of(&self, owner: &Owner) -> usize {
        let live = self.live.values().filter_map(|sandbox| sandbox.owner());
        let creating = self.creating.iter().flatten().cloned();
        live.chain(creating).filter(|of| of == owner).count()
    }
}

/// Room for one live sandbox, given back unless it was used.
struct Room<'a> {
    inner: &'a Inner,
    owner: Option<Owner>,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let creating = &mut self.inner.registry.lock().expect("not poisoned").creating;
        if let Some(place) = creating.iter().position(|owner| *owner == self.owner) {
            creating.swap_remove(place);
        }
    }
}

/// Keeps what programs read of their sandbox's memory no older than a second while they run. One timer
/// for all, and nothing is done for a sandbox in which nothing that we know of runs.
async fn refresh_views(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(VIEW_AGE).await;
        let Some(inner) = inner.upgrade() else { return };
        let running: Vec<Arc<Sandbox>> = {
            let registry = inner.registry.lock().expect("not poisoned");
            let running = registry.live.values().filter(|s| s.is_running());
            running.cloned().collect()
        };
        for sandbox in running {
            sandbox.refresh_view();
        }
    }
}

impl Supervisor {
    /// Brings a prepared service up: zygote, pool. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A sandbox could not be made here; the message names the step or the missing feature.
    pub async fn start(prepared: Prepared) -> Result<Self, isolation::Error> {
        let (host, base) = Host::start(prepared).await?;
        let plan = Plan::default_of(&host.config);
        // Fail closed, and at start rather than at the first request.
        let probe = match Sandbox::prepare(&base, &plan).await {
            Ok(probe) => probe,
            Err(e) => {
                base.stop().await;
                host.stop();
                return Err(e);
            }
        };
        let pool = Arc::new(Pool::new(host.config.service.pool));
        let layers = Layers::of(&host.config.data_dir);
        let mirrors = Mirrors::open(layers, host.base_id(), host.is_ephemeral())
            .map_err(|e| isolation::Error::Unsupported(format!("failed to {e}")));
        let mirrors = match mirrors {
            Ok(mirrors) => mirrors,
            Err(e) => {
                probe.destroy().await;
                base.stop().await;
                host.stop();
                return Err(e);
            }
        };
        let inner = Arc::new(Inner {
            current: RwLock::new(Arc::new(host.config.clone())),
            host,
            base,
            pool,
            mirrors,
            stopping: CancellationToken::new(),
            registry: Mutex::default(),
            tasks: Mutex::default(),
            gpus: Arc::default(),
            filler: Mutex::default(),
            draining: AtomicBool::new(false),
        });
        let supervisor = Self {
            inner,
            scope: Scope::Everything,
        };
        supervisor.destroy_later(probe);
        tokio::spawn(refresh_views(Arc::downgrade(&supervisor.inner)));
        let tender = supervisor.clone();
        supervisor.spawn(async move { tender.tend_mirrors().await });
        if supervisor.config().service.pool > 0 {
            let inner = Arc::clone(&supervisor.inner);
            let filler = tokio::spawn(async move {
                inner.pool.fill(Arc::clone(&inner.base), plan).await;
            });
            *supervisor.inner.filler.lock().expect("not poisoned") = Some(filler.abort_handle());
        }
        Ok(supervisor)
    }

    /// A handle that sees and makes only what is this owner's; `None` sees everything, and what it makes
    /// is nobody's.
    pub fn on_behalf_of(&self, owner: Option<Owner>) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            scope: owner.map_or(Scope::Everything, Scope::Of),
        }
    }

    /// A handle that sees and makes nothing, for where it is not known yet who asks.
    pub fn on_behalf_of_nobody(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            scope: Scope::Nothing,
        }
    }

    /// Checks new sandboxes and requests against another configuration from now on. Only what
    /// [`Config::reload`] takes over may be another.
    pub fn reconfigure(&self, config: Config) {
        *self.inner.current.write().expect("not poisoned") = Arc::new(config);
    }

    /// Cancelled when the key that this handle is for is taken away.
    pub fn revoked(&self) -> CancellationToken {
        self.scope.revoked()
    }

    /// Every knob as it is now.
    pub fn current(&self) -> Arc<Config> {
        Arc::clone(&self.inner.current.read().expect("not poisoned"))
    }

    /// Every knob as it was at the start.
    pub fn config(&self) -> &Config {
        &self.inner.host.config
    }

    /// Tells the data directory's lock where the service listens.
    pub fn announce(&self, address: SocketAddr) -> Result<(), isolation::Error> {
        self.inner.host.announce(address)
    }

    /// Resolves when the processes that every sandbox depends on have died.
    pub async fn failed(&self) {
        self.inner.base.nursery.died().await;
    }

    /// Creates a sandbox with a ready kernel.
    ///
    /// # Errors
    /// `Invalid` names the field; `Busy` when there are as many live sandboxes as allowed, in all or of
    /// this owner; `Unavailable` while the service stops.
    pub async fn create(&self, spec: CreateSpec) -> Result<SandboxInfo, Error> {
        let wanted = spec.mirror.clone();
        let mut plan = Plan::new(spec, &self.current())?;
        plan.owner = self.scope.owner()?;
        self.refuse_draining()?;
        let _room = self.take_room(plan.owner.clone())?;
        let site = self.site(wanted.as_deref()).await?;
        plan.mirror = Some(site.mirror(self.inner.mirrors.base()));
        if let Some(wish) = &plan.wish {
            let lease = self.inner.gpus.take(wish, &self.config().gpus).await?;
            for (name, value) in &lease.env {
                let own = plan.env.entry(name.clone());
                own.or_insert_with(|| value.clone());
            }
            plan.gpus = Some(lease);
        }
        let made = self.obtain(&site, &plan).await;
        let sandbox = made.map_err(|e| Error::not_created(&e))?;
        self.inner
            .registry
            .lock()
            .expect("not poisoned")
            .live
            .insert(sandbox.id().to_owned(), Arc::clone(&sandbox));
        if self.inner.draining.load(Ordering::Acquire) {
            // The drain took the registry's content before this one came.
            let _ = self.close(sandbox.id()).await;
            self.refuse_draining()?;
        }
        self.watch(Arc::clone(&sandbox));
        Ok(sandbox.info())
    }

    /// From the pool where it has one of that shape, else made now.
    async fn obtain(&self, site: &Site, plan: &Plan) -> Result<Arc<Sandbox>, isolation::Error> {
        let standard = Plan::default_of(self.config());
        if plan.same_files(&standard, &self.config().limits)
            && let Some(sandbox) = site.pool.take()
        {
            match self.adopt(&sandbox, plan, &standard).await {
                Ok(()) => return Ok(sandbox),
                Err(e) => {
                    tracing::warn!("a pooled sandbox was of no use: {e}");
                    self.destroy_later(sandbox);
                }
            }
        }
        let sandbox = Sandbox::prepare(&site.realm, plan).await?;
        match sandbox.claim(plan).await {
            Ok(()) => Ok(sandbox),
            Err(e) => {
                self.destroy_later(sandbox);
                Err(e)
            }
        }
    }

    async fn adopt(
        &self,
        sandbox: &Sandbox,
        plan: &Plan,
        standard: &Plan,
    ) -> Result<(), isolation::Error> {
        if plan.limits != standard.limits {
            sandbox.cgroup.set_limits(&plan.limits)?;
            sandbox.show_limits(&plan.limits)?;
        }
        sandbox.claim(plan).await
    }

    fn take_room(&self, owner: Option<Owner>) -> Result<Room<'_>, Error> {
        let mut registry = self.inner.registry.lock().expect("not poisoned");
        let most = self.current().service.max_sandboxes;
        if registry.live.len() + registry.creating.len() >= most {
            let mut error = Error::new(
                ErrorKind::Busy,
                "too_many_sandboxes",
                format!("{most} sandboxes are live (service.max_sandboxes); close one"),
            );
            error.retry_after_seconds = Some(RETRY_AFTER_SECONDS);
            return Err(error);
        }
        if let Some(owner) = &owner
            && let Some(most) = owner.max_sandboxes()
            && registry.count_of(owner) >= most
        {
            return Err(Error::too_many_sandboxes_of_key(most));
        }
        registry.creating.push(owner.clone());
        Ok(Room {
            inner: &self.inner,
            owner,
        })
    }

    fn refuse_draining(&self) -> Result<(), Error> {
        if self.inner.draining.load(Ordering::Acquire) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "stopping",
                "the service is stopping",
            ));
        }
        Ok(())
    }

    /// Ends a sandbox when its lease is over or its init died.
    fn watch(&self, sandbox: Arc<Sandbox>) {
        let supervisor = self.clone();
        self.spawn(async move {
            let reason = tokio::select! {
                reason = sandbox.expired() => {
                    tracing::info!(sandbox = sandbox.id(), "it {}", reason.sentence());
                    reason
                }
                () = sandbox.died() => EndReason::Died,
            };
            if supervisor.unlist(sandbox.id(), reason).is_some() {
                sandbox.destroy().await;
            }
        });
    }

    fn unlist(&self, id: &str, reason: EndReason) -> Option<Arc<Sandbox>> {
        let mut registry = self.inner.registry.lock().expect("not poisoned");
        let sandbox = registry.live.remove(id)?;
        let ended = End {
            owner: sandbox.owner(),
            name: sandbox.info().name,
            at: SystemTime::now(),
            reason,
        };
        registry.gone.remember(id, ended);
        Some(sandbox)
    }

    fn destroy_later(&self, sandbox: Arc<Sandbox>) {
        self.spawn(async move { sandbox.destroy().await });
    }

    /// A task that the drain waits for. Those that ended are let go here.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.inner.tasks.lock().expect("not poisoned");
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Every live sandbox that this handle sees, oldest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let mut all: Vec<SandboxInfo> = {
            let registry = self.inner.registry.lock().expect("not poisoned");
            let seen = registry.live.values().filter(|s| self.scope.sees(s));
            seen.map(|s| s.info()).collect()
        };
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// One sandbox.
    pub fn info(&self, id: &str) -> Result<SandboxInfo, Error> {
        self.find(id).map(|s| s.info())
    }

    /// The one way to a sandbox for every verb: what this handle does not see is not there.
    fn find(&self, id: &str) -> Result<Arc<Sandbox>, Error> {
        let registry = self.inner.registry.lock().expect("not poisoned");
        let found = registry.live.get(id).filter(|s| self.scope.sees(s));
        found.cloned().ok_or_else(|| Error::sandbox_not_found(id))
    }

    /// The same for a link, which may be followed when the sandbox is no more.
    ///
    /// # Errors
    /// `NotFound`; `Gone` for a sandbox that has ended not long ago.
    fn find_linked(&self, id: &str) -> Result<Arc<Sandbox>, Error> {
        self.find(id).map_err(|unknown| {
            let registry = self.inner.registry.lock().expect("not poisoned");
            let ended = registry.gone.of(id, &self.scope);
            ended.map_or(unknown, |ended| Error::sandbox_gone(id, ended))
        })
    }

    /// The id of the one live sandbox of that name.
    ///
    /// # Errors
    /// `Conflict` when several have it: which is meant cannot be told; else as for an id.
    pub fn named(&self, name: &str) -> Result<String, Error> {
        let registry = self.inner.registry.lock().expect("not poisoned");
        let seen = registry.live.values().filter(|s| self.scope.sees(s));
        let mut named = seen.filter(|s| s.info().name == name);
        match (named.next(), named.count()) {
            (Some(sandbox), 0) => Ok(sandbox.id().to_owned()),
            (Some(_), others) => Err(Error::ambiguous_name(name, others + 1)),
            (None, _) => Err(match registry.gone.named(name, &self.scope) {
                Some((id, ended)) => Error::sandbox_gone(id, ended),
                None => Error::sandbox_not_found(name),
            }),
        }
    }

    /// Closes a sandbox; of two closes at once one wins, the other is `NotFound`. Returns when its
    /// processes are gone; its cgroups follow in the background.
    pub async fn close(&self, id: &str) -> Result<(), Error> {
        let found = self.find(id)?;
        let sandbox = self
            .unlist(found.id(), EndReason::Closed)
            .ok_or_else(|| Error::sandbox_not_found(id))?;
        // In a task of its own first: whoever asked may go away.
        self.destroy_later(Arc::clone(&sandbox));
        sandbox.kill().await;
        Ok(())
    }

    /// Starts an execution; dropping the returned handle before its end is a client that goes away.
    pub async fn execute(&self, id: &str, spec: ExecuteSpec) -> Result<Execution, Error> {
        let limits = &self.config().limits;
        if spec.code.len() > limits.code_bytes {
            return Err(Error::new(
                ErrorKind::TooLarge,
                "code_too_large",
                format!(
                    "code may have {} bytes (limits.code_bytes)",
                    limits.code_bytes
                ),
            ));
        }
        plan::check_timeout(spec.timeout, &self.current().limits)?;
        plan::check_env(&spec.env)?;
        let sandbox = self.find(id)?;
        self.scope.take_execution()?;
        Ok(Execution {
            events: sandbox.execute(spec)?,
        })
    }

    /// Makes another context in a sandbox: a kernel of its own over the same files.
    ///
    /// # Errors
    /// `Invalid` names the field (`bad_cwd` for a directory that cannot be entered); `Busy` when
    /// there are as many contexts as allowed (`limits.contexts`) or no memory for one more.
    pub async fn create_context(&self, id: &str, spec: ContextSpec) -> Result<ContextInfo, Error> {
        let spec = plan::check_context(spec)?;
        self.find(id)?.add_context(spec).await
    }

    /// Every context of a sandbox, oldest first.
    pub fn contexts(&self, id: &str) -> Result<Vec<ContextInfo>, Error> {
        let sandbox = self.find(id)?;
        let contexts = sandbox.contexts();
        Ok(contexts.iter().map(|c| c.info(&sandbox)).collect())
    }

    /// Ends a context and what runs in it; returns when its processes are gone.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` for the default context.
    pub async fn delete_context(&self, id: &str, context_id: &str) -> Result<(), Error> {
        self.find(id)?.delete_context(context_id).await
    }

    /// Gives a context a fresh kernel and ends what runs in the old one; returns when it is ready.
    pub async fn restart_context(&self, id: &str, context_id: &str) -> Result<ContextInfo, Error> {
        self.find(id)?.restart_context(context_id).await
    }

    /// Keeps the variables of a context as they are now, when what runs there has ended.
    ///
    /// # Errors
    /// `Busy` when there are as many checkpoints as allowed (`limits.checkpoints`), the context's
    /// queue is full, or the sandbox has no memory or process for one more; `Conflict` where a copy would
    /// not be sound, unless `force` is set.
    pub async fn checkpoint_context(
        &self,
        id: &str,
        context_id: &str,
        name: Option<String>,
        force: bool,
    ) -> Result<CheckpointInfo, Error> {
        let name = plan::checked_name(name)?;
        let sandbox = self.find(id)?;
        sandbox.checkpoint_context(context_id, name, force).await
    }

    /// Every checkpoint of a sandbox, oldest first.
    pub fn checkpoints(&self, id: &str) -> Result<Vec<CheckpointInfo>, Error> {
        Ok(self.find(id)?.checkpoints())
    }

    /// Ends a checkpoint and gives its memory back.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn delete_checkpoint(&self, id: &str, checkpoint_id: &str) -> Result<(), Error> {
        self.find(id)?.delete_checkpoint(checkpoint_id).await
    }

    /// Gives a context the variables of a checkpoint, when what runs there has ended. The checkpoint
    /// stays as it is.
    ///
    /// # Errors
    /// `NotFound`; `Busy` as for a checkpoint; `Conflict` when the checkpoint has died.
    pub async fn restore_context(
        &self,
        id: &str,
        context_id: &str,
        checkpoint_id: &str,
    ) -> Result<BranchInfo, Error> {
        let sandbox = self.find(id)?;
        sandbox.restore_context(context_id, checkpoint_id).await
    }

    /// Makes another context with the variables that a context has now, or had at a checkpoint.
    ///
    /// # Errors
    /// `Busy` when there are as many contexts as allowed, and as for a checkpoint; `Conflict` when
    /// what it is made from has died.
    pub async fn fork_context(
        &self,
        id: &str,
        context_id: &str,
        spec: ForkSpec,
    ) -> Result<BranchInfo, Error> {
        let spec = ForkSpec {
            name: plan::checked_name(spec.name)?,
            ..spec
        };
        self.find(id)?.fork_context(context_id, spec).await
    }

    /// Interrupts what runs now in one context, or in all: SIGINT, and SIGKILL after the grace. Gives
    /// the ids of the contexts in which something ran, and does not wait for its end.
    pub fn interrupt(&self, id: &str, context_id: Option<&str>) -> Result<Vec<String>, Error> {
        self.find(id)?.interrupt(context_id)
    }

    /// Starts a shell command; dropping the handle before its end kills it.
    pub async fn command(&self, id: &str, spec: CommandSpec) -> Result<RunningCommand, Error> {
        plan::check_timeout(spec.timeout, &self.current().limits)?;
        plan::check_env(&spec.env)?;
        plan::check_command(&spec.command, spec.cwd.as_deref())?;
        let sandbox = self.find(id)?;
        sandbox.refuse_closing()?;
        self.scope.take_execution()?;
        sandbox.touch();
        command::start(&sandbox, spec).await
    }

    /// What a sandbox may reach, and what has passed.
    pub fn network(&self, id: &str) -> Result<NetworkInfo, Error> {
        Ok(network::info(&*self.find(id)?))
    }

    /// Changes what a sandbox may reach, for its open connections too.
    ///
    /// # Errors
    /// `Conflict` when code inside listens on the proxy's port.
    pub async fn set_network(&self, id: &str, policy: Policy) -> Result<NetworkInfo, Error> {
        let sandbox = self.find(id)?;
        network::set_policy(&sandbox, policy).await?;
        Ok(network::info(&sandbox))
    }

    /// Installs packages; returns when that has ended or the time to wait is over. That packages could
    /// not be installed is told by the answer.
    ///
    /// # Errors
    /// `Invalid` for what is no requirement; `Busy` when too many installs wait.
    pub async fn install(&self, id: &str, spec: InstallSpec) -> Result<InstallInfo, Error> {
        install::install(&self.find(id)?, spec).await
    }

    /// How packages stand, by name.
    ///
    /// # Errors
    /// `Invalid` for what is no name.
    pub async fn packages(&self, id: &str, names: &[String]) -> Result<Vec<PackageInfo>, Error> {
        install::status(&self.find(id)?, names).await
    }

    /// Ends every sandbox, then the shared processes; nothing of the service is left afterwards.
    pub async fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
        self.inner.stopping.cancel();
        if let Some(filler) = self.inner.filler.lock().expect("not poisoned").take() {
            filler.abort();
        }
        let mut all: Vec<Arc<Sandbox>> = self.inner.pool.drain();
        all.extend(
            self.inner
                .registry
                .lock()
                .expect("not poisoned")
                .live
                .drain()
                .map(|(_, s)| s),
        );
        let mut ending = JoinSet::new();
        for sandbox in all {
            ending.spawn(async move { sandbox.destroy().await });
        }
        let mut tasks = std::mem::take(&mut *self.inner.tasks.lock().expect("not poisoned"));
        let all_ended = async {
            while ending.join_next().await.is_some() {}
            while tasks.join_next().await.is_some() {}
        };
        if timeout(DRAIN_TIMEOUT, all_ended).await.is_err() {
            tracing::error!("some sandboxes took too long to end");
        }
        self.stop_mirrors().await;
        self.inner.base.stop().await;
        for error in self.inner.host.stop() {
            tracing::error!("{error}");
        }
    }

    /// Sandboxes that are ready in the pool, for `bench` and tests.
    pub fn pooled(&self) -> usize {
        self.inner.pool.len()
    }
}
