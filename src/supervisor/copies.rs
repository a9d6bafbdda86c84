//! Files between this host and a sandbox. What is local is opened by [`LocalDirs`], what is inside by
//! file work or a program inside; nothing is resolved on the wrong side.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::error::{Error, ErrorKind};
use super::local::LocalDirs;
use super::program::{self, Input, Process, Program};
use super::project::Project;
use super::sandbox::{InUse, Sandbox};
use super::types::{Copied, ProjectCopied};
use super::{Supervisor, files};

/// Bytes of a file that are copied at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// Chunks of a project between what reads and what writes them.
const CHUNKS: usize = 4;
/// How often it is told how far a project is.
const TELL_BYTES: u64 = 4 * 1024 * 1024;
/// Longest that a project may take to be unpacked.
const UNPACK_TIME: Duration = Duration::from_secs(300);
/// Longest that unpacking may stand still.
const STALL_TIME: Duration = Duration::from_secs(30);
/// What is kept of what is said meanwhile.
const SAID_BYTES: usize = 16 * 1024;
/// Makes the directory and unpacks standard input there.
const UNPACK: &str = "mkdir -p -- \"$1\" && exec /usr/bin/tar --extract --file=- --directory=\"$1\" \
                      --no-same-owner";

impl Supervisor {
    /// Copies a local file into a sandbox; directories on the way are made.
    ///
    /// # Errors
    /// `BadPath` or `NotFound` for either path; `TooLarge` (`mcp.local_file_bytes`); `NoSpace`.
    pub async fn copy_in(
        &self,
        id: &str,
        local: &LocalDirs,
        from: &str,
        to: &str,
    ) -> Result<Copied, Error> {
        let sandbox = self.find(id)?;
        let _in_use = InUse::of(Arc::clone(&sandbox));
        let most = self.config().mcp.local_file_bytes;
        let (dirs, path) = (local.clone(), from.to_owned());
        let (file, size) = blocking(move || {
            let file = dirs.open_file(&path)?;
            let size = file.metadata().map_err(|_| changed())?.len();
            Ok((file, size))
        })
        .await?;
        refuse_over(size, most)?;
        let mut upload = files::create(&sandbox, to).await?;
        let mut file = tokio::fs::File::from_std(file).take(most + 1);
        let (mut chunk, mut copied) = (vec![0; CHUNK_BYTES], 0);
        loop {
            let read = file.read(&mut chunk).await.map_err(|_| changed())?;
            if read == 0 {
                break;
            }
            copied += read as u64;
            refuse_over(copied, most)?;
            upload.write(&chunk[..read]).await?;
        }
        let path = upload.finish().await?;
        Ok(Copied { path, size: copied })
    }

    /// Copies a file of a sandbox into a local directory, under its name only when it is whole;
    /// directories on the way are made.
    ///
    /// # Errors
    /// As [`Self::copy_in`].
    pub async fn copy_out(
        &self,
        id: &str,
        from: &str,
        local: &LocalDirs,
        to: &str,
    ) -> Result<Copied, Error> {
        let sandbox = self.find(id)?;
        let _in_use = InUse::of(Arc::clone(&sandbox));
        let most = self.config().mcp.local_file_bytes;
        let opened = files::open(&sandbox, from).await?;
        refuse_over(opened.size, most)?;
        let (dirs, path) = (local.clone(), to.to_owned());
        blocking(move || {
            let mut new = dirs.create(&path)?;
            // What is appended meanwhile is not waited for.
            let mut from: io::Take<File> = opened.file.take(opened.size);
            let failed = |e: io::Error| {
                Error::new(
                    ErrorKind::Conflict,
                    "local_file_failed",
                    format!("the local file could not be written: {e}"),
                )
            };
            let size = io::copy(&mut from, &mut new.file).map_err(failed)?;
            new.place().map_err(failed)?;
            Ok(Copied { path, size })
        })
        .await
    }

