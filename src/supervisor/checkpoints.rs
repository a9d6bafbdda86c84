//! Checkpoints that clients ask for: branches of a kernel that wait, each in a leaf of its own, until
//! something goes on from them. They are of their sandbox and outlive the context that they are of.
//!
//! ```text
//! context ──checkpoint──► checkpoint ──fork───► another context
//!    └────────fork──────────► another context   └──restore──► in place of a context's kernel
//! ```
//!
//! Only variables are kept. Files are the sandbox's, the same for all.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::context::Context;
use super::error::Error;
use super::launch::{no_context, not_forked};
use super::sandbox::{Sandbox, new_id};
use super::types::{BranchInfo, CheckpointInfo, ContextSpec, ForkSpec};
use crate::kernel::branch::{Branch, Manner, branch};
use crate::kernel::handle::Kernel;

/// First part of the names of their leaves.
const LEAF: &str = "checkpoint";

/// Variables that wait.
#[derive(Debug)]
pub struct Checkpoint {
    id: String,
    leaf: String,
    /// As its context has them.
    cwd: Option<String>,
    env: BTreeMap<String, String>,
    kernel: tokio::sync::Mutex<Option<Kernel>>,
    /// Set when it is made.
    info: OnceLock<CheckpointInfo>,
}

impl Checkpoint {
    fn of(context: &Context, leaf: String) -> Self {
        Self {
            id: new_id(),
            leaf,
            cwd: context.cwd.clone(),
            env: context.env.clone(),
            kernel: tokio::sync::Mutex::default(),
            info: OnceLock::new(),
        }
    }

    /// Forks a kernel from it into `leaf`. Gives the execution count that goes on with it.
    async fn branch(&self, sandbox: &Sandbox, leaf: &str) -> Result<(Branch, u64), Error> {
        let not_found = || Error::checkpoint_not_found(&self.id);
        let mut slot = self.kernel.lock().await;
        sandbox.refuse_closing()?;
        let kernel = slot.as_mut().ok_or_else(not_found)?;
        let info = self.info.get().ok_or_else(not_found)?;
        if kernel.has_ended() {
            return Err(Error::checkpoint_lost());
        }
        let before = sandbox.cgroup.counters();
        // Whether it is sound was decided when it was made.
        let manner = Manner {
            waits: false,
            force: true,
        };
        let forked = branch(kernel, &sandbox.place(), leaf, manner).await;
        let branch = forked.map_err(|e| match not_forked(sandbox, &before, &e) {
            _ if kernel.has_ended() => Error::checkpoint_lost(),
            error => error,
        })?;
        Ok((branch, info.execution_count))
    }

    fn missing(&self) -> Vec<String> {
        self.info
            .get()
            .map(|i| i.missing.clone())
            .unwrap_or_default()
    }

    /// Kills it and removes its leaf.
    async fn end(&self, sandbox: &Sandbox) {
        if let Some(kernel) = self.kernel.lock().await.take() {
            kernel.end(&sandbox.cgroup).await;
        }
        sandbox.end_leaf(&self.leaf, || {}).await;
    }

    /// Lets go of one that was killed with its sandbox.
    pub(super) async fn let_go(&self) {
        self.kernel.lock().await.take();
    }
}

impl Sandbox {
    /// Keeps the variables that a context has when its turn comes.
    pub(super) async fn checkpoint_context(
        &self,
        context_id: &str,
        name: Option<String>,
        force: bool,
    ) -> Result<CheckpointInfo, Error> {
        self.touch();
        let _in_use = self.begin_use();
        let context = self.context(context_id)?;
        let checkpoint = Arc::new(Checkpoint::of(&context, self.new_leaf(LEAF)));
        self.list_checkpoint(&checkpoint)?;
        match self
            .fill_checkpoint(&context, &checkpoint, name, force)
            .await
        {
            Ok(info) => Ok(info),
            Err(e) => {
                self.unlist_checkpoint(&checkpoint);
                checkpoint.end(self).await;
                Err(e)
            }
        }
    }

    /// Takes the room of one that is to be made.
    fn list_checkpoint(&self, checkpoint: &Arc<Checkpoint>) -> Result<(), Error> {
        let most = self.host.config.limits.checkpoints;
        let mut all = self.checkpoints.lock().expect("not poisoned");
        // Under the lock, as whoever destroys the sandbox takes the list after it began to close.
        self.refuse_closing()?;
        if all.len() >= most {
            return Err(Error::too_many_checkpoints(most));
        }
        all.push(Arc::clone(checkpoint));
        Ok(())
    }

