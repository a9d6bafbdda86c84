//! How a context gets a kernel: launched anew, or branched from one that has variables.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::context::Context;
use super::error::{Error, ErrorKind};
use super::sandbox::Sandbox;
use super::setup;
use crate::isolation;
use crate::isolation::cgroup::Counters;
use crate::kernel::branch::{Branch, Manner, branch};
use crate::kernel::handle::{Forked, Kernel};

impl Context {
    /// Gives the kernel of a new sandbox the variables that its claim asks for.
    pub(super) async fn set_env(
        &self,
        env: &BTreeMap<String, String>,
    ) -> Result<(), isolation::Error> {
        match self.kernel.lock().await.as_mut() {
            Some(kernel) => self.set_env_of(kernel, env).await,
            None => Ok(()),
        }
    }

    async fn set_env_of(
        &self,
        kernel: &mut Kernel,
        env: &BTreeMap<String, String>,
    ) -> Result<(), isolation::Error> {
        if env.is_empty() {
            return Ok(());
        }
        let not_applied = kernel.set_env(env).await?;
        *self.env_not_applied.lock().expect("not poisoned") = not_applied;
        Ok(())
    }

    /// Has the kernel run something that nobody sees, so that the first execution finds the pages
    /// that it writes its own already.
    pub(super) async fn rehearse(&self) -> Result<(), isolation::Error> {
        match self.kernel.lock().await.as_mut() {
            Some(kernel) => kernel
                .rehearse()
                .await
                .map_err(isolation::Error::step("rehearse")),
            None => Ok(()),
        }
    }

    /// Launches the first kernel.
    ///
    /// # Errors
    /// `Invalid` (`bad_cwd`) for a directory that the kernel cannot enter; `Busy` when the sandbox
    /// has no memory for it; `Conflict` when the sandbox is being closed.
    pub(super) async fn begin(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let mut slot = self.kernel.lock().await;
        let oom_kills = sandbox.cgroup.oom_kills();
        let launched = match sandbox.cgroup.make_kernel_leaf(&self.leaf) {
            Ok(()) => self.launch_kernel(sandbox).await,
            Err(e) => Err(e),
        };
        let (kernel, elsewhere) = launched.map_err(|e| no_context(sandbox, oom_kills, &e))?;
        if let Some(why) = elsewhere {
            kernel.end(&sandbox.cgroup).await;
            return Err(bad_cwd(format!("cwd: no directory to start in: {why}")));
        }
        self.put(&mut slot, kernel, 0);
        Ok(())
    }

    /// A new kernel, and why it is in the home directory and not in the context's, where it is not.
    async fn launch_kernel(
        &self,
        sandbox: &Sandbox,
    ) -> Result<(Kernel, Option<String>), isolation::Error> {
        let host = &sandbox.host;
        let zygote = sandbox.realm.zygote().await?;
        let (mut env, threads) = sandbox.kernel_settings();
        env.extend(self.env.clone());
        let (disk_bytes, gpu) = (sandbox.disk_bytes, sandbox.has_gpus());
        let spec = setup::fork_spec(&host.config.limits, disk_bytes, threads, gpu);
        let init = sandbox.init.process().pidfd();
        let forked = Forked::start(&zygote, init, &sandbox.cgroup, &self.leaf, &spec).await?;
        let mut kernel = forked.join(&sandbox.place()).await?;
        // Never by way of the zygote: what it once read, every later kernel has a copy of.
        self.set_env_of(&mut kernel, &env).await?;
        let elsewhere = match &self.cwd {
            Some(cwd) => kernel.enter(cwd).await?,
            None => None,
        };
        Ok((kernel, elsewhere))
    }

    fn put(&self, slot: &mut Option<Kernel>, kernel: Kernel, execution_count: u64) {
        *slot = Some(kernel);
        self.execution_count
            .store(execution_count, Ordering::Relaxed);
        self.launched.send_modify(|count| *count += 1);
    }

    /// Sees to it that a kernel is in the slot, and none that a restart has condemned.
    pub(super) async fn ready_kernel(
        &self,
        sandbox: &Sandbox,
        slot: &mut Option<Kernel>,
    ) -> Result<(), isolation::Error> {
        let stale = std::mem::take(&mut self.turn().stale);
        if stale && let Some(kernel) = slot.take() {
            kernel.end(&sandbox.cgroup).await;
        }
        if slot.is_some() {
            return Ok(());
        }
        let (kernel, elsewhere) = self.launch_kernel(sandbox).await?;
        if let Some(why) = elsewhere {
            // The code removed it. A context that could not be used any more would be worse.
            tracing::info!(context = self.id, "a kernel starts at home: {why}");
        }
        self.put(slot, kernel, 0);
        Ok(())
    }

    // -- branches

