//! A context: one kernel of a sandbox, its variables and its queue. The contexts of a sandbox share
//! its files, its user and its limits; their executions run side by side.
//!
//! ```text
//! execute ──► queue ──► slot locked ──► running ──► ended ──► slot free
//!                                        │   └─ interrupt: SIGINT, grace, SIGKILL
//!                                        └─ restart, delete: its cgroup leaf is killed
//! ```
//!
//! Whoever holds the slot owns the kernel. [`Turn`] is what the others may see and do meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep};

use super::ended::{DIED, END_TIME, no_kernel, tell_end, usage};
use super::error::Error;
use super::launch::no_context;
use super::sandbox::{Sandbox, new_id};
use super::saving;
use super::types::{
    ContextInfo, ContextSpec, DEFAULT_CONTEXT, Ended, Ending, Event, ExecuteSpec, KernelState,
    OnDisconnect, SandboxState, Usage,
};
use crate::isolation::cgroup::Counters;
use crate::isolation::spec::HOME;
use crate::kernel::execution::{self, Request};
use crate::kernel::handle::Kernel;

/// Events on their way to a client.
const EVENT_QUEUE: usize = 64;
/// Longest that an execution whose kernel was killed may take to say so to its client.
const CUT_OFF_TIME: Duration = Duration::from_secs(1);
/// Leaf of a sandbox's cgroup that holds the kernel of [`DEFAULT_CONTEXT`].
pub(super) const DEFAULT_LEAF: &str = "kernel";

/// A kernel of a sandbox, with what outlives it.
#[derive(Debug)]
pub struct Context {
    pub(super) id: String,
    name: String,
    /// Of the sandbox's cgroup: the kernel and all that it starts, so that one context's processes
    /// can be killed without touching another's.
    pub(super) leaf: String,
    /// `None` is the home directory.
    pub(super) cwd: Option<String>,
    /// Beside the sandbox's.
    pub(super) env: BTreeMap<String, String>,
    /// `None` is the sandbox's own.
    created_at: Option<SystemTime>,
    pub(super) kernel: tokio::sync::Mutex<Option<Kernel>>,
    queue: Arc<Semaphore>,
    turn: Mutex<Turn>,
    /// Variables of the sandbox and the context that its kernel itself could not follow.
    pub(super) env_not_applied: Mutex<Vec<String>>,
    /// Kernels launched so far.
    pub(super) launched: watch::Sender<u64>,
    pub(super) execution_count: AtomicU64,
    deleted: AtomicBool,
    gone: Notify,
}

/// What is going on in the slot.
#[derive(Debug, Default)]
pub(super) struct Turn {
    running: Option<Arc<Running>>,
    /// A kernel that is in the slot now must not be used any more.
    pub(super) stale: bool,
}

/// The execution that has the slot. An interrupt is its own: one that comes as it ends is gone with
/// it, and cannot hit the next.
#[derive(Debug, Default)]
struct Running {
    interrupt: Notify,
    /// Its kernel was killed for a restart or a deletion.
    cut_off: AtomicBool,
    killed: Notify,
}

impl Running {
    fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// Resolves when it was cut off and did not end of that: its client reads nothing.
    async fn is_stuck(&self) {
        self.killed.notified().await;
        sleep(CUT_OFF_TIME).await;
    }
}

impl Context {
    /// The context that every sandbox has, around the kernel that it was made with.
    pub(super) fn default_of(kernel: Kernel, queue: usize) -> Self {
        let mut context = Self::new(ContextSpec::default(), DEFAULT_LEAF.to_owned(), queue);
        DEFAULT_CONTEXT.clone_into(&mut context.id);
        DEFAULT_CONTEXT.clone_into(&mut context.name);
        context.created_at = None;
        context.kernel = tokio::sync::Mutex::new(Some(kernel));
        context.launched = watch::Sender::new(1);
        context
    }

