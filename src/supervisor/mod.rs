//! The verbs that the API offers, over sandboxes that this process supervises.

mod error;
pub mod types;

use std::sync::Arc;

pub use error::{Error, ErrorKind};
pub use types::*;

/// The service's core. Cheap to clone; every clone is the same supervisor.
#[derive(Clone)]
pub struct Supervisor {
    inner: Arc<()>,
}

impl Supervisor {
    /// Creates a sandbox with a ready kernel.
    pub async fn create(&self, _spec: CreateSpec) -> Result<SandboxInfo, Error> {
        unimplemented!()
    }

    /// Every live sandbox, oldest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        unimplemented!()
    }

    /// One sandbox.
    pub fn info(&self, _id: &str) -> Result<SandboxInfo, Error> {
        unimplemented!()
    }

    /// Closes a sandbox; of two closes at once one wins, the other is `NotFound`.
    pub async fn close(&self, _id: &str) -> Result<(), Error> {
        unimplemented!()
    }

    /// Starts an execution; dropping the returned handle before its end interrupts the code.
    pub async fn execute(&self, _id: &str, _spec: ExecuteSpec) -> Result<Execution, Error> {
        unimplemented!()
    }

    /// Runs a shell command to its end; dropping the future kills it.
    pub async fn command(&self, _id: &str, _spec: CommandSpec) -> Result<CommandOutcome, Error> {
        unimplemented!()
    }

    /// Regular files of the working directory, recursively.
    pub async fn list_files(&self, _id: &str) -> Result<Vec<FileEntry>, Error> {
        unimplemented!()
    }

    /// Opens a regular file for reading.
    pub async fn open_file(&self, _id: &str, _path: &str) -> Result<OpenFile, Error> {
        unimplemented!()
    }

    /// Creates or replaces a file; parents are made.
    pub async fn create_file(&self, _id: &str, _path: &str) -> Result<Upload, Error> {
        unimplemented!()
    }
}
