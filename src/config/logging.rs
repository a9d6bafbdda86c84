//! `[logging]`: what the service says, and where.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the service says, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Logging {
    /// Least severe messages of the service itself that are logged; of libraries it is those from
    /// `warn` on. `RUST_LOG` overrides both.
    pub level: Level,
    /// File that messages are appended to, made with mode 0600; default is standard error.
    pub file: Option<PathBuf>,
    /// How a message is written.
    pub format: LogFormat,
}

/// Severity of a message; upper case is understood, and Python's names are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something failed that is ours.
    #[serde(alias = "ERROR", alias = "critical", alias = "CRITICAL")]
    Error,
    /// Something is not as it should be.
    #[serde(alias = "WARN", alias = "warning", alias = "WARNING")]
    Warn,
    /// What an operator wants to know of.
    #[default]
    #[serde(alias = "INFO")]
    Info,
    /// Every request.
    #[serde(alias = "DEBUG")]
    Debug,
    /// What it does in between.
    #[serde(alias = "TRACE")]
    Trace,
}

impl Level {
    /// `error` to `trace`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How a message is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}
