//! Commands that run one after the other in a sandbox, each in a shell of its own, until one fails.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::mpsc;

use super::error::Error;
use super::sandbox::{InUse, Sandbox};
use super::types::{
    CommandEvent, CommandOutcome, CommandSpec, Dependencies, Record, SequenceOutcome, SequenceSpec,
};
use super::{Supervisor, dependencies, plan};

/// Bytes of each stream that a command may have whatever those before it printed.
const LEAST_OUTPUT_BYTES: usize = 2048;

impl Supervisor {
    /// Runs commands in a row and records what they did. Before one that runs a Python script, what
    /// the script needs is installed, unless that is not wanted. `tell` hears of installations and
    /// output as they come. Dropping the future kills what runs.
    ///
    /// # Errors
    /// `Invalid` names the field; `Busy` and `Conflict` as for a command, where the first cannot be
    /// started. That a command failed is told by the answer.
    pub async fn run_commands(
        &self,
        id: &str,
        spec: SequenceSpec,
        tell: &mpsc::Sender<String>,
    ) -> Result<SequenceOutcome, Error> {
        let config = self.config();
        let most = config.mcp.commands;
        if spec.commands.is_empty() || spec.commands.len() > most {
            return Err(Error::invalid(
                "commands",
                format!("commands holds 1 to {most} commands (mcp.commands)"),
            ));
        }
        for command in &spec.commands {
            plan::check_command(command, None)?;
        }
        plan::check_timeout(spec.timeout, &config.limits)?;
        let sandbox = self.find(id)?;
        let _in_use = InUse::of(Arc::clone(&sandbox));
        let install = spec.install.unwrap_or(config.mcp.install_dependencies);
        let mut outcome = SequenceOutcome {
            ran: Vec::new(),
            dependencies: Vec::new(),
            stopped: None,
        };
        let (mut bytes, mut left) = (spec.output_bytes, spec.commands.len());
        for command in spec.commands {
            if install {
                let provided = provide(&sandbox, &command, tell, config.mcp.log_bytes).await?;
                outcome.dependencies.extend(provided);
            }
            let spec = CommandSpec {
                command: command.clone(),
                timeout: spec.timeout,
                output_bytes: Some((bytes / left).max(LEAST_OUTPUT_BYTES)),
                ..CommandSpec::default()
            };
            let ended = match self.run_command(id, spec, tell).await {
                Ok(ended) => ended,
                Err(e) if outcome.ran.is_empty() => return Err(e),
                Err(e) => {
                    outcome.stopped = Some(e);
                    break;
                }
            };
            bytes = bytes.saturating_sub(ended.stdout.len().max(ended.stderr.len()));
            left -= 1;
            sandbox.workspace.history.push(
                Record {
                    at: SystemTime::now(),
                    command: command.clone(),
                    output: both(&ended),
                    exit_code: Some(ended.ended.exit_code),
                },
                config.mcp.log_bytes,
            );
            let failed = ended.ended.exit_code != 0;
            outcome.ran.push((command, ended));
            if failed {
                break;
            }
        }
        Ok(outcome)
    }

    async fn run_command(
        &self,
        id: &str,
        spec: CommandSpec,
        tell: &mpsc::Sender<String>,
    ) -> Result<CommandOutcome, Error> {
        let mut running = self.command(id, spec).await?;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        loop {
            match running.next().await? {
                Some(CommandEvent::Stdout(text)) => {
                    stdout.push_str(&text);
                    let _ = tell.send(text).await;
                }
                Some(CommandEvent::Stderr(text)) => {
                    stderr.push_str(&text);
                    let _ = tell.send(text).await;
                }
                Some(CommandEvent::Started { .. }) => {}
                Some(CommandEvent::Ended(ended)) => {
                    return Ok(CommandOutcome {
                        stdout,
                        stderr,
                        ended,
                    });
                }
                None => return Err(Error::sandbox_closing()),
            }
        }
    }
}

async fn provide(
    sandbox: &Arc<Sandbox>,
    command: &str,
    tell: &mpsc::Sender<String>,
    log_bytes: usize,
) -> Result<Option<Dependencies>, Error> {
    let provided = dependencies::provide(sandbox, command, tell).await?;
    if let Some(provided) = &provided {
        let record = Record {
            at: SystemTime::now(),
            command: format!("install {}", provided.wanted.join(" ")),
            output: provided.message.clone(),
            exit_code: None,
        };
        sandbox.workspace.history.push(record, log_bytes);
    }
    Ok(provided)
}

fn both(outcome: &CommandOutcome) -> String {
    let mut text = outcome.stdout.clone();
    if !text.is_empty() && !text.ends_with('\n') && !outcome.stderr.is_empty() {
        text.push('\n');
    }
    text.push_str(&outcome.stderr);
    text
}
