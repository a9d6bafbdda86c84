//! Who sent a request, as its key says, and what is theirs.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;

use super::App;
use super::error::Refusal;
use crate::supervisor::Owner;

/// Put into a request's extensions by whatever has checked its key; `None` where there are no keys.
#[derive(Debug, Clone)]
pub(crate) struct OnBehalfOf(pub(crate) Option<Owner>);

/// What a handler works with: the service as whoever sent the request sees it. A handler that took the
/// router's state instead would see nothing at all.
pub(crate) struct Caller(pub(crate) Arc<App>);

impl App {
    /// The service as one owner sees it.
    pub(crate) fn on_behalf_of(&self, owner: Option<Owner>) -> Arc<Self> {
        Arc::new(Self {
            supervisor: self.supervisor.on_behalf_of(owner),
            server: Arc::clone(&self.server),
            code_bytes: self.code_bytes,
        })
    }

    /// The service as whoever sent the request with these extensions sees it.
    ///
    /// # Errors
    /// 500 where nobody has checked its key.
    pub(crate) fn seen_by(&self, extensions: &Extensions) -> Result<Arc<Self>, Refusal> {
        let Some(OnBehalfOf(owner)) = extensions.get() else {
            tracing::error!("a request got to a handler without having been asked for its key");
            return Err(Refusal::internal());
        };
        Ok(self.on_behalf_of(owner.clone()))
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        app.seen_by(&parts.extensions).map(Self)
    }
}
