//! The tools for contexts: several kernels over the files of one sandbox, and the interrupt.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::{tool, tool_router};

use super::answer::success;
use super::arguments::Parameters;
use super::schema::{
    Closed, ContextArguments, Contexts, CreateContextArguments, InterruptArguments, Interrupted,
    SandboxArguments,
};
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::api::wire::ContextAnswer;
use crate::supervisor::ContextSpec;

#[tool_router(router = context_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Create a context",
        description = "Create another Python context in a sandbox and return its context_id. A \
            context is a Python session of its own: its variables and imports are separate, files \
            are shared with the sandbox's other contexts, and code in different contexts runs at \
            the same time. Pass the context_id to execute_python_code. Only needed for parallel or \
            separate work: every sandbox already has the context \"default\".",
        output_schema = schema_for_output::<ContextAnswer>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn create_context(
        &self,
        Parameters(arguments): Parameters<CreateContextArguments>,
    ) -> CallToolResult {
        let spec = ContextSpec {
            name: arguments.name,
            ..ContextSpec::default()
        };
        let created = whole::create_context(self.supervisor(), &arguments.sandbox_id, spec).await;
        answered(created, |info| {
            let text = format!("Created context {}.", info.id);
            success(&ContextAnswer::from(info), vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "List contexts",
        description = "List the Python contexts of a sandbox, oldest first, with their ids, names \
            and whether code runs in them (busy) or not (idle).",
        output_schema = schema_for_output::<Contexts>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_contexts(
        &self,
        Parameters(arguments): Parameters<SandboxArguments>,
    ) -> CallToolResult {
        answered(self.supervisor().contexts(&arguments.sandbox_id), |list| {
            let contexts: Vec<_> = list.into_iter().map(ContextAnswer::from).collect();
            let lines: Vec<String> = contexts
                .iter()
                .map(|c| format!("{} {:?} ({})", c.context_id, c.name, c.state))
                .collect();
            let text = ContentBlock::text(lines.join("\n"));
            success(&Contexts { contexts }, vec![text])
        })
    }

    #[tool(
        title = "Delete a context",
        description = "Delete a context of a sandbox: code that runs in it is stopped and its \
            variables are gone; files stay. The context \"default\" cannot be deleted, use \
            restart_context for it.",
        output_schema = schema_for_output::<Closed>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn delete_context(
        &self,
        Parameters(arguments): Parameters<ContextArguments>,
    ) -> CallToolResult {
        let (id, context_id) = (&arguments.sandbox_id, &arguments.context_id);
        let deleted = whole::delete_context(self.supervisor(), id, context_id).await;
        answered(deleted, |()| {
            let deleted = Closed {
                status: "success",
                message: "Context deleted",
            };
            success(&deleted, vec![ContentBlock::text(deleted.message)])
        })
    }

    #[tool(
        title = "Restart a context",
        description = "Restart the Python process of a context (\"default\" or an id of \
            create_context), to begin anew with no variables or to get rid of code that hangs: what \
            runs there is stopped, imports and variables are gone, files stay.",
        output_schema = schema_for_output::<ContextAnswer>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn restart_context(
        &self,
        Parameters(arguments): Parameters<ContextArguments>,
    ) -> CallToolResult {
        let (id, context_id) = (&arguments.sandbox_id, &arguments.context_id);
        let restarted = whole::restart_context(self.supervisor(), id, context_id).await;
        answered(restarted, |info| {
            let text = format!("Restarted context {}; it has no variables now.", info.id);
            success(&ContextAnswer::from(info), vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "Interrupt running code",
        description = "Interrupt the Python code that another call is running in a sandbox, as \
            Ctrl-C would: it gets a KeyboardInterrupt and variables are kept, unless it does not \
            stop within seconds and has to be killed. Without context_id code in all contexts is \
            interrupted. Returns the ids of the contexts in which code ran; where none runs \
            nothing happens.",
        output_schema = schema_for_output::<Interrupted>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn interrupt_execution(
        &self,
        Parameters(arguments): Parameters<InterruptArguments>,
    ) -> CallToolResult {
        let context_id = arguments.context_id.as_deref();
        let told = self
            .supervisor()
            .interrupt(&arguments.sandbox_id, context_id);
        answered(told, |interrupted| {
            let text = match interrupted.len() {
                0 => "No code was running.".to_owned(),
                _ => format!("Interrupted: {}.", interrupted.join(", ")),
            };
            let answer = Interrupted {
                status: "success",
                interrupted,
            };
            success(&answer, vec![ContentBlock::text(text)])
        })
    }
}
