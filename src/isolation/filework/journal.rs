//! What changes in the working directory, at a cost that depends on what changed and not on what is there.
//!
//! inotify(7) names the files that were touched; only those are looked at again. What it says of them
//! does not count: a file has changed when its inode, size or times differ from what they were.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, Dir, FileType, Stat, statat};
use rustix::io::Errno;

use super::tree::MAX_DEPTH;
use super::watch::{COME_OR_GONE, add};
use super::{MAX_PATH_BYTES, Refusal, descend, given, home, mappings, open_dir, parts_of};
use crate::isolation::channel;
use crate::isolation::spec::{FileDifference, FileKind, JournalLimits, Reply};

/// Bytes of events that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// Events that are read before an answer: whoever writes on meanwhile must not hold it up. The kernel's
/// queue has 16 384 by default (`fs.inotify.max_queued_events`).
const MAX_EVENTS: usize = 65_536;
/// Bytes of a packet, as JSON: see [`super::list`].
const PACKET_BYTES: usize = 96 * 1024;
/// The word when there is more than may be watched.
const TOO_MANY: &str = "too_many_files";

/// Answers [`Reply::Ok`] when it has seen everything, then each packet with [`Reply::Differences`] since
/// the last, until the other end is closed.
pub(super) fn keep(
    limits: JournalLimits,
    reply: BorrowedFd<'_>,
    instance: Option<OwnedFd>,
) -> Result<(), Refusal> {
    let mut journal = Journal {
        instance: given(instance, "inotify instance")?,
        limits,
        root: None,
        folders: HashMap::new(),
        files: 0,
        open: HashMap::new(),
        open_is_old: false,
        linked: HashSet::new(),
        new_links: HashSet::new(),
        noted: BTreeMap::new(),
    };
    journal.see_all()?;
    journal.noted.clear();
    channel::send_json(reply, &Reply::Ok {}, &[])?;
    while channel::receive(reply)?.is_some() {
        journal.look()?;
        journal.tell(reply)?;
    }
    Ok(())
}

/// Hidden names are caches and settings of tools, not a result of the code; as in
/// `rootfs/kernel/files.py`.
fn is_skipped(name: &[u8]) -> bool {
    name.starts_with(b".") || name == b"__pycache__"
}

/// Differs where a file was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    link: bool,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl State {
    fn of(stat: &Stat) -> Self {
        Self {
            link: FileType::from_raw_mode(stat.st_mode) == FileType::Symlink,
            inode: stat.st_ino,
            size: stat.st_size.max(0) as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }
}

/// A directory that is watched.
struct Folder {
    /// Empty for the working directory, else with a slash at its end.
    path: Vec<u8>,
    /// Watch of the one that it is in.
    above: Option<i32>,
    files: HashMap<Vec<u8>, State>,
    /// Watches by name.
    folders: HashMap<Vec<u8>, i32>,
}

/// Where something is: the watch of its directory, and its name.
type Place = (i32, Vec<u8>);

struct Journal {
    instance: OwnedFd,
    limits: JournalLimits,
    root: Option<i32>,
    /// By watch.
    folders: HashMap<i32, Folder>,
    files: usize,
    /// How often each is open, as far as is known: what is written through a mapping is not told before
    /// that has gone, and then as a close. (Two opens in a row may be told as one.)
    open: HashMap<Place, u32>,
    /// Some of that may have been lost.
    open_is_old: bool,
    /// Files with several names: what happens under one is not told under the others.
    linked: HashSet<Place>,
    /// Inodes of files that were found to have several names.
    new_links: HashSet<u64>,
    /// By path: how a file was at the last report, and how it is.
    noted: BTreeMap<Vec<u8>, (Option<State>, Option<State>)>,
}

impl Journal {
    /// Looks at everything, and watches it from now on.
    fn see_all(&mut self) -> Result<(), Refusal> {
        self.open.clear();
        self.linked.clear();
        if let Some(root) = self.root.take() {
            self.forget(root);
        }
        self.root = Some(self.enter(home()?, Vec::new(), None, 0)?);
        self.new_links.clear();
        self.open_is_old = false;
        self.see_mappings();
        Ok(())
    }

