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

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::error::{Error, ErrorKind};
use super::files;
use super::requirements::{self, Requirement};
use super::sandbox::{InUse, Sandbox};
use super::types::{InstallInfo, InstallSpec, PackageInfo, PackageStatus};
use super::uv::{Ran, list, said, uv};
use crate::network::{is_project_name, normalize};

/// Packages of a sandbox of which the table tells.
const MAX_PACKAGES: usize = 1024;

/// What is known of a sandbox's packages, and whose turn it is.
#[derive(Debug)]
pub(super) struct Installs {
    turn: tokio::sync::Mutex<()>,
    queue: Arc<Semaphore>,
    /// Questions for what is installed, each of which starts a program.
    questions: Semaphore,
    asking: tokio::sync::Mutex<()>,
    table: Mutex<BTreeMap<String, PackageInfo>>,
}

impl Installs {
    /// `queue` installs may wait for the one that runs.
    pub(super) fn new(queue: usize) -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            queue: Arc::new(Semaphore::new(queue + 1)),
            questions: Semaphore::new(queue + 1),
            asking: tokio::sync::Mutex::default(),
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
    // Taken here, so that whoever is one too many hears of it.
    let place = Arc::clone(&sandbox.installs.queue).try_acquire_owned();
    let place = place.map_err(|_| too_many_installs(most))?;
    sandbox.installs.set(&waiting);
    let task = tokio::spawn({
        let sandbox = Arc::clone(sandbox);
        async move {
            let ended = run(&sandbox, &requirements, spec.upgrade).await;
            match &ended {
                Ok(info) => sandbox.installs.set(&info.packages),
                Err(e) => sandbox.installs.set(&given_up(&requirements, e)),
            }
            drop((place, in_use));
            ended
        }
    });
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
/// `Invalid` for what is no name; `Busy` when too many ask; `Conflict` when the sandbox is being closed.
pub(super) async fn status(
    sandbox: &Arc<Sandbox>,
    names: &[String],
) -> Result<Vec<PackageInfo>, Error> {
    sandbox.refuse_closing()?;
    sandbox.touch();
    if let Some(wrong) = names.iter().find(|name| !is_project_name(name)) {
        let shown: String = wrong.chars().filter(|c| !c.is_control()).take(80).collect();
        return Err(Error::invalid(
            "package_names",
            format!("{shown:?} is no name of a package"),
        ));
    }
    let most = sandbox.host.config.limits.queue;
    let questions = sandbox.installs.questions.try_acquire();
    let _question = questions.map_err(|_| too_many_questions(most))?;
    let asking = sandbox.installs.asking.lock().await;
    let listed = list(sandbox).await?;
    drop(asking);
    let told = names.iter().map(|name| {
        let name = normalize(name);
        let installed = listed.get(&name).cloned();
        match (sandbox.installs.get(&name), installed) {
            (Some(known), _) if known.status == PackageStatus::Installing => known,
            (_, Some(version)) => PackageInfo {
                version: Some(version),
                ..PackageInfo::new(name, PackageStatus::Installed)
            },
            (Some(known), None) if known.status != PackageStatus::Installed => known,
            _ => PackageInfo::new(name, PackageStatus::NotInstalled),
        }
    });
    Ok(told.collect())
}

fn pending(requirements: &[Requirement]) -> Vec<PackageInfo> {
    let names = requirements.iter().map(|r| r.name.clone());
    let installing = names.map(|name| PackageInfo::new(name, PackageStatus::Installing));
    installing.collect()
}

/// Packages of an installation that did not even begin.
fn given_up(requirements: &[Requirement], reason: &Error) -> Vec<PackageInfo> {
    let mut packages = pending(requirements);
    for package in &mut packages {
        package.status = PackageStatus::Failed;
        package.message = Some(reason.to_string());
    }
    packages
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
                version,
                ..PackageInfo::new(requirement.name.clone(), status)
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
    } else if ran.stderr.contains("--no-build") {
        // uv's hint names an option that nobody here can give.
        let reason = said(&ran.stderr);
        let reason = reason.split(" hint:").next().unwrap_or_default();
        format!(
            "{reason} Nothing is built from source in a sandbox that may not reach the package index \
             itself (network policy \"packages\")"
        )
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
                message: Some(message),
                ..PackageInfo::new(requirement.name.clone(), status)
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

fn too_many_questions(most: usize) -> Error {
    Error {
        retry_after_seconds: Some(1),
        ..Error::new(
            ErrorKind::Busy,
            "too_many_requests",
            format!("{most} requests for packages already wait in this sandbox (limits.queue)"),
        )
    }
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
