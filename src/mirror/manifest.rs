//! The manifest: one line for each entry of a tree, sorted by path. Its SHA-256 is the mirror's id.
//!
//! ```text
//! d<TAB>0755<TAB>-<TAB>-<TAB>usr/bin
//! f<TAB>0644<TAB>123<TAB><sha256><TAB>etc/hosts
//! l<TAB>-<TAB>-<TAB>usr/bin<TAB>bin
//! w<TAB>-<TAB>-<TAB>-<TAB>opt/venv/removed    (in a layer)
//! ```
//!
//! Times and owners are not in it: times carry no meaning (byte code is valid without them), and
//! every owner is [`MIRROR_OWNER`](super::MIRROR_OWNER), which the check looks at directly.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use sha2::{Digest, Sha256};

use super::error::Error;

/// Threads that hash; more only compete for the disk.
const MAX_THREADS: usize = 8;
const BUFFER_BYTES: usize = 256 * 1024;
/// Hexadecimal digits of a mirror's id: 128 bits.
pub(super) const ID_DIGITS: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    File {
        size_bytes: u64,
        digest: String,
    },
    Link {
        target: Vec<u8>,
    },
    /// In a layer: the base's entry of that path is no more.
    Whiteout,
    /// A device, pipe or socket: no mirror is built with one, so none is in a manifest as read.
    Special(&'static str),
}

/// One line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Relative to the root; the root itself is empty.
    pub(super) path: Vec<u8>,
    /// Permission bits; 0 for links, which have none.
    pub(super) mode: u32,
    pub(super) kind: Kind,
}

/// Entries sorted by path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Manifest {
    pub(super) entries: Vec<Entry>,
}

/// A tree as found: what its manifest says, and what no manifest holds.
pub(super) struct Scan {
    pub(super) manifest: Manifest,
    /// Paths whose owner is not the expected one, with `uid:gid`.
    pub(super) foreign: Vec<(Vec<u8>, String)>,
}

impl Manifest {
    /// Reads and hashes all of `root`, on several threads. `advance` hears the fraction done.
    ///
    /// # Errors
    /// What cannot be read.
    pub(super) fn scan(
        root: &Path,
        owner: u32,
        advance: &mut dyn FnMut(f64),
    ) -> Result<Scan, Error> {
        let mut found = Vec::new();
        walk(root, &mut Vec::new(), &mut found)?;
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let foreign = found
            .iter()
            .filter(|(_, meta)| meta.uid() != owner || meta.gid() != owner)
            .map(|(path, meta)| (path.clone(), format!("{}:{}", meta.uid(), meta.gid())))
            .collect();
        let entries = hash_all(root, &found, advance)?;
        let manifest = Self { entries };
        Ok(Scan { manifest, foreign })
    }

    /// The manifest as text.
    pub(super) fn render(&self) -> String {
        let mut text = String::with_capacity(self.entries.len() * 128);
        for entry in &self.entries {
            let path = escape(&entry.path);
            let mode = entry.mode;
            let written = match &entry.kind {
                Kind::Directory => writeln!(text, "d\t{mode:04o}\t-\t-\t{path}"),
                Kind::File { size_bytes, digest } => {
                    writeln!(text, "f\t{mode:04o}\t{size_bytes}\t{digest}\t{path}")
                }
                Kind::Link { target } => writeln!(text, "l\t-\t-\t{}\t{path}", escape(target)),
                Kind::Whiteout => writeln!(text, "w\t-\t-\t-\t{path}"),
                Kind::Special(kind) => writeln!(text, "s\t{mode:04o}\t-\t{kind}\t{path}"),
            };
            written.expect("writing to a string cannot fail");
        }
        text
    }

    /// Reads [`Manifest::render`]'s text; the error says which line is none.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let entries = text
            .lines()
            .enumerate()
            .map(|(index, line)| {
                parse_line(line).ok_or_else(|| format!("line {} is not an entry", index + 1))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// Bytes of all files.
    pub(super) fn size_bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| match entry.kind {
                Kind::File { size_bytes, .. } => size_bytes,
                Kind::Directory | Kind::Link { .. } | Kind::Whiteout | Kind::Special(_) => 0,
            })
            .sum()
    }
}

/// The id that a manifest's text gives its mirror.
pub(super) fn id_of(text: &str) -> String {
    let mut id = hex(&Sha256::digest(text));
    id.truncate(ID_DIGITS);
    id
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

/// A path for people and for the manifest: UTF-8 as it is, everything that could end a field or a
/// line, or that is not UTF-8, as `\xNN`.
pub(super) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                escape_bytes(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(c);
            }
        }
        escape_bytes(&mut text, chunk.invalid());
    }
    text
}

fn escape_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "\\x{byte:02x}").expect("writing to a string cannot fail");
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'\\' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let digits = tail.strip_prefix(b"x")?.get(..2)?;
        bytes.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &tail[3..];
    }
    Some(bytes)
}

