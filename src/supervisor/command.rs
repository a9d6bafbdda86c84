//! Shell commands: started by init in a cgroup of their own, so that their whole tree can be killed.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver as PipeReader;
use tokio::time::{Instant, sleep_until, timeout};

use super::error::{Error, ErrorKind};
use super::sandbox::Sandbox;
use super::types::{CommandOutcome, CommandSpec};
use crate::isolation::channel::Channel;
use crate::isolation::init::{BAD_CWD, NO_PROCESS};
use crate::isolation::spec::Reply;
use crate::isolation::{self, Context};
use crate::kernel::output::{Output, PIPE_BYTES, PIPE_MOST_BYTES, read_now};

/// What `timeout(1)` exits with.
const EXIT_TIMED_OUT: i32 = 124;
/// What a shell exits with for a child that signal n ended: this plus n.
const EXIT_SIGNALLED: i32 = 128;
/// Longest that a killed command is waited for.
const DEATH_TIME: Duration = Duration::from_millis(500);

/// Kills the command's processes when the future that runs it is dropped.
struct Leaf<'a> {
    sandbox: &'a Sandbox,
    name: String,
    finished: bool,
}

impl Drop for Leaf<'_> {
    fn drop(&mut self) {
        if !self.finished {
            let _ = self.sandbox.cgroup.kill_leaf(&self.name);
        }
        // A daemon that the command left keeps the leaf: later commands look again.
        let mut left = self.sandbox.left_leaves.lock().expect("not poisoned");
        left.push(std::mem::take(&mut self.name));
        left.retain(|name| !self.sandbox.cgroup.remove_leaf(name));
    }
}

/// Runs a command to its end.
pub async fn run(sandbox: &Sandbox, spec: CommandSpec) -> Result<CommandOutcome, Error> {
    let _in_use = sandbox.begin_use();
    let limits = &sandbox.host.config.limits;
    let deadline = Instant::now()
        + spec
            .timeout
            .unwrap_or(Duration::from_secs(limits.timeout_seconds));
    let started = Instant::now();
    let oom_kills = sandbox.cgroup.oom_kills();
    let number = sandbox.next_command.fetch_add(1, Ordering::Relaxed);
    let mut leaf = Leaf {
        sandbox,
        name: format!("command-{number}"),
        finished: false,
    };
    let start = start(sandbox, &leaf.name, &spec).await;
    let Started {
        reply,
        stdout,
        stderr,
    } = start.map_err(|e| {
        if let Err(closing) = sandbox.refuse_closing() {
            return closing;
        }
        tracing::error!(sandbox = sandbox.id(), "no command: {e}");
        not_started()
    })?;
    let mut watch = Watch {
        stdout,
        stderr,
        out: Output::new(limits.output_bytes),
        err: Output::new(limits.output_bytes),
        texts: (String::new(), String::new()),
    };
    let end = watch.until_end(&reply, deadline).await;
    let timed_out = matches!(end, End::TimedOut);
    if timed_out {
        let _ = sandbox.cgroup.kill_leaf(&leaf.name);
        let _ = timeout(DEATH_TIME, reply.receive()).await;
    }
    leaf.finished = true;
    watch.drain();
    let exit_code = match end {
        End::TimedOut => EXIT_TIMED_OUT,
        End::Exited(code) => code,
        End::NotStarted((code, _)) if code == NO_PROCESS => return Err(Error::too_many_processes()),
        End::NotStarted((code, detail)) if code == BAD_CWD => {
            return Err(Error::invalid("cwd", detail));
        }
        End::NotStarted((_, detail)) => {
            tracing::error!(sandbox = sandbox.id(), "no command: {detail}");
            return Err(not_started());
        }
        End::Lost => {
            sandbox.refuse_closing()?;
            EXIT_SIGNALLED + libc::SIGKILL
        }
    };
    let (mut stdout, mut stderr) = watch.texts;
    stdout.push_str(&watch.out.finish("stdout"));
    stderr.push_str(&watch.err.finish("stderr"));
    Ok(CommandOutcome {
        stdout,
        stderr,
        exit_code,
        timed_out,
        out_of_memory: sandbox.cgroup.oom_kills() > oom_kills,
        stdout_dropped_bytes: watch.out.dropped_bytes(),
        stderr_dropped_bytes: watch.err.dropped_bytes(),
        wall: started.elapsed(),
    })
}

