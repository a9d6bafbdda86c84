//! Sandboxes made ahead: a create takes one and the pool makes another in the background.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::realm::Realm;
use super::sandbox::{Plan, Sandbox};

/// Pause after a sandbox could not be made, so that a broken host is not hammered.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Between a claim and the making of the next sandbox, while others are ready.
const REFILL_PAUSE: Duration = Duration::from_millis(25);

/// Ready sandboxes, oldest first.
#[derive(Debug)]
pub struct Pool {
    ready: Mutex<VecDeque<Arc<Sandbox>>>,
    target: usize,
    taken: Notify,
}

impl Pool {
    /// Keeps `target` sandboxes ready once [`Pool::fill`] runs.
    pub fn new(target: usize) -> Self {
        Self {
            ready: Mutex::default(),
            target,
            taken: Notify::new(),
        }
    }

    /// A ready sandbox, if there is one.
    pub fn take(&self) -> Option<Arc<Sandbox>> {
        let sandbox = self.ready.lock().expect("not poisoned").pop_front();
        self.taken.notify_one();
        sandbox
    }

    /// Sandboxes that are ready.
    pub fn len(&self) -> usize {
        self.ready.lock().expect("not poisoned").len()
    }

    /// Makes sandboxes to `plan` whenever some are missing; runs until it is aborted.
    pub async fn fill(&self, realm: Arc<Realm>, plan: Plan) {
        loop {
            while self.len() < self.target {
                match Sandbox::prepare(&realm, &plan).await {
                    Ok(sandbox) => {
                        if let Err(e) = sandbox.rehearse().await {
                            tracing::warn!("a kernel could not rehearse: {e}");
                        }
                        self.ready.lock().expect("not poisoned").push_back(sandbox);
                    }
                    Err(e) => {
                        tracing::error!("failed to prepare a sandbox: {e}");
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
            }
            self.taken.notified().await;
            // Whoever took one is about to use it: making the next at once would slow that down. An
            // empty pool has no time to lose.
            if self.len() > 0 {
                tokio::time::sleep(REFILL_PAUSE).await;
            }
        }
    }

    /// Everything that is ready, for the drain.
    pub fn drain(&self) -> Vec<Arc<Sandbox>> {
        self.ready.lock().expect("not poisoned").drain(..).collect()
    }
}
