//! The third seed's tools, at `/mcp/env`. They have names and shapes of their own; a `container_id` is
//! a sandbox's id.

mod packages;

use rmcp::handler::server::tool::schema_for_output;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{RoleServer, tool, tool_router};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::{self, failure, success};
use super::arguments::Parameters;
use super::prompts::HowTo;
use super::schema::{ExecuteArguments, NoArguments};
use super::tools::{Tools, answered, base_of, interrupted};
use crate::api::error::Refusal;
use crate::api::outcome::{Entry, Outcome, Verdict};
use crate::api::whole;
use crate::api::wire::rfc3339;
use crate::supervisor::CreateSpec;

/// What a model is told before it sees the tools.
pub(super) const INSTRUCTIONS: &str = "Runs Python in isolated environments. Call create_python_env \
once, keep its container_id and pass it to every other tool. numpy, pandas, matplotlib, scipy, \
scikit-learn and other data packages are there; install others with install_package_in_env, and when \
its status is \"installing\" ask check_package_status until it is complete. execute_python_code runs \
code; variables, imports and files last between calls. Save figures with plt.savefig() and tables \
with df.to_csv() or df.to_excel(): each saved file comes back as a download link in file_links. An \
environment that is not used for idle_seconds, an hour as a rule, is closed.";

/// Exit codes as a shell has them: of `timeout(1)`, SIGINT and SIGKILL.
const TIMED_OUT: i32 = 124;
const INTERRUPTED: i32 = 130;
const KILLED: i32 = 137;

/// How the tools go together, as a prompt.
pub(super) const HOW_TO: HowTo = HowTo {
    name: "use_python_env",
    title: "Work in a Python environment",
    text: "You have a Python environment at your disposal. Work like this:\n\
        1. Call create_python_env. It gives you a container_id, which the other tools ask for.\n\
        2. Where a package is missing, call install_package_in_env with the container_id and the \
        package_name. It answers within seconds; the installation may go on.\n\
        3. Call check_package_status with the same container_id and package_name until the package \
        is installed.\n\
        4. Run code with execute_python_code and the container_id. You get its output, its errors \
        and links to the files that it made. Variables and imports last from call to call.\n\
        Write charts and tables to files (plt.savefig, df.to_csv) where the user wants to have \
        them: each file in the working directory gets a link to download it, to be passed on to the \
        user.",
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Environment {
    /// What every other tool asks for.
    container_id: String,
    /// When it is closed at the latest, RFC 3339, UTC.
    expires_at: String,
    /// Seconds without a call after which it is closed.
    idle_seconds: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
struct CodeArguments {
    /// As returned by create_python_env.
    container_id: String,
    /// Python source.
    code: String,
}

/// What code came to.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ran {
    /// What the code printed.
    stdout: String,
    /// What it wrote to standard error, and the traceback where it raised.
    stderr: String,
    /// 0 for success, 1 when the code raised, that of sys.exit(), 124 when its time was over, 137 when
    /// memory was.
    exit_code: i32,
    /// Paths of the files that the code created or changed.
    files: Vec<String>,
    /// Where each of them can be downloaded.
    file_links: Vec<Link>,
    /// The values that were displayed, that of the last expression too, as text.
    results: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Link {
    /// Path of the file.
    name: String,
    /// Absolute where the service knows how it was reached, else a path on it.
    url: String,
}

#[tool_router(router = env_router, vis = "pub(super)")]
impl Tools {
    #[tool(
        title = "Create a Python environment",
        description = "Create an isolated Python environment and return its container_id, which \
            every other tool needs. Create one per task and reuse it: variables, imports, packages \
            and files last between calls. It is closed when it was not used for idle_seconds, an \
            hour as a rule.",
        output_schema = schema_for_output::<Environment>(),
        annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false)
    )]
    async fn create_python_env(&self, _: Parameters<NoArguments>) -> CallToolResult {
        let config = self.supervisor().current();
        let idle_seconds = config
            .mcp
            .env_idle_seconds
            .min(config.limits.max_lease_seconds);
        let spec = CreateSpec {
            idle_seconds: Some(idle_seconds),
            ..CreateSpec::default()
        };
        answered(whole::create(self.supervisor(), spec).await, |info| {
            // Only the id: the seed's users take all of the text for it.
            let text = ContentBlock::text(info.id.clone());
            let environment = Environment {
                container_id: info.id,
                expires_at: rfc3339(info.expires_at),
                idle_seconds,
            };
            success(&environment, vec![text])
        })
    }

    #[tool(
        name = "execute_python_code",
        title = "Run Python",
        description = "Run Python code in an environment and return what it printed, its exit code \
            and links to the files that it saved. Variables and imports of earlier calls are there. \
            Save figures with plt.savefig() and data with to_csv() or to_excel() to get them as \
            links; figures that are shown come back as images too. An exception is in stderr with \
            its traceback and exit_code 1, and keeps the variables. input() is not available, nor \
            is the network unless the operator allowed it.",
        output_schema = schema_for_output::<Ran>(),
        annotations(destructive_hint = true, idempotent_hint = false, open_world_hint = false)
    )]
    async fn execute_in_env(
        &self,
        Parameters(arguments): Parameters<CodeArguments>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        let base = base_of(&context);
        let id = arguments.container_id;
        let arguments = ExecuteArguments {
            sandbox_id: id.clone(),
            code: arguments.code,
            context_id: None,
            timeout_seconds: None,
            stdin: None,
            restore: None,
        };
        let cancelled = context.ct.clone();
        tokio::select! {
            // Dropping the other branch drops the execution, which interrupts the code.
            () = cancelled.cancelled() => interrupted(),
            outcome = self.run(arguments, &context) => match outcome {
                Ok(outcome) => {
                    let structured = serde_json::to_value(Ran::of(&outcome, base.as_deref())).ok();
                    let mut result = answer::python(outcome, &id, base.as_deref());
                    result.structured_content = structured;
                    result
                }
                Err(refusal) => not_run(&refusal),
            },
        }
    }
}

