//! Verbs that go on when their client goes away.
//!
//! A request's future is dropped with its connection. That is right for an execution, which it
//! interrupts, and wrong half-way through making or destroying a sandbox: what was begun would
//! belong to nobody. So these run in tasks of their own.

use tokio::sync::oneshot;

use crate::supervisor::{CreateSpec, Error, ErrorKind, SandboxInfo, Supervisor};

/// Creates a sandbox, and closes it again when nobody is left to be told its id.
pub(crate) async fn create(
    supervisor: &Supervisor,
    spec: CreateSpec,
) -> Result<SandboxInfo, Error> {
    let supervisor = supervisor.clone();
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let created = supervisor.create(spec).await;
        if let Err(Ok(unclaimed)) = tell.send(created) {
            let _ = supervisor.close(&unclaimed.id).await;
        }
    });
    told.await.unwrap_or_else(|_| Err(ended()))
}

/// Closes a sandbox to the end.
pub(crate) async fn close(supervisor: &Supervisor, id: &str) -> Result<(), Error> {
    let (supervisor, id) = (supervisor.clone(), id.to_owned());
    let closing = tokio::spawn(async move { supervisor.close(&id).await });
    closing.await.unwrap_or_else(|_| Err(ended()))
}

/// The task panicked, or the runtime goes down.
fn ended() -> Error {
    Error::new(ErrorKind::Internal, "internal", "a verb's task ended early")
}
