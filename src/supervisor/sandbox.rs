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
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::checkpoints::Checkpoint;
use super::context::{self, Context};
use super::error::{Error, ErrorKind};
use super::files::{Journal, Watches};
use super::gpus::GpuLease;
use super::host::Host;
use super::install::Installs;
use super::network::{self, Network};
use super::owner::Owner;
use super::ports::Ports;
use super::processes::Processes;
use super::realm::{Realm, User};
use super::setup::{self, DEATH_TIMEOUT, OOM_SCORE_ADJ};
use super::types::{
    ContextInfo, ContextSpec, Event, ExecuteSpec, MirrorRef, SandboxInfo, SandboxLimits,
    SandboxState, Wish,
};
use super::workspaces::WorkspaceState;
use crate::isolation;
use crate::isolation::cgroup::{CgroupLimits, SandboxCgroup};
use crate::isolation::grant::Granted;
use crate::isolation::host::Init;
use crate::isolation::spec::SandboxSpec;
use crate::isolation::view::processors;
use crate::kernel::handle::Place;
use crate::network::Policy;

/// Oldest that what a program reads of its sandbox's memory may be, with a margin to a second.
pub(super) const VIEW_AGE: Duration = Duration::from_millis(900);

/// A sandbox.
#[derive(Debug)]
pub struct Sandbox {
    id: String,
    pub(super) host: Arc<Host>,
    pub(super) realm: Arc<Realm>,
    pub(super) cgroup: SandboxCgroup,
    pub(super) init: Init,
    user: User,
    default: Arc<Context>,
    /// Contexts beside it, oldest first, those too that are being made.
    others: Mutex<Vec<Arc<Context>>>,
    pub(super) checkpoints: Mutex<Vec<Arc<Checkpoint>>>,
    next_leaf: AtomicU64,
    /// Executions and commands under way.
    uses: AtomicUsize,
    closing: AtomicBool,
    closed: Notify,
    pub(super) next_command: AtomicU64,
    pub(super) next_output: AtomicU64,
    /// Paths and bytes of the files that hold over-long output, oldest first.
    pub(super) saved: Mutex<Vec<(String, u64)>>,
    /// Room for its files: less than was asked for where its memory has not as much.
    pub(super) disk_bytes: u64,
    /// When something ran at last while its view was up to date; `None` while nothing has.
    viewed: Mutex<Option<Instant>>,
    /// Cgroups of commands that left processes behind.
    left_leaves: Mutex<Vec<String>>,
    pub(super) processes: Processes,
    pub(super) network: Network,
    pub(super) installs: Installs,
    pub(super) ports: Ports,
    /// Of its files.
    pub(super) watches: Watches,
    /// Likewise, of executions.
    pub(super) journal: Journal,
    pub(super) claim: Mutex<Claim>,
    /// Its lease or its idle time is another.
    pub(super) renewed: Notify,
    /// Of the tools for workspaces.
    pub(super) workspace: WorkspaceState,
    gpus: Option<Arc<GpuLease>>,
}

/// What a claim sets.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    owner: Option<Owner>,
    name: String,
    mirror: Option<MirrorRef>,
    created_at: SystemTime,
    pub(super) expires_at: SystemTime,
    last_used_at: SystemTime,
    pub(super) last_used: Instant,
    pub(super) expires: Instant,
    pub(super) lease: Duration,
    pub(super) idle: Option<Duration>,
    env: BTreeMap<String, String>,
    threads: u32,
    limits: CgroupLimits,
}

/// What a sandbox is to be, all defaults filled in.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whose it is to be.
    pub owner: Option<Owner>,
    /// What it is made of; `None` while that is not known.
    pub mirror: Option<MirrorRef>,
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
    /// What may be reached.
    pub network: Policy,
    /// GPUs that it asks for.
    pub wish: Option<Wish>,
    /// Those that it gets, once they are taken for it.
    pub gpus: Option<Arc<GpuLease>>,
}

/// See [`Sandbox::begin_use`].
#[derive(Debug)]
pub(super) struct InUse<S: Deref<Target = Sandbox>>(S);