impl Ran {
    fn of(outcome: &Outcome, base: Option<&str>) -> Self {
        let verdict = &outcome.verdict;
        let mut stderr = outcome.stderr.clone();
        let sentence = verdict
            .error_value
            .as_ref()
            .filter(|_| verdict.outcome != "ok");
        let reason = verdict.traceback.as_ref().or(sentence);
        // Of a code that it exits with a script says nothing.
        let reason = reason.filter(|_| verdict.outcome != "error" || verdict.exit_code.is_none());
        if let Some(reason) = reason.filter(|_| verdict.error.is_some()) {
            if !stderr.is_empty() && !stderr.ends_with('\n') {
                stderr.push('\n');
            }
            stderr.push_str(reason);
        }
        let kept = outcome.files.iter().filter_map(|file| {
            let url = file.url.as_deref()?;
            Some(Link {
                name: file.path.clone(),
                url: format!("{}{url}", base.unwrap_or_default()),
            })
        });
        let file_links: Vec<Link> = kept.collect();
        let plain = |entry: &Entry| {
            let text = (entry.mime == "text/plain").then_some(&entry.data)?;
            text.as_str().map(str::to_owned)
        };
        Self {
            stdout: outcome.stdout.clone(),
            stderr,
            exit_code: exit_code(verdict),
            files: file_links.iter().map(|link| link.name.clone()).collect(),
            file_links,
            results: outcome.results.iter().filter_map(plain).collect(),
        }
    }
}

/// What a script of this code would have exited with.
fn exit_code(verdict: &Verdict) -> i32 {
    match verdict.outcome {
        "ok" => 0,
        "timeout" => TIMED_OUT,
        "interrupted" => INTERRUPTED,
        "out_of_memory" => KILLED,
        "kernel_died" => {
            let signalled = verdict.signal.map(|signal| 128 + signal);
            verdict.exit_code.or(signalled).unwrap_or(1)
        }
        _ => verdict.exit_code.unwrap_or(1),
    }
}

/// A call that could not be served, in the seed's shape too.
fn not_run(refusal: &Refusal) -> CallToolResult {
    let mut result = refused(refusal);
    if let Some(serde_json::Value::Object(structured)) = &mut result.structured_content {
        let error = structured["error"].clone();
        structured.extend([
            ("stdout".to_owned(), json!("")),
            ("stderr".to_owned(), error),
            ("exit_code".to_owned(), json!(1)),
            ("files".to_owned(), json!([])),
            ("file_links".to_owned(), json!([])),
        ]);
    }
    result
}

fn refused(refusal: &Refusal) -> CallToolResult {
    let text = match refusal.code() {
        "sandbox_not_found" => format!(
            "{}. It may have expired; create_python_env makes a new one ({})",
            refusal.detail(),
            refusal.code()
        ),
        _ => answer::advice(refusal),
    };
    let mut result = failure(refusal);
    result.content = vec![ContentBlock::text(text.clone())];
    result.structured_content = Some(json!({ "error": text }));
    result
}
