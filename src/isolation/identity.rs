//! How a forked child becomes a process of the user: the order is in the types. A [`Root`] can only
//! become a [`Dropped`], that only a [`Sealed`], and only a sealed process can run anything.
//! (The kernel takes the same steps in `rootfs/kernel/lockdown.py`; [`super::posture`] checks it.)

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::error::{Context, Error};
use super::seccomp::Filters;
use super::spec::USER_ID;
use super::sys;

/// Limits of a process that user code controls.
pub struct Limits<'a> {
    /// `setrlimit(2)` values by name, soft and hard alike.
    pub rlimits: &'a BTreeMap<String, u64>,
    /// Written to `/proc/self/oom_score_adj`.
    pub oom_score_adj: u32,
}

/// A child of init that still has init's identity.
pub struct Root(());

/// A child that has the user's identity and no capability, but every system call.
pub struct Dropped(());

/// A child that has everything taken from it.
pub struct Sealed(());

impl Root {
    /// For a child that init has just forked.
    pub fn in_forked_child() -> Self {
        Self(())
    }

    /// Applies limits and gives up identity and capabilities for good.
    pub fn drop_identity(self, limits: &Limits<'_>) -> Result<Dropped, Error> {
        // Init blocks SIGCHLD for its signalfd and Rust ignores SIGPIPE: neither is the user's.
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
            .context("unblock signals")?;
        sys::ignore_signal(Signal::SIGPIPE as i32, false);
        for (name, value) in limits.rlimits {
            setrlimit(resource(name)?, *value, *value).context(format!("set {name}"))?;
        }
        // Before the identity goes: afterwards the file belongs to somebody else.
        std::fs::write("/proc/self/oom_score_adj", limits.oom_score_adj.to_string())
            .context("set the OOM score")?;
        setgroups(&[]).context("drop groups")?;
        let (uid, gid) = (Uid::from_raw(USER_ID), Gid::from_raw(USER_ID));
        setresgid(gid, gid, gid).context("set gid")?;
        setresuid(uid, uid, uid).context("set uid")?;
        // A process of the same user may write to the memory of a dumpable one: not before the seal.
        // exec makes a sealed one dumpable again.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .context("become non-dumpable")?;
        clear_capabilities()?;
        Ok(Dropped(()))
    }
}

impl Dropped {
    /// Installs the filters, last of all.
    pub fn seal(self, filters: Option<&Filters>) -> Result<Sealed, Error> {
        rustix::thread::set_no_new_privs(true).context("set no_new_privs")?;
        if let Some(filters) = filters {
            filters.apply()?;
        }
        Ok(Sealed(()))
    }
}

impl Sealed {
    /// Becomes `argv`; returns only when that fails.
    pub fn exec(self, argv: &[CString], environment: &[CString]) -> io::Error {
        sys::exec(&argv[0], argv, environment)
    }

    /// Runs our own code with the user's identity, then ends.
    pub fn run(self, work: impl FnOnce() -> i32) -> ! {
        sys::exit_now(work())
    }
}

/// Empties all five sets. setresuid(2) away from 0 has already emptied effective and permitted, and
/// init has emptied the bounding set; both are asserted rather than assumed.
fn clear_capabilities() -> Result<(), Error> {
    use caps::CapSet::{Ambient, Bounding, Effective, Inheritable, Permitted};
    let fail =
        |e: caps::errors::CapsError| Error::Refused(format!("failed to drop capabilities: {e}"));
    for set in [Ambient, Effective, Inheritable, Permitted] {
        caps::clear(None, set).map_err(fail)?;
    }
    for set in [Ambient, Effective, Inheritable, Permitted, Bounding] {
        if !caps::read(None, set).map_err(fail)?.is_empty() {
            return Err(Error::Refused(format!(
                "capability set {set:?} is not empty"
            )));
        }
    }
    Ok(())
}

/// What init keeps to do its work: to become the user in a child, and to read what is non-dumpable.
pub fn reduce_init() -> Result<(), Error> {
    use caps::Capability::{CAP_KILL, CAP_SETGID, CAP_SETUID};
    let fail = |e: caps::errors::CapsError| Error::Refused(format!("failed to reduce init: {e}"));
    empty_bounding_set()?;
    let keep = [CAP_SETUID, CAP_SETGID, CAP_KILL].into_iter().collect();
    caps::set(None, caps::CapSet::Effective, &keep).map_err(fail)?;
    caps::set(None, caps::CapSet::Permitted, &keep).map_err(fail)?;
    caps::clear(None, caps::CapSet::Inheritable).map_err(fail)?;
    rustix::thread::set_no_new_privs(true).context("set no_new_privs")
}

/// So that no program could ever gain a capability; a new user namespace begins with all of them.
pub fn empty_bounding_set() -> Result<(), Error> {
    for capability in caps::runtime::thread_all_supported() {
        caps::drop(None, caps::CapSet::Bounding, capability)
            .map_err(|e| Error::Refused(format!("failed to empty the bounding set: {e}")))?;
    }
    Ok(())
}

fn resource(name: &str) -> Result<Resource, Error> {
    Ok(match name {
        "RLIMIT_AS" => Resource::RLIMIT_AS,
        "RLIMIT_CORE" => Resource::RLIMIT_CORE,
        "RLIMIT_FSIZE" => Resource::RLIMIT_FSIZE,
        "RLIMIT_MEMLOCK" => Resource::RLIMIT_MEMLOCK,
        "RLIMIT_MSGQUEUE" => Resource::RLIMIT_MSGQUEUE,
        "RLIMIT_NOFILE" => Resource::RLIMIT_NOFILE,
        "RLIMIT_SIGPENDING" => Resource::RLIMIT_SIGPENDING,
        "RLIMIT_STACK" => Resource::RLIMIT_STACK,
        other => return Err(Error::Refused(format!("unknown resource limit {other}"))),
    })
}
