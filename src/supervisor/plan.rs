//! Requests checked against the limits, defaults filled in. Every refusal names its field.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::{Error, ErrorKind};
use super::launch::bad_cwd;
use super::mirrors::BASE;
use super::requirements;
use super::sandbox::Plan;
use super::setup::{inodes, upper_bytes};
use super::types::{ContextSpec, CreateSpec, MirrorSpec, ProcessSpec, WindowSize};
use crate::config::{Config, Limits, MIN_MEMORY_BYTES};
use crate::isolation::cgroup::CgroupLimits;
use crate::mirror::Ingredients;

/// Longest name of a sandbox or a context, in characters.
const MAX_NAME_CHARS: usize = 128;
/// Variables of a sandbox or an execution.
const MAX_ENV: usize = 256;
/// Bytes of all their names and values: what init's packet has room for beside the rest.
const MAX_ENV_BYTES: usize = 32 * 1024;
/// Bytes of a shell command, likewise.
const MAX_COMMAND_BYTES: usize = 32 * 1024;
/// Bytes of a working directory, `PATH_MAX`.
const MAX_CWD_BYTES: usize = 4096;
/// Columns or rows of a terminal: wider than any screen.
const MAX_WINDOW: u16 = 4096;
/// Longest that a request waits for output: proxies give up on silent answers after a minute or so.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Least that makes a usable sandbox: the kernel, a shell and its child.
const MIN_PROCESSES: u64 = 4;
/// Smallest quota that cgroups take is 1 ms in 100 ms.
const MIN_CPUS: f64 = 0.01;
/// Below this not even a directory tree fits.
const MIN_DISK_BYTES: u64 = 1024 * 1024;

impl Plan {
    /// What a create without wishes gives.
    pub fn default_of(config: &Config) -> Self {
        let limits = &config.limits;
        Self {
            owner: None,
            mirror: None,
            name: None,
            limits: CgroupLimits {
                memory_bytes: limits.memory_bytes,
                cpus: limits.cpus,
                processes: limits.processes,
            },
            disk_bytes: limits.disk_bytes,
            lease: Duration::from_secs(limits.lease_seconds),
            idle: None,
            env: BTreeMap::new(),
            network: config.network.default.clone(),
            wish: None,
            gpus: None,
        }
    }

    /// Checks a request.
    pub fn new(spec: CreateSpec, config: &Config) -> Result<Self, Error> {
        let limits = &config.limits;
        let mut plan = Self::default_of(config);
        plan.name = checked_name(spec.name)?;
        within(
            "memory_bytes",
            spec.memory_bytes,
            MIN_MEMORY_BYTES,
            limits.max_memory_bytes,
            &mut plan.limits.memory_bytes,
        )?;
        within(
            "processes",
            spec.processes,
            MIN_PROCESSES,
            limits.max_processes,
            &mut plan.limits.processes,
        )?;
        within(
            "disk_bytes",
            spec.disk_bytes,
            MIN_DISK_BYTES,
            limits.max_disk_bytes,
            &mut plan.disk_bytes,
        )?;
        if let Some(cpus) = spec.cpus {
            if !(MIN_CPUS..=limits.max_cpus).contains(&cpus) {
                return Err(Error::invalid(
                    "cpus",
                    format!("cpus must be {MIN_CPUS} to {}", limits.max_cpus),
                ));
            }
            plan.limits.cpus = cpus;
        }
        if let Some(lease) = check_seconds("lease_seconds", spec.lease_seconds, limits)? {
            plan.lease = lease;
        }
        plan.idle = check_seconds("idle_seconds", spec.idle_seconds, limits)?;
        check_env(&spec.env)?;
        plan.env = spec.env;
        if let Some(network) = spec.network {
            plan.network = network;
        }
        let gpus = &config.gpus;
        let wish = spec.gpus.unwrap_or_else(|| gpus.default.clone());
        if !wish.is_none() {
            if !gpus.enabled {
                return Err(super::gpus::disabled());
            }
            plan.wish = Some(wish);
        }
        Ok(plan)
    }

    /// Whether a sandbox prepared to `other` has the file system that this plan asks for, and no GPUs: what
    /// cannot be changed any more. The rest is set at the claim. The room for files follows from the memory
    /// too, as files on tmpfs are memory.
    pub fn same_files(&self, other: &Self, limits: &Limits) -> bool {
        let without_gpus = self.wish.is_none() && other.wish.is_none();
        let files = |plan| (upper_bytes(plan, limits), inodes(plan, limits));
        without_gpus && files(self) == files(other)
    }
}

