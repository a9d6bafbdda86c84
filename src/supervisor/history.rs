//! What commands in a row did in a sandbox: the last of it, within a number of bytes.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::types::Record;

/// What a record costs beside its text.
const RECORD_BYTES: usize = 128;

/// A ring of records.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<Record>,
    bytes: usize,
}

impl History {
    /// Adds a record; the oldest make room for it. One record has up to a quarter of the limit.
    pub(super) fn push(&self, mut record: Record, limit_bytes: usize) {
        let most = limit_bytes / 4;
        keep_start(&mut record.command, most / 4);
        keep_end(&mut record.output, most - most / 4);
        let mut ring = self.0.lock().expect("not poisoned");
        ring.bytes += cost(&record);
        ring.records.push_back(record);
        while ring.bytes > limit_bytes
            && let Some(oldest) = ring.records.pop_front()
        {
            ring.bytes -= cost(&oldest);
        }
    }

    /// Oldest first.
    pub(super) fn records(&self) -> Vec<Record> {
        let ring = self.0.lock().expect("not poisoned");
        ring.records.iter().cloned().collect()
    }
}

fn cost(record: &Record) -> usize {
    RECORD_BYTES + record.command.len() + record.output.len()
}

fn keep_start(text: &mut String, most: usize) {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.shrink_to_fit();
}

fn keep_end(text: &mut String, most: usize) {
    let mut from = text.len().saturating_sub(most);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.drain(..from);
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_records_are_kept_within_the_limit() {
        let history = History::default();
        let limit = 4096;
        for n in 0..100 {
            let record = Record {
                at: std::time::SystemTime::now(),
                command: format!("command {n} {}", "é".repeat(10_000)),
                output: format!("{}end {n}", "ü".repeat(10_000)),
                exit_code: Some(n),
            };
            history.push(record, limit);
        }
        let records = history.records();
        assert!((3..=5).contains(&records.len()), "{}", records.len());
        let bytes: usize = records.iter().map(cost).sum();
        assert!(bytes <= limit, "{bytes}");
        let last = records.last().unwrap();
        assert_eq!(last.exit_code, Some(99));
        assert!(last.command.starts_with("command 99") && last.output.ends_with("end 99"));
    }
}
