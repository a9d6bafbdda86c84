//! The store: mirrors in one directory, who uses them, and their removal.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::error::Error;
use super::manifest::{ID_DIGITS, Manifest};
use super::recipe;

pub(super) const BUILDING: &str = ".build-";
/// Record of a base.
pub(super) const RECORD: &str = "mirror.json";
pub(super) const REMOVED: &str = ".removed-";
/// Deleting a tree is tried again this often: programs of a killed build may still be dying.
const REMOVE_TRIES: usize = 20;
/// Locking a mirror is tried again this often.
const LOCK_TRIES: usize = 20;
/// Between two tries of either.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// A directory of mirrors.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) dir: PathBuf,
    /// Debian packages of its base besides the recipe's.
    pub(super) packages: Vec<String>,
}

/// What is recorded beside a mirror when it is built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// SHA-256 of the recipe that the mirror was built from.
    pub recipe: String,
    /// When it was complete, seconds since 1970.
    pub created_at: u64,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Files, directories and links.
    pub entries: usize,
    /// Seconds that the build took.
    pub build_seconds: u64,
    /// The Python index that pip uses when the host configures none, as the mirror's pip says.
    pub default_index: String,
}

/// A complete mirror.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// 32 hexadecimal digits: the start of the manifest's SHA-256.
    pub id: String,
    /// The tree, owned by [`MIRROR_OWNER`](super::MIRROR_OWNER). Nothing may write to it.
    pub root: PathBuf,
    /// How it came to be.
    pub record: Record,
}

/// A mirror as [`Store::list`] shows it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The mirror.
    pub mirror: Mirror,
    /// Somebody holds a [`Lock`] on it.
    pub in_use: bool,
    /// It was built from this binary's recipe.
    pub current: bool,
}

/// Keeps a mirror from being removed until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Mirror {
    fn dir(&self) -> &Path {
        self.root.parent().unwrap_or(&self.root)
    }

    pub(super) fn manifest_path(&self) -> PathBuf {
        self.dir().join("manifest")
    }

    fn open_lock(&self) -> Result<File, Error> {
        open_lock(&self.dir().join("lock"))
    }

    /// Marks the mirror as in use, for as long as the guard lives; any number may hold one.
    ///
    /// # Errors
    /// [`Error::Unknown`] when the mirror is being removed or is gone, [`Error::Io`] otherwise.
    pub fn lock_shared(&self) -> Result<Lock, Error> {
        let path = self.dir().join("lock");
        let gone = || Error::Unknown {
            id: self.id.clone(),
            dir: self.dir().parent().unwrap_or(self.dir()).to_path_buf(),
        };
        if !path.exists() {
            return Err(gone());
        }
        let file = self.open_lock()?;
        let mut tries = 0;
        loop {
            match file.try_lock_shared() {
                Ok(()) => break,
                // A list looks at the lock for an instant, a removal takes the path away.
                Err(TryLockError::WouldBlock) if tries < LOCK_TRIES && path.exists() => tries += 1,
                Err(TryLockError::WouldBlock) => return Err(gone()),
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
            }
            std::thread::sleep(PAUSE);
        }
        // A removal between opening and locking leaves us with the lock of a deleted file.
        let held = file.metadata().map_err(Error::io("look at", &path))?.ino();
        match fs::metadata(&path) {
            Ok(there) if there.ino() == held => Ok(Lock { _file: file }),
            _ => Err(gone()),
        }
    }

    fn lock_exclusive(&self) -> Result<Lock, Error> {
        lock_exclusive(&self.dir().join("lock"), &self.id)
    }
}

