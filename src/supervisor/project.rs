//! A directory of this host on its way into a sandbox: looked through first, within limits, then
//! written as a tar stream that is unpacked inside.
//!
//! Every file is opened from the directory's descriptor as [`LocalDirs`] opens them. What became
//! larger or a link meanwhile does not get in; what became smaller ends the copy.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, statat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::error::{Error, ErrorKind};
use super::local::{LocalDirs, refusal, reopen};
use crate::config;

/// Directories that are made again from what is copied, or are of no use inside. Virtual environments
/// are known by their `pyvenv.cfg`, whatever they are called.
const IGNORED: [&[u8]; 10] = [
    b".git",
    b".hg",
    b".svn",
    b".venv",
    b"node_modules",
    b"__pycache__",
    b".mypy_cache",
    b".pytest_cache",
    b".ruff_cache",
    b".tox",
];
/// What was left out is told up to this number of paths.
const SKIPPED_TOLD: usize = 20;
/// Longest path within a project, bytes.
const MAX_PATH_BYTES: usize = 4096;
/// Bytes of the stream that are handed on at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// What a directory holds that is to be copied.
#[derive(Debug, Default)]
pub(super) struct Project {
    members: Vec<Member>,
    /// Regular files.
    pub(super) files: usize,
    /// Bytes of all of them.
    pub(super) bytes: u64,
    /// Paths that are left out, the first of them.
    pub(super) skipped: Vec<String>,
    /// How many are.
    pub(super) skipped_count: usize,
}

#[derive(Debug)]
struct Member {
    /// Relative to the project.
    path: PathBuf,
    /// `None` is a directory.
    size: Option<u64>,
    mode: u32,
    modified_seconds: u64,
}

impl Project {
    /// Looks through a directory.
    ///
    /// # Errors
    /// `TooLarge` names the limit (`mcp.project_files`, `mcp.project_bytes`).
    pub(super) fn survey(
        local: &LocalDirs,
        root: &OwnedFd,
        limits: &config::Mcp,
    ) -> Result<Self, Error> {
        let mut project = Self::default();
        let mut seen = 0;
        let mut directories = vec![PathBuf::new()];
        while let Some(path) = directories.pop() {
            let failed = |e: Errno| refusal(&path.to_string_lossy(), e);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = match local.resolve(root, &path, flags) {
                Ok(dir) => dir,
                // Gone or swapped since it was seen.
                Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => continue,
                Err(Errno::XDEV) => {
                    project.skip(&path);
                    continue;
                }
                Err(e) => return Err(failed(e)),
            };
            if !path.as_os_str().is_empty()
                && statat(&dir, "pyvenv.cfg", AtFlags::SYMLINK_NOFOLLOW).is_ok()
            {
                project.members.retain(|member| member.path != path);
                project.skip(&path);
                continue;
            }
            for entry in Dir::read_from(&dir).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                seen += 1;
                if seen > limits.project_files {
                    return Err(too_many(limits.project_files));
                }
                let path = path.join(std::ffi::OsStr::from_bytes(name));
                let Ok(stat) = statat(&dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                let kind = FileType::from_raw_mode(stat.st_mode);
                let copied = match kind {
                    FileType::Directory => !IGNORED.contains(&name),
                    FileType::RegularFile => true,
                    _ => false,
                };
                if !copied || path.as_os_str().len() > MAX_PATH_BYTES {
                    project.skip(&path);
                    continue;
                }
                let size = (kind == FileType::RegularFile).then_some(stat.st_size.max(0) as u64);
                match size {
                    Some(size) => {
                        project.files += 1;
                        project.bytes = project.bytes.saturating_add(size);
                    }
                    None => directories.push(path.clone()),
                }
                if project.bytes > limits.project_bytes {
                    return Err(too_large(limits.project_bytes));
                }
                project.members.push(Member {
                    path,
                    size,
                    mode: stat.st_mode,
                    modified_seconds: stat.st_mtime.max(0) as u64,
                });
            }
        }
        Ok(project)
    }

    fn skip(&mut self, path: &Path) {
        self.skipped_count += 1;
        if self.skipped.len() < SKIPPED_TOLD {
            self.skipped.push(path.to_string_lossy().into_owned());
        }
    }

    /// Writes the archive. Blocks; ends early when nobody takes the chunks any more.
    pub(super) fn pack(
        &self,
        local: &LocalDirs,
        root: &OwnedFd,
        to: mpsc::Sender<Vec<u8>>,
    ) -> io::Result<()> {
        let to = BufWriter::with_capacity(CHUNK_BYTES, Chunks(to));
        let mut archive = Builder::new(to);
        for member in &self.members {
            let mut header = Header::new_gnu();
            header.set_mtime(member.modified_seconds);
            // Who may execute it is told, everything else is the sandbox's: no set-user-id bits.
            let executable = member.size.is_none() || member.mode & 0o100 != 0;
            header.set_mode(if executable { 0o755 } else { 0o644 });
            header.set_size(member.size.unwrap_or(0));
            let Some(size) = member.size else {
                header.set_entry_type(EntryType::Directory);
                archive.append_data(&mut header, &member.path, io::empty())?;
                continue;
            };
            let file = local.resolve(root, &member.path, OFlags::PATH)?;
            let file = Exactly {
                file: reopen(file)?,
                left: size,
            };
            archive.append_data(&mut header, &member.path, file)?;
        }
        archive.into_inner()?.flush()
    }
}

