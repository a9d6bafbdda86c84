//! The making of a layer: packages installed in a sandbox that no user code has run in, what they
//! changed taken out, and a realm started over it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::error::Error;
use super::install;
use super::mirrors::failed;
use super::program::{self, Input, Program};
use super::realm::Realm;
use super::sandbox::{Plan, Sandbox};
use super::types::{InstallSpec, PackageStatus, Stream};
use crate::kernel::output::PIPE_BYTES;
use crate::mirror::{Bounds, Draft, ENVIRONMENT, Layers, UnpackError};
use crate::network::Policy;

/// Debian's own, which no package replaces.
const PYTHON: &str = "/usr/bin/python3";
const TELL: &str = include_str!("../../rootfs/layer.py");
/// Output between the sandbox and whoever writes the layer.
const LOG_BYTES: usize = 8 * PIPE_BYTES;
/// Pieces of output that wait for the disk.
const PIECES: usize = 16;
/// Processors of a build.
const CPUS: f64 = 2.0;

/// Installs packages over the base and takes out what that changed.
///
/// # Errors
/// A mirror's failure, for people.
pub(super) async fn make(
    base: &Arc<Realm>,
    layers: &Layers,
    packages: &[String],
) -> Result<Draft, Error> {
    let config = &base.host.config;
    let longest = Duration::from_secs(config.mirrors.build_seconds);
    let mut plan = Plan::default_of(config);
    plan.name = Some("mirror build".into());
    plan.limits.memory_bytes = config.mirrors.memory_bytes;
    plan.limits.cpus = plan.limits.cpus.max(CPUS);
    plan.disk_bytes = config.mirrors.max_layer_bytes;
    plan.lease = 2 * longest;
    plan.network = Policy::None;
    let sandbox = Sandbox::prepare(base, &plan).await.map_err(internal)?;
    let guard = Destroy(Some(Arc::clone(&sandbox)));
    let made = async {
        sandbox.claim(&plan).await.map_err(internal)?;
        let since = SystemTime::now();
        install(&sandbox, packages, longest).await?;
        take_out(&sandbox, layers, since, longest).await
    };
    let made = made.await;
    guard.now().await;
    made
}

/// Destroys a build's sandbox, also when the build is given up.
struct Destroy(Option<Arc<Sandbox>>);

impl Destroy {
    async fn now(mut self) {
        if let Some(sandbox) = self.0.take() {
            sandbox.destroy().await;
        }
    }
}

impl Drop for Destroy {
    fn drop(&mut self) {
        if let Some(sandbox) = self.0.take() {
            tokio::spawn(async move { sandbox.destroy().await });
        }
    }
}

fn internal(e: crate::isolation::Error) -> Error {
    tracing::error!("failed to make a sandbox for a layer: {e}");
    failed("no sandbox could be made for the installation; the service's log says why")
}

/// As any sandbox's: apart, with nothing but the package index in reach.
async fn install(
    sandbox: &Arc<Sandbox>,
    packages: &[String],
    longest: Duration,
) -> Result<(), Error> {
    let spec = InstallSpec {
        packages: packages.to_vec(),
        requirements_file: None,
        upgrade: false,
        wait: longest,
    };
    let info = install::install(sandbox, spec).await?;
    match info.status {
        PackageStatus::Installed => Ok(()),
        PackageStatus::Installing => {
            let longest = longest.as_secs();
            Err(failed(format!(
                "the installation takes longer than {longest} s (mirrors.build_seconds)"
            )))
        }
        PackageStatus::Failed | PackageStatus::NotFound | PackageStatus::NotInstalled => {
            Err(failed(info.message))
        }
    }
}

/// What has changed since `since`, as a tree of its own outside.
async fn take_out(
    sandbox: &Arc<Sandbox>,
    layers: &Layers,
    since: SystemTime,
    longest: Duration,
) -> Result<Draft, Error> {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let argv = [
        PYTHON,
        "-I",
        "-S",
        "-c",
        TELL,
        &format!("/{ENVIRONMENT}"),
        // The kernel stamps files with the time of its last tick (Linux 6.13 and before).
        &format!("{}", since.as_secs_f64() - 1.0),
    ];
    let program = Program {
        argv: argv.map(str::to_owned).to_vec(),
        cwd: Some("/".into()),
        env: BTreeMap::new(),
        input: Input::Empty,
        apart: None,
        deadline: Some(Instant::now() + longest),
        log_bytes: LOG_BYTES,
    };
    let process = program::start(sandbox, program).await?;
    let mut reader = process.log.reader(0);
    let (pieces, waiting) = mpsc::channel(PIECES);
    let unpack = {
        let (layers, base) = (layers.clone(), sandbox.host.mirror.clone());
        let mirrors = &sandbox.host.config.mirrors;
        let bounds = Bounds {
            bytes: mirrors.max_layer_bytes,
            entries: mirrors.max_layer_entries,
        };
        tokio::task::spawn_blocking(move || unpack(&layers, &base, waiting, bounds))
    };
    while let Some(piece) = reader.next(PIPE_BYTES).await {
        if piece.stream == Stream::Stdout
            && (piece.lost_bytes > 0 || pieces.send(piece.bytes).await.is_err())
        {
            break;
        }
    }
    drop(pieces);
    let unpacked = timeout(longest, unpack).await;
    process.kill(sandbox);
    let unpacked = unpacked.map_err(|_| failed("the installed files took too long to be read"))?;
    match unpacked {
        Ok(Ok(draft)) => Ok(draft),
        Ok(Err(UnpackError::Io(e))) => {
            tracing::error!("failed to write a layer: {e}");
            Err(failed(
                "the layer could not be written; the service's log says why",
            ))
        }
        Ok(Err(e)) => Err(failed(e.to_string())),
        Err(_) => Err(failed("the layer could not be written")),
    }
}

fn unpack(
    layers: &Layers,
    base: &Path,
    pieces: mpsc::Receiver<Vec<u8>>,
    bounds: Bounds,
) -> Result<Draft, UnpackError> {
    let mut stream = Pieces {
        pieces,
        piece: Vec::new(),
        read: 0,
    };
    layers.unpack(base, &mut stream, bounds)
}

/// Output of the sandbox, read by a thread that may wait for it.
struct Pieces {
    pieces: mpsc::Receiver<Vec<u8>>,
    piece: Vec<u8>,
    read: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.piece.len() {
            match self.pieces.blocking_recv() {
                Some(piece) => (self.piece, self.read) = (piece, 0),
                None => return Ok(0),
            }
        }
        let rest = &self.piece[self.read..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}
