//! One output stream of an execution or a command: decoded as it comes, kept up to a limit.

use std::os::fd::AsFd;

/// Read at once from a pipe, whose buffer in the kernel holds as much (pipe(7)).
pub const PIPE_BYTES: usize = 64 * 1024;
/// Most that a pipe's buffer can hold: `/proc/sys/fs/pipe-max-size`, which user code can ask for.
pub const PIPE_MOST_BYTES: usize = 1024 * 1024;

/// What a non-blocking pipe holds at this moment, [`PIPE_BYTES`] at most; empty when it is empty or
/// at its end. Asks the kernel itself: tokio knows only what its reactor has seen so far.
pub fn read_now(pipe: impl AsFd) -> Vec<u8> {
    let mut buffer = vec![0; PIPE_BYTES];
    let read = rustix::io::read(pipe, &mut buffer).unwrap_or(0);
    buffer.truncate(read);
    buffer
}

/// Bytes in, text out. Invalid UTF-8 becomes U+FFFD, characters cut by a read are put together.
#[derive(Debug)]
pub struct Output {
    limit_bytes: usize,
    kept_bytes: usize,
    dropped_bytes: u64,
    partial: Vec<u8>,
}

impl Output {
    /// Keeps at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            kept_bytes: 0,
            dropped_bytes: 0,
            partial: Vec::new(),
        }
    }

    /// Text of what is within the limit; empty when all of it is over.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let room = self.limit_bytes - self.kept_bytes;
        let kept = &bytes[..bytes.len().min(room)];
        self.kept_bytes += kept.len();
        self.dropped_bytes += (bytes.len() - kept.len()) as u64;
        if kept.is_empty() {
            return String::new();
        }
        self.partial.extend_from_slice(kept);
        let end = self.partial.len() - incomplete_suffix(&self.partial);
        let text = String::from_utf8_lossy(&self.partial[..end]).into_owned();
        self.partial.drain(..end);
        text
    }

    /// What is left at the end, and a marker when something was dropped.
    pub fn finish(&mut self, name: &str) -> String {
        let mut text = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        if self.dropped_bytes > 0 {
            text.push_str(&format!(
                "\n[{name} truncated: {} bytes beyond the limit of {} bytes were dropped]\n",
                self.dropped_bytes, self.limit_bytes
            ));
        }
        text
    }

    /// Bytes beyond the limit.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
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
    fn what_is_over_the_limit_is_counted_and_marked() {
        let mut output = Output::new(4);
        assert_eq!(output.push(b"abcdef"), "abcd");
        assert_eq!(output.push(b"gh"), "");
        assert_eq!(output.dropped_bytes(), 4);
        assert!(
            output
                .finish("stdout")
                .contains("4 bytes beyond the limit of 4")
        );
    }
}
