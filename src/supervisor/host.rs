//! What all sandboxes of a service share: the lock on its data, its cgroups, nursery and zygote.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::isolation::cgroup::{Layout, RUN_PREFIX, ServiceCgroup};
use crate::isolation::host::{Nursery, SpawnedNursery, spawn_nursery};
use crate::isolation::seccomp::Filters;
use crate::isolation::spec::{Ablation, BLOCK_IDS};
use crate::isolation::{Context, Error};
use crate::kernel::zygote::Zygote;
use crate::network::{self, Egress, Gateway};

/// A service that has its processes, before tokio starts.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    lock: Option<DataLock>,
    cgroup: ServiceCgroup,
    nursery: SpawnedNursery,
    ablation: Ablation,
    default_index: String,
}

impl Prepared {
    /// Takes the data directory, cleans what an earlier run left, and starts the nursery from
    /// `program` over the mirror at `mirror`.
    ///
    /// # Errors
    /// Another service has the data directory; the host lacks a feature (named, with the mend).
    pub fn new(config: Config, program: &Path, mirror: &Path) -> Result<Self, Error> {
        let lock = DataLock::take(&config.data_dir)?;
        let instance = instance_name(&config.data_dir);
        Self::start(config, Some(lock), &instance, program, mirror)
    }

    /// For one sandbox and no longer: nothing is locked and no data directory is touched.
    pub fn ephemeral(config: Config, program: &Path, mirror: &Path) -> Result<Self, Error> {
        let instance = format!("{RUN_PREFIX}{}", std::process::id());
        Self::start(config, None, &instance, program, mirror)
    }

    fn start(
        config: Config,
        lock: Option<DataLock>,
        instance: &str,
        program: &Path,
        mirror: &Path,
    ) -> Result<Self, Error> {
        let layout = Layout::detect()?;
        ServiceCgroup::sweep_runs(&layout);
        let cgroup = ServiceCgroup::create(layout, instance)?;
        match spawn_nursery(program, mirror, &cgroup) {
            Ok(nursery) => Ok(Self {
                config,
                lock,
                cgroup,
                nursery,
                ablation: Ablation::default(),
                default_index: String::new(),
            }),
            Err(e) => {
                let _ = cgroup.remove();
                Err(e)
            }
        }
    }

    /// The package index to use where neither the configuration nor the host's pip names one.
    pub fn with_default_index(mut self, url: &str) -> Self {
        url.clone_into(&mut self.default_index);
        self
    }

    /// Leaves protections out. For tests that prove that other tests would notice.
    #[doc(hidden)]
    pub fn without(mut self, ablation: Ablation) -> Self {
        self.ablation = ablation;
        self
    }
}

/// The shared part, running.
#[derive(Debug)]
pub struct Host {
    /// Every knob.
    pub config: Config,
    /// The service's cgroups.
    pub cgroup: ServiceCgroup,
    /// Makes sandboxes.
    pub nursery: Nursery,
    /// What every process of user code installs.
    pub filters: Filters,
    /// Left out on purpose, by tests only.
    pub ablation: Ablation,
    /// What sandboxes reach, they reach through this.
    pub egress: Arc<Egress>,
    zygote: tokio::sync::Mutex<Arc<Zygote>>,
    users: Mutex<Users>,
    lock: Mutex<Option<DataLock>>,
}

impl Host {
    /// Brings the service up; must be called within a tokio runtime.
    pub async fn start(prepared: Prepared) -> Result<Arc<Self>, Error> {
        let Prepared {
            config,
            lock,
            cgroup,
            nursery,
            ablation,
            default_index,
        } = prepared;
        let nursery = Nursery::attach(nursery)?;
        let filters = Filters::default_profile()?;
        // A service's own, in its data directory: what runs one sandbox and goes has no cache.
        let index = match &lock {
            Some(_) => Some(package_index(&config, &default_index)?),
            None => None,
        };
        let egress = Arc::new(Egress::new(&config.network, index).map_err(Error::Unsupported)?);
        let zygote = start_zygote(&nursery, &filters, ablation, &config).await;
        let zygote = match zygote {
            Ok(zygote) => zygote,
            Err(e) => {
                nursery.kill();
                nursery.died().await;
                let _ = cgroup.remove();
                return Err(e);
            }
        };
        Ok(Arc::new(Self {
            config,
            cgroup,
            nursery,
            filters,
            ablation,
            egress,
            zygote: tokio::sync::Mutex::new(zygote),
            users: Mutex::new(Users::default()),
            lock: Mutex::new(lock),
        }))
    }

    /// The zygote, a new one where the last has died.
    pub async fn zygote(&self) -> Result<Arc<Zygote>, Error> {
        let mut zygote = self.zygote.lock().await;
        if zygote.is_dead() {
            *zygote =
                start_zygote(&self.nursery, &self.filters, self.ablation, &self.config).await?;
        }
        Ok(Arc::clone(&zygote))
    }

    /// Filters that a kernel must have.
    pub fn required_filters(&self) -> usize {
        if self.ablation.no_seccomp {
            0
        } else {
            self.filters.count()
        }
    }

