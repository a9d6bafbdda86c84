//! Starts nurseries, from a thread that lives as long as the service: the kernel signals a nursery's
//! death of its parent when the *thread* that forked it ends (PR_SET_PDEATHSIG(2const)).
//!
//! That thread has a mount namespace of its own, in which it shows a nursery's trees for the moment
//! of the fork. The nursery, in a user namespace of its own, inherits them with their flags locked
//! (mount_namespaces(7)): a mount that was passed to it as a descriptor its root could make writable
//! again, and so change the files of every sandbox, as it owns them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, OpenTreeFlags, UnmountFlags, open_tree, unmount};
use tokio::sync::oneshot;

use super::channel;
use super::error::{Context, Error};
use super::grant::{Grant, assemble};
use super::host::read_answer;
use super::host_root::{HostRoots, Lowers, tmpfs_takes_user_xattrs};
use super::nursery::ROOT;
use super::rootfs::{LAYER, MIRROR, attach, make_private, mount};
use super::spec::{BLOCK_IDS, MIRROR_OWNER, NurserySetup};
use super::sys::{self, Fork, Image};

/// Longest that the copy of our program may take to be sealed, and what lies between two tries.
const SEAL_TIME: Duration = Duration::from_secs(5);
const SEAL_PAUSE: Duration = Duration::from_millis(10);
/// `MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV` (mount_setattr(2)).
const MIRROR_ATTRIBUTES: u64 = 0x1 | 0x2 | 0x4;
/// Blocks of ids that are tried; as many nurseries may run on one host.
const MAX_BLOCKS: u32 = 256;

/// What the sandboxes of a nursery have below their own files.
#[derive(Debug, Clone)]
pub struct Lower {
    /// Root of the base.
    pub mirror: PathBuf,
    /// Root of the layer above it.
    pub layer: Option<PathBuf>,
}

/// Where a nursery lives.
#[derive(Debug)]
pub struct Home {
    /// A cgroup v2 directory.
    pub dir: OwnedFd,
    /// `cgroup.procs` of the v1 hierarchies that limit it.
    pub joins: Vec<OwnedFd>,
}

/// A nursery that was started, before tokio watches it.
#[derive(Debug)]
pub struct SpawnedNursery {
    pub(super) socket: OwnedFd,
    pub(super) pidfd: OwnedFd,
    pub(super) ids: IdBlock,
    pub(super) lower: Lower,
    roots: Option<Arc<HostRoots>>,
}

impl SpawnedNursery {
    /// Its trees in the supervisor's place for mounts, on hosts where that is needed.
    pub(super) fn show_lowers(&self) -> Result<Option<Lowers>, Error> {
        let Some(roots) = &self.roots else {
            return Ok(None);
        };
        let Lower { mirror, layer } = &self.lower;
        let trees: Vec<OwnedFd> = layer
            .iter()
            .chain([mirror])
            .map(|path| detached(path))
            .collect::<Result<_, _>>()?;
        Lowers::show(roots, self.ids.first, &trees).map(Some)
    }
}

enum Job {
    Nursery {
        lower: Lower,
        home: Home,
        done: oneshot::Sender<Result<SpawnedNursery, Error>>,
    },
    Grant {
        grant: Grant,
        done: oneshot::Sender<Result<OwnedFd, Error>>,
    },
}

