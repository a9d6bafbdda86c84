//! Merged roots made by the supervisor, for hosts whose tmpfs takes no user xattrs (before Linux
//! 6.6): overlayfs mounted in a user namespace keeps its marks in those, so there the overlay has
//! to be the host's, with trusted xattrs, and is handed to init as a detached mount.
//!
//! The mounts are attached for a moment in a mount namespace that only the supervisor has, since
//! overlayfs takes no layer from a detached mount; the host's own mount table never sees them.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsmount, fsopen, open_tree, unmount,
};

use super::error::{Context, Error};
use super::rootfs::{attach, make_private, mount, stage_dirs};
use super::spec::{MIRROR_OWNER, SandboxSpec};

/// Covered by a tmpfs in the supervisor's own mount namespace.
const PLACE: &str = "/run/sandcell";

/// Whether overlayfs may use a tmpfs of this host as its upper in a user namespace: tried, on a
/// tmpfs that is mounted nowhere.
pub fn tmpfs_takes_user_xattrs() -> Result<bool, Error> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context("open a tmpfs")?;
    fsconfig_create(context.as_fd()).context("create a tmpfs")?;
    let root = fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
    .context("make a tmpfs")?;
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let dir =
        rustix::fs::openat(&root, ".", flags, rustix::fs::Mode::empty()).context("open a tmpfs")?;
    let set = rustix::fs::fsetxattr(
        &dir,
        "user.overlay.probe",
        b"y",
        rustix::fs::XattrFlags::CREATE,
    );
    Ok(set.is_ok())
}

/// The supervisor's place for mounts that are on their way to a sandbox.
#[derive(Debug)]
pub struct HostRoots(());

impl HostRoots {
    /// Gives the calling thread, and so all threads it starts later, a mount namespace of its own.
    pub fn new() -> Result<Self, Error> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
            .context("unshare the mount namespace")?;
        make_private()?;
        fs::create_dir_all(PLACE).map_err(Error::path("make", PLACE))?;
        mount(
            "tmpfs",
            PLACE,
            MountFlags::NOSUID | MountFlags::NODEV,
            "size=1m,mode=700",
        )?;
        Ok(Self(()))
    }
}

impl Drop for HostRoots {
    fn drop(&mut self) {
        let _ = unmount(PLACE, UnmountFlags::DETACH);
        // Another service may still use it.
        let _ = fs::remove_dir(PLACE);
    }
}

/// What the sandboxes of one nursery have below their own files, in the supervisor's place.
#[derive(Debug)]
pub struct Lowers {
    _roots: Arc<HostRoots>,
    /// By names that tell nothing of the host: mount options are readable inside.
    dir: PathBuf,
    /// Topmost first.
    mounts: Vec<PathBuf>,
}

impl Lowers {
    /// Attaches detached mounts, topmost first. `number` is the nursery's alone.
    pub fn show(roots: &Arc<HostRoots>, number: u32, trees: &[OwnedFd]) -> Result<Self, Error> {
        let dir = PathBuf::from(format!("{PLACE}/{number}"));
        fs::create_dir(&dir).map_err(Error::path("make", &dir))?;
        let mut lowers = Self {
            _roots: Arc::clone(roots),
            dir,
            mounts: Vec::new(),
        };
        for (n, tree) in trees.iter().enumerate() {
            let path = lowers.dir.join(format!("lower{n}"));
            fs::create_dir(&path).map_err(Error::path("make", &path))?;
            lowers.mounts.push(path.clone());
            attach(tree.as_fd(), path.to_str().expect("made of ASCII"))?;
        }
        Ok(lowers)
    }

    /// The stage (a sized tmpfs) and the merged root of a sandbox, as detached mounts.
    pub fn make(&self, spec: &SandboxSpec) -> Result<[OwnedFd; 2], Error> {
        let stage = self.dir.join(spec.user_id.to_string());
        fs::create_dir(&stage).map_err(Error::path("make", &stage))?;
        let lowers: Vec<_> = self.mounts.iter().filter_map(|p| p.to_str()).collect();
        let made = assemble(spec, &stage, &lowers.join(":"));
        // Detached clones keep what they show; the overlay keeps its layers.
        let _ = unmount(stage.join("m"), UnmountFlags::DETACH);
        let _ = unmount(&stage, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&stage);
        made
    }
}

impl Drop for Lowers {
    fn drop(&mut self) {
        for path in &self.mounts {
            let _ = unmount(path, UnmountFlags::DETACH);
            let _ = fs::remove_dir(path);
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

fn assemble(spec: &SandboxSpec, stage: &Path, lowers: &str) -> Result<[OwnedFd; 2], Error> {
    let path = stage.to_str().expect("made of ASCII");
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let size = format!(
        "size={},nr_inodes={},mode=755,uid={MIRROR_OWNER},gid={MIRROR_OWNER}",
        spec.disk_bytes, spec.inodes
    );
    mount("tmpfs", path, plain, &size)?;
    for (dir, mode) in stage_dirs(path) {
        fs::create_dir(&dir).map_err(Error::path("make", &dir))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode))
            .map_err(Error::path("set the mode of", &dir))?;
        chown(&dir, Some(MIRROR_OWNER), Some(MIRROR_OWNER)).map_err(Error::path("own", &dir))?;
    }
    // Features that follow xattrs of the upper stay off, as they are under userxattr.
    let data = format!(
        "lowerdir={lowers},upperdir={path}/u,workdir={path}/w,volatile,redirect_dir=off,\
         metacopy=off,index=off"
    );
    mount("overlay", &format!("{path}/m"), plain, &data)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, stage, flags).context("detach the stage")?;
    let merged = open_tree(CWD, stage.join("m"), flags).context("detach the merged root")?;
    Ok([tree, merged])
}
