//! Checking a mirror against its manifest.

use std::cmp::Ordering;
use std::fmt;
use std::path::Path;

use super::MIRROR_OWNER;
use super::error::Error;
use super::manifest::{self, Entry, Kind, Manifest, Scan, escape};
use super::store::Mirror;

/// How one entry differs from the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// In the manifest, not in the tree.
    Missing {
        /// The entry's path, control characters and non-UTF-8 bytes escaped.
        path: String,
    },
    /// In the tree, not in the manifest.
    Added {
        /// The entry's path, escaped likewise.
        path: String,
    },
    /// In both, and not the same.
    Changed {
        /// The entry's path, escaped likewise.
        path: String,
        /// Which property: `type`, `mode`, `content`, `target` or `owner`.
        what: &'static str,
        /// Its value in the manifest.
        expected: String,
        /// Its value in the tree.
        found: String,
    },
}

/// What [`Mirror::verify`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Entries in the tree.
    pub entries: usize,
    /// Bytes that were hashed.
    pub size_bytes: u64,
    /// Every difference, by path; empty for a mirror as it was built.
    pub differences: Vec<Difference>,
}

impl Report {
    /// True when tree and manifest are the same.
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(f, "/{path}: missing"),
            Self::Added { path } => write!(f, "/{path}: added"),
            Self::Changed {
                path,
                what,
                expected,
                found,
            } => write!(f, "/{path}: {what} is {found}, was {expected}"),
        }
    }
}

impl Mirror {
    /// Hashes the whole tree again and compares it with the manifest, and the manifest with the id.
    /// Takes a few seconds; `advance` hears the fraction done (0 to 1).
    ///
    /// # Errors
    /// [`Error::Damaged`] when the manifest is not the one that the id names, [`Error::Io`]
    /// for what cannot be read.
    pub fn verify(&self, advance: &mut dyn FnMut(f64)) -> Result<Report, Error> {
        self.verify_owned_by(MIRROR_OWNER, advance)
    }

    pub(super) fn verify_owned_by(
        &self,
        owner: u32,
        advance: &mut dyn FnMut(f64),
    ) -> Result<Report, Error> {
        verify_tree(&self.root, &self.manifest_path(), &self.id, owner, advance)
    }
}

/// Compares a tree with its manifest, which must be the one of that digest.
pub(super) fn verify_tree(
    root: &Path,
    manifest: &Path,
    digest: &str,
    owner: u32,
    advance: &mut dyn FnMut(f64),
) -> Result<Report, Error> {
    let path = manifest;
    let damaged = |reason: String| Error::Damaged {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    if manifest::id_of(&text) != digest {
        return Err(damaged("it is not the manifest that the id names".into()));
    }
    let expected = Manifest::parse(&text).map_err(damaged)?;
    let Scan { manifest, foreign } = Manifest::scan(root, owner, advance)?;
    let mut differences = compare(&expected.entries, &manifest.entries);
    differences.extend(
        foreign
            .into_iter()
            .map(|(path, found)| Difference::Changed {
                path: escape(&path),
                what: "owner",
                expected: format!("{owner}:{owner}"),
                found,
            }),
    );
    Ok(Report {
        entries: manifest.entries.len(),
        size_bytes: manifest.size_bytes(),
        differences,
    })
}

/// Merges two lists that are sorted by path.
fn compare(expected: &[Entry], found: &[Entry]) -> Vec<Difference> {
    let (mut left, mut right) = (expected.iter().peekable(), found.iter().peekable());
    let mut differences = Vec::new();
    loop {
        let order = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) => a.path.cmp(&b.path),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return differences,
        };
        let old = if order == Ordering::Greater {
            None
        } else {
            left.next()
        };
        let new = if order == Ordering::Less {
            None
        } else {
            right.next()
        };
        match (old, new) {
            (Some(old), Some(new)) => differences.extend(changed(old, new)),
            (Some(old), None) => differences.push(Difference::Missing {
                path: escape(&old.path),
            }),
            (None, Some(new)) => differences.push(Difference::Added {
                path: escape(&new.path),
            }),
            (None, None) => return differences,
        }
    }
}

