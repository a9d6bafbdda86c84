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

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::error::{Error, ErrorKind};
use super::layer;
use super::pool::Pool;
use super::realm::Realm;
use super::sandbox::{Plan, Sandbox};
use super::types::{MirrorInfo, MirrorSpec, MirrorStatus};
use super::{Supervisor, plan};
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

    fn is_base(&self, wanted: &str) -> bool {
        wanted == BASE || wanted == self.base
    }

    fn find(&self, wanted: &str) -> Result<Arc<Mirror>, Error> {
        let table = self.table.lock().expect("not poisoned");
        let by_name = || table.values().find(|mirror| mirror.name == wanted);
        let found = table.get(wanted).or_else(by_name);
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

impl Supervisor {
    /// Makes a mirror, or finds the one that was made for the same wish; returns when it is ready, has
    /// failed, or the time to wait is over, whichever comes first. That it failed is told by the answer.
    ///
    /// # Errors
    /// `Invalid` names the field; `Conflict` for a name that another mirror has; `Busy` when there are
    /// as many as allowed (`mirrors.max`).
    pub async fn create_mirror(&self, spec: MirrorSpec) -> Result<MirrorInfo, Error> {
        self.refuse_draining()?;
        let mirrors = &self.inner.mirrors;
        if let Some(base) = &spec.base
            && !mirrors.is_base(base)
        {
            return Err(Error::invalid(
                "base",
                format!("base: a layer is made over the base only: leave it out or say {BASE:?}"),
            ));
        }
        let ingredients = plan::check_mirror(&spec, &mirrors.base)?;
        let most = self.config().mirrors.max;
        let (mirror, is_new) = mirrors.enter(ingredients, spec.name, most)?;
        if is_new {
            let (supervisor, mirror) = (self.clone(), Arc::clone(&mirror));
            self.spawn(async move { supervisor.build(&mirror).await });
        }
        let mut state = mirror.state.subscribe();
        let done = state.wait_for(|state| !matches!(state, State::Building));
        let _ = timeout(spec.wait, done).await;
        Ok(mirror.info())
    }

    /// Makes a layer and starts its realm, so that whoever creates a sandbox finds it warm.
    async fn build(&self, mirror: &Arc<Mirror>) {
        let made = tokio::select! {
            made = self.make(mirror) => made,
            () = self.inner.stopping.cancelled() => Err(failed("the service is stopping")),
        };
        let state = match made {
            Ok((layer, lock)) => State::Ready(Arc::new((layer, lock))),
            Err(e) => {
                tracing::info!(mirror = mirror.name, "a mirror could not be made: {e}");
                State::Failed(e.detail)
            }
        };
        mirror.state.send_replace(state);
    }

    async fn make(&self, mirror: &Arc<Mirror>) -> Result<(Layer, LayerLock), Error> {
        let mirrors = &self.inner.mirrors;
        let _turn = mirrors.turn.lock().await;
        let Ingredients {
            packages, preload, ..
        } = &mirror.ingredients;
        let draft = layer::make(&self.inner.base, &mirrors.layers, packages).await?;
        let id = &mirror.id[..CGROUP_DIGITS];
        let realm = Realm::of_layer(&self.inner.host, id, &draft.root(), preload).await;
        let realm = realm.map_err(|e| failed(e.to_string()))?;
        let (ingredients, name) = (mirror.ingredients.clone(), mirror.name.clone());
        let published = tokio::task::spawn_blocking(move || {
            let layer = draft.publish(ingredients, name)?;
            let lock = layer.lock()?;
            Ok::<_, crate::mirror::Error>((layer, lock))
        });
        match published.await {
            Ok(Ok(published)) => {
                mirror.touch();
                *mirror.running.lock().await = Some(mirror.run(realm));
                Ok(published)
            }
            other => {
                realm.stop().await;
                tracing::error!("failed to keep a layer: {other:?}");
                Err(failed(
                    "the layer could not be kept; the service's log says why",
                ))
            }
        }
    }

    /// Where a sandbox of that mirror is made; its processes are started where they do not run.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` for one that is not ready.
    pub(super) async fn site(&self, wanted: Option<&str>) -> Result<Site, Error> {
        let inner = &self.inner;
        let wanted = wanted.unwrap_or(BASE);
        if inner.mirrors.is_base(wanted) {
            return Ok(Site::of_base(&inner.base, &inner.pool));
        }
        let mirror = inner.mirrors.find(wanted)?;
        let mut running = mirror.running.lock().await;
        let layer = match mirror.state() {
            State::Ready(layer) => layer,
            State::Building => return Err(Error::mirror_building(&mirror.name)),
            State::Failed(detail) => return Err(failed(detail)),
            State::Removed => return Err(Error::mirror_not_found(wanted)),
        };
        if running.as_ref().is_some_and(|r| r.realm.nursery.has_died())
            && let Some(dead) = running.take()
        {
            tracing::warn!(mirror = mirror.name, "its nursery has died");
            dead.stop().await;
        }
        let running = match &mut *running {
            Some(running) => running,
            none => {
                let id = &mirror.id[..CGROUP_DIGITS];
                let preload = &mirror.ingredients.preload;
                let realm = Realm::of_layer(&inner.host, id, &layer.0.root, preload).await;
                let realm = realm.map_err(|e| {
                    tracing::error!(mirror = mirror.name, "failed to start a mirror: {e}");
                    Error::mirror_not_started(&mirror.name)
                })?;
                none.insert(mirror.run(realm))
            }
        };
        mirror.creating.fetch_add(1, Ordering::AcqRel);
        Ok(Site {
            realm: Arc::clone(&running.realm),
            pool: Arc::clone(&running.pool),
            mirror: Some(Arc::clone(&mirror)),
        })
    }

    /// The base and every layered mirror.
    pub fn mirrors(&self) -> Vec<MirrorInfo> {
        let mirrors = &self.inner.mirrors;
        let mut layered: Vec<MirrorInfo> = mirrors.all().iter().map(|m| m.info()).collect();
        layered.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        let base = mirrors.base_info(&self.config().service.preload);
        [vec![base], layered].concat()
    }

    /// One mirror, by id or name.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn mirror(&self, wanted: &str) -> Result<MirrorInfo, Error> {
        let mirrors = &self.inner.mirrors;
        if mirrors.is_base(wanted) {
            return Ok(mirrors.base_info(&self.config().service.preload));
        }
        Ok(mirrors.find(wanted)?.info())
    }

    /// Removes a mirror that no live sandbox uses, from the disk too.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` for the base, one that is being made, and one in use.
    pub async fn delete_mirror(&self, wanted: &str) -> Result<(), Error> {
        let mirrors = &self.inner.mirrors;
        if mirrors.is_base(wanted) {
            return Err(Error::mirror_is_base());
        }
        let mirror = mirrors.find(wanted)?;
        let mut running = mirror.running.lock().await;
        let state = mirror.state();
        if matches!(state, State::Building) {
            return Err(Error::mirror_building(&mirror.name));
        }
        let users = running.as_ref().map_or(0, |r| self.sandboxes_of(&r.realm));
        if users > 0 || mirror.creating.load(Ordering::Acquire) > 0 {
            return Err(Error::mirror_in_use(&mirror.name, users.max(1)));
        }
        if matches!(state, State::Removed) {
            return Err(Error::mirror_not_found(wanted));
        }
        mirror.state.send_replace(State::Removed);
        mirrors.leave(&mirror);
        if let Some(running) = running.take() {
            running.stop().await;
        }
        if let State::Ready(ready) = state {
            let layers = mirrors.layers.clone();
            let removed = tokio::task::spawn_blocking(move || match Arc::try_unwrap(ready) {
                Ok((layer, lock)) => {
                    drop(lock);
                    layers.remove(&layer)
                }
                // Somebody looks at it this moment; the next start finds it.
                Err(ready) => layers.remove(&ready.0),
            });
            if let Ok(Err(e)) = removed.await {
                tracing::error!("failed to {e}");
            }
        }
        Ok(())
    }

    fn sandboxes_of(&self, realm: &Arc<Realm>) -> usize {
        let registry = self.inner.registry.lock().expect("not poisoned");
        let of_realm = |sandbox: &&Arc<Sandbox>| Arc::ptr_eq(&sandbox.realm, realm);
        registry.live.values().filter(of_realm).count()
    }

    /// Ends the processes of mirrors that nobody uses, until the service stops.
    pub(super) async fn tend_mirrors(&self) {
        let idle = Duration::from_secs(self.config().mirrors.idle_seconds);
        loop {
            tokio::select! {
                () = sleep(TEND_PAUSE.min(idle)) => {}
                () = self.inner.stopping.cancelled() => return,
            }
            for mirror in self.inner.mirrors.all() {
                let Ok(mut running) = mirror.running.try_lock() else {
                    continue;
                };
                let quiet = mirror.last_used.lock().expect("not poisoned").elapsed() >= idle;
                let used = mirror.creating.load(Ordering::Acquire) > 0
                    || running
                        .as_ref()
                        .is_some_and(|r| self.sandboxes_of(&r.realm) > 0);
                if quiet
                    && !used
                    && let Some(running) = running.take()
                {
                    tracing::info!(
                        mirror = mirror.name,
                        "nobody uses the mirror: it is stopped"
                    );
                    running.stop().await;
                }
            }
        }
    }

    /// Ends the processes of every layered mirror.
    pub(super) async fn stop_mirrors(&self) {
        for mirror in self.inner.mirrors.all() {
            mirror.stop().await;
        }
    }
}
