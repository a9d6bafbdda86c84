//! What sandboxes may ask for: paths, and the names and digests in them. Everything here reads hostile
//! text; what is not certainly right is not found.

use std::fmt::{self, Write as _};

use super::error::Error;

/// Bytes of a project's name. The longest on the public index have 80.
pub(super) const MAX_NAME_BYTES: usize = 128;
/// Bytes of a file's name: what file systems take.
pub(super) const MAX_FILE_NAME_BYTES: usize = 255;
/// What follows a file's name in the path of its metadata (PEP 658).
pub(super) const METADATA: &str = ".metadata";

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest(pub(super) [u8; 32]);

impl Digest {
    /// From 64 hexadecimal digits of either case.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16);
            *byte = u8::try_from(nibble(pair[0])? * 16 + nibble(pair[1])?).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A request's path, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The list of all projects.
    Root,
    /// A project's page; the name is normalized.
    Project(String),
    /// The same page under its right path.
    Moved(String),
    /// A file of a project, or its metadata.
    File {
        /// Normalized.
        project: String,
        digest: Digest,
        name: String,
        metadata: bool,
    },
}

impl Route {
    /// Reads the path of a request.
    pub(super) fn parse(path: &str) -> Result<Self, Error> {
        if path == "/simple" {
            return Ok(Self::Moved("/simple/".to_owned()));
        }
        if let Some(rest) = path.strip_prefix("/simple/") {
            return Self::simple(rest);
        }
        path.strip_prefix("/files/")
            .and_then(Self::file)
            .ok_or_else(|| Error::NotFound("the package index has no such path".to_owned()))
    }

    fn simple(rest: &str) -> Result<Self, Error> {
        if rest.is_empty() {
            return Ok(Self::Root);
        }
        let name = rest.strip_suffix('/').unwrap_or(rest);
        if !is_project_name(name) {
            return Err(Error::NotFound(format!(
                "not a name of a package: letters, digits, `.`, `_` and `-`, at most {MAX_NAME_BYTES}"
            )));
        }
        let normalized = normalize(name);
        if name == normalized && rest.ends_with('/') {
            Ok(Self::Project(normalized))
        } else {
            Ok(Self::Moved(format!("/simple/{normalized}/")))
        }
    }

    fn file(rest: &str) -> Option<Self> {
        let mut parts = rest.split('/');
        let (project, digest, name) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || !is_project_name(project) || normalize(project) != project {
            return None;
        }
        let name = decode_file_name(name);
        let (name, metadata) = match name.strip_suffix(METADATA) {
            Some(name) => (name.to_owned(), true),
            None => (name, false),
        };
        if !is_file_name(&name) {
            return None;
        }
        Some(Self::File {
            project: project.to_owned(),
            digest: Digest::parse(digest)?,
            name,
            metadata,
        })
    }
}

/// pip quotes `+` (of local versions) and `!` (of epochs) in links. Nothing else that may stand in a
/// file's name needs quoting, so nothing else is decoded and what is left of `%` is no file's name.
fn decode_file_name(name: &str) -> String {
    name.replace("%2B", "+")
        .replace("%2b", "+")
        .replace("%21", "!")
}

/// The grammar of PEP 508: letters, digits and `.`, `_`, `-` between them.
pub fn is_project_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    bytes.len() <= MAX_NAME_BYTES
        && first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
}

/// PEP 503: lower case, and one `-` for every run of `.`, `_`, `-`.
pub fn normalize(name: &str) -> String {
    let mut normalized = String::with_capacity(name.len());
    for c in name.chars() {
        if !matches!(c, '.' | '_' | '-') {
            normalized.push(c.to_ascii_lowercase());
        } else if !normalized.ends_with('-') {
            normalized.push('-');
        }
    }
    normalized
}

/// Names of wheels (PEP 427) and source archives: no separator, no quoting, not hidden, and never one
/// that reads as another file's metadata.
pub(super) fn is_file_name(name: &str) -> bool {
    name.len() + METADATA.len() <= MAX_FILE_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-+!".contains(&byte))
        && !name.ends_with(METADATA)
}

/// The path of a file inside.
pub(super) fn file_path(project: &str, digest: &Digest, name: &str) -> String {
    let mut path = String::with_capacity(project.len() + name.len() + 80);
    write!(path, "/files/{project}/{digest}/{name}").expect("writing to a string cannot fail");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff";

    #[test]
    fn the_paths_that_pip_and_uv_ask_for_are_understood() {
        assert_eq!(Route::parse("/simple/").unwrap(), Route::Root);
        assert_eq!(
            Route::parse("/simple/rich/").unwrap(),
            Route::Project("rich".into())
        );
        for (asked, right) in [
            ("/simple", "/simple/"),
            ("/simple/rich", "/simple/rich/"),
            ("/simple/Zope.Interface/", "/simple/zope-interface/"),
            ("/simple/a_-.b/", "/simple/a-b/"),
        ] {
            assert_eq!(Route::parse(asked).unwrap(), Route::Moved(right.into()));
        }
        let file = |name: &str, metadata| Route::File {
            project: "torch".into(),
            digest: Digest::parse(HEX).unwrap(),
            name: name.into(),
            metadata,
        };
        for (asked, name, metadata) in [
            (
                "torch-2.0+cpu-py3-none-any.whl",
                "torch-2.0+cpu-py3-none-any.whl",
                false,
            ),
            ("torch-2.0%2Bcpu.tar.gz", "torch-2.0+cpu.tar.gz", false),
            ("torch-1%212.0.tar.gz.metadata", "torch-1!2.0.tar.gz", true),
        ] {
            let path = format!("/files/torch/{HEX}/{asked}");
            assert_eq!(Route::parse(&path).unwrap(), file(name, metadata));
        }
    }

    #[test]
    fn everything_else_is_not_found() {
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for path in [
            "/",
            "",
            "*",
            "/simple//",
            "/simple/../",
            "/simple/..",
            "/simple/a/b/",
            "/simple/-a/",
            "/simple/a-/",
            "/simple/a%2e%2e/",
            "/simple/a\u{e9}/",
            "/simple/a b/",
            "/SIMPLE/a/",
            &format!("/simple/{long}/"),
            "/files/",
            &format!("/files/{HEX}/a"),
            &format!("/files/a/{HEX}/"),
            &format!("/files/a/{HEX}/.."),
            &format!("/files/a/{HEX}/.metadata"),
            &format!("/files/a/{HEX}/a/b"),
            &format!("/files/a/{HEX}/%2e%2e%2fa"),
            &format!("/files/A/{HEX}/a.whl"),
            &format!("/files/a/{}/a.whl", &HEX[1..]),
            &format!("/files/a/g{}/a.whl", &HEX[1..]),
            &format!("/files/a/{HEX}/a.whl?x"),
            &format!("/files/a/{HEX}/a.metadata.metadata"),
            &format!("/files/a/{HEX}/a%252B"),
            &format!("/files/../{HEX}/a"),
        ] {
            assert!(
                matches!(Route::parse(path), Err(Error::NotFound(_))),
                "{path}: {:?}",
                Route::parse(path)
            );
        }
    }
}
