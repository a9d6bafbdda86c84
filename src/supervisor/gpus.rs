//! GPUs that sandboxes have: which are free, and what one that gets some is given.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::error::{Error, ErrorKind};
use crate::config;
use crate::gpu::{Device, Fault, Gpus, Missing, Wish};
use crate::isolation::grant::Grant;

/// Seconds after which a create that found every GPU in use may try again.
const RETRY_AFTER_SECONDS: u32 = 5;

/// Sandboxes that have each GPU, by its id.
#[derive(Debug, Default)]
pub struct GpuTable(Mutex<HashMap<String, usize>>);

/// GPUs that one sandbox has, and that are free again when the value is dropped.
#[derive(Debug)]
pub struct GpuLease {
    table: Arc<GpuTable>,
    ids: Vec<String>,
    /// What is shown in the sandbox.
    pub grant: Grant,
    /// Its variables, under those that the create sets.
    pub env: BTreeMap<String, String>,
}

impl GpuLease {
    /// UUIDs, or indices where those are not known.
    pub fn ids(&self) -> &[String] {
        &self.ids
    }
}

impl Drop for GpuLease {
    fn drop(&mut self) {
        let mut taken = self.table.0.lock().expect("not poisoned");
        for id in &self.ids {
            if let Some(count) = taken.get_mut(id) {
                *count -= 1;
            }
        }
        taken.retain(|_, count| *count > 0);
    }
}

impl GpuTable {
    /// Looks for the host's GPUs as they are now and takes those that are wished for.
    ///
    /// # Errors
    /// `Invalid`: `gpus_disabled`, `gpu_unavailable` where there are none, not as many or none of that
    /// name; `Busy` (`gpus_in_use`) where others have them.
    pub async fn take(
        self: &Arc<Self>,
        wish: &Wish,
        config: &config::Gpus,
    ) -> Result<Arc<GpuLease>, Error> {
        let root = config.driver_root.clone();
        let found = tokio::task::spawn_blocking(move || Gpus::find(&root)).await;
        let gpus = found.map_err(|_| unavailable("GPUs could not be looked for"))?;
        let gpus = gpus.map_err(|missing| none(&missing))?;
        let devices = self.book(wish, gpus.devices(), config)?;
        // From here on they are given back whatever happens.
        let mut lease = GpuLease {
            table: Arc::clone(self),
            ids: devices.iter().map(|d| d.id().to_owned()).collect(),
            grant: Grant::default(),
            env: BTreeMap::new(),
        };
        (lease.grant, lease.env) = gpus.grant(&devices).map_err(|missing| none(&missing))?;
        Ok(Arc::new(lease))
    }

    fn book(
        &self,
        wish: &Wish,
        devices: &[Device],
        config: &config::Gpus,
    ) -> Result<Vec<Device>, Error> {
        let mut taken = self.0.lock().expect("not poisoned");
        let most = config.sandboxes_per_device;
        let free = |device: &Device| taken.get(device.id()).is_none_or(|count| *count < most);
        let chosen = wish
            .choose(devices, free)
            .map_err(|fault| refused(&fault))?;
        if chosen.len() > config.max_devices {
            return Err(Error::invalid(
                "gpus",
                format!(
                    "gpus: a sandbox may have {} (gpus.max_devices), and these are {}",
                    config.max_devices,
                    chosen.len()
                ),
            ));
        }
        for device in &chosen {
            *taken.entry(device.id().to_owned()).or_default() += 1;
        }
        Ok(chosen)
    }
}

/// The service gives no GPUs.
pub(super) fn disabled() -> Error {
    Error {
        code: "gpus_disabled",
        ..Error::invalid(
            "gpus",
            "gpus: this service gives no GPUs; its operator turns them on with enabled = true in [gpus]",
        )
    }
}

fn unavailable(detail: impl Into<String>) -> Error {
    Error {
        code: "gpu_unavailable",
        ..Error::invalid("gpus", detail)
    }
}

fn none(missing: &Missing) -> Error {
    unavailable(format!("gpus: {missing}"))
}

fn refused(fault: &Fault) -> Error {
    let in_use = |detail: String| Error {
        field: Some("gpus"),
        retry_after_seconds: Some(RETRY_AFTER_SECONDS),
        ..Error::new(ErrorKind::Busy, "gpus_in_use", detail)
    };
    match fault {
        Fault::Unknown { name, known } => unavailable(format!(
            "gpus: there is no GPU {name:?}; there are {}",
            known.join(", ")
        )),
        Fault::TooFew(count) => unavailable(format!("gpus: there are {count} GPUs, not as many")),
        Fault::Taken(free) => in_use(format!(
            "gpus: {free} are free, others have the rest; wait, close a sandbox or ask for fewer"
        )),
        Fault::InUse(id) => in_use(format!(
            "gpus: other sandboxes have {id}; wait, close one or ask for another"
        )),
    }
}
