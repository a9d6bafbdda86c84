//! One output stream of a running execution: text for its client and, once it is over-long, all of it
//! for a file.
//!
//! ```text
//! pipe ─┬─► Output ─► text: the first part, and the last one at the end
//!       └─► copy ──over-long──► parts, to whoever saves them: the copy, then what follows
//! ```
//!
//! The copy holds what the output limit keeps, so nothing is opened or sent for a stream within it.

use std::time::Duration;

use tokio::net::unix::pipe::Receiver as PipeReader;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::execution::Request;
use super::handle::Kernel;
use super::output::Output;
use crate::supervisor::types::{Event, Written};

/// Parts on their way: few, as each holds as much as one read.
const PARTS: usize = 4;
/// Longest that the code waits for a part to be taken; then the stream is not saved.
const STALL_TIME: Duration = Duration::from_secs(1);

/// Takes the parts of a stream once it is over-long. Parts that stop without an end are of no use.
pub type Saver = oneshot::Sender<mpsc::Receiver<Part>>;

/// A part of an over-long stream, from its first byte on.
#[derive(Debug)]
pub enum Part {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// No more come.
    End {
        /// The stream ended too, and was not cut at [`Request::saved_bytes`].
        whole: bool,
    },
}

/// Which of the two.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    Stdout,
    Stderr,
}

impl Which {
    pub(super) fn pipe(self, kernel: &mut Kernel) -> &mut PipeReader {
        match self {
            Self::Stdout => &mut kernel.stdout,
            Self::Stderr => &mut kernel.stderr,
        }
    }
}

/// One of the two output streams.
pub(super) struct Stream {
    name: &'static str,
    pub(super) event: fn(String) -> Event,
    output: Output,
    copy: Copy,
    /// Bytes that may still go into the copy and the parts.
    left_bytes: usize,
    saved_bytes: usize,
}

enum Copy {
    /// Within the limit so far.
    Kept { bytes: Vec<u8>, saver: Saver },
    /// Over it.
    Sent(mpsc::Sender<Part>),
    /// Saved as far as it is.
    Over,
}

impl Stream {
    pub(super) fn new(which: Which, request: &Request<'_>, saver: Saver) -> Self {
        let (name, event): (_, fn(String) -> Event) = match which {
            Which::Stdout => ("stdout", Event::Stdout),
            Which::Stderr => ("stderr", Event::Stderr),
        };
        let kept = Copy::Kept {
            bytes: Vec::new(),
            saver,
        };
        Self {
            name,
            event,
            output: Output::new(request.output_bytes),
            copy: if request.saved_bytes > 0 {
                kept
            } else {
                Copy::Over
            },
            left_bytes: request.saved_bytes,
            saved_bytes: request.saved_bytes,
        }
    }

    /// Takes bytes of the pipe; gives the text to tell now.
    pub(super) async fn push(&mut self, bytes: &[u8], until: Instant) -> String {
        let text = self.output.push(bytes);
        let copied = &bytes[..bytes.len().min(self.left_bytes)];
        let is_cut = self.output.is_cut();
        match &mut self.copy {
            Copy::Over => return text,
            Copy::Kept { bytes: kept, .. } => {
                kept.extend_from_slice(copied);
                self.left_bytes -= copied.len();
                if is_cut {
                    self.begin_parts(until).await;
                }
            }
            Copy::Sent(_) => {
                self.left_bytes -= copied.len();
                self.send(copied.to_vec(), until).await;
            }
        }
        if copied.len() < bytes.len() && matches!(self.copy, Copy::Sent(_)) {
            self.end_parts(false, until).await;
        }
        text
    }

    async fn begin_parts(&mut self, until: Instant) {
        let Copy::Kept { bytes, saver } = std::mem::replace(&mut self.copy, Copy::Over) else {
            return;
        };
        let (sender, receiver) = mpsc::channel(PARTS);
        if saver.send(receiver).is_ok() {
            self.copy = Copy::Sent(sender);
            self.send(bytes, until).await;
        }
    }

    async fn send(&mut self, bytes: Vec<u8>, until: Instant) {
        if !bytes.is_empty() && !self.tell(Part::Bytes(bytes), until).await {
            self.copy = Copy::Over;
        }
    }

    /// False where nobody takes it.
    async fn tell(&self, part: Part, until: Instant) -> bool {
        let Copy::Sent(parts) = &self.copy else {
            return false;
        };
        let until = until.min(Instant::now() + STALL_TIME);
        matches!(timeout_at(until, parts.send(part)).await, Ok(Ok(())))
    }

    async fn end_parts(&mut self, whole: bool, until: Instant) {
        self.tell(Part::End { whole }, until).await;
        self.copy = Copy::Over;
    }

    /// Text that was held back. What comes later is kept from its first byte again.
    pub(super) fn flush(&mut self) -> String {
        if let Copy::Kept { bytes, .. } = &mut self.copy {
            bytes.clear();
            self.left_bytes = self.saved_bytes;
        }
        self.output.finish(self.name)
    }

    /// After the last byte.
    pub(super) async fn end(&mut self, until: Instant) -> Written {
        if matches!(self.copy, Copy::Sent(_)) {
            self.end_parts(true, until).await;
        }
        self.copy = Copy::Over;
        Written {
            bytes: self.output.written_bytes(),
            left_out_bytes: self.output.dropped_bytes(),
            saved: None,
        }
    }
}
