//! In which order a kernel wrote to its two pipes and showed things, for whoever looks on.
//!
//! The three ways are read independently. Python puts a mark before what it writes to another stream than
//! the last time, or after it has shown something:
//!
//! ```text
//! NUL, the execution's id (16 hexadecimal digits), number of the mark, frames sent before (32 bits each)
//! ```
//!
//! What was written before a mark is in the pipes, and what was shown before it in the socket, when the
//! mark can be read. So at a mark all that the other pipe holds comes first, up to a later mark of its own.
//! Programs that the code starts know nothing of marks; what they write belongs to the mark before it.

use bytes::{Buf, BytesMut};

/// Bytes of a mark.
const MARK_BYTES: usize = 1 + 16 + 4 + 4;

/// Bytes of both pipes that are not told yet.
#[derive(Debug)]
pub(super) struct Order {
    prefix: Vec<u8>,
    pending: [BytesMut; 2],
    /// Frames that were read, of those that marks count.
    frames: u32,
}

/// A mark at which a stream has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    number: u32,
    /// Which stream.
    pub(super) stream: usize,
    frames: u32,
}

impl Order {
    /// For the execution `id`.
    pub(super) fn new(id: u64) -> Self {
        Self {
            prefix: format!("\0{id:016x}").into_bytes(),
            pending: [BytesMut::new(), BytesMut::new()],
            frames: 0,
        }
    }

    /// Bytes were read from a pipe.
    pub(super) fn push(&mut self, stream: usize, bytes: &[u8]) {
        self.pending[stream].extend_from_slice(bytes);
    }

    /// A frame was read that marks count.
    pub(super) fn count_frame(&mut self) {
        self.frames = self.frames.saturating_add(1);
    }

    /// Gives what comes before the stream's next mark.
    pub(super) fn take(&mut self, stream: usize) -> BytesMut {
        let pending = &mut self.pending[stream];
        let end = mark_at(pending, &self.prefix);
        pending.split_to(end)
    }

    /// Gives the rest, whatever it is: nothing will follow.
    pub(super) fn take_rest(&mut self, stream: usize) -> BytesMut {
        std::mem::take(&mut self.pending[stream])
    }

    /// Where the stream is at a mark; [`Order::take`] has given what was before it.
    pub(super) fn mark(&self, stream: usize) -> Option<Mark> {
        let (mark, _) = self.pending[stream].split_first_chunk::<MARK_BYTES>()?;
        let numbers = mark.strip_prefix(&*self.prefix)?;
        let (number, frames) = numbers.split_first_chunk()?;
        Some(Mark {
            number: u32::from_be_bytes(*number),
            stream,
            frames: u32::from_be_bytes(*frames.first_chunk()?),
        })
    }

    /// The earliest mark at which a stream waits.
    pub(super) fn first_mark(&self) -> Option<Mark> {
        [0, 1].into_iter().filter_map(|n| self.mark(n)).min()
    }

    /// Whether frames are to be read before the stream goes on.
    pub(super) fn waits(&self, mark: Mark) -> bool {
        mark.frames > self.frames
    }

    /// Goes on behind a mark.
    pub(super) fn pass(&mut self, mark: Mark) {
        self.frames = self.frames.max(mark.frames);
        self.pending[mark.stream].advance(MARK_BYTES);
    }

    /// Frames that marks count do not come, so none is waited for any more: marks may be forged.
    pub(super) fn stop_waiting(&mut self) {
        self.frames = u32::MAX;
    }
}

/// Where a mark begins, or may as far as can be seen; the length where none does.
fn mark_at(bytes: &[u8], prefix: &[u8]) -> usize {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == 0) {
        let rest = &bytes[from + at..];
        let known = rest.len().min(prefix.len());
        if rest[..known] == prefix[..known] {
            return from + at;
        }
        from += at + 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(number: u32, frames: u32) -> Vec<u8> {
        let mut mark = Order::new(7).prefix;
        mark.extend(number.to_be_bytes());
        mark.extend(frames.to_be_bytes());
        mark
    }

    #[test]
    fn what_is_before_a_mark_comes_first() {
        let mut order = Order::new(7);
        order.push(0, &[b"a\0b".to_vec(), mark(2, 0), b"c".to_vec()].concat());
        order.push(1, &[mark(1, 0), b"x".to_vec()].concat());
        assert_eq!((&*order.take(0), &*order.take(1)), (&b"a\0b"[..], &b""[..]));
        let first = order.first_mark().expect("a mark");
        assert_eq!((first.stream, order.waits(first)), (1, false));
        order.pass(first);
        assert_eq!((&*order.take(0), &*order.take(1)), (&b""[..], &b"x"[..]));
        order.pass(order.first_mark().expect("a mark"));
        assert_eq!(&*order.take(0), b"c");
        assert_eq!(order.first_mark(), None);
    }

    #[test]
    fn a_mark_waits_for_the_frames_before_it() {
        let mut order = Order::new(7);
        order.push(0, &mark(1, 1));
        let first = order.first_mark().expect("a mark");
        assert!(order.waits(first));
        order.count_frame();
        assert!(!order.waits(first));
    }

    #[test]
    fn who_stops_waiting_does_so_for_every_mark() {
        let mut order = Order::new(7);
        for frames in 1..=1000 {
            order.push(0, &mark(frames, frames));
        }
        order.stop_waiting();
        for _ in 0..1000 {
            let first = order.first_mark().expect("a mark");
            assert!(!order.waits(first));
            order.pass(first);
        }
        assert_eq!(order.first_mark(), None);
    }

    #[test]
    fn a_mark_may_come_in_parts_and_others_are_text() {
        let mut order = Order::new(7);
        let bytes = [b"a".to_vec(), mark(1, 1)].concat();
        for byte in &bytes[..bytes.len() - 1] {
            order.push(0, &[*byte]);
            let text = order.take(0);
            assert!(text.is_empty() || *text == *b"a", "{text:?}");
            assert_eq!(order.mark(0), None);
        }
        order.push(0, &bytes[bytes.len() - 1..]);
        assert!(order.mark(0).is_some());
        let mut other = Order::new(8);
        other.push(0, &bytes);
        assert_eq!(&*other.take(0), &*bytes);
        order.push(1, b"\0");
        assert_eq!(
            (&*order.take(1), &*order.take_rest(1)),
            (&b""[..], &b"\0"[..])
        );
    }
}
