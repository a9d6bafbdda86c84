//! What a kernel's process has read and written, as the host's kernel counts it.
//!
//! `rchar` and `wchar` of proc_pid_io(5): bytes that the process, and those of its children that it has
//! waited for, passed through `read`, `write` and their like. Files, pipes, sockets and what is printed
//! count alike, whatever they lie on; memory maps and children that still run do not count. The block
//! layer's counters (`io.stat`, `blkio`) would not do: the files of a sandbox are mostly on a tmpfs,
//! which has no blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::isolation::host::Process;

/// Where the bytes of one process are counted. Kept open: to find it takes four times as long as to read it.
#[derive(Debug)]
pub(super) struct Meter(File);

impl Meter {
    /// `None` for a process that is gone.
    pub(super) fn of(process: &Process) -> Option<Self> {
        let file = File::open(format!("/proc/{}/io", process.pid()));
        // If the process is there now, it was while the file was opened, and the file is its own.
        file.ok().filter(|_| !process.has_exited()).map(Self)
    }

    /// `None` once the process is gone, and on hosts that do not count.
    pub(super) fn read(&self) -> Option<Transfer> {
        let mut bytes = [0; 512];
        let read = self.0.read_at(&mut bytes, 0).ok()?;
        Transfer::parse(std::str::from_utf8(&bytes[..read]).ok()?)
    }
}

/// Bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// By `read` and the like.
    pub read_bytes: u64,
    /// By `write` and the like.
    pub written_bytes: u64,
}

impl Transfer {
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
