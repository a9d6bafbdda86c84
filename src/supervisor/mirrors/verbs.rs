//! The verbs: make, find, start, remove, and stop what nobody uses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{BASE, CGROUP_DIGITS, Mirror, Site, State, TEND_PAUSE, failed};
use crate::mirror::{Ingredients, Layer, LayerLock};
use crate::supervisor::error::Error;
use crate::supervisor::realm::Realm;
use crate::supervisor::sandbox::Sandbox;
use crate::supervisor::types::{MirrorInfo, MirrorSpec};
use crate::supervisor::{Supervisor, layer, plan};

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
        let mut ingredients = plan::check_mirror(&spec, &mirrors.base)?;
        ingredients.owner = self.scope.owner()?.map(|owner| owner.label());
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
    pub(in crate::supervisor) async fn site(&self, wanted: Option<&str>) -> Result<Site, Error> {
        let inner = &self.inner;
        let wanted = wanted.unwrap_or(BASE);
        if inner.mirrors.is_base(wanted) {
            return Ok(Site::of_base(&inner.base, &inner.pool));
        }
        let mirror = inner.mirrors.find(wanted, &self.scope)?;
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

    /// The base and every layered mirror that this handle sees.
    pub fn mirrors(&self) -> Vec<MirrorInfo> {
        let mirrors = &self.inner.mirrors;
        let all = mirrors.all().into_iter();
        let seen = all.filter(|mirror| self.scope.sees_mirror(&mirror.ingredients));
        let mut layered: Vec<MirrorInfo> = seen.map(|mirror| mirror.info()).collect();
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
        Ok(mirrors.find(wanted, &self.scope)?.info())
    }

    /// Removes a mirror that no live sandbox uses, from the disk too.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` for the base, one that is everyone's while there are keys, one that is being
    /// made, and one in use.
    pub async fn delete_mirror(&self, wanted: &str) -> Result<(), Error> {
        let mirrors = &self.inner.mirrors;
        if mirrors.is_base(wanted) {
            return Err(Error::mirror_is_base());
        }
        let mirror = mirrors.find(wanted, &self.scope)?;
        self.scope.may_delete(&mirror.ingredients, &mirror.name)?;
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
    pub(in crate::supervisor) async fn tend_mirrors(&self) {
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
    pub(in crate::supervisor) async fn stop_mirrors(&self) {
        for mirror in self.inner.mirrors.all() {
            mirror.stop().await;
        }
    }
}
