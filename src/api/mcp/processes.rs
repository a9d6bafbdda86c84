//! The tools for background processes.

use std::time::Duration;

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::{tool, tool_router};

use super::answer::{self, failure, success};
use super::arguments::Parameters;
use super::schema::{
    Closed, ProcessOutputArguments, ProcessStdinArguments, Processes, SandboxArguments,
    SignalProcessArguments, StartProcessArguments,
};
use super::tools::{Tools, answered};
use crate::api::error::Refusal;
use crate::api::whole;
use crate::api::wire::{OutputAnswer, ProcessAnswer, seconds};
use crate::supervisor::{ProcessSpec, WindowSize};

/// Bytes of output in an answer: what a model can take in at once.
const OUTPUT_BYTES: usize = 48 * 1024;
/// Terminal of a process that asks for one: a common size, wide enough for tables.
const WINDOW: WindowSize = WindowSize {
    columns: 120,
    rows: 40,
};

#[tool_router(router = process_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Start a background process",
        description = "Start a bash command line in a sandbox in the background and return its \
            process_id at once, while it goes on running: for servers, watchers, long jobs and \
            interactive programs. Read what it prints with read_process_output, type into it with \
            write_process_stdin, stop it with signal_process. It ends by itself, when it is stopped \
            or when the sandbox closes. For a command whose result you need now, use \
            execute_terminal_command.",
        output_schema = schema_for_output::<ProcessAnswer>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn start_process(
        &self,
        Parameters(arguments): Parameters<StartProcessArguments>,
    ) -> CallToolResult {
        let timeout = match seconds(arguments.timeout_seconds) {
            Ok(timeout) => timeout,
            Err(refusal) => return failure(&refusal),
        };
        let spec = ProcessSpec {
            command: Some(arguments.command),
            cwd: arguments.cwd,
            terminal: arguments.terminal.then_some(WINDOW),
            timeout,
            ..ProcessSpec::default()
        };
        let started = whole::start_process(self.supervisor(), &arguments.sandbox_id, spec).await;
        answered(started, |info| {
            let text = format!("Started process {}.", info.id);
            success(&ProcessAnswer::from(info), vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "List background processes",
        description = "List the background processes of a sandbox, oldest first: their ids, command \
            lines, whether they run and with what exit code those ended that do not.",
        output_schema = schema_for_output::<Processes>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_processes(
        &self,
        Parameters(arguments): Parameters<SandboxArguments>,
    ) -> CallToolResult {
        answered(self.supervisor().processes(&arguments.sandbox_id), |list| {
            let processes: Vec<_> = list.into_iter().map(ProcessAnswer::from).collect();
            let lines: Vec<String> = processes.iter().map(answer::process_line).collect();
            let text = match lines.len() {
                0 => "There are no background processes.".to_owned(),
                _ => lines.join("\n"),
            };
            success(&Processes { processes }, vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "Read a process's output",
        description = "Read what a background process has printed since a byte offset, and whether \
            it still runs. Start at offset 0 and pass the next_offset of each answer to the next \
            call; wait_seconds waits that long for output when there is none yet. Only the last \
            mebibyte is kept: lost_bytes tells how much of the start is gone.",
        output_schema = schema_for_output::<OutputAnswer>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn read_process_output(
        &self,
        Parameters(arguments): Parameters<ProcessOutputArguments>,
    ) -> CallToolResult {
        let wait = Duration::try_from_secs_f64(arguments.wait_seconds.unwrap_or(0.0));
        let Ok(wait) = wait else {
            let detail = "wait_seconds: must be a number, 0 or more";
            return failure(&Refusal::invalid("wait_seconds", detail));
        };
        let (id, process_id) = (&arguments.sandbox_id, &arguments.process_id);
        let read = async {
            let process = self.supervisor().process(id, process_id)?;
            let offset = arguments.offset.unwrap_or(0);
            process.output(offset, OUTPUT_BYTES, wait).await
        };
        answered(read.await, |output| answer::process_output(&output.into()))
    }

    #[tool(
        title = "Type into a process",
        description = "Write text to the standard input of a background process. End lines with a \
            newline: programs that read lines wait for it. On a terminal, control characters work \
            as keys do: \\u0003 is Ctrl-C, \\u0004 Ctrl-D. With close the input ends after the \
            text, which is what programs like sort and cat wait for.",
        output_schema = schema_for_output::<Closed>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn write_process_stdin(
        &self,
        Parameters(arguments): Parameters<ProcessStdinArguments>,
    ) -> CallToolResult {
        let (id, process_id) = (&arguments.sandbox_id, &arguments.process_id);
        let write = async {
            let process = self.supervisor().process(id, process_id)?;
            process
                .write(arguments.text.as_bytes(), arguments.close)
                .await
        };
        answered(write.await, |()| done("Text written"))
    }

    #[tool(
        title = "Stop or signal a process",
        description = "Send a signal to a background process: SIGINT as Ctrl-C would, SIGTERM to ask \
            it to end, SIGKILL to end it and everything it started at once. Does not wait for the \
            end; read_process_output tells when it has ended.",
        output_schema = schema_for_output::<Closed>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn signal_process(
        &self,
        Parameters(arguments): Parameters<SignalProcessArguments>,
    ) -> CallToolResult {
        let (id, process_id) = (&arguments.sandbox_id, &arguments.process_id);
        let signal = async {
            let process = self.supervisor().process(id, process_id)?;
            process.signal(&arguments.signal).await
        };
        answered(signal.await, |()| done("Signal sent"))
    }
}

fn done(message: &'static str) -> CallToolResult {
    let done = Closed {
        status: "success",
        message,
    };
    success(&done, vec![ContentBlock::text(message)])
}
