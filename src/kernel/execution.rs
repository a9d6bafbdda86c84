//! One execution: the request to the kernel, what comes back, and every way in which it can end.
//!
//! ```text
//! Running ──done──────────────────────────────► Finished (ok, error)
//!    │  └──kernel's process ended─────────────► Died     (kernel_died, out_of_memory)
//!    └──time over, client gone, interrupt──► Interrupting ──done─► Finished (timeout, interrupted)
//!                                                 └──grace over──► Killed   (timeout, interrupted)
//! ```

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};

use super::frame;
use super::framing::{LEFT_BYTES, LEFT_FRAMES};
use super::handle::{Kernel, Place};
use super::order::{Mark, Order};
use super::output::{PIPE_BYTES, PIPE_MOST_BYTES, read_now};
use super::protocol::{FileChange, FromKernel, LeftOut, Restore, ToKernel};
use super::restore::{kill_started, restore};
use super::stream::{Saver, Stream, Which};
use super::transfer::Transfer;
use crate::supervisor::types::{
    Ending, Event, KernelState, OnDisconnect, PythonError, RichResult, Written,
};

/// What a frame costs beside its bytes, against endless empty ones.
const FRAME_COST_BYTES: usize = 1024;
/// Frames up to this size are read where they come.
const INLINE_FRAME_BYTES: usize = 256 * 1024;
/// How frames begin that are taken when the budget is used up.
const ENDING_FRAMES: [&[u8]; 2] = [b"{\"type\":\"done\"", b"{\"type\":\"error\""];
/// How frames begin that marks in the output count ([`Order`]).
const SHOWN_FRAMES: [&[u8]; 2] = [b"{\"type\":\"result\"", b"{\"type\":\"error\""];
/// Longest that output waits for frames that a mark says were sent before it: it may be forged.
const FRAMES_TIME: Duration = Duration::from_millis(200);
/// Marks that are passed before others on the same thread have their turn: code may write nothing else.
const ROUNDS: u32 = 64;
/// SIGINT is sent again until the code ends: the first may have hit an `except` clause.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(250);
/// A kernel says within this that the code begins. One that does not may be kept by a callback of an event
/// loop that waits until what it prints is read, which is late output of an earlier execution.
const BEGIN_TIME: Duration = Duration::from_millis(100);
/// A reader of events that takes nothing for so long is not waited for any more at the end.
const TELL_TIME: Duration = Duration::from_secs(5);

/// Why a copy that had to be killed is not gone back to.
const HUNG_COPY: &str = "the kernel was a copy (restored or forked), and the first code that ran in it could not be \
                         interrupted: its state is not trusted a second time";

/// Copies that may die one after the other without having run anything to its end.
const MAX_DEATHS: u32 = 10;
/// Why no further one is tried.
const DYING_COPIES: &str = "one restored kernel after the other has died in its first execution";

/// Limits and inputs of an execution.
#[derive(Debug)]
pub struct Request<'a> {
    /// IPython source.
    pub code: &'a str,
    /// Variables for this execution only.
    pub env: &'a BTreeMap<String, String>,
    /// What is on the code's standard input.
    pub stdin: Option<&'a str>,
    /// When the receiver of the events is dropped.
    pub on_disconnect: OnDisconnect,
    /// Wall time.
    pub timeout: Duration,
    /// Between SIGINT and SIGKILL.
    pub grace: Duration,
    /// Bytes of stdout, and of stderr.
    pub output_bytes: usize,
    /// Bytes of over-long stdout, and of stderr, that are given to be saved.
    pub saved_bytes: usize,
    /// Bytes of MIME data.
    pub result_bytes: usize,
    /// Bytes of a traceback.
    pub traceback_bytes: usize,
    /// File changes that are reported.
    pub files: usize,
    /// Whether the kernel looks for them.
    pub look_at_files: bool,
    /// Whether somebody waits for the event that tells of its beginning.
    pub prompt: bool,
    /// Whether variables are to outlive the kernel.
    pub restore: Restore,
    /// The sandbox's memory limit.
    pub memory_bytes: u64,
}

