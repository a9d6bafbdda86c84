//! Workspaces as the fourth seed has them: names for sandboxes.
//!
//! ```text
//! standalone   container ═ sandbox ═ its one workspace
//! persistent   container ─┬─ workspace ═ sandbox      a container is its owner's, by computation:
//!                         └─ workspace ═ sandbox      there is no table that could outlive its sandboxes
//! ```
//!
//! That project's lasting container holds directories that share users, processes and network. Here a
//! workspace is a sandbox of its own, marked as one of these, and the container is a name for all of
//! them that its owner has, the same as long as the service runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};

use sha2::{Digest, Sha256};

use super::Supervisor;
use super::error::{Error, ErrorKind};
use super::history::History;
use super::sandbox::id_of;
use super::types::{
    CommandSpec, CreateSpec, Record, SandboxInfo, Stopped, WorkspaceInfo, WorkspaceSpec,
};

/// What nobody can compute a container's id without.
static SECRET: LazyLock<[u8; 32]> = LazyLock::new(rand::random);
/// Images of the seed's own default, which stand for the base.
const PYTHON_IMAGE: &str = "python";
/// Empties the working directory.
const EMPTY: &str = "find . -mindepth 1 -delete";
/// Characters of an image's name that are told.
const MAX_IMAGE_CHARS: usize = 128;
/// Workspaces that an error names.
const TOLD: usize = 8;

/// What the tools for workspaces keep of a sandbox; gone with it.
#[derive(Debug, Default)]
pub(super) struct WorkspaceState {
    /// It is a workspace of its owner's lasting container.
    persistent: AtomicBool,
    /// What was run.
    pub(super) history: History,
    /// Requirement file that was installed last.
    satisfied: Mutex<Option<[u8; 32]>>,
}

impl WorkspaceState {
    /// Whether a requirement file was the last that was installed.
    pub(super) fn is_satisfied(&self, mark: Option<[u8; 32]>) -> bool {
        *self.satisfied.lock().expect("not poisoned") == mark
    }

    /// A requirement file was installed.
    pub(super) fn satisfy(&self, mark: Option<[u8; 32]>) {
        if mark.is_some() {
            *self.satisfied.lock().expect("not poisoned") = mark;
        }
    }
}

impl Supervisor {
    /// Makes a workspace: a sandbox with a name in a container.
    ///
    /// # Errors
    /// As [`Supervisor::create`]; `Invalid` for an image that a standalone container cannot have.
    pub async fn open_workspace(&self, spec: WorkspaceSpec) -> Result<WorkspaceInfo, Error> {
        let image = spec.image.as_deref().map(str::trim);
        let image = image.filter(|image| !image.is_empty());
        let (mirror, note) = self.mirror_for(image, spec.persistent)?;
        let create = CreateSpec {
            mirror,
            ..CreateSpec::default()
        };
        let sandbox = self.create(create).await?;
        let container_id = match spec.persistent {
            true => {
                let made = self.find(&sandbox.id)?;
                made.workspace.persistent.store(true, Ordering::Release);
                self.lasting_container()
            }
            false => sandbox.id.clone(),
        };
        Ok(WorkspaceInfo {
            container_id,
            sandbox,
            persistent: spec.persistent,
            note,
        })
    }

    /// The mirror that an image's name stands for, and what to say of it.
    fn mirror_for(
        &self,
        image: Option<&str>,
        persistent: bool,
    ) -> Result<(Option<String>, Option<String>), Error> {
        let Some(image) = image else {
            return Ok((None, None));
        };
        if is_python_image(image) {
            return Ok((None, None));
        }
        match self.mirror(image) {
            Ok(mirror) => Ok((Some(mirror.id), None)),
            // In this mode the image is not the caller's to choose, as the seed has it.
            Err(_) if persistent => Ok((
                None,
                Some(format!(
                    "image {:?} is not used: a persistent container has the standard Python packages",
                    shown(image)
                )),
            )),
            Err(_) => Err(Error::invalid(
                "image",
                format!(
                    "image: there is no {:?} here. Leave it out, or say \"python\", for the standard \
                     Python packages, or name a mirror",
                    shown(image)
                ),
            )),
        }
    }

