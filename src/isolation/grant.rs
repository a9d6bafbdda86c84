//! What of the host a sandbox is given beyond the mirror, one by one: device nodes, the files of their
//! driver, and what a driver's libraries read below `/proc` and `/sys`.
//!
//! The supervisor's half ([`assemble`]) puts all of it into one detached tree of mounts, in the thread
//! that starts nurseries. Init's half ([`give`]) shows each piece in its place while it builds the root,
//! before any user code has touched it.
//!
//! ```text
//! tree/n/0 …   device nodes     nosuid, noexec, ro: a node opens for reading and writing all the same,
//!                               as file systems are asked about regular files and directories only
//!                               (sb_permission, fs/namei.c), but its mode and times cannot be changed
//! tree/f/0 …   regular files    nosuid, nodev, ro
//! tree/proc    copies of texts  } nosuid, nodev, noexec, ro
//! tree/sys     directories      }
//! ```
//!
//! Only these nodes are mounted without `nodev`. There is no rule for them in a device cgroup, as there
//! is nothing for one to refuse: every other mount that a sandbox could put a node on is `nodev`, mknod(2)
//! of a device asks for `CAP_MKNOD` in the host's user namespace (`vfs_mknod`, fs/namei.c) and is refused
//! by the filters too, and no descriptor of a device reaches a sandbox from outside. A device that has
//! no node inside cannot be opened there.
//!
//! The mounts come as a descriptor, so init's user namespace could make them writable again, as it could
//! not those of the mirror ([`super::spawner`]). That gains nobody anything: the files belong to the
//! host's root, whom no id of a nursery maps to, and init gives up `CAP_SYS_ADMIN` before user code runs.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::mount::{mount_bind, mount_bind_recursive, move_mount, open_tree, unmount};
use serde::{Deserialize, Serialize};

use super::error::{Context, Error};
use super::rootfs::{MERGED, make_file, mount};
use super::sys;

/// Where init attaches the tree, an empty directory in the nursery's root.
pub const GRANT: &str = "/grant";
/// Longest that a grant may be as init is told of it, bytes of JSON: it shares a packet with the rest.
pub const MAX_GRANT_BYTES: usize = 64 * 1024;
/// Bytes and files of the tree's own file system: copies of texts, and places to mount on.
const TREE_OPTIONS: &str = "size=1m,nr_inodes=4096,mode=755";

/// `MOUNT_ATTR_*` of mount_setattr(2).
const RDONLY: u64 = 0x1;
const NOSUID: u64 = 0x2;
const NODEV: u64 = 0x4;
const NOEXEC: u64 = 0x8;

/// A file of the host and its place inside, both absolute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// Below [`Grant::root`].
    pub host: String,
    /// In the sandbox.
    pub inside: String,
}

/// A symbolic link inside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Link {
    /// Where it is, absolute.
    pub path: String,
    /// What it says.
    pub to: String,
}

/// What a sandbox is given. Paths of the host are resolved as in a chroot(2) to `root`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// `/`, or where a driver has its own tree.
    pub root: PathBuf,
    /// Character devices that everybody on the host may open; inside they are below `/dev`.
    pub nodes: Vec<Shown>,
    /// Regular files.
    pub files: Vec<Shown>,
    /// Made in the sandbox's own files.
    pub links: Vec<Link>,
    /// Texts by their path below `/proc`; the first part of each replaces what is there.
    pub proc: BTreeMap<String, String>,
    /// Directories, relative to `/sys`.
    pub sys: Vec<String>,
    /// Links, relative to `/sys`.
    pub sys_links: Vec<Link>,
    /// Leaves the flags of mounts out, for tests that see what they are there for.
    #[doc(hidden)]
    pub without_flags: bool,
}

/// A grant as init needs to know it: where the pieces of the tree go.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Granted {
    nodes: Vec<String>,
    files: Vec<String>,
    links: Vec<Link>,
    proc: Vec<String>,
}

