//! `/etc/ld.so.cache`: what the loader knows, which tells of drivers in places of their own.
//!
//! The format is glibc's new one (`struct cache_file_new`, sysdeps/generic/dl-cache.h), alone or behind the
//! old one: a header of 48 bytes that begins with `glibc-ld.so.cache1.1` and the number of entries, entries
//! of 24 bytes, strings. An entry is `i32 flags, u32 key, u32 value, u32 osversion, u64 hwcap`; key and
//! value are offsets, from the header, of the soname and the path.

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// Largest cache that is read, bytes; big desktops have some hundred KiB.
pub(super) const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// Paths of the cached libraries whose soname begins with one of `names` and a dot.
pub(super) fn paths(cache: &[u8], names: &[&str]) -> Vec<String> {
    let Some(start) = cache.windows(MAGIC.len()).position(|w| w == MAGIC) else {
        return Vec::new();
    };
    let cache = &cache[start..];
    let count = number(cache, MAGIC.len()).unwrap_or(0) as usize;
    let entries = (0..count).map_while(|n| {
        let at = HEADER_BYTES + n.checked_mul(ENTRY_BYTES)?;
        Some((number(cache, at + 4)?, number(cache, at + 8)?))
    });
    let wanted = |soname: &str| {
        let begins = |name: &&str| {
            let rest = soname.strip_prefix(*name);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        names.iter().any(begins)
    };
    let mut paths: Vec<String> = entries
        .filter(|(key, _)| string(cache, *key).is_some_and(wanted))
        .filter_map(|(_, value)| string(cache, value).map(str::to_owned))
        .collect();
    paths.dedup();
    paths
}

fn number(cache: &[u8], at: usize) -> Option<u32> {
    let bytes = cache.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn string(cache: &[u8], at: u32) -> Option<&str> {
    let rest = cache.get(at as usize..)?;
    let end = rest.iter().take(4096).position(|b| *b == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A cache of these sonames and paths.
    pub fn cache(libraries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut entries = Vec::new();
        let first = HEADER_BYTES + ENTRY_BYTES * libraries.len();
        for (soname, path) in libraries {
            let mut offset = |text: &str| {
                let at = (first + strings.len()) as u32;
                strings.extend_from_slice(text.as_bytes());
                strings.push(0);
                at
            };
            let (key, value) = (offset(soname), offset(path));
            entries.extend_from_slice(&3u32.to_le_bytes());
            entries.extend_from_slice(&key.to_le_bytes());
            entries.extend_from_slice(&value.to_le_bytes());
            entries.extend_from_slice(&[0; 12]);
        }
        let mut cache = MAGIC.to_vec();
        cache.extend_from_slice(&(libraries.len() as u32).to_le_bytes());
        cache.resize(HEADER_BYTES, 0);
        [cache, entries, strings].concat()
    }

    #[test]
    fn libraries_are_found_by_their_soname() {
        let cache = cache(&[
            ("libcudart.so.12", "/opt/cuda/libcudart.so.12"),
            ("libcuda.so.1", "/opt/driver/libcuda.so.1"),
        ]);
        assert_eq!(paths(&cache, &["libcuda"]), ["/opt/driver/libcuda.so.1"]);
        let behind_the_old = [b"ld.so-1.7.0\0\0\0\0\0".as_slice(), &cache].concat();
        assert_eq!(
            paths(&behind_the_old, &["libcuda"]),
            ["/opt/driver/libcuda.so.1"]
        );
    }

    #[test]
    fn a_broken_cache_gives_what_can_be_read() {
        let whole = cache(&[("libcuda.so.1", "/opt/driver/libcuda.so.1")]);
        for end in 0..whole.len() {
            let _ = paths(&whole[..end], &["libcuda"]);
        }
        let mut many = whole.clone();
        many[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(paths(&many, &["libcuda"])[0], "/opt/driver/libcuda.so.1");
        let mut far = whole;
        far[HEADER_BYTES + 8..HEADER_BYTES + 12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(paths(&far, &["libcuda"]), Vec::<String>::new());
    }
}
