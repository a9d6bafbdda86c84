//! The mirror: the root file system that every sandbox has as its lower layer.
//!
//! ```text
//! <mirrors>/build.lock            flock, exclusive while somebody builds or sweeps
//! <mirrors>/build.log             what the last build's programs said (0600)
//! <mirrors>/.build-<random>/      a build in progress; without the lock's holder it is rubbish
//! <mirrors>/.removed-<random>/    a removal in progress; likewise
//! <mirrors>/<id>/root/            the tree, all of it owned by MIRROR_OWNER
//! <mirrors>/<id>/manifest         one line an entry; <id> is the start of its SHA-256
//! <mirrors>/<id>/mirror.json      the record: recipe, time, size
//! <mirrors>/<id>/lock             flock, shared while in use, exclusive to remove
//! ```
//!
//! A mirror appears under its id by one rename, after everything in it is on disk, so whatever has
//! an id is complete. The recipe (`rootfs/`) is embedded in the binary and its hash recorded: a
//! binary with another recipe finds no base and builds its own; older mirrors stay until they are
//! removed. The tree is content-addressed: [`Mirror::verify`] hashes all of it again.
//!
//! What packages add to the base is not here but in layers ([`Layers`]), in a service's data directory.
//!
//! What is deliberately absent: downloads of ready-made images, and any name of a registry.
//! Packages come from where the host's apt and pip get theirs ([`host`]).

mod build;
mod error;
pub mod host;
mod layer;
mod manifest;
mod program;
mod progress;
mod recipe;
mod store;
#[cfg(test)]
mod testing;
mod tree;
mod unpack;
mod verify;

pub use error::Error;
pub use layer::{Draft, ENVIRONMENT, Ingredients, Layer, LayerLock, LayerRecord, Layers, Package};
pub use progress::{Event, Step, TerminalProgress};
pub use store::{Listed, Lock, Mirror, Record, Store};
pub use unpack::{Bounds, UnpackError};
pub use verify::{Difference, Report};

/// Host uid and gid that own every file of a mirror; sandboxes map them to their root. Debian and
/// systemd leave this part of the range alone, so nothing on the host runs or logs in with it.
pub const MIRROR_OWNER: u32 = 0x7000_0000;
