//! The only file that may say `unsafe`: system calls that no crate wraps soundly for our use.
//! Each function is safe to call; each block states why it is sound.

#![expect(
    unsafe_code,
    reason = "this file is where the crate's unsafe code lives"
)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// clone3(2), Linux 5.7; libc's constant has the wrong type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What `clone3` returned, on either side.
pub enum Fork {
    /// In the child.
    Child,
    /// In the parent: the child's id in the parent's PID namespace, and its pidfd (CLOEXEC).
    Parent { pid: i32, pidfd: OwnedFd },
}

/// `struct clone_args` (clone3(2), Linux 5.7: with `cgroup`).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks with `flags` (namespaces only), into `cgroup` (a cgroup v2 directory) where given.
///
/// The child is a copy of the calling *thread* alone. Where the caller has other threads (tests,
/// the supervisor once tokio runs) the child may only make system calls on memory prepared before:
/// [`exec_in_child`] does just that. Single-threaded callers (nursery, init) may go on as they like.
pub fn fork_into(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    const ALLOWED: u64 = (libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWCGROUP) as u64;
    assert_eq!(flags & !ALLOWED, 0, "namespace flags only");
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` is a valid clone_args of the size passed and outlives the call. Neither
    // CLONE_VM nor CLONE_SETTLS nor a stack is set, so the child runs on a copy of this memory.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        // SAFETY: the kernel has just stored a new descriptor there, and nobody else owns it.
        pid => Ok(Fork::Parent {
            pid: pid as i32,
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

/// A program image and its arguments, prepared so that [`exec_in_child`] need not allocate.
pub struct Image {
    file: OwnedFd,
    /// Keeps what `pointers` point to.
    _argv: Vec<CString>,
    pointers: Vec<usize>,
}

impl Image {
    /// `file` is executed with `argv` and an empty environment.
    pub fn new(file: OwnedFd, argv: Vec<CString>) -> Self {
        let pointers = argv
            .iter()
            .map(|a| a.as_ptr() as usize)
            .chain(std::iter::once(0))
            .collect();
        Self {
            file,
            _argv: argv,
            pointers,
        }
    }
}

/// Child half of the nursery's start, safe in the fork of a threaded process: waits for one byte on
/// `go` (the id maps are written), becomes root of the new user namespace, keeps `control` as
/// descriptor 3 and the standard streams (all of them `streams` where given), marks the rest
/// close-on-exec, and executes the image.
/// Exits with 126 when anything fails; the parent sees that as end of file on its socket.
pub fn exec_in_child(
    image: &Image,
    go: BorrowedFd<'_>,
    control: BorrowedFd<'_>,
    streams: Option<BorrowedFd<'_>>,
) -> ! {
    let environment: [usize; 1] = [0];
    // SAFETY: only async-signal-safe system calls on memory that was prepared before the fork:
    // `pointers` is a null-terminated array of pointers into `argv`, which `image` keeps alive.
    unsafe {
        let mut byte = 0u8;
        if libc::read(go.as_raw_fd(), (&raw mut byte).cast(), 1) != 1
            || libc::syscall(libc::SYS_setgroups, 0, 0) != 0
            || libc::syscall(libc::SYS_setresgid, 0, 0, 0) != 0
            || libc::syscall(libc::SYS_setresuid, 0, 0, 0) != 0
        {
            libc::_exit(126);
        }
        // Order matters: `control` may itself be 3, and the image's descriptor must stay clear of it.
        let image_fd = libc::fcntl(image.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 10);
        let control = libc::fcntl(control.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 10);
        if let Some(streams) = streams {
            for fd in 0..3 {
                if libc::dup2(streams.as_raw_fd(), fd) != fd {
                    libc::_exit(126);
                }
            }
        }
        if image_fd < 0
            || control < 0
            || libc::syscall(
                libc::SYS_close_range,
                3,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            ) != 0
            || libc::dup2(control, 3) != 3
        {
            libc::_exit(126);
        }
        libc::syscall(
            libc::SYS_execveat,
            image_fd,
            c"".as_ptr(),
            image.pointers.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
        libc::_exit(126)
    }
}

/// Takes over a descriptor that a parent left open for us across exec; call once, at start.
pub fn inherited_fd(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on a number is harmless whatever it names.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open (just checked), and the hidden verbs call this first thing, when nothing
    // in the process can own it yet.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Executes `program` in place of this process; only returns when that fails.
pub fn exec(program: &CStr, argv: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter()
            .map(|s| s.as_ptr())
            .chain(std::iter::once(std::ptr::null()))
            .collect()
    };
    let (argv, environment) = (pointers(argv), pointers(environment));
    // SAFETY: null-terminated arrays of pointers to C strings that live until the call returns.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process at once: no destructor, no buffer flush (a forked child's are its parent's).
pub fn exit_now(code: i32) -> ! {
    // SAFETY: never returns and touches no memory.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from `first` up (close_range(2), Linux 5.9). For forked children that
/// own none of the `OwnedFd`s of their parent: they must leave through [`exit_now`] or exec.
pub fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: callers are forked children which use none of the closed descriptors afterwards.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes the descriptors from `first` up to and without `end`, as [`close_from`] does.
pub fn close_below(first: RawFd, end: RawFd) -> io::Result<()> {
    // SAFETY: callers are forked children which use none of the closed descriptors afterwards.
    match unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks every descriptor from `first` up close-on-exec (close_range(2), Linux 5.11).
pub fn close_range_cloexec(first: RawFd) -> io::Result<()> {
    // SAFETY: sets a flag; no descriptor changes hands.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Duplicates `fd` to exactly `target`, without close-on-exec.
pub fn place_fd(fd: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: dup2 on a valid source; callers (forked children) hold no owner of `target`.
    match unsafe { libc::dup2(fd.as_raw_fd(), target) } {
        -1 => Err(io::Error::last_os_error()),
        _ if fd.as_raw_fd() == target => {
            // SAFETY: as above; dup2 onto itself leaves close-on-exec as it was.
            match unsafe { libc::fcntl(target, libc::F_SETFD, 0) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// `struct mount_attr` (mount_setattr(2), Linux 5.12).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets `MOUNT_ATTR_*` flags on a mount (recursively) named by a descriptor from `open_tree`.
pub fn mount_setattr(tree: BorrowedFd<'_>, attr_set: u64) -> io::Result<()> {
    let attr = MountAttr {
        attr_set,
        ..MountAttr::default()
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: `attr` is a valid mount_attr of the size passed; the path is an empty C string.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Brings the loopback interface of the current network namespace up (netdevice(7)).
pub fn loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid value of that plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which is what it is given.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ignores a signal, or puts its default action back.
pub fn ignore_signal(signal: libc::c_int, ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither action is a function, so no handler can run on our behalf.
    unsafe { libc::signal(signal, action) };
}

/// Signals the foreground process group of the terminal that `controller` controls (`TIOCSIG`): the
/// kernel takes SIGINT, SIGQUIT and SIGTSTP, those of the terminal's keys.
pub fn signal_foreground(controller: BorrowedFd<'_>, signal: libc::c_int) -> io::Result<()> {
    // _IOW('T', 0x36, int), which libc has no name for.
    const TIOCSIG: libc::Ioctl = 0x4004_5436;
    // SAFETY: this request takes the number itself, so the kernel touches no memory of ours.
    match unsafe { libc::ioctl(controller.as_raw_fd(), TIOCSIG, signal) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Registers a descriptor with tokio's reactor.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch_for(fd, Interest::READABLE | Interest::WRITABLE)
}

/// Likewise, for some events only: whoever waits for no others is not woken up by them.
pub fn watch_for(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one descriptor, which stays open until it is dropped, and the
    // AsyncFd that owns it is deregistered before that.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
