//! What `rmcp` asks the server for: tools, resources and prompts, as whoever calls sees them.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, GetPromptRequestParams, GetPromptResponse,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool_handler};

use super::answer::failure;
use super::tools::Tools;
use super::{arguments, resources};
use crate::api::error::Refusal;

#[tool_handler(router = self.set.router)]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("sandcell", env!("CARGO_PKG_VERSION")).with_title("sandcell"),
            )
            .with_instructions(self.set.instructions)
    }

    /// A panic must be an answer: `rmcp` would let the client wait for ever.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tools = self.seen_by(&context).map_err(|refusal| told(&refusal))?;
        let call = ToolCallContext::new(&tools, request, context);
        let call = tools.set.router.call(call);
        let answered = AssertUnwindSafe(call).catch_unwind().await;
        if let Ok(Err(error)) = &answered
            && let Some(refusal) = arguments::refused(error)
        {
            return Ok(failure(&refusal).into());
        }
        answered.unwrap_or_else(|_| {
            tracing::error!("a tool panicked");
            Err(told(&Refusal::internal()))
        })
    }
    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let tools = self.seen_by(&context).map_err(|refusal| told(&refusal))?;
        let cursor = request.and_then(|request| request.cursor);
        resources::list(tools.supervisor(), cursor.as_deref()).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = vec![resources::template()];
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let tools = self.seen_by(&context).map_err(|refusal| told(&refusal))?;
        let contents = resources::read(tools.supervisor(), &request.uri).await?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = vec![self.set.how_to.prompt()];
        Ok(ListPromptsResult::with_all_items(prompts))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.set.how_to.get(&request).map(Into::into)
    }
}

/// What cannot be told in an answer.
fn told(refusal: &Refusal) -> ErrorData {
    ErrorData::internal_error(refusal.detail().to_owned(), None)
}
