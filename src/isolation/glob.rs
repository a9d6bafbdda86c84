//! Patterns of paths: `*` and `?` within a name, `**` over any number of directories, `[a-z]`,
//! `{a,b}`, `\` before what is meant itself. A leading dot is matched like any other character.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Bytes of a pattern. It becomes an automaton whose size and time are linear in it (no backtracking).
pub const MAX_PATTERN_BYTES: usize = 1024;

/// Compiles a pattern for whole relative paths, of any bytes.
///
/// # Errors
/// What is wrong with it, for people.
pub fn compile(pattern: &str) -> Result<GlobSet, String> {
    if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!("a pattern has 1 to {MAX_PATTERN_BYTES} bytes"));
    }
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|e| e.kind().to_string())?;
    // Not `compile_matcher`, which panics where the regular expression is too large.
    let set = GlobSetBuilder::new().add(glob).build();
    set.map_err(|e| e.kind().to_string())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, matched, others) in [
            (
                "*.csv",
                &["a.csv", ".csv"][..],
                &["a.csv.gz", "d/a.csv"][..],
            ),
            ("**/*.csv", &["a.csv", "d/a.csv", "d/e/a.csv"], &["a.txt"]),
            ("d/**", &["d/a", "d/e/f"], &["d", "e/d/a"]),
            ("?.p[xy]", &["a.py", "b.px"], &["ab.py", "a.pz", "/.py"]),
            ("{a,b/*}.txt", &["a.txt", "b/c.txt"], &["b.txt"]),
            (r"\*", &["*"], &["a"]),
        ] {
            let set = compile(pattern).expect("a pattern");
            for path in matched {
                assert!(set.is_match(path), "{pattern} {path}");
            }
            for path in others {
                assert!(!set.is_match(path), "{pattern} {path}");
            }
        }
        let any = compile("a*").expect("a pattern");
        assert!(any.is_match(OsStr::from_bytes(b"a\xff\n")));
    }

    #[test]
    fn hostile_patterns_are_refused_or_cheap() {
        for pattern in ["", "[", "{a", "a\\", &"x".repeat(1025)] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
        let begun = Instant::now();
        for pattern in [
            "*a".repeat(512),
            "{".repeat(512),
            "{a,".repeat(340),
            "[!b]".repeat(250),
        ] {
            if let Ok(set) = compile(&pattern) {
                assert!(!set.is_match("a".repeat(4000) + "c/b"));
            }
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
    }
}