    /// An id for a sandbox's user, given back when the value is dropped.
    pub fn take_user(self: &Arc<Self>) -> Result<User, Error> {
        let mut users = self.users.lock().expect("not poisoned");
        let id = users
            .take(self.ablation.shared_uid)
            .ok_or_else(|| Error::Refused("all ids for sandboxes are in use".into()))?;
        Ok(User {
            host: Arc::clone(self),
            id,
        })
    }

    /// Writes the address into the data directory's lock file, where `sandcell run` finds it.
    pub fn announce(&self, address: SocketAddr) -> Result<(), Error> {
        match self.lock.lock().expect("not poisoned").as_mut() {
            Some(lock) => lock.announce(address),
            None => Ok(()),
        }
    }

    /// Ends every process and removes the cgroups. Errors are collected, the rest goes on.
    pub async fn stop(&self) -> Vec<Error> {
        self.nursery.kill();
        self.nursery.died().await;
        let mut errors = Vec::new();
        if let Err(e) = self.cgroup.remove() {
            errors.push(e);
        }
        drop(self.lock.lock().expect("not poisoned").take());
        errors
    }
}

/// The package index that sandboxes see.
fn package_index(config: &Config, default_index: &str) -> Result<network::Index, Error> {
    let cache = config.data_dir.join("packages");
    let gateway = Gateway::new(&config.packages, cache, default_index)
        .map_err(|e| Error::Unsupported(format!("the package index: {e}")))?;
    Ok(Arc::new(move |_, request| {
        let gateway = gateway.clone();
        Box::pin(async move { gateway.answer(request).await.map(Body::new) })
    }))
}

async fn start_zygote(
    nursery: &Nursery,
    filters: &Filters,
    ablation: Ablation,
    config: &Config,
) -> Result<Arc<Zygote>, Error> {
    let filters = (!ablation.no_seccomp).then_some(filters);
    let mut without = Vec::new();
    if ablation.keep_capabilities {
        without.push("drop_bounding_set");
    }
    if ablation.keep_descriptors {
        without.push("close_descriptors");
    }
    Zygote::start(nursery, filters, &config.service.preload, &without).await
}

/// A user id that no other live sandbox has.
#[derive(Debug)]
pub struct User {
    host: Arc<Host>,
    id: u32,
}

impl User {
    /// Inside the nursery's user namespace.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// On the host.
    pub fn host_id(&self) -> u32 {
        self.host.nursery.host_id(self.id)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.host
            .users
            .lock()
            .expect("not poisoned")
            .taken
            .remove(&self.id);
    }
}

/// Ids in turn, so that one is not used again soon after its sandbox died.
#[derive(Debug, Default)]
struct Users {
    taken: BTreeSet<u32>,
    last: u32,
}

impl Users {
    fn take(&mut self, shared: bool) -> Option<u32> {
        if shared {
            return Some(1);
        }
        let all = BLOCK_IDS - 1;
        let id = (1..=all)
            .map(|n| (self.last + n - 1) % all + 1)
            .find(|id| !self.taken.contains(id))?;
        self.taken.insert(id);
        self.last = id;
        Some(id)
    }
}

/// Name of a data directory's cgroups: the same at every start, so that leftovers are found.
fn instance_name(data_dir: &Path) -> String {
    let path = fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    digest[..6].iter().map(|b| format!("{b:02x}")).collect()
}

/// One service to a data directory.
#[derive(Debug)]
struct DataLock {
    file: Flock<File>,
    path: PathBuf,
}

/// File in the data directory that a running service holds locked; it tells its pid and address.
const LOCK_FILE: &str = "service";

impl DataLock {
    fn take(data_dir: &Path) -> Result<Self, Error> {
        fs::create_dir_all(data_dir).map_err(Error::path("make", data_dir))?;
        let path = data_dir.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::path("open", &path))?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((mut file, _)) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(Error::Unsupported(format!(
                    "the data directory {} is in use by another sandcell ({}); stop it or give \
                     --data-dir",
                    data_dir.display(),
                    holder.trim()
                )));
            }
        };
        write_over(&mut file, &format!("pid {}\n", std::process::id()))
            .context("write the lock file")?;
        Ok(Self { file, path })
    }

    fn announce(&mut self, address: SocketAddr) -> Result<(), Error> {
        let text = format!("pid {} http://{address}\n", std::process::id());
        write_over(&mut self.file, &text).context("write the lock file")
    }
}

impl Drop for DataLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn write_over(file: &mut File, text: &str) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// Address of the service that runs on a data directory, if one does.
pub fn running_service(data_dir: &Path) -> Option<String> {
    let file = File::open(data_dir.join(LOCK_FILE)).ok()?;
    let text = match Flock::lock(file, FlockArg::LockSharedNonblock) {
        // Nobody holds it: what it says is of a service that was killed.
        Ok(_) => return None,
        Err((mut file, _)) => {
            let mut text = String::new();
            file.read_to_string(&mut text).ok()?;
            text
        }
    };
    text.split_whitespace()
        .find(|w| w.starts_with("http://"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_go_round() {
        let mut users = Users::default();
        assert_eq!(users.take(false), Some(1));
        assert_eq!(users.take(false), Some(2));
        users.taken.remove(&1);
        assert_eq!(users.take(false), Some(3));
        users.last = BLOCK_IDS - 1;
        assert_eq!(users.take(false), Some(1));
    }
}
