//! The tools: arguments in, one call of the supervisor, an answer out. Their descriptions are all
//! that a model knows of the service.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};

use super::answer::{self, PythonAnswer, failure, success};
use super::arguments::Parameters;
use super::progress::Progress;
use super::schema::{
    Closed, CommandArguments, CreateArguments, ExecuteArguments, Files, NoArguments, ReadAnswer,
    ReadArguments, Sandbox, SandboxArguments, Sandboxes, WriteArguments, WriteEncoding, Written,
};
use super::sets::ToolSet;
use crate::api::download::{mime_of, read_all};
use crate::api::error::Refusal;
use crate::api::outcome::Gathered;
use crate::api::rest::execution_lost;
use crate::api::wire::{CommandAnswer, Created, File, seconds};
use crate::api::{App, whole};
use crate::supervisor::{
    CommandEvent, CommandOutcome, CommandSpec, CreateSpec, ExecuteSpec, Execution, LocalDirs,
    Supervisor,
};

/// Bytes of a file that `read_file` gives as text or base64: what a model can take in at once.
const READ_TEXT_BYTES: u64 = 1024 * 1024;
/// Bytes of an image that `read_file` gives; interfaces of models take about 5 MiB.
const READ_IMAGE_BYTES: u64 = 5 * 1024 * 1024;

/// The MCP server's state: none of its own. One type has the tools of every set, as methods; a set
/// says which of them a client sees.
#[derive(Clone)]
pub(crate) struct Tools {
    app: Arc<App>,
    pub(super) set: Arc<ToolSet>,
    local: LocalDirs,
}

