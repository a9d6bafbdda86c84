//! What the supervisor asks of the nursery and of inits, as data. The ids, sizes and names here are
//! the supervisor's own: nothing in these messages comes from user code unchecked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::grant::Granted;

pub use crate::mirror::MIRROR_OWNER;

/// Ids of one service's sandboxes: its block starts at `MIRROR_OWNER + BLOCK_IDS * k`, k ≥ 1.
pub const BLOCK_IDS: u32 = 65_536;
/// Uid and gid of user code, inside.
pub const USER_ID: u32 = 1000;
/// Working directory of user code, inside.
pub const HOME: &str = "/home/user";

/// Protections that a *test* may leave out, to see that another test then fails. The service never
/// sets any: nothing parses this from a configuration, a flag or a request.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ablation {
    pub no_pidns: bool,
    pub no_mntns: bool,
    pub no_netns: bool,
    pub no_ipcns: bool,
    pub no_seccomp: bool,
    pub no_masks: bool,
    pub shared_uid: bool,
    pub dumpable_init: bool,
    pub no_cgroup: bool,
    pub no_mount_flags: bool,
    pub keep_capabilities: bool,
    pub keep_descriptors: bool,
}

/// First packet to the nursery, which finds the mirror and the layer where the spawner put them.
#[derive(Debug, Serialize, Deserialize)]
pub struct NurserySetup {
    /// The mirror has a layer above it.
    pub layered: bool,
}

/// To the nursery, after the setup was answered.
#[derive(Debug, Serialize, Deserialize)]
pub struct NurseryRequest {
    /// Echoed in the answer: an answer that nobody waits for any more must not pass for the next.
    pub id: u64,
    /// What to do.
    pub verb: NurseryVerb,
}

/// What the nursery does.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NurseryVerb {
    /// Start a zygote. Descriptors: `[0]` its socket, `[1]` a memory file with its Python sources, a JSON
    /// object of file names and texts: they are put into a directory of their own.
    Zygote {
        /// Complete environment.
        env: BTreeMap<String, String>,
        /// Whether it runs under the filters of a zygote, which its kernels inherit.
        filtered: bool,
    },
    /// Start a sandbox. Descriptors: `[0]` init's socket, `[1]` cgroup v2 directory; with
    /// `root_from_host`, `[2]` the stage and `[3]` the merged root as detached mounts; with `granted`,
    /// the tree of it ([`super::grant`]); then the `cgroup.procs` files of v1 hierarchies.
    Sandbox(SandboxSpec),
}

/// From the nursery, one answer to each request in order. Where `error` is `None` the process
/// exists and its pidfd comes with the packet; the setup (id 0) is answered without a descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct FromNursery {
    /// As in the request.
    pub id: u64,
    /// What failed, in words.
    pub error: Option<String>,
}

/// A sandbox, as init needs to know it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Id of the user inside the nursery's user namespace, 1 to 65 535, unique while alive.
    pub user_id: u32,
    /// Bytes of the upper file system, `/tmp` and `/dev/shm` included.
    pub disk_bytes: u64,
    /// Files and directories of the upper file system.
    pub inodes: u64,
    /// The merged root comes as a mount made by the supervisor (hosts whose tmpfs takes no user
    /// xattrs), instead of being mounted by init.
    pub root_from_host: bool,
    /// The mirror has a layer above it.
    #[serde(default)]
    pub layered: bool,
    /// `setrlimit(2)` values by name, for commands and file helpers.
    pub rlimits: BTreeMap<String, u64>,
    /// Added to the OOM score of commands, so that init outlives them.
    pub oom_score_adj: u32,
    /// What of the host it is given. Its processes have the filters of sandboxes with GPUs then.
    #[serde(default)]
    pub granted: Option<Granted>,
    /// Left out on purpose, by tests only.
    #[serde(default)]
    pub ablation: Ablation,
}

