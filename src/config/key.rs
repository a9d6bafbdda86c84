//! Keys of `[server] api_keys`: a plain string, or a table with a name and limits.
//!
//! A key is a secret: it is in no message and no debug output, not even in that of the TOML parser,
//! which likes to quote what it does not understand.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Longest name, characters.
const MAX_NAME_CHARS: usize = 64;
/// Longest key, bytes: it has to fit into a header.
const MAX_KEY_BYTES: usize = 1024;
/// Most that `executions_per_minute` may be.
const MAX_EXECUTIONS_PER_MINUTE: u32 = 1_000_000;

/// One who may use the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Whose it is: sandboxes belong to this name; letters, digits, `.`, `_` and `-`, at most 64. Where
    /// none is given it is `key-1`, `key-2`, … by the place in the list.
    pub name: Option<String>,
    /// What clients send: printable ASCII without spaces, at most 1024 bytes.
    pub key: Option<Secret>,
    /// A file with the key instead; relative to the configuration's. A line break at its end is no part
    /// of the key.
    pub key_file: Option<PathBuf>,
    /// Live sandboxes of this key, 1 or more; default is only the service's limit.
    pub max_sandboxes: Option<usize>,
    /// Executions, commands and background processes that this key may start in a minute, 1 to
    /// 1 000 000, as many at once; default is no limit.
    pub executions_per_minute: Option<u32>,
}

impl ApiKey {
    /// A plain key, as a string in the list is.
    pub fn plain(key: &str) -> Self {
        Self {
            name: None,
            key: Some(Secret(key.to_owned())),
            key_file: None,
            max_sandboxes: None,
            executions_per_minute: None,
        }
    }

    /// Its name at this place of the list, which begins at 0.
    pub fn name_at(&self, place: usize) -> String {
        let numbered = || format!("key-{}", place + 1);
        self.name.clone().unwrap_or_else(numbered)
    }

    /// The key; empty where its file has not been read.
    pub fn secret(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.0)
    }

    /// SHA-256 of the key.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.secret().as_bytes()).into()
    }
}

/// As what a configuration is shown: by what it is called.
impl Serialize for ApiKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name.as_deref().unwrap_or("(not shown)"))
    }
}

/// Text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

/// Reads the files of keys that have one.
///
/// # Errors
/// Names the entry and the file.
pub(super) fn read_files(keys: &mut [ApiKey], beside: &Path) -> Result<(), String> {
    for (place, key) in keys.iter_mut().enumerate() {
        let Some(file) = &key.key_file else {
            continue;
        };
        let of = || format!("[server] api_keys: {}", key.name_at(place));
        if key.key.is_some() {
            return Err(format!("{} has both key and key_file; give one", of()));
        }
        let path = beside.join(file);
        let text = fs::read_to_string(&path)
            .map_err(|e| format!("{}: failed to read {}: {e}", of(), path.display()))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        key.key = Some(Secret(text.strip_suffix('\r').unwrap_or(text).to_owned()));
    }
    Ok(())
}

/// Refuses keys that protect nothing or cannot be told apart.
///
/// # Errors
/// Names the entry, and never shows the key.
pub fn check(keys: &[ApiKey]) -> Result<(), String> {
    let mut names = HashSet::new();
    let mut digests = HashSet::new();
    for (place, key) in keys.iter().enumerate() {
        let name = key.name_at(place);
        let wrong = |what: &str| Err(format!("[server] api_keys: {name} {what}"));
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || !name.chars().all(plain) {
            return Err(format!(
                "[server] api_keys: the name of key {} must be 1 to {MAX_NAME_CHARS} letters, digits, \
                 '.', '_' and '-'",
                place + 1
            ));
        }
        let secret = key.secret();
        if secret.is_empty() {
            return wrong("has no key or an empty one; give key or key_file");
        }
        if secret.len() > MAX_KEY_BYTES {
            return wrong(&format!("has a key of more than {MAX_KEY_BYTES} bytes"));
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong("has a key with characters that a header cannot carry");
        }
        if key.max_sandboxes == Some(0) {
            return wrong("has max_sandboxes = 0; it must be 1 or more");
        }
        if let Some(most) = key.executions_per_minute
            && !(1..=MAX_EXECUTIONS_PER_MINUTE).contains(&most)
        {
            return wrong(&format!(
                "has executions_per_minute = {most}; it must be 1 to {MAX_EXECUTIONS_PER_MINUTE}"
            ));
        }
        if !digests.insert(key.digest()) {
            return wrong("has the same key as another entry");
        }
        if !names.insert(name.clone()) {
            return wrong("is the name of two keys");
        }
    }
    Ok(())
}

// -- from TOML

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: Option<String>,
    key: Option<Secret>,
    key_file: Option<PathBuf>,
    max_sandboxes: Option<usize>,
    executions_per_minute: Option<u32>,
}

