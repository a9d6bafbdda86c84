//! Packages for a sandbox: uv, run apart from user code in a network namespace where only the package
//! index is, over the sandbox's own `/opt/venv`.
//!
//! ```text
//! install ─► checked ─► queue of the sandbox ─► uv, its requirements on standard input ─► table
//!                └── whoever asked waits for the end, or for its `wait_seconds`
//! ```
//!
//! What uv runs and reads as code is the mirror's own and beyond user code's reach (`/usr/bin/python3`,
//! `/opt/sandcell/bin/uv`). Nothing is built from source, which would run a package's code where the
//! index can be reached, unless the sandbox may reach the index itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::error::{Error, ErrorKind};
use super::files;
use super::program::{self, Input, Program};
use super::requirements::{self, Requirement, normalized};
use super::sandbox::{InUse, Sandbox};
use super::types::{InstallInfo, InstallSpec, PackageInfo, PackageStatus, ProcessEnd, Stream};
use crate::isolation::apart::SCRATCH;
use crate::isolation::spec::Apart;
use crate::kernel::output::{Output, PIPE_BYTES};
use crate::network::{INDEX_PATH, Link, PROXY_PORT, Policy};

const UV: &str = "/opt/sandcell/bin/uv";
/// Debian's own, which user code cannot change, as it can the one of `/opt/venv`.
const PYTHON: &str = "/usr/bin/python3";
/// Where no program is: below what is no directory, so that nobody can make it one.
const NO_PATH: &str = "/dev/null/bin";
/// Where packages go.
const PREFIX: &str = "/opt/venv";
/// Bytes of each of uv's streams that are kept.
const OUTPUT_BYTES: usize = 256 * 1024;
/// Longest that uv may take to read its requirements.
const STDIN_TIME: Duration = Duration::from_secs(30);
/// Longest that uv may take to list what is installed.
const LIST_TIME: Duration = Duration::from_secs(30);
/// Packages of a sandbox of which the table tells.
const MAX_PACKAGES: usize = 1024;

/// What is known of a sandbox's packages, and whose turn it is.
#[derive(Debug)]
pub(super) struct Installs {
    turn: tokio::sync::Mutex<()>,
    queue: Semaphore,
    table: Mutex<BTreeMap<String, PackageInfo>>,
}

impl Installs {
    /// `queue` installs may wait for the one that runs.
    pub(super) fn new(queue: usize) -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            queue: Semaphore::new(queue + 1),
            table: Mutex::default(),
        }
    }

    fn set(&self, packages: &[PackageInfo]) {
        let mut table = self.table.lock().expect("not poisoned");
        for package in packages {
            table.insert(package.name.clone(), package.clone());
            while table.len() > MAX_PACKAGES {
                table.pop_first();
            }
        }
    }

    fn get(&self, name: &str) -> Option<PackageInfo> {
        self.table.lock().expect("not poisoned").get(name).cloned()
    }
}

/// Installs packages; returns when that has ended or the time to wait is over, whichever comes first.
/// It goes on to its end also when nobody waits any more.
///
/// # Errors
/// `Invalid` for what is no requirement; `Busy` when too many installs wait; `Conflict` when the
/// sandbox is being closed. That packages could not be installed is no error: the answer tells it.
pub(super) async fn install(
    sandbox: &Arc<Sandbox>,
    spec: InstallSpec,
) -> Result<InstallInfo, Error> {
    sandbox.refuse_closing()?;
    sandbox.touch();
    let requirements = match &spec.requirements_file {
        None => requirements::check(&spec.packages)?,
        Some(path) => {
            let mut all = requirements::of_file(&read_requirements(sandbox, path).await?)?;
            if !spec.packages.is_empty() {
                all.extend(requirements::check(&spec.packages)?);
            }
            all
        }
    };
    let most = sandbox.host.config.limits.queue;
    let in_use = InUse::of(Arc::clone(sandbox));
    let waiting = pending(&requirements);
    let task = {
        let sandbox = Arc::clone(sandbox);
        // Taken here, so that whoever is one too many hears of it.
        sandbox
            .installs
            .queue
            .try_acquire()
            .map_err(|_| too_many_installs(most))?
            .forget();
        sandbox.installs.set(&waiting);
        tokio::spawn(async move {
            let ended = run(&sandbox, &requirements, spec.upgrade).await;
            sandbox.installs.queue.add_permits(1);
            match &ended {
                Ok(info) => sandbox.installs.set(&info.packages),
                // Whoever did not wait asks for the status, which must not stay "installing".
                Err(error) => sandbox
                    .installs
                    .set(&not_begun(&requirements, &error.detail)),
            }
            drop(in_use);
            ended
        })
    };
    match timeout(spec.wait, task).await {
        Ok(ended) => ended.unwrap_or_else(|_| Err(Error::sandbox_closing())),
        Err(_) => Ok(InstallInfo {
            status: PackageStatus::Installing,
            packages: waiting,
            stdout: String::new(),
            stderr: String::new(),
            message: "the installation goes on; ask for the status of its packages".into(),
        }),
    }
}

