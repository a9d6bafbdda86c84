//! Verbs that go on when their client goes away.
//!
//! A request's future is dropped with its connection. That is right for an execution, which it
//! interrupts, and wrong half-way through making or destroying a sandbox: what was begun would
//! belong to nobody. So these run in tasks of their own.

use tokio::sync::oneshot;

use crate::supervisor::{
    BranchInfo, CheckpointInfo, ContextInfo, ContextSpec, CreateSpec, Error, ErrorKind, ForkSpec,
    ProcessInfo, ProcessSpec, SandboxInfo, Stopped, Supervisor, WorkspaceInfo, WorkspaceSpec,
};

/// Runs a verb to its end.
async fn finished<T: Send + 'static>(
    verb: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(verb).await.unwrap_or_else(|_| Err(ended()))
}

/// Runs a verb to its end, and takes back what it made when nobody is left to be told of it.
async fn told<T, Undo>(
    verb: impl Future<Output = Result<T, Error>> + Send + 'static,
    undo: impl FnOnce(T) -> Undo + Send + 'static,
) -> Result<T, Error>
where
    T: Send + 'static,
    Undo: Future<Output = Result<(), Error>> + Send,
{
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        if let Err(Ok(unclaimed)) = tell.send(verb.await) {
            let _ = undo(unclaimed).await;
        }
    });
    told.await.unwrap_or_else(|_| Err(ended()))
}

/// Creates a sandbox, and closes it again when nobody is left to be told its id.
pub(crate) async fn create(
    supervisor: &Supervisor,
    spec: CreateSpec,
) -> Result<SandboxInfo, Error> {
    let (verb, undo) = (supervisor.clone(), supervisor.clone());
    told(
        async move { verb.create(spec).await },
        |made: SandboxInfo| async move { undo.close(&made.id).await },
    )
    .await
}

/// Makes a workspace, and closes it again when nobody is left to be told its id.
pub(crate) async fn open_workspace(
    supervisor: &Supervisor,
    spec: WorkspaceSpec,
) -> Result<WorkspaceInfo, Error> {
    let (verb, undo) = (supervisor.clone(), supervisor.clone());
    told(
        async move { verb.open_workspace(spec).await },
        |made: WorkspaceInfo| async move { undo.close(&made.sandbox.id).await },
    )
    .await
}

/// Ends a workspace to the end.
pub(crate) async fn clean_workspace(
    supervisor: &Supervisor,
    container_id: &str,
    workspace_id: &str,
) -> Result<(), Error> {
    let verb = supervisor.clone();
    let (container, workspace) = (container_id.to_owned(), workspace_id.to_owned());
    finished(async move { verb.clean_workspace(&container, &workspace).await }).await
}

/// Stops a container to the end.
pub(crate) async fn stop_container(
    supervisor: &Supervisor,
    container_id: &str,
    persistent: bool,
) -> Result<Stopped, Error> {
    let (verb, id) = (supervisor.clone(), container_id.to_owned());
    finished(async move { verb.stop_container(&id, persistent).await }).await
}

/// Deletes a mirror to the end.
pub(crate) async fn delete_mirror(supervisor: &Supervisor, id: &str) -> Result<(), Error> {
    let (verb, id) = (supervisor.clone(), id.to_owned());
    finished(async move { verb.delete_mirror(&id).await }).await
}

/// Closes a sandbox to the end.
pub(crate) async fn close(supervisor: &Supervisor, id: &str) -> Result<(), Error> {
    let (verb, id) = (supervisor.clone(), id.to_owned());
    finished(async move { verb.close(&id).await }).await
}

/// Makes a context, and deletes it again when nobody is left to be told its id.
pub(crate) async fn create_context(
    supervisor: &Supervisor,
    id: &str,
    spec: ContextSpec,
) -> Result<ContextInfo, Error> {
    let (verb, undo) = (supervisor.clone(), supervisor.clone());
    let (id, of) = (id.to_owned(), id.to_owned());
    told(
        async move { verb.create_context(&id, spec).await },
        |made: ContextInfo| async move { undo.delete_context(&of, &made.id).await },
    )
    .await
}

/// Starts a background process, and deletes it again when nobody is left to be told its id.
pub(crate) async fn start_process(
    supervisor: &Supervisor,
    id: &str,
    spec: ProcessSpec,
) -> Result<ProcessInfo, Error> {
    let (verb, undo) = (supervisor.clone(), supervisor.clone());
    let (id, of) = (id.to_owned(), id.to_owned());
    told(
        async move { verb.start_process(&id, spec).await },
        |made: ProcessInfo| async move { undo.process(&of, &made.id)?.delete().await },
    )
    .await
}

/// Deletes a context to the end.
pub(crate) async fn delete_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
) -> Result<(), Error> {
    let (verb, id, context_id) = (supervisor.clone(), id.to_owned(), context_id.to_owned());
    finished(async move { verb.delete_context(&id, &context_id).await }).await
}

/// Restarts a context to the end.
pub(crate) async fn restart_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
) -> Result<ContextInfo, Error> {
    let (verb, id, context_id) = (supervisor.clone(), id.to_owned(), context_id.to_owned());
    finished(async move { verb.restart_context(&id, &context_id).await }).await
}

/// Makes a checkpoint, and deletes it again when nobody is left to be told its id.
pub(crate) async fn checkpoint_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
    name: Option<String>,
    force: bool,
) -> Result<CheckpointInfo, Error> {
    let (verb, undo) = (supervisor.clone(), supervisor.clone());
    let (id, of, context_id) = (id.to_owned(), id.to_owned(), context_id.to_owned());
    told(
        async move { verb.checkpoint_context(&id, &context_id, name, force).await },
        |made: CheckpointInfo| async move { undo.delete_checkpoint(&of, &made.id).await },
    )
    .await
}

/// Deletes a checkpoint to the end.
pub(crate) async fn delete_checkpoint(
    supervisor: &Supervisor,
    id: &str,
    checkpoint_id: &str,
) -> Result<(), Error> {
    let (verb, id, checkpoint_id) = (supervisor.clone(), id.to_owned(), checkpoint_id.to_owned());
    finished(async move { verb.delete_checkpoint(&id, &checkpoint_id).await }).await
}

/// Restores a context to the end.
pub(crate) async fn restore_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
    checkpoint_id: &str,
) -> Result<BranchInfo, Error> {
    let (verb, id) = (supervisor.clone(), id.to_owned());
    let (context_id, checkpoint_id) = (context_id.to_owned(), checkpoint_id.to_owned());
    finished(async move { verb.restore_context(&id, &context_id, &checkpoint_id).await }).await
}

/// Forks a context, and deletes the other again when nobody is left to be told its id.
pub(crate) async fn fork_context(
    supervisor: &Supervisor,
    id: &str,
    context_id: &str,
    spec: ForkSpec,
) -> Result<BranchInfo, Error> {
    let (verb, undo) = (supervisor.clone(), supervisor.clone());
    let (id, of, context_id) = (id.to_owned(), id.to_owned(), context_id.to_owned());
    told(
        async move { verb.fork_context(&id, &context_id, spec).await },
        |made: BranchInfo| async move { undo.delete_context(&of, &made.context.id).await },
    )
    .await
}

/// The task panicked, or the runtime goes down.
fn ended() -> Error {
    Error::new(ErrorKind::Internal, "internal", "a verb's task ended early")
}
