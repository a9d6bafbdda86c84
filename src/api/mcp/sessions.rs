//! Sessions of the older protocol revisions, bounded.
//!
//! `rmcp` keeps them in memory and ends those that are silent for long. It leaves two things to us:
//! a limit on their number, where the idle one that was used longest ago makes room, and what
//! becomes of a request whose connection broke off. The older revisions let a client come back for
//! its answer, so the code is interrupted only when nobody comes within [`RETURN`].
//!
//! A session is its maker's: to the bearer of another key it is not there.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use rmcp::model::{
    CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, ClientNotification,
    RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::session::{
    ServerSseMessage, SessionId, SessionManager,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::supervisor::Owner;

tokio::task_local! {
    /// On whose behalf the request is that `rmcp` deals with, which does not say in its calls.
    static CALLER: Option<Owner>;
}

/// Deals with a request; sessions that it makes and uses are this owner's.
pub(super) fn on_behalf_of<T>(
    owner: Option<Owner>,
    request: impl Future<Output = T>,
) -> impl Future<Output = T> {
    CALLER.scope(owner, request)
}

/// Sessions at once; each costs two tasks and some kilobytes.
const MAX_SESSIONS: usize = 1024;
/// Of them, those of one key: where keys tell people apart, none ends the sessions of the others.
const MAX_SESSIONS_OF_KEY: usize = 256;
/// How long a client whose connection broke off has to come back for its answer.
const RETURN: Duration = Duration::from_secs(10);
/// How long a session may be silent beyond the longest execution.
const IDLE: Duration = Duration::from_secs(600);

type Failure = LocalSessionManagerError;
type Messages = Pin<Box<dyn Stream<Item = ServerSseMessage> + Send + Sync>>;

/// One endpoint's sessions, which `rmcp` keeps, and how each was used.
#[derive(Clone)]
pub(crate) struct Sessions {
    inner: Arc<LocalSessionManager>,
    used: Usage,
}

/// How the sessions of all endpoints were used: the limit on their number is one for all.
#[derive(Clone, Default)]
pub(crate) struct Usage(Arc<Mutex<HashMap<SessionId, Used>>>);

struct Used {
    owner: Option<Owner>,
    kept: Kept,
    last: Instant,
    open_requests: usize,
    /// How often a client came back.
    returns: u64,
}

/// Where a session is kept.
enum Kept {
    Local(Arc<LocalSessionManager>),
    /// One that lives as long as its stream.
    Stream(Ending),
}

/// A session that lives as long as its stream ([`super::events`]).
pub(super) struct Ending {
    /// Ends it.
    pub(super) token: CancellationToken,
    /// Its requests that have no answer yet.
    pub(super) under_way: UnderWay,
}

/// Requests that have no answer yet.
pub(super) type UnderWay = Arc<watch::Sender<Vec<RequestId>>>;

impl Used {
    fn is_idle(&self) -> bool {
        match &self.kept {
            Kept::Local(_) => self.open_requests == 0,
            Kept::Stream(ending) => ending.under_way.borrow().is_empty(),
        }
    }
}

impl Usage {
    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Used>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self, id: &SessionId, change: impl FnOnce(&mut Used)) {
        if let Some(used) = self.all().get_mut(id) {
            used.last = Instant::now();
            change(used);
        }
    }

    /// Takes the session off the list that has to go for another one to fit.
    fn take_surplus(&self) -> Option<(SessionId, Used)> {
        let mut used = self.all();
        let caller = CALLER.try_with(Clone::clone).unwrap_or_default();
        let own = |used: &Used| used.owner == caller;
        let of_caller = used.values().filter(|used| own(used)).count();
        let too_many_own = caller.is_some() && of_caller >= MAX_SESSIONS_OF_KEY;
        if used.len() < MAX_SESSIONS && !too_many_own {
            return None;
        }
        let idle = used.iter();
        let idle = idle.filter(|(_, used)| used.is_idle() && (!too_many_own || own(used)));
        let (id, _) = idle.min_by_key(|(_, used)| used.last)?;
        let id = id.clone();
        used.remove_entry(&id)
    }

    /// Whether a session is there and the caller's.
    fn is_usable(&self, id: &SessionId) -> bool {
        let used = self.all();
        let caller = CALLER.try_with(Clone::clone);
        (used.get(id)).is_some_and(|used| caller.is_ok_and(|caller| caller == used.owner))
    }

    fn returns(&self, id: &SessionId) -> Option<u64> {
        self.all().get(id).map(|used| used.returns)
    }

    /// Makes room for a session and counts it.
    async fn begin(
        &self,
        make: impl AsyncFnOnce() -> Result<(SessionId, Kept), Failure>,
    ) -> Result<SessionId, Failure> {
        if let Some((id, surplus)) = self.take_surplus() {
            tracing::info!("too many MCP sessions, ending the one used longest ago");
            match surplus.kept {
                Kept::Local(at) => at.close_session(&id).await?,
                Kept::Stream(ending) => ending.token.cancel(),
            }
        }
        let (id, kept) = make().await?;
        let used = Used {
            owner: CALLER.try_with(Clone::clone).unwrap_or_default(),
            kept,
            last: Instant::now(),
            open_requests: 0,
            returns: 0,
        };
        self.all().insert(id.clone(), used);
        Ok(id)
    }

    /// Counts a session that lives as long as its stream.
    pub(super) async fn begin_stream(&self, id: &str, ending: Ending) {
        let kept = Kept::Stream(ending);
        let _ = self.begin(async || Ok((id.into(), kept))).await;
    }

    /// A message came for a session of a stream.
    pub(super) fn touch_stream(&self, id: &str) {
        self.touch(&id.into(), |_| ());
    }

    /// The stream and its session have ended.
    pub(super) fn end_stream(&self, id: &str) {
        self.all().remove(&SessionId::from(id));
    }
}