/// What is known of packages by name: from the installs of this sandbox, else from what is there.
///
/// # Errors
/// `Invalid` for what is no name; `Conflict` when the sandbox is being closed.
pub(super) async fn status(
    sandbox: &Arc<Sandbox>,
    names: &[String],
) -> Result<Vec<PackageInfo>, Error> {
    sandbox.refuse_closing()?;
    sandbox.touch();
    if let Some(wrong) = names.iter().find(|name| !requirements::is_name(name)) {
        let shown: String = wrong.chars().filter(|c| !c.is_control()).take(80).collect();
        return Err(Error::invalid(
            "package_names",
            format!("{shown:?} is no name of a package"),
        ));
    }
    let listed = list(sandbox).await?;
    let told = names.iter().map(|name| {
        let name = normalized(name);
        let installed = listed.get(&name).cloned();
        match (sandbox.installs.get(&name), installed) {
            (Some(known), _) if known.status == PackageStatus::Installing => known,
            (_, Some(version)) => PackageInfo {
                name,
                status: PackageStatus::Installed,
                version: Some(version),
                message: None,
            },
            (Some(known), None) if known.status != PackageStatus::Installed => known,
            _ => PackageInfo {
                name,
                status: PackageStatus::NotInstalled,
                version: None,
                message: None,
            },
        }
    });
    Ok(told.collect())
}

fn pending(requirements: &[Requirement]) -> Vec<PackageInfo> {
    let installing = |requirement: &Requirement| PackageInfo {
        name: requirement.name.clone(),
        status: PackageStatus::Installing,
        version: None,
        message: None,
    };
    requirements.iter().map(installing).collect()
}

fn not_begun(requirements: &[Requirement], reason: &str) -> Vec<PackageInfo> {
    let failed = |requirement: &Requirement| PackageInfo {
        name: requirement.name.clone(),
        status: PackageStatus::Failed,
        version: None,
        message: Some(reason.to_owned()),
    };
    requirements.iter().map(failed).collect()
}

async fn read_requirements(sandbox: &Sandbox, path: &str) -> Result<String, Error> {
    use std::io::Read;
    let open = files::open(sandbox, path).await?;
    let mut text = String::new();
    // Regular, as its descriptor said: no read of it waits for anybody.
    open.file
        .take(requirements::MAX_FILE_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|_| requirements::bad_file())?;
    if text.len() > requirements::MAX_FILE_BYTES {
        return Err(requirements::bad_file());
    }
    Ok(text)
}

/// One install, when those before it have ended.
async fn run(
    sandbox: &Arc<Sandbox>,
    requirements: &[Requirement],
    upgrade: bool,
) -> Result<InstallInfo, Error> {
    let _turn = sandbox.installs.turn.lock().await;
    sandbox.refuse_closing()?;
    let mut arguments = vec!["install", "--no-progress", "--link-mode", "copy"];
    if upgrade {
        arguments.push("--upgrade");
    }
    // Looked at once: what may be built may also reach the index only while the policy says so.
    let link = sandbox.network.link();
    let builds = link.policy().packages();
    if !builds {
        arguments.push("--no-build");
    }
    arguments.extend(["--requirements", "-"]);
    let lines = requirements.iter().map(|r| r.line.as_str());
    let text = lines.collect::<Vec<_>>().join("\n");
    let longest = Duration::from_secs(sandbox.host.config.limits.install_seconds);
    let link = builds.then_some(link);
    let ran = uv(sandbox, &arguments, &text, longest, link).await?;
    if sandbox.is_closing() {
        return Err(Error::sandbox_closing());
    }
    if !ran.succeeded() {
        return Ok(failed(requirements, ran, longest));
    }
    let listed = list(sandbox).await?;
    Ok(installed(requirements, &ran, &listed))
}

