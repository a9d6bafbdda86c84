//! The file system of a sandbox, as a list of operations that init carries out in order.
//!
//! All mounts are made on directories that no user code has ever touched: a fresh tmpfs, the
//! merged view of a pristine upper, and `/proc` and `/dev` mounted just before. Nothing is set up
//! in a root that was in use, so no link planted inside can redirect a mount.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::error::{Context, Error};
use super::grant;
use super::spec::{HOME, SandboxSpec, USER_ID};
use super::view;

/// Where the nursery keeps the mirror, in its own root.
pub const MIRROR: &str = "/mirror";
/// Likewise the layer above it, where the mirror has one.
pub const LAYER: &str = "/layer";
/// Where a sandbox is put together, an empty directory in the nursery's root.
pub const STAGE: &str = "/stage";
/// The merged root, before it becomes `/`.
pub const MERGED: &str = "/stage/m";
/// Where the files of [`view`] are made, an empty directory in the nursery's root. Nothing leads there once
/// the merged root is `/`.
pub const VIEW: &str = "/view";
/// Writable by the user: matplotlib looks for its font list here (`MPLCONFIGDIR`).
pub const MPL_CONFIG_DIR: &str = "/var/cache/sandcell/matplotlib";
/// Font list and settings that the mirror brings.
const MPL_PREBUILT: &str = "/opt/sandcell/matplotlib";

/// Device nodes that are bound in; every other device does not exist inside.
pub const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of `/proc` that tell of the host or of other sandboxes, hidden behind `/dev/null` (files)
/// or an empty directory. runc's list, and what names the host: its command line, disks, modules.
const MASKED: [&str; 23] = [
    "acpi",
    "asound",
    "bus",
    "cmdline",
    "config.gz",
    "diskstats",
    "driver",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "keys",
    "key-users",
    "latency_stats",
    "modules",
    "partitions",
    "sched_debug",
    "scsi",
    "sysrq-trigger",
    "timer_list",
];
/// Left readable but not writable.
const READ_ONLY: [&str; 1] = ["sys"];

