//! Verbs that go on when their client goes away.
//!
//! A request's future is dropped with its connection. That is right for an execution, which it
//! interrupts, and wrong half-way through making or destroying a sandbox: what was begun would
//! belong to nobody. So these run in tasks of their own.

use tokio::sync::oneshot;

use crate::supervisor::{
    ContextInfo, ContextSpec, CreateSpec, Error, ErrorKind, ProcessInfo, ProcessSpec, SandboxInfo,
    Supervisor,
};

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

/// Makes a context, and deletes it again when nobody is left to be told its id.
pub(crate) async fn create_context(
    supervisor: &Supervisor,
    id: &str,
    spec: ContextSpec,
) -> Result<ContextInfo, Error> {
    let (supervisor, id) = (supervisor.clone(), id.to_owned());
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let created = supervisor.create_context(&id, spec).await;
        if let Err(Ok(unclaimed)) = tell.send(created) {
            let _ = supervisor.delete_context(&id, &unclaimed.id).await;
        }
    });
    told.await.unwrap_or_else(|_| Err(ended()))
}

/// Starts a background process, and deletes it again when nobody is left to be told its id.
pub(crate) async fn start_process(
    supervisor: &Supervisor,
    id: &str,
    spec: ProcessSpec,
) -> Result<ProcessInfo, Error> {
    let (supervisor, id) = (supervisor.clone(), id.to_owned());
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let started = supervisor.start_process(&id, spec).await;
        if let Err(Ok(unclaimed)) = tell.send(started)
            && let Ok(process) = supervisor.process(&id, &unclaimed.id)
        {
            let _ = process.delete().await;
        }
    });
    told.await.unwrap_or_else(|_| Err(ended()))
}

/// Deletes a context to the end.
pub(crate) async fn delete_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
) -> Result<(), Error> {
    let (supervisor, id, context_id) = (supervisor.clone(), id.to_owned(), context_id.to_owned());
    let deleting = tokio::spawn(async move { supervisor.delete_context(&id, &context_id).await });
    deleting.await.unwrap_or_else(|_| Err(ended()))
}

/// Restarts a context to the end.
pub(crate) async fn restart_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
) -> Result<ContextInfo, Error> {
    let (supervisor, id, context_id) = (supervisor.clone(), id.to_owned(), context_id.to_owned());
    let restarting =
        tokio::spawn(async move { supervisor.restart_context(&id, &context_id).await });
    restarting.await.unwrap_or_else(|_| Err(ended()))
}

/// The task panicked, or the runtime goes down.
fn ended() -> Error {
    Error::new(ErrorKind::Internal, "internal", "a verb's task ended early")
}