/// Longest name of a mirror, in characters.
const MAX_MIRROR_NAME_CHARS: usize = 64;
/// Modules that a mirror imports ahead.
const MAX_PRELOAD: usize = 32;
/// Characters of one of them.
const MAX_MODULE_CHARS: usize = 256;
/// Longest that a request waits for a mirror.
const MAX_MIRROR_WAIT: Duration = Duration::from_secs(3600);

/// A mirror's name, packages, modules and time to wait.
pub fn check_mirror(spec: &MirrorSpec, base: &str) -> Result<Ingredients, Error> {
    let plain = |name: &String| {
        let chars = name.chars().count();
        let right = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let id = chars == 32 && name.chars().all(|c| c.is_ascii_hexdigit());
        (1..=MAX_MIRROR_NAME_CHARS).contains(&chars) && name.chars().all(right) && !id
    };
    if spec
        .name
        .as_ref()
        .is_some_and(|name| !plain(name) || name == BASE)
    {
        return Err(Error::invalid(
            "name",
            format!(
                "name has 1 to {MAX_MIRROR_NAME_CHARS} letters, digits, '.', '_' and '-', is not \
                 {BASE:?} and does not look like an id"
            ),
        ));
    }
    let packages = requirements::check(&spec.packages)?;
    if let Some(file) = packages.iter().find(|p| p.line.ends_with(".whl")) {
        return Err(Error::invalid(
            "packages",
            format!(
                "{:?} is a file, and a mirror has none; name a package of the index",
                file.line
            ),
        ));
    }
    if spec.preload.len() > MAX_PRELOAD || !spec.preload.iter().all(|m| is_module(m)) {
        return Err(Error::invalid(
            "preload",
            format!("preload names up to {MAX_PRELOAD} modules, such as \"rich.console\""),
        ));
    }
    if spec.wait > MAX_MIRROR_WAIT {
        let most = MAX_MIRROR_WAIT.as_secs();
        return Err(Error::invalid(
            "wait_seconds",
            format!("wait_seconds must be 0 to {most}"),
        ));
    }
    Ok(Ingredients {
        owner: None,
        base: base.to_owned(),
        packages: packages.into_iter().map(|p| p.line).collect(),
        preload: spec.preload.clone(),
    })
}

/// A dotted name of ASCII identifiers.
fn is_module(name: &str) -> bool {
    let identifier = |part: &str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && part.bytes().next().is_some_and(|b| !b.is_ascii_digit())
    };
    name.len() <= MAX_MODULE_CHARS && name.split('.').all(identifier)
}

/// An empty name is none.
pub fn checked_name(name: Option<String>) -> Result<Option<String>, Error> {
    let name = name.filter(|n| !n.is_empty());
    let wrong = |n: &String| n.chars().count() > MAX_NAME_CHARS || n.chars().any(char::is_control);
    if name.as_ref().is_some_and(wrong) {
        return Err(Error::invalid(
            "name",
            format!("name has up to {MAX_NAME_CHARS} characters, none of them a control character"),
        ));
    }
    Ok(name)
}

fn within(
    field: &'static str,
    asked: Option<u64>,
    least: u64,
    most: u64,
    set: &mut u64,
) -> Result<(), Error> {
    match asked {
        None => Ok(()),
        Some(value) if (least..=most).contains(&value) => {
            *set = value;
            Ok(())
        }
        Some(_) => Err(Error::invalid(
            field,
            format!("{field} must be {least} to {most}"),
        )),
    }
}

/// A time of life.
pub fn check_seconds(
    field: &'static str,
    asked: Option<u64>,
    limits: &Limits,
) -> Result<Option<Duration>, Error> {
    let mut seconds = 0;
    within(field, asked, 1, limits.max_lease_seconds, &mut seconds)?;
    Ok(asked.map(|_| Duration::from_secs(seconds)))
}

