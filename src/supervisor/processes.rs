//! Background processes of a sandbox: started by one request, looked at by others.
//!
//! They run until they end, their time is over, somebody deletes them or the sandbox ends. They do
//! not count as use of the sandbox: one with `idle_seconds` is closed in spite of them when nobody
//! asks for anything, whereas whoever waits for output or is attached uses it.

use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, timeout, timeout_at};

use super::command::shell;
use super::error::{Error, ErrorKind};
use super::log::{Kept, Reader};
use super::program::{self, Input, Process, Program, process_ended};
use super::sandbox::{InUse, Sandbox, new_id};
use super::setup::DEATH_TIMEOUT;
use super::types::{
    Piece, ProcessEnd, ProcessInfo, ProcessOutput, ProcessSpec, Stream, WindowSize,
};
use super::{Supervisor, plan};
use crate::isolation::terminal;
use crate::kernel::output::incomplete_suffix;

/// Those of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Processes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Oldest first.
    entries: Vec<Arc<Entry>>,
    /// Starts under way: they count against the limit.
    starting: usize,
}

#[derive(Debug)]
struct Entry {
    id: String,
    command: Option<String>,
    cwd: Option<String>,
    process: Arc<Process>,
}

/// Room for one process, given back unless it was used.
struct Room<'a>(&'a Processes);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.0.lock().expect("not poisoned").starting -= 1;
    }
}

impl Processes {
    fn take_room(&self, sandbox: &Sandbox) -> Result<Room<'_>, Error> {
        let mut table = self.0.lock().expect("not poisoned");
        sandbox.refuse_closing()?;
        let running = table.entries.iter().filter(|e| e.end().is_none()).count();
        let most = sandbox.host.config.limits.background_processes;
        if running + table.starting >= most {
            return Err(Error::too_many_background_processes(most));
        }
        table.starting += 1;
        Ok(Room(self))
    }

    /// Lists a process, and forgets those that ended first when more than `most` of these are kept.
    fn list(&self, entry: Arc<Entry>, most: usize) {
        let mut table = self.0.lock().expect("not poisoned");
        table.entries.push(entry);
        loop {
            let ended = table
                .entries
                .iter()
                .filter_map(|e| Some((e.end()?.ended_at, e)));
            let first = ended.clone().min_by_key(|(at, _)| *at);
            let Some((_, first)) = first.filter(|_| ended.count() > most) else {
                return;
            };
            let first = Arc::clone(first);
            table.entries.retain(|entry| !Arc::ptr_eq(entry, &first));
        }
    }

    /// Whether one runs.
    pub(super) fn any_runs(&self) -> bool {
        let table = self.0.lock().expect("not poisoned");
        table.entries.iter().any(|entry| entry.end().is_none())
    }

    fn all(&self) -> Vec<Arc<Entry>> {
        self.0.lock().expect("not poisoned").entries.clone()
    }

    /// True for the one caller that took it off the list.
    fn unlist(&self, entry: &Arc<Entry>) -> bool {
        let mut table = self.0.lock().expect("not poisoned");
        let before = table.entries.len();
        table.entries.retain(|other| !Arc::ptr_eq(other, entry));
        table.entries.len() < before
    }
}

impl Entry {
    fn end(&self) -> Option<ProcessEnd> {
        self.process.log.ended()
    }

    fn info(&self) -> ProcessInfo {
        // Asked for first: what is written before the end is counted then.
        let end = self.end();
        ProcessInfo {
            id: self.id.clone(),
            pid: self.process.pid,
            command: self.command.clone(),
            cwd: self.cwd.clone(),
            terminal: self.process.window(),
            started_at: self.process.started_at,
            output_bytes: self.process.log.next_offset(),
            end,
        }
    }
}