/// So many bytes of a file, or an error: the header has told its size.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

struct Chunks(mpsc::Sender<Vec<u8>>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(bytes.to_vec());
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_many(most: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "project_too_large",
        format!(
            "the directory holds more than {most} files and directories (mcp.project_files), those not \
             counted that are left out; copy a part of it"
        ),
    )
}

fn too_large(most: u64) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        "project_too_large",
        format!(
            "the directory holds more than {most} bytes (mcp.project_bytes); copy a part of it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn limits(files: usize, bytes: u64) -> config::Mcp {
        config::Mcp {
            project_files: files,
            project_bytes: bytes,
            ..config::Mcp::default()
        }
    }

    /// Names in the archive, with contents and modes.
    fn packed(dir: &Path) -> (Project, Vec<(String, String, u32)>) {
        let local = LocalDirs::new([dir.to_owned()]);
        let root = local.open_dir(".").unwrap();
        let project = Project::survey(&local, &root, &limits(100, 10_000)).unwrap();
        let (to, mut from) = mpsc::channel(100);
        project.pack(&local, &root, to).unwrap();
        let mut bytes = Vec::new();
        while let Ok(chunk) = from.try_recv() {
            bytes.extend(chunk);
        }
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            (path, text, entry.header().mode().unwrap())
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        (project, entries)
    }

    #[test]
    fn sources_are_copied_and_what_is_made_from_them_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let long = format!("{}/{}.txt", "d".repeat(150), "f".repeat(150));
        write(at("app.py"), "print(1)");
        write(at("run.sh"), "#!/bin/sh");
        fs::set_permissions(at("run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
        write(at(&long), "long");
        fs::create_dir(at("empty")).unwrap();
        for ignored in [
            ".git/config",
            "a/node_modules/x",
            "a/__pycache__/b.pyc",
            "myenv/pyvenv.cfg",
        ] {
            write(at(ignored), "x");
        }
        write(at("myenv/lib/python"), "x");
        symlink("/etc/passwd", at("link")).unwrap();
        symlink("/etc", at("a/etc")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (project, entries) = packed(dir.path());
        let names: Vec<&str> = entries.iter().map(|e| e.0.trim_end_matches('/')).collect();
        let parent = "d".repeat(150);
        assert_eq!(names, ["a", "app.py", &parent, &long, "empty", "run.sh"]);
        assert_eq!((project.files, project.bytes), (3, 21));
        assert_eq!(entries[1].1, "print(1)");
        assert_eq!((entries[1].2, entries[5].2), (0o644, 0o755));
        let mut skipped = project.skipped;
        skipped.sort();
        let left_out = [
            ".git",
            "a/__pycache__",
            "a/etc",
            "a/node_modules",
            "fifo",
            "link",
            "myenv",
        ];
        assert_eq!(skipped, left_out);
        assert_eq!(project.skipped_count, 7);
    }

    #[test]
    fn limits_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..5 {
            write(dir.path().join(format!("{n}")), "12345");
        }
        let local = LocalDirs::new([dir.path().to_owned()]);
        let root = local.open_dir(".").unwrap();
        let survey = |files, bytes| Project::survey(&local, &root, &limits(files, bytes));
        assert!(survey(5, 25).is_ok());
        let e = survey(4, 25).unwrap_err();
        assert!(e.detail.contains("mcp.project_files"), "{e}");
        let e = survey(5, 24).unwrap_err();
        assert!(e.detail.contains("mcp.project_bytes"), "{e}");
        // 1 TiB that is nowhere is refused before a byte of it is read.
        let sparse = File::create(dir.path().join("0")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        assert!(survey(5, 1 << 39).is_err());
    }

    #[test]
    fn what_changes_meanwhile_does_not_get_in() {
        let dir = tempfile::tempdir().unwrap();
        let local = LocalDirs::new([dir.path().to_owned()]);
        let root = local.open_dir(".").unwrap();
        let path = dir.path().join("file");
        for change in ["shrunk", "link", "gone"] {
            fs::write(&path, "0123456789").unwrap();
            let project = Project::survey(&local, &root, &limits(10, 100)).unwrap();
            match change {
                "shrunk" => fs::write(&path, "012").unwrap(),
                _ => fs::remove_file(&path).unwrap(),
            }
            if change == "link" {
                symlink("/etc/passwd", &path).unwrap();
            }
            let (to, _from) = mpsc::channel(100);
            assert!(project.pack(&local, &root, to).is_err(), "{change}");
            let _ = fs::remove_file(&path);
        }
    }
}
