//! The downloads on disk, named by their SHA-256.
//!
//! ```text
//! <dir>/                     0700: no sandbox's uid can look inside, it gets bytes through the gateway
//! <dir>/sha256/ab/<hex>      a file whose bytes had that hash when it was renamed to its name
//! <dir>/tmp/                 downloads in progress; swept at the start
//! ```
//!
//! Nothing is synced to disk: a file that a crash left short or empty is noticed, as every file is hashed
//! again before it is served for the first time after a start, and whenever its size, times or inode are
//! not those that it had when it was hashed. A damaged file is removed and downloaded anew.
//!
//! What runs is counted too: files and downloads in progress together stay within the limit. The least
//! recently used files go first; who is reading one reads on from its descriptor.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use sha2::{Digest as _, Sha256};

use super::error::Error;
use super::name::Digest;

const READ_BYTES: usize = 256 * 1024;

/// The cache.
pub(super) struct Cache {
    dir: PathBuf,
    limit: u64,
    state: Mutex<State>,
}

struct State {
    files: LruCache<Digest, Stored>,
    /// Bytes of `files`.
    bytes: u64,
    /// Bytes that downloads in progress have, or were promised.
    reserved: u64,
    downloads: u64,
}

struct Stored {
    bytes: u64,
    /// As it was when it was found to have its hash; `None` since the start.
    verified: Option<Identity>,
}

/// What changes when somebody writes to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What the cache has.
pub(super) enum Lookup {
    /// The file, as it was hashed, and its bytes.
    Ready(File, u64),
    /// A file that must be hashed first.
    Unverified(File),
    Missing,
}

impl Cache {
    /// Opens the cache, makes its directory where there is none, sweeps leftovers and counts what is there.
    pub(super) fn open(dir: &Path, limit: u64) -> Result<Arc<Self>, Error> {
        let make = |dir: &Path| {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .and_then(|()| fs::set_permissions(dir, PermissionsExt::from_mode(0o700)))
                .map_err(Error::directory("make", dir))
        };
        make(dir)?;
        let temporary = dir.join("tmp");
        match fs::remove_dir_all(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::directory("sweep", &temporary)(error));
            }
            _ => make(&temporary)?,
        }
        let store = dir.join("sha256");
        make(&store)?;
        let mut found = scan(&store).map_err(Error::directory("read", &store))?;
        found.sort_by_key(|(_, _, used)| *used);
        let mut state = State {
            files: LruCache::unbounded(),
            bytes: 0,
            reserved: 0,
            downloads: 0,
        };
        for (digest, bytes, _) in found {
            state.bytes += bytes;
            let verified = None;
            state.files.put(digest, Stored { bytes, verified });
        }
        let cache = Self {
            dir: dir.to_owned(),
            limit,
            state: Mutex::new(state),
        };
        cache.make_room(&mut cache.state.lock().expect("not poisoned"), 0);
        Ok(Arc::new(cache))
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.dir.join("sha256").join(&name[..2]).join(&name)
    }

    /// What is there of that hash. A file of another size than the one that was stored is removed.
    pub(super) fn look_up(&self, digest: &Digest) -> Lookup {
        let mut state = self.state.lock().expect("not poisoned");
        let Some(stored) = state.files.get(digest) else {
            return Lookup::Missing;
        };
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.path(digest))
            .and_then(|file| Ok((Identity::of(&file)?, file)));
        match opened {
            Ok((identity, file)) if stored.verified == Some(identity) => {
                Lookup::Ready(file, identity.bytes)
            }
            Ok((identity, file)) if stored.bytes == identity.bytes => Lookup::Unverified(file),
            _ => {
                tracing::warn!(%digest, "a cached package is gone or has another size: it is downloaded anew");
                self.remove(&mut state, digest);
                Lookup::Missing
            }
        }
    }

    /// Hashes a file that [`Cache::look_up`] found; blocks. `None`: it was damaged and is removed.
    pub(super) fn verify(&self, digest: &Digest, mut file: File) -> Option<(File, u64)> {
        let hashed = Identity::of(&file).and_then(|before| {
            let found = hash(&mut file)?;
            let after = Identity::of(&file)?;
            Ok((found == *digest && before == after).then_some(after))
        });
        let mut state = self.state.lock().expect("not poisoned");
        if let Ok(Some(identity)) = hashed {
            if let Some(stored) = state.files.peek_mut(digest) {
                stored.verified = Some(identity);
            }
            return Some((file, identity.bytes));
        }
        tracing::warn!(%digest, "a cached package is damaged: it is downloaded anew");
        self.remove(&mut state, digest);
        None
    }

    /// Begins a download of `length` bytes, or of a length that is not known yet.
    pub(super) fn begin(
        self: &Arc<Self>,
        expected: Digest,
        length: Option<u64>,
    ) -> Result<Partial, Error> {
        let path = {
            let mut state = self.state.lock().expect("not poisoned");
            state.downloads += 1;
            self.dir.join("tmp").join(state.downloads.to_string())
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)
            .map_err(|error| Error::storage(&error))?;
        let mut partial = Partial {
            cache: Arc::clone(self),
            path,
            file: Arc::new(file),
            expected,
            hash: Sha256::new(),
            written: 0,
            reserved: 0,
        };
        partial.reserve(length.unwrap_or(0))?;
        Ok(partial)
    }

    /// Removes files until `bytes` more fit, as far as there are files to remove.
    fn make_room(&self, state: &mut State, bytes: u64) {
        while state.bytes + state.reserved + bytes > self.limit {
            let Some((digest, stored)) = state.files.pop_lru() else {
                return;
            };
            state.bytes -= stored.bytes;
            self.unlink(&digest);
        }
    }

    fn remove(&self, state: &mut State, digest: &Digest) {
        if let Some(stored) = state.files.pop(digest) {
            state.bytes -= stored.bytes;
        }
        self.unlink(digest);
    }

    fn unlink(&self, digest: &Digest) {
        match fs::remove_file(self.path(digest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(%digest, %error, "failed to remove a cached package");
            }
            _ => {}
        }
    }
}