impl Sessions {
    pub(crate) fn new(limits: &config::Limits, used: Usage) -> Self {
        let mut inner = LocalSessionManager::default();
        // An execution that prints nothing must not pass for a silent session.
        let longest = Duration::from_secs(limits.max_timeout_seconds);
        inner.session_config.keep_alive = Some(longest.saturating_add(IDLE));
        Self {
            inner: Arc::new(inner),
            used,
        }
    }

    /// Interrupts a request unless its client comes back.
    async fn abandon(self, id: SessionId, request: RequestId) {
        let before = self.used.returns(&id);
        tokio::time::sleep(RETURN).await;
        if before.is_none() || self.used.returns(&id) != before {
            return;
        }
        let reason = "the client's connection broke off".to_owned();
        let params = CancelledNotificationParam::new(Some(request), Some(reason));
        let notification = CancelledNotification::new(params);
        let message = ClientNotification::CancelledNotification(notification);
        let message = ClientJsonRpcMessage::notification(message);
        let _ = self.inner.accept_message(&id, message).await;
    }
}

impl SessionManager for Sessions {
    type Error = Failure;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Failure> {
        let mut made = None;
        let make = async || {
            let (id, transport) = self.inner.create_session().await?;
            made = Some(transport);
            Ok((id, Kept::Local(Arc::clone(&self.inner))))
        };
        let id = self.used.begin(make).await?;
        let transport = made.expect("a session that was made has one");
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Failure> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Failure> {
        if !self.used.is_usable(id) {
            return Ok(false);
        }
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Failure> {
        // A client asks, or `rmcp` itself, in a task of its own, when the session has ended.
        if CALLER.try_with(|_| ()).is_ok() && !self.used.is_usable(id) {
            return Ok(());
        }
        self.used.all().remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Failure> {
        let request = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let messages: Messages = Box::pin(self.inner.create_stream(id, message).await?);
        self.used.touch(id, |used| used.open_requests += 1);
        Ok(Answer {
            messages,
            sessions: self.clone(),
            session: id.clone(),
            request,
        })
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Failure> {
        self.used.touch(id, |_| ());
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Failure> {
        self.used.touch(id, |_| ());
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Failure> {
        self.used.touch(id, |used| used.returns += 1);
        self.inner.resume(id, last_event_id).await
    }
}

/// A request's answer on its way to the client.
struct Answer {
    messages: Messages,
    sessions: Sessions,
    session: SessionId,
    /// Until all of the answer was handed over.
    request: Option<RequestId>,
}

impl Stream for Answer {
    type Item = ServerSseMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = self.messages.poll_next_unpin(cx);
        if matches!(message, Poll::Ready(None)) {
            self.request = None;
        }
        message
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let sessions = self.sessions.clone();
        sessions
            .used
            .touch(&self.session, |used| used.open_requests -= 1);
        if let (Some(request), Ok(runtime)) =
            (self.request.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(sessions.abandon(self.session.clone(), request));
        }
    }
}