fn installed(
    requirements: &[Requirement],
    ran: &Ran,
    listed: &BTreeMap<String, String>,
) -> InstallInfo {
    let packages: Vec<PackageInfo> = requirements
        .iter()
        .map(|requirement| {
            let version = listed.get(&requirement.name).cloned();
            // A marker may have left it out.
            let status = match version {
                Some(_) => PackageStatus::Installed,
                None => PackageStatus::NotInstalled,
            };
            PackageInfo {
                name: requirement.name.clone(),
                status,
                version,
                message: None,
            }
        })
        .collect();
    let told: Vec<String> = packages
        .iter()
        .map(|p| {
            format!(
                "{} {}",
                p.name,
                p.version.as_deref().unwrap_or("(left out)")
            )
        })
        .collect();
    let mut message = format!("installed: {}", told.join(", "));
    let replaced = replaced(&ran.stderr);
    if !replaced.is_empty() {
        message.push_str(&format!(
            "; other versions before: {}. What a kernel has imported already it keeps: restart the \
             context to use the new version",
            replaced.join(", ")
        ));
    }
    InstallInfo {
        status: PackageStatus::Installed,
        packages,
        stdout: ran.stdout.clone(),
        stderr: ran.stderr.clone(),
        message,
    }
}

/// Packages of which uv removed a version (` - name==1.0`).
fn replaced(stderr: &str) -> Vec<String> {
    let names = stderr.lines().filter_map(|line| line.strip_prefix(" - "));
    names.map(str::to_owned).collect()
}

fn failed(requirements: &[Requirement], ran: Ran, longest: Duration) -> InstallInfo {
    let reason = if ran.end.timed_out {
        format!(
            "it took longer than {} s (limits.install_seconds)",
            longest.as_secs()
        )
    } else if ran.end.out_of_memory {
        "it needed more memory than the sandbox has (memory_bytes)".to_owned()
    } else {
        said(&ran.stderr)
    };
    let missing = |name: &str| {
        let told = format!("{name} was not found in the package registry");
        // uv breaks its lines and marks their beginnings.
        let words: Vec<&str> = ran.stderr.split_whitespace().collect();
        format!(" {} ", words.join(" ")).contains(&format!(" {told}"))
    };
    let packages: Vec<PackageInfo> = requirements
        .iter()
        .map(|requirement| {
            let (status, message) = if missing(&requirement.name) {
                let message = format!("the package index has no {}", requirement.name);
                (PackageStatus::NotFound, message)
            } else {
                (PackageStatus::Failed, reason.clone())
            };
            PackageInfo {
                name: requirement.name.clone(),
                status,
                version: None,
                message: Some(message),
            }
        })
        .collect();
    let not_found = packages.iter().all(|p| p.status == PackageStatus::NotFound);
    InstallInfo {
        status: if not_found {
            PackageStatus::NotFound
        } else {
            PackageStatus::Failed
        },
        packages,
        stdout: ran.stdout,
        stderr: ran.stderr,
        message: format!("nothing was installed: {reason}"),
    }
}

/// What uv says from its first `error` on, without its prefixes.
fn said(stderr: &str) -> String {
    let mut lines = stderr
        .lines()
        .map(|line| line.trim_start_matches(['│', '├', '╰', '─', '▶', '×', ' ']))
        .skip_while(|line| !line.starts_with("error"))
        .map(|line| line.strip_prefix("error: ").unwrap_or(line))
        .map(|line| line.strip_prefix("cause: ").unwrap_or(line))
        .filter(|line| !line.is_empty())
        .peekable();
    if lines.peek().is_none() {
        let last = stderr
            .lines()
            .last()
            .unwrap_or("the installer told no reason");
        return last.trim().to_owned();
    }
    lines.collect::<Vec<_>>().join(" ")
}

/// Versions of what is installed, by normalized name.
async fn list(sandbox: &Arc<Sandbox>) -> Result<BTreeMap<String, String>, Error> {
    #[derive(Deserialize)]
    struct Listed {
        name: String,
        version: String,
    }
    let ran = uv(sandbox, &["list", "--format", "json"], "", LIST_TIME, None).await?;
    // From a directory that user code writes to: as little is believed of it as of any output.
    let listed: Vec<Listed> = serde_json::from_str(&ran.stdout).map_err(|_| not_listed(&ran))?;
    Ok(listed
        .into_iter()
        .map(|package| (normalized(&package.name), package.version))
        .collect())
}

fn not_listed(ran: &Ran) -> Error {
    let reason = if ran.end.timed_out {
        format!("that took longer than {} s", LIST_TIME.as_secs())
    } else if ran.end.out_of_memory {
        "that needed more memory than the sandbox has (memory_bytes)".to_owned()
    } else if ran.succeeded() {
        format!("their list is damaged or longer than {OUTPUT_BYTES} bytes")
    } else {
        said(&ran.stderr)
    };
    Error::new(
        ErrorKind::Conflict,
        "packages_unreadable",
        format!("the sandbox's packages could not be listed: {reason}"),
    )
}

