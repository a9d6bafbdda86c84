//! The tools for packages.

use std::time::Duration;

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};

use super::answer::success;
use super::arguments::Parameters;
use super::progress::Progress;
use super::schema::{InstallArguments, PackageArguments, Packages};
use super::tools::{Tools, answered};
use crate::api::wire::{InstallAnswer, PackageAnswer};
use crate::supervisor::InstallSpec;

/// Seconds that a call waits where it does not say: within the patience of the clients that there are.
const WAIT_SECONDS: u64 = 50;
/// Most that a call may wait.
const MAX_WAIT_SECONDS: u64 = 600;

#[tool_router(router = package_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Install packages",
        description = "Install Python packages from the package index into a sandbox; it works also \
            where the sandbox itself has no network. They can be imported at once, without a \
            restart. Only wheels are installed, nothing is built from source. When it takes longer \
            than wait_seconds the status is \"installing\": ask \
            check_packages_installation_status until it is \"installed\", \"failed\" or \
            \"not_found\".",
        output_schema = schema_for_output::<InstallAnswer>(),
        annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = true)
    )]
    async fn install_packages_in_sandbox(
        &self,
        Parameters(arguments): Parameters<InstallArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let wait = arguments.wait_seconds.unwrap_or(WAIT_SECONDS);
        let spec = InstallSpec {
            packages: arguments.package_names,
            requirements_file: arguments.requirements_file,
            upgrade: arguments.upgrade,
            wait: Duration::from_secs(wait.min(MAX_WAIT_SECONDS)),
        };
        let install = self.supervisor().install(&arguments.sandbox_id, spec);
        let installed = Progress::of(&context).during("installing", install).await;
        answered(installed, |info| {
            let answer = InstallAnswer::from(info);
            let failed = answer.complete && !answer.success;
            let text = ContentBlock::text(answer.message.clone());
            let mut result = success(&answer, vec![text]);
            result.is_error = Some(failed);
            result
        })
    }

    #[tool(
        title = "Check packages",
        description = "Tell for each package whether it is installed in a sandbox (and which \
            version), still being installed, failed (and why), not in the index, or not installed.",
        output_schema = schema_for_output::<Packages>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn check_packages_installation_status(
        &self,
        Parameters(arguments): Parameters<PackageArguments>,
    ) -> CallToolResult {
        let (id, names) = (&arguments.sandbox_id, &arguments.package_names);
        answered(self.supervisor().packages(id, names).await, |told| {
            let packages: Vec<_> = told.into_iter().map(PackageAnswer::from).collect();
            let lines: Vec<String> = packages.iter().map(line).collect();
            let text = ContentBlock::text(lines.join("\n"));
            success(&Packages { packages }, vec![text])
        })
    }
}

fn line(package: &PackageAnswer) -> String {
    let more = package.version.as_ref().or(package.message.as_ref());
    let more = more.map(|more| format!(" ({more})")).unwrap_or_default();
    format!("{}: {}{more}", package.name, package.status)
}