/// To init.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToInit {
    /// Run a program as the user; answers with [`Reply::Begun`] and, at its end, [`Reply::Exited`].
    /// Descriptors: `[0]` reply socket, `[1]` cgroup v2 directory and, unless it gets a terminal,
    /// `[2]` stdin, `[3]` stdout, `[4]` stderr.
    Command(Command),
    /// Signal the process group of a program that was started by [`ToInit::Command`]; answers with
    /// [`Reply::Ok`]. Descriptors: `[0]` reply socket.
    Signal {
        /// As [`Reply::Begun`] told.
        pid: i32,
        /// Its number.
        signal: i32,
    },
    /// Tell how a process ends that is init's child because its own parent has ended: an answer is
    /// [`Reply::Exited`]. Descriptors: `[0]` reply socket.
    Watch {
        /// Its id inside.
        pid: i32,
    },
    /// Listen on [`PROXY_PORT`](crate::network::PROXY_PORT) of the sandbox's loopback; answers with
    /// [`Reply::Ok`] and the listening socket. Descriptors: `[0]` reply socket.
    Listen {},
    /// Do file work as the user. Descriptors: `[0]` reply socket and, for work that has one, `[1]` the
    /// pipe with the content.
    File {
        /// What to do.
        work: FileWork,
    },
    /// Begin to connect to a TCP port of the sandbox's loopback interface; answers with [`Reply::Ok`]
    /// and the socket, which may still be connecting. Descriptors: `[0]` reply socket.
    Dial {
        /// Which.
        port: u16,
        /// On ::1 instead of 127.0.0.1.
        v6: bool,
    },
}

/// A program, as init starts it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Command {
    /// Program (absolute path) and arguments.
    pub argv: Vec<String>,
    /// Complete environment.
    pub env: BTreeMap<String, String>,
    /// Relative to the working directory, or absolute.
    pub cwd: Option<String>,
    /// Runs on a terminal of the sandbox's own with this size, as the leader of its session.
    pub terminal: Option<WindowSize>,
    /// Runs apart from user code: see [`super::apart`].
    pub apart: Option<Apart>,
}

/// What a program that runs apart from user code has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apart {
    /// Bytes of the file system at [`super::apart::SCRATCH`] that only it sees.
    pub scratch_bytes: u64,
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Width.
    pub columns: u16,
    /// Height.
    pub rows: u16,
}

/// File work, done inside by a process with the user's identity. Paths are raw bytes relative to
/// the working directory; `..`, absolute paths and links on the way are refused.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileWork {
    /// What is in a folder; answers with [`Reply::Entries`] packets, then `Ok`.
    List(Listing),
    /// One entry; answers with [`Reply::Entries`], then `Ok`.
    Stat {
        /// Of what; empty or `.` for the working directory.
        path: Vec<u8>,
    },
    /// Answers with [`Reply::Ok`] and the descriptor of a regular file, opened for reading.
    Read {
        /// What to open.
        path: Vec<u8>,
    },
    /// Copies the pipe into a new file; puts it in place when the packet `commit` comes and answers.
    Write {
        /// Where to.
        path: Vec<u8>,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Which.
        path: Vec<u8>,
        /// Those above it too, and none is made where it exists already.
        parents: bool,
    },
    /// Gives something another name; missing directories above that are made.
    Rename {
        /// What; a link is renamed itself.
        from: Vec<u8>,
        /// Its new path.
        to: Vec<u8>,
        /// In place of what has that path.
        overwrite: bool,
    },
    /// Removes something; a link itself.
    Remove {
        /// What.
        path: Vec<u8>,
        /// A directory with all that is in it; without this only an empty one.
        recursive: bool,
    },
    /// Writes a folder as an archive to the pipe; answers [`Reply::Ok`] when it begins and again when
    /// all of it is written.
    Pack {
        /// The folder; empty or `.` for the working directory.
        path: Vec<u8>,
        /// Of what form.
        format: ArchiveFormat,
    },
    /// Reads an archive from the pipe into a folder, which is made; puts what was in it in place when
    /// the packet `commit` comes and answers [`Reply::Unpacked`].
    Unpack {
        /// The folder; empty or `.` for the working directory.
        path: Vec<u8>,
        /// What the archive has to be; without it what its first bytes say.
        format: Option<ArchiveFormat>,
        /// Entries that it may have.
        max_entries: u64,
    },
    /// Tells of changes in a folder: [`Reply::Ok`] when it begins, then [`Reply::Changes`] until the
    /// reply socket is closed.
    Watch {
        /// The folder; empty or `.` for the working directory.
        path: Vec<u8>,
        /// What is in folders below it too.
        recursive: bool,
        /// Folders that are watched at most.
        max_directories: usize,
    },
    /// Looks at all regular files of the working directory but hidden ones: [`Reply::Ok`] when it has,
    /// then [`Reply::Differences`] for each packet that comes, until the reply socket is closed.
    Journal(JournalLimits),
}