fn too_many_installs(most: usize) -> Error {
    Error {
        retry_after_seconds: Some(1),
        ..Error::new(
            ErrorKind::Busy,
            "too_many_installs",
            format!("{most} installations already wait in this sandbox (limits.queue)"),
        )
    }
}

/// What uv said and how it ended.
struct Ran {
    stdout: String,
    stderr: String,
    end: ProcessEnd,
}

impl Ran {
    fn succeeded(&self) -> bool {
        self.end.code == Some(0) && !self.end.timed_out
    }
}

/// Runs `uv pip` apart from user code, serving the package index to it meanwhile. Where it may build,
/// which runs user code, it is bound by the sandbox's own link: a change of the policy cuts it too.
async fn uv(
    sandbox: &Arc<Sandbox>,
    arguments: &[&str],
    stdin: &str,
    longest: Duration,
    building: Option<Arc<Link>>,
) -> Result<Ran, Error> {
    let fixed = ["--python", PYTHON, "--prefix", PREFIX, "--color", "never"];
    let mut argv = vec![UV, "pip", arguments[0]];
    argv.extend(fixed);
    if arguments[0] == "install" {
        argv.push("--break-system-packages");
    }
    argv.extend(&arguments[1..]);
    let program = Program {
        argv: argv.into_iter().map(str::to_owned).collect(),
        cwd: None,
        env: environment(building.is_some()),
        input: Input::Pipe,
        apart: Some(Apart {
            scratch_bytes: sandbox.memory_bytes() / 2,
        }),
        deadline: Some(Instant::now() + longest),
        log_bytes: 2 * OUTPUT_BYTES,
    };
    let (process, listening) = program::start_apart(sandbox, program).await?;
    let listener = TcpListener::from_std(listening.into()).map_err(|e| {
        tracing::error!(sandbox = sandbox.id(), "no listener for the installer: {e}");
        Error::new(
            ErrorKind::Internal,
            "install_failed",
            "the installer could not be started",
        )
    })?;
    let link = building.unwrap_or_else(|| Arc::new(Link::new(sandbox.id(), Policy::Packages)));
    // Nobody may be left to see the end, as when a client that asked for a list has hung up: the
    // socket, and with it the installer's network namespace, must not outlive this call.
    let _index = AbortOnDropHandle::new(tokio::spawn(
        Arc::clone(&sandbox.host.egress).serve(listener, link),
    ));
    let mut reader = process.log.reader(0);
    let (mut stdout, mut stderr) = (Output::new(OUTPUT_BYTES), Output::new(OUTPUT_BYTES));
    let (mut said, mut complained) = (String::new(), String::new());
    let feed = async {
        // Of a uv that does not read or has ended its own output tells more.
        let _ = process.write(stdin.as_bytes(), STDIN_TIME).await;
        let _ = process.close_stdin(STDIN_TIME).await;
    };
    let read = async {
        while let Some(piece) = reader.next(PIPE_BYTES).await {
            match piece.stream {
                Stream::Stderr => complained.push_str(&stderr.push(&piece.bytes)),
                Stream::Stdout | Stream::Pty => said.push_str(&stdout.push(&piece.bytes)),
            }
        }
    };
    tokio::join!(feed, read);
    let end = process.log.wait_end().await;
    said.push_str(&stdout.finish("stdout"));
    complained.push_str(&stderr.finish("stderr"));
    Ok(Ran {
        stdout: said,
        stderr: complained,
        end,
    })
}

/// All of it: neither the sandbox's nor the host's variables reach uv.
///
/// Where nothing is built uv finds no other program. A wheel of the user's may want `x @ git+…`, for
/// which uv would run git, and that ssh, on the user's repository and with settings of the user's.
fn environment(builds: bool) -> BTreeMap<String, String> {
    let path = if builds { "/usr/bin:/bin" } else { NO_PATH };
    [
        ("PATH", path.to_owned()),
        ("HOME", SCRATCH.to_owned()),
        ("TMPDIR", SCRATCH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TZ", "UTC".to_owned()),
        ("UV_CACHE_DIR", format!("{SCRATCH}/cache")),
        ("UV_NO_CONFIG", "1".to_owned()),
        ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
        (
            "UV_DEFAULT_INDEX",
            format!("http://127.0.0.1:{PROXY_PORT}{INDEX_PATH}"),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resolvers_words_are_told_without_its_drawing() {
        let stderr = "Using CPython\nerror: No solution found when resolving dependencies\n  cause: \
                      Because a was not found in the package registry and you require a, we can \
                      conclude that your requirements are unsatisfiable.\n";
        let told = said(stderr);
        assert!(told.starts_with("No solution found"), "{told}");
        assert!(told.contains("Because a was not found"), "{told}");
        assert!(!told.contains("cause:"), "{told}");
    }
}
