//! The checks of everyone who comes, which may change while the service runs.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use super::error::Error;
use super::guard::Guard;
use crate::config;

/// Who may use the service. Cheap to clone; clones change together.
#[derive(Debug, Clone)]
pub struct Access {
    listen: SocketAddr,
    guard: Arc<RwLock<Arc<Guard>>>,
}

impl Access {
    /// For a service that listens there.
    ///
    /// # Errors
    /// The setting at fault, by name; among them that strangers could run code.
    pub fn new(server: &config::Server, listen: SocketAddr) -> Result<Self, Error> {
        let guard = Guard::new(server, listen)?;
        Ok(Self {
            listen,
            guard: Arc::new(RwLock::new(Arc::new(guard))),
        })
    }

    /// Takes other keys, hosts and origins for requests that come from now on. What a key has used up of
    /// its allowance stays used up; what has no end of its own (WebSockets, tunnels, watches, streams that
    /// wait) ends where its key is gone.
    ///
    /// # Errors
    /// As [`Access::new`]; then everything stays as it is.
    pub fn change(&self, server: &config::Server) -> Result<(), Error> {
        let old = self.now();
        let mut guard = Guard::new(server, self.listen)?;
        guard.succeed(&old);
        let guard = Arc::new(guard);
        *self.guard.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&guard);
        old.revoke_for(&guard);
        Ok(())
    }

    /// The checks of a request that comes now.
    pub(crate) fn now(&self) -> Arc<Guard> {
        Arc::clone(&self.guard.read().unwrap_or_else(PoisonError::into_inner))
    }
}
