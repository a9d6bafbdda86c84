//! Keeps migrations between cgroups fast while sandboxes are being made.
//!
//! The first migration after a pause waits for a grace period of RCU, some 11 ms, since the kernel
//! takes a lock that every fork reads (`cgroup_threadgroup_rwsem`); while that lock was taken within
//! the last grace period the next costs 0.03 ms. The mount option `favordynmods` does away with the
//! wait for the whole host and for good; this does so for a second after each use, by asking for a
//! migration that moves nothing: this process, to the cgroup in which it is.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::cgroup::Layout;
use super::error::{Context, Error};

/// The thread that does it.
#[derive(Debug)]
pub struct Migrations {
    wanted: mpsc::SyncSender<()>,
}

/// Time after a use for which migrations are kept fast.
const KEEP_FAST: Duration = Duration::from_secs(1);
/// Below a grace period.
const KEEP_INTERVAL: Duration = Duration::from_millis(4);

impl Migrations {
    /// Starts the thread that does it; it ends when the value is dropped.
    pub fn start(layout: &Layout) -> Result<Self, Error> {
        let own = fs::read_to_string("/proc/self/cgroup")
            .map_err(Error::path("read", "/proc/self/cgroup"))?;
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap_or_default();
        let path = layout.unified_root().join(own).join("cgroup.procs");
        let (wanted, asked) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("migrations".into())
            .spawn(move || keep_fast(&path, &asked))
            .context("start a thread")?;
        Ok(Self { wanted })
    }

    /// A migration is about to come. Does not wait.
    pub fn expect(&self) {
        // A full queue means that it is known.
        let _ = self.wanted.try_send(());
    }
}

fn keep_fast(procs: &Path, asked: &mpsc::Receiver<()>) {
    let pid = std::process::id().to_string();
    while asked.recv().is_ok() {
        let mut until = Instant::now() + KEEP_FAST;
        while Instant::now() < until {
            // Where it does not work migrations take what they take.
            let _ = fs::write(procs, &pid);
            std::thread::sleep(KEEP_INTERVAL);
            match asked.try_recv() {
                Ok(()) => until = Instant::now() + KEEP_FAST,
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
    }
}
