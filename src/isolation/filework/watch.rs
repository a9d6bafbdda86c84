//! Changes in a folder, by inotify(7), as they happen.
//!
//! The instance is made before the filters: user code may make none, because all instances and watches
//! of all sandboxes count against one limit of the host's root (`fs.inotify.max_user_instances`, of
//! which the user namespace of a sandbox has no share of its own).

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;

use super::{Refusal, descend, given, home, named_folder, open_dir, parts_of};
use crate::isolation::channel;
use crate::isolation::init::NO_WATCH;
use crate::isolation::spec::{Reply, TreeChange, TreeChangeKind};

/// Between the first event and the report: what belongs together is told together, and a file that is
/// written in many pieces is told once.
const GATHER: Duration = Duration::from_millis(20);
/// Bytes of events that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of a packet, as JSON: see [`super::list`].
const PACKET_BYTES: usize = 96 * 1024;
/// Entries of new directories that are told at once; of more it is told that some are missed.
const MAX_SCANNED: usize = 10_000;

/// What a directory tells of the names in it.
pub(super) const COME_OR_GONE: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);

/// Watches a directory. By descriptor: a path could be swapped for a link.
pub(super) fn add(instance: &OwnedFd, dir: &OwnedFd, flags: WatchFlags) -> Result<i32, Errno> {
    rustix::process::fchdir(dir)?;
    let flags = flags | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
    let added = inotify::add_watch(instance, ".", flags);
    // What somebody is in is not gone when it is removed, and its end would not be told.
    rustix::process::chdir("/")?;
    added
}

/// Answers [`Reply::Ok`] when it watches, then [`Reply::Changes`] until the other end is closed.
pub(super) fn watch(
    path: &[u8],
    recursive: bool,
    max_directories: usize,
    reply: BorrowedFd<'_>,
    instance: Option<OwnedFd>,
) -> Result<(), Refusal> {
    let instance = given(instance, "inotify instance")?;
    let folder = named_folder(path)?;
    let mut top: Vec<u8> = Vec::new();
    for part in parts_of(path)? {
        top.extend_from_slice(part.as_bytes());
        top.push(b'/');
    }
    let mut watching = Watching {
        instance,
        recursive,
        max_directories,
        directories: HashMap::new(),
        changes: Vec::new(),
        fresh: HashSet::new(),
        scanned: HashSet::new(),
        missed: false,
    };
    let root = watching.add(&folder).map_err(|e| match e {
        Errno::NOSPC => Refusal(NO_WATCH, "the host has no room for one more watch".into()),
        e => e.into(),
    })?;
    watching.directories.insert(root, top.clone());
    if recursive {
        watching.scan(folder, top, false, 0)?;
    } else {
        drop(folder);
    }
    channel::send_json(reply, &Reply::Ok {}, &[])?;
    loop {
        if !watching.wait(reply)? {
            return Ok(());
        }
        std::thread::sleep(GATHER);
        watching.gather()?;
        watching.tell(reply)?;
        if !watching.directories.contains_key(&root) {
            return Err(Refusal("not_found", "the folder is gone".into()));
        }
    }
}

struct Watching {
    instance: OwnedFd,
    recursive: bool,
    max_directories: usize,
    /// Paths by watch, each empty or with a slash at its end.
    directories: HashMap<i32, Vec<u8>>,
    changes: Vec<TreeChange>,
    /// Paths that were told as new or changed since the last report.
    fresh: HashSet<Vec<u8>>,
    /// Paths that a scan has told and inotify may tell again.
    scanned: HashSet<Vec<u8>>,
    missed: bool,
}