impl Supervisor {
    /// Starts a process in the background: `bash -lc command`, or an interactive login shell.
    ///
    /// # Errors
    /// `Invalid` names the field; `Busy` when as many run as allowed (`limits.background_processes`)
    /// or there is no process or terminal left.
    pub async fn start_process(&self, id: &str, spec: ProcessSpec) -> Result<ProcessInfo, Error> {
        let config = self.current();
        let limits = &config.limits;
        plan::check_process(&spec, limits)?;
        let sandbox = self.find(id)?;
        self.scope.take_execution()?;
        sandbox.touch();
        let room = sandbox.processes.take_room(&sandbox)?;
        let argv = match &spec.command {
            Some(command) => shell(command),
            None => ["/bin/bash", "-i", "-l"].map(str::to_owned).to_vec(),
        };
        let program = Program {
            argv,
            cwd: spec.cwd.clone(),
            env: spec.env,
            input: spec.terminal.map_or(Input::Pipe, Input::Terminal),
            apart: None,
            deadline: spec.timeout.map(|longest| Instant::now() + longest),
            log_bytes: limits.background_output_bytes,
        };
        let process = program::start(&sandbox, program).await?;
        let entry = Arc::new(Entry {
            id: new_id(),
            command: spec.command,
            cwd: spec.cwd,
            process,
        });
        let info = entry.info();
        sandbox.processes.list(entry, limits.background_processes);
        drop(room);
        Ok(info)
    }

    /// Every background process of a sandbox that runs or is still known, oldest first.
    pub fn processes(&self, id: &str) -> Result<Vec<ProcessInfo>, Error> {
        let sandbox = self.find(id)?;
        sandbox.touch();
        let entries = sandbox.processes.all();
        Ok(entries.iter().map(|entry| entry.info()).collect())
    }

    /// One of them.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn process(&self, id: &str, process_id: &str) -> Result<ProcessHandle, Error> {
        let sandbox = self.find(id)?;
        sandbox.touch();
        let found = sandbox.processes.all().into_iter();
        let entry = found
            .into_iter()
            .find(|entry| entry.id == process_id)
            .ok_or_else(|| Error::process_not_found(process_id))?;
        Ok(ProcessHandle { sandbox, entry })
    }
}

/// A background process. Dropping the handle does nothing to it.
#[derive(Debug, Clone)]
pub struct ProcessHandle {
    sandbox: Arc<Sandbox>,
    entry: Arc<Entry>,
}

/// A reader of a process's output that misses nothing from where it began: the process waits for it.
#[derive(Debug)]
pub struct Attached {
    reader: Reader,
    process: Arc<Process>,
    _in_use: InUse<Arc<Sandbox>>,
}

impl Attached {
    /// Output of one stream, `most` bytes at most; `None` once the process has ended and everything
    /// was given. Bytes that were dropped before it was attached are counted in the first piece.
    pub async fn next(&mut self, most: usize) -> Option<Piece> {
        self.reader.next(most).await
    }

    /// Resolves at the process's end.
    pub async fn end(&self) -> ProcessEnd {
        self.process.log.wait_end().await
    }
}

impl ProcessHandle {
    fn process(&self) -> &Process {
        &self.entry.process
    }

    fn stdin_time(&self) -> Duration {
        Duration::from_secs(self.sandbox.host.config.limits.stdin_seconds)
    }

    /// What is known of it.
    pub fn info(&self) -> ProcessInfo {
        self.entry.info()
    }

    /// Its output from an offset on, about `most` bytes at most. Where there is none yet, waits for
    /// some or the end, for `wait` at most (60 s).
    ///
    /// # Errors
    /// `Invalid` for an offset past the output so far and for too long a wait.
    pub async fn output(
        &self,
        offset: u64,
        most: usize,
        wait: Duration,
    ) -> Result<ProcessOutput, Error> {
        plan::check_wait(wait)?;
        self.check_offset(offset)?;
        let _in_use = self.sandbox.begin_use();
        let deadline = Instant::now() + wait;
        loop {
            let kept = self.process().log.since(offset, most);
            let seen = kept.next_offset;
            let output = decoded(offset, kept);
            let waited = async {
                let more = self.process().log.wait_after(seen);
                timeout_at(deadline, more).await.is_ok()
            };
            if !output.chunks.is_empty() || output.end.is_some() || !waited.await {
                return Ok(output);
            }
        }
    }