    /// One without a kernel; `queue` executions may wait for the one that runs.
    pub(super) fn new(spec: ContextSpec, leaf: String, queue: usize) -> Self {
        let id = new_id();
        Self {
            name: spec.name.unwrap_or_else(|| format!("context-{}", &id[..6])),
            id,
            leaf,
            cwd: spec.cwd,
            env: spec.env,
            created_at: Some(SystemTime::now()),
            kernel: tokio::sync::Mutex::default(),
            queue: Arc::new(Semaphore::new(queue + 1)),
            turn: Mutex::default(),
            env_not_applied: Mutex::default(),
            launched: watch::Sender::new(0),
            execution_count: AtomicU64::new(0),
            deleted: AtomicBool::new(false),
            gone: Notify::new(),
        }
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether it has had a kernel: before that it is being created and nobody knows its id.
    pub(super) fn is_made(&self) -> bool {
        *self.launched.borrow() > 0
    }

    /// For clients.
    pub(super) fn info(&self, sandbox: &Sandbox) -> ContextInfo {
        let sandbox = sandbox.info();
        let cwd = match &self.cwd {
            None => HOME.to_owned(),
            Some(absolute) if absolute.starts_with('/') => absolute.clone(),
            Some(relative) => format!("{HOME}/{relative}"),
        };
        let state = if sandbox.state == SandboxState::Closing || self.is_deleted() {
            SandboxState::Closing
        } else if self.turn().running.is_some() {
            SandboxState::Busy
        } else {
            SandboxState::Idle
        };
        ContextInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            cwd,
            created_at: self.created_at.unwrap_or(sandbox.created_at),
            state,
            execution_count: self.execution_count.load(Ordering::Relaxed),
            env_not_applied: self.env_not_applied(),
        }
    }