/// The thread. Every nursery that it started dies with it, at the latest when the value is dropped.
#[derive(Debug)]
pub struct Spawner {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Spawner {
    /// Nurseries run `program` (this binary), as it is now.
    ///
    /// # Errors
    /// The host lacks a feature (named, with the mend).
    pub fn start(program: &Path) -> Result<Self, Error> {
        refuse_suid_dumpable()?;
        let image = Image::new(
            sealed_copy(program)?,
            vec![c"sandcell".into(), c"nursery".into()],
        );
        let roots = if tmpfs_takes_user_xattrs()? {
            None
        } else {
            Some(Arc::new(HostRoots::new()?))
        };
        let (jobs, waiting) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new()
            .name("nurseries".into())
            .spawn(move || {
                let place = own_mounts();
                let ready = || match &place {
                    Ok(()) => Ok(()),
                    Err(e) => Err(Error::Refused(e.to_string())),
                };
                // Whoever waits may have given up.
                for job in waiting {
                    match job {
                        Job::Nursery { lower, home, done } => {
                            let spawned =
                                ready().and_then(|()| spawn(&image, lower, &home, roots.as_ref()));
                            let _ = done.send(spawned);
                        }
                        Job::Grant { grant, done } => {
                            let _ = done.send(ready().and_then(|()| assemble(&grant, ROOT)));
                        }
                    }
                }
            })
            .context("start a thread")?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Starts a nursery; with a layer its standard streams lead nowhere, as code that clients name
    /// will run below it.
    pub fn spawn(
        &self,
        lower: Lower,
        home: Home,
    ) -> oneshot::Receiver<Result<SpawnedNursery, Error>> {
        let (done, spawned) = oneshot::channel();
        if let Some(jobs) = &self.jobs {
            // Whoever waits learns of a thread that is gone from the closed channel.
            let _ = jobs.send(Job::Nursery { lower, home, done });
        }
        spawned
    }

    /// Makes the tree of what a sandbox is given.
    pub async fn assemble(&self, grant: Grant) -> Result<OwnedFd, Error> {
        let (done, assembled) = oneshot::channel();
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Job::Grant { grant, done });
        }
        let gone = |_| Error::Refused("the thread of nurseries ended".into());
        assembled.await.map_err(gone)?
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A mount namespace of this thread's own.
fn own_mounts() -> Result<(), Error> {
    unshare(CloneFlags::CLONE_NEWNS).context("unshare the mount namespace")?;
    make_private()
}

/// The trees of a nursery at [`ROOT`], until the value is dropped.
struct Shown(());

impl Shown {
    fn new(lower: &Lower) -> Result<Self, Error> {
        // Before the place is covered: they may be there.
        let mirror = detached(&lower.mirror)?;
        let layer = lower.layer.as_deref().map(detached).transpose()?;
        let plain = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", ROOT, plain, "size=64k,mode=755")?;
        let shown = Self(());
        for (name, tree) in [(MIRROR, Some(mirror)), (LAYER, layer)] {
            if let Some(tree) = tree {
                let path = format!("{ROOT}{name}");
                fs::create_dir(&path).context(format!("make {path}"))?;
                attach(tree.as_fd(), &path)?;
            }
        }
        Ok(shown)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = unmount(ROOT, UnmountFlags::DETACH);
    }
}

fn spawn(
    image: &Image,
    lower: Lower,
    home: &Home,
    roots: Option<&Arc<HostRoots>>,
) -> Result<SpawnedNursery, Error> {
    let ids = IdBlock::take()?;
    let nowhere = match lower.layer {
        None => None,
        Some(_) => Some(
            File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .context("open /dev/null")?,
        ),
    };
    let shown = Shown::new(&lower)?;
    let (ours, theirs) = channel::pair().context("make a socket pair")?;
    let (waiting, go) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("make a pipe")?;
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC;
    match sys::fork_into(flags as u64, Some(home.dir.as_fd())) {
        Ok(Fork::Child) => {
            let streams = nowhere.as_ref().map(AsFd::as_fd);
            sys::exec_in_child(image, waiting.as_fd(), theirs.as_fd(), streams)
        }
        Err(e) => Err(Error::Unsupported(format!(
            "failed to create the outer namespaces: {e}; sandcell needs root, Linux 5.14 or later and \
             user namespaces (sysctl user.max_user_namespaces above 0)"
        ))),
        Ok(Fork::Parent { pid, pidfd }) => {
            drop((theirs, shown));
            let begun = begin(pid, &ids, home, &go)
                .and_then(|()| set_up(ours.as_fd(), lower.layer.is_some()));
            if let Err(e) = begun {
                end(pidfd.as_fd());
                return Err(e);
            }
            Ok(SpawnedNursery {
                socket: ours,
                pidfd,
                ids,
                lower,
                roots: roots.cloned(),
            })
        }
    }
}

/// Puts a nursery that waits into its cgroups, maps its ids and lets it go.
fn begin(pid: i32, ids: &IdBlock, home: &Home, go: &OwnedFd) -> Result<(), Error> {
    for procs in &home.joins {
        rustix::io::write(procs, pid.to_string().as_bytes())
            .context("put the nursery into its cgroups")?;
    }
    let map = format!(
        "0 {MIRROR_OWNER} 1\n1 {} {}\n",
        ids.first + 1,
        BLOCK_IDS - 1
    );
    for kind in ["uid_map", "gid_map"] {
        let path = format!("/proc/{pid}/{kind}");
        fs::write(&path, &map).map_err(Error::path("write", path))?;
    }
    rustix::io::write(go, b"g").context("let the nursery go")?;
    Ok(())
}

/// Kills and reaps a nursery that did not come to be.
fn end(nursery: BorrowedFd<'_>) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
    let _ = pidfd_send_signal(nursery, Signal::KILL);
    let _ = waitid(WaitId::PidFd(nursery), WaitIdOptions::EXITED);
}

fn set_up(nursery: BorrowedFd<'_>, layered: bool) -> Result<(), Error> {
    channel::send_json(nursery, &NurserySetup { layered }, &[]).context("set the nursery up")?;
    let answer = channel::receive(nursery).context("hear from the nursery")?;
    read_answer(answer, 0).map(drop)
}

/// With `fs.suid_dumpable` 1 a change of ids leaves a process dumpable (proc_sys_fs(5)): user code
/// could write to our helpers' memory in the moment before they are sealed.
pub fn refuse_suid_dumpable() -> Result<(), Error> {
    let path = "/proc/sys/fs/suid_dumpable";
    let value = fs::read_to_string(path).map_err(Error::path("read", path))?;
    if value.trim() == "1" {
        return Err(Error::Unsupported(
            "fs.suid_dumpable is 1, so processes that drop their identity could be traced; \
             run sysctl -w fs.suid_dumpable=0"
                .into(),
        ));
    }
    Ok(())
}

/// This binary as a sealed memfd: executable for unprivileged ids wherever the file lies, and
/// beyond the reach of anything that could overwrite it (CVE-2019-5736).
fn sealed_copy(program: &Path) -> Result<OwnedFd, Error> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let mut from = File::open(program).map_err(Error::path("open", program))?;
    let memfd = memfd_create("sandcell", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .context("create a memfd")?;
    let mut to = File::from(memfd);
    io::copy(&mut from, &mut to).context("copy the program")?;
    to.flush().context("copy the program")?;
    rustix::fs::fchmod(&to, rustix::fs::Mode::from_raw_mode(0o555))
        .context("make it executable")?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    let deadline = Instant::now() + SEAL_TIME;
    // EBUSY while another processor still has pages of the copy in hand.
    while let Err(e) = fcntl_add_seals(&to, seals) {
        if e != rustix::io::Errno::BUSY || Instant::now() > deadline {
            return Err(Error::step("seal the program")(e.into()));
        }
        std::thread::sleep(SEAL_PAUSE);
    }
    // A descriptor open for writing would make the exec fail with ETXTBSY.
    let path = format!("/proc/self/fd/{}", to.as_raw_fd());
    let read_only = File::open(&path).context("reopen the program")?;
    Ok(read_only.into())
}

/// A tree as a detached mount, read-only, without set-uid and devices.
fn detached(tree: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(rustix::fs::CWD, tree, flags).map_err(|e| Error::Path {
        step: "clone the mount of",
        path: tree.into(),
        source: e.into(),
    })?;
    sys::mount_setattr(mount.as_fd(), MIRROR_ATTRIBUTES).context("make the mirror read-only")?;
    Ok(mount)
}

/// Host ids that only this nursery maps. Held by an abstract socket, so the kernel frees the block
/// when the service dies, and no file is left behind.
#[derive(Debug)]
pub(super) struct IdBlock {
    first: u32,
    _held: UnixListener,
}

impl IdBlock {
    fn take() -> Result<Self, Error> {
        for k in 1..=MAX_BLOCKS {
            let name = SocketAddr::from_abstract_name(format!("sandcell/ids/{k}"))
                .context("name a block of ids")?;
            if let Ok(held) = UnixListener::bind_addr(&name) {
                return Ok(Self {
                    first: MIRROR_OWNER + k * BLOCK_IDS,
                    _held: held,
                });
            }
        }
        Err(Error::Unsupported(format!(
            "all {MAX_BLOCKS} blocks of host ids are taken by other sandcell services; stop one"
        )))
    }

    /// Its first id, which nobody has.
    pub(super) fn first(&self) -> u32 {
        self.first
    }
}