impl Store {
    /// Opens a store, makes its directory where there is none, and sweeps what interrupted builds
    /// and removals left, unless a build is running.
    ///
    /// # Errors
    /// [`Error::Io`] for a directory that cannot be made, read or swept.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(Error::io("make", dir))?;
        let dir = fs::canonicalize(dir).map_err(Error::io("open", dir))?;
        let packages = Vec::new();
        let store = Self { dir, packages };
        if !store.leftovers()?.is_empty() {
            let path = store.lock_path();
            let lock = open_lock(&path)?;
            match lock.try_lock() {
                Ok(()) => store.sweep()?,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
            }
        }
        Ok(store)
    }

    /// The same directory, with a base that has these Debian packages too.
    #[must_use]
    pub fn with_packages(mut self, names: &[String]) -> Self {
        self.packages = names.to_vec();
        self
    }

    /// What its base records as its recipe.
    pub(super) fn key(&self) -> String {
        recipe::key(&self.packages)
    }

    /// The newest complete mirror that was built from this binary's recipe.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Damaged`] for a store or a record that cannot be read.
    pub fn find_base(&self) -> Result<Option<Mirror>, Error> {
        let key = self.key();
        let mut mirrors = self.mirrors()?;
        mirrors.retain(|mirror| mirror.record.recipe == key);
        Ok(mirrors
            .into_iter()
            .max_by_key(|mirror| mirror.record.created_at))
    }

    /// The mirror of that id; the start of an id will do where only one mirror has it.
    ///
    /// # Errors
    /// [`Error::Unknown`], and what [`Store::find_base`] fails with.
    pub fn find(&self, id: &str) -> Result<Mirror, Error> {
        let mut mirrors = self.mirrors()?;
        mirrors.retain(|mirror| !id.is_empty() && mirror.id.starts_with(id));
        match mirrors.pop() {
            Some(mirror) if mirrors.is_empty() => Ok(mirror),
            _ => Err(Error::Unknown {
                id: id.to_owned(),
                dir: self.dir.clone(),
            }),
        }
    }

    /// All complete mirrors, newest first.
    ///
    /// # Errors
    /// What [`Store::find_base`] fails with.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let key = self.key();
        let mut listed = Vec::new();
        for mirror in self.mirrors()? {
            let in_use = match mirror.lock_exclusive() {
                Ok(_) => false,
                Err(Error::InUse { .. }) => true,
                Err(error) => return Err(error),
            };
            let current = mirror.record.recipe == key;
            listed.push(Listed {
                mirror,
                in_use,
                current,
            });
        }
        listed.sort_by_key(|entry| std::cmp::Reverse(entry.mirror.record.created_at));
        Ok(listed)
    }

    /// Removes a mirror.
    ///
    /// # Errors
    /// [`Error::InUse`] while anybody holds a [`Lock`] on it, [`Error::Unknown`] where there is
    /// none, [`Error::Io`] when deleting fails: the rest goes with the next [`Store::open`].
    pub fn remove(&self, id: &str) -> Result<Mirror, Error> {
        let mirror = self.find(id)?;
        self.discard(&mirror)?;
        Ok(mirror)
    }

    /// Removes every mirror that nobody uses and that was built from another recipe.
    ///
    /// # Errors
    /// What [`Store::remove`] fails with, except that mirrors in use are left alone.
    pub fn collect(&self) -> Result<Vec<Mirror>, Error> {
        let mut removed = Vec::new();
        for entry in self.list()? {
            if entry.current {
                continue;
            }
            match self.discard(&entry.mirror) {
                Ok(()) => removed.push(entry.mirror),
                Err(Error::InUse { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    /// The rename takes the id away at once; only then is the tree deleted.
    pub(super) fn discard(&self, mirror: &Mirror) -> Result<(), Error> {
        let _lock = mirror.lock_exclusive()?;
        let target = self.fresh(REMOVED);
        fs::rename(mirror.dir(), &target).map_err(Error::io("move away", mirror.dir()))?;
        remove_tree(&target)
    }

    /// A name that no other process takes: process id and clock.
    pub(super) fn fresh(&self, prefix: &str) -> PathBuf {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        self.dir
            .join(format!("{prefix}{}-{nanos:x}", std::process::id()))
    }

    pub(super) fn lock_path(&self) -> PathBuf {
        self.dir.join("build.lock")
    }

    fn leftovers(&self) -> Result<Vec<PathBuf>, Error> {
        let names = names(&self.dir)?;
        Ok(names
            .into_iter()
            .filter(|name| name.starts_with(BUILDING) || name.starts_with(REMOVED))
            .map(|name| self.dir.join(name))
            .collect())
    }

    /// Deletes what interrupted builds and removals left. The caller holds the build lock.
    pub(super) fn sweep(&self) -> Result<(), Error> {
        for path in self.leftovers()? {
            remove_tree(&path)?;
        }
        Ok(())
    }

    fn mirrors(&self) -> Result<Vec<Mirror>, Error> {
        let is_id = |name: &str| {
            name.len() == ID_DIGITS && name.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
        };
        let mut mirrors = Vec::new();
        for id in names(&self.dir)?.into_iter().filter(|name| is_id(name)) {
            let dir = self.dir.join(&id);
            if let Some(record) = read_record(&dir)? {
                let root = dir.join("root");
                mirrors.push(Mirror { id, root, record });
            }
        }
        Ok(mirrors)
    }
}

/// `None` when the mirror went away meanwhile.
fn read_record(dir: &Path) -> Result<Option<Record>, Error> {
    let path = dir.join(RECORD);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| Error::Damaged {
                path,
                reason: error.to_string(),
            }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !dir.exists() => Ok(None),
        Err(error) => Err(Error::io("read", &path)(error)),
    }
}

/// Writes a record so that a reader sees the old one or the new one.
pub(super) fn write_record(dir: &Path, name: &str, record: &impl Serialize) -> Result<(), Error> {
    let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
    let text = serde_json::to_string_pretty(record).expect("a record is plain data");
    fs::write(&new, text + "\n").map_err(Error::io("write", &new))?;
    fs::rename(&new, &path).map_err(Error::io("rename", &new))
}

/// Puts the manifest of a finished tree beside it, with the lock of those who will use it. Gives the
/// manifest's text.
pub(super) fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<String, Error> {
    let text = manifest.render();
    let path = dir.join("manifest");
    fs::write(&path, &text).map_err(Error::io("write", &path))?;
    open_lock(&dir.join("lock"))?;
    Ok(text)
}

/// Seconds since 1970.
pub(super) fn now_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

pub(super) fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}

/// Locks what has that id against everybody.
pub(super) fn lock_exclusive(path: &Path, id: &str) -> Result<Lock, Error> {
    let file = open_lock(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { id: id.to_owned() }),
        Err(TryLockError::Error(source)) => Err(Error::io("lock", path)(source)),
    }
}

/// Lock files are 0600: whoever can open one could hold up the service.
pub(super) fn open_lock(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::io("open", path))
}

