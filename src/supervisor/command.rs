//! Shell commands that somebody waits for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::Error;
use super::log::Reader;
use super::program::{self, Input, Process, Program};
use super::sandbox::{InUse, Sandbox};
use super::types::{
    CommandEnded, CommandEvent, CommandOutcome, CommandSpec, Piece, ProcessEnd, Stream,
};
use crate::kernel::output::{Output, PIPE_BYTES};

/// Output between a command and whoever reads it: four times what a pipe holds, so that what is left
/// in both pipes at its end finds room.
const LOG_BYTES: usize = 8 * PIPE_BYTES;

/// A running command: events until [`CommandEvent::Ended`], which is always last. Its output waits
/// for its reader. Dropping it before the end kills the command's processes.
#[derive(Debug)]
pub struct RunningCommand {
    sandbox: Arc<Sandbox>,
    process: Arc<Process>,
    reader: Reader,
    stdout: Kept,
    stderr: Kept,
    /// What comes next.
    ready: VecDeque<CommandEvent>,
    ended: bool,
    _in_use: InUse<Arc<Sandbox>>,
}

/// One stream, up to the limit.
#[derive(Debug)]
struct Kept {
    output: Output,
    /// Dropped before it was read.
    lost_bytes: u64,
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if self.process.log.ended().is_none() {
            self.process.kill(&self.sandbox);
        }
    }
}

/// Starts a command.
pub(super) async fn start(
    sandbox: &Arc<Sandbox>,
    spec: CommandSpec,
) -> Result<RunningCommand, Error> {
    let in_use = InUse::of(Arc::clone(sandbox));
    let limits = &sandbox.host.config.limits;
    let longest = spec
        .timeout
        .unwrap_or(Duration::from_secs(limits.timeout_seconds));
    let program = Program {
        argv: shell(&spec.command),
        cwd: spec.cwd,
        env: spec.env,
        input: Input::Empty,
        apart: None,
        deadline: Some(Instant::now() + longest),
        log_bytes: LOG_BYTES,
    };
    let process = program::start(sandbox, program).await?;
    let kept = || Kept {
        output: Output::new(limits.output_bytes_of(spec.output_bytes)),
        lost_bytes: 0,
    };
    let started = CommandEvent::Started { pid: process.pid };
    Ok(RunningCommand {
        sandbox: Arc::clone(sandbox),
        reader: process.log.reader(0),
        process,
        stdout: kept(),
        stderr: kept(),
        ready: [started].into(),
        ended: false,
        _in_use: in_use,
    })
}

/// A login shell that runs one command.
pub(super) fn shell(command: &str) -> Vec<String> {
    ["/bin/bash", "-lc", command].map(str::to_owned).to_vec()
}

impl RunningCommand {
    /// The next event, `None` after the last.
    ///
    /// # Errors
    /// `Conflict` when the sandbox was closed meanwhile.
    pub async fn next(&mut self) -> Result<Option<CommandEvent>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match self.reader.next(PIPE_BYTES).await {
                Some(piece) => self.take(&piece),
                None => self.end().await?,
            }
        }
    }

    fn take(&mut self, piece: &Piece) {
        let (kept, event): (_, fn(String) -> CommandEvent) = match piece.stream {
            Stream::Stdout | Stream::Pty => (&mut self.stdout, CommandEvent::Stdout),
            Stream::Stderr => (&mut self.stderr, CommandEvent::Stderr),
        };
        kept.lost_bytes += piece.lost_bytes;
        let text = kept.output.push(&piece.bytes);
        if !text.is_empty() {
            self.ready.push_back(event(text));
        }
    }

    async fn end(&mut self) -> Result<(), Error> {
        self.ended = true;
        let end = self.process.log.wait_end().await;
        if end.signal == Some(libc::SIGKILL) {
            self.sandbox.refuse_closing()?;
        }
        let rest = [
            CommandEvent::Stdout(self.stdout.output.finish("stdout")),
            CommandEvent::Stderr(self.stderr.output.finish("stderr")),
        ];
        let told = |event: &CommandEvent| match event {
            CommandEvent::Stdout(text) | CommandEvent::Stderr(text) => !text.is_empty(),
            CommandEvent::Started { .. } | CommandEvent::Ended(_) => true,
        };
        self.ready.extend(rest.into_iter().filter(told));
        self.ready.push_back(CommandEvent::Ended(self.ended(&end)));
        Ok(())
    }

    fn ended(&self, end: &ProcessEnd) -> CommandEnded {
        let dropped = |kept: &Kept| kept.output.dropped_bytes() + kept.lost_bytes;
        CommandEnded {
            exit_code: end.exit_code(),
            timed_out: end.timed_out,
            out_of_memory: end.out_of_memory,
            stdout_dropped_bytes: dropped(&self.stdout),
            stderr_dropped_bytes: dropped(&self.stderr),
            wall: end.wall,
        }
    }

    /// Waits for its end and gives everything at once.
    ///
    /// # Errors
    /// As [`RunningCommand::next`].
    pub async fn finish(mut self) -> Result<CommandOutcome, Error> {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        loop {
            match self.next().await? {
                Some(CommandEvent::Stdout(text)) => stdout.push_str(&text),
                Some(CommandEvent::Stderr(text)) => stderr.push_str(&text),
                Some(CommandEvent::Started { .. }) => {}
                Some(CommandEvent::Ended(ended)) => {
                    return Ok(CommandOutcome {
                        stdout,
                        stderr,
                        ended,
                    });
                }
                // The last event came before.
                None => self.sandbox.refuse_closing()?,
            }
        }
    }
}