impl<S: Deref<Target = Sandbox>> InUse<S> {
    /// [`Sandbox::begin_use`], through any handle.
    pub(super) fn of(sandbox: S) -> Self {
        sandbox.uses.fetch_add(1, Ordering::AcqRel);
        Self(sandbox)
    }
}

impl<S: Deref<Target = Sandbox>> Drop for InUse<S> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Sandbox {
    /// Makes a sandbox with a ready kernel. Nothing is left of one that failed.
    pub async fn prepare(realm: &Arc<Realm>, plan: &Plan) -> Result<Arc<Self>, isolation::Error> {
        let id = new_id();
        let host = &realm.host;
        let user = realm.take_user()?;
        let limits = if host.ablation.no_cgroup {
            &CgroupLimits::NONE
        } else {
            &plan.limits
        };
        let cgroup = host.cgroup.sandbox(&id)?;
        let config = &host.config.limits;
        let gpus = plan.gpus.clone();
        let grant = gpus.as_deref().map(|lease| &lease.grant);
        let disk_bytes = setup::upper_bytes(plan, config);
        let spec = SandboxSpec {
            user_id: user.id(),
            disk_bytes,
            inodes: setup::inodes(plan, config),
            visible: setup::visible(&plan.limits),
            root_from_host: false,
            layered: false,
            rlimits: setup::rlimits(config, disk_bytes, gpus.is_some()),
            oom_score_adj: OOM_SCORE_ADJ,
            granted: grant.map(Granted::from),
            ablation: host.ablation,
        };
        let threads = processors(plan.limits.cpus);
        let fork = setup::fork_spec(config, disk_bytes, threads, gpus.is_some());
        let host_id = user.host_id();
        let made = setup::set_up(realm, spec, grant, &cgroup, limits, &fork, host_id).await;
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
            realm: Arc::clone(realm),
            cgroup,
            init,
            user,
            default: Arc::new(Context::default_of(kernel, config.queue)),
            others: Mutex::default(),
            checkpoints: Mutex::default(),
            next_leaf: AtomicU64::new(1),
            uses: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            next_command: AtomicU64::new(0),
            next_output: AtomicU64::new(1),
            saved: Mutex::default(),
            disk_bytes,
            viewed: Mutex::default(),
            left_leaves: Mutex::default(),
            processes: Processes::default(),
            network: Network::new(&id),
            installs: Installs::new(config.queue),
            ports: Ports::new(config.port_connections),
            watches: Watches::of_sandbox(),
            journal: Journal::default(),
            renewed: Notify::new(),
            gpus,
            workspace: WorkspaceState::default(),
            claim: Mutex::new(Claim {
                owner: None,
                name: id.clone(),
                mirror: None,
                created_at: now,
                expires_at: now,
                last_used_at: now,
                last_used: Instant::now(),
                expires: Instant::now(),
                lease: plan.lease,
                idle: None,
                env: BTreeMap::new(),
                threads,
                limits: plan.limits,
            }),
            id,
        });
        Ok(sandbox)
    }

    /// Hands a prepared sandbox to a client: from here its lease runs.
    pub async fn claim(&self, plan: &Plan) -> Result<(), isolation::Error> {
        let now = SystemTime::now();
        let threads = processors(plan.limits.cpus);
        let mut env = BTreeMap::new();
        {
            let mut claim = self.claim.lock().expect("not poisoned");
            if claim.threads != threads {
                // Its kernel was forked for another number.
                env.extend(setup::thread_env(threads));
            }
            *claim = Claim {
                owner: plan.owner.clone(),
                name: plan
                    .name
                    .clone()
                    .unwrap_or_else(|| format!("sandbox-{}", &self.id[..6])),
                mirror: plan.mirror.clone(),
                created_at: now,
                expires_at: now + plan.lease,
                last_used_at: now,
                last_used: Instant::now(),
                expires: Instant::now() + plan.lease,
                lease: plan.lease,
                idle: plan.idle,
                env: plan.env.clone(),
                threads,
                limits: plan.limits,
            };
        }
        if plan.network != Policy::None {
            let opened = network::open(self, plan.network.clone()).await;
            opened.map_err(|e| e.unwrap_or_else(port_taken))?;
        }
        env.extend(plan.env.clone());
        self.default.set_env(&env).await
    }

    /// Shows its programs other limits than it was made with. Before user code runs in it.
    pub(super) fn show_limits(&self, limits: &CgroupLimits) -> Result<(), isolation::Error> {
        let (view, used) = (self.init.view(), self.cgroup.visible_use());
        view.set_limits(&setup::visible(limits), &used)
    }

    /// Shows its programs what it uses now.
    pub(super) fn refresh_view(&self) {
        *self.viewed.lock().expect("not poisoned") = Some(Instant::now());
        let limits = self.claim.lock().expect("not poisoned").limits;
        let (view, used) = (self.init.view(), self.cgroup.visible_use());
        if let Err(e) = view.set_use(&setup::visible(&limits), &used) {
            tracing::warn!(sandbox = self.id, "{e}");
        }
    }

    /// Call it when a program is about to run. As long as nothing has run the view is as it was made,
    /// and within [`VIEW_AGE`] it is new enough.
    pub(super) fn freshen_view(&self) {
        let now = Instant::now();
        let mut viewed = self.viewed.lock().expect("not poisoned");
        let old = viewed.is_some_and(|at| now - at > VIEW_AGE);
        *viewed = Some(viewed.unwrap_or(now));
        drop(viewed);
        if old {
            self.refresh_view();
        }
    }

    /// Whether a request or a background process has something run in it.
    pub(super) fn is_running(&self) -> bool {
        self.in_use() || self.processes.any_runs()
    }

    /// Has the kernel run something that nobody sees: [`Context::rehearse`].
    pub async fn rehearse(&self) -> Result<(), isolation::Error> {
        self.default.rehearse().await
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whose it is; nobody's where there are no keys.
    pub(super) fn owner(&self) -> Option<Owner> {
        self.claim.lock().expect("not poisoned").owner.clone()
    }

    /// For clients.
    pub fn info(&self) -> SandboxInfo {
        let claim = self.claim.lock().expect("not poisoned");
        SandboxInfo {
            id: self.id.clone(),
            owner: claim.owner.as_ref().map(|owner| owner.name().to_owned()),
            name: claim.name.clone(),
            created_at: claim.created_at,
            expires_at: claim.expires_at,
            last_used_at: claim.last_used_at,
            mirror: claim.mirror.clone(),
            limits: SandboxLimits {
                memory_bytes: claim.limits.memory_bytes,
                cpus: claim.limits.cpus,
                processes: claim.limits.processes,
                disk_bytes: self.disk_bytes,
                lease: claim.lease,
                idle: claim.idle,
            },
            state: if self.is_closing() {
                SandboxState::Closing
            } else if self.in_use() {
                SandboxState::Busy
            } else {
                SandboxState::Idle
            },
            gpus: self.gpus.iter().flat_map(|l| l.ids().to_vec()).collect(),
            env_not_applied: self.default.env_not_applied(),
        }
    }

    /// Whether it has GPUs.
    pub(super) fn has_gpus(&self) -> bool {
        self.gpus.is_some()
    }

    /// Notes a request.
    pub fn touch(&self) {
        let mut claim = self.claim.lock().expect("not poisoned");
        claim.last_used = Instant::now();
        claim.last_used_at = SystemTime::now();
    }

    /// Something runs in it.
    pub(super) fn in_use(&self) -> bool {
        self.uses.load(Ordering::Acquire) > 0
    }

    /// It is in use, and so not idle, until the value is dropped.
    pub(super) fn begin_use(&self) -> InUse<&Self> {
        InUse::of(self)
    }

    /// Notes a leaf whose program has ended. A daemon that it left keeps the leaf: others look again.
    pub(super) fn leave_leaf(&self, leaf: String) {
        let mut left = self.left_leaves.lock().expect("not poisoned");
        left.push(leaf);
        left.retain(|leaf| !self.cgroup.remove_leaf(leaf));
    }

    /// Variables of every command.
    pub fn env(&self) -> BTreeMap<String, String> {
        let mut env = network::environment(&self.network.policy());
        let claim = self.claim.lock().expect("not poisoned");
        env.extend(setup::thread_env(claim.threads));
        env.extend(claim.env.clone());
        env
    }

    /// Variables of an execution that its kernel does not have: those that follow the network policy,
    /// unless the sandbox or its context sets them, and the execution's own.
    pub(super) fn execution_env(
        &self,
        context: &BTreeMap<String, String>,
        own: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut env = network::environment(&self.network.policy());
        let claim = self.claim.lock().expect("not poisoned");
        env.retain(|name, _| !claim.env.contains_key(name) && !context.contains_key(name));
        env.extend(own.clone());
        env
    }

    /// Resolves when init has died without being asked to: the sandbox is of no more use.
    pub async fn died(&self) {
        self.init.process().exited().await;
    }

    /// What its kernels must be found in.
    pub(super) fn place(&self) -> Place<'_> {
        setup::place(&self.host, &self.init, &self.cgroup, self.user.host_id())
    }

    /// Its memory limit.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.claim.lock().expect("not poisoned").limits.memory_bytes
    }

    /// Variables of every kernel and threads of their numeric libraries.
    pub(super) fn kernel_settings(&self) -> (BTreeMap<String, String>, u32) {
        let claim = self.claim.lock().expect("not poisoned");
        (claim.env.clone(), claim.threads)
    }

    /// Queues an execution in its context and runs it; events go to the receiver returned.
    ///
    /// # Errors
    /// `NotFound` for a context that there is not, `Busy` for one whose queue is full.
    pub fn execute(self: &Arc<Self>, spec: ExecuteSpec) -> Result<mpsc::Receiver<Event>, Error> {
        self.refuse_closing()?;
        self.touch();
        let context = match &spec.context_id {
            Some(id) => self.context(id)?,
            None => Arc::clone(&self.default),
        };
        context.execute(self, spec)
    }

    /// Every context that it has, oldest first.
    pub fn contexts(&self) -> Vec<Arc<Context>> {
        let others = self.others.lock().expect("not poisoned");
        let made = others.iter().filter(|context| context.is_made());
        [&self.default].into_iter().chain(made).cloned().collect()
    }

    /// One of its contexts.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn context(&self, id: &str) -> Result<Arc<Context>, Error> {
        let mut all = self.contexts().into_iter();
        all.find(|context| context.id() == id)
            .ok_or_else(|| Error::context_not_found(id))
    }

    /// Makes another context, with a ready kernel.
    ///
    /// # Errors
    /// `Busy` when it has as many as it may or no memory for one more; `Invalid` for a directory
    /// that cannot be entered.
    pub async fn add_context(&self, spec: ContextSpec) -> Result<ContextInfo, Error> {
        self.touch();
        let _in_use = self.begin_use();
        let context = self.list_context(spec)?;
        match context.begin(self).await {
            Ok(()) => Ok(context.info(self)),
            Err(e) => {
                self.give_up_context(&context).await;
                Err(e)
            }
        }
    }

    /// Takes the room of a context that is to be made.
    pub(super) fn list_context(&self, spec: ContextSpec) -> Result<Arc<Context>, Error> {
        let limits = &self.host.config.limits;
        let leaf = self.new_leaf(context::DEFAULT_LEAF);
        let context = Arc::new(Context::new(spec, leaf, limits.queue));
        let mut others = self.others.lock().expect("not poisoned");
        // Under the lock, as whoever destroys the sandbox takes the list after it began to close.
        self.refuse_closing()?;
        if others.len() + 1 >= limits.contexts {
            return Err(Error::too_many_contexts(limits.contexts));
        }
        others.push(Arc::clone(&context));
        Ok(context)
    }

    /// Ends a context that could not be made.
    pub(super) async fn give_up_context(&self, context: &Arc<Context>) {
        self.unlist_context(context);
        context.end(self).await;
    }

    /// A name that no leaf of this sandbox's cgroup has had.
    pub(super) fn new_leaf(&self, kind: &str) -> String {
        let number = self.next_leaf.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{number}")
    }

    /// True for the one caller that took it off the list.
    fn unlist_context(&self, context: &Arc<Context>) -> bool {
        let mut others = self.others.lock().expect("not poisoned");
        let before = others.len();
        others.retain(|other| !Arc::ptr_eq(other, context));
        others.len() < before
    }

    /// Ends a context; returns when its processes are gone.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` for the default one, which lives as long as the sandbox.
    pub async fn delete_context(&self, id: &str) -> Result<(), Error> {
        self.touch();
        self.refuse_closing()?;
        let context = self.context(id)?;
        if Arc::ptr_eq(&context, &self.default) {
            return Err(Error::new(
                ErrorKind::Conflict,
                "default_context",
                "the default context lives as long as its sandbox; restart it instead",
            ));
        }
        if !self.unlist_context(&context) {
            return Err(Error::context_not_found(id));
        }
        context.end(self).await;
        Ok(())
    }

    /// Gives a context a fresh kernel.
    ///
    /// # Errors
    /// `NotFound`; `Busy` when there is no memory for one.
    pub async fn restart_context(&self, id: &str) -> Result<ContextInfo, Error> {
        self.touch();
        self.refuse_closing()?;
        let _in_use = self.begin_use();
        let context = self.context(id)?;
        context.restart(self).await?;
        Ok(context.info(self))
    }

    /// Interrupts what runs, in one context or in all; gives the ids of those in which something ran.
    ///
    /// # Errors
    /// `NotFound` for a context that there is not.
    pub fn interrupt(&self, id: Option<&str>) -> Result<Vec<String>, Error> {
        self.touch();
        self.refuse_closing()?;
        let contexts = match id {
            Some(id) => vec![self.context(id)?],
            None => self.contexts(),
        };
        let running = contexts.iter().filter(|context| context.interrupt());
        Ok(running.map(|context| context.id().to_owned()).collect())
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn refuse_closing(&self) -> Result<(), Error> {
        if self.is_closing() {
            return Err(Error::sandbox_closing());
        }
        Ok(())
    }

    pub(super) async fn wait_closed(&self) {
        let closed = self.closed.notified();
        if !self.is_closing() {
            closed.await;
        }
    }

    /// Kills what is in a leaf of its cgroup and removes that. `cut_off` is called before each kill.
    pub(super) async fn end_leaf(&self, leaf: &str, cut_off: impl Fn()) {
        let deadline = Instant::now() + DEATH_TIMEOUT;
        let mut pause = Duration::from_millis(1);
        // Again and again: a kernel that was being launched may have joined after the last kill.
        while !self.is_closing() {
            cut_off();
            // A leaf that nothing can be killed in is not there.
            let killed = self.cgroup.kill_leaf(leaf);
            if self.cgroup.remove_leaf(leaf) || killed.is_err() {
                break;
            }
            if Instant::now() >= deadline {
                tracing::error!(sandbox = self.id, leaf, "processes of a kernel do not end");
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Marks it as closing; true for the one caller that must destroy it.
    pub fn begin_close(&self) -> bool {
        let first = !self.closing.swap(true, Ordering::AcqRel);
        self.network.stop();
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
        self.default.let_go().await;
        // Those too that were being made.
        let others = std::mem::take(&mut *self.others.lock().expect("not poisoned"));
        for context in others {
            context.let_go().await;
        }
        let checkpoints = std::mem::take(&mut *self.checkpoints.lock().expect("not poisoned"));
        for checkpoint in checkpoints {
            checkpoint.let_go().await;
        }
        setup::remove_cgroup(&self.cgroup).await;
    }
}

/// Of a sandbox in which no user code has run yet.
fn port_taken() -> isolation::Error {
    isolation::Error::Refused("the proxy's port is taken in a new sandbox".into())
}

/// 128 random bits as 26 characters of Crockford's base 32, in lower case.
pub(super) fn new_id() -> String {
    id_of(rand::random())
}

/// The form of an id.
pub(super) fn id_of(mut bits: u128) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
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
