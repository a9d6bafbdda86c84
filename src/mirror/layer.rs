//! Layers: what packages add to the base, each in a directory of its own.
//!
//! ```text
//! <layers>/<id>/root/         what differs from the base's tree, owned by MIRROR_OWNER; what is
//!                             removed from it is a character device 0/0
//! <layers>/<id>/manifest      one line an entry
//! <layers>/<id>/layer.json    the record: what was asked for, what came of it
//! <layers>/<id>/lock          flock, shared while a service has it, exclusive to remove
//! <layers>/.build-…           a build in progress, or what is left of one
//! ```
//!
//! A layer's id says what was asked for: the base, the packages, what is imported ahead. Asked again,
//! it is the same layer, whatever the index has by then. Its content is what the record's digest of the
//! manifest says. It appears under its id by one rename, as a mirror does.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::MIRROR_OWNER;
use super::error::Error;
use super::manifest::{ID_DIGITS, Kind, Manifest, Scan, hex, id_of};
use super::store::{
    BUILDING, REMOVED, Store, lock_exclusive, names, now_seconds, open_lock, remove_tree,
    write_manifest, write_record,
};
use super::unpack::{Bounds, Unpack, UnpackError};
use super::verify::{Report, verify_tree};

/// The directory of the base that packages are installed in.
pub const ENVIRONMENT: &str = "opt/venv";
const RECORD: &str = "layer.json";

/// What a layer is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingredients {
    /// Id of the base.
    pub base: String,
    /// Requirements, as they were asked for.
    pub packages: Vec<String>,
    /// Modules that its zygote imports.
    pub preload: Vec<String>,
    /// Whose it is; everyone's where nobody is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Ingredients {
    /// The id of the layer that is made of them for its owner; the order of the packages says nothing.
    pub fn id(&self) -> String {
        let mut packages = self.packages.clone();
        packages.sort();
        packages.dedup();
        let text = match &self.owner {
            None => serde_json::to_string(&(&self.base, packages, &self.preload)),
            Some(owner) => serde_json::to_string(&(&self.base, packages, &self.preload, owner)),
        };
        let mut id = hex(&Sha256::digest(text.expect("plain data")));
        id.truncate(ID_DIGITS);
        id
    }
}

/// A package that a layer has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// As its metadata's directory has it.
    pub name: String,
    /// Likewise.
    pub version: String,
}

/// What is recorded beside a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// For people and for requests; unique in its directory.
    pub name: String,
    /// What it was made of.
    #[serde(flatten)]
    pub ingredients: Ingredients,
    /// What came of it.
    pub resolved: Vec<Package>,
    /// The start of the manifest's SHA-256.
    pub content: String,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Files, directories, links and removals.
    pub entries: usize,
    /// When it was complete, seconds since 1970.
    pub created_at: u64,
}

/// A complete layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// See [`Ingredients::id`].
    pub id: String,
    /// The tree. Nothing may write to it.
    pub root: PathBuf,
    /// How it came to be.
    pub record: LayerRecord,
}

/// Keeps a layer from being removed by another process until it is dropped.
#[derive(Debug)]
pub struct LayerLock {
    _file: File,
}

impl Layer {
    fn dir(&self) -> &Path {
        self.root.parent().unwrap_or(&self.root)
    }

    /// Marks it as in use.
    ///
    /// # Errors
    /// [`Error::InUse`] while it is being removed.
    pub fn lock(&self) -> Result<LayerLock, Error> {
        let path = self.dir().join("lock");
        let file = open_lock(&path)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(LayerLock { _file: file }),
            Err(_) => Err(Error::InUse {
                id: self.id.clone(),
            }),
        }
    }

    /// Hashes the whole tree again and names every difference.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a manifest that is not the record's, [`Error::Io`].
    pub fn verify(&self, advance: &mut dyn FnMut(f64)) -> Result<Report, Error> {
        let manifest = self.dir().join("manifest");
        verify_tree(
            &self.root,
            &manifest,
            &self.record.content,
            MIRROR_OWNER,
            advance,
        )
    }
}

/// A directory of layers. Its caller sees to it that no other process builds there.
#[derive(Debug, Clone)]
pub struct Layers {
    dir: PathBuf,
}

impl Layers {
    /// Of the service with that data directory. Nothing is made before a layer is built.
    pub fn of(data_dir: &Path) -> Self {
        Self {
            dir: data_dir.join("layers"),
        }
    }

