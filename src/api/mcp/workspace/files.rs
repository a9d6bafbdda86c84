//! The fourth seed's tools, at `/mcp/workspace`: files.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::{MESSAGES, refused};
use crate::api::error::Refusal;
use crate::api::mcp::answer::success;
use crate::api::mcp::arguments::Parameters;
use crate::api::mcp::progress::told;
use crate::api::mcp::schema::{ReadArguments, WriteArguments, WriteEncoding};
use crate::api::mcp::tools::{Tools, base_of, interrupted};
use crate::api::wire::download_url;
use crate::supervisor::{HOME, destination, file_name, relative_to_home};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct WriteFileArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// Name of the file, such as "main.py".
    file_name: String,
    /// The whole content of the file.
    file_contents: String,
    /// As returned by sandbox_initialize.
    #[serde(default)]
    workspace_id: Option<String>,
    /// Directory of the workspace for it, relative to the workspace; made when it is missing.
    #[serde(default)]
    dest_dir: Option<String>,
    /// How file_contents is encoded: utf-8 (default) or base64, for binary files.
    #[serde(default)]
    encoding: WriteEncoding,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct CopyFileArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// Path of the file on the machine that the service runs on.
    local_src_file: String,
    /// As returned by sandbox_initialize.
    #[serde(default)]
    workspace_id: Option<String>,
    /// Where it goes, relative to the workspace; its own name when left out.
    #[serde(default)]
    dest_path: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct CopyProjectArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// Path of the directory on the machine that the service runs on. Its content is copied.
    local_src_dir: String,
    /// As returned by sandbox_initialize.
    #[serde(default)]
    workspace_id: Option<String>,
    /// Directory for it, relative to the workspace; the workspace itself when left out.
    #[serde(default)]
    dest_dir: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct FetchArguments {
    /// As returned by sandbox_initialize.
    container_id: String,
    /// Path of the file in the workspace.
    container_src_path: String,
    /// As returned by sandbox_initialize.
    #[serde(default)]
    workspace_id: Option<String>,
    /// Path for the copy on the machine that the service runs on. Without it the content is in the
    /// answer.
    #[serde(default)]
    local_dest_path: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Written {
    success: bool,
    /// Absolute path in the workspace.
    file_path: String,
    /// Bytes.
    file_size: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ProjectCopied {
    success: bool,
    /// Absolute path in the workspace.
    dest_dir: String,
    /// Files that were copied.
    files: usize,
    /// Bytes of all of them.
    bytes: u64,
    /// What was left out, the first of it: version control, virtual environments, caches, links.
    skipped: Vec<String>,
    /// How much was.
    skipped_count: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Fetched {
    success: bool,
    /// Where the copy is, as it was asked for; null where none was.
    local_path: Option<String>,
    /// Bytes.
    file_size: u64,
    /// `utf-8`, `base64`, or `image` when the content is the image beside this; null for a copy.
    encoding: Option<&'static str>,
    /// The content, where no copy was asked for; null for images.
    content: Option<String>,
    /// Where this service serves the file.
    url: String,
}

#[tool_router(router = workspace_file_router, vis = "pub(in crate::api::mcp)")]
impl Tools {
    #[tool(
        title = "Write a file",
        description = "Create a file in a workspace, or replace it, with the given content. \
            Directories are made as needed.",
        output_schema = schema_for_output::<Written>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn write_file_sandbox(
        &self,
        Parameters(arguments): Parameters<WriteFileArguments>,
    ) -> CallToolResult {
        let write = async {
            let workspace = arguments.workspace_id.as_deref();
            let id = self.workspace_of(&arguments.container_id, workspace)?;
            let path = destination(arguments.dest_dir.as_deref(), &arguments.file_name);
            let written = self
                .write(WriteArguments {
                    sandbox_id: id,
                    path,
                    content: arguments.file_contents,
                    encoding: arguments.encoding,
                })
                .await?;
            Ok(Written::new(&written.path, written.size as u64))
        };
        written(write.await)
    }

    #[tool(
        title = "Copy a local file into a workspace",
        description = "Copy one file from the machine that the service runs on into a workspace. The \
            service's operator lists the directories that may be read; the error of a refusal names \
            them. Content that you have as text is written with write_file_sandbox instead.",
        output_schema = schema_for_output::<Written>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn copy_file(
        &self,
        Parameters(arguments): Parameters<CopyFileArguments>,
    ) -> CallToolResult {
        let copy = async {
            let workspace = arguments.workspace_id.as_deref();
            let id = self.workspace_of(&arguments.container_id, workspace)?;
            let from = &arguments.local_src_file;
            let to = self.inside(from, arguments.dest_path.as_deref())?;
            let copied = self.supervisor().copy_in(&id, self.local(), from, &to);
            let copied = copied.await?;
            Ok(Written::new(&copied.path, copied.size))
        };
        written(copy.await)
    }

    #[tool(
        title = "Copy a local directory into a workspace",
        description = "Copy the content of a directory from the machine that the service runs on into \
            a workspace, with its subdirectories. Version control (.git), virtual environments, \
            node_modules, caches and links are left out. The service's operator lists the \
            directories that may be read; the error of a refusal names them.",
        output_schema = schema_for_output::<ProjectCopied>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn copy_project(
        &self,
        Parameters(arguments): Parameters<CopyProjectArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let copy = async {
            let workspace = arguments.workspace_id.as_deref();
            let id = self.workspace_of(&arguments.container_id, workspace)?;
            let from = &arguments.local_src_dir;
            let into = relative_to_home(arguments.dest_dir.as_deref().unwrap_or_default());
            let (tell, words) = mpsc::channel(MESSAGES);
            let copy = (self.supervisor()).copy_project(&id, self.local(), from, into, &tell);
            Ok::<_, Refusal>(told(&context, words, copy).await?)
        };
        let copied = tokio::select! {
            () = context.ct.cancelled() => return interrupted(),
            copied = copy => copied,
        };
        match copied {
            Ok(copied) => {
                let answer = ProjectCopied {
                    success: true,
                    dest_dir: absolute(&copied.path),
                    files: copied.files,
                    bytes: copied.bytes,
                    skipped: copied.skipped,
                    skipped_count: copied.skipped_count,
                };
                let mut text = format!(
                    "Copied {} files ({} bytes) to {}.",
                    answer.files, answer.bytes, answer.dest_dir
                );
                if answer.skipped_count > 0 {
                    let skipped = answer.skipped.join(", ");
                    text.push_str(&format!(" Left out {}: {skipped}", answer.skipped_count));
                }
                success(&answer, vec![ContentBlock::text(text)])
            }
            Err(refusal) => refused(&refusal),
        }
    }

    #[tool(
        title = "Fetch a file of a workspace",
        description = "Fetch one file of a workspace. With local_dest_path it is copied to the \
            machine that the service runs on, into a directory that the service's operator lists. \
            Without it the content is in the answer: text as text, PNG, JPEG, GIF and WebP as an \
            image, anything else as base64, up to 1 MiB (images: 5 MiB).",
        output_schema = schema_for_output::<Fetched>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn copy_file_from_sandbox(
        &self,
        Parameters(arguments): Parameters<FetchArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        match self.fetch(arguments, &context).await {
            Ok((answer, content)) => success(&answer, vec![content]),
            Err(refusal) => refused(&refusal),
        }
    }
}

impl Tools {
    async fn fetch(
        &self,
        arguments: FetchArguments,
        context: &RequestContext<RoleServer>,
    ) -> Result<(Fetched, ContentBlock), Refusal> {
        let workspace = arguments.workspace_id.as_deref();
        let id = self.workspace_of(&arguments.container_id, workspace)?;
        let path = relative_to_home(&arguments.container_src_path).to_owned();
        let base = base_of(context).unwrap_or_default();
        let url = format!("{base}{}", download_url(&id, &path));
        let local = arguments.local_dest_path.filter(|path| !path.is_empty());
        if let Some(to) = local {
            let copied = self.supervisor().copy_out(&id, &path, self.local(), &to);
            let copied = copied.await?;
            let text = format!("Copied {path} ({} bytes) to {to}.", copied.size);
            let answer = Fetched {
                success: true,
                local_path: Some(copied.path),
                file_size: copied.size,
                encoding: None,
                content: None,
                url,
            };
            return Ok((answer, ContentBlock::text(text)));
        }
        let sandbox_id = id;
        let (read, content) = self.read(ReadArguments { sandbox_id, path }).await?;
        let answer = Fetched {
            success: true,
            local_path: None,
            file_size: read.size,
            encoding: Some(read.encoding),
            content: read.content,
            url,
        };
        Ok((answer, content))
    }

    /// Where a local file goes in a sandbox: `to`, into `to` where that is a directory by its form, or
    /// under its own name.
    pub(in crate::api::mcp) fn inside(
        &self,
        from: &str,
        to: Option<&str>,
    ) -> Result<String, Refusal> {
        let to = to.unwrap_or_default();
        let path = relative_to_home(to);
        if path.is_empty() || path.ends_with('/') {
            return Ok(destination(Some(path), file_name(from)?));
        }
        Ok(path.to_owned())
    }
}

impl Written {
    fn new(path: &str, file_size: u64) -> Self {
        Self {
            success: true,
            file_path: absolute(path),
            file_size,
        }
    }
}

fn written(done: Result<Written, Refusal>) -> CallToolResult {
    match done {
        Ok(written) => {
            let text = format!(
                "Wrote {} bytes to {}.",
                written.file_size, written.file_path
            );
            success(&written, vec![ContentBlock::text(text)])
        }
        Err(refusal) => refused(&refusal),
    }
}

/// A path of the workspace, as programs in it see it.
fn absolute(path: &str) -> String {
    match path {
        "" => HOME.to_owned(),
        path => format!("{HOME}/{path}"),
    }
}
