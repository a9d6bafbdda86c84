//! The tools for checkpoints: variables that are kept, and contexts that go on from them.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::{tool, tool_router};

use super::answer::success;
use super::arguments::Parameters;
use super::schema::{
    CheckpointArguments, Checkpoints, Closed, DeleteCheckpointArguments, ForkArguments,
    RestoreArguments, SandboxArguments,
};
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::api::wire::{BranchAnswer, CheckpointAnswer};
use crate::supervisor::ForkSpec;

#[tool_router(router = checkpoint_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Keep a context's variables",
        description = "Keep all variables and imports of a Python context as they are now and \
            return a checkpoint_id. restore_context brings them back as often as wanted, \
            fork_context starts another context from them. Takes milliseconds; memory is shared \
            until it is changed. Files are not part of it.",
        output_schema = schema_for_output::<CheckpointAnswer>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn checkpoint_context(
        &self,
        Parameters(arguments): Parameters<CheckpointArguments>,
    ) -> CallToolResult {
        let (id, context_id) = (&arguments.sandbox_id, &arguments.context_id);
        let (name, force) = (arguments.name, arguments.force);
        let made = whole::checkpoint_context(self.supervisor(), id, context_id, name, force);
        answered(made.await, |info| {
            let text = format!("Kept the variables as checkpoint {}.", info.id);
            success(
                &CheckpointAnswer::from(info),
                vec![ContentBlock::text(text)],
            )
        })
    }

    #[tool(
        title = "List checkpoints",
        description = "List the checkpoints of a sandbox, oldest first, with their ids and names.",
        output_schema = schema_for_output::<Checkpoints>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_checkpoints(
        &self,
        Parameters(arguments): Parameters<SandboxArguments>,
    ) -> CallToolResult {
        let listed = self.supervisor().checkpoints(&arguments.sandbox_id);
        answered(listed, |list| {
            let checkpoints: Vec<_> = list.into_iter().map(CheckpointAnswer::from).collect();
            let lines: Vec<String> = checkpoints
                .iter()
                .map(|c| {
                    let count = c.execution_count;
                    format!("{} {:?} (after execution {count})", c.checkpoint_id, c.name)
                })
                .collect();
            let text = ContentBlock::text(lines.join("\n"));
            success(&Checkpoints { checkpoints }, vec![text])
        })
    }

    #[tool(
        title = "Restore a context's variables",
        description = "Give a Python context the variables and imports of a checkpoint of \
            checkpoint_context. What the context holds now is gone; the checkpoint stays and can \
            be restored again. Files are not rolled back.",
        output_schema = schema_for_output::<BranchAnswer>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn restore_context(
        &self,
        Parameters(arguments): Parameters<RestoreArguments>,
    ) -> CallToolResult {
        let (id, context_id) = (&arguments.sandbox_id, &arguments.context_id);
        let checkpoint_id = &arguments.checkpoint_id;
        let restored = whole::restore_context(self.supervisor(), id, context_id, checkpoint_id);
        answered(restored.await, |info| {
            let text = format!(
                "Context {} has the checkpoint's variables.",
                info.context.id
            );
            success(&BranchAnswer::from(info), vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "Fork a context",
        description = "Make another Python context that starts with all variables and imports of \
            an existing one, or of a checkpoint, and return its context_id. The two go separate \
            ways from then on: use it to try several continuations of the same state, one context \
            each, without loading or computing anything again. Takes milliseconds. Files are \
            shared between contexts. Delete it with delete_context when done.",
        output_schema = schema_for_output::<BranchAnswer>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn fork_context(
        &self,
        Parameters(arguments): Parameters<ForkArguments>,
    ) -> CallToolResult {
        let (id, context_id) = (&arguments.sandbox_id, &arguments.context_id);
        let spec = ForkSpec {
            name: arguments.name,
            checkpoint_id: arguments.checkpoint_id,
            force: arguments.force,
        };
        let forked = whole::fork_context(self.supervisor(), id, context_id, spec);
        answered(forked.await, |info| {
            let text = format!("Forked context {}.", info.context.id);
            success(&BranchAnswer::from(info), vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "Delete a checkpoint",
        description = "Delete a checkpoint of checkpoint_context and give its memory back. \
            Contexts that were restored or forked from it are not affected.",
        output_schema = schema_for_output::<Closed>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn delete_checkpoint(
        &self,
        Parameters(arguments): Parameters<DeleteCheckpointArguments>,
    ) -> CallToolResult {
        let (id, checkpoint_id) = (&arguments.sandbox_id, &arguments.checkpoint_id);
        let deleted = whole::delete_checkpoint(self.supervisor(), id, checkpoint_id).await;
        answered(deleted, |()| {
            let deleted = Closed {
                status: "success",
                message: "Checkpoint deleted",
            };
            success(&deleted, vec![ContentBlock::text(deleted.message)])
        })
    }
}
