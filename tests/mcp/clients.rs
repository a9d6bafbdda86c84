//! Programs of `tests/clients`, with their pinned packages installed below `target/`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fixture::python::venv;

/// Where the programs are.
pub const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
/// Longest that a program may take.
pub const FLOW: Duration = Duration::from_secs(600);

/// The Python that has them.
pub fn python() -> PathBuf {
    python_of("mcp.txt")
}

/// The Python that has the packages of one of the lists.
pub fn python_of(list: &str) -> PathBuf {
    venv(&Path::new(CLIENTS).join(list))
}
