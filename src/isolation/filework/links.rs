//! Which symbolic links of an archive are kept.

/// Whether a link `depth` folders below an archive's top leads to something in the archive, whatever
/// other links that were judged so are on its way: it is relative, and `..` comes only at its
/// beginning, where it is the parent of a real folder, and no more often than there are such folders.
/// (A `..` after a name could be that of a link's target: `a -> b/..` with `b -> .` leads out.)
pub(super) fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.is_empty() || target[0] == b'/' || target.contains(&0) {
        return false;
    }
    let parts = target.split(|byte| *byte == b'/');
    let mut parts = parts.filter(|part| !matches!(*part, b"" | b".")).peekable();
    let mut up = 0;
    while parts.next_if_eq(&b"..".as_slice()).is_some() {
        up += 1;
    }
    up <= depth && parts.all(|part| part != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_could_lead_out_are_not_kept() {
        for (target, depth) in [
            ("a", 0),
            ("./a/b", 0),
            ("../a", 1),
            ("../../a/b", 2),
            ("..", 1),
        ] {
            assert!(stays_inside(target.as_bytes(), depth), "{target}");
        }
        for (target, depth) in [
            ("", 0),
            ("/etc", 3),
            ("..", 0),
            ("../a", 0),
            ("../../a", 1),
            ("a/..", 5),
            ("./a/../b", 5),
            ("a\0b", 0),
        ] {
            assert!(!stays_inside(target.as_bytes(), depth), "{target}");
        }
    }
}