fn parse_line(line: &str) -> Option<Entry> {
    let mut fields = line.split('\t');
    let (kind, mode, size, content, path) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    if fields.next().is_some() {
        return None;
    }
    let kind = match kind {
        "d" => Kind::Directory,
        "f" => Kind::File {
            size_bytes: size.parse().ok()?,
            digest: content.to_owned(),
        },
        "l" => Kind::Link {
            target: unescape(content)?,
        },
        "w" => Kind::Whiteout,
        _ => return None,
    };
    let mode = match kind {
        Kind::Link { .. } | Kind::Whiteout => 0,
        _ => u32::from_str_radix(mode, 8).ok()?,
    };
    let path = unescape(path)?;
    Some(Entry { path, mode, kind })
}

fn walk(
    root: &Path,
    relative: &mut Vec<u8>,
    found: &mut Vec<(Vec<u8>, Metadata)>,
) -> Result<(), Error> {
    let path = below(root, relative);
    let meta = fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
    let is_dir = meta.is_dir();
    found.push((relative.clone(), meta));
    if !is_dir {
        return Ok(());
    }
    for entry in fs::read_dir(&path).map_err(Error::io("list", &path))? {
        let entry = entry.map_err(Error::io("list", &path))?;
        let length = relative.len();
        if length > 0 {
            relative.push(b'/');
        }
        relative.extend_from_slice(entry.file_name().as_bytes());
        walk(root, relative, found)?;
        relative.truncate(length);
    }
    Ok(())
}

/// The path of an entry in the tree at `root`.
pub(super) fn below(root: &Path, relative: &[u8]) -> PathBuf {
    if relative.is_empty() {
        root.to_path_buf()
    } else {
        root.join(std::ffi::OsString::from_vec(relative.to_vec()))
    }
}

fn hash_all(
    root: &Path,
    found: &[(Vec<u8>, Metadata)],
    advance: &mut dyn FnMut(f64),
) -> Result<Vec<Entry>, Error> {
    const STEP: usize = 64;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS));
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel::<(usize, Result<Vec<Entry>, Error>)>();
    let mut parts = std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, send) = (&next, send.clone());
            scope.spawn(move || {
                let mut buffer = vec![0; BUFFER_BYTES];
                loop {
                    let start = next.fetch_add(STEP, Ordering::Relaxed);
                    if start >= found.len() {
                        return;
                    }
                    let chunk = &found[start..found.len().min(start + STEP)];
                    let part = chunk
                        .iter()
                        .map(|(path, meta)| entry(root, path, meta, &mut buffer))
                        .collect();
                    if send.send((start, part)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut parts = Vec::new();
        for (start, part) in receive {
            parts.push((start, part?));
            advance((parts.len() * STEP).min(found.len()) as f64 / found.len() as f64);
        }
        Ok(parts)
    })?;
    parts.sort_by_key(|(start, _)| *start);
    Ok(parts.into_iter().flat_map(|(_, part)| part).collect())
}

fn entry(root: &Path, path: &[u8], meta: &Metadata, buffer: &mut [u8]) -> Result<Entry, Error> {
    let full = below(root, path);
    let kind = if meta.is_dir() {
        Kind::Directory
    } else if meta.is_symlink() {
        let target = fs::read_link(&full).map_err(Error::io("read the link", &full))?;
        Kind::Link {
            target: target.into_os_string().into_vec(),
        }
    } else if meta.is_file() {
        Kind::File {
            size_bytes: meta.len(),
            digest: digest(&full, buffer)?,
        }
    } else if meta.file_type().is_char_device() && meta.rdev() == 0 {
        Kind::Whiteout
    } else {
        Kind::Special(match meta.file_type() {
            kind if kind.is_fifo() => "pipe",
            kind if kind.is_socket() => "socket",
            _ => "device",
        })
    };
    let mode = if matches!(kind, Kind::Link { .. } | Kind::Whiteout) {
        0
    } else {
        meta.mode() & 0o7777
    };
    let path = path.to_vec();
    Ok(Entry { path, mode, kind })
}

fn digest(path: &Path, buffer: &mut [u8]) -> Result<String, Error> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut hash = Sha256::new();
    loop {
        match file.read(buffer).map_err(Error::io("read", path))? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_survives_the_text() {
        let manifest = Manifest {
            entries: vec![
                Entry {
                    path: Vec::new(),
                    mode: 0o755,
                    kind: Kind::Directory,
                },
                Entry {
                    path: b"tab\there\nand\\ there \xff\xfe \xe4\xb8\xad".to_vec(),
                    mode: 0o1777,
                    kind: Kind::File {
                        size_bytes: 7,
                        digest: "ab".repeat(32),
                    },
                },
                Entry {
                    path: b"link".to_vec(),
                    mode: 0,
                    kind: Kind::Link {
                        target: b"a\tb".to_vec(),
                    },
                },
            ],
        };
        let text = manifest.render();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(Manifest::parse(&text), Ok(manifest));
    }

    #[test]
    fn a_line_that_is_no_entry_is_named() {
        let text = "d\t0755\t-\t-\t\nf\t0644\tmany\tx\tname\n";
        assert_eq!(
            Manifest::parse(text),
            Err("line 2 is not an entry".to_owned())
        );
        assert!(Manifest::parse("d\t0755\t-\t-\tx\\x9").is_err());
        assert!(Manifest::parse("d\t0755\t-\t-\tx\textra").is_err());
    }
}
