//! Mirrors that are the base and a layer: made on request, once for each wish, and running while they
//! are in use.
//!
//! ```text
//! create ─► Building ─► Ready: on disk ◄──► running: a realm and a pool of its own
//!               └─────► Failed: kept to be asked about, made anew on the next request
//! ```
//!
//! A layer's packages come from whoever may make mirrors, and run in its zygote with the rights of its
//! realm, which are none over another realm or the host: see [`Realm`].

mod verbs;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::error::{Error, ErrorKind};
use super::owner::Scope;
use super::pool::Pool;
use super::realm::Realm;
use super::sandbox::Plan;
use super::types::{MirrorInfo, MirrorRef, MirrorStatus};
use crate::mirror::{Ingredients, Layer, LayerLock, Layers};

/// Name of the base.
pub const BASE: &str = "default";
/// Digits of a mirror's id that name its cgroups.
const CGROUP_DIGITS: usize = 12;
/// Characters of a failure that are kept.
const MAX_DETAIL_CHARS: usize = 2000;
/// Between two looks for mirrors that nobody uses.
const TEND_PAUSE: Duration = Duration::from_secs(10);

/// Every layered mirror of a service.
#[derive(Debug)]
pub struct Mirrors {
    layers: Layers,
    /// Id of the base.
    base: String,
    /// By id.
    table: Mutex<BTreeMap<String, Arc<Mirror>>>,
    /// One is made at a time.
    turn: tokio::sync::Mutex<()>,
}

/// A layered mirror.
#[derive(Debug)]
pub struct Mirror {
    id: String,
    name: String,
    ingredients: Ingredients,
    begun_at: SystemTime,
    state: watch::Sender<State>,
    running: tokio::sync::Mutex<Option<Running>>,
    /// Creates under way.
    creating: AtomicUsize,
    last_used: Mutex<Instant>,
}

#[derive(Debug, Clone)]
enum State {
    Building,
    Ready(Arc<(Layer, LayerLock)>),
    Failed(String),
    Removed,
}

/// The processes of a mirror.
#[derive(Debug)]
struct Running {
    realm: Arc<Realm>,
    pool: Arc<Pool>,
    filler: Option<AbortHandle>,
}

/// Where a sandbox is made, kept from being removed meanwhile.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) realm: Arc<Realm>,
    pub(super) pool: Arc<Pool>,
    mirror: Option<Arc<Mirror>>,
}

impl Site {
    /// Of the base.
    pub(super) fn of_base(realm: &Arc<Realm>, pool: &Arc<Pool>) -> Self {
        Self {
            realm: Arc::clone(realm),
            pool: Arc::clone(pool),
            mirror: None,
        }
    }
}