#[tool_router(vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Create a Python sandbox",
        description = "Create an isolated Python sandbox and return its sandbox_id, which every \
            other tool needs. Create one per task and reuse it: variables, imports and files last \
            between calls. It is closed by close_sandbox or when it expires.",
        output_schema = schema_for_output::<Created>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn create_sandbox(
        &self,
        Parameters(arguments): Parameters<CreateArguments>,
    ) -> CallToolResult {
        let spec = CreateSpec {
            name: arguments.name,
            mirror: arguments.mirror,
            ..CreateSpec::default()
        };
        answered(whole::create(&self.app.supervisor, spec).await, |info| {
            let text = format!("Created sandbox {}.", info.id);
            success(&Created::from(info), vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "List sandboxes",
        description = "List the live sandboxes, oldest first, with their ids, names, states and \
            the times at which they expire.",
        output_schema = schema_for_output::<Sandboxes>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_sandboxes(&self, _: Parameters<NoArguments>) -> CallToolResult {
        let list = self.app.supervisor.list();
        let lines: Vec<String> = list
            .iter()
            .map(|info| format!("{} {:?} ({})", info.id, info.name, info.state.as_str()))
            .collect();
        let text = match lines.len() {
            0 => "There are no sandboxes.".to_owned(),
            _ => lines.join("\n"),
        };
        let sandboxes = list.into_iter().map(Sandbox::from).collect();
        success(&Sandboxes { sandboxes }, vec![ContentBlock::text(text)])
    }

    #[tool(
        title = "Close a sandbox",
        description = "Close a sandbox for good: its processes, variables and files are gone. \
            Fetch the files you need first.",
        output_schema = schema_for_output::<Closed>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn close_sandbox(
        &self,
        Parameters(arguments): Parameters<SandboxArguments>,
    ) -> CallToolResult {
        answered(
            whole::close(&self.app.supervisor, &arguments.sandbox_id).await,
            |()| {
                let closed = Closed {
                    status: "success",
                    message: "Sandbox closed",
                };
                success(&closed, vec![ContentBlock::text(closed.message)])
            },
        )
    }

    #[tool(
        title = "Run Python",
        description = "Run Python code in a sandbox, like a notebook cell: variables of earlier \
            calls are there, the value of the last expression is shown, matplotlib figures come \
            back as images without being saved. An exception is reported with its traceback and \
            keeps the variables. Files are relative to the working directory and can be read with \
            read_file. input() is not available, nor is the network unless the operator allowed it.",
        output_schema = schema_for_output::<PythonAnswer>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn execute_python_code(
        &self,
        Parameters(arguments): Parameters<ExecuteArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let base = base_of(&context);
        let id = arguments.sandbox_id.clone();
        let cancelled = context.ct.clone();
        tokio::select! {
            // Dropping the other branch drops the execution, which interrupts the code.
            () = cancelled.cancelled() => interrupted(),
            outcome = self.run(arguments, &context) => match outcome {
                Ok(outcome) => answer::python(outcome, &id, base.as_deref()),
                Err(refusal) => failure(&refusal),
            },
        }
    }

    #[tool(
        title = "Run a shell command",
        description = "Run a command line with bash in a sandbox's working directory and return \
            its output and exit code. It sees the same files as the Python code but not its \
            variables. Its standard input is empty; the network is not available. What should go on \
            running while you do something else, start with start_process.",
        output_schema = schema_for_output::<CommandAnswer>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn execute_terminal_command(
        &self,
        Parameters(arguments): Parameters<CommandArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let spec = match seconds(arguments.timeout_seconds) {
            Ok(timeout) => CommandSpec {
                command: arguments.command,
                timeout,
                output_bytes: Some(self.app.supervisor.config().limits.mcp_output_bytes),
                ..CommandSpec::default()
            },
            Err(refusal) => return failure(&refusal),
        };
        tokio::select! {
            () = context.ct.cancelled() => interrupted(),
            outcome = self.command(&arguments.sandbox_id, spec, Progress::of(&context)) => {
                answered(outcome, |outcome| answer::command(&outcome.into()))
            }
        }
    }

    #[tool(
        title = "List files",
        description = "List all files of a sandbox's working directory, recursively, with their \
            sizes.",
        output_schema = schema_for_output::<Files>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_files(
        &self,
        Parameters(arguments): Parameters<SandboxArguments>,
    ) -> CallToolResult {
        let id = &arguments.sandbox_id;
        answered(self.app.supervisor.list_files(id).await, |entries| {
            let lines: Vec<String> = entries
                .iter()
                .map(|entry| format!("{} ({} bytes)", entry.path, entry.size))
                .collect();
            let text = match lines.len() {
                0 => "The working directory is empty.".to_owned(),
                _ => lines.join("\n"),
            };
            let files = entries
                .into_iter()
                .map(|entry| File::new(id, entry))
                .collect();
            success(&Files { files }, vec![ContentBlock::text(text)])
        })
    }

    #[tool(
        title = "Read a file",
        description = "Read one file of a sandbox: text as text, PNG, JPEG, GIF and WebP as an \
            image, anything else as base64. Larger files than 1 MiB (images: 5 MiB) are refused: \
            read parts of those with execute_python_code.",
        output_schema = schema_for_output::<ReadAnswer>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn read_file(&self, Parameters(arguments): Parameters<ReadArguments>) -> CallToolResult {
        match self.read(arguments).await {
            Ok((answer, content)) => success(&answer, vec![content]),
            Err(refusal) => failure(&refusal),
        }
    }

    #[tool(
        title = "Write a file",
        description = "Create a file in a sandbox, or replace it, with the given content. \
            Directories are made as needed.",
        output_schema = schema_for_output::<Written>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn write_file(
        &self,
        Parameters(arguments): Parameters<WriteArguments>,
    ) -> CallToolResult {
        match self.write(arguments).await {
            Ok(written) => {
                let text = format!("Wrote {} bytes to {}.", written.size, written.path);
                success(&written, vec![ContentBlock::text(text)])
            }
            Err(refusal) => failure(&refusal),
        }
    }
}

impl Tools {
    pub(super) fn new(app: Arc<App>, set: ToolSet) -> Self {
        let set = Arc::new(set);
        let dirs = app.supervisor.config().mcp.local_dirs.clone();
        let local = LocalDirs::new(dirs);
        Self { app, set, local }
    }

    /// Where local paths may lie.
    pub(super) fn local(&self) -> &LocalDirs {
        &self.local
    }

    /// The tools as whoever sent the call sees the service. What does not come by HTTP sees what the
    /// server of that transport was made with.
    pub(super) fn seen_by(&self, context: &RequestContext<RoleServer>) -> Result<Self, Refusal> {
        let Some(head) = context.extensions.get::<Parts>() else {
            return Ok(self.clone());
        };
        Ok(Self {
            app: self.app.seen_by(&head.extensions)?,
            ..self.clone()
        })
    }

    pub(super) fn supervisor(&self) -> &Supervisor {
        &self.app.supervisor
    }

    pub(super) async fn run(
        &self,
        arguments: ExecuteArguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<crate::api::outcome::Outcome, Refusal> {
        let spec = ExecuteSpec {
            code: arguments.code,
            context_id: arguments.context_id,
            timeout: seconds(arguments.timeout_seconds)?,
            stdin: arguments.stdin,
            restore: arguments.restore.unwrap_or_default(),
            output_bytes: Some(self.app.supervisor.config().limits.mcp_output_bytes),
            ..ExecuteSpec::default()
        };
        let id = &arguments.sandbox_id;
        let mut execution: Execution = self.app.supervisor.execute(id, spec).await?;
        let mut progress = Progress::of(context);
        let mut gathered = Gathered::default();
        while let Some(event) = execution.next().await {
            progress.tell(&event).await;
            if let Some(outcome) = gathered.take(id, event) {
                return Ok(outcome);
            }
        }
        Err(execution_lost())
    }

    async fn command(
        &self,
        id: &str,
        spec: CommandSpec,
        mut progress: Progress<'_>,
    ) -> Result<CommandOutcome, crate::supervisor::Error> {
        let mut running = self.app.supervisor.command(id, spec).await?;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        while let Some(event) = running.next().await? {
            progress.tell_command(&event).await;
            match event {
                CommandEvent::Started { .. } => {}
                CommandEvent::Stdout(text) => stdout.push_str(&text),
                CommandEvent::Stderr(text) => stderr.push_str(&text),
                CommandEvent::Ended(ended) => {
                    return Ok(CommandOutcome {
                        stdout,
                        stderr,
                        ended,
                    });
                }
            }
        }
        // The last event is the end, or an error.
        running.finish().await
    }

    /// A file's content for a model, and the same as content of an answer.
    pub(super) async fn read(
        &self,
        arguments: ReadArguments,
    ) -> Result<(ReadAnswer, ContentBlock), Refusal> {
        let ReadArguments { sandbox_id, path } = arguments;
        let opened = self.app.supervisor.open_file(&sandbox_id, &path).await?;
        let size = opened.size;
        let named_image = mime_of(&path).starts_with("image/");
        let limit = if named_image {
            READ_IMAGE_BYTES
        } else {
            READ_TEXT_BYTES
        };
        if size > limit {
            return Err(Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "file_too_large",
                format!(
                    "{path} has {size} bytes and at most {limit} are given at once; \
                     read a part of it with code"
                ),
            ));
        }
        let bytes = read_all(opened, limit).await.map_err(|error| {
            tracing::debug!(%error, "a file could not be read to its end");
            Refusal::new(
                StatusCode::CONFLICT,
                "file_changed",
                "the file changed while it was read",
            )
        })?;
        let image_type = answer::image_type(&bytes);
        let mut answer = ReadAnswer {
            mime_type: image_type.unwrap_or(mime_of(&path)),
            path,
            size,
            encoding: "image",
            content: None,
        };
        if let Some(image_type) = image_type {
            let image = ContentBlock::image(BASE64.encode(bytes), image_type);
            return Ok((answer, image));
        }
        let (encoding, content) = match String::from_utf8(bytes) {
            Ok(text) => ("utf-8", text),
            Err(error) => ("base64", BASE64.encode(error.as_bytes())),
        };
        answer.encoding = encoding;
        answer.content = Some(content.clone());
        Ok((answer, ContentBlock::text(content)))
    }

    pub(super) async fn write(&self, arguments: WriteArguments) -> Result<Written, Refusal> {
        let bytes = match arguments.encoding {
            WriteEncoding::Utf8 => arguments.content.into_bytes(),
            WriteEncoding::Base64 => BASE64.decode(arguments.content.trim()).map_err(|error| {
                Refusal::invalid("content", format!("content: not valid base64: {error}"))
            })?,
        };
        let (id, path) = (&arguments.sandbox_id, &arguments.path);
        let mut upload = self.app.supervisor.create_file(id, path).await?;
        upload.write(&bytes).await?;
        let path = upload.finish().await?;
        Ok(Written {
            path,
            size: bytes.len(),
        })
    }
}

pub(super) fn answered<T>(
    result: Result<T, crate::supervisor::Error>,
    answer: impl FnOnce(T) -> CallToolResult,
) -> CallToolResult {
    match result {
        Ok(value) => answer(value),
        Err(error) => failure(&error.into()),
    }
}

/// Nobody waits for this answer any more.
pub(super) fn interrupted() -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text("The call was cancelled.")])
}

/// Where the client reaches this service, to build links. Over other transports there is no HTTP.
pub(super) fn base_of(context: &RequestContext<RoleServer>) -> Option<String> {
    let head = context.extensions.get::<Parts>()?;
    let host = head.headers.get(header::HOST)?.to_str().ok()?;
    Some(format!("http://{host}"))
}
