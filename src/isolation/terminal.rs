//! Pseudo-terminals of a sandbox (pts(4)).
//!
//! Both sides are opened inside, by a child that already has the user's identity, in the instance of
//! devpts that only this sandbox mounts: the host's `/dev/pts` never sees them. The controlling side
//! is passed up. The supervisor reads, writes and resizes it, and never opens the device side, so no
//! terminal of a sandbox can become a process of the host's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::error::{Context, Error};
use super::spec::WindowSize;
use super::sys;

/// The step that fails when the sandbox has as many terminals as its devpts may have.
pub const OPEN: &str = "open a terminal";
/// Device number of every controlling side, `/dev/ptmx` (devices.txt of the kernel).
const CONTROLLER: (u32, u32) = (5, 2);

/// Both sides of a terminal.
pub struct Terminal {
    /// What the supervisor gets.
    pub controller: OwnedFd,
    /// What the program gets as its streams.
    pub device: OwnedFd,
}

/// Opens a terminal and makes it the controlling one of the calling process, which leads a session
/// without one.
pub fn open(size: WindowSize) -> Result<Terminal, Error> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = openpt(flags).context(OPEN)?;
    unlockpt(&controller).context("unlock the terminal")?;
    // By the controlling side rather than by name: no path to be raced for.
    let device = ioctl_tiocgptpeer(&controller, flags).context("open the terminal's device")?;
    resize(controller.as_fd(), size)?;
    rustix::process::ioctl_tiocsctty(&device).context("take the terminal")?;
    Ok(Terminal { controller, device })
}

/// Sets a terminal's size; its foreground processes get SIGWINCH.
pub fn resize(controller: BorrowedFd<'_>, size: WindowSize) -> Result<(), Error> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(controller, size).context("set the terminal's size")
}

/// Whether a descriptor that came from inside is what it should be: a controlling side.
pub fn is_controller(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == CONTROLLER
    })
}

/// Signals a terminal's foreground processes, as one of its keys does: SIGINT, SIGQUIT or SIGTSTP.
pub fn signal(controller: BorrowedFd<'_>, signal: i32) -> Result<(), Error> {
    sys::signal_foreground(controller, signal).context("signal a terminal's foreground")
}