impl<'de> Deserialize<'de> for ApiKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;

        impl<'de> Visitor<'de> for Entry {
            type Value = ApiKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key, or a table with name and key or key_file")
            }

            fn visit_str<E: de::Error>(self, key: &str) -> Result<ApiKey, E> {
                Ok(ApiKey::plain(key))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ApiKey, M::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(ApiKey {
                    name: table.name,
                    key: table.key,
                    key_file: table.key_file,
                    max_sandboxes: table.max_sandboxes,
                    executions_per_minute: table.executions_per_minute,
                })
            }
        }

        deserializer.deserialize_any(Entry)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)
            .map(Self)
            .map_err(|_| de::Error::custom("a key must be a string"))
    }
}

/// The list, of which a string in its place is not quoted back.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ApiKey>, D::Error> {
    struct List;

    impl<'de> Visitor<'de> for List {
        type Value = Vec<ApiKey>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of keys")
        }

        fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
            Err(E::custom("api_keys must be a list of keys: [\"…\"]"))
        }

        fn visit_seq<S: de::SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
            let mut keys = Vec::new();
            while let Some(key) = seq.next_element()? {
                keys.push(key);
            }
            Ok(keys)
        }
    }

    deserializer.deserialize_any(List)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const SECRET: &str = "s3cr3t-that-nobody-sees";

    fn read(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().expect("a directory can be made");
        fs::write(dir.path().join("ci.key"), format!("{SECRET}-of-a-file\n")).expect("written");
        let file = dir.path().join("sandcell.toml");
        fs::write(&file, text.replace("SECRET", SECRET)).expect("a file can be written");
        let config = Config::from_file(&file)?;
        check(&config.server.api_keys).map(|()| config)
    }

    #[test]
    fn keys_are_strings_or_tables_in_either_spelling() {
        let config = read(
            "[server]\napi_keys = ['SECRET', { name = 'ci', key_file = 'ci.key', max_sandboxes = 3, \
             executions_per_minute = 60 }, 'another']",
        );
        let keys = config.expect("they are right").server.api_keys;
        let names: Vec<_> = keys.iter().enumerate().map(|(i, k)| k.name_at(i)).collect();
        assert_eq!(names, ["key-1", "ci", "key-3"]);
        assert_eq!(keys[0], ApiKey::plain(SECRET));
        assert_eq!(keys[1].secret(), format!("{SECRET}-of-a-file"));
        assert_eq!(keys[1].max_sandboxes, Some(3));
        assert_eq!(keys[1].executions_per_minute, Some(60));
        let config = read("[[server.api_keys]]\nname = 'ci'\nkey = 'SECRET'\n");
        let keys = config.expect("they are right").server.api_keys;
        assert_eq!(keys[0].name_at(0), "ci");
        assert!(!format!("{keys:?}").contains(SECRET));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_key_is_shown() {
        for (text, named) in [
            ("api_keys = ['SECRET', 'SECRET']", "key-2 has the same key"),
            (
                "api_keys = [{ name = 'ci', key = 'SECRET' }, { name = 'ci', key = 'SECRET2' }]",
                "ci is the name of two",
            ),
            (
                "api_keys = ['SECRET', { name = 'key-1', key = 'SECRET2' }]",
                "key-1 is the name of two",
            ),
            ("api_keys = ['']", "key-1 has no key"),
            ("api_keys = [{ name = 'ci' }]", "ci has no key"),
            ("api_keys = ['SECRET with spaces']", "key-1 has a key with"),
            (
                "api_keys = [{ name = 'c i', key = 'SECRET' }]",
                "name of key 1",
            ),
            (
                "api_keys = [{ name = 'ci', key = 'SECRET', key_file = 'ci.key' }]",
                "ci has both",
            ),
            (
                "api_keys = [{ name = 'ci', key_file = 'none' }]",
                "ci: failed to read",
            ),
            (
                "api_keys = [{ key = 'SECRET', max_sandboxes = 0 }]",
                "key-1 has max_sandboxes",
            ),
            (
                "api_keys = [{ key = 'SECRET', executions_per_minute = 0 }]",
                "key-1 has executions_per_minute",
            ),
            ("api_keys = [{ key = 'SECRET', max = 3 }]", "`max`"),
            ("api_keys = 'SECRET'", "must be a list"),
            ("api_keys = [{ key = ['SECRET'] }]", "must be a string"),
            ("api_keys = ['SECRET']\nbogus = 1", "bogus"),
            ("api_keys = ['SECRET", "line 2"),
        ] {
            let error = read(&format!("[server]\n{text}\n")).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
            assert!(!error.contains(SECRET), "{text}: {error}");
        }
    }
}
