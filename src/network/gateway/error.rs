//! What the gateway could not do. What reaches a sandbox is the text of the error and nothing else: no
//! address of an index, no credentials, no path of the host.

use std::io;
use std::path::{Path, PathBuf};

use hyper::StatusCode;

/// Why the gateway could not start, or why a request got no page or file.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The cache's directory cannot be made or read. Only [`Gateway::new`](super::Gateway::new) fails
    /// so: the path is never told to a sandbox.
    #[error("failed to {operation} {}: {reason}", .path.display())]
    Directory {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it did not work.
        reason: String,
    },
    /// A setting of the host or the configuration that nothing can be fetched with. Likewise.
    #[error("{setting} {reason}")]
    Setting {
        /// `packages.index_url`, or pip's name of the setting.
        setting: &'static str,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A path that is none of the gateway's, or a name that no package can have.
    #[error("{0}")]
    NotFound(String),
    /// Something else than GET or HEAD.
    #[error("the package index answers GET and HEAD only")]
    Method,
    /// The index cannot be reached, or does not answer in time.
    #[error("the package index cannot be reached from the host: {0}")]
    Unreachable(&'static str),
    /// The index answered with something that must not be passed on.
    #[error("the package index gave a wrong answer: {0}")]
    Wrong(String),
    /// More than a limit of the configuration allows.
    #[error("{what} is larger than the {limit} bytes that {key} allows")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Bytes.
        limit: u64,
        /// The configuration's key.
        key: &'static str,
    },
    /// The cache is full of downloads that are still running.
    #[error("the package cache has no room left while other downloads run; try again in a moment")]
    Busy,
    /// The host's disk is full, or the cache cannot be written.
    #[error("the host cannot store the download: {0}")]
    Storage(&'static str),
}

impl Error {
    /// The answer's status. 507 (RFC 4918) rather than 502 where a client that tries again at once, as
    /// pip and uv do on 502 and 503, would only do harm.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unreachable(_) | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Wrong(_) => StatusCode::BAD_GATEWAY,
            Self::TooLarge { .. } | Self::Storage(_) => StatusCode::INSUFFICIENT_STORAGE,
            Self::Directory { .. } | Self::Setting { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// For the start: `.map_err(Error::directory("make", path))`.
    pub(super) fn directory(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| Self::Directory {
            operation,
            path,
            reason: error.to_string(),
        }
    }

    /// For a running service: the log hears the details, a sandbox the kind.
    pub(super) fn storage(error: &io::Error) -> Self {
        tracing::error!(%error, "failed to store a download");
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Storage("its disk is full")
            }
            _ => Self::Storage("its package cache cannot be written"),
        }
    }
}
