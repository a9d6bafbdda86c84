//! The one error type of the isolation layer: what was being done, to what, and why it failed.

use std::io;
use std::path::PathBuf;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or file operation.
    #[error("failed to {step}: {source}")]
    Step {
        /// What was being done, in words that fit "failed to …".
        step: String,
        /// Why.
        source: io::Error,
    },
    /// A file operation on the host.
    #[error("failed to {step} {path}: {source}", path = path.display())]
    Path {
        /// What was being done.
        step: &'static str,
        /// To what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The host lacks something that sandboxes need; the text ends in the mend.
    #[error("{0}")]
    Unsupported(String),
    /// A kernel says that a copy of it would not be sound, and why.
    #[error("a copy of the kernel would not be sound: {0}")]
    Unsound(String),
    /// A process of ours said that it failed, or a check of what it did did not hold.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// For `map_err`: attaches the step.
    pub fn step(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Step { step, source }
    }

    /// What the host has no more of, where that is why.
    pub fn exhausted(&self) -> Option<&'static str> {
        let (Self::Step { source, .. } | Self::Path { source, .. }) = self else {
            return None;
        };
        match source.raw_os_error()? {
            libc::EMFILE => Some("open files of the service (RLIMIT_NOFILE)"),
            libc::ENFILE => Some("open files (fs.file-max)"),
            libc::ENOMEM => Some("memory"),
            _ => None,
        }
    }

    /// For `map_err`: attaches the step and the path.
    pub fn path(step: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Path { step, path, source }
    }
}

/// Attaches a step to any error that converts to `io::Error`.
pub trait Context<T> {
    /// Names what was being done, in words that fit "failed to …".
    fn context(self, step: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, step: impl Into<String>) -> Result<T, Error> {
        self.map_err(|e| Error::Step {
            step: step.into(),
            source: e.into(),
        })
    }
}

impl From<super::seccomp::SeccompError> for Error {
    fn from(e: super::seccomp::SeccompError) -> Self {
        Self::Refused(e.to_string())
    }
}
