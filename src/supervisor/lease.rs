//! How long a sandbox lives: a lease that ends whatever it does, and a time that it may be idle.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

use super::error::Error;
use super::gone::EndReason;
use super::sandbox::Sandbox;
use super::types::{RenewSpec, SandboxInfo};
use super::{Supervisor, plan};

impl Sandbox {
    /// Resolves when its lease or its idle time is over; exact, as it sleeps until then.
    pub async fn expired(&self) -> EndReason {
        loop {
            let renewed = self.renewed.notified();
            let (until, reason) = self.end_as_it_stands();
            if until <= Instant::now() {
                return reason;
            }
            tokio::select! {
                () = sleep_until(until) => {}
                () = renewed => {}
            }
        }
    }

    /// When it would end if nothing happened any more; of one that is in use, the earliest time.
    fn end_as_it_stands(&self) -> (Instant, EndReason) {
        let claim = self.claim.lock().expect("not poisoned");
        let lease = (claim.expires, EndReason::Expired);
        let idle = match claim.idle {
            Some(idle) if !self.in_use() => (claim.last_used + idle, EndReason::Idle),
            Some(idle) => (Instant::now() + idle, EndReason::Idle),
            None => return lease,
        };
        if idle.0 < lease.0 { idle } else { lease }
    }

    /// Lets a lease begin anew, and sets the time that it may be idle.
    fn renew(&self, lease: Option<Duration>, idle: Option<Duration>) {
        let mut claim = self.claim.lock().expect("not poisoned");
        if lease.is_some() || idle.is_none() {
            claim.lease = lease.unwrap_or(claim.lease);
            claim.expires = Instant::now() + claim.lease;
            claim.expires_at = SystemTime::now() + claim.lease;
        }
        claim.idle = idle.or(claim.idle);
        drop(claim);
        // One that has not begun to wait finds it in the claim, or at once.
        self.renewed.notify_one();
    }
}

impl Supervisor {
    /// Lets a sandbox's lease begin anew, as long as asked or as long as it was; with only an idle time,
    /// sets that alone. A sandbox may be renewed again and again.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` names the field; `Conflict` when the sandbox is being closed.
    pub fn renew(&self, id: &str, spec: &RenewSpec) -> Result<SandboxInfo, Error> {
        let sandbox = self.find(id)?;
        let config = self.current();
        let limits = &config.limits;
        let lease = plan::check_seconds("lease_seconds", spec.lease_seconds, limits)?;
        let idle = plan::check_seconds("idle_seconds", spec.idle_seconds, limits)?;
        sandbox.refuse_closing()?;
        sandbox.touch();
        sandbox.renew(lease, idle);
        Ok(sandbox.info())
    }
}