    /// Copies a local directory into one of a sandbox (`into`, relative to the working directory, or
    /// the working directory itself when empty). Version control, virtual environments and caches are
    /// left out, as are links and what is no file. `tell` hears how far it is.
    ///
    /// # Errors
    /// As [`Self::copy_in`]; `TooLarge` (`mcp.project_files`, `mcp.project_bytes`). What was copied
    /// until then stays.
    pub async fn copy_project(
        &self,
        id: &str,
        local: &LocalDirs,
        from: &str,
        into: &str,
        tell: &mpsc::Sender<String>,
    ) -> Result<ProjectCopied, Error> {
        let sandbox = self.find(id)?;
        sandbox.refuse_closing()?;
        sandbox.touch();
        let _in_use = InUse::of(Arc::clone(&sandbox));
        let into = check_directory(into)?;
        let (dirs, path, limits) = (local.clone(), from.to_owned(), self.config().mcp.clone());
        let (root, project) = blocking(move || {
            let root = dirs.open_dir(&path)?;
            let project = Project::survey(&dirs, &root, &limits)?;
            Ok((root, project))
        })
        .await?;
        let project = Arc::new(project);
        let source = (local.clone(), root, Arc::clone(&project));
        unpack(&sandbox, &into, source, tell).await?;
        Ok(ProjectCopied {
            path: into,
            files: project.files,
            bytes: project.bytes,
            skipped: project.skipped.clone(),
            skipped_count: project.skipped_count,
        })
    }
}

/// Where a file is meant to go in the working directory: a directory, which may be absolute as the
/// path of a workspace is told, and a name.
pub fn destination(directory: Option<&str>, name: &str) -> String {
    let directory = relative_to_home(directory.unwrap_or_default());
    let name = relative_to_home(name);
    match directory.trim_end_matches('/') {
        "" => name.to_owned(),
        directory => format!("{directory}/{name}"),
    }
}

/// A path without the working directory's own, or without the slash that makes it absolute: paths of
/// the fourth seed are relative to a workspace however they begin.
pub fn relative_to_home(path: &str) -> &str {
    let inside = files::HOMES
        .iter()
        .find_map(|home| path.strip_prefix(home))
        .filter(|rest| rest.is_empty() || rest.starts_with('/'));
    inside.unwrap_or(path).trim_start_matches('/')
}

/// A directory below the working directory, as `a/b`; empty is that itself.
fn check_directory(path: &str) -> Result<String, Error> {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let parts: Vec<&str> = parts.collect();
    let wrong = path.contains('\0') || path.len() > 4096 || parts.contains(&"..");
    if wrong || path.starts_with('/') {
        return Err(Error::new(
            ErrorKind::BadPath,
            "bad_path",
            "the directory must be relative to the working directory and stay in it",
        ));
    }
    Ok(parts.join("/"))
}

/// A program inside that goes with its handle.
struct Unpacking<'a>(&'a Sandbox, Arc<Process>);

impl Drop for Unpacking<'_> {
    fn drop(&mut self) {
        if self.1.log.ended().is_none() {
            self.1.kill(self.0);
        }
    }
}

