//! Whose a sandbox is: who may see it, and how much they may have.
//!
//! A [`Supervisor`](super::Supervisor) is a handle with a [`Scope`], and its one lookup asks the scope.
//! What belongs to another is not there: the answer is that for an id that never was.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::error::{Error, ErrorKind};
use super::sandbox::Sandbox;
use crate::mirror::Ingredients;

const MINUTE: Duration = Duration::from_secs(60);

/// Whose sandboxes they are: the holders of one key. Cheap to clone; clones share the allowance of
/// executions.
#[derive(Debug, Clone)]
pub struct Owner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    /// Tells keys apart that have their names by their places in a list, as those change.
    tag: Option<[u8; 32]>,
    max_sandboxes: Option<usize>,
    executions: Option<Arc<Mutex<Bucket>>>,
    /// Of this very key, not of another with its name.
    revoked: CancellationToken,
}

impl Owner {
    /// `tag` is for keys that nobody has named: such an owner is another one when the tag is another.
    /// `executions_per_minute` is 1 or more.
    pub fn new(
        name: impl Into<String>,
        tag: Option<[u8; 32]>,
        max_sandboxes: Option<usize>,
        executions_per_minute: Option<u32>,
    ) -> Self {
        let bucket = |most| Arc::new(Mutex::new(Bucket::new(most, Instant::now())));
        Self(Arc::new(Inner {
            name: name.into(),
            tag,
            max_sandboxes,
            executions: executions_per_minute.map(bucket),
            revoked: CancellationToken::new(),
        }))
    }

    /// The same with what another has left of its allowance, where that is as large. `same_key` says that
    /// its key is the same too, so that what is open goes on.
    pub fn succeed(&self, before: &Self, same_key: bool) -> Self {
        let most = |bucket: &Arc<Mutex<Bucket>>| bucket.lock().expect("not poisoned").most;
        let executions = match (&self.0.executions, &before.0.executions) {
            (Some(own), Some(before)) if most(own) == most(before) => Some(Arc::clone(before)),
            (own, _) => own.clone(),
        };
        Self(Arc::new(Inner {
            name: self.0.name.clone(),
            tag: self.0.tag,
            max_sandboxes: self.0.max_sandboxes,
            executions,
            revoked: if same_key { &before.0 } else { &self.0 }.revoked.clone(),
        }))
    }

    /// Ends what has no end of its own and was opened with this key: the key is no more.
    pub fn revoke(&self) {
        self.0.revoked.cancel();
    }

    /// Its key's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Adds who it is to a digest: two that are equal add the same, others do not.
    fn tell(&self, hash: &mut Sha256) {
        hash.update(self.0.name.len().to_le_bytes());
        hash.update(&self.0.name);
        hash.update(self.0.tag.unwrap_or_default());
    }

    /// What it is called where that lasts longer than the service: no two owners have the same.
    pub(super) fn label(&self) -> String {
        let Some(tag) = &self.0.tag else {
            return self.name().to_owned();
        };
        // Not the tag itself, which is made from the key; and no name has a slash.
        let digest = Sha256::digest(tag);
        let digits: String = digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{}/{digits}", self.name())
    }

    /// Most live sandboxes, where that is limited beside the service's own limit.
    pub(super) fn max_sandboxes(&self) -> Option<usize> {
        self.0.max_sandboxes
    }

    /// Takes one start from what is left of the allowance.
    fn take_execution(&self) -> Result<(), Error> {
        let Some(bucket) = &self.0.executions else {
            return Ok(());
        };
        let mut bucket = bucket.lock().expect("not poisoned");
        let most = bucket.most;
        bucket
            .take(Instant::now())
            .map_err(|wait| Error::too_many_executions(most, wait))
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name && self.0.tag == other.0.tag
    }
}

impl Eq for Owner {}

/// What a handle of the supervisor sees.
#[derive(Debug, Clone)]
pub(super) enum Scope {
    /// Every sandbox: there are no keys, or the service itself asks.
    Everything,
    /// None, and makes none: nobody has been asked who they are yet.
    Nothing,
    /// Those of one owner.
    Of(Owner),
}

impl Scope {
    /// Cancelled when the key is taken away; never where there is none.
    pub(super) fn revoked(&self) -> CancellationToken {
        match self {
            Self::Of(owner) => owner.0.revoked.clone(),
            Self::Everything | Self::Nothing => CancellationToken::new(),
        }
    }

