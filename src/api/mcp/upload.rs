//! The tool that puts a file into a sandbox: its content, or one of the machine of the service.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::{Deserialize, Serialize};

use super::answer::{failure, success};
use super::arguments::Parameters;
use super::schema::{WriteArguments, WriteEncoding};
use super::tools::Tools;
use crate::api::error::Refusal;
use crate::api::wire::download_url;
use crate::supervisor::relative_to_home;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct UploadArguments {
    /// As returned by create_sandbox.
    sandbox_id: String,
    /// Path of a file on the machine that the service runs on. Give either this or content.
    #[serde(default)]
    local_file_path: Option<String>,
    /// The whole content of the file, instead of a local file.
    #[serde(default)]
    content: Option<String>,
    /// How content is encoded: utf-8 (default) or base64, for binary files.
    #[serde(default)]
    encoding: WriteEncoding,
    /// Where it goes, relative to the working directory; a directory when it ends with "/". Of a local
    /// file the working directory and its own name when left out.
    #[serde(default)]
    dest_path: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Uploaded {
    success: bool,
    message: String,
    /// Relative to the working directory.
    file_path: String,
    /// Bytes.
    size: u64,
    /// Where this service serves it.
    url: String,
}

#[tool_router(router = upload_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Upload a file",
        description = "Put a file into a sandbox: either its content, or a file of the machine that \
            the service runs on by its path, where the service's operator listed its directory. \
            Directories are made as needed, and a file of that name is replaced.",
        output_schema = schema_for_output::<Uploaded>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn upload_file_to_sandbox(
        &self,
        Parameters(arguments): Parameters<UploadArguments>,
    ) -> CallToolResult {
        match self.upload(arguments).await {
            Ok(uploaded) => {
                let text = ContentBlock::text(uploaded.message.clone());
                success(&uploaded, vec![text])
            }
            Err(refusal) => failure(&refusal),
        }
    }
}

impl Tools {
    async fn upload(&self, arguments: UploadArguments) -> Result<Uploaded, Refusal> {
        let id = arguments.sandbox_id;
        self.supervisor().info(&id)?;
        let to = arguments.dest_path;
        let (file_path, size) = match (arguments.local_file_path, arguments.content) {
            (Some(from), None) => {
                let to = self.inside(&from, to.as_deref())?;
                let copied = self.supervisor().copy_in(&id, self.local(), &from, &to);
                let copied = copied.await?;
                (copied.path, copied.size)
            }
            (None, Some(content)) => {
                let path = to.as_deref().map(relative_to_home).unwrap_or_default();
                if path.is_empty() || path.ends_with('/') {
                    return Err(Refusal::invalid(
                        "dest_path",
                        "dest_path: must name the file, as content has no name of its own",
                    ));
                }
                let path = path.to_owned();
                let written = self
                    .write(WriteArguments {
                        sandbox_id: id.clone(),
                        path,
                        content,
                        encoding: arguments.encoding,
                    })
                    .await?;
                (written.path, written.size as u64)
            }
            _ => {
                return Err(Refusal::invalid(
                    "local_file_path",
                    "local_file_path: give either this or content",
                ));
            }
        };
        Ok(Uploaded {
            success: true,
            message: format!("Uploaded {size} bytes to {file_path}."),
            url: download_url(&id, &file_path),
            file_path,
            size,
        })
    }
}