pub(super) fn remove_tree(path: &Path) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        match fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) if tries < REMOVE_TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(Error::io("delete", path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{add_mirror, small_store, temp_store};
    use super::*;

    #[test]
    fn the_base_is_the_newest_of_this_recipe() {
        let store = temp_store();
        assert!(store.0.find_base().unwrap().is_none());
        add_mirror(&store.0, "another recipe", "the longest is the newest");
        assert!(store.0.find_base().unwrap().is_none());
        add_mirror(&store.0, &recipe::key(&[]), "old");
        let new = add_mirror(&store.0, &recipe::key(&[]), "newer");
        assert_eq!(store.0.find_base().unwrap().unwrap().id, new.id);
        let listed = store.0.list().unwrap();
        let current: Vec<bool> = listed.iter().map(|entry| entry.current).collect();
        assert_eq!(current, [false, true, true]);
    }

    #[test]
    fn a_mirror_in_use_is_not_removed() {
        let (store, mirror) = small_store();
        let (first, second) = (mirror.lock_shared().unwrap(), mirror.lock_shared().unwrap());
        drop(first);
        assert!(store.0.list().unwrap()[0].in_use);
        let refused = store.0.remove(&mirror.id).unwrap_err();
        assert!(matches!(refused, Error::InUse { .. }), "{refused}");
        drop(second);
        assert!(!store.0.list().unwrap()[0].in_use);
        store.0.remove(&mirror.id).unwrap();
        assert!(store.0.list().unwrap().is_empty());
        assert!(store.0.leftovers().unwrap().is_empty());
        assert!(matches!(mirror.lock_shared(), Err(Error::Unknown { .. })));
    }

    #[test]
    fn only_a_whole_or_unique_id_finds_a_mirror() {
        let (store, mirror) = small_store();
        assert_eq!(store.0.find(&mirror.id[..8]).unwrap().id, mirror.id);
        for id in ["", "..", "no", "build.lock"] {
            assert!(
                matches!(store.0.find(id), Err(Error::Unknown { .. })),
                "{id}"
            );
        }
    }

    #[test]
    fn collecting_takes_what_is_outdated_and_unused() {
        let (store, current) = small_store();
        let used = add_mirror(&store.0, "old", "used");
        let unused = add_mirror(&store.0, "old", "unused");
        let lock = used.lock_shared().unwrap();
        let removed = store.0.collect().unwrap();
        let removed: Vec<&str> = removed.iter().map(|mirror| mirror.id.as_str()).collect();
        assert_eq!(removed, [unused.id.as_str()]);
        drop(lock);
        assert_eq!(store.0.collect().unwrap().len(), 1);
        assert_eq!(store.0.list().unwrap()[0].mirror.id, current.id);
    }

    #[test]
    fn opening_sweeps_leftovers_unless_a_build_runs() {
        let (store, mirror) = small_store();
        let left = store.0.fresh(BUILDING);
        fs::create_dir_all(left.join("root/etc")).unwrap();
        let build = open_lock(&store.0.lock_path()).unwrap();
        build.lock().unwrap();
        Store::open(&store.0.dir).unwrap();
        assert!(left.exists());
        drop(build);
        let store = Store::open(&store.0.dir).unwrap();
        assert!(!left.exists());
        assert_eq!(store.find_base().unwrap().unwrap().id, mirror.id);
    }
}
