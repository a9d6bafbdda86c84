//! Commands.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{MESSAGES, refused};
use crate::api::error::Refusal;
use crate::api::mcp::answer::{advice, section, success};
use crate::api::mcp::arguments::Parameters;
use crate::api::mcp::progress::told;
use crate::api::mcp::tools::{Tools, interrupted};
use crate::api::wire::{CommandAnswer, seconds};
use crate::supervisor::{Dependencies, SequenceOutcome, SequenceSpec};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct ExecArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// bash command lines that run one after the other until one fails. Each starts in the workspace's
    /// directory with variables of its own: write "cd src && make" where a directory matters.
    commands: Vec<String>,
    /// As returned by sandbox_initialize.
    #[serde(default)]
    workspace_id: Option<String>,
    /// Seconds after which a command is killed; a default applies when left out.
    #[serde(default)]
    timeout_seconds: Option<f64>,
    /// Whether missing packages of scripts are installed before they run: those of a requirements.txt
    /// beside a script, else those that it imports; true when left out, unless the service's operator
    /// decided otherwise.
    #[serde(default)]
    install_dependencies: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Executed {
    /// Whether every command ran and exited with 0.
    success: bool,
    /// Those that ran; the last one may have failed, and those after it did not run.
    results: Vec<CommandResult>,
    /// What was installed for them, where something was missing.
    dependencies: Vec<Installed>,
    /// Why not everything ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct CommandResult {
    command: String,
    /// Whether it exited with 0.
    success: bool,
    #[serde(flatten)]
    answer: CommandAnswer,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Installed {
    /// The requirement file, or "imports".
    source: String,
    /// What was missing, or the requirement file.
    wanted: Vec<String>,
    /// What is new, as name==version.
    installed: Vec<String>,
    /// Whether all that was wanted is there now. The command ran in any case.
    success: bool,
    message: String,
}

impl From<Dependencies> for Installed {
    fn from(dependencies: Dependencies) -> Self {
        Self {
            source: dependencies.source,
            wanted: dependencies.wanted,
            installed: dependencies.installed,
            success: dependencies.success,
            message: dependencies.message,
        }
    }
}

#[tool_router(router = workspace_exec_router, vis = "pub(in crate::api::mcp)")]
impl Tools {
    #[tool(
        title = "Run commands",
        description = "Run shell commands in a workspace, one after the other, and return the output \
            and exit code of each; the first that fails ends the list. Before a command runs a \
            Python script (\"python main.py\"), packages that the script imports, or that a \
            requirements.txt beside it names, are installed when they are missing; \"pip install\" \
            works the same way. Programs have no network of their own unless the operator allowed \
            it. Figures must be saved to files; copy_file_from_sandbox fetches them.",
        output_schema = schema_for_output::<Executed>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = true)
    )]
    async fn sandbox_exec(
        &self,
        Parameters(arguments): Parameters<ExecArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let cancelled = context.ct.clone();
        tokio::select! {
            () = cancelled.cancelled() => interrupted(),
            outcome = self.exec(arguments, &context) => match outcome {
                Ok(outcome) => executed(outcome),
                Err(refusal) => refused(&refusal),
            },
        }
    }
}

impl Tools {
    async fn exec(
        &self,
        arguments: ExecArguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<SequenceOutcome, Refusal> {
        let spec = SequenceSpec {
            commands: arguments.commands,
            timeout: seconds(arguments.timeout_seconds)?,
            output_bytes: self.supervisor().config().limits.mcp_output_bytes,
            install: arguments.install_dependencies,
        };
        let id = self.workspace_of(&arguments.container_id, arguments.workspace_id.as_deref())?;
        let (tell, words) = mpsc::channel(MESSAGES);
        let run = self.supervisor().run_commands(&id, spec, &tell);
        Ok(told(context, words, run).await?)
    }
}

fn executed(outcome: SequenceOutcome) -> CallToolResult {
    let dependencies: Vec<Installed> = outcome.dependencies.into_iter().map(Into::into).collect();
    let mut text = String::new();
    for installed in &dependencies {
        section(&mut text, "[dependencies] ", &installed.message);
    }
    let mut results = Vec::new();
    for (command, outcome) in outcome.ran {
        let answer = CommandAnswer::from(outcome);
        section(&mut text, "$ ", &command);
        section(&mut text, "", &answer.stdout);
        section(&mut text, "[stderr]\n", &answer.stderr);
        if answer.ended.timed_out {
            section(
                &mut text,
                "",
                "[timeout] it was killed when its time was over",
            );
        }
        if answer.ended.out_of_memory {
            section(
                &mut text,
                "",
                "[out_of_memory] the workspace's memory limit was hit",
            );
        }
        section(
            &mut text,
            "[exit code] ",
            &answer.ended.exit_code.to_string(),
        );
        results.push(CommandResult {
            command,
            success: answer.ended.exit_code == 0,
            answer,
        });
    }
    let failed = results.last().filter(|last| !last.success);
    let error = match (outcome.stopped, failed) {
        (Some(e), _) => Some(advice(&e.into())),
        (None, Some(last)) => Some(format!(
            "{:?} failed with exit code {}",
            last.command, last.answer.ended.exit_code
        )),
        (None, None) => None,
    };
    if let Some(error) = &error {
        section(&mut text, "[stopped] ", error);
    }
    let killed = results
        .iter()
        .any(|r| r.answer.ended.timed_out || r.answer.ended.out_of_memory);
    let answer = Executed {
        success: error.is_none(),
        results,
        dependencies,
        error,
    };
    // A status other than 0 is an answer, not a failure of the tool.
    let mut result = success(&answer, vec![ContentBlock::text(text)]);
    result.is_error = Some(killed);
    result
}
