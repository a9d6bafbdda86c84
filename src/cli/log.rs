//! The service's log: to standard error or a file, and both its level and its file may change.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::config::{Level, LogFormat, Logging};

/// The log that is written from now on.
pub(super) struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    output: Output,
}

impl Log {
    /// Begins it.
    ///
    /// # Errors
    /// The file cannot be opened, named.
    pub(super) fn start(logging: &Logging) -> Result<Self, String> {
        let output = Output(Arc::new(Mutex::new(Target::of(logging)?)));
        let (filter, handle) = reload::Layer::new(filter(logging.level));
        let to_terminal = logging.file.is_none() && io::stderr().is_terminal();
        let lines = fmt::layer()
            .with_ansi(to_terminal && logging.format == LogFormat::Text)
            .with_writer(output.clone());
        let lines = match logging.format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().boxed(),
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .init();
        Ok(Self {
            filter: handle,
            output,
        })
    }

    /// Changes the level, and opens the file again, as it may have been rotated, or another.
    ///
    /// # Errors
    /// The file cannot be opened, named; then everything stays as it is.
    pub(super) fn change(&self, logging: &Logging) -> Result<(), String> {
        let target = Target::of(logging)?;
        *self.output.target() = target;
        self.filter
            .reload(filter(logging.level))
            .map_err(|e| format!("failed to change the log's level: {e}"))
    }
}

/// `RUST_LOG`, else what the configuration says.
fn filter(level: Level) -> EnvFilter {
    let of_libraries = match level {
        Level::Error => "error",
        _ => "warn",
    };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!(
            "{of_libraries},rmcp=error,sandcell={}",
            level.as_str()
        ))
    })
}

/// Where lines go.
#[derive(Clone)]
struct Output(Arc<Mutex<Target>>);

enum Target {
    Stderr,
    File(File),
}

impl Target {
    fn of(logging: &Logging) -> Result<Self, String> {
        match &logging.file {
            None => Ok(Self::Stderr),
            Some(path) => open(path)
                .map(Self::File)
                .map_err(|e| format!("logging.file: failed to open {}: {e}", path.display())),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    // What is logged is the operator's own business.
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

impl Output {
    fn target(&self) -> MutexGuard<'_, Target> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self.target())
    }
}

/// A message on its way.
struct Line<'a>(MutexGuard<'a, Target>);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0 {
            Target::Stderr => io::stderr().write(bytes),
            Target::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut *self.0 {
            Target::Stderr => io::stderr().flush(),
            Target::File(file) => file.flush(),
        }
    }
}
