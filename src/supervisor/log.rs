//! What a process has written, in the order in which it came: the last so many bytes of it, for any
//! number of readers at any time.
//!
//! Bytes are named by their offset from the first that the process wrote, both streams together.
//! What is over the limit is dropped from the start, so memory is bounded whatever a process writes.
//! A [`Reader`] holds the process up instead while it is behind by half of the limit: it misses
//! nothing. Without readers nobody is waited for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::types::{Piece, ProcessEnd, Stream};

/// Each change of streams takes memory beside the bytes: at most one for so many bytes of the limit,
const BYTES_OF_A_SPAN: usize = 16;
/// and these in any case.
const SPANS: usize = 16;

/// Output of one process, and its end.
#[derive(Debug)]
pub(super) struct Log {
    limit_bytes: usize,
    state: Mutex<State>,
    /// Something was added: bytes or the end.
    added: Notify,
    /// A reader has come further or has gone.
    read: Notify,
}

#[derive(Debug, Default)]
struct State {
    bytes: VecDeque<u8>,
    /// Streams and the offsets from which on bytes are theirs.
    spans: VecDeque<(Stream, u64)>,
    /// Offset of the first byte that is kept.
    start: u64,
    /// Where readers are.
    readers: Vec<(u64, u64)>,
    next_reader: u64,
    end: Option<ProcessEnd>,
}

impl State {
    fn next_offset(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Bytes that the slowest reader has still to read.
    fn unread(&self) -> usize {
        let slowest = self.readers.iter().map(|&(_, offset)| offset).min();
        slowest.map_or(0, |offset| {
            let unread = self.next_offset().saturating_sub(offset.max(self.start));
            unread as usize
        })
    }

    /// Drops the oldest bytes.
    fn drop_first(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.start += count as u64;
        while self.spans.len() > 1 && self.spans[1].1 <= self.start {
            self.spans.pop_front();
        }
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        if self.spans.back().is_none_or(|(last, _)| *last != stream) {
            self.spans.push_back((stream, self.next_offset()));
        }
        self.bytes.extend(bytes);
    }

    /// What one stream wrote at an offset, `most` bytes at most. Empty at the end.
    fn piece(&self, offset: u64, most: usize) -> Option<Piece> {
        let from = offset.max(self.start);
        if from >= self.next_offset() {
            return None;
        }
        // The first begins at or before what is kept.
        let next = self.spans.partition_point(|&(_, start)| start <= from);
        let (stream, _) = *self.spans.get(next.checked_sub(1)?)?;
        let end = self.spans.get(next).map_or(self.next_offset(), |s| s.1);
        let first = (from - self.start) as usize;
        let length = ((end - from) as usize).min(most);
        Some(Piece {
            stream,
            offset: from,
            lost_bytes: from - offset,
            bytes: self.bytes.range(first..first + length).copied().collect(),
        })
    }
}

impl Log {
    /// Keeps the last `limit_bytes`.
    pub(super) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            state: Mutex::default(),
            added: Notify::new(),
            read: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    /// Bytes to read at once from a process: what always fits beside what readers have not read.
    pub(super) fn read_bytes(&self, most: usize) -> usize {
        most.min((self.limit_bytes / 4).max(1))
    }

    /// Adds what a process wrote; the oldest bytes make room for it.
    pub(super) fn push(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state();
        for bytes in bytes.chunks(self.limit_bytes) {
            let over = (state.bytes.len() + bytes.len()).saturating_sub(self.limit_bytes);
            state.drop_first(over);
            state.push(stream, bytes);
        }
        let most = (self.limit_bytes / BYTES_OF_A_SPAN).max(SPANS);
        while state.spans.len() > most {
            let oldest = (state.spans[1].1 - state.start) as usize;
            state.drop_first(oldest);
        }
        drop(state);
        self.added.notify_waiters();
    }

    /// The process has ended; nothing is added afterwards.
    pub(super) fn end(&self, end: ProcessEnd) {
        let mut state = self.state();
        state.bytes.shrink_to_fit();
        state.spans.shrink_to_fit();
        state.end.get_or_insert(end);
        drop(state);
        self.added.notify_waiters();
    }

    /// How the process ended, `None` while it runs.
    pub(super) fn ended(&self) -> Option<ProcessEnd> {
        self.state().end.clone()
    }

    /// Resolves at the process's end.
    pub(super) async fn wait_end(&self) -> ProcessEnd {
        look_until(&self.added, || self.ended()).await
    }

    /// Offset after the last byte so far.
    pub(super) fn next_offset(&self) -> u64 {
        self.state().next_offset()
    }

    /// Resolves when readers have read so much that `share` of the limit is free.
    pub(super) async fn room(&self, share: Share) {
        let most = match share {
            Share::Half => self.limit_bytes / 2,
            Share::Read(bytes) => self.limit_bytes.saturating_sub(bytes),
        };
        look_until(&self.read, || (self.state().unread() <= most).then_some(())).await;
    }

    /// What is kept from an offset on, `most` bytes at most, a piece for each change of streams.
    pub(super) fn since(&self, offset: u64, most: usize) -> Kept {
        let state = self.state();
        let (mut pieces, mut at, mut left) = (Vec::new(), offset, most);
        while let Some(piece) = state.piece(at, left).filter(|_| left > 0) {
            at = piece.offset + piece.bytes.len() as u64;
            left -= piece.bytes.len();
            pieces.push(piece);
        }
        Kept {
            pieces,
            next_offset: state.next_offset(),
            end: state.end.clone(),
        }
    }

