//! The verbs on files.

use super::super::Supervisor;
use super::super::error::Error;
use super::super::sandbox::InUse;
use super::super::types::{ArchiveFormat, FileEntry, FileQuery, OpenFile, Upload};
use super::{FileWatch, Packed, Unpacking, archive, tree, watch};

impl Supervisor {
    /// Regular files of the working directory, recursively.
    pub async fn list_files(&self, id: &str) -> Result<Vec<FileEntry>, Error> {
        self.find_files(id, &FileQuery::default()).await
    }

    /// What is in a folder, by path; at most `limits.files` entries.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is none; `NotFound` and `BadPath` for the folder.
    pub async fn find_files(&self, id: &str, query: &FileQuery) -> Result<Vec<FileEntry>, Error> {
        super::list(&*self.find(id)?, query).await
    }

    /// One entry; of a link, the link itself.
    ///
    /// # Errors
    /// `NotFound`; `BadPath`.
    pub async fn stat_file(&self, id: &str, path: &str) -> Result<FileEntry, Error> {
        tree::stat(&*self.find(id)?, path).await
    }

    /// Makes a directory, and with `parents` those above it, where they do not exist.
    ///
    /// # Errors
    /// `Conflict` (`file_exists`) where something has that path, with `parents` unless that is a
    /// directory; `BadPath`; `NoSpace`.
    pub async fn make_directory(
        &self,
        id: &str,
        path: &str,
        parents: bool,
    ) -> Result<String, Error> {
        tree::make_directory(&*self.find(id)?, path, parents).await
    }

    /// Gives something another path, whose folders are made.
    ///
    /// # Errors
    /// `NotFound`; `BadPath`; `Conflict` (`file_exists`) where something has the path and is not to be
    /// replaced, or cannot be (`directory_not_empty`).
    pub async fn rename_file(
        &self,
        id: &str,
        from: &str,
        to: &str,
        overwrite: bool,
    ) -> Result<String, Error> {
        tree::rename(&*self.find(id)?, from, to, overwrite).await
    }

    /// Removes a file, a link or a directory, with `recursive` and all that is in it.
    ///
    /// # Errors
    /// `NotFound`; `BadPath`; `Conflict` (`directory_not_empty`).
    pub async fn remove_file(
        &self,
        id: &str,
        path: &str,
        recursive: bool,
    ) -> Result<String, Error> {
        tree::remove(&*self.find(id)?, path, recursive).await
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// `Gone` when the sandbox has ended, `NotFound` when there was none; `NotFound` and `BadPath` for
    /// the file.
    pub async fn open_file(&self, id: &str, path: &str) -> Result<OpenFile, Error> {
        let sandbox = self.find_linked(id)?;
        let mut opened = super::open(&sandbox, path).await?;
        opened.in_use = Some(InUse::of(sandbox));
        Ok(opened)
    }

    /// Creates or replaces a file; parents are made.
    pub async fn create_file(&self, id: &str, path: &str) -> Result<Upload, Error> {
        let sandbox = self.find(id)?;
        let mut upload = super::create(&sandbox, path).await?;
        upload.in_use = Some(InUse::of(sandbox));
        Ok(upload)
    }

    /// A folder as an archive, made while it is read. Of links it has those that lead to something in
    /// it, and none where the form is ZIP; of the rest, directories and regular files.
    ///
    /// # Errors
    /// `NotFound`; `BadPath`.
    pub async fn pack_files(
        &self,
        id: &str,
        path: &str,
        format: ArchiveFormat,
    ) -> Result<Packed, Error> {
        archive::pack(&self.find(id)?, path, format).await
    }

    /// Begins to unpack an archive into a folder; all of it is put in place at its end, or nothing.
    ///
    /// # Errors
    /// `BadPath` for the folder, later for an archive that cannot be read (`bad_archive`) or has
    /// entries that lead out of the folder, devices and the like (`unsafe_archive`); `TooLarge` for one
    /// with more entries than `limits.inodes` (`too_many_files`); `NoSpace`.
    pub async fn unpack_files(
        &self,
        id: &str,
        path: &str,
        format: Option<ArchiveFormat>,
    ) -> Result<Unpacking, Error> {
        archive::unpack(&self.find(id)?, path, format).await
    }

    /// Watches a folder for changes.
    ///
    /// # Errors
    /// `NotFound`; `BadPath`; `Busy` when there are as many watches as may be.
    pub async fn watch_files(
        &self,
        id: &str,
        path: &str,
        recursive: bool,
    ) -> Result<FileWatch, Error> {
        watch::watch(&self.find(id)?, path, recursive).await
    }
}