    /// Variables of the sandbox and the context that its kernel itself could not follow.
    pub(super) fn env_not_applied(&self) -> Vec<String> {
        self.env_not_applied.lock().expect("not poisoned").clone()
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().expect("not poisoned")
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    pub(super) async fn wait_deleted(&self) {
        let gone = self.gone.notified();
        if !self.is_deleted() {
            gone.await;
        }
    }

    // -- executions

    /// A place in the queue.
    pub(super) fn take_place(&self, sandbox: &Sandbox) -> Result<OwnedSemaphorePermit, Error> {
        let place = Arc::clone(&self.queue).try_acquire_owned();
        place.map_err(|_| Error::queue_full(sandbox.host.config.limits.queue))
    }

    /// Queues an execution and runs it; events go to the receiver returned.
    pub(super) fn execute(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        spec: ExecuteSpec,
    ) -> Result<mpsc::Receiver<Event>, Error> {
        let place = self.take_place(sandbox)?;
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let (context, sandbox) = (Arc::clone(self), Arc::clone(sandbox));
        tokio::spawn(async move {
            context.run_execution(&sandbox, spec, events).await;
            drop(place);
        });
        Ok(receiver)
    }

    async fn run_execution(
        &self,
        sandbox: &Sandbox,
        spec: ExecuteSpec,
        events: mpsc::Sender<Event>,
    ) {
        let mut slot = tokio::select! {
            slot = self.kernel.lock() => slot,
            // The client went away while it waited.
            () = events.closed(), if spec.on_disconnect == OnDisconnect::Interrupt => return,
            () = sandbox.wait_closed() => return,
            () = self.wait_deleted() => {
                return tell_end(&events, no_kernel(Ending::Interrupted), END_TIME).await;
            }
        };
        if sandbox.is_closing() {
            return;
        }
        let in_use = sandbox.begin_use();
        let running = self.begin_turn();
        let started = Instant::now();
        let before = sandbox.cgroup.counters();
        let ended = self
            .take_turn(sandbox, &mut slot, &running, &spec, &events, &before)
            .await;
        let ended = self.end_turn(sandbox, &running, ended);
        let usage = usage(sandbox, started.elapsed(), &before, &ended);
        // The next request finds the sandbox idle.
        drop(in_use);
        let kernel_gone = slot.is_none();
        let longest = if running.is_cut_off() {
            CUT_OFF_TIME
        } else {
            END_TIME
        };
        tell_end(&events, Ended { usage, ..ended }, longest).await;
        sandbox.journal.start_if_due(sandbox).await;
        if kernel_gone
            && !sandbox.is_closing()
            && !self.is_deleted()
            && let Err(e) = self.ready_kernel(sandbox, &mut slot).await
        {
            tracing::warn!(sandbox = sandbox.id(), "no new kernel yet: {e}");
        }
    }

    fn begin_turn(&self) -> Arc<Running> {
        let running = Arc::new(Running::default());
        self.turn().running = Some(Arc::clone(&running));
        if self.is_deleted() {
            running.cut_off.store(true, Ordering::Release);
        }
        running
    }

    async fn take_turn(
        &self,
        sandbox: &Sandbox,
        slot: &mut Option<Kernel>,
        running: &Running,
        spec: &ExecuteSpec,
        events: &mpsc::Sender<Event>,
        before: &Counters,
    ) -> Ended {
        if running.is_cut_off() {
            return no_kernel(Ending::Interrupted);
        }
        if let Err(e) = self.ready_kernel(sandbox, slot).await {
            tracing::error!(sandbox = sandbox.id(), "no kernel: {e}");
            return no_kernel(if sandbox.cgroup.oom_kills() > before.oom_kills {
                Ending::OutOfMemory
            } else {
                DIED
            });
        }
        // Whoever cut it off while its kernel was launched had nothing to kill yet.
        if running.is_cut_off() {
            return no_kernel(Ending::Interrupted);
        }
        self.run_in_kernel(sandbox, slot, running, spec, events, before.oom_kills)
            .await
    }

    async fn run_in_kernel(
        &self,
        sandbox: &Sandbox,
        slot: &mut Option<Kernel>,
        running: &Running,
        spec: &ExecuteSpec,
        events: &mpsc::Sender<Event>,
        oom_kills: u64,
    ) -> Ended {
        let limits = &sandbox.host.config.limits;
        let env = sandbox.execution_env(&self.env, &spec.env);
        sandbox.freshen_view();
        let turn = sandbox.journal.begin(sandbox).await;
        let request = Request {
            code: &spec.code,
            env: &env,
            stdin: spec.stdin.as_deref(),
            on_disconnect: spec.on_disconnect,
            timeout: spec
                .timeout
                .unwrap_or(Duration::from_secs(limits.timeout_seconds)),
            grace: Duration::from_secs(limits.interrupt_grace_seconds),
            output_bytes: limits.output_bytes_of(spec.output_bytes),
            saved_bytes: usize::try_from(saving::most_bytes(sandbox)).unwrap_or(usize::MAX),
            result_bytes: limits.result_bytes,
            traceback_bytes: limits.traceback_bytes,
            files: limits.files,
            look_at_files: turn.is_none(),
            prompt: spec.prompt,
            restore: spec.restore,
            memory_bytes: sandbox.memory_bytes(),
        };
        let Some(kernel) = slot.as_mut() else {
            return no_kernel(DIED);
        };
        let (place, interrupt) = (sandbox.place(), &running.interrupt);
        let (savers, saved) = saving::both(sandbox);
        let run = execution::run(
            kernel, &place, &request, events, interrupt, oom_kills, savers,
        );
        let (mut finish, saved) = tokio::select! {
            ended = async { tokio::join!(run, saved) } => ended,
            () = running.is_stuck() => return no_kernel(Ending::Interrupted),
        };
        (finish.stdout.saved, finish.stderr.saved) = saved;
        if let Some(turn) = turn {
            let told = sandbox.journal.end(sandbox, turn, limits.files).await;
            (finish.files, finish.files_truncated) = told;
        } else {
            sandbox.journal.note_files(finish.files_seen);
        }
        if finish.execution_count > 0 {
            self.execution_count
                .store(finish.execution_count, Ordering::Relaxed);
        }
        if !finish.kernel_alive {
            *slot = None;
        }
        Ended {
            ending: finish.ending,
            state: finish.state,
            execution_count: finish.execution_count,
            files: finish.files,
            files_truncated: finish.files_truncated,
            results_left_out: finish.left_out,
            exit_code: finish.exit_code,
            disk_full: finish.disk_full,
            // Those of the network's policy are nothing that the client has set.
            env_not_applied: {
                let mut names = finish.env_not_applied;
                names.retain(|name| spec.env.contains_key(name));
                names
            },
            killed: finish.killed,
            usage: Usage {
                transfer: finish.transfer,
                ..Usage::default()
            },
            stdout: finish.stdout,
            stderr: finish.stderr,
        }
    }

    /// From here on nothing can hit this execution any more. One whose kernel was killed by us did
    /// not die of itself.
    fn end_turn(&self, sandbox: &Sandbox, running: &Running, mut ended: Ended) -> Ended {
        self.turn().running = None;
        let killed = running.is_cut_off() && ended.state != KernelState::Kept;
        if killed || sandbox.is_closing() {
            ended.ending = Ending::Interrupted;
        }
        let ended_by = if sandbox.is_closing() {
            "the sandbox was closed"
        } else if running.is_cut_off() {
            "the context was restarted or deleted"
        } else {
            return ended;
        };
        ended.state = KernelState::Lost {
            reason: ended_by.into(),
        };
        ended
    }

    // -- from outside of the slot

    /// Interrupts the execution that runs, as a client that goes away does; false where none does.
    pub(super) fn interrupt(&self) -> bool {
        match &self.turn().running {
            Some(running) => {
                running.interrupt.notify_one();
                true
            }
            None => false,
        }
    }

    /// Kills what runs and has the kernel replaced before anything else runs in it.
    fn cut_off(&self, sandbox: &Sandbox) {
        let mut turn = self.turn();
        turn.stale = true;
        if let Some(running) = &turn.running {
            running.cut_off.store(true, Ordering::Release);
            running.killed.notify_one();
            // With the lock held: it is this execution that dies and not the next.
            if let Err(e) = sandbox.cgroup.kill_leaf(&self.leaf) {
                tracing::debug!("the kernel's cgroup is gone: {e}");
            }
        }
    }

    /// Replaces the kernel; what runs ends as interrupted, what waits runs in the new one. Returns
    /// once that is ready.
    ///
    /// # Errors
    /// `Busy` when the sandbox has no memory for a kernel; `Conflict` when the sandbox is being
    /// closed.
    pub(super) async fn restart(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let oom_kills = sandbox.cgroup.oom_kills();
        let mut launched = self.launched.subscribe();
        self.cut_off(sandbox);
        loop {
            tokio::select! {
                mut slot = self.kernel.lock() => {
                    sandbox.refuse_closing()?;
                    if self.is_deleted() {
                        return Err(Error::context_not_found(&self.id));
                    }
                    let ready = self.ready_kernel(sandbox, &mut slot).await;
                    return ready.map_err(|e| no_context(sandbox, oom_kills, &e));
                }
                // The execution that was cut off has launched it, and others wait for the slot.
                _ = launched.changed() => if !self.turn().stale {
                    return Ok(());
                },
            }
        }
    }

    /// Kills it for good; returns when its processes are gone and their leaf is removed.
    pub(super) async fn end(&self, sandbox: &Sandbox) {
        self.deleted.store(true, Ordering::Release);
        self.gone.notify_waiters();
        sandbox.end_leaf(&self.leaf, || self.cut_off(sandbox)).await;
    }

    /// Lets go of a kernel that was killed. Whoever executes sees it die and gives the slot back.
    pub(super) async fn let_go(&self) {
        self.kernel.lock().await.take();
    }
}