    /// The sandbox that a container and a workspace of it name.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` where the container has several workspaces and none is named.
    pub fn workspace(
        &self,
        container_id: &str,
        workspace_id: Option<&str>,
    ) -> Result<SandboxInfo, Error> {
        let named = workspace_id.filter(|id| !id.is_empty());
        if container_id != self.lasting_container() {
            let sandbox = self
                .info(container_id)
                .map_err(|e| container(e, container_id))?;
            return match named {
                Some(other) if other != container_id => Err(no_workspace(other)),
                _ => Ok(sandbox),
            };
        }
        let mut all = self.workspaces();
        match named {
            Some(id) => {
                let found = all.into_iter().find(|workspace| workspace.id == id);
                found.ok_or_else(|| no_workspace(id))
            }
            None if all.len() == 1 => Ok(all.remove(0)),
            None if all.is_empty() => Err(Error::new(
                ErrorKind::NotFound,
                "workspace_not_found",
                "the container has no workspace any more; sandbox_initialize makes one",
            )),
            None => {
                let names: Vec<_> = all.iter().map(|w| w.id.as_str()).take(TOLD).collect();
                Err(Error::new(
                    ErrorKind::Conflict,
                    "several_workspaces",
                    format!(
                        "the container has {} workspaces; say which in workspace_id: {}",
                        all.len(),
                        names.join(", ")
                    ),
                ))
            }
        }
    }

    /// Closes a container's sandbox. A lasting container is kept, and one that the caller takes for it.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn stop_container(
        &self,
        container_id: &str,
        persistent: bool,
    ) -> Result<Stopped, Error> {
        if container_id == self.lasting_container() {
            return Ok(Stopped::Kept);
        }
        let sandbox = self.workspace(container_id, None)?;
        if persistent {
            return Ok(Stopped::Kept);
        }
        self.close(&sandbox.id).await?;
        Ok(Stopped::Closed)
    }

    /// Ends a workspace with all that is in it. Of a standalone container the files are deleted.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn clean_workspace(
        &self,
        container_id: &str,
        workspace_id: &str,
    ) -> Result<(), Error> {
        let sandbox = self.workspace(container_id, Some(workspace_id))?;
        if container_id == self.lasting_container() {
            return self.close(&sandbox.id).await;
        }
        let spec = CommandSpec {
            command: EMPTY.to_owned(),
            ..CommandSpec::default()
        };
        self.command(&sandbox.id, spec).await?.finish().await?;
        Ok(())
    }

    /// What was run in a container's workspaces, oldest first, each with the workspace's id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn container_log(&self, container_id: &str) -> Result<Vec<(String, Record)>, Error> {
        let workspaces = match container_id == self.lasting_container() {
            true => self.workspaces(),
            false => vec![self.workspace(container_id, None)?],
        };
        let mut all = Vec::new();
        for workspace in workspaces {
            // It may have been closed by now.
            let Ok(sandbox) = self.find(&workspace.id) else {
                continue;
            };
            let records = sandbox.workspace.history.records().into_iter();
            all.extend(records.map(|record| (workspace.id.clone(), record)));
        }
        all.sort_by_key(|(_, record)| record.at);
        Ok(all)
    }

    /// Those of the caller's lasting container, oldest first.
    fn workspaces(&self) -> Vec<SandboxInfo> {
        let mut all = self.list();
        all.retain(|info| {
            let sandbox = self.find(&info.id);
            sandbox.is_ok_and(|s| s.workspace.persistent.load(Ordering::Acquire))
        });
        all
    }

    /// The id of the caller's lasting container.
    fn lasting_container(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(*SECRET);
        self.scope.tell(&mut hash);
        let digest: [u8; 32] = hash.finalize().into();
        let (bits, _) = digest.split_at(16);
        id_of(u128::from_le_bytes(bits.try_into().expect("16 bytes")))
    }
}

/// `python`, `python:3.12-slim`, `docker.io/library/python:3`: what the seed's own default is one of.
fn is_python_image(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    let name = name.split(['@', ':']).next().unwrap_or(name);
    let from = &image[..image.len() - image.rsplit('/').next().map_or(0, str::len)];
    name == PYTHON_IMAGE && matches!(from, "" | "library/" | "docker.io/library/")
}

fn shown(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    plain.take(MAX_IMAGE_CHARS).collect()
}

fn container(e: Error, id: &str) -> Error {
    match e.kind {
        ErrorKind::NotFound => Error::new(
            ErrorKind::NotFound,
            "container_not_found",
            format!("no container with id {:?}", shown(id)),
        ),
        _ => e,
    }
}

fn no_workspace(id: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "workspace_not_found",
        format!("the container has no workspace with id {:?}", shown(id)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pythons_own_images_stand_for_the_base() {
        for image in [
            "python",
            "python:3.9-slim",
            "python:3.12-slim-bookworm",
            "library/python:3",
            "docker.io/library/python@sha256:00",
        ] {
            assert!(is_python_image(image), "{image}");
        }
        for image in [
            "node",
            "evil/python",
            "pythonx:3",
            "python-x",
            "",
            "x/y/python:3",
        ] {
            assert!(!is_python_image(image), "{image}");
        }
    }
}
