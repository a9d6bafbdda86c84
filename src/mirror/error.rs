//! The mirror's one error type. Every text completes "failed to …" and ends with the mend, where
//! there is one.

use std::io;
use std::path::{Path, PathBuf};

/// What a build, a check or the store could not do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a path.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it did not work.
        source: io::Error,
    },
    /// Building changes owners, mounts and chroots.
    #[error("build a mirror: only root can; run `sudo sandcell mirror build` once")]
    NotRoot,
    /// A program that building needs is neither there nor could be installed.
    #[error("find {program}: {mend}")]
    Tool {
        /// The program or file.
        program: &'static str,
        /// What to do about it.
        mend: &'static str,
    },
    /// A step of the recipe ended badly.
    #[error("{step}: {status}; the whole log is {}, its end:\n{tail}", .log.display())]
    Step {
        /// The step, as a verb.
        step: &'static str,
        /// The exit status or signal of its program.
        status: String,
        /// Where everything that it said is kept.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// The tree holds something that no mirror may hold.
    #[error("hash {}: a {kind} has no place in a mirror", .path.display())]
    Special {
        /// Where it is.
        path: PathBuf,
        /// `device`, `pipe` or `socket`.
        kind: &'static str,
    },
    /// A manifest or record beside a mirror cannot be read as one.
    #[error("read {}: {reason}; remove the mirror with `sandcell mirror remove` and build it again", .path.display())]
    Damaged {
        /// The manifest or record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody holds the mirror.
    #[error("remove mirror {id}: it is in use; stop `sandcell serve` first")]
    InUse {
        /// The mirror's id.
        id: String,
    },
    /// A layer is over the mirror.
    #[error("remove mirror {id}: the layer {by} is over it; remove that first")]
    Needed {
        /// The mirror's id.
        id: String,
        /// The layer's name.
        by: String,
    },
    /// No complete mirror has that id.
    #[error("find mirror {id:?} in {}; `sandcell mirror list` shows what there is", .dir.display())]
    Unknown {
        /// What was asked for.
        id: String,
        /// The store.
        dir: PathBuf,
    },
}

impl Error {
    /// Wraps an I/O error: `.map_err(Error::io("open", path))`.
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }

    /// The same for rustix's error numbers.
    pub(super) fn errno(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(rustix::io::Errno) -> Self {
        let wrap = Self::io(operation, path);
        move |errno| wrap(errno.into())
    }
}