/// One step of the plan. Paths are absolute in the nursery's root.
enum Op {
    /// Makes a directory.
    Dir { path: String, mode: u32 },
    /// Makes a directory of the user (or takes over one that the mirror has).
    UserDir { path: String, mode: u32 },
    /// Makes a symbolic link.
    Link { path: String, to: String },
    /// Mounts a new file system.
    Mount {
        kind: &'static str,
        path: String,
        flags: MountFlags,
        data: String,
    },
    /// Mounts the overlay.
    Overlay { path: String, data: String },
    /// Shows a file or directory a second time.
    Bind { from: String, path: String },
    /// Binds a device node.
    Device { name: &'static str, path: String },
    /// Hides a file or directory, where it exists.
    Mask { path: String },
    /// Makes a directory read-only, where it exists.
    ReadOnly { path: String },
    /// Shows a file or directory of [`view`].
    Show { name: &'static str, path: String },
}

const NO_SUID_DEV: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const PLAIN: MountFlags = NO_SUID_DEV.union(MountFlags::NOEXEC);

fn plan(spec: &SandboxSpec) -> Vec<Op> {
    let merged = |path: &str| format!("{MERGED}{path}");
    let mut ops = Vec::with_capacity(64);
    if !spec.root_from_host {
        ops.push(Op::Mount {
            kind: "tmpfs",
            path: STAGE.into(),
            flags: NO_SUID_DEV,
            data: format!(
                "size={},nr_inodes={},mode=755",
                spec.disk_bytes, spec.inodes
            ),
        });
        ops.extend(stage_dirs(STAGE).map(|(path, mode)| Op::Dir { path, mode }));
        // userxattr: the only xattrs that a user namespace may set. volatile: no syncs, the upper
        // dies with the sandbox. Without redirect_dir and metacopy (off under userxattr) no xattr
        // that user code could forge makes overlayfs follow anything (CVE-2023-0386's class).
        let lowers = lowers(spec.layered);
        let data =
            format!("lowerdir={lowers},upperdir={STAGE}/u,workdir={STAGE}/w,userxattr,volatile");
        ops.push(Op::Overlay {
            path: MERGED.into(),
            data,
        });
    }
    ops.push(Op::UserDir {
        path: merged(HOME),
        mode: 0o755,
    });
    ops.push(Op::UserDir {
        path: merged(MPL_CONFIG_DIR),
        mode: 0o755,
    });

    ops.push(Op::Mount {
        kind: "proc",
        path: merged("/proc"),
        flags: PLAIN,
        data: String::new(),
    });
    ops.push(Op::Mount {
        kind: "tmpfs",
        path: merged("/dev"),
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        data: format!("size=64k,nr_inodes={},mode=755", dev_inodes(spec)),
    });
    for name in DEVICES {
        ops.push(Op::Device {
            name,
            path: merged(&format!("/dev/{name}")),
        });
    }
    for (path, to) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
        ("/dev/ptmx", "pts/ptmx"),
    ] {
        ops.push(Op::Link {
            path: merged(path),
            to: to.into(),
        });
    }
    ops.push(Op::Dir {
        path: merged("/dev/pts"),
        mode: 0o755,
    });
    ops.push(Op::Mount {
        kind: "devpts",
        path: merged("/dev/pts"),
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        data: "newinstance,ptmxmode=0666,mode=620,max=64".into(),
    });
    ops.push(Op::Dir {
        path: merged("/dev/shm"),
        mode: 0o1777,
    });
    ops.push(Op::Bind {
        from: format!("{STAGE}/shm"),
        path: merged("/dev/shm"),
    });
    if !spec.ablation.no_masks {
        ops.extend(MASKED.map(|name| Op::Mask {
            path: merged(&format!("/proc/{name}")),
        }));
        ops.extend(READ_ONLY.map(|name| Op::ReadOnly {
            path: merged(&format!("/proc/{name}")),
        }));
    }
    ops.extend(view::PROC_FILES.map(|name| Op::Show {
        name,
        path: merged(&format!("/proc/{name}")),
    }));
    if spec.granted.is_none() {
        ops.push(Op::Show {
            name: "sys",
            path: merged("/sys"),
        });
    }
    if spec.ablation.no_mount_flags {
        for op in &mut ops {
            if let Op::Mount { flags, .. } = op {
                flags.remove(NO_SUID_DEV);
            }
        }
    }
    ops
}

/// Files of `/dev`: a place for each node that is given, and directories for them.
fn dev_inodes(spec: &SandboxSpec) -> usize {
    64 + 2 * spec.granted.as_ref().map_or(0, grant::Granted::nodes)
}

/// What is below a sandbox's own files, topmost first, as overlayfs takes it.
pub fn lowers(layered: bool) -> String {
    if layered {
        format!("{LAYER}:{MIRROR}")
    } else {
        MIRROR.to_owned()
    }
}

/// Directories of the upper file system: upper, work, merged and the shared memory directory,
/// which is bound to `/dev/shm` so that one size limit covers everything that is written.
pub fn stage_dirs(stage: &str) -> impl Iterator<Item = (String, u32)> + use<> {
    let stage = stage.to_owned();
    [("u", 0o755), ("w", 0o755), ("m", 0o755), ("shm", 0o1777)]
        .into_iter()
        .map(move |(name, mode)| (format!("{stage}/{name}"), mode))
}

/// Builds the sandbox's file system and makes it the root of the calling process, which is init,
/// alone in a new mount namespace. Gives the directory of the files of [`view`].
pub fn enter(spec: &SandboxSpec) -> Result<OwnedFd, Error> {
    let view = make_view(spec)?;
    for op in plan(spec) {
        op.carry_out()?;
    }
    link_font_lists().context("link matplotlib's font list")?;
    if let Some(granted) = &spec.granted {
        grant::give(granted)?;
        show_beside_grant()?;
    }
    pivot(MERGED)?;
    Ok(view)
}

/// Makes the files of [`view`], and covers them with a read-only mount of themselves, from which they are
/// shown: a mount takes over the flags of the one that it is bound from. Gives the directory below it.
fn make_view(spec: &SandboxSpec) -> Result<OwnedFd, Error> {
    mount("tmpfs", VIEW, PLAIN, view::OPTIONS)?;
    view::make(VIEW, &spec.visible)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let writable = rustix::fs::open(VIEW, flags, Mode::empty()).context(format!("open {VIEW}"))?;
    if spec.ablation.writable_view {
        view::give_to_user(VIEW, &spec.visible)?;
    } else {
        read_only(VIEW)?;
    }
    Ok(writable)
}

/// A driver's libraries read of the host's `/sys` which processors are near a GPU. What counts processors
/// and memory is the sandbox's own there too.
fn show_beside_grant() -> Result<(), Error> {
    let lists = view::CPU_LISTS.map(|name| format!("{}/{name}", view::CPU_DIRECTORY));
    for name in lists
        .iter()
        .map(String::as_str)
        .chain([view::CGROUP_DIRECTORY])
    {
        let path = format!("{MERGED}/{name}");
        if Path::new(&path).exists() {
            show(name, &path)?;
        }
    }
    Ok(())
}

/// Makes `root` the root of the calling process and drops the old one.
pub fn pivot(root: &str) -> Result<(), Error> {
    rustix::process::chdir(root).context("enter the new root")?;
    rustix::process::pivot_root(".", ".").context("pivot the root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).context("detach the old root")?;
    rustix::process::chdir("/").context("enter the root")
}

/// Keeps mounts of this namespace to this namespace.
pub fn make_private() -> Result<(), Error> {
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).context("make mounts private")
}

/// matplotlib wants its cache directory writable, so the prebuilt lists are linked into a
/// directory of the user's rather than pointed at.
fn link_font_lists() -> io::Result<()> {
    let Ok(lists) = fs::read_dir(format!("{MERGED}{MPL_PREBUILT}")) else {
        return Ok(());
    };
    for list in lists {
        let name = list?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("fontlist") {
            let path = format!("{MERGED}{MPL_CONFIG_DIR}/{name}");
            symlink(format!("{MPL_PREBUILT}/{name}"), path)?;
        }
    }
    Ok(())
}

impl Op {
    fn carry_out(self) -> Result<(), Error> {
        match self {
            Self::Dir { path, mode } => make_dir(&path, mode),
            Self::UserDir { path, mode } => {
                fs::create_dir_all(&path).context(format!("make {path}"))?;
                chown(&path, Some(USER_ID), Some(USER_ID)).context(format!("own {path}"))?;
                set_mode(&path, mode)
            }
            Self::Link { path, to } => symlink(to, &path).context(format!("link {path}")),
            Self::Mount {
                kind,
                path,
                flags,
                data,
            } => mount(kind, &path, flags, &data),
            Self::Overlay { path, data } => sys_mount::Mount::builder()
                .fstype("overlay")
                .flags(sys_mount::MountFlags::NOSUID | sys_mount::MountFlags::NODEV)
                .data(&data)
                .mount("sandbox", &path)
                .map(|_| ())
                .context("mount the overlay"),
            Self::Bind { from, path } => bind(&from, &path),
            Self::Device { name, path } => {
                make_file(&path, 0o666).context(format!("make {path}"))?;
                bind(&format!("/dev/{name}"), &path)
            }
            Self::Mask { path } => mask(&path),
            Self::ReadOnly { path } => read_only(&path),
            Self::Show { name, path } => show(name, &path),
        }
    }
}

fn make_dir(path: &str, mode: u32) -> Result<(), Error> {
    fs::DirBuilder::new()
        .mode(mode)
        .create(path)
        .context(format!("make {path}"))?;
    set_mode(path, mode)
}

/// Sets a mode whatever the umask was.
fn set_mode(path: &str, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .context(format!("set mode of {path}"))
}

/// Makes an empty file to mount something on.
pub fn make_file(path: &str, mode: u32) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map(|_| ())
}