impl Granted {
    /// Device nodes in it.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

impl From<&Grant> for Granted {
    fn from(grant: &Grant) -> Self {
        let inside = |shown: &[Shown]| shown.iter().map(|s| s.inside.clone()).collect();
        let mut proc: Vec<String> = grant.proc.keys().map(|path| first_part(path)).collect();
        proc.dedup();
        Self {
            nodes: inside(&grant.nodes),
            files: inside(&grant.files),
            links: grant.links.clone(),
            proc,
        }
    }
}

fn first_part(path: &str) -> String {
    path.split('/').next().unwrap_or_default().to_owned()
}

// -- the supervisor's half

/// Makes the tree of a grant. For a thread with a mount namespace of its own; `place` is a directory
/// that is covered meanwhile.
pub(super) fn assemble(grant: &Grant, place: &str) -> Result<OwnedFd, Error> {
    let root = rustix::fs::open(&grant.root, PATH_DIR, Mode::empty())
        .map_err(|e| Error::path("open", &grant.root)(e.into()))?;
    let detach = |paths: &mut dyn Iterator<Item = &str>, kind: Kind| {
        let attributes = if grant.without_flags {
            0
        } else {
            kind.attributes()
        };
        paths
            .map(|path| detach(&root, path, kind, attributes))
            .collect::<Result<Vec<_>, _>>()
    };
    // Before the place is covered: they may be there.
    let nodes = detach(&mut hosts(&grant.nodes), Kind::Node)?;
    let files = detach(&mut hosts(&grant.files), Kind::File)?;
    let sys_paths: Vec<String> = grant.sys.iter().map(|dir| format!("/sys/{dir}")).collect();
    let sys = detach(&mut sys_paths.iter().map(String::as_str), Kind::Directory)?;
    let bare = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", place, bare, TREE_OPTIONS)?;
    let covered = Covered(place);
    for (dir, mounts) in [("n", &nodes), ("f", &files)] {
        make_dirs(&format!("{place}/{dir}"))?;
        for (n, piece) in mounts.iter().enumerate() {
            let path = format!("{place}/{dir}/{n}");
            make_file(&path, 0o644).context(format!("make {path}"))?;
            attach_at(piece, &path)?;
        }
    }
    for (path, text) in &grant.proc {
        let path = format!("{place}/proc/{path}");
        make_parent(&path)?;
        fs::write(&path, text).context(format!("write {path}"))?;
    }
    // Where [`super::view`] shows the sandbox's limits.
    make_dirs(&format!("{place}/{}", super::view::CGROUP_DIRECTORY))?;
    for (dir, piece) in grant.sys.iter().zip(&sys) {
        let path = format!("{place}/sys/{dir}");
        make_dirs(&path)?;
        attach_at(piece, &path)?;
    }
    for Link { path, to } in &grant.sys_links {
        let path = format!("{place}/sys/{path}");
        make_parent(&path)?;
        symlink(to, &path).context(format!("link {path}"))?;
    }
    let whole = CLONE | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(rustix::fs::CWD, place, whole).context("detach a tree")?;
    drop(covered);
    if !grant.without_flags {
        sys::mount_setattr(tree.as_fd(), RDONLY | NOSUID).context("make a tree read-only")?;
    }
    Ok(tree)
}

const PATH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// The place is free again when the value is dropped.
struct Covered<'a>(&'a str);

impl Drop for Covered<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// What is expected of a path of the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Node,
    File,
    Directory,
}

impl Kind {
    fn attributes(self) -> u64 {
        match self {
            Self::Node => RDONLY | NOSUID | NOEXEC,
            Self::File => RDONLY | NOSUID | NODEV,
            Self::Directory => RDONLY | NOSUID | NODEV | NOEXEC,
        }
    }

    /// Links and everything else that was not asked for are refused: a socket or a pipe leads to a
    /// process of the host.
    fn fits(self, found: FileType) -> bool {
        match self {
            Self::Node => found == FileType::CharacterDevice,
            Self::File => found == FileType::RegularFile,
            Self::Directory => found == FileType::Directory,
        }
    }
}

fn hosts(shown: &[Shown]) -> impl Iterator<Item = &str> {
    shown.iter().map(|shown| shown.host.as_str())
}