    /// Looks at what was touched.
    fn look(&mut self) -> Result<(), Refusal> {
        let mut touched: HashSet<Place> = HashSet::new();
        if !self.read(&mut touched)? {
            return self.see_all();
        }
        touched.extend(self.open.keys().chain(&self.linked).cloned());
        self.examine_all(touched)?;
        let others = self.other_names();
        self.examine_all(others)?;
        if std::mem::take(&mut self.open_is_old) {
            self.see_mappings();
        }
        Ok(())
    }

    /// Takes the files that somebody may write to through a mapping for open.
    fn see_mappings(&mut self) {
        for path in mappings::written() {
            if let Some(place) = self.place_of(&path) {
                self.open.entry(place).or_insert(1);
            }
        }
    }

    /// Where a path is that is known.
    fn place_of(&self, path: &[u8]) -> Option<Place> {
        let mut watch = self.root?;
        let mut parts = path.split(|b| *b == b'/').peekable();
        while let Some(part) = parts.next() {
            let folder = self.folders.get(&watch)?;
            if parts.peek().is_none() {
                return folder
                    .files
                    .contains_key(part)
                    .then(|| (watch, part.to_vec()));
            }
            watch = *folder.folders.get(part)?;
        }
        None
    }

    /// Names that were there of files that have got another: nothing was told of them.
    fn other_names(&mut self) -> HashSet<Place> {
        let inodes = std::mem::take(&mut self.new_links);
        let mut names = HashSet::new();
        if !inodes.is_empty() {
            for (watch, folder) in &self.folders {
                let same = folder
                    .files
                    .iter()
                    .filter(|(_, s)| inodes.contains(&s.inode));
                names.extend(same.map(|(name, _)| (*watch, name.clone())));
            }
        }
        names
    }

    fn examine_all(&mut self, places: HashSet<Place>) -> Result<(), Refusal> {
        // A directory before what is in it: where it has moved, all below is seen anew.
        let mut by_folder: BTreeMap<(Vec<u8>, i32), BTreeSet<Vec<u8>>> = BTreeMap::new();
        for (watch, name) in places {
            if let Some(folder) = self.folders.get(&watch) {
                let names = by_folder.entry((folder.path.clone(), watch));
                names.or_default().insert(name);
            }
        }
        for ((path, watch), names) in by_folder {
            // Moved since its events were read, or closed to the user: the next look hears of that.
            let Ok(parts) = parts_of(&path) else { continue };
            let Ok(dir) = descend(home()?, &parts, false) else {
                continue;
            };
            for name in names.into_iter().filter_map(|name| CString::new(name).ok()) {
                if self.folders.contains_key(&watch) {
                    self.examine(dir.as_fd(), watch, &name, parts.len())?;
                }
            }
        }
        Ok(())
    }