/// Mounts a new file system of `kind`.
pub fn mount(kind: &str, path: &str, flags: MountFlags, data: &str) -> Result<(), Error> {
    let data = std::ffi::CString::new(data).expect("mount options hold no NUL");
    rustix::mount::mount("sandbox", path, kind, flags, Some(data.as_c_str()))
        .context(format!("mount {kind} on {path}"))
}

/// Shows `from` at `path` too.
pub fn bind(from: &str, path: &str) -> Result<(), Error> {
    rustix::mount::mount_bind(from, path).context(format!("bind {from} on {path}"))
}

/// Tried rather than looked at first: a file that is not there cannot be covered, and a directory not by a
/// file (mount(2), ENOENT and ENOTDIR).
fn mask(path: &str) -> Result<(), Error> {
    match rustix::mount::mount_bind("/dev/null", path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTDIR) => {
            let flags = PLAIN.union(MountFlags::RDONLY);
            mount("tmpfs", path, flags, "size=4k,nr_inodes=1,mode=555")
        }
        Err(e) => Err(e).context(format!("cover {path}")),
    }
}

fn read_only(path: &str) -> Result<(), Error> {
    if !Path::new(path).exists() {
        return Ok(());
    }
    bind(path, path)?;
    rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | PLAIN, c"")
        .context(format!("make {path} read-only"))
}

fn show(name: &str, path: &str) -> Result<(), Error> {
    bind(&format!("{VIEW}/{name}"), path)
}

/// Attaches a detached mount, made by the supervisor, at `path`.
pub fn attach(mount: std::os::fd::BorrowedFd<'_>, path: &str) -> Result<(), Error> {
    use rustix::mount::{MoveMountFlags, move_mount};
    move_mount(
        mount,
        "",
        rustix::fs::CWD,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .context(format!("attach a mount at {path}"))
}