/// A path as a detached mount. What is looked at is what is mounted, whatever becomes of the path.
fn detach(root: &OwnedFd, path: &str, kind: Kind, attributes: u64) -> Result<OwnedFd, Error> {
    let failed = |e: Errno| Error::path("open", path)(e.into());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let file = file.map_err(failed)?;
    let found = statat(&file, "", AtFlags::EMPTY_PATH).map_err(failed)?;
    if !kind.fits(FileType::from_raw_mode(found.st_mode)) {
        return Err(Error::Refused(format!("{path} is of the wrong kind")));
    }
    let piece = open_tree(&file, "", CLONE | OpenTreeFlags::AT_EMPTY_PATH);
    let piece = piece.map_err(|e| Error::path("clone the mount of", path)(e.into()))?;
    sys::mount_setattr(piece.as_fd(), attributes).map_err(Error::path("make read-only", path))?;
    Ok(piece)
}

fn attach_at(piece: &OwnedFd, path: &str) -> Result<(), Error> {
    super::rootfs::attach(piece.as_fd(), path)
}

fn make_dirs(path: &str) -> Result<(), Error> {
    fs::create_dir_all(path).context(format!("make {path}"))
}

fn make_parent(path: &str) -> Result<(), Error> {
    match Path::new(path).parent().and_then(Path::to_str) {
        Some(parent) => make_dirs(parent),
        None => Ok(()),
    }
}

// -- init's half

/// Shows the pieces of the tree at [`GRANT`] in their places below [`MERGED`].
pub(super) fn give(granted: &Granted) -> Result<(), Error> {
    let root = rustix::fs::open(MERGED, PATH_DIR, Mode::empty()).context("open the root")?;
    for (dir, places) in [("n", &granted.nodes), ("f", &granted.files)] {
        for (n, inside) in places.iter().enumerate() {
            let piece = format!("{GRANT}/{dir}/{n}");
            let piece = open_tree(rustix::fs::CWD, &piece, CLONE).context("take a grant")?;
            let at = place_for(&root, inside)?;
            let flags =
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(&piece, "", &at, "", flags).context(format!("show {inside}"))?;
        }
    }
    for Link { path, to } in &granted.links {
        let (dir, name) = parent_of(&root, path)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e).context(format!("replace {path}")),
        }
        rustix::fs::symlinkat(to.as_str(), &dir, name).context(format!("link {path}"))?;
    }
    for name in &granted.proc {
        let (from, to) = (
            format!("{GRANT}/proc/{name}"),
            format!("{MERGED}/proc/{name}"),
        );
        // A kernel without modules has no list of them.
        if Path::new(&to).exists() {
            mount_bind(&from, &to).context(format!("bind {to}"))?;
        }
    }
    let (from, to) = (format!("{GRANT}/sys"), format!("{MERGED}/sys"));
    mount_bind_recursive(&from, &to).context("bind /sys")
}

/// An empty file to mount on, made where there is none. A link on the way stays within the root, as a
/// mirror's layer may hold any.
fn place_for(root: &OwnedFd, inside: &str) -> Result<OwnedFd, Error> {
    let (dir, name) = parent_of(root, inside)?;
    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, name, new, Mode::from_raw_mode(0o644)) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e).context(format!("make {inside}")),
    }
    let found = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(&dir, name, found, Mode::empty());
    let place = place.context(format!("open {inside}"))?;
    let is_link = statat(&place, "", AtFlags::EMPTY_PATH)
        .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) != FileType::RegularFile);
    if is_link {
        return Err(Error::Refused(format!("{inside} is in the way")));
    }
    Ok(place)
}

/// The directory of a path, made with those above it where they are missing, and the last part.
fn parent_of<'a>(root: &OwnedFd, inside: &'a str) -> Result<(OwnedFd, &'a str), Error> {
    let (parents, name) = inside
        .rsplit_once('/')
        .filter(|(_, name)| !name.is_empty())
        .ok_or_else(|| Error::Refused(format!("{inside:?} is no place in a sandbox")))?;
    let enter = |path: &str| openat2(root, path, PATH_DIR, Mode::empty(), ResolveFlags::IN_ROOT);
    let mut path = String::from("/");
    let mut dir = enter(&path).context("open the root")?;
    for part in parents.split('/').filter(|part| !part.is_empty()) {
        path.push_str(part);
        dir = match enter(&path) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755))
                    .context(format!("make {path}"))?;
                enter(&path)
            }
            found => found,
        }
        .context(format!("open {path}"))?;
        path.push('/');
    }
    Ok((dir, name))
}