/// Wall time of an execution or a command.
pub fn check_timeout(timeout: Option<Duration>, limits: &Limits) -> Result<(), Error> {
    match timeout {
        Some(t) if t.is_zero() || t > Duration::from_secs(limits.max_timeout_seconds) => {
            Err(Error::invalid(
                "timeout_seconds",
                format!(
                    "timeout_seconds must be above 0 and at most {}",
                    limits.max_timeout_seconds
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// Names and values that `execve(2)` and `putenv(3)` take, within the limits.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), Error> {
    let bytes = encoded_bytes(env);
    if env.len() > MAX_ENV || bytes > MAX_ENV_BYTES {
        return Err(Error::invalid(
            "env",
            format!("env holds at most {MAX_ENV} variables of {MAX_ENV_BYTES} bytes in all"),
        ));
    }
    let wrong =
        |(k, v): (&String, &String)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0');
    if env.iter().any(wrong) {
        return Err(Error::invalid(
            "env",
            "env: a name is not empty and without '=', nothing holds a NUL",
        ));
    }
    Ok(())
}

/// Bytes as init's packet has them: a control character takes six.
fn encoded_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
}

/// A command's text and working directory.
pub fn check_command(command: &str, cwd: Option<&str>) -> Result<(), Error> {
    if command.contains('\0') {
        return Err(Error::invalid("command", "command holds a NUL character"));
    }
    if encoded_bytes(&command) > MAX_COMMAND_BYTES {
        return Err(Error::new(
            ErrorKind::TooLarge,
            "command_too_large",
            format!("command may have {MAX_COMMAND_BYTES} bytes; write it to a file and run that"),
        ));
    }
    match cwd_fault(cwd) {
        Some(fault) => Err(Error::invalid("cwd", fault)),
        None => Ok(()),
    }
}

/// A background process: a command, or a terminal for a shell.
pub fn check_process(spec: &ProcessSpec, limits: &Limits) -> Result<(), Error> {
    check_timeout(spec.timeout, limits)?;
    check_env(&spec.env)?;
    match (&spec.command, spec.terminal) {
        (None, None) => {
            return Err(Error::invalid(
                "command",
                "command: only a process with pty may come without one, an interactive shell",
            ));
        }
        (command, _) => {
            let command = command.as_deref().unwrap_or_default();
            check_command(command, spec.cwd.as_deref())?;
        }
    }
    spec.terminal
        .map_or(Ok(()), |size| check_window("pty", size))
}

/// A terminal's size; `field` is where it was asked for.
pub fn check_window(field: &'static str, size: WindowSize) -> Result<(), Error> {
    let sizes = 1..=MAX_WINDOW;
    if sizes.contains(&size.columns) && sizes.contains(&size.rows) {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("columns and rows must be 1 to {MAX_WINDOW}"),
    ))
}

/// How long a request waits for output, in seconds; 0 does not wait.
pub fn check_wait(wait: Duration) -> Result<(), Error> {
    if wait <= MAX_WAIT {
        return Ok(());
    }
    let most = MAX_WAIT.as_secs();
    Err(Error::invalid(
        "wait_seconds",
        format!("wait_seconds must be 0 to {most}; ask again from next_offset"),
    ))
}

fn cwd_fault(cwd: Option<&str>) -> Option<String> {
    let wrong = |cwd: &str| cwd.is_empty() || cwd.contains('\0') || cwd.len() > MAX_CWD_BYTES;
    cwd.is_some_and(wrong)
        .then(|| format!("cwd has 1 to {MAX_CWD_BYTES} bytes and no NUL"))
}

/// A context's name, directory and variables. Whether the directory is there, its kernel finds out.
pub fn check_context(mut spec: ContextSpec) -> Result<ContextSpec, Error> {
    spec.name = checked_name(spec.name)?;
    check_env(&spec.env)?;
    match cwd_fault(spec.cwd.as_deref()) {
        Some(fault) => Err(bad_cwd(fault)),
        None => Ok(spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        let config = Config::default();
        let refused = |spec: CreateSpec| Plan::new(spec, &config).unwrap_err().field;
        assert_eq!(
            refused(CreateSpec {
                memory_bytes: Some(1),
                ..CreateSpec::default()
            }),
            Some("memory_bytes")
        );
        assert_eq!(
            refused(CreateSpec {
                cpus: Some(f64::NAN),
                ..CreateSpec::default()
            }),
            Some("cpus")
        );
        assert_eq!(
            refused(CreateSpec {
                cpus: Some(0.0),
                ..CreateSpec::default()
            }),
            Some("cpus")
        );
        assert_eq!(
            refused(CreateSpec {
                lease_seconds: Some(0),
                ..CreateSpec::default()
            }),
            Some("lease_seconds")
        );
        assert_eq!(
            refused(CreateSpec {
                name: Some("a\nb".into()),
                ..CreateSpec::default()
            }),
            Some("name")
        );
        let env = [("A=B".to_owned(), String::new())].into();
        assert_eq!(
            refused(CreateSpec {
                env,
                ..CreateSpec::default()
            }),
            Some("env")
        );
    }

    #[test]
    fn defaults_pass_their_own_checks() {
        let config = Config::default();
        let plan = Plan::new(CreateSpec::default(), &config).unwrap();
        assert!(plan.same_files(&Plan::default_of(&config), &config.limits));
    }
}