    fn check_offset(&self, offset: u64) -> Result<(), Error> {
        let next = self.process().log.next_offset();
        if offset <= next {
            return Ok(());
        }
        Err(Error::invalid(
            "offset",
            format!("offset must be at most {next}, the bytes written so far"),
        ))
    }

    /// Attaches a reader from an offset on; without one, from what is written next.
    ///
    /// # Errors
    /// `Invalid` for an offset past the output so far.
    pub fn attach(&self, offset: Option<u64>) -> Result<Attached, Error> {
        let log = &self.process().log;
        let offset = offset.unwrap_or_else(|| log.next_offset());
        self.check_offset(offset)?;
        Ok(Attached {
            reader: log.reader(offset),
            process: Arc::clone(&self.entry.process),
            _in_use: InUse::of(Arc::clone(&self.sandbox)),
        })
    }

    /// Writes to its standard input, within `limits.stdin_seconds`, and closes it then if asked to;
    /// on a terminal closing is typing Ctrl-D.
    ///
    /// # Errors
    /// `Conflict` when it has ended (`process_ended`) or nothing reads its input (`stdin_closed`);
    /// `Busy` when it has not read everything in time (`stdin_full`).
    pub async fn write(&self, bytes: &[u8], close: bool) -> Result<(), Error> {
        let longest = self.stdin_time();
        if !bytes.is_empty() || !close {
            self.process().write(bytes, longest).await?;
        }
        if close {
            self.process().close_stdin(longest).await?;
        }
        Ok(())
    }

    /// Sends a signal by its name: SIGKILL to its whole tree, any other to its process group. On a
    /// terminal SIGINT, SIGQUIT and SIGTSTP go to what runs in the foreground, as the keys would.
    ///
    /// # Errors
    /// `Invalid` for a name that is none; `Conflict` when it has ended.
    pub async fn signal(&self, name: &str) -> Result<(), Error> {
        let signal = Signal::from_str(name).map_err(|_| {
            Error::invalid(
                "signal",
                "signal must be the name of a signal, such as SIGINT, SIGTERM or SIGKILL",
            )
        })?;
        if self.entry.end().is_some() {
            return Err(process_ended());
        }
        if signal == Signal::SIGKILL {
            self.process().kill(&self.sandbox);
            return Ok(());
        }
        if matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTSTP) {
            let typed = self
                .process()
                .with_terminal(|fd, _| terminal::signal(fd, signal as i32));
            if typed.is_some_and(|done| done.is_ok()) {
                return Ok(());
            }
        }
        match self
            .sandbox
            .init
            .signal(self.process().pid, signal as i32)
            .await
        {
            Ok(true) => Ok(()),
            Ok(false) => Err(process_ended()),
            Err(e) => {
                self.sandbox.refuse_closing()?;
                Err(Error::new(
                    ErrorKind::Internal,
                    "signal_failed",
                    e.to_string(),
                ))
            }
        }
    }

    /// Waits for its end; without a time, for `limits.timeout_seconds`. Whether it has ended, the
    /// answer tells.
    ///
    /// # Errors
    /// `Invalid` for a time out of range.
    pub async fn wait(&self, longest: Option<Duration>) -> Result<ProcessInfo, Error> {
        let limits = &self.sandbox.host.config.limits;
        plan::check_timeout(longest, limits)?;
        let _in_use = self.sandbox.begin_use();
        let longest = longest.unwrap_or(Duration::from_secs(limits.timeout_seconds));
        let _ = timeout(longest, self.process().log.wait_end()).await;
        Ok(self.info())
    }

    /// Sets the size of its terminal.
    ///
    /// # Errors
    /// `Invalid` for a size out of range; `Conflict` when it has ended or has no terminal.
    pub fn resize(&self, size: WindowSize) -> Result<ProcessInfo, Error> {
        plan::check_window("columns", size)?;
        let resized = self.process().with_terminal(|fd, current| {
            terminal::resize(fd, size)?;
            *current = size;
            Ok::<_, crate::isolation::Error>(())
        });
        match resized {
            Some(Ok(())) => Ok(self.info()),
            Some(Err(e)) => Err(Error::new(
                ErrorKind::Internal,
                "resize_failed",
                e.to_string(),
            )),
            None if self.entry.end().is_some() => Err(process_ended()),
            None => Err(Error::new(
                ErrorKind::Conflict,
                "no_terminal",
                "the process has no terminal; start it with pty",
            )),
        }
    }

    /// Kills its tree, daemons that it left included, and forgets it; returns when it has ended.
    ///
    /// # Errors
    /// `NotFound` when somebody else has deleted it.
    pub async fn delete(&self) -> Result<(), Error> {
        if !self.sandbox.processes.unlist(&self.entry) {
            return Err(Error::process_not_found(&self.entry.id));
        }
        self.process().kill(&self.sandbox);
        let _ = timeout(DEATH_TIMEOUT, self.process().log.wait_end()).await;
        Ok(())
    }
}

