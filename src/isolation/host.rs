//! The supervisor's half: starts the nursery, asks it for zygotes and sandboxes, and talks to inits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::OpenTreeFlags;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::cgroup::{SandboxCgroup, ServiceCgroup};
use super::channel::{self, Channel, Packet};
use super::error::{Context, Error};
use super::host_root::{HostRoots, tmpfs_takes_user_xattrs};
use super::posture::Namespaces;
use super::spec::{
    BLOCK_IDS, Command, FileWork, FromNursery, MIRROR_OWNER, NurseryRequest, NurserySetup,
    NurseryVerb, Reply, SandboxSpec, ToInit,
};
use super::sys::{self, Fork, Image};

/// Longest that our own processes may take over a step of the set-up.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest that the copy of our program may take to be sealed, and what lies between two tries.
const SEAL_TIME: Duration = Duration::from_secs(5);
const SEAL_PAUSE: Duration = Duration::from_millis(10);
/// `MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV` (mount_setattr(2)).
const MIRROR_ATTRIBUTES: u64 = 0x1 | 0x2 | 0x4;
/// Blocks of ids that are tried; as many services may run on one host.
const MAX_BLOCKS: u32 = 256;

/// A nursery that was started, before tokio watches it.
#[derive(Debug)]
pub struct SpawnedNursery {
    socket: OwnedFd,
    pidfd: OwnedFd,
    ids: IdBlock,
    roots: Option<HostRoots>,
}

/// Starts the nursery from `program` (this binary), in its own cgroup, over the mirror at `mirror`.
/// May be called with other threads running.
pub fn spawn_nursery(
    program: &Path,
    mirror: &Path,
    cgroup: &ServiceCgroup,
) -> Result<SpawnedNursery, Error> {
    refuse_suid_dumpable()?;
    let ids = IdBlock::take()?;
    let roots = if tmpfs_takes_user_xattrs()? {
        None
    } else {
        Some(HostRoots::new(detached_mirror(mirror)?)?)
    };
    let image = Image::new(
        sealed_copy(program)?,
        vec![c"sandcell".into(), c"nursery".into()],
    );
    let mirror = detached_mirror(mirror)?;
    let (ours, theirs) = channel::pair().context("make a socket pair")?;
    let (waiting, go) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("make a pipe")?;
    let dir = cgroup.nursery_dir()?;
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC;
    match sys::fork_into(flags as u64, Some(dir.as_fd())) {
        Ok(Fork::Child) => sys::exec_in_child(&image, waiting.as_fd(), theirs.as_fd()),
        Err(e) => Err(Error::Unsupported(format!(
            "failed to create the outer namespaces: {e}; sandcell needs root, Linux 5.14 or later and \
             user namespaces (sysctl user.max_user_namespaces above 0)"
        ))),
        Ok(Fork::Parent { pid, pidfd }) => {
            drop(theirs);
            let map = format!(
                "0 {MIRROR_OWNER} 1\n1 {} {}\n",
                ids.first + 1,
                BLOCK_IDS - 1
            );
            for kind in ["uid_map", "gid_map"] {
                let path = format!("/proc/{pid}/{kind}");
                fs::write(&path, &map).map_err(Error::path("write", path))?;
            }
            rustix::io::write(&go, b"g").context("let the nursery go")?;
            channel::send_json(ours.as_fd(), &NurserySetup {}, &[mirror.as_fd()])
                .context("set the nursery up")?;
            let answer = channel::receive(ours.as_fd()).context("hear from the nursery")?;
            read_answer(answer, 0)?;
            Ok(SpawnedNursery {
                socket: ours,
                pidfd,
                ids,
                roots,
            })
        }
    }
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
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&to));
    let read_only = File::open(&path).context("reopen the program")?;
    Ok(read_only.into())
}

/// The mirror as a detached mount, read-only, without set-uid and devices.
fn detached_mirror(mirror: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree =
        rustix::mount::open_tree(rustix::fs::CWD, mirror, flags).map_err(|e| Error::Path {
            step: "clone the mount of",
            path: mirror.into(),
            source: e.into(),
        })?;
    sys::mount_setattr(tree.as_fd(), MIRROR_ATTRIBUTES).context("make the mirror read-only")?;
    Ok(tree)
}

/// Host ids that only this service maps. Held by an abstract socket, so the kernel frees the block
/// when the service dies, and no file is left behind.
#[derive(Debug)]
struct IdBlock {
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
}

/// The answer to request `id`; `None` for one to an earlier request that was given up.
fn read_answer(packet: Option<Packet>, id: u64) -> Result<Option<Option<OwnedFd>>, Error> {
    let packet = packet.ok_or_else(|| Error::Refused("the nursery died".into()))?;
    let answer: FromNursery = packet.decode().context("read the nursery's answer")?;
    match answer.error {
        _ if answer.id != id => Ok(None),
        None => Ok(Some(packet.fds.into_iter().next())),
        Some(error) => Err(Error::Refused(error)),
    }
}