/// How it went.
#[derive(Debug)]
pub struct Finish {
    /// The ending.
    pub ending: Ending,
    /// What became of the variables.
    pub state: KernelState,
    /// False where the next execution needs a new kernel: variables are lost, or there were none.
    pub kernel_alive: bool,
    /// IPython's counter, 0 where the kernel was not even asked.
    pub execution_count: u64,
    /// Changes in the working directory.
    pub files: Vec<FileChange>,
    /// There were more.
    pub files_truncated: bool,
    /// Files that the kernel looked at, in its own words.
    pub files_seen: u64,
    /// What was written to descriptor 1.
    pub stdout: Written,
    /// Likewise, descriptor 2.
    pub stderr: Written,
    /// Results that were left out because there were more than may be.
    pub left_out: LeftOut,
    /// What a process would have exited with, where the code ended with `SystemExit`.
    pub exit_code: Option<i32>,
    /// The sandbox had no room for files.
    pub disk_full: bool,
    /// Names of the request's variables that the kernel itself could not follow.
    pub env_not_applied: Vec<String>,
    /// Processes that the code had started and that were killed when it was stopped.
    pub killed: usize,
    /// `None` where the kernel died.
    pub transfer: Option<Transfer>,
}

/// Why an execution is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Timeout,
    Interrupt,
}

impl Reason {
    fn ending(self) -> Ending {
        match self {
            Self::Timeout => Ending::Timeout,
            Self::Interrupt => Ending::Interrupted,
        }
    }
}

enum Phase {
    Running,
    Interrupting {
        reason: Reason,
        next: Instant,
        kill_at: Instant,
    },
}

/// What the loop has seen so far.
struct Run<'a> {
    id: u64,
    request: &'a Request<'a>,
    events: &'a mpsc::Sender<Event>,
    interrupt: &'a Notify,
    stdout: Stream,
    stderr: Stream,
    order: Order,
    /// Where output waits for frames.
    waiting: Option<Mark>,
    frame_bytes_left: usize,
    left_out: LeftOut,
    execution_count: u64,
    /// The kernel has said so.
    begun: bool,
    raised: bool,
    /// Processes of the kernel's cgroup as it began.
    present: Vec<i32>,
}

