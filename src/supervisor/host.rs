//! What all sandboxes of a service share: the lock on its data, its cgroups, what starts nurseries.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use super::files::{Journals, Watches};
use super::realm::Realm;
use crate::config::Config;
use crate::isolation::cgroup::{Layout, RUN_PREFIX, ServiceCgroup};
use crate::isolation::seccomp::Filters;
use crate::isolation::spawner::{Home, Lower, SpawnedNursery, Spawner};
use crate::isolation::spec::Ablation;
use crate::isolation::{Context, Error};
use crate::network::{self, Egress, Gateway};

/// A service that has its processes, before tokio starts.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    lock: Option<DataLock>,
    cgroup: ServiceCgroup,
    spawner: Spawner,
    nursery: SpawnedNursery,
    mirror: PathBuf,
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
        match spawn_base(program, mirror, &cgroup) {
            Ok((spawner, nursery)) => Ok(Self {
                config,
                lock,
                cgroup,
                spawner,
                nursery,
                mirror: mirror.to_owned(),
                ablation: Ablation::default(),
                default_index: String::new(),
            }),
            Err(e) => {
                let _ = cgroup.remove();
                Err(e)
            }
        }
    }

    /// The package index to use where neither the configuration nor the host's pip names one. Without
    /// this sandboxes have no index at all.
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

fn spawn_base(
    program: &Path,
    mirror: &Path,
    cgroup: &ServiceCgroup,
) -> Result<(Spawner, SpawnedNursery), Error> {
    let spawner = Spawner::start(program)?;
    let lower = Lower {
        mirror: mirror.to_owned(),
        layer: None,
    };
    let home = Home {
        dir: cgroup.nursery_dir()?,
        joins: Vec::new(),
    };
    let nursery = spawner.spawn(lower, home).blocking_recv();
    let nursery = nursery.map_err(|_| Error::Refused("the thread of nurseries ended".into()))??;
    Ok((spawner, nursery))
}

/// The shared part, running.
#[derive(Debug)]
pub struct Host {
    /// Every knob.
    pub config: Config,
    /// The service's cgroups.
    pub cgroup: ServiceCgroup,
    /// Starts nurseries.
    pub spawner: Spawner,
    /// What every process of user code installs.
    pub filters: Filters,
    /// The same in sandboxes with GPUs: as many, one of which lists more.
    pub gpu_filters: Filters,
    /// Left out on purpose, by tests only.
    pub ablation: Ablation,
    /// What sandboxes reach, they reach through this.
    pub egress: Arc<Egress>,
    /// Of files, of all sandboxes together.
    pub watches: Watches,
    /// Likewise.
    pub journals: Journals,
    /// Root of the base.
    pub mirror: PathBuf,
    lock: Mutex<Option<DataLock>>,
}

impl Host {
    /// Brings the service up, with the realm of its base; must be called within a tokio runtime.
    pub async fn start(prepared: Prepared) -> Result<(Arc<Self>, Arc<Realm>), Error> {
        let Prepared {
            config,
            lock,
            cgroup,
            spawner,
            nursery,
            mirror,
            ablation,
            default_index,
        } = prepared;
        // With a cache in the data directory: what has none and no index goes without.
        let index = match &*default_index {
            "" => None,
            url => Some(package_index(&config, url)?),
        };
        let egress = Arc::new(Egress::new(&config.network, index).map_err(Error::Unsupported)?);
        let host = Arc::new(Self {
            config,
            cgroup,
            spawner,
            filters: Filters::default_profile()?,
            gpu_filters: Filters::gpu_profile()?,
            ablation,
            egress,
            watches: Watches::of_all(),
            journals: Journals::default(),
            mirror,
            lock: Mutex::new(lock),
        });
        match Realm::of_base(&host, nursery).await {
            Ok(base) => Ok((host, base)),
            Err(e) => {
                host.stop();
                Err(e)
            }
        }
    }

    /// Whether it is for one sandbox, and the data directory another's.
    pub fn is_ephemeral(&self) -> bool {
        self.lock.lock().expect("not poisoned").is_none()
    }

    /// Id of the base: the name of the directory that its root is in.
    pub fn base_id(&self) -> String {
        let dir = self.mirror.parent().and_then(Path::file_name);
        dir.unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Filters that a kernel must have: the zygote's and its own.
    pub fn required_filters(&self) -> usize {
        if self.ablation.no_seccomp {
            0
        } else {
            2 * self.filters.count()
        }
    }

    /// Writes the address into the data directory's lock file, where `sandcell run` finds it.
    pub fn announce(&self, address: SocketAddr) -> Result<(), Error> {
        match self.lock.lock().expect("not poisoned").as_mut() {
            Some(lock) => lock.announce(address),
            None => Ok(()),
        }
    }

    /// Removes the cgroups, when every realm has stopped. Errors are collected, the rest goes on.
    pub fn stop(&self) -> Vec<Error> {
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
