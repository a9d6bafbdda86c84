//! What a kernel's process has read and written, as the host's kernel counts it.
//!
//! `rchar` and `wchar` of proc_pid_io(5): bytes that the process, and those of its children that it has
//! waited for, passed through `read`, `write` and their like. Files, pipes, sockets and what is printed
//! count alike, whatever they lie on; memory maps and children that still run do not count. The block
//! layer's counters (`io.stat`, `blkio`) would not do: the files of a sandbox are mostly on a tmpfs,
//! which has no blocks.

use std::fs;

use crate::isolation::host::Process;

/// Bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// By `read` and the like.
    pub read_bytes: u64,
    /// By `write` and the like.
    pub written_bytes: u64,
}

impl Transfer {
    /// `None` for a process that is gone, and on hosts that do not count.
    pub(super) fn of(process: &Process) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{}/io", process.pid())).ok()?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line?.trim().parse().ok()
        };
        Some(Self {
            read_bytes: value("rchar:")?,
            written_bytes: value("wchar:")?,
        })
    }

    /// What came since an earlier count of the same process.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let text = "rchar: 4292\nwchar: 7\nsyscr: 13\nsyscw: 0\nread_bytes: 0\n";
        let transfer = Transfer::parse(text).expect("counters");
        assert_eq!((transfer.read_bytes, transfer.written_bytes), (4292, 7));
        assert_eq!(Transfer::parse("rchar: 1\n"), None);
    }
}
