//! Files of the working directory.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{download_url, rfc3339};
use crate::api::openapi;
use crate::supervisor::{FileEntry, FileKind};

/// Something in the working directory.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FileEntry)]
pub(crate) struct Entry {
    /// Relative to the working directory.
    path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[schema(value_type = openapi::FileKind)]
    r#type: &'static str,
    /// Bytes; of a directory or a link what the file system says of it.
    size: u64,
    /// Permission bits, octal with four digits: `0644`.
    mode: String,
    /// RFC 3339, UTC.
    modified_at: String,
    /// Where this service serves it; null for all but files.
    url: Option<String>,
}

impl Entry {
    pub(crate) fn new(sandbox_id: &str, entry: FileEntry) -> Self {
        let is_file = entry.kind == FileKind::File;
        Self {
            url: is_file.then(|| download_url(sandbox_id, &entry.path)),
            r#type: entry.kind.as_str(),
            size: entry.size,
            mode: format!("{:04o}", entry.mode),
            modified_at: rfc3339(entry.modified_at),
            path: entry.path,
        }
    }
}

/// Body of `POST /sandbox/{id}/files/mkdir`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MkdirRequest {
    /// Of the directory.
    pub(crate) path: String,
    /// Those above it too.
    #[serde(default = "yes")]
    pub(crate) parents: bool,
}

fn yes() -> bool {
    true
}

/// Body of `POST /sandbox/{id}/files/rename`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenameRequest {
    /// What is there.
    pub(crate) from: String,
    /// Where it is to be.
    pub(crate) to: String,
    /// In place of a file, or of an empty folder, that is there.
    #[serde(default)]
    pub(crate) overwrite: bool,
}

/// Body of `POST /sandbox/{id}/files/remove`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoveRequest {
    /// Of what.
    pub(crate) path: String,
    /// A folder with all that is in it; without this, only an empty one.
    #[serde(default)]
    pub(crate) recursive: bool,
}

/// The path that a change worked on.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChangedPath)]
pub(crate) struct PathAnswer {
    /// Relative to the working directory.
    pub(crate) path: String,
}

/// What was in an archive.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Unpacked {
    /// The folder, as it was asked for.
    pub(crate) path: String,
    /// Regular files.
    pub(crate) files: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// Answer to an upload.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Uploaded {
    /// Where the first file is, relative to the working directory.
    pub(crate) file_path: String,
    /// All of them, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<Vec<Placed>>,
}

/// A file that was uploaded.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UploadedFile)]
pub(crate) struct Placed {
    /// Relative to the working directory.
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: u64,
}