fn not_started() -> Error {
    Error::new(
        ErrorKind::Internal,
        "command_failed",
        "the command could not be started",
    )
}

struct Started {
    reply: Channel,
    stdout: PipeReader,
    stderr: PipeReader,
}

async fn start(
    sandbox: &Sandbox,
    leaf: &str,
    spec: &CommandSpec,
) -> Result<Started, isolation::Error> {
    let (stdout, stdout_write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
    let (stderr, stderr_write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
    let (stdin, stdin_write) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
    // An empty standard input that ends at once.
    drop(stdin_write);
    let cgroup = sandbox.cgroup.leaf_dir(leaf)?;
    let mut env = crate::kernel::base_env();
    env.extend(sandbox.env());
    env.extend(spec.env.clone());
    let argv = ["/bin/bash", "-lc", &spec.command]
        .map(str::to_owned)
        .to_vec();
    let streams = [stdin.as_fd(), stdout_write.as_fd(), stderr_write.as_fd()];
    let reply = sandbox
        .init
        .command(argv, env, spec.cwd.clone(), cgroup.as_fd(), streams)
        .await?;
    Ok(Started {
        reply,
        stdout: PipeReader::from_owned_fd(stdout).context("watch a pipe")?,
        stderr: PipeReader::from_owned_fd(stderr).context("watch a pipe")?,
    })
}

enum End {
    Exited(i32),
    TimedOut,
    /// Word and sentence.
    NotStarted((String, String)),
    /// Init died: the sandbox was closed or killed.
    Lost,
}

struct Watch {
    stdout: PipeReader,
    stderr: PipeReader,
    out: Output,
    err: Output,
    texts: (String, String),
}

impl Watch {
    async fn until_end(&mut self, reply: &Channel, deadline: Instant) -> End {
        let (mut out, mut err) = (
            Vec::with_capacity(PIPE_BYTES),
            Vec::with_capacity(PIPE_BYTES),
        );
        let (mut out_open, mut err_open) = (true, true);
        let mut refused = None;
        loop {
            out.clear();
            err.clear();
            tokio::select! {
                biased;
                () = sleep_until(deadline) => return End::TimedOut,
                read = self.stdout.read_buf(&mut out), if out_open => {
                    out_open = read.is_ok_and(|n| n > 0);
                    self.texts.0.push_str(&self.out.push(&out));
                }
                read = self.stderr.read_buf(&mut err), if err_open => {
                    err_open = read.is_ok_and(|n| n > 0);
                    self.texts.1.push_str(&self.err.push(&err));
                }
                packet = reply.receive() => {
                    let Ok(Some(packet)) = packet else {
                        return refused.map_or(End::Lost, End::NotStarted);
                    };
                    match packet.decode() {
                        // Init's word follows when the child has exited.
                        Ok(Reply::Failed { code, detail }) => refused = Some((code, detail)),
                        Ok(Reply::Exited { code, signal }) => {
                            return match (refused, code, signal) {
                                (Some(refusal), ..) => End::NotStarted(refusal),
                                (None, Some(code), _) => End::Exited(code),
                                (None, None, Some(signal)) => End::Exited(EXIT_SIGNALLED + signal),
                                (None, None, None) => End::Lost,
                            };
                        }
                        _ => return End::Lost,
                    }
                }
            }
        }
    }

    /// What is left in the pipes. A daemon that the command left may go on writing.
    fn drain(&mut self) {
        drain_one(&self.stdout, &mut self.out, &mut self.texts.0);
        drain_one(&self.stderr, &mut self.err, &mut self.texts.1);
    }
}

fn drain_one(pipe: &PipeReader, output: &mut Output, text: &mut String) {
    let mut left = PIPE_MOST_BYTES;
    while left > 0 {
        let bytes = read_now(pipe);
        if bytes.is_empty() {
            return;
        }
        left = left.saturating_sub(bytes.len());
        text.push_str(&output.push(&bytes));
    }
}