    /// Resolves when something was added after an offset, or the process has ended.
    pub(super) async fn wait_after(&self, offset: u64) {
        look_until(&self.added, || {
            let state = self.state();
            (state.next_offset() > offset || state.end.is_some()).then_some(())
        })
        .await;
    }

    /// A reader from an offset on.
    pub(super) fn reader(self: &Arc<Self>, offset: u64) -> Reader {
        let mut state = self.state();
        let id = state.next_reader;
        state.next_reader += 1;
        state.readers.push((id, offset));
        drop(state);
        Reader {
            log: Arc::clone(self),
            id,
            offset,
        }
    }
}

/// A look at a log.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) pieces: Vec<Piece>,
    /// After everything that was written by then.
    pub(super) next_offset: u64,
    /// Where the process had ended by then.
    pub(super) end: Option<ProcessEnd>,
}

/// How much of a log must be free.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    /// Half of it: what a process that runs must leave for what comes at its end.
    Half,
    /// So many bytes.
    Read(usize),
}

/// Waits until a look gives something; looks again after each notice.
async fn look_until<T>(notice: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let mut noticed = std::pin::pin!(notice.notified());
        // From here on no notice is missed.
        noticed.as_mut().enable();
        if let Some(seen) = look() {
            return seen;
        }
        noticed.await;
    }
}

/// One that reads everything, in order. The process is held up while it is behind.
#[derive(Debug)]
pub(super) struct Reader {
    log: Arc<Log>,
    id: u64,
    offset: u64,
}

impl Reader {
    /// The next piece, `most` bytes at most; `None` at the end. May be given up at any point.
    pub(super) async fn next(&mut self, most: usize) -> Option<Piece> {
        let (log, offset) = (Arc::clone(&self.log), self.offset);
        let piece = look_until(&log.added, || {
            let state = log.state();
            match state.piece(offset, most) {
                Some(piece) => Some(Some(piece)),
                None => state.end.is_some().then_some(None),
            }
        })
        .await?;
        self.offset = piece.offset + piece.bytes.len() as u64;
        let mut state = log.state();
        let reader = state.readers.iter_mut().find(|(id, _)| *id == self.id);
        if let Some((_, offset)) = reader {
            *offset = self.offset;
        }
        drop(state);
        log.read.notify_waiters();
        Some(piece)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.log.state().readers.retain(|(id, _)| *id != self.id);
        self.log.read.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(log: &Log, offset: u64) -> Vec<(Stream, String, u64)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let kept = log.since(offset, usize::MAX);
        kept.pieces
            .into_iter()
            .map(|p| (p.stream, text(p.bytes), p.lost_bytes))
            .collect()
    }

    #[test]
    fn the_last_bytes_are_kept_with_their_streams() {
        let log = Log::new(8);
        log.push(Stream::Stdout, b"abc");
        log.push(Stream::Stdout, b"d");
        log.push(Stream::Stderr, b"EF");
        let all = [
            (Stream::Stdout, "abcd".to_owned(), 0),
            (Stream::Stderr, "EF".to_owned(), 0),
        ];
        assert_eq!(shown(&log, 0), all);
        assert_eq!(log.since(0, 3).pieces.len(), 1);
        assert_eq!(log.since(0, 5).pieces[1].bytes, b"E");
        assert_eq!(shown(&log, 5), [(Stream::Stderr, "F".to_owned(), 0)]);
        log.push(Stream::Stdout, b"ghijk");
        assert_eq!(log.next_offset(), 11);
        assert_eq!(
            shown(&log, 1),
            [
                (Stream::Stdout, "d".to_owned(), 2),
                (Stream::Stderr, "EF".to_owned(), 0),
                (Stream::Stdout, "ghijk".to_owned(), 0)
            ]
        );
        log.push(Stream::Stderr, &[b'x'; 100]);
        assert_eq!(shown(&log, 0), [(Stream::Stderr, "x".repeat(8), 103)]);
        assert!(shown(&log, 111).is_empty());
    }

    #[test]
    fn many_changes_of_streams_take_little_memory() {
        let log = Log::new(1024);
        for _ in 0..100_000 {
            log.push(Stream::Stdout, b"o");
            log.push(Stream::Stderr, b"e");
        }
        let state = log.state();
        assert!(state.spans.len() <= 1024 / BYTES_OF_A_SPAN);
        assert!(state.spans.capacity() <= 256 && state.bytes.capacity() <= 2048);
        assert_eq!(state.next_offset(), 200_000);
    }

    #[tokio::test]
    async fn a_reader_holds_up_what_writes_and_misses_nothing() {
        let log = Log::new(8);
        let mut reader = log.reader(0);
        log.push(Stream::Stdout, b"abcdef");
        let mut room = Box::pin(log.room(Share::Half));
        assert!(futures_util::poll!(&mut room).is_pending());
        assert_eq!(reader.next(3).await.map(|p| p.bytes), Some(b"abc".to_vec()));
        room.await;
        log.push(Stream::Stderr, b"gh");
        assert_eq!(reader.next(9).await.map(|p| p.bytes), Some(b"def".to_vec()));
        let last = reader.next(9).await.expect("there is more");
        assert_eq!((last.stream, last.offset), (Stream::Stderr, 6));
        log.end(ProcessEnd {
            code: Some(0),
            signal: None,
            timed_out: false,
            out_of_memory: false,
            ended_at: std::time::SystemTime::now(),
            wall: std::time::Duration::ZERO,
        });
        assert!(reader.next(9).await.is_none());
        let mut late = log.reader(0);
        assert_eq!(late.next(9).await.map(|p| p.bytes.len()), Some(6));
        drop((reader, late));
        log.room(Share::Read(8)).await;
    }
}
