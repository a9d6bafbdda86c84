//! What the sandboxes of one mirror share: a nursery with a block of user ids, and the zygote that their
//! kernels are forked from. Realms share nothing with each other: what a zygote has imported is in
//! none but its own.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::host::Host;
use super::setup::remove_cgroup;
use crate::isolation::Error;
use crate::isolation::cgroup::{CgroupLimits, SandboxCgroup};
use crate::isolation::host::Nursery;
use crate::isolation::spawner::{Home, Lower, SpawnedNursery};
use crate::isolation::spec::BLOCK_IDS;
use crate::kernel::zygote::{FilterSets, START_TIMEOUT, Zygote};

/// Leaf of a layered mirror's cgroup that its nursery lives in.
const LEAF: &str = "init";
/// Processes and threads of a layered mirror's nursery: itself, its zygote, inits and kernels for the
/// moment before they join their sandbox.
const MAX_PROCESSES: u64 = 256;
/// Processors of the same. Both are single-threaded.
const CPUS: f64 = 2.0;

/// The processes of one mirror, running.
#[derive(Debug)]
pub struct Realm {
    /// What all realms share.
    pub host: Arc<Host>,
    /// Makes sandboxes.
    pub nursery: Nursery,
    zygote: tokio::sync::Mutex<Option<Arc<Zygote>>>,
    preload: Preload,
    users: Mutex<Users>,
    /// Of a layered mirror.
    cgroup: Option<SandboxCgroup>,
}

/// What a zygote imports.
#[derive(Debug, Clone)]
struct Preload {
    modules: Vec<String>,
    /// Those of `modules`, from this one on, without which there is no zygote.
    required: usize,
    longest: Duration,
}

impl Realm {
    /// Of the base, over a nursery that was started before.
    pub async fn of_base(host: &Arc<Host>, nursery: SpawnedNursery) -> Result<Arc<Self>, Error> {
        let modules = host.config.service.preload.clone();
        let preload = Preload {
            required: modules.len(),
            modules,
            longest: START_TIMEOUT,
        };
        Self::begin(host, nursery, None, preload).await
    }

    /// Of a layered mirror; `id` names its cgroups.
    ///
    /// # Errors
    /// A module of `preload` cannot be imported, or takes longer than `mirrors.preload_seconds`.
    pub async fn of_layer(
        host: &Arc<Host>,
        id: &str,
        layer: &Path,
        preload: &[String],
    ) -> Result<Arc<Self>, Error> {
        let config = &host.config;
        let base = &config.service.preload;
        let preload = Preload {
            modules: base.iter().chain(preload).cloned().collect(),
            required: base.len(),
            longest: Duration::from_secs(config.mirrors.preload_seconds),
        };
        let cgroup = host.cgroup.realm(id)?;
        let limits = CgroupLimits {
            memory_bytes: config.mirrors.memory_bytes,
            cpus: CPUS,
            processes: MAX_PROCESSES,
        };
        let spawned = async {
            cgroup.set_limits(&limits)?;
            let lower = Lower {
                mirror: host.mirror.clone(),
                layer: Some(layer.to_owned()),
            };
            let home = Home {
                dir: cgroup.leaf_dir(LEAF)?,
                joins: cgroup.v1_procs()?,
            };
            let spawned = host.spawner.spawn(lower, home).await;
            spawned.map_err(|_| Error::Refused("the thread of nurseries ended".into()))?
        };
        match spawned.await {
            Ok(nursery) => Self::begin(host, nursery, Some(cgroup), preload).await,
            Err(e) => {
                let _ = cgroup.kill();
                remove_cgroup(&cgroup).await;
                Err(e)
            }
        }
    }

    async fn begin(
        host: &Arc<Host>,
        nursery: SpawnedNursery,
        cgroup: Option<SandboxCgroup>,
        preload: Preload,
    ) -> Result<Arc<Self>, Error> {
        let realm = Arc::new(Self {
            host: Arc::clone(host),
            nursery: Nursery::attach(nursery)?,
            zygote: tokio::sync::Mutex::default(),
            preload,
            users: Mutex::default(),
            cgroup,
        });
        if let Err(e) = realm.zygote().await {
            realm.stop().await;
            return Err(e);
        }
        Ok(realm)
    }

    /// The zygote, a new one where the last has died.
    pub async fn zygote(&self) -> Result<Arc<Zygote>, Error> {
        let mut zygote = self.zygote.lock().await;
        match &*zygote {
            Some(zygote) if !zygote.is_dead() => Ok(Arc::clone(zygote)),
            _ => Ok(Arc::clone(zygote.insert(self.start_zygote().await?))),
        }
    }

    async fn start_zygote(&self) -> Result<Arc<Zygote>, Error> {
        let ablation = self.host.ablation;
        let filters = (!ablation.no_seccomp).then_some(FilterSets {
            default: &self.host.filters,
            gpu: &self.host.gpu_filters,
        });
        let mut without = Vec::new();
        if ablation.keep_capabilities {
            without.push("drop_bounding_set");
        }
        if ablation.keep_descriptors {
            without.push("close_descriptors");
        }
        let Preload {
            modules,
            required,
            longest,
        } = &self.preload;
        let (zygote, failed) =
            Zygote::start(&self.nursery, filters, modules, &without, *longest).await?;
        for failure in failed {
            let of_layer = modules[*required..].iter().any(|module| {
                let rest = failure.strip_prefix(module.as_str());
                rest.is_some_and(|rest| rest.starts_with(':'))
            });
            if of_layer {
                zygote.process().kill();
                return Err(Error::Refused(format!("preload failed: {failure}")));
            }
            tracing::warn!("preload failed: {failure}");
        }
        Ok(zygote)
    }

    /// An id for a sandbox's user, given back when the value is dropped.
    pub fn take_user(self: &Arc<Self>) -> Result<User, Error> {
        let mut users = self.users.lock().expect("not poisoned");
        let id = users
            .take(self.host.ablation.shared_uid)
            .ok_or_else(|| Error::Refused("all ids for sandboxes are in use".into()))?;
        Ok(User {
            realm: Arc::clone(self),
            id,
        })
    }

    /// Ends every process of the mirror, sandboxes included.
    pub async fn stop(&self) {
        self.nursery.kill();
        self.nursery.died().await;
        if let Some(cgroup) = &self.cgroup {
            remove_cgroup(cgroup).await;
        }
    }
}

/// A user id that no other live sandbox has.
#[derive(Debug)]
pub struct User {
    realm: Arc<Realm>,
    id: u32,
}

impl User {
    /// Inside the nursery's user namespace.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// On the host.
    pub fn host_id(&self) -> u32 {
        self.realm.nursery.host_id(self.id)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.realm
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