    /// Forks its kernel into `leaf`, in its turn like an execution. Gives the branch and the kernel's
    /// execution count.
    ///
    /// # Errors
    /// `Busy` when its queue is full or the sandbox has no memory or process for a kernel;
    /// `Conflict` when the kernel does not fork or the sandbox is being closed.
    pub(super) async fn branch(
        &self,
        sandbox: &Sandbox,
        leaf: &str,
        manner: Manner,
    ) -> Result<(Branch, u64), Error> {
        let _place = self.take_place(sandbox)?;
        let mut slot = self.idle_slot(sandbox).await?;
        let before = sandbox.cgroup.counters();
        let ready = self.ready_kernel(sandbox, &mut slot).await;
        ready.map_err(|e| no_context(sandbox, before.oom_kills, &e))?;
        let Some(kernel) = slot.as_mut() else {
            return Err(Error::context_not_found(&self.id));
        };
        let forked = branch(kernel, &sandbox.place(), leaf, manner).await;
        let branch = forked.map_err(|e| not_forked(sandbox, &before, &e))?;
        Ok((branch, self.execution_count.load(Ordering::Relaxed)))
    }

    /// Takes a branch for the kernel of a context that has none.
    pub(super) async fn adopt(&self, kernel: Kernel, execution_count: u64) {
        let mut slot = self.kernel.lock().await;
        self.put(&mut slot, kernel, execution_count);
    }

    /// Ends its kernel and all that it started, in its turn like an execution, and takes what `make`
    /// gives for it.
    ///
    /// # Errors
    /// `Busy` when its queue is full; those of `make`, and then its kernel is as it was.
    pub(super) async fn replace(
        &self,
        sandbox: &Sandbox,
        make: impl Future<Output = Result<(Branch, u64), Error>>,
    ) -> Result<Vec<String>, Error> {
        let _place = self.take_place(sandbox)?;
        let mut slot = self.idle_slot(sandbox).await?;
        let (
            Branch {
                mut kernel,
                missing,
            },
            count,
        ) = make.await?;
        match slot.take() {
            Some(old) => old.end(&sandbox.cgroup).await,
            // What a kernel that is gone has started may be there still.
            None => {
                let _ = sandbox.cgroup.kill_leaf(&self.leaf);
            }
        }
        if let Err(e) = kernel.move_into(&sandbox.cgroup, &self.leaf) {
            kernel.end(&sandbox.cgroup).await;
            return Err(no_context(sandbox, u64::MAX, &e));
        }
        self.put(&mut slot, kernel, count);
        Ok(missing)
    }

    async fn idle_slot(&self, sandbox: &Sandbox) -> Result<Slot<'_>, Error> {
        let slot = tokio::select! {
            slot = self.kernel.lock() => slot,
            () = sandbox.wait_closed() => return Err(Error::sandbox_closing()),
            () = self.wait_deleted() => return Err(Error::context_not_found(&self.id)),
        };
        sandbox.refuse_closing()?;
        if self.is_deleted() {
            return Err(Error::context_not_found(&self.id));
        }
        Ok(slot)
    }
}

/// Whoever holds it owns the kernel.
type Slot<'a> = tokio::sync::MutexGuard<'a, Option<Kernel>>;

/// A directory that a context cannot have.
pub(super) fn bad_cwd(detail: String) -> Error {
    Error {
        code: "bad_cwd",
        ..Error::invalid("cwd", detail)
    }
}

/// Why a client's context has no kernel.
pub(super) fn no_context(sandbox: &Sandbox, oom_kills: u64, error: &isolation::Error) -> Error {
    if let Err(closing) = sandbox.refuse_closing() {
        return closing;
    }
    if sandbox.cgroup.oom_kills() > oom_kills {
        return Error::new(
            ErrorKind::Busy,
            "out_of_memory",
            "the sandbox has no memory for a kernel (memory_bytes); free some or close it",
        );
    }
    tracing::error!(sandbox = sandbox.id(), "no kernel for a context: {error}");
    Error::new(
        ErrorKind::Internal,
        "context_failed",
        "no kernel could be started; the service's log says why",
    )
}

/// Why there is no branch.
pub(super) fn not_forked(sandbox: &Sandbox, before: &Counters, error: &isolation::Error) -> Error {
    let now = sandbox.cgroup.counters();
    if sandbox.is_closing() || now.oom_kills > before.oom_kills {
        return no_context(sandbox, before.oom_kills, error);
    }
    if now.fork_failures > before.fork_failures {
        return Error::too_many_processes();
    }
    if let isolation::Error::Unsound(objection) = error {
        return Error::not_copyable(objection);
    }
    tracing::info!(sandbox = sandbox.id(), "a kernel was not forked: {error}");
    Error::new(
        ErrorKind::Conflict,
        "not_forked",
        "the Python process could not be forked: it has died or does not answer; execute something \
         to see its state",
    )
}
