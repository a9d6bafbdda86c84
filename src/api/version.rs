//! Versions of a file, and requests that depend on them (RFC 9110, section 13).

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, header};

use crate::supervisor::OpenFile;

/// What tells one content of a file from another.
#[derive(Debug)]
pub(super) struct Version {
    /// Strong, as the header has it.
    pub(super) etag: String,
    /// `None` for times that a header cannot hold: user code sets any time it likes.
    pub(super) modified: Option<String>,
    modified_at: SystemTime,
}

/// What the conditions of a request ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The file.
    Send,
    /// Nothing: the client has this version (304).
    NotModified,
    /// Another version (412).
    Failed,
}

impl Version {
    pub(super) fn of(opened: &OpenFile) -> Self {
        // The time of the last change too, and the inode, which user code cannot set: an upload makes
        // another file, and `os.utime` does not hide a change.
        let identity = opened.file.metadata().map_or_else(
            |_| String::new(),
            |m| format!("{:x}-{:x}{:08x}-", m.ino(), m.ctime(), m.ctime_nsec()),
        );
        let since = opened.modified_at.duration_since(UNIX_EPOCH);
        let nanoseconds = since.unwrap_or_default().as_nanos();
        Self {
            etag: format!("\"{identity}{:x}-{nanoseconds:x}\"", opened.size),
            modified: http_date(opened.modified_at),
            modified_at: opened.modified_at,
        }
    }

    /// In the order of RFC 9110, section 13.2.2; what is malformed is ignored.
    pub(super) fn judge(&self, asked: &HeaderMap) -> Verdict {
        if asked.contains_key(header::IF_MATCH) {
            if !self.is_among(asked, &header::IF_MATCH, false) {
                return Verdict::Failed;
            }
        } else if self.modified_since(asked, &header::IF_UNMODIFIED_SINCE) == Some(true) {
            return Verdict::Failed;
        }
        let has_it = if asked.contains_key(header::IF_NONE_MATCH) {
            self.is_among(asked, &header::IF_NONE_MATCH, true)
        } else {
            self.modified_since(asked, &header::IF_MODIFIED_SINCE) == Some(false)
        };
        if has_it {
            Verdict::NotModified
        } else {
            Verdict::Send
        }
    }

    /// `If-Range`: a part is only of use to a client that has the rest of the same version.
    pub(super) fn range_applies(&self, asked: &HeaderMap) -> bool {
        let Some(condition) = asked.get(header::IF_RANGE) else {
            return true;
        };
        let is_date = self
            .modified
            .as_deref()
            .is_some_and(|date| condition == date);
        condition == self.etag.as_str() || is_date
    }

    /// Whether a list of entity tags has ours. A tag of ours holds no comma.
    fn is_among(&self, asked: &HeaderMap, name: &HeaderName, weakly: bool) -> bool {
        let values = asked.get_all(name).iter().filter_map(|v| v.to_str().ok());
        let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
        tags.any(|tag| {
            let tag = if weakly {
                tag.strip_prefix("W/").unwrap_or(tag)
            } else {
                tag
            };
            tag == "*" || tag == self.etag
        })
    }

    /// Whether the file is newer than a header says, to the second, which is what dates there hold.
    fn modified_since(&self, asked: &HeaderMap, name: &HeaderName) -> Option<bool> {
        let date = httpdate::parse_http_date(asked.get(name)?.to_str().ok()?).ok()?;
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs());
        self.modified.as_ref()?;
        Some(seconds(self.modified_at)? > seconds(date)?)
    }
}

fn http_date(time: SystemTime) -> Option<String> {
    let year_9999 = Duration::from_secs(253_370_764_800);
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    (since < year_9999).then(|| httpdate::fmt_http_date(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_judged_in_their_order() {
        let version = Version {
            etag: "\"a\"".to_owned(),
            modified: http_date(UNIX_EPOCH + Duration::from_secs(100)),
            modified_at: UNIX_EPOCH + Duration::from_millis(100_500),
        };
        let date = |seconds| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        for (headers, verdict) in [
            (vec![], Verdict::Send),
            (
                vec![("if-none-match", "\"a\"".to_owned())],
                Verdict::NotModified,
            ),
            (
                vec![("if-none-match", "\"b\", W/\"a\"".to_owned())],
                Verdict::NotModified,
            ),
            (
                vec![("if-none-match", "*".to_owned())],
                Verdict::NotModified,
            ),
            (vec![("if-none-match", "\"b\"".to_owned())], Verdict::Send),
            (vec![("if-modified-since", date(100))], Verdict::NotModified),
            (vec![("if-modified-since", date(99))], Verdict::Send),
            (
                vec![("if-modified-since", "yesterday".to_owned())],
                Verdict::Send,
            ),
            // The tag counts, where both are given.
            (
                vec![
                    ("if-none-match", "\"b\"".to_owned()),
                    ("if-modified-since", date(200)),
                ],
                Verdict::Send,
            ),
            (vec![("if-match", "\"a\"".to_owned())], Verdict::Send),
            (vec![("if-match", "W/\"a\"".to_owned())], Verdict::Failed),
            (vec![("if-match", "\"b\"".to_owned())], Verdict::Failed),
            (vec![("if-unmodified-since", date(100))], Verdict::Send),
            (vec![("if-unmodified-since", date(99))], Verdict::Failed),
        ] {
            let mut asked = HeaderMap::new();
            for (name, value) in &headers {
                asked.append(*name, value.parse().expect("a value"));
            }
            assert_eq!(version.judge(&asked), verdict, "{headers:?}");
        }
    }

    #[test]
    fn odd_times_have_no_header() {
        assert!(http_date(UNIX_EPOCH - Duration::from_secs(1)).is_none());
        assert!(http_date(UNIX_EPOCH + Duration::from_secs(1 << 40)).is_none());
        assert_eq!(
            http_date(UNIX_EPOCH).as_deref(),
            Some("Thu, 01 Jan 1970 00:00:00 GMT")
        );
    }
}