async fn unpack(
    sandbox: &Arc<Sandbox>,
    into: &str,
    (local, root, project): (LocalDirs, OwnedFd, Arc<Project>),
    tell: &mpsc::Sender<String>,
) -> Result<(), Error> {
    let argv = ["/bin/bash", "-c", UNPACK, "bash", &format!("./{into}")];
    let program = Program {
        argv: argv.map(str::to_owned).to_vec(),
        cwd: None,
        env: Default::default(),
        input: Input::Pipe,
        apart: None,
        deadline: Some(Instant::now() + UNPACK_TIME),
        log_bytes: SAID_BYTES,
    };
    let process = program::start(sandbox, program).await?;
    let unpacking = Unpacking(sandbox, process);
    let process = &unpacking.1;
    let (to, mut chunks) = mpsc::channel(CHUNKS);
    let all = project.bytes;
    let packing = spawn_blocking(move || project.pack(&local, &root, to));
    let (mut taken, mut copied, mut told) = (Ok(()), 0, 0);
    while let Some(chunk) = chunks.recv().await {
        taken = process.write(&chunk, STALL_TIME).await;
        if taken.is_err() {
            break;
        }
        copied += chunk.len() as u64;
        if copied - told >= TELL_BYTES {
            told = copied;
            let _ = tell
                .send(format!("copied {} of {all} bytes\n", copied.min(all)))
                .await;
        }
    }
    drop(chunks);
    let packed = packing.await.unwrap_or_else(|e| Err(e.into()));
    if taken.is_ok() && packed.is_err() {
        // Not ended in order: what is inside must not pass for the whole.
        process.kill(sandbox);
        return Err(changed());
    }
    let _ = process.close_stdin(STALL_TIME).await;
    let end = process.log.wait_end().await;
    sandbox.refuse_closing()?;
    if end.code == Some(0) {
        return Ok(());
    }
    Err(not_unpacked(&said(process), end.timed_out))
}

/// The end of what the program said, for people.
fn said(process: &Process) -> String {
    let kept = process.log.since(0, SAID_BYTES);
    let bytes: Vec<u8> = kept.pieces.into_iter().flat_map(|p| p.bytes).collect();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.first().copied().unwrap_or("it told no reason");
    let plain = first.chars().filter(|c| !c.is_control());
    plain.take(512).collect()
}

fn not_unpacked(said: &str, timed_out: bool) -> Error {
    if said.contains("No space left on device") {
        let detail = "the sandbox's disk is full (disk_bytes); a part of the project was copied";
        return Error::new(ErrorKind::NoSpace, "disk_full", detail);
    }
    let reason = match timed_out {
        true => format!("it took longer than {} s", UNPACK_TIME.as_secs()),
        false => said.to_owned(),
    };
    Error::new(
        ErrorKind::Conflict,
        "project_not_copied",
        format!("the project could not be unpacked in the sandbox: {reason}"),
    )
}

fn changed() -> Error {
    Error::new(
        ErrorKind::Conflict,
        "local_file_changed",
        "a local file changed or could not be read while it was copied",
    )
}

fn refuse_over(size: u64, most: u64) -> Result<(), Error> {
    if size <= most {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::TooLarge,
        "local_file_too_large",
        format!("a file that is copied may have {most} bytes (mcp.local_file_bytes)"),
    ))
}

/// Work that may wait for a disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let ended = spawn_blocking(work).await;
    ended.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Internal,
            "internal",
            "a copy ended early",
        ))
    })
}

/// The name of a local file, for a copy whose place is not said.
pub fn file_name(path: &str) -> Result<&str, Error> {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| {
        Error::new(
            ErrorKind::BadPath,
            "bad_path",
            "the path does not name a file",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_in_the_workspace_however_they_are_written() {
        for (directory, name, path) in [
            (None, "a.py", "a.py"),
            (Some("src"), "a.py", "src/a.py"),
            (Some("/src/"), "a.py", "src/a.py"),
            (Some("/home/user/src"), "a.py", "src/a.py"),
            (Some("/home/user"), "a.py", "a.py"),
            (Some("/app/results"), "a.py", "a.py"),
            (Some("/home/username"), "a.py", "home/username/a.py"),
            (None, "/home/user/a.py", "a.py"),
            (Some("../x"), "a.py", "../x/a.py"),
        ] {
            assert_eq!(destination(directory, name), path, "{directory:?} {name}");
        }
        assert_eq!(check_directory("./a//b/").unwrap(), "a/b");
        assert_eq!(check_directory("").unwrap(), "");
        for wrong in ["..", "a/../..", "/etc", "a\0"] {
            assert!(check_directory(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(file_name("/x/y.csv").unwrap(), "y.csv");
        assert!(file_name("/").is_err() && file_name("..").is_err());
    }
}