    /// Reads what has happened. False where the kernel could not keep all of it.
    fn read(&mut self, touched: &mut HashSet<Place>) -> Result<bool, Refusal> {
        let mut buffer = [MaybeUninit::uninit(); READ_BYTES];
        let mut reader = Reader::new(&self.instance, &mut buffer);
        let mut whole = true;
        let mut events = 0;
        // What was read from the kernel is gone there.
        while events < MAX_EVENTS || !reader.is_buffer_empty() {
            events += 1;
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e.into()),
            };
            let what = event.events();
            whole &= !what.contains(ReadFlags::QUEUE_OVERFLOW);
            let Some(name) = event.file_name().map(CStr::to_bytes) else {
                continue;
            };
            // From before it was forgotten.
            if !self.folders.contains_key(&event.wd()) {
                continue;
            }
            let place = (event.wd(), name.to_vec());
            let come_or_gone = what.bits() & COME_OR_GONE.bits() != 0;
            if what.contains(ReadFlags::ISDIR) {
                // What is in it tells the rest.
                if !is_skipped(name) && (come_or_gone || what.contains(ReadFlags::ATTRIB)) {
                    touched.insert(place);
                }
                continue;
            }
            if is_skipped(name) {
                // It may be one more name of a file that is not.
                if come_or_gone {
                    touched.insert(place);
                }
                continue;
            }
            if what.contains(ReadFlags::OPEN) {
                *self.open.entry(place).or_default() += 1;
                continue;
            }
            self.open_is_old |= what.contains(ReadFlags::MOVED_TO);
            if what.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE)
                && let Entry::Occupied(mut open) = self.open.entry(place.clone())
            {
                *open.get_mut() -= 1;
                if *open.get() == 0 {
                    open.remove();
                }
            }
            if !what.contains(ReadFlags::CLOSE_NOWRITE) {
                touched.insert(place);
            }
        }
        Ok(whole)
    }

    /// Watches a directory and sees what is in it. Gives its watch.
    fn enter(
        &mut self,
        dir: OwnedFd,
        path: Vec<u8>,
        above: Option<i32>,
        depth: usize,
    ) -> Result<i32, Refusal> {
        if self.folders.len() >= self.limits.directories {
            return Err(Refusal(
                TOO_MANY,
                "more directories than are watched".into(),
            ));
        }
        let mut watch = self.watch(&dir)?;
        if self.folders.contains_key(&watch) {
            // Moved: a watch is of the directory and not of its name.
            self.forget(watch);
            watch = self.watch(&dir)?;
        }
        let folder = Folder {
            path,
            above,
            files: HashMap::new(),
            folders: HashMap::new(),
        };
        self.folders.insert(watch, folder);
        // After the watch: what comes now is told.
        let names: Vec<CString> = Dir::read_from(&dir)?
            .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_owned()))
            .collect();
        for name in names {
            self.examine(dir.as_fd(), watch, &name, depth)?;
        }
        Ok(watch)
    }

    fn watch(&self, dir: &OwnedFd) -> Result<i32, Errno> {
        let flags = COME_OR_GONE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::OPEN
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CLOSE_NOWRITE;
        add(&self.instance, dir, flags)
    }

    /// Sees what has a name in a directory, and notes where that is another than before.
    fn examine(
        &mut self,
        dir: BorrowedFd<'_>,
        watch: i32,
        name: &CStr,
        depth: usize,
    ) -> Result<(), Refusal> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
        let told = matches!(kind, Some(FileType::RegularFile | FileType::Symlink));
        let file = stat.filter(|_| told);
        if is_skipped(name.to_bytes()) {
            let linked = file.filter(|stat| stat.st_nlink > 1);
            self.new_links.extend(linked.map(|stat| stat.st_ino));
            return Ok(());
        }
        self.put_file(watch, name.to_bytes(), file)?;
        if kind == Some(FileType::Directory) && depth < MAX_DEPTH {
            return self.follow(dir, watch, name, depth);
        }
        self.drop_folder(watch, name.to_bytes());
        Ok(())
    }

    fn put_file(&mut self, watch: i32, name: &[u8], file: Option<Stat>) -> Result<(), Refusal> {
        let place = (watch, name.to_vec());
        if file.is_some_and(|stat| stat.st_nlink > 1) {
            if self.linked.insert(place) {
                self.new_links.extend(file.map(|stat| stat.st_ino));
            }
        } else {
            self.linked.remove(&place);
            if file.is_none() {
                self.open.remove(&place);
            }
        }
        let Some(folder) = self.folders.get_mut(&watch) else {
            return Ok(());
        };
        if folder.path.len() + name.len() > MAX_PATH_BYTES {
            return Ok(());
        }
        let now = file.as_ref().map(State::of);
        let before = match now {
            Some(state) => folder.files.insert(name.to_vec(), state),
            None => folder.files.remove(name),
        };
        if before == now {
            return Ok(());
        }
        let path = [&folder.path, name].concat();
        self.files = self.files + usize::from(before.is_none()) - usize::from(now.is_none());
        self.note(path, before, now);
        if self.files > self.limits.files {
            return Err(Refusal(TOO_MANY, "more files than are watched".into()));
        }
        Ok(())
    }

    fn follow(
        &mut self,
        dir: BorrowedFd<'_>,
        above: i32,
        name: &CStr,
        depth: usize,
    ) -> Result<(), Refusal> {
        let Some(folder) = self.folders.get(&above) else {
            return Ok(());
        };
        let path = [folder.path.as_slice(), name.to_bytes(), b"/"].concat();
        let known = folder.folders.get(name.to_bytes()).copied();
        // None where it is gone or replaced meanwhile, which is told, where nobody could name what is in
        // it, and where it is closed to the user; one that can be read may still not be entered.
        let below = if path.len() < MAX_PATH_BYTES {
            open_dir(dir, name).ok()
        } else {
            None
        };
        let watch = match below.as_ref().map(|below| self.watch(below)) {
            None | Some(Err(Errno::ACCESS)) => None,
            Some(watch) => Some(watch?),
        };
        if watch.is_some() && watch == known {
            return Ok(());
        }
        self.drop_folder(above, name.to_bytes());
        let (Some(below), Some(_)) = (below, watch) else {
            return Ok(());
        };
        let watch = self.enter(below, path, Some(above), depth + 1)?;
        if let Some(folder) = self.folders.get_mut(&above) {
            folder.folders.insert(name.to_bytes().to_vec(), watch);
        }
        Ok(())
    }

    fn drop_folder(&mut self, above: i32, name: &[u8]) {
        let folder = self.folders.get(&above);
        if let Some(&watch) = folder.and_then(|folder| folder.folders.get(name)) {
            self.forget(watch);
        }
    }

    /// Watches a directory and what is in it no longer: it has gone, or been moved.
    fn forget(&mut self, watch: i32) {
        let Some(folder) = self.folders.remove(&watch) else {
            return;
        };
        // It has ended by itself where the directory was removed.
        let _ = inotify::remove_watch(&self.instance, watch);
        if let Some(above) = folder.above.and_then(|above| self.folders.get_mut(&above)) {
            above.folders.retain(|_, below| *below != watch);
        }
        self.files -= folder.files.len();
        self.open.retain(|(place, _), _| *place != watch);
        self.linked.retain(|(place, _)| *place != watch);
        self.open_is_old = true;
        for (name, state) in folder.files {
            let path = [folder.path.as_slice(), &name].concat();
            self.note(path, Some(state), None);
        }
        for below in folder.folders.into_values() {
            self.forget(below);
        }
    }

    fn note(&mut self, path: Vec<u8>, before: Option<State>, now: Option<State>) {
        self.noted.entry(path).or_insert((before, None)).1 = now;
    }

    /// Tells what was noted, sorted by path.
    fn tell(&mut self, reply: BorrowedFd<'_>) -> Result<(), Refusal> {
        let mut packet = Vec::new();
        let mut bytes = 0;
        let noted = std::mem::take(&mut self.noted).into_iter();
        let mut different = noted.filter(|(_, (before, now))| before != now).peekable();
        let mut left = self.limits.path_bytes;
        for _ in 0..self.limits.differences {
            let next = different.next_if(|(path, _)| path.len() <= left);
            let Some((path, (before, now))) = next else {
                break;
            };
            left -= path.len();
            // A byte is at most four characters of JSON (`255,`).
            let size = path.len() * 4 + 80;
            if bytes + size > PACKET_BYTES {
                let differences = std::mem::take(&mut packet);
                channel::send_json(
                    reply,
                    &Reply::Differences {
                        differences,
                        left_out: None,
                    },
                    &[],
                )?;
                bytes = 0;
            }
            bytes += size;
            packet.push(FileDifference {
                path,
                was_there: before.is_some(),
                size: now.map(|state| state.size),
                kind: match now.or(before) {
                    Some(State { link: true, .. }) => FileKind::Symlink,
                    _ => FileKind::File,
                },
            });
        }
        let last = Reply::Differences {
            differences: packet,
            left_out: Some(different.next().is_some()),
        };
        Ok(channel::send_json(reply, &last, &[])?)
    }
}
