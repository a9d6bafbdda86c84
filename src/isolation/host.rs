//! The supervisor's half: starts the nursery, asks it for zygotes and sandboxes, and talks to inits.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::cgroup::SandboxCgroup;
use super::channel::{self, Channel, Packet};
use super::error::{Context, Error};
use super::host_root::Lowers;
use super::init::PORT_IN_USE;
use super::posture::Namespaces;
use super::spawner::{IdBlock, SpawnedNursery};
use super::spec::{
    Command, FileWork, FromNursery, NurseryRequest, NurseryVerb, Reply, SandboxSpec, ToInit,
};
use super::sys;
use super::view::View;

/// Longest that our own processes may take over a step of the set-up.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(20);

/// The answer to request `id`; `None` for one to an earlier request that was given up.
pub(super) fn read_answer(
    packet: Option<Packet>,
    id: u64,
) -> Result<Option<Option<OwnedFd>>, Error> {
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
    lowers: Option<Lowers>,
    layered: bool,
}

impl Nursery {
    /// Must be called within a tokio runtime.
    pub fn attach(spawned: SpawnedNursery) -> Result<Self, Error> {
        let lowers = spawned.show_lowers()?;
        Ok(Self {
            channel: Mutex::new(Channel::new(spawned.socket).context("watch the nursery")?),
            // 0 was the setup's.
            next_id: AtomicU64::new(1),
            process: Process::new(spawned.pidfd)?,
            lowers,
            ids: spawned.ids,
            layered: spawned.lower.layer.is_some(),
        })
    }

    /// Host id of the user of the sandbox with the given id inside.
    pub fn host_id(&self, user_id: u32) -> u32 {
        self.ids.first() + user_id
    }

    /// Whether it has died, and with it everything below.
    pub fn has_died(&self) -> bool {
        self.process.has_exited()
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
        filtered: bool,
    ) -> Result<Process, Error> {
        let verb = NurseryVerb::Zygote { env, filtered };
        // Too long for a packet.
        let sources = memory_file(&files).context("pack the zygote's sources")?;
        let fds = [socket.as_fd(), sources.as_fd()];
        let pidfd = self.ask(verb, &fds).await?;
        Process::new(pidfd)
    }

    /// Starts a sandbox in its cgroup, with the tree of what `spec` says is granted; its init is still to be awaited ([`StartingInit::ready`]).
    pub async fn start_sandbox(
        &self,
        mut spec: SandboxSpec,
        granted: Option<BorrowedFd<'_>>,
        cgroup: &SandboxCgroup,
    ) -> Result<StartingInit, Error> {
        let (ours, theirs) = channel::pair().context("make a socket pair")?;
        let dir = cgroup.leaf_dir("init")?;
        let joins = cgroup.v1_procs()?;
        let mounts = self
            .lowers
            .as_ref()
            .map(|lowers| lowers.make(&spec))
            .transpose()?;
        spec.root_from_host = mounts.is_some();
        spec.layered = self.layered;
        let mut fds = vec![theirs.as_fd(), dir.as_fd()];
        fds.extend(mounts.iter().flatten().map(AsFd::as_fd));
        fds.extend(granted);
        fds.extend(joins.iter().map(AsFd::as_fd));
        let pidfd = self.ask(NurseryVerb::Sandbox(spec), &fds).await?;
        drop(theirs);
        let channel = Channel::new(ours).context("watch init")?;
        match Process::new(pidfd) {
            Ok(process) => Ok(StartingInit { channel, process }),
            // It may have ended already, and then it has said why.
            Err(unseen) => Err(set_up(&channel).await.err().unwrap_or(unseen)),
        }
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
    pub async fn ready(&self) -> Result<View, Error> {
        set_up(&self.channel).await
    }

    /// Init, once it was ready and gave `view`.
    pub fn finish(self, view: View) -> Result<Init, Error> {
        let namespaces = Namespaces::of(self.process.pid())?;
        Ok(Init {
            channel: self.channel,
            process: self.process,
            namespaces,
            view,
        })
    }
}

/// How an init says that its set-up went.
async fn set_up(init: &Channel) -> Result<View, Error> {
    let first = hear(init).await?;
    let first = first.ok_or_else(|| Error::Refused("init died in its set-up".into()))?;
    match first.decode().context("read init's answer")? {
        Reply::Ok {} => {
            let directory = first.fds.into_iter().next();
            let directory = directory.ok_or_else(|| Error::Refused("init sent no view".into()));
            directory.map(View::new)
        }
        Reply::Failed { detail, .. } => Err(Error::Refused(detail)),
        other => Err(Error::Refused(format!("init said {other:?}"))),
    }
}

/// What an init says next, `None` where it is gone.
async fn hear(init: &Channel) -> Result<Option<Packet>, Error> {
    timeout(SETUP_TIMEOUT, init.receive())
        .await
        .map_err(|_| Error::Refused("init does not answer".into()))?
        .context("hear from init")
}

/// A sandbox's init.
#[derive(Debug)]
pub struct Init {
    channel: Channel,
    process: Process,
    namespaces: Namespaces,
    view: View,
}

impl Init {
    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// What programs of the sandbox read of its limits.
    pub fn view(&self) -> &View {
        &self.view
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
        let answer = hear(&reply).await?;
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

    /// The socket that listens on the proxy's port inside.
    ///
    /// # Errors
    /// `None` when user code has that port.
    pub async fn listen(&self) -> Result<Option<OwnedFd>, Error> {
        let reply = self.request(&ToInit::Listen {}, &[]).await?;
        let answer = hear(&reply).await?;
        let answer = answer.ok_or_else(|| Error::Refused("init died".into()))?;
        match answer.decode().context("read init's answer")? {
            Reply::Ok {} => Ok(answer.fds.into_iter().next()),
            Reply::Failed { code, .. } if code == PORT_IN_USE => Ok(None),
            other => Err(Error::Refused(format!("init said {other:?}"))),
        }
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

/// A memory file that holds `value` as JSON, to be read from its beginning.
fn memory_file(value: &impl Serialize) -> io::Result<OwnedFd> {
    let memory = memfd_create("sandcell", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    serde_json::to_writer(&mut file, value)?;
    file.rewind()?;
    Ok(file.into())
}
