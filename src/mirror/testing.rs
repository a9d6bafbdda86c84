//! Stores with made-up mirrors, for the tests of this module's files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::manifest::{Manifest, id_of};
use super::recipe;
use super::store::{BUILDING, Mirror, RECORD, Record, Store, open_lock, write_record};

/// Whoever runs the tests owns what they make.
pub(super) static OWNER: LazyLock<u32> = LazyLock::new(|| rustix::process::getuid().as_raw());

/// A store in a directory that goes with it.
pub(super) struct TempStore(pub(super) Store);

impl Drop for TempStore {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.dir);
    }
}

pub(super) fn temp_store() -> TempStore {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("sandcell-mirror-{}-{count}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    TempStore(Store::open(&dir).unwrap())
}

pub(super) fn add_mirror(store: &Store, recipe: &str, hosts: &str) -> Mirror {
    let dir = store.fresh(BUILDING);
    let root = dir.join("root");
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(root.join("etc/hosts"), hosts).unwrap();
    fs::write(root.join("etc/motd"), "welcome").unwrap();
    symlink("etc", root.join("link")).unwrap();
    for (path, mode) in [
        ("", 0o755),
        ("etc", 0o755),
        ("etc/hosts", 0o644),
        ("etc/motd", 0o644),
    ] {
        fs::set_permissions(root.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    let manifest = Manifest::scan(&root, *OWNER, &mut |_| ()).unwrap().manifest;
    let text = manifest.render();
    fs::write(dir.join("manifest"), &text).unwrap();
    open_lock(&dir.join("lock")).unwrap();
    let record = Record {
        recipe: recipe.to_owned(),
        created_at: u64::from(hosts.len() as u32),
        size_bytes: manifest.size_bytes(),
        entries: manifest.entries.len(),
        build_seconds: 1,
        default_index: String::new(),
    };
    write_record(&dir, RECORD, &record).unwrap();
    let id = id_of(&text);
    fs::rename(&dir, store.dir.join(&id)).unwrap();
    store.find(&id).unwrap()
}

pub(super) fn small_store() -> (TempStore, Mirror) {
    let store = temp_store();
    let mirror = add_mirror(&store.0, &recipe::key(&[]), "host");
    (store, mirror)
}