/// The nursery, one request at a time.
#[derive(Debug)]
pub struct Nursery {
    channel: Mutex<Channel>,
    next_id: AtomicU64,
    process: Process,
    ids: IdBlock,
    roots: Option<HostRoots>,
}

impl Nursery {
    /// Must be called within a tokio runtime.
    pub fn attach(spawned: SpawnedNursery) -> Result<Self, Error> {
        Ok(Self {
            channel: Mutex::new(Channel::new(spawned.socket).context("watch the nursery")?),
            // 0 was the setup's.
            next_id: AtomicU64::new(1),
            process: Process::new(spawned.pidfd)?,
            ids: spawned.ids,
            roots: spawned.roots,
        })
    }

    /// Host id of the user of the sandbox with the given id inside.
    pub fn host_id(&self, user_id: u32) -> u32 {
        self.ids.first + user_id
    }

    /// Resolves when the nursery has died, and with it everything below.
    pub async fn died(&self) {
        self.process.exited().await;
        self.process.reap();
    }

    /// Kills the nursery and so everything below it.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Starts a zygote that speaks on `socket`.
    pub async fn start_zygote(
        &self,
        socket: OwnedFd,
        files: BTreeMap<String, String>,
        env: BTreeMap<String, String>,
    ) -> Result<Process, Error> {
        let pidfd = self
            .ask(NurseryVerb::Zygote { files, env }, &[socket.as_fd()])
            .await?;
        Process::new(pidfd)
    }

    /// Starts a sandbox in its cgroup; its init is still to be awaited ([`StartingInit::ready`]).
    pub async fn start_sandbox(
        &self,
        mut spec: SandboxSpec,
        cgroup: &SandboxCgroup,
    ) -> Result<StartingInit, Error> {
        let (ours, theirs) = channel::pair().context("make a socket pair")?;
        let dir = cgroup.leaf_dir("init")?;
        let joins = cgroup.v1_procs()?;
        let mounts = self
            .roots
            .as_ref()
            .map(|roots| roots.make(&spec))
            .transpose()?;
        spec.root_from_host = mounts.is_some();
        let mut fds = vec![theirs.as_fd(), dir.as_fd()];
        fds.extend(mounts.iter().flatten().map(AsFd::as_fd));
        fds.extend(joins.iter().map(AsFd::as_fd));
        let pidfd = self.ask(NurseryVerb::Sandbox(spec), &fds).await?;
        drop(theirs);
        Ok(StartingInit {
            channel: Channel::new(ours).context("watch init")?,
            process: Process::new(pidfd)?,
        })
    }

    /// May be given up at any point: ids keep a late answer from passing for the next one.
    async fn ask(&self, verb: NurseryVerb, fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, Error> {
        let channel = self.channel.lock().await;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let exchange = async {
            channel
                .send_json(&NurseryRequest { id, verb }, fds)
                .await
                .context("ask the nursery")?;
            loop {
                let packet = channel.receive().await.context("hear from the nursery")?;
                if let Some(pidfd) = read_answer(packet, id)? {
                    return Ok(pidfd);
                }
            }
        };
        timeout(SETUP_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(Error::Refused("the nursery does not answer".into())))?
            .ok_or_else(|| Error::Refused("the nursery sent no pidfd".into()))
    }
}

/// A process named by its pidfd: no pid that could be reused.
#[derive(Debug)]
pub struct Process {
    pidfd: AsyncFd<OwnedFd>,
    pid: i32,
}

impl Process {
    /// Takes over a pidfd.
    pub fn new(pidfd: OwnedFd) -> Result<Self, Error> {
        let pid = pid_of(pidfd.as_fd())?;
        Ok(Self {
            pidfd: sys::watch(pidfd).context("watch a process")?,
            pid,
        })
    }

    /// Its id in the supervisor's PID namespace. Valid while the process is not reaped.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// For passing on.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.get_ref().as_fd()
    }

    /// Resolves when it has exited (a pidfd polls readable then, pidfd_open(2)).
    pub async fn exited(&self) {
        // An error means that the runtime is going down.
        let _ = self
            .pidfd
            .readable()
            .await
            .map(|mut ready| ready.retain_ready());
    }

    /// Whether it has exited.
    pub fn has_exited(&self) -> bool {
        let pidfd = self.pidfd();
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Its wait status (wait(2)) if it has exited and nobody has reaped it: the last field but one of
    /// `/proc/<pid>/stat` (proc_pid_stat(5), Linux 3.5).
    pub fn unreaped_status(&self) -> Option<i32> {
        const AFTER_NAME: usize = 2;
        const EXIT_CODE: usize = 51;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let status = fields.get(EXIT_CODE - AFTER_NAME)?.parse().ok()?;
        // Whose id it was as long as it is not reaped.
        let same = pid_of(self.pidfd()).is_ok_and(|pid| pid == self.pid);
        (same && fields.first() == Some(&"Z")).then_some(status)
    }

    /// Reaps it when it is a child of ours that has exited.
    pub fn reap(&self) {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = waitid(WaitId::PidFd(self.pidfd()), options);
    }

    /// Sends SIGINT; a process that is gone is fine.
    pub fn interrupt(&self) {
        let _ = pidfd_send_signal(self.pidfd(), Signal::INT);
    }

    /// Sends SIGUSR1, to a process that was stopped too; one that is gone is fine.
    pub fn wake(&self) {
        let _ = pidfd_send_signal(self.pidfd(), Signal::CONT);
        let _ = pidfd_send_signal(self.pidfd(), Signal::USR1);
    }

    /// Sends SIGKILL; a process that is gone is fine.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(self.pidfd(), Signal::KILL);
    }
}