    pub(super) fn sees(&self, sandbox: &Sandbox) -> bool {
        self.sees_of(sandbox.owner().as_ref())
    }

    /// Whether it sees what is this owner's.
    pub(super) fn sees_of(&self, of: Option<&Owner>) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Of(owner) => of == Some(owner),
        }
    }

    /// Adds to a digest what this handle sees.
    pub(super) fn tell(&self, hash: &mut Sha256) {
        match self {
            Self::Everything => hash.update(b"everything"),
            Self::Nothing => hash.update(b"nothing"),
            Self::Of(owner) => {
                hash.update(b"owner");
                owner.tell(hash);
            }
        }
    }

    /// Whether a mirror is there, which is its owner's or everyone's.
    pub(super) fn sees_mirror(&self, mirror: &Ingredients) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Of(owner) => mirror.owner.as_ref().is_none_or(|of| *of == owner.label()),
        }
    }

    /// Whether a mirror that is there may be deleted.
    ///
    /// # Errors
    /// `Conflict` for everyone's, as long as keys tell people apart.
    pub(super) fn may_delete(&self, mirror: &Ingredients, name: &str) -> Result<(), Error> {
        match self {
            Self::Of(_) if mirror.owner.is_none() => Err(Error::mirror_is_shared(name)),
            _ => Ok(()),
        }
    }

    /// Whose what is made now will be.
    ///
    /// # Errors
    /// It would be nobody's whom we know.
    pub(super) fn owner(&self) -> Result<Option<Owner>, Error> {
        match self {
            Self::Everything => Ok(None),
            Self::Of(owner) => Ok(Some(owner.clone())),
            Self::Nothing => Err(Error::new(
                ErrorKind::Internal,
                "unknown_caller",
                "a handle that acts for nobody was to create something",
            )),
        }
    }

    /// Counts the start of an execution, a command or a process.
    ///
    /// # Errors
    /// `Busy` where there were as many within a minute as allowed.
    pub(super) fn take_execution(&self) -> Result<(), Error> {
        match self {
            Self::Of(owner) => owner.take_execution(),
            Self::Everything | Self::Nothing => Ok(()),
        }
    }
}

/// A token bucket: `most` at once, and `most` a minute from then on.
#[derive(Debug)]
struct Bucket {
    most: u32,
    left: f64,
    counted: Instant,
}

impl Bucket {
    fn new(most: u32, now: Instant) -> Self {
        Self {
            most,
            left: f64::from(most),
            counted: now,
        }
    }

    /// Takes one, or says how long it takes until there is one.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let most = f64::from(self.most);
        let passed = now.saturating_duration_since(self.counted);
        self.left = (self.left + passed.as_secs_f64() / MINUTE.as_secs_f64() * most).min(most);
        self.counted = now;
        if self.left < 1.0 {
            return Err(MINUTE.mul_f64((1.0 - self.left) / most));
        }
        self.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_measure_at_once_and_then_by_the_clock() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut bucket = Bucket::new(6, begun);
        for _ in 0..6 {
            assert_eq!(bucket.take(begun), Ok(()));
        }
        assert_eq!(bucket.take(begun), Err(Duration::from_secs(10)));
        assert_eq!(bucket.take(after(4)), Err(Duration::from_secs(6)));
        assert_eq!(bucket.take(after(11)), Ok(()));
        assert!(bucket.take(after(11)).is_err());
        // An hour of rest is worth a minute.
        for _ in 0..6 {
            assert_eq!(bucket.take(after(3600)), Ok(()));
        }
        assert!(bucket.take(after(3600)).is_err());
    }

    #[test]
    fn a_named_owner_stays_the_same_with_another_key_and_an_unnamed_one_does_not() {
        let owner = |name: &str, tag| Owner::new(name, tag, None, None);
        assert_eq!(owner("ci", None), owner("ci", None));
        assert_ne!(owner("ci", None), owner("cd", None));
        assert_eq!(owner("key-1", Some([1; 32])), owner("key-1", Some([1; 32])));
        assert_ne!(owner("key-1", Some([1; 32])), owner("key-1", Some([2; 32])));
        assert_ne!(owner("key-1", Some([1; 32])), owner("key-1", None));
        let labels = [None, Some([1; 32]), Some([2; 32])].map(|tag| owner("key-1", tag).label());
        assert_eq!(labels[0], "key-1");
        assert!(labels[1] != labels[2] && labels[1].starts_with("key-1/"));
    }
}