/// Output as text. A character that the last piece has only begun is left for the next time.
fn decoded(asked: u64, kept: Kept) -> ProcessOutput {
    let Kept {
        pieces,
        next_offset: output_bytes,
        end,
    } = kept;
    let mut output = ProcessOutput {
        offset: pieces.first().map_or(asked, |piece| piece.offset),
        next_offset: asked,
        lost_bytes: pieces.first().map_or(0, |piece| piece.lost_bytes),
        output_bytes,
        chunks: Vec::with_capacity(pieces.len()),
        end,
    };
    // What each stream has begun of a character.
    let mut begun: Vec<(Stream, Vec<u8>)> = Vec::new();
    let last = pieces.len().saturating_sub(1);
    for (n, piece) in pieces.into_iter().enumerate() {
        output.next_offset = piece.offset + piece.bytes.len() as u64;
        let earlier = begun.iter().position(|(stream, _)| *stream == piece.stream);
        let mut bytes = earlier.map_or_else(Vec::new, |n| begun.swap_remove(n).1);
        let carried = bytes.len();
        bytes.extend(piece.bytes);
        let whole = bytes.len() - incomplete_suffix(&bytes);
        let rest = bytes.split_off(whole);
        if whole > 0 {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            output.chunks.push((piece.stream, text));
        }
        let all = output.end.is_some() && output.next_offset == output_bytes;
        if n == last && !all && whole >= carried {
            output.next_offset -= rest.len() as u64;
        } else if !rest.is_empty() {
            begun.push((piece.stream, rest));
        }
    }
    for (stream, bytes) in begun {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        output.chunks.push((stream, text));
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(given: &[(Stream, &[u8])]) -> Kept {
        let mut next_offset = 0;
        let piece = |&(stream, bytes): &(Stream, &[u8])| {
            let offset = next_offset;
            next_offset += bytes.len() as u64;
            Piece {
                stream,
                offset,
                lost_bytes: 0,
                bytes: bytes.to_vec(),
            }
        };
        let pieces = given.iter().map(piece).collect();
        Kept {
            pieces,
            next_offset,
            end: None,
        }
    }

    #[test]
    fn characters_are_given_whole() {
        use Stream::{Stderr, Stdout};
        let cut = kept(&[
            (Stdout, b"a\xc3"),
            (Stderr, b"e"),
            (Stdout, b"\xa9b\xe6\xbc"),
        ]);
        let output = decoded(0, cut);
        let chunks: Vec<_> = output
            .chunks
            .iter()
            .map(|(s, t)| (*s, t.as_str()))
            .collect();
        assert_eq!(chunks, [(Stdout, "a"), (Stderr, "e"), (Stdout, "éb")]);
        assert_eq!(output.next_offset, 5);
        let lone = decoded(7, kept(&[]));
        assert_eq!((lone.offset, lone.next_offset), (7, 7));
        let odd = decoded(0, kept(&[(Stdout, b"\xc3"), (Stderr, b"x")]));
        assert_eq!(odd.chunks.len(), 2);
        assert_eq!(odd.next_offset, 2);
    }
}