/// The `Pid:` line of a pidfd's fdinfo (proc_pid_fdinfo(5)).
fn pid_of(pidfd: BorrowedFd<'_>) -> Result<i32, Error> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let info = fs::read_to_string(&path).map_err(Error::path("read", path))?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:"))
        .and_then(|pid| pid.trim().parse().ok())
        .filter(|pid| *pid > 0)
        .ok_or_else(|| Error::Refused("a process died before it was looked at".into()))
}

/// Whether pidfds and what else is needed of them work here, for `doctor`.
pub fn probe_pidfd() -> Result<(), Error> {
    let me = rustix::process::getpid();
    let fd = pidfd_open(me, PidfdFlags::empty()).context("open a pidfd")?;
    pid_of(fd.as_fd()).map(|_| ())
}

/// An init that sets its sandbox up.
#[derive(Debug)]
pub struct StartingInit {
    channel: Channel,
    process: Process,
}

impl StartingInit {
    /// For the zygote, which may fork a kernel meanwhile.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// Waits until the sandbox is set up and init has locked itself down.
    pub async fn ready(&self) -> Result<(), Error> {
        let first = timeout(SETUP_TIMEOUT, self.channel.receive())
            .await
            .map_err(|_| Error::Refused("init does not answer".into()))?
            .context("hear from init")?
            .ok_or_else(|| Error::Refused("init died in its set-up".into()))?;
        match first.decode().context("read init's answer")? {
            Reply::Ok {} => Ok(()),
            Reply::Failed { detail, .. } => Err(Error::Refused(detail)),
            other => Err(Error::Refused(format!("init said {other:?}"))),
        }
    }

    /// Init, once it was ready.
    pub fn finish(self) -> Result<Init, Error> {
        let namespaces = Namespaces::of(self.process.pid())?;
        Ok(Init {
            channel: self.channel,
            process: self.process,
            namespaces,
        })
    }
}

/// A sandbox's init.
#[derive(Debug)]
pub struct Init {
    channel: Channel,
    process: Process,
    namespaces: Namespaces,
}

impl Init {
    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Those of the sandbox.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Starts a command in a cgroup; on the channel returned come [`Reply::Begun`] and
    /// [`Reply::Exited`]. `streams` are its standard ones, none for a command on a terminal.
    pub async fn command(
        &self,
        command: Command,
        cgroup: BorrowedFd<'_>,
        streams: &[BorrowedFd<'_>],
    ) -> Result<Channel, Error> {
        let fds = [&[cgroup], streams].concat();
        self.request(&ToInit::Command(command), &fds).await
    }

    /// Signals the process group of a command that has begun and of which [`Reply::Exited`] has not
    /// come; false for one that has ended meanwhile.
    pub async fn signal(&self, pid: i32, signal: i32) -> Result<bool, Error> {
        let reply = self.request(&ToInit::Signal { pid, signal }, &[]).await?;
        let answer = timeout(SETUP_TIMEOUT, reply.receive())
            .await
            .map_err(|_| Error::Refused("init does not answer".into()))?
            .context("hear from init")?;
        let answer = answer.map(|packet| packet.decode()).transpose();
        Ok(matches!(
            answer.context("read init's answer")?,
            Some(Reply::Ok {})
        ))
    }

    /// Watches a process that init has inherited; its end comes as [`Reply::Exited`] on the channel
    /// returned.
    pub async fn watch(&self, pid: i32) -> Result<Channel, Error> {
        self.request(&ToInit::Watch { pid }, &[]).await
    }

    /// Starts file work; answers come on the channel returned.
    pub async fn file(
        &self,
        work: FileWork,
        content: Option<BorrowedFd<'_>>,
    ) -> Result<Channel, Error> {
        self.request(&ToInit::File { work }, content.as_slice())
            .await
    }

    pub(super) async fn request(
        &self,
        request: &ToInit,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Channel, Error> {
        let (ours, theirs) = channel::pair().context("make a socket pair")?;
        let fds = [&[theirs.as_fd()], fds].concat();
        let sent = timeout(SETUP_TIMEOUT, self.channel.send_json(request, &fds));
        sent.await
            .map_err(|_| Error::Refused("init does not answer".into()))?
            .context("ask init")?;
        Channel::new(ours).context("watch a reply")
    }
}