impl Site {
    /// What is told of the mirror.
    pub(super) fn mirror(&self, base_id: &str) -> MirrorRef {
        let (id, name) = match &self.mirror {
            Some(mirror) => (mirror.id.as_str(), mirror.name.as_str()),
            None => (base_id, BASE),
        };
        MirrorRef {
            id: id.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(mirror) = &self.mirror {
            mirror.touch();
            mirror.creating.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Mirror {
    fn new(id: String, name: String, ingredients: Ingredients, state: State) -> Arc<Self> {
        Arc::new(Self {
            id,
            name,
            ingredients,
            begun_at: SystemTime::now(),
            state: watch::Sender::new(state),
            running: tokio::sync::Mutex::default(),
            creating: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        })
    }

    fn touch(&self) {
        *self.last_used.lock().expect("not poisoned") = Instant::now();
    }

    fn state(&self) -> State {
        self.state.borrow().clone()
    }

    fn info(&self) -> MirrorInfo {
        let mut info = MirrorInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            base: Some(self.ingredients.base.clone()),
            requested: self.ingredients.packages.clone(),
            packages: Vec::new(),
            preload: self.ingredients.preload.clone(),
            status: MirrorStatus::Building,
            detail: None,
            content: None,
            size_bytes: None,
            created_at: self.begun_at,
        };
        match self.state() {
            State::Building => {}
            State::Ready(ready) => {
                let record = &ready.0.record;
                info.status = MirrorStatus::Ready;
                info.packages.clone_from(&record.resolved);
                info.content = Some(record.content.clone());
                info.size_bytes = Some(record.size_bytes);
                info.created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(record.created_at);
            }
            State::Failed(detail) => {
                info.status = MirrorStatus::Failed;
                info.detail = Some(detail);
            }
            State::Removed => info.status = MirrorStatus::Failed,
        }
        info
    }

    fn is_ended(&self) -> bool {
        matches!(self.state(), State::Failed(_) | State::Removed)
    }

    /// A new realm over a layer, with a pool that fills.
    fn run(&self, realm: Arc<Realm>) -> Running {
        let config = &realm.host.config;
        let pool = Arc::new(Pool::new(config.mirrors.pool));
        let filler = (config.mirrors.pool > 0).then(|| {
            let (pool, realm) = (Arc::clone(&pool), Arc::clone(&realm));
            let plan = Plan::default_of(config);
            tokio::spawn(async move { pool.fill(realm, plan).await }).abort_handle()
        });
        Running {
            realm,
            pool,
            filler,
        }
    }

    /// Ends its processes, those of live sandboxes too.
    async fn stop(&self) {
        let running = self.running.lock().await.take();
        if let Some(running) = running {
            running.stop().await;
        }
    }
}

impl Running {
    async fn stop(self) {
        if let Some(filler) = self.filler {
            filler.abort();
        }
        for sandbox in self.pool.drain() {
            sandbox.destroy().await;
        }
        self.realm.stop().await;
    }
}

impl Mirrors {
    /// Finds the layers of the base on disk, and deletes what interrupted builds left. Without any where
    /// the data directory is another's.
    ///
    /// # Errors
    /// The disk, a record that cannot be read.
    pub fn open(
        layers: Layers,
        base: String,
        is_anothers: bool,
    ) -> Result<Self, crate::mirror::Error> {
        let mut table = BTreeMap::new();
        let found = if is_anothers {
            Vec::new()
        } else {
            layers.sweep()?;
            layers.list()?
        };
        for layer in found {
            // Of another base: what `sandcell mirror` lists and removes.
            if layer.record.ingredients.base != base {
                continue;
            }
            let (id, record) = (layer.id.clone(), layer.record.clone());
            let lock = layer.lock()?;
            let state = State::Ready(Arc::new((layer, lock)));
            let mirror = Mirror::new(id.clone(), record.name, record.ingredients, state);
            table.insert(id, mirror);
        }
        Ok(Self {
            layers,
            base,
            table: Mutex::new(table),
            turn: tokio::sync::Mutex::default(),
        })
    }

    /// Id of the base.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    fn is_base(&self, wanted: &str) -> bool {
        wanted == BASE || wanted == self.base
    }

    fn find(&self, wanted: &str, scope: &Scope) -> Result<Arc<Mirror>, Error> {
        let table = self.table.lock().expect("not poisoned");
        let by_name = || table.values().find(|mirror| mirror.name == wanted);
        let found = table.get(wanted).or_else(by_name);
        let found = found.filter(|mirror| scope.sees_mirror(&mirror.ingredients));
        found
            .cloned()
            .ok_or_else(|| Error::mirror_not_found(wanted))
    }

    fn all(&self) -> Vec<Arc<Mirror>> {
        let table = self.table.lock().expect("not poisoned");
        table.values().cloned().collect()
    }

    /// The one that there is for the same wish, else a new one, for which the caller is to see to it
    /// that it is built.
    fn enter(
        &self,
        ingredients: Ingredients,
        name: Option<String>,
        most: usize,
    ) -> Result<(Arc<Mirror>, bool), Error> {
        let id = ingredients.id();
        let name = name.unwrap_or_else(|| format!("mirror-{}", &id[..6]));
        let mut table = self.table.lock().expect("not poisoned");
        if let Some(there) = table.get(&id)
            && !there.is_ended()
        {
            if there.name != name && !name.starts_with("mirror-") {
                return Err(Error::mirror_exists(&there.name));
            }
            return Ok((Arc::clone(there), false));
        }
        let taken =
            |other: &&Arc<Mirror>| other.name == name && other.id != id && !other.is_ended();
        if table.values().find(taken).is_some() {
            return Err(Error::mirror_name_taken(&name));
        }
        // Those that failed are told of as long as there is room, and while no other has their name.
        let room = table.len() < most;
        table.retain(|_, other| !other.is_ended() || room && other.name != name);
        if table.len() >= most {
            return Err(Error::too_many_mirrors(most));
        }
        let mirror = Mirror::new(id.clone(), name, ingredients, State::Building);
        table.insert(id, Arc::clone(&mirror));
        Ok((mirror, true))
    }

    /// Takes one off the table, unless another has its place there.
    fn leave(&self, mirror: &Arc<Mirror>) {
        let mut table = self.table.lock().expect("not poisoned");
        if table
            .get(&mirror.id)
            .is_some_and(|m| Arc::ptr_eq(m, mirror))
        {
            table.remove(&mirror.id);
        }
    }

    fn base_info(&self, preload: &[String]) -> MirrorInfo {
        MirrorInfo {
            id: self.base.clone(),
            name: BASE.to_owned(),
            base: None,
            requested: Vec::new(),
            packages: Vec::new(),
            preload: preload.to_vec(),
            status: MirrorStatus::Ready,
            detail: None,
            content: Some(self.base.clone()),
            size_bytes: None,
            created_at: SystemTime::UNIX_EPOCH,
        }
    }
}

/// A mirror's failure: shown as it is to whoever asked for it, so nothing in it is a control character.
pub(super) fn failed(detail: impl Into<String>) -> Error {
    let detail: String = detail.into();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let detail: String = detail.chars().map(plain).take(MAX_DETAIL_CHARS).collect();
    Error::new(ErrorKind::Conflict, "mirror_failed", detail)
}