    async fn fill_checkpoint(
        &self,
        context: &Context,
        checkpoint: &Checkpoint,
        name: Option<String>,
        force: bool,
    ) -> Result<CheckpointInfo, Error> {
        // Held: whoever ends the checkpoint waits for what is forked now.
        let mut slot = checkpoint.kernel.lock().await;
        self.make_leaf(&checkpoint.leaf)?;
        let (branch, execution_count) = context
            .branch(self, &checkpoint.leaf, Manner { waits: true, force })
            .await?;
        *slot = Some(branch.kernel);
        let id = checkpoint.id.clone();
        let info = checkpoint.info.get_or_init(|| CheckpointInfo {
            name: name.unwrap_or_else(|| format!("checkpoint-{}", &id[..6])),
            id,
            context_id: context.id().to_owned(),
            created_at: SystemTime::now(),
            execution_count,
            missing: branch.missing,
        });
        Ok(info.clone())
    }

    /// Those that are made, oldest first.
    pub(super) fn checkpoints(&self) -> Vec<CheckpointInfo> {
        let all = self.checkpoints.lock().expect("not poisoned");
        all.iter().filter_map(|c| c.info.get().cloned()).collect()
    }

    fn checkpoint(&self, id: &str) -> Result<Arc<Checkpoint>, Error> {
        let all = self.checkpoints.lock().expect("not poisoned");
        let mut made = all.iter().filter(|c| c.info.get().is_some());
        made.find(|c| c.id == id)
            .cloned()
            .ok_or_else(|| Error::checkpoint_not_found(id))
    }

    /// True for the one caller that took it off the list.
    fn unlist_checkpoint(&self, checkpoint: &Arc<Checkpoint>) -> bool {
        let mut all = self.checkpoints.lock().expect("not poisoned");
        let before = all.len();
        all.retain(|other| !Arc::ptr_eq(other, checkpoint));
        all.len() < before
    }

    /// Ends a checkpoint; returns when its process is gone.
    pub(super) async fn delete_checkpoint(&self, id: &str) -> Result<(), Error> {
        self.touch();
        self.refuse_closing()?;
        let checkpoint = self.checkpoint(id)?;
        if !self.unlist_checkpoint(&checkpoint) {
            return Err(Error::checkpoint_not_found(id));
        }
        checkpoint.end(self).await;
        Ok(())
    }

    /// Puts a branch of a checkpoint in the place of a context's kernel.
    pub(super) async fn restore_context(
        &self,
        context_id: &str,
        checkpoint_id: &str,
    ) -> Result<BranchInfo, Error> {
        self.touch();
        let _in_use = self.begin_use();
        let context = self.context(context_id)?;
        let checkpoint = self.checkpoint(checkpoint_id)?;
        // In the checkpoint's leaf at first: the context's is emptied when nothing can go wrong.
        let made = checkpoint.branch(self, &checkpoint.leaf);
        let missing = context.replace(self, made).await?;
        Ok(BranchInfo {
            context: context.info(self),
            missing: [checkpoint.missing(), missing].concat(),
        })
    }

    /// Makes another context with the variables of a context or of a checkpoint.
    pub(super) async fn fork_context(
        &self,
        context_id: &str,
        spec: ForkSpec,
    ) -> Result<BranchInfo, Error> {
        self.touch();
        let _in_use = self.begin_use();
        let origin = self.context(context_id)?;
        let checkpoint = match &spec.checkpoint_id {
            Some(id) => Some(self.checkpoint(id)?),
            None => None,
        };
        let (cwd, env) = match &checkpoint {
            Some(checkpoint) => (&checkpoint.cwd, &checkpoint.env),
            None => (&origin.cwd, &origin.env),
        };
        let context = self.list_context(ContextSpec {
            name: spec.name,
            cwd: cwd.clone(),
            env: env.clone(),
        })?;
        let forked = self.fill_context(&context, &origin, checkpoint.as_deref(), spec.force);
        match forked.await {
            Ok(missing) => Ok(BranchInfo {
                context: context.info(self),
                missing,
            }),
            Err(e) => {
                self.give_up_context(&context).await;
                Err(e)
            }
        }
    }

    async fn fill_context(
        &self,
        context: &Context,
        origin: &Context,
        checkpoint: Option<&Checkpoint>,
        force: bool,
    ) -> Result<Vec<String>, Error> {
        self.make_leaf(&context.leaf)?;
        let (branch, count) = match checkpoint {
            Some(checkpoint) => checkpoint.branch(self, &context.leaf).await?,
            None => {
                origin
                    .branch(
                        self,
                        &context.leaf,
                        Manner {
                            waits: false,
                            force,
                        },
                    )
                    .await?
            }
        };
        context.adopt(branch.kernel, count).await;
        let before = checkpoint.map(Checkpoint::missing).unwrap_or_default();
        Ok([before, branch.missing].concat())
    }

    fn make_leaf(&self, leaf: &str) -> Result<(), Error> {
        // Soon a process is moved into it.
        self.host.cgroup.expect_migration();
        let made = self.cgroup.make_kernel_leaf(leaf);
        made.map_err(|e| no_context(self, u64::MAX, &e))
    }
}
