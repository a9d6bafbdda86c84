//! The tools for mirrors: sets of packages that sandboxes are created with.

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};

use super::answer::{failure, success};
use super::arguments::Parameters;
use super::progress::Progress;
use super::schema::{Closed, DeleteMirrorArguments, Mirrors, NoArguments};
use super::tools::{Tools, answered};
use crate::api::whole;
use crate::api::wire::{MirrorAnswer, MirrorRequest};
use crate::supervisor::MirrorSpec;

#[tool_router(router = mirror_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Make a set of packages for sandboxes",
        description = "Make a mirror: the standard packages and the ones named, installed once and \
            shared by every sandbox that create_sandbox makes with it, without installing anything \
            again. Modules in preload are imported ahead, so that importing them takes no time. \
            Asked again for the same packages it answers at once. Worth it when several sandboxes \
            need the same packages.",
        output_schema = schema_for_output::<MirrorAnswer>(),
        annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = true)
    )]
    async fn create_mirror(
        &self,
        Parameters(request): Parameters<MirrorRequest>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let spec = match MirrorSpec::try_from(request) {
            Ok(spec) => spec,
            Err(refusal) => return failure(&refusal),
        };
        let create = self.supervisor().create_mirror(spec);
        let created = Progress::of(&context)
            .during("making the mirror", create)
            .await;
        answered(created, |info| {
            let mirror = MirrorAnswer::from(info);
            let text = ContentBlock::text(told(&mirror));
            success(&mirror, vec![text])
        })
    }

    #[tool(
        title = "List sets of packages",
        description = "List the mirrors that create_sandbox takes, with their ids, names, added \
            packages and states.",
        output_schema = schema_for_output::<Mirrors>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn list_mirrors(&self, _: Parameters<NoArguments>) -> CallToolResult {
        let mirrors = self.supervisor().mirrors().into_iter();
        let mirrors: Vec<_> = mirrors.map(MirrorAnswer::from).collect();
        let lines: Vec<String> = mirrors.iter().map(told).collect();
        let text = ContentBlock::text(lines.join("\n"));
        success(&Mirrors { mirrors }, vec![text])
    }

    #[tool(
        title = "Delete a set of packages",
        description = "Delete a mirror of create_mirror. Not possible while sandboxes use it.",
        output_schema = schema_for_output::<Closed>(),
        annotations(destructive_hint = true, idempotent_hint = true, open_world_hint = false)
    )]
    async fn delete_mirror(
        &self,
        Parameters(arguments): Parameters<DeleteMirrorArguments>,
    ) -> CallToolResult {
        let deleted = whole::delete_mirror(self.supervisor(), &arguments.mirror).await;
        answered(deleted, |()| {
            let deleted = Closed {
                status: "success",
                message: "Mirror deleted",
            };
            success(&deleted, vec![ContentBlock::text(deleted.message)])
        })
    }
}

fn told(mirror: &MirrorAnswer) -> String {
    let (id, name, status) = (&mirror.mirror_id, &mirror.name, mirror.status);
    match &mirror.detail {
        Some(detail) => format!("{id} {name:?} ({status}): {detail}"),
        None => format!("{id} {name:?} ({status})"),
    }
}