/// How much [`FileWork::Journal`] sees; of more it refuses to keep one.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JournalLimits {
    /// Regular files.
    pub files: usize,
    /// Directories, each of which is a watch of the host's.
    pub directories: usize,
    /// Differences that are told at once.
    pub differences: usize,
    /// Bytes of all their paths.
    pub path_bytes: usize,
}

/// A file that is not as it was.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileDifference {
    /// Raw bytes, relative to the working directory.
    pub path: Vec<u8>,
    /// False where it is new.
    pub was_there: bool,
    /// Its bytes; `None` where it has gone.
    pub size: Option<u64>,
    /// What it is, or was.
    pub kind: FileKind,
}

/// Form of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchiveFormat {
    /// POSIX tar, with GNU's long names.
    Tar,
    /// The same through gzip.
    TarGz,
    /// ZIP, deflated.
    Zip,
}

/// A change in a watched folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TreeChange {
    /// What happened.
    pub kind: TreeChangeKind,
    /// Raw bytes, relative to the working directory.
    pub path: Vec<u8>,
    /// What was renamed had this path.
    pub from: Option<Vec<u8>>,
    /// It is a directory.
    pub is_directory: bool,
}

/// What happened to something in a watched folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeChangeKind {
    /// It was made, or moved to here from elsewhere.
    Created,
    /// Its content or what is known of it was changed.
    Changed,
    /// It was removed, or moved to elsewhere.
    Deleted,
    /// It has another name or folder.
    Renamed,
}

impl TreeChangeKind {
    /// `created`, `changed`, `deleted` or `renamed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
            Self::Renamed => "renamed",
        }
    }
}

/// What [`FileWork::List`] is to find.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Listing {
    /// The folder; empty or `.` for the working directory.
    pub path: Vec<u8>,
    /// [`super::glob`] of paths relative to the folder.
    pub glob: Option<String>,
    /// Folders in it too.
    pub recursive: bool,
    /// Only these.
    pub kind: Option<FileKind>,
    /// Entries at most; more are left out.
    pub max_entries: usize,
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, wherever it leads.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

impl FileKind {
    /// From `st_mode` (inode(7)).
    pub fn of_mode(mode: u32) -> Self {
        use rustix::fs::FileType;
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }

    /// `file`, `directory`, `symlink` or `other`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        }
    }
}

/// On the reply socket of a request. From a process with the user's identity: hostile.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reply {
    /// Done.
    Ok {},
    /// Not done.
    Failed {
        /// Stable word: `not_found`, `not_regular`, `link`, `bad_path`, `no_space`, …
        code: String,
        /// For people.
        detail: String,
    },
    /// Part of a listing.
    Entries {
        /// Some files.
        entries: Vec<Entry>,
    },
    /// An archive has been unpacked.
    Unpacked {
        /// Regular files that were in it.
        files: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Changes in a watched folder, in order.
    Changes {
        /// Some of them.
        changes: Vec<TreeChange>,
        /// Others happened that could not be told.
        missed: bool,
    },
    /// What is not as it was when this was last asked, sorted by path.
    Differences {
        /// Some of it.
        differences: Vec<FileDifference>,
        /// Set in the last packet: whether some could not be told.
        left_out: Option<bool>,
    },
    /// A program is about to be executed: nothing of it can fail any more but the execution itself.
    /// Where it gets a terminal, the controlling side of it comes with the packet; where it runs apart,
    /// the listening socket of its network namespace.
    Begun {
        /// Its id inside.
        pid: i32,
    },
    /// The command ended; sent by init itself.
    Exited {
        /// Exit code.
        code: Option<i32>,
        /// Signal number.
        signal: Option<i32>,
    },
}

/// An entry of a listing.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Raw bytes, relative to the working directory.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits, with set-uid, set-gid and sticky.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified_seconds: i64,
    /// And nanoseconds.
    pub modified_nanoseconds: u32,
}
