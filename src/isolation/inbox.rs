//! What nursery and init wait for: a request on their socket, or the end of a child.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

use super::channel::{self, Packet};
use super::error::{Context, Error};

/// See the module's text.
pub enum Event {
    /// The supervisor asks for something.
    Request(Packet),
    /// Children have ended and wait to be reaped.
    ChildrenEnded,
    /// The supervisor has closed its end.
    Closed,
}

/// A socket and a descriptor for SIGCHLD, which the calling thread blocks from then on.
pub struct Inbox {
    control: OwnedFd,
    children: SignalFd,
}

impl Inbox {
    /// Takes over the socket to the supervisor.
    pub fn new(control: OwnedFd) -> Result<Self, Error> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block().context("block SIGCHLD")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let children = SignalFd::with_flags(&mask, flags).context("watch children")?;
        Ok(Self { control, children })
    }

    /// The socket, for answers.
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Waits for the next of them; children come first.
    pub fn next(&self) -> Result<Event, Error> {
        loop {
            let mut watched = [
                PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.children.as_fd(), PollFlags::IN),
            ];
            match poll(&mut watched, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("wait for requests"),
            }
            let [asked, ended] = watched.map(|fd| !fd.revents().is_empty());
            if ended {
                while let Ok(Some(_)) = self.children.read_signal() {}
                return Ok(Event::ChildrenEnded);
            }
            if asked {
                let packet = channel::receive(self.control()).context("receive a request")?;
                return Ok(packet.map_or(Event::Closed, Event::Request));
            }
        }
    }
}