/// Runs `request` in `kernel`, telling `events` as it goes. Ends early when `interrupt` is notified, or
/// the receiver of the events is dropped and the request does not say to go on.
/// `oom_kills` is that counter before it began; the savers take over-long stdout and stderr. A kernel that died has been killed with all that it
/// started, and its checkpoint is in its place where it had one.
pub async fn run(
    kernel: &mut Kernel,
    place: &Place<'_>,
    request: &Request<'_>,
    events: &mpsc::Sender<Event>,
    interrupt: &Notify,
    oom_kills: u64,
    [stdout_saver, stderr_saver]: [Saver; 2],
) -> Finish {
    // Not to be guessed: user code may write frames of its own, but only of the execution that runs,
    // not of those that will.
    let id = rand::random();
    let mut run = Run {
        id,
        request,
        events,
        interrupt,
        stdout: Stream::new(Which::Stdout, request, stdout_saver),
        stderr: Stream::new(Which::Stderr, request, stderr_saver),
        order: Order::new(id),
        waiting: None,
        frame_bytes_left: request.result_bytes * 3 / 2 + 4 * request.traceback_bytes,
        left_out: LeftOut::default(),
        execution_count: 0,
        begun: false,
        raised: false,
        present: Vec::new(),
    };
    let before = kernel.transfer();
    let done = run.until_end(kernel, place, interrupt).await;
    // Of one that is about to be killed too; a process that died has taken its counters along.
    let after = match done {
        End::Died => None,
        End::Done { .. } | End::Killed(_) => kernel.transfer(),
    };
    let mut finish = Finish {
        ending: Ending::Ok,
        state: KernelState::Kept,
        kernel_alive: true,
        execution_count: run.execution_count,
        files: Vec::new(),
        files_truncated: false,
        files_seen: 0,
        stdout: Written::default(),
        stderr: Written::default(),
        left_out: LeftOut::default(),
        exit_code: None,
        disk_full: false,
        env_not_applied: Vec::new(),
        killed: 0,
        transfer: before.and_then(|before| Some(after?.since(before))),
    };
    match done {
        End::Done {
            reason,
            files,
            files_truncated,
            files_seen,
            disk_full,
            env_not_applied,
            forks,
            exit_code,
        } => {
            finish.env_not_applied = env_not_applied;
            finish
                .env_not_applied
                .retain(|name| request.env.contains_key(name));
            finish.files_seen = files_seen;
            finish.disk_full = disk_full;
            finish.ending = match reason {
                Some(reason) => reason.ending(),
                None if run.raised => Ending::Error,
                None => Ending::Ok,
            };
            // Of code that was stopped it says nothing.
            finish.exit_code = exit_code.filter(|_| reason.is_none());
            finish.files_truncated = files_truncated || files.len() > request.files;
            finish.files = files;
            finish.files.truncate(request.files);
            kernel.outdate_checkpoint();
            (kernel.unproven, kernel.deaths) = (false, 0);
            if reason.is_some() {
                let killed = kill_started(kernel, place.cgroup, &run.present, forks).await;
                finish.killed = killed.unwrap_or_else(|e| {
                    tracing::warn!("what an execution started is not gone: {e}");
                    0
                });
            }
            run.drain(kernel).await;
        }
        End::Killed(reason) => {
            finish.ending = reason.ending();
            run.take_left(kernel).await;
            // Its checkpoint holds what it held: whatever kept the code from ending is there too.
            let distrust = kernel.unproven.then_some(HUNG_COPY);
            go_on(kernel, place, &mut finish, distrust).await;
            run.drain(kernel).await;
        }
        End::Died => {
            // Where it only closed its socket it still runs.
            kernel.process.kill();
            let exit = kernel.exit().await;
            run.take_left(kernel).await;
            let killed =
                exit.signal == Some(libc::SIGKILL) || exit == super::zygote::Exit::default();
            finish.ending = if killed && place.cgroup.oom_kills() > oom_kills {
                Ending::OutOfMemory
            } else {
                Ending::KernelDied {
                    code: exit.code,
                    signal: exit.signal,
                }
            };
            let distrust = (kernel.deaths >= MAX_DEATHS).then_some(DYING_COPIES);
            go_on(kernel, place, &mut finish, distrust).await;
            run.drain(kernel).await;
        }
    }
    let soon = Instant::now() + TELL_TIME;
    run.tell_held(soon).await;
    finish.left_out = run.left_out;
    finish.stdout = run.stdout.end(soon).await;
    finish.stderr = run.stderr.end(soon).await;
    finish
}

/// After the kernel's death, or in order to kill it. `distrust`: why its checkpoint is not gone back to.
async fn go_on(
    kernel: &mut Kernel,
    place: &Place<'_>,
    finish: &mut Finish,
    distrust: Option<&str>,
) {
    if let Some(reason) = distrust {
        kernel.end(place.cgroup).await;
        finish.kernel_alive = false;
        finish.state = KernelState::Lost {
            reason: reason.into(),
        };
        return;
    }
    if kernel.fresh {
        kernel.end(place.cgroup).await;
        finish.kernel_alive = false;
        finish.state = KernelState::Restored {
            missing: Vec::new(),
        };
        return;
    }
    match restore(kernel, place).await {
        Ok(missing) => finish.state = KernelState::Restored { missing },
        Err(reason) => {
            finish.kernel_alive = false;
            finish.state = KernelState::Lost { reason };
        }
    }
}

enum End {
    Done {
        reason: Option<Reason>,
        files: Vec<FileChange>,
        files_truncated: bool,
        files_seen: u64,
        disk_full: bool,
        env_not_applied: Vec<String>,
        forks: bool,
        exit_code: Option<i32>,
    },
    Killed(Reason),
    Died,
}

