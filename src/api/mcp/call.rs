//! `POST /mcp/tools/{tool}`: a tool of `/mcp` called over plain HTTP, without the protocol: JSON
//! arguments in, the tool's structured result out, refusals with the statuses that the REST routes have.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Json, Router};
use rmcp::ServerHandler as _;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities,
    ClientJsonRpcMessage, ClientRequest, ContentBlock, Implementation, InitializeRequestParams,
    JsonObject, RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::service::serve_directly;
use rmcp::transport::OneshotTransport;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::refusal_of;
use super::tools::Tools;
use crate::api::error::Refusal;
use crate::api::{App, rest};

/// The route, for the tools of one set.
pub(super) fn routes(app: &Arc<App>, tools: Tools) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .method_not_allowed_fallback(rest::wrong_method)
        .with_state((Arc::clone(app), tools))
}

/// The route with its description.
pub(super) fn described() -> OpenApiRouter<(Arc<App>, Tools)> {
    OpenApiRouter::new().routes(routes!(call))
}

/// Call a tool
///
/// What `tools/call` at `/mcp` does, without the protocol. Which tools there are, and what they take
/// and give, `tools/list` at `/mcp` tells.
#[utoipa::path(
    post,
    path = "/mcp/tools/{tool}",
    operation_id = "call_tool",
    tag = "service",
    request_body(content = Object, description = "May be left out. The tool's arguments."),
    responses((status = 200, description = "The tool's structured result.", body = Object)),
    extensions(("x-errors" = json!(["any"]))),
)]
async fn call(
    State((app, tools)): State<(Arc<App>, Tools)>,
    request: Request,
) -> Result<Json<Value>, Refusal> {
    let (head, body) = request.into_parts();
    let name = rest::segment(&head, 3);
    if tools.get_tool(&name).is_none() {
        return Err(Refusal::new(
            axum::http::StatusCode::NOT_FOUND,
            "tool_not_found",
            format!("there is no tool {name:?}; tools/list at /mcp shows which there are"),
        ));
    }
    let arguments: JsonObject = rest::optional(&app, &head.headers, body).await?;
    let params = CallToolRequestParams::new(name).with_arguments(arguments);
    let mut request = CallToolRequest::new(params);
    // Who calls, and by which name of ours.
    request.extensions.insert(head);
    let request = ClientRequest::CallToolRequest(request);
    let request = ClientJsonRpcMessage::request(request, RequestId::Number(1));
    let (transport, mut answers) = OneshotTransport::new(request);
    // Dropped with this future when the client goes away, which interrupts what runs.
    let _running = serve_directly(tools, transport, Some(client()));
    loop {
        match answers.recv().await {
            Some(ServerJsonRpcMessage::Response(response)) => match response.result {
                ServerResult::CallToolResult(result) => return answer(result).map(Json),
                _ => return Err(Refusal::internal()),
            },
            Some(ServerJsonRpcMessage::Error(error)) => {
                tracing::error!(error = %error.error.message, "a tool failed");
                return Err(Refusal::internal());
            }
            Some(_) => {}
            None => return Err(Refusal::internal()),
        }
    }
}

/// What `rmcp` takes for a client.
fn client() -> InitializeRequestParams {
    InitializeRequestParams::new(
        ClientCapabilities::default(),
        Implementation::new("http", env!("CARGO_PKG_VERSION")),
    )
}

/// The structured result, with the images that it has none of over MCP.
fn answer(result: CallToolResult) -> Result<Value, Refusal> {
    if let Some(refusal) = refusal_of(&result) {
        return Err(refusal);
    }
    let Some(Value::Object(mut answer)) = result.structured_content else {
        return Err(Refusal::internal());
    };
    let images: Vec<_> = result.content.iter().filter_map(image).collect();
    if !images.is_empty() || answer.contains_key("image_count") {
        answer.insert("images".to_owned(), images.into());
    }
    Ok(Value::Object(answer))
}

fn image(block: &ContentBlock) -> Option<Value> {
    let image = block.as_image()?;
    Some(json!({ "mime_type": image.mime_type, "data": image.data }))
}
