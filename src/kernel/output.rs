//! One output stream of an execution or a command: decoded as it comes, its first and last part kept.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;

/// Read at once from a pipe, whose buffer in the kernel holds as much (pipe(7)).
pub const PIPE_BYTES: usize = 64 * 1024;
/// Most that a pipe's buffer can hold: `/proc/sys/fs/pipe-max-size`, which user code can ask for.
pub const PIPE_MOST_BYTES: usize = 1024 * 1024;

/// What a non-blocking pipe holds at this moment, [`PIPE_BYTES`] at most; empty when it is empty or
/// at its end. Asks the kernel itself: tokio knows only what its reactor has seen so far.
pub fn read_now(pipe: impl AsFd) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(PIPE_BYTES);
    // Where it fails nothing has come.
    let _ = rustix::io::read(pipe, spare_capacity(&mut buffer));
    buffer
}

/// Of what is kept of an over-long stream, one part in so many is its end.
const TAIL_SHARE: usize = 4;

/// Bytes in, text out. Invalid UTF-8 becomes U+FFFD, characters cut by a read are put together.
///
/// Of a stream over the limit the first and the last part are kept. The first comes out at once; what
/// follows is held back, in no more memory than the last part takes, until the end shows which it is.
#[derive(Debug)]
pub struct Output {
    limit_bytes: usize,
    /// What may still come out at once.
    head_left_bytes: usize,
    partial: Vec<u8>,
    tail: VecDeque<u8>,
    /// Left out between the head and the tail.
    gap_bytes: u64,
    written_bytes: u64,
    dropped_bytes: u64,
    mid_line: bool,
}

impl Output {
    /// Keeps at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            head_left_bytes: limit_bytes - limit_bytes / TAIL_SHARE,
            partial: Vec::new(),
            tail: VecDeque::new(),
            gap_bytes: 0,
            written_bytes: 0,
            dropped_bytes: 0,
            mid_line: false,
        }
    }

    /// Text of what belongs to the first part; the rest is held back.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.written_bytes += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_left_bytes));
        self.head_left_bytes -= head.len();
        self.hold(rest);
        if head.is_empty() {
            return String::new();
        }
        self.partial.extend_from_slice(head);
        let end = self.partial.len() - incomplete_suffix(&self.partial);
        let text = String::from_utf8_lossy(&self.partial[..end]).into_owned();
        self.partial.drain(..end);
        self.note_line(&text);
        text
    }

    fn hold(&mut self, bytes: &[u8]) {
        let most = self.limit_bytes / TAIL_SHARE;
        let last = &bytes[bytes.len().saturating_sub(most)..];
        let old = (self.tail.len() + last.len()).saturating_sub(most);
        self.tail.drain(..old);
        self.tail.extend(last);
        self.gap_bytes += (bytes.len() - last.len() + old) as u64;
    }

    fn note_line(&mut self, text: &str) {
        if let Some(last) = text.chars().next_back() {
            self.mid_line = last != '\n';
        }
    }

    /// What was held back, after a marker where something before it was left out. What is pushed
    /// later has the whole limit again.
    pub fn finish(&mut self, name: &str) -> String {
        let mut held = std::mem::take(&mut self.partial);
        let mut text = String::new();
        if self.gap_bytes > 0 {
            // Characters cut by the gap: their other part is in it.
            let cut = self.tail.iter().take(3).take_while(|b| **b & 0xC0 == 0x80);
            let cut = cut.count();
            self.tail.drain(..cut);
            self.gap_bytes += (cut + held.len()) as u64;
            held.clear();
            text = format!(
                "{}[{name}: {} bytes are left out here, over the limit of {}]\n",
                if self.mid_line { "\n" } else { "" },
                self.gap_bytes,
                self.limit_bytes
            );
        }
        held.extend(std::mem::take(&mut self.tail));
        text.push_str(&String::from_utf8_lossy(&held));
        self.note_line(&text);
        self.dropped_bytes += std::mem::take(&mut self.gap_bytes);
        self.head_left_bytes = self.limit_bytes - self.limit_bytes / TAIL_SHARE;
        text
    }

    /// Whether something was left out since the last [`Output::finish`].
    pub fn is_cut(&self) -> bool {
        self.gap_bytes > 0
    }

    /// Bytes that were pushed.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Bytes that were left out.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes + self.gap_bytes
    }
}

/// Length of a character that has begun at the end of `bytes` but is not complete (0 to 3).
pub(crate) fn incomplete_suffix(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Ok(_) => 0,
        Err(_) => {
            let tail = &bytes[bytes.len().saturating_sub(3)..];
            (1..=tail.len())
                .find(|n| {
                    let suffix = &tail[tail.len() - n..];
                    suffix[0] >= 0xC0
                        && matches!(std::str::from_utf8(suffix), Err(e) if e.error_len().is_none())
                })
                .unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_cut_by_reads_are_put_together() {
        let mut output = Output::new(100);
        let text = "é漢🦀x".as_bytes();
        let joined: String = text.iter().map(|b| output.push(&[*b])).collect();
        assert_eq!(joined + &output.finish("stdout"), "é漢🦀x");
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        let mut output = Output::new(100);
        let text = output.push(b"a\xffb\xc3") + &output.finish("stdout");
        assert_eq!(text, "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn the_first_and_the_last_part_are_kept_around_a_marker() {
        let mut output = Output::new(8);
        assert_eq!(output.push(b"abcdef"), "abcdef");
        assert_eq!(output.push(b"0123456789"), "");
        assert_eq!(output.push(b"yz"), "");
        assert_eq!((output.written_bytes(), output.dropped_bytes()), (18, 10));
        let end = output.finish("stdout");
        assert!(
            end.starts_with("\n[stdout: 10 bytes are left out here") && end.ends_with("]\nyz"),
            "{end}"
        );
        assert_eq!(output.dropped_bytes(), 10);
    }

    #[test]
    fn up_to_the_limit_nothing_is_marked() {
        for text in ["12345é7", "12345678", "1234567é"] {
            let mut output = Output::new(8);
            let joined = output.push(text.as_bytes()) + &output.finish("stdout");
            assert_eq!(joined == text, text.len() <= 8, "{joined}");
            assert_eq!(output.dropped_bytes() > 0, text.len() > 8);
        }
    }

    #[test]
    fn characters_at_the_gap_are_whole_or_gone() {
        let mut output = Output::new(8);
        let text = output.push("12345é-------é6".as_bytes()) + &output.finish("stderr");
        assert!(
            text.starts_with("12345\n[stderr: 11 bytes") && text.ends_with("]\n6"),
            "{text}"
        );
        assert_eq!(output.written_bytes() - output.dropped_bytes(), 6);
    }

    #[test]
    fn what_comes_after_the_end_has_the_whole_limit_again() {
        let mut output = Output::new(8);
        output.push(b"0123456789");
        output.finish("stdout");
        assert_eq!(
            output.push(b"abcdefgh") + &output.finish("stdout"),
            "abcdefgh"
        );
        assert_eq!((output.written_bytes(), output.dropped_bytes()), (18, 2));
    }
}