impl Watching {
    /// False when nobody listens any more.
    fn wait(&self, reply: BorrowedFd<'_>) -> Result<bool, Refusal> {
        let mut polled = [
            PollFd::new(&self.instance, PollFlags::IN),
            PollFd::from_borrowed_fd(reply, PollFlags::RDHUP),
        ];
        loop {
            match poll(&mut polled, None) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => {
                    let ended = PollFlags::HUP | PollFlags::RDHUP;
                    return Ok(!polled[1].revents().intersects(ended));
                }
            }
        }
    }

    fn add(&self, dir: &OwnedFd) -> Result<i32, Errno> {
        let flags =
            COME_OR_GONE | WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF;
        add(&self.instance, dir, flags)
    }

    /// Watches directories below one that is watched and, when `tell`, tells what is there: it came
    /// before the watch did.
    fn scan(
        &mut self,
        dir: OwnedFd,
        path: Vec<u8>,
        tell: bool,
        depth: usize,
    ) -> Result<(), Refusal> {
        let names: Vec<CString> = Dir::read_from(&dir)?
            .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()))
            .collect();
        for name in names {
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let full = [path.as_slice(), name.to_bytes()].concat();
            if tell {
                if self.scanned.len() >= MAX_SCANNED {
                    self.missed = true;
                    return Ok(());
                }
                self.scanned.insert(full.clone());
                self.push(TreeChangeKind::Created, full.clone(), None, is_directory);
            }
            if is_directory && depth < super::tree::MAX_DEPTH {
                self.follow(dir.as_fd(), &name, full, tell, depth)?;
            }
        }
        Ok(())
    }

    fn follow(
        &mut self,
        above: BorrowedFd<'_>,
        name: &CString,
        mut path: Vec<u8>,
        tell: bool,
        depth: usize,
    ) -> Result<(), Refusal> {
        if self.directories.len() >= self.max_directories {
            self.missed = true;
            return Ok(());
        }
        // Gone or replaced meanwhile: its end is told by the directory above.
        let Ok(dir) = open_dir(above, name) else {
            return Ok(());
        };
        match self.add(&dir) {
            Ok(watch) => {
                path.push(b'/');
                self.directories.insert(watch, path.clone());
                self.scan(dir, path, tell, depth + 1)
            }
            Err(Errno::NOSPC) => {
                self.missed = true;
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// Reads what has happened.
    fn gather(&mut self) -> Result<(), Refusal> {
        let told_before = std::mem::take(&mut self.scanned);
        self.fresh.extend(told_before.iter().cloned());
        let mut moved: Option<(u32, Vec<u8>, bool)> = None;
        for event in self.read()? {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.missed = true;
                continue;
            }
            if event.flags.contains(ReadFlags::IGNORED) {
                self.directories.remove(&event.watch);
                continue;
            }
            let arrived = event.flags.contains(ReadFlags::MOVED_TO);
            // The two halves of a rename come one after the other (inotify(7)).
            let from = match moved.take() {
                Some((cookie, from, _)) if arrived && cookie == event.cookie => Some(from),
                Some((_, from, was_directory)) => {
                    self.left(from, was_directory);
                    None
                }
                None => None,
            };
            let Some(dir) = self.directories.get(&event.watch) else {
                continue;
            };
            let Some(name) = event.name else { continue };
            let path = [dir.as_slice(), &name].concat();
            let is_directory = event.flags.contains(ReadFlags::ISDIR);
            if let Some(from) = from {
                self.renamed(from, path, is_directory);
                continue;
            }
            if event.flags.contains(ReadFlags::MOVED_FROM) {
                moved = Some((event.cookie, path, is_directory));
            } else if event
                .flags
                .intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO)
            {
                if !told_before.contains(&path) {
                    self.push(TreeChangeKind::Created, path.clone(), None, is_directory);
                }
                if is_directory && self.recursive {
                    self.enter(&path)?;
                }
            } else if event.flags.contains(ReadFlags::DELETE) {
                self.push(TreeChangeKind::Deleted, path, None, is_directory);
            } else {
                self.push(TreeChangeKind::Changed, path, None, is_directory);
            }
        }
        if let Some((_, from, was_directory)) = moved {
            self.left(from, was_directory);
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<Seen>, Refusal> {
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = inotify::Reader::new(&self.instance, &mut buffer);
        let mut seen = Vec::new();
        // As many as one buffer holds; the rest, if any, is the next report's.
        loop {
            match reader.next() {
                Ok(event) => seen.push(Seen {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()),
                }),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(seen),
                Err(e) => return Err(e.into()),
            }
            if reader.is_buffer_empty() && seen.len() >= READ_BYTES / 64 {
                return Ok(seen);
            }
        }
    }

    /// A directory that has come: it, what is in it and what is below are watched from now on.
    fn enter(&mut self, path: &[u8]) -> Result<(), Refusal> {
        let Ok(mut parts) = parts_of(path) else {
            return Ok(());
        };
        let Some(name) = parts.pop() else {
            return Ok(());
        };
        match descend(home()?, &parts, false) {
            Ok(above) => self.follow(above.as_fd(), &name, path.to_vec(), true, parts.len()),
            Err(_) => Ok(()),
        }
    }

    /// Watches follow the directory and not its name.
    fn renamed(&mut self, from: Vec<u8>, to: Vec<u8>, is_directory: bool) {
        if is_directory {
            let (old, new) = ([&from[..], b"/"].concat(), [&to[..], b"/"].concat());
            for path in self.directories.values_mut() {
                if let Some(rest) = path.strip_prefix(old.as_slice()) {
                    *path = [new.as_slice(), rest].concat();
                }
            }
        }
        self.push(TreeChangeKind::Renamed, to, Some(from), is_directory);
    }

    /// Moved to where nobody watches, which is an end as seen from here.
    fn left(&mut self, from: Vec<u8>, was_directory: bool) {
        if was_directory {
            let old = [&from[..], b"/"].concat();
            let gone = self.directories.iter().filter(|(_, p)| p.starts_with(&old));
            let gone: Vec<i32> = gone.map(|(watch, _)| *watch).collect();
            for watch in gone {
                let _ = inotify::remove_watch(&self.instance, watch);
                self.directories.remove(&watch);
            }
        }
        self.push(TreeChangeKind::Deleted, from, None, was_directory);
    }

    fn push(
        &mut self,
        kind: TreeChangeKind,
        path: Vec<u8>,
        from: Option<Vec<u8>>,
        is_directory: bool,
    ) {
        match kind {
            TreeChangeKind::Created => {
                self.fresh.insert(path.clone());
            }
            TreeChangeKind::Changed if !self.fresh.insert(path.clone()) => return,
            TreeChangeKind::Changed => {}
            TreeChangeKind::Deleted | TreeChangeKind::Renamed => {
                self.fresh.remove(&path);
            }
        }
        self.changes.push(TreeChange {
            kind,
            path,
            from,
            is_directory,
        });
    }

    /// Waits while the other end does not read: the kernel's queue then overflows, which is told.
    fn tell(&mut self, reply: BorrowedFd<'_>) -> Result<(), Refusal> {
        self.fresh.clear();
        let mut packet = Vec::new();
        let mut bytes = 0;
        for change in self.changes.drain(..) {
            let from = change.from.as_ref().map_or(0, Vec::len);
            let size = (change.path.len() + from) * 4 + 160;
            if bytes + size > PACKET_BYTES {
                let changes = std::mem::take(&mut packet);
                let message = Reply::Changes {
                    changes,
                    missed: false,
                };
                channel::send_json(reply, &message, &[])?;
                bytes = 0;
            }
            bytes += size;
            packet.push(change);
        }
        let missed = std::mem::take(&mut self.missed);
        if packet.is_empty() && !missed {
            return Ok(());
        }
        let message = Reply::Changes {
            changes: packet,
            missed,
        };
        Ok(channel::send_json(reply, &message, &[])?)
    }
}

struct Seen {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}