fn changed(old: &Entry, new: &Entry) -> Vec<Difference> {
    let difference = |what, expected, found| Difference::Changed {
        path: escape(&old.path),
        what,
        expected,
        found,
    };
    let mut differences = Vec::new();
    if old.kind != new.kind {
        differences.push(match (&old.kind, &new.kind) {
            (Kind::File { digest: a, .. }, Kind::File { digest: b, .. }) => {
                difference("content", a.clone(), b.clone())
            }
            (Kind::Link { target: a }, Kind::Link { target: b }) => {
                difference("target", escape(a), escape(b))
            }
            (a, b) => difference("type", name(a).into(), name(b).into()),
        });
    }
    if old.mode != new.mode {
        differences.push(difference(
            "mode",
            format!("{:04o}", old.mode),
            format!("{:04o}", new.mode),
        ));
    }
    differences
}

fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Directory => "directory",
        Kind::File { .. } => "file",
        Kind::Link { .. } => "link",
        Kind::Whiteout => "removal",
        Kind::Special(kind) => kind,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::testing::{OWNER, small_store};
    use super::*;

    fn found(mirror: &Mirror) -> Vec<String> {
        let report = mirror.verify_owned_by(*OWNER, &mut |_| ()).unwrap();
        report.differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_untouched_mirror_is_clean() {
        let (store, mirror) = small_store();
        let report = mirror.verify_owned_by(*OWNER, &mut |_| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.entries, 5);
        assert_eq!(report.size_bytes, 11);
        drop(store);
    }

    #[test]
    fn every_kind_of_change_is_named() {
        let (store, mirror) = small_store();
        let root = &mirror.root;
        fs::write(root.join("etc/hosts"), "hostz").unwrap();
        fs::set_permissions(root.join("etc"), PermissionsExt::from_mode(0o777)).unwrap();
        fs::remove_file(root.join("link")).unwrap();
        symlink("elsewhere", root.join("link")).unwrap();
        fs::remove_file(root.join("etc/motd")).unwrap();
        fs::create_dir(root.join("etc/motd")).unwrap();
        fs::write(root.join("new"), "").unwrap();
        let found = found(&mirror);
        let has = |text: &str| found.iter().any(|line| line.starts_with(text));
        assert!(has("/etc/hosts: content is "), "{found:?}");
        assert!(has("/etc: mode is 0777, was 0755"), "{found:?}");
        assert!(has("/link: target is elsewhere, was etc"), "{found:?}");
        assert!(has("/etc/motd: type is directory, was file"), "{found:?}");
        assert!(has("/new: added"), "{found:?}");
        fs::remove_dir_all(root.join("etc")).unwrap();
        assert!(self::found(&mirror).contains(&"/etc/hosts: missing".to_owned()));
        drop(store);
    }

    #[test]
    fn another_owner_is_a_difference() {
        let (store, mirror) = small_store();
        let report = mirror.verify_owned_by(*OWNER + 1, &mut |_| ()).unwrap();
        assert_eq!(report.differences.len(), 5);
        assert!(report.differences[0].to_string().contains("owner is"));
        drop(store);
    }

    #[test]
    fn a_manifest_of_another_tree_is_refused() {
        let (store, mirror) = small_store();
        fs::write(mirror.manifest_path(), "d\t0755\t-\t-\t\n").unwrap();
        let error = mirror.verify_owned_by(*OWNER, &mut |_| ()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        drop(store);
    }

    #[test]
    fn a_socket_in_the_tree_is_a_difference() {
        let (store, mirror) = small_store();
        let path = mirror.root.join("etc/hosts");
        fs::remove_file(&path).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(path).unwrap();
        let found = found(&mirror);
        assert!(
            found.contains(&"/etc/hosts: type is socket, was file".to_owned()),
            "{found:?}"
        );
        drop((socket, store));
    }
}
