//! Packages, mirrors of packages, and what may be reached.

use std::time::{Duration, SystemTime};

use crate::mirror::Package;
use crate::network::{Policy, Stats};

/// What is to be installed.
#[derive(Debug, Clone)]
pub struct InstallSpec {
    /// Names with extras, versions and markers, or wheels of the working directory.
    pub packages: Vec<String>,
    /// A requirement file of the working directory.
    pub requirements_file: Option<String>,
    /// Newer versions also of what is there and would do.
    pub upgrade: bool,
    /// How long the answer may wait for the end.
    pub wait: Duration,
}

/// How an install stands.
#[derive(Debug, Clone)]
pub struct InstallInfo {
    /// Of all of it.
    pub status: PackageStatus,
    /// Those that were named, in that order.
    pub packages: Vec<PackageInfo>,
    /// uv's own words.
    pub stdout: String,
    /// uv's own words.
    pub stderr: String,
    /// One sentence for people.
    pub message: String,
}

/// A package of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageInfo {
    /// Normalized (PEP 503).
    pub name: String,
    /// How it stands.
    pub status: PackageStatus,
    /// Of an installed one.
    pub version: Option<String>,
    /// Why it is not there.
    pub message: Option<String>,
}

impl PackageInfo {
    /// Of which no more is known.
    pub(in crate::supervisor) fn new(name: String, status: PackageStatus) -> Self {
        Self {
            name,
            status,
            version: None,
            message: None,
        }
    }
}

/// How a package stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageStatus {
    /// Its installation goes on or waits.
    Installing,
    /// It can be imported.
    Installed,
    /// It could not be installed.
    Failed,
    /// The index does not have it.
    NotFound,
    /// Nobody asked for it yet, and it is not there.
    NotInstalled,
}

/// What a sandbox may reach, and what has passed.
#[derive(Debug, Clone)]
pub struct NetworkInfo {
    /// What it may reach now.
    pub policy: Policy,
    /// Since it was created.
    pub stats: Stats,
}

/// What a new mirror should be.
#[derive(Debug, Clone, Default)]
pub struct MirrorSpec {
    /// Letters, digits, `.`, `_` and `-`, up to 64; default is made from the id.
    pub name: Option<String>,
    /// Only the base, which is also the default.
    pub base: Option<String>,
    /// Requirements, as an install takes them, but no files.
    pub packages: Vec<String>,
    /// Modules that are imported ahead, beside the base's.
    pub preload: Vec<String>,
    /// How long the answer may wait.
    pub wait: Duration,
}

/// A mirror as clients see it.
#[derive(Debug, Clone)]
pub struct MirrorInfo {
    /// 32 hexadecimal digits.
    pub id: String,
    /// Unique.
    pub name: String,
    /// Id of the mirror that it is a layer over; `None` for the base.
    pub base: Option<String>,
    /// Requirements, as they were asked for.
    pub requested: Vec<String>,
    /// What came of them.
    pub packages: Vec<Package>,
    /// Modules that are imported ahead.
    pub preload: Vec<String>,
    /// How it stands.
    pub status: MirrorStatus,
    /// Why it failed.
    pub detail: Option<String>,
    /// What its files are: the start of a SHA-256.
    pub content: Option<String>,
    /// Bytes of its own files, where they were counted.
    pub size_bytes: Option<u64>,
    /// When it was complete; before, when it was begun.
    pub created_at: SystemTime,
}

/// How a mirror stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorStatus {
    /// It is being made.
    Building,
    /// Sandboxes can be created from it.
    Ready,
    /// It could not be made.
    Failed,
}

impl MirrorStatus {
    /// `building`, `ready` or `failed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed => "failed",
        }
    }
}
