//! Sandboxes with GPUs, on a made-up host: its devices are real nodes of harmless numbers, its libraries
//! real ones with a function each. What the vendor's driver itself does with them, `tests/gpu/run` shows
//! on a host that has one.

#[path = "../fixture/mod.rs"]
mod fixture;
#[path = "../../src/gpu/testing.rs"]
mod made_up;

mod asking;
mod described;
mod given;

use fixture::Service;
use made_up::MadeUp;

/// `/dev/null`, `/dev/zero` as GPUs.
const TWO: [(u64, u64); 2] = [(1, 3), (1, 5)];

/// Lines of a configuration that gives the GPUs of a made-up host.
fn config(host: &MadeUp, more: &str) -> String {
    let root = host.path().display();
    format!("gpus.enabled = true\ngpus.driver_root = \"{root}\"\n{more}")
}

/// A service that gives them.
fn service(host: &MadeUp, more: &str) -> Service {
    Service::with_config(&config(host, more))
}
