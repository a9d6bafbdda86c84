//! Packages.

use std::time::Duration;

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::{tool, tool_router};
use serde::{Deserialize, Serialize};

use super::refused;
use crate::api::mcp::answer::success;
use crate::api::mcp::arguments::Parameters;
use crate::api::mcp::tools::Tools;
use crate::supervisor::{InstallSpec, PackageInfo, PackageStatus};

/// How long an installation is waited for before it is told to go on.
const INSTALL_WAIT: Duration = Duration::from_secs(5);
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct PackageArguments {
    /// As returned by create_python_env.
    container_id: String,
    /// Name of the package in the package index, such as "polars", with a version where wanted:
    /// "polars>=1".
    package_name: String,
}

/// How a package stands.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Installation {
    /// "installing", "success", "failed", or "not_found" (nobody installed it, or the index does not
    /// have it).
    status: &'static str,
    /// Whether it can be imported; null while it is being installed.
    success: Option<bool>,
    /// Whether nothing more will happen.
    complete: bool,
    /// What happened, in a sentence.
    message: String,
}

#[tool_router(router = env_package_router, vis = "pub(in crate::api::mcp)")]
impl Tools {
    #[tool(
        title = "Install a package",
        description = "Install a Python package from the package index into an environment; it \
            works also where the environment itself has no network. Answers after 5 seconds at \
            most: with status \"installing\" the installation goes on, and check_package_status \
            tells when it is complete. Only wheels are installed, nothing is built from source.",
        output_schema = schema_for_output::<Installation>(),
        annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = true)
    )]
    async fn install_package_in_env(
        &self,
        Parameters(arguments): Parameters<PackageArguments>,
    ) -> CallToolResult {
        let spec = InstallSpec {
            packages: packages(&arguments.package_name),
            requirements_file: None,
            upgrade: false,
            wait: INSTALL_WAIT,
        };
        let id = &arguments.container_id;
        match self.supervisor().install(id, spec).await {
            Ok(info) => Installation::new(info.status, info.message).into(),
            Err(e) => refused(&e.into()),
        }
    }

    #[tool(
        title = "Check a package",
        description = "Tell whether a package is installed in an environment: \"success\", still \
            \"installing\" (ask again in a few seconds), \"failed\" with the reason, or \
            \"not_found\".",
        output_schema = schema_for_output::<Installation>(),
        annotations(read_only_hint = true, open_world_hint = false)
    )]
    async fn check_package_status(
        &self,
        Parameters(arguments): Parameters<PackageArguments>,
    ) -> CallToolResult {
        let names = packages(&arguments.package_name);
        let names: Vec<String> = names.iter().map(|name| project_of(name)).collect();
        match self
            .supervisor()
            .packages(&arguments.container_id, &names)
            .await
        {
            Ok(told) => {
                let mut answer = CallToolResult::from(Installation::of(told));
                // That it is not there is what was asked, not a failure to tell.
                answer.is_error = Some(false);
                answer
            }
            Err(e) => refused(&e.into()),
        }
    }
}

impl Installation {
    fn new(status: PackageStatus, message: String) -> Self {
        let (status, success) = match status {
            PackageStatus::Installing => ("installing", None),
            PackageStatus::Installed => ("success", Some(true)),
            PackageStatus::Failed => ("failed", Some(false)),
            PackageStatus::NotFound | PackageStatus::NotInstalled => ("not_found", Some(false)),
        };
        let message = match status {
            "installing" => format!("{message} with check_package_status"),
            _ => message,
        };
        Self {
            status,
            success,
            complete: success.is_some(),
            message,
        }
    }

    /// Of packages together: as the one that is furthest from being there.
    fn of(told: Vec<PackageInfo>) -> Self {
        let rank = |package: &PackageInfo| match package.status {
            PackageStatus::Installing => 0,
            PackageStatus::Failed => 1,
            PackageStatus::NotFound | PackageStatus::NotInstalled => 2,
            PackageStatus::Installed => 3,
        };
        let worst = told.iter().min_by_key(|package| rank(package));
        let status = worst.map_or(PackageStatus::NotInstalled, |package| package.status);
        let sentences: Vec<String> = told
            .iter()
            .map(
                |package| match (package.status, &package.version, &package.message) {
                    (PackageStatus::Installing, ..) => {
                        format!("{} is being installed", package.name)
                    }
                    (PackageStatus::Installed, Some(version), _) => {
                        format!("{} {version} is installed", package.name)
                    }
                    (PackageStatus::NotInstalled, ..) => format!(
                        "{} is not installed; install_package_in_env installs it",
                        package.name
                    ),
                    (_, _, message) => {
                        let reason = message.as_deref().unwrap_or("no reason was told");
                        format!("{} was not installed: {reason}", package.name)
                    }
                },
            )
            .collect();
        let message = sentences.join("; ");
        let message = match status {
            PackageStatus::Installing => format!("{message}; ask again"),
            _ => message,
        };
        Self::new(status, message)
    }
}

impl From<Installation> for CallToolResult {
    fn from(installation: Installation) -> Self {
        let failed = installation.success == Some(false);
        let text = format!("[{}] {}", installation.status, installation.message);
        let mut result = success(&installation, vec![ContentBlock::text(text)]);
        result.is_error = Some(failed);
        result
    }
}

/// The seed handed the text to pip's command line, so that "numpy pandas" named two.
fn packages(text: &str) -> Vec<String> {
    let separator = |c: char| c == ',' || c.is_whitespace();
    let parts = text.split(separator).filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.map(str::to_owned).collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let names = parts.iter().all(|part| part.chars().all(is_name));
    match names && parts.len() > 1 {
        true => parts,
        false => vec![text.trim().to_owned()],
    }
}

/// The name that a requirement begins with.
fn project_of(requirement: &str) -> String {
    let is_name = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = requirement.chars().take_while(is_name).collect();
    match name.is_empty() {
        true => requirement.to_owned(),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_may_name_several_packages() {
        assert_eq!(packages("numpy, pandas"), ["numpy", "pandas"]);
        assert_eq!(packages("numpy pandas "), ["numpy", "pandas"]);
        assert_eq!(packages(" polars "), ["polars"]);
        assert_eq!(packages("pandas[excel]>=2, <3"), ["pandas[excel]>=2, <3"]);
        assert_eq!(packages("-r x"), ["-r", "x"]);
        assert_eq!(project_of("pandas[excel]>=2"), "pandas");
        assert_eq!(project_of("=="), "==");
    }
}