impl Run<'_> {
    async fn until_end(
        &mut self,
        kernel: &mut Kernel,
        place: &Place<'_>,
        interrupt: &Notify,
    ) -> End {
        let deadline = Instant::now() + self.request.timeout;
        let message = ToKernel::Execute {
            id: self.id,
            // As Python takes a file of it.
            code: (self.request.code.strip_prefix('\u{feff}')).unwrap_or(self.request.code),
            env: self.request.env,
            stdin: self.request.stdin,
            max_result_bytes: self.request.result_bytes,
            max_traceback_bytes: self.request.traceback_bytes,
            max_files: self.request.files,
            look_at_files: self.request.look_at_files,
            prompt: self.request.prompt,
            restore: self.request.restore,
            memory_bytes: self.request.memory_bytes,
        };
        let mut phase = Phase::Running;
        // Before the code runs: on a busy host it is quicker than we are.
        self.present = kernel.members(place.cgroup);
        // A kernel that was stopped does not read: the request must not hold us beyond the time.
        // A kernel that takes the request at once is asked before an interrupt kills it.
        let sent = tokio::select! {
            biased;
            sent = kernel.frames.send(&message) => sent.is_ok(),
            () = kernel.process.exited() => return End::Died,
            () = sleep_until(deadline) => return End::Killed(Reason::Timeout),
            () = self.abandoned() => return End::Killed(Reason::Interrupt),
            () = interrupt.notified() => return End::Killed(Reason::Interrupt),
        };
        if !sent {
            return End::Died;
        }
        // Until it says so itself, if it lives so long.
        self.execution_count = kernel.next_count;
        let begin_at = Instant::now() + BEGIN_TIME;
        let mut out = Vec::with_capacity(PIPE_BYTES);
        let mut err = Vec::with_capacity(PIPE_BYTES);
        loop {
            let running = matches!(phase, Phase::Running);
            // What comes before `started` is late output of an earlier execution; it waits its turn.
            let begun = self.begun || !self.request.prompt;
            let reads = begun && self.waiting.is_none();
            let (tick, kill_at) = match phase {
                Phase::Running => (deadline, deadline),
                Phase::Interrupting { next, kill_at, .. } => (next.min(kill_at), kill_at),
            };
            // A reader that takes nothing must not keep the code from hearing of its interrupt.
            let tell_until = if running { deadline } else { tick };
            out.clear();
            err.clear();
            tokio::select! {
                biased;
                () = kernel.process.exited() => return End::Died,
                () = sleep_until(tick) => match phase {
                    Phase::Running => self.begin_interrupt(&mut phase, kernel, Reason::Timeout),
                    Phase::Interrupting { reason, .. } if Instant::now() >= kill_at => {
                        return End::Killed(reason);
                    }
                    Phase::Interrupting { ref mut next, .. } => {
                        kernel.process.interrupt();
                        *next = Instant::now() + INTERRUPT_INTERVAL;
                    }
                },
                () = self.abandoned(), if running => {
                    self.begin_interrupt(&mut phase, kernel, Reason::Interrupt);
                }
                () = interrupt.notified(), if running => {
                    self.begin_interrupt(&mut phase, kernel, Reason::Interrupt);
                }
                () = sleep_until(begin_at), if !begun => {
                    let execution_count = kernel.next_count;
                    let started = FromKernel::Started { id: self.id, execution_count };
                    self.take(started, tell_until).await;
                }
                Ok(_) = kernel.stdout.read_buf(&mut out), if reads => {
                    self.hear_in_order(kernel, Which::Stdout, &out, tell_until).await;
                    if out.is_empty() { tokio::task::yield_now().await }
                }
                Ok(_) = kernel.stderr.read_buf(&mut err), if reads => {
                    self.hear_in_order(kernel, Which::Stderr, &err, tell_until).await;
                    if err.is_empty() { tokio::task::yield_now().await }
                }
                body = kernel.frames.next() => {
                    // The socket was closed or garbage came: this kernel cannot be spoken with.
                    let Ok(Some(body)) = body else { return End::Died };
                    self.come_to_frame(kernel, &body, tell_until).await;
                    let frame = match self.read(body).await {
                        Ok(Some(frame)) => frame,
                        Ok(None) => continue,
                        Err(_) => return End::Died,
                    };
                    if let FromKernel::Checkpoint { pid, objection } = frame {
                        kernel.note_checkpoint(pid, objection);
                        continue;
                    }
                    if let FromKernel::Done {
                        execution_count, next_count, files, files_truncated, files_seen, disk_full,
                        forks, exit_code, left_out, env_not_applied, ..
                    } = frame {
                        self.left_out.add(left_out);
                        self.execution_count = execution_count;
                        kernel.next_count = next_count;
                        let reason = match phase {
                            Phase::Running => None,
                            Phase::Interrupting { reason, .. } => Some(reason),
                        };
                        return End::Done {
                            reason, files, files_truncated, files_seen, disk_full,
                            env_not_applied, forks, exit_code,
                        };
                    }
                    self.take(frame, tell_until).await;
                    self.tell_in_order(kernel, tell_until).await;
                }
                () = tokio::time::sleep(FRAMES_TIME), if self.waiting.is_some() => {
                    self.stop_waiting(kernel, tell_until).await;
                }
            }
        }
    }

    /// Resolves when the client has gone away and the code is not to go on without it.
    async fn abandoned(&self) {
        match self.request.on_disconnect {
            OnDisconnect::Interrupt => self.events.closed().await,
            OnDisconnect::Continue => std::future::pending().await,
        }
    }

    /// Charges a frame and reads it; `None` for one that is dropped unread: of another execution, or
    /// over the budget and not what ends the execution.
    async fn read(&mut self, body: BytesMut) -> io::Result<Option<FromKernel>> {
        let cost = body.len() + FRAME_COST_BYTES;
        if cost <= self.frame_bytes_left {
            self.frame_bytes_left -= cost;
        } else {
            if !ENDING_FRAMES.iter().any(|start| body.starts_with(start)) {
                self.left_out.add(LeftOut {
                    results: 1,
                    bytes: body.len() as u64,
                });
                return Ok(None);
            }
        }
        let id = self.id;
        if body.len() <= INLINE_FRAME_BYTES {
            return frame::parse(&body, id);
        }
        // Milliseconds of work: off the threads that answer others, and few at a time.
        static LARGE_FRAMES: Semaphore = Semaphore::const_new(2);
        let _permit = LARGE_FRAMES.acquire().await.map_err(io::Error::other)?;
        let read = tokio::task::spawn_blocking(move || frame::parse(&body, id));
        read.await.map_err(io::Error::other)?
    }

    fn begin_interrupt(&self, phase: &mut Phase, kernel: &Kernel, reason: Reason) {
        kernel.process.interrupt();
        let now = Instant::now();
        *phase = Phase::Interrupting {
            reason,
            next: now + INTERRUPT_INTERVAL,
            kill_at: now + self.request.grace,
        };
    }

    /// A frame other than `done`.
    async fn take(&mut self, frame: FromKernel, until: Instant) {
        let event = match frame {
            FromKernel::Started {
                execution_count, ..
            } if !self.begun => {
                self.begun = true;
                self.execution_count = execution_count;
                Event::Started { execution_count }
            }
            FromKernel::Result {
                kind,
                data,
                metadata,
                display_id,
                left_out,
                ..
            } => {
                self.left_out.add(left_out);
                Event::Result(RichResult {
                    kind,
                    data,
                    metadata,
                    display_id,
                })
            }
            FromKernel::ClearOutput { wait, .. } => Event::ClearOutput { wait },
            FromKernel::Error {
                mut name,
                mut value,
                mut traceback,
                ..
            } if !self.raised => {
                self.raised = true;
                for text in [&mut name, &mut value, &mut traceback] {
                    truncate(text, 2 * self.request.traceback_bytes);
                }
                Event::Error(PythonError {
                    name,
                    value,
                    traceback,
                })
            }
            // Out of turn: forged.
            _ => return,
        };
        if matches!(event, Event::ClearOutput { .. }) {
            // What was held back is older.
            self.tell_held(until).await;
        }
        self.tell(event, until).await;
    }

    /// Tells what a kernel that will say nothing more has left in its socket.
    async fn take_left(&mut self, kernel: &mut Kernel) {
        let soon = Instant::now() + TELL_TIME;
        let mut left = LEFT_BYTES;
        for _ in 0..LEFT_FRAMES {
            let Some(body) = kernel.frame_left(&mut left) else {
                return;
            };
            self.come_to_frame(kernel, &body, soon).await;
            match self.read(body).await {
                Ok(Some(FromKernel::Checkpoint { pid, objection })) => {
                    kernel.note_checkpoint(pid, objection);
                }
                Ok(Some(frame)) => self.take(frame, soon).await,
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    /// Tells what is in the pipes now. The end of what the code wrote is there when the execution has
    /// ended; someone who goes on writing must not keep it open.
    async fn drain(&mut self, kernel: &mut Kernel) {
        let soon = Instant::now() + TELL_TIME;
        self.stop_waiting(kernel, soon).await;
        for which in [Which::Stdout, Which::Stderr] {
            let rest = self.order.take_rest(which as usize);
            self.hear(which, &rest, soon).await;
            let mut left = PIPE_MOST_BYTES;
            loop {
                let bytes = read_now(which.pipe(kernel));
                left = left.saturating_sub(bytes.len());
                self.hear(which, &bytes, soon).await;
                if bytes.is_empty() || left == 0 {
                    break;
                }
            }
        }
    }

    /// Bytes of a pipe, of which only what is next may be told where somebody looks on.
    async fn hear_in_order(
        &mut self,
        kernel: &mut Kernel,
        which: Which,
        bytes: &[u8],
        until: Instant,
    ) {
        if self.request.prompt {
            self.order.push(which as usize, bytes);
            self.tell_in_order(kernel, until).await;
        } else {
            self.hear(which, bytes, until).await;
        }
    }

    /// What was written before a frame is told before it.
    async fn come_to_frame(&mut self, kernel: &mut Kernel, body: &[u8], until: Instant) {
        if self.request.prompt && SHOWN_FRAMES.iter().any(|start| body.starts_with(start)) {
            self.tell_in_order(kernel, until).await;
            self.order.count_frame();
        }
    }

    /// Tells what is in the pipes, up to a mark that says that frames come first.
    async fn tell_in_order(&mut self, kernel: &mut Kernel, until: Instant) {
        self.waiting = None;
        if !self.request.prompt {
            return;
        }
        let mut left = 2 * PIPE_MOST_BYTES;
        for round in 1.. {
            if round % ROUNDS == 0 {
                tokio::task::yield_now().await;
            }
            // Both pipes are read again once a mark was seen: only then they hold all that was before it.
            let mark = self.order.first_mark();
            let mut came = false;
            for which in [Which::Stdout, Which::Stderr] {
                let text = self.order.take(which as usize);
                self.hear(which, &text, until).await;
                if self.order.mark(which as usize).is_none() && left > 0 {
                    let bytes = read_now(which.pipe(kernel));
                    left = left.saturating_sub(bytes.len());
                    came |= !bytes.is_empty();
                    self.order.push(which as usize, &bytes);
                }
            }
            if came || self.order.first_mark() != mark {
                continue;
            }
            let Some(mark) = mark else { return };
            if self.order.waits(mark) {
                self.waiting = Some(mark);
                return;
            }
            self.order.pass(mark);
        }
    }

    /// Tells what waits for frames that do not come.
    async fn stop_waiting(&mut self, kernel: &mut Kernel, until: Instant) {
        self.tell_in_order(kernel, until).await;
        if self.waiting.is_some() {
            self.order.stop_waiting();
            self.tell_in_order(kernel, until).await;
        }
    }

    /// Bytes of a pipe.
    async fn hear(&mut self, which: Which, bytes: &[u8], until: Instant) {
        if bytes.is_empty() {
            return;
        }
        let stream = match which {
            Which::Stdout => &mut self.stdout,
            Which::Stderr => &mut self.stderr,
        };
        let (event, text) = (stream.event, stream.push(bytes, until).await);
        self.tell_text(event, text, until).await;
    }

    /// Tells what was held back. What comes later is kept from its first byte again.
    async fn tell_held(&mut self, until: Instant) {
        let (out, err) = (self.stdout.flush(), self.stderr.flush());
        self.tell_text(Event::Stdout, out, until).await;
        self.tell_text(Event::Stderr, err, until).await;
    }

    async fn tell_text(&self, kind: fn(String) -> Event, text: String, until: Instant) {
        if !text.is_empty() {
            self.tell(kind(text), until).await;
        }
    }

    /// A reader that is slow slows the code down, but never past its time or an interrupt.
    async fn tell(&self, event: Event, until: Instant) {
        tokio::select! {
            biased;
            _ = tokio::time::timeout_at(until, self.events.send(event)) => {}
            // Kept for the loop, which acts on it.
            () = self.interrupt.notified() => self.interrupt.notify_one(),
        }
    }
}

fn truncate(text: &mut String, limit: usize) {
    if text.len() > limit {
        let end = (0..=limit)
            .rev()
            .find(|i| text.is_char_boundary(*i))
            .unwrap_or(0);
        text.truncate(end);
    }
}