/// Files of the store with their bytes and when they were last used, as far as the file system tells.
/// Whatever else lies there is removed.
fn scan(store: &Path) -> io::Result<Vec<(Digest, u64, i64)>> {
    let mut found = Vec::new();
    for dir in fs::read_dir(store)? {
        let dir = dir?;
        if !dir.file_type()?.is_dir() {
            fs::remove_file(dir.path())?;
            continue;
        }
        for entry in fs::read_dir(dir.path())? {
            let entry = entry?;
            let name = entry.file_name();
            let digest = name.to_str().filter(|name| {
                dir.file_name().to_str() == name.get(..2) && !name.contains(char::is_uppercase)
            });
            let meta = entry.metadata()?;
            match digest.and_then(Digest::parse) {
                Some(digest) if meta.is_file() => {
                    found.push((digest, meta.len(), meta.atime().max(meta.mtime())));
                }
                _ if meta.is_dir() => fs::remove_dir_all(entry.path())?,
                _ => fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(found)
}

fn hash(file: &mut File) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    io::Seek::rewind(file)?;
    Ok(Digest(hash.finalize().into()))
}

impl Identity {
    fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self {
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// A download in progress. Dropped before [`Partial::finish`], nothing is left of it.
pub(super) struct Partial {
    cache: Arc<Cache>,
    path: PathBuf,
    /// For those who read what is there so far.
    pub(super) file: Arc<File>,
    expected: Digest,
    hash: Sha256,
    written: u64,
    reserved: u64,
}

impl Partial {
    fn reserve(&mut self, bytes: u64) -> Result<(), Error> {
        let more = bytes.saturating_sub(self.reserved);
        let mut state = self.cache.state.lock().expect("not poisoned");
        if bytes > self.cache.limit {
            return Err(Error::TooLarge {
                what: "the file",
                limit: self.cache.limit,
                key: "packages.cache_bytes",
            });
        }
        if state.reserved + more > self.cache.limit {
            return Err(Error::Busy);
        }
        self.cache.make_room(&mut state, more);
        state.reserved += more;
        self.reserved += more;
        Ok(())
    }

    /// Adds bytes; blocks.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.reserve(self.written + bytes.len() as u64)?;
        self.hash.update(bytes);
        (&*self.file)
            .write_all(bytes)
            .map_err(|error| Error::storage(&error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Keeps the file if it has its hash; blocks.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let found = Digest(std::mem::take(&mut self.hash).finalize().into());
        if found != self.expected {
            return Err(Error::Wrong(
                "the file does not have the SHA-256 that the index lists for it, so it is not passed on"
                    .to_owned(),
            ));
        }
        let path = self.cache.path(&found);
        let dir = path
            .parent()
            .expect("a file of the store is in a directory");
        let moved = match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::rename(&self.path, &path),
        };
        moved.map_err(|error| Error::storage(&error))?;
        let mut state = self.cache.state.lock().expect("not poisoned");
        let stored = Stored {
            bytes: self.written,
            verified: Identity::of(&self.file).ok(),
        };
        state.bytes += self.written;
        if let Some(old) = state.files.put(found, stored) {
            state.bytes -= old.bytes;
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock().expect("not poisoned");
        state.reserved -= self.reserved;
        // Renamed when it was finished, and then there is nothing under this name.
        let _ = fs::remove_file(&self.path);
        drop(state);
    }
}