    /// Deletes what interrupted builds and removals left; for the one process that builds here.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sweep(&self) -> Result<(), Error> {
        if !self.dir.exists() {
            return Ok(());
        }
        for name in names(&self.dir)? {
            if name.starts_with(BUILDING) || name.starts_with(REMOVED) {
                remove_tree(&self.dir.join(name))?;
            }
        }
        self.remove_if_empty();
        Ok(())
    }

    fn remove_if_empty(&self) {
        let _ = fs::remove_dir(&self.dir);
    }

    /// Every complete layer, oldest first.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::Damaged`] for a record that cannot be read.
    pub fn list(&self) -> Result<Vec<Layer>, Error> {
        if !self.dir.exists() {
            return Ok(Vec::new());
        }
        let mut layers = Vec::new();
        for id in names(&self.dir)?
            .into_iter()
            .filter(|n| !n.starts_with('.'))
        {
            let dir = self.dir.join(&id);
            let path = dir.join(RECORD);
            let text = fs::read(&path).map_err(Error::io("read", &path))?;
            let record = serde_json::from_slice(&text).map_err(|e| Error::Damaged {
                path,
                reason: e.to_string(),
            })?;
            let root = dir.join("root");
            layers.push(Layer { id, root, record });
        }
        layers.sort_by_key(|layer| layer.record.created_at);
        Ok(layers)
    }

    /// The layer of that id, start of an id, or name.
    ///
    /// # Errors
    /// [`Error::Unknown`], and what [`Layers::list`] fails with.
    pub fn find(&self, wanted: &str) -> Result<Layer, Error> {
        let mut layers = self.list()?;
        let is = |layer: &Layer| {
            layer.record.name == wanted || !wanted.is_empty() && layer.id.starts_with(wanted)
        };
        layers.retain(is);
        match layers.pop() {
            Some(layer) if layers.is_empty() => Ok(layer),
            _ => Err(Error::Unknown {
                id: wanted.to_owned(),
                dir: self.dir.clone(),
            }),
        }
    }

    /// Removes a layer.
    ///
    /// # Errors
    /// [`Error::InUse`] while another process has a lock on it; [`Error::Io`].
    pub fn remove(&self, layer: &Layer) -> Result<(), Error> {
        let _lock = lock_exclusive(&layer.dir().join("lock"), &layer.id)?;
        let target = self.fresh(REMOVED);
        fs::rename(layer.dir(), &target).map_err(Error::io("move away", layer.dir()))?;
        let removed = remove_tree(&target);
        self.remove_if_empty();
        removed
    }

    fn fresh(&self, prefix: &str) -> PathBuf {
        let store = Store {
            dir: self.dir.clone(),
            packages: Vec::new(),
        };
        store.fresh(prefix)
    }

    /// Makes a layer's tree of what an installation tells on `stream`, not yet under its id.
    /// Blocks for as long as the stream does.
    ///
    /// # Errors
    /// The stream is not believed, or too large; the disk. Nothing is left then.
    pub fn unpack(
        &self,
        base: &Path,
        stream: &mut dyn Read,
        bounds: Bounds,
    ) -> Result<Draft, UnpackError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        let draft = Draft {
            dir: self.fresh(BUILDING),
            layers: self.clone(),
        };
        let root = draft.dir.join("root");
        fs::DirBuilder::new().mode(0o700).create(&draft.dir)?;
        fs::DirBuilder::new().mode(0o755).create(&root)?;
        std::os::unix::fs::chown(&root, Some(MIRROR_OWNER), Some(MIRROR_OWNER))?;
        let manifest = base.parent().unwrap_or(base).join("manifest");
        let text = fs::read_to_string(manifest)?;
        let manifest = Manifest::parse(&text).map_err(std::io::Error::other)?;
        let root: OwnedFd = File::open(&root)?.into();
        Unpack::new(&root, ENVIRONMENT, &manifest, MIRROR_OWNER, bounds).run(stream)?;
        Ok(draft)
    }
}

/// A layer that has no id yet; dropped, it is deleted.
#[derive(Debug)]
pub struct Draft {
    dir: PathBuf,
    layers: Layers,
}

impl Draft {
    /// The tree.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Hashes it, records it and gives it its id.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn publish(self, ingredients: Ingredients, name: String) -> Result<Layer, Error> {
        let Scan { manifest, .. } = Manifest::scan(&self.root(), MIRROR_OWNER, &mut |_| ())?;
        let text = write_manifest(&self.dir, &manifest)?;
        let id = ingredients.id();
        let record = LayerRecord {
            name,
            ingredients,
            resolved: packages(&manifest),
            content: id_of(&text),
            size_bytes: manifest.size_bytes(),
            entries: manifest.entries.len(),
            created_at: now_seconds(),
        };
        write_record(&self.dir, RECORD, &record)?;
        let layers = &self.layers.dir;
        let dir = File::open(layers).map_err(Error::io("open", layers))?;
        rustix::fs::syncfs(&dir).map_err(Error::errno("write back", layers))?;
        let target = layers.join(&id);
        fs::rename(&self.dir, &target).map_err(Error::io("rename", &self.dir))?;
        dir.sync_all().map_err(Error::io("write back", layers))?;
        let root = target.join("root");
        Ok(Layer { id, root, record })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = remove_tree(&self.dir);
        self.layers.remove_if_empty();
    }
}

/// The packages whose metadata a layer brings: `<name>-<version>.dist-info` (the specification of
/// recording installed projects, packaging.python.org).
fn packages(manifest: &Manifest) -> Vec<Package> {
    let is_metadata = |path: &[u8]| {
        let path = str::from_utf8(path).ok()?;
        let (directory, name) = path.rsplit_once('/')?;
        directory.ends_with("/site-packages").then_some(())?;
        let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
        Some(Package {
            name: name.replace('_', "-").to_lowercase(),
            version: version.to_owned(),
        })
    };
    manifest
        .entries
        .iter()
        .filter(|entry| entry.kind == Kind::Directory)
        .filter_map(|entry| is_metadata(&entry.path))
        .collect()
}
