//! Where a configuration comes from: the defaults, then a file, then variables of the environment.
//!
//! A variable is named after its key: `SANDCELL_` and the path in upper case with `_` between section and
//! key, `SANDCELL_LIMITS_MEMORY_BYTES` for `[limits] memory_bytes`. Text is taken as it is, everything else
//! as TOML writes it, and a list of words may be written with commas. An empty value is none.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::{Config, key, spelling};

/// What variables of ours begin with.
pub const PREFIX: &str = "SANDCELL_";
/// Variables that are left to tests.
const TESTS_PREFIX: &str = "SANDCELL_TEST_";

impl Config {
    /// Reads a TOML file over the defaults.
    ///
    /// # Errors
    /// The file cannot be read, or a key is unknown or of the wrong type (named).
    pub fn from_file(path: &Path) -> Result<Self, String> {
        Self::load(Some(path), std::iter::empty(), &[])
    }

    /// Reads a file, where there is one, and variables of the environment over it. `others` are
    /// variables of ours that are no keys: those of flags.
    ///
    /// # Errors
    /// As [`Config::from_file`]; a variable that begins as ours do and is none, or whose value is of the
    /// wrong type (named).
    pub fn load(
        path: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        others: &[String],
    ) -> Result<Self, String> {
        let mut table = match path {
            Some(path) => read(path)?,
            None => Table::new(),
        };
        let names = names();
        let mut environment: Vec<_> = environment.collect();
        environment.sort();
        for (name, value) in environment {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            let Some(knob) = names.get(name) else {
                if name.starts_with(TESTS_PREFIX) || others.iter().any(|other| other == name) {
                    continue;
                }
                return Err(format!(
                    "{name}: there is no such key; a variable is {PREFIX}, its section and its key, \
                     for example SANDCELL_LIMITS_MEMORY_BYTES"
                ));
            };
            let value = value
                .to_str()
                .ok_or_else(|| format!("{name}: not valid UTF-8"))?;
            if value.is_empty() {
                continue;
            }
            knob.set(&mut table, value)
                .and_then(|()| decode(&table))
                .map_err(|e| format!("{name}: {e}"))?;
        }
        let mut config = decode(&table)?;
        let beside = path.and_then(Path::parent).map(PathBuf::from);
        key::read_files(&mut config.server.api_keys, &beside.unwrap_or_default())?;
        Ok(config)
    }
}

/// A file that is right in itself, in the spelling of [`Config`].
fn read(path: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("failed to read {}: {e}", path.display()))?;
    let wrong = |e: &toml::de::Error| {
        // Without the line itself, as there may be a key in it.
        let line = e
            .span()
            .map(|at| 1 + text[..at.start].matches('\n').count());
        let line = line.map_or_else(String::new, |line| format!("line {line}: "));
        format!("{}: {line}{}", path.display(), e.message())
    };
    let mut table: Table = toml::from_str(&text).map_err(|e| wrong(&e))?;
    let respelled = spelling::translate(&mut table);
    if respelled.map_err(|e| format!("{}: {e}", path.display()))? {
        decode(&table).map_err(|e| format!("{}: {e}", path.display()))?;
    } else {
        // Once more, for the numbers of lines.
        toml::from_str::<Config>(&text).map_err(|e| wrong(&e))?;
    }
    Ok(table)
}

fn decode(table: &Table) -> Result<Config, String> {
    let decoded = serde_path_to_error::deserialize(Value::Table(table.clone()));
    decoded.map_err(|e: serde_path_to_error::Error<toml::de::Error>| {
        let message = e.inner().message();
        match e.path().to_string().as_str() {
            "." => message.to_owned(),
            path => format!("{path}: {message}"),
        }
    })
}

/// A key of the configuration.
#[derive(Debug, Clone)]
struct Knob {
    section: Option<String>,
    key: String,
    default: Json,
}

/// Every key by its variable's name.
fn names() -> BTreeMap<String, Knob> {
    let mut found = BTreeMap::new();
    let Json::Object(top) = tree(&Config::default()) else {
        return found;
    };
    for (name, value) in top {
        match value {
            Json::Object(keys) => found.extend(keys.into_iter().map(|(key, default)| {
                let variable = format!("{PREFIX}{name}_{key}").to_ascii_uppercase();
                let section = Some(name.clone());
                (
                    variable,
                    Knob {
                        section,
                        key,
                        default,
                    },
                )
            })),
            default => {
                let variable = format!("{PREFIX}{name}").to_ascii_uppercase();
                let (section, key) = (None, name);
                found.insert(
                    variable,
                    Knob {
                        section,
                        key,
                        default,
                    },
                );
            }
        }
    }
    found
}

/// A configuration as data: a key without a value is null, and keys of clients are not shown.
pub fn tree(config: &Config) -> Json {
    serde_json::to_value(config).expect("a configuration is data")
}

impl Knob {
    fn set(&self, table: &mut Table, text: &str) -> Result<(), String> {
        let value = self.parse(text)?;
        let table = match &self.section {
            None => table,
            Some(section) => table
                .entry(section)
                .or_insert_with(|| Table::new().into())
                .as_table_mut()
                .ok_or("its section is no table")?,
        };
        table.insert(self.key.clone(), value);
        Ok(())
    }

    fn parse(&self, text: &str) -> Result<Value, String> {
        #[derive(Deserialize)]
        struct One {
            value: Value,
        }

        let text = text.trim();
        match &self.default {
            Json::String(_) | Json::Null if !text.starts_with('{') => {
                return Ok(Value::String(text.to_owned()));
            }
            Json::Array(_) if !text.starts_with('[') => {
                let words = text.split(',').map(str::trim);
                let words = words.map(|word| Value::String(word.to_owned()));
                return Ok(Value::Array(words.collect()));
            }
            _ => {}
        }
        let one = toml::from_str(&format!("value = {text}"));
        one.map(|one: One| one.value)
            .map_err(|e| format!("not a value as TOML writes it: {}", e.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sandcell.toml");

    fn with(pairs: &[(&str, &str)], file: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("sandcell.toml");
        std::fs::write(&path, file).expect("a file can be written");
        let pairs = pairs
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let config = Config::load(Some(&path), pairs, &["SANDCELL_HOST".into()])?;
        config.check().map(|()| config)
    }

    #[test]
    fn the_documented_file_is_the_defaults_key_by_key() {
        let text = std::fs::read_to_string(DOCUMENTED).expect("sandcell.toml is there");
        let written: Table = toml::from_str(&text).expect("it is TOML");
        let written = serde_json::to_value(written).expect("it is data");
        for (variable, knob) in names() {
            let Knob {
                section,
                key,
                default,
            } = knob;
            let found = match &section {
                Some(section) => &written[section][&key],
                None => &written[&key],
            };
            if default.is_null() {
                // A key that has no value as long as nobody gives it one.
                let hint = format!("\n# {key} = ");
                assert!(text.contains(&hint), "sandcell.toml lacks `# {key} = …`");
            } else {
                assert!(!found.is_null(), "sandcell.toml lacks {section:?} {key}");
            }
            assert!(found.is_null() || found == &default, "{variable}: {found}");
        }
        // And the other way round: nothing that is not a key, every value the default.
        let read = Config::from_file(Path::new(DOCUMENTED)).expect("it is a configuration");
        assert_eq!(tree(&read), tree(&Config::default()));
        assert_eq!(read.check(), Ok(()));
        // Each key has its words.
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            if pair[1].contains(" = ") && !pair[1].starts_with('#') {
                assert!(
                    pair[0].starts_with("# "),
                    "nothing is said of {:?}",
                    pair[1]
                );
            }
        }
    }

    #[test]
    fn a_key_that_the_file_lacks_or_has_beside_is_seen() {
        // The negative control of the test above.
        let text = std::fs::read_to_string(DOCUMENTED).expect("sandcell.toml is there");
        let more = text.replace("[limits]\n", "[limits]\nmore = 1\n");
        assert!(with(&[], &more).is_err_and(|e| e.contains("more")));
        let other = text.replace("\nqueue = 16", "\nqueue = 17");
        let read = with(&[], &other).expect("it is a configuration");
        assert_ne!(tree(&read), tree(&Config::default()));
    }

    #[test]
    fn every_key_has_a_variable_of_its_own_that_overrides_the_file() {
        let defaults = tree(&Config::default());
        let keys = defaults.as_object().expect("an object").values();
        let count: usize = keys
            .map(|v| v.as_object().map_or(1, |keys| keys.len()))
            .sum();
        assert_eq!(names().len(), count, "two keys have one variable");
        let file = "[limits]\nmemory_bytes = 1\n[server]\nlisten = '127.0.0.1:1'\n";
        let config = with(
            &[
                ("SANDCELL_DATA_DIR", "/somewhere"),
                ("SANDCELL_MIRRORS_DIR", "/else"),
                ("SANDCELL_SERVER_LISTEN", "127.0.0.1:7"),
                ("SANDCELL_SERVER_API_KEYS", "first-key, second-key"),
                ("SANDCELL_SERVER_ALLOWED_HOSTS", "[\"a.example\"]"),
                ("SANDCELL_LIMITS_MEMORY_BYTES", "104857600"),
                ("SANDCELL_LIMITS_CPUS", "0.5"),
                ("SANDCELL_SERVICE_PRELOAD", "[]"),
                ("SANDCELL_NETWORK_DEFAULT", "{ allow = [\"a.example\"] }"),
                ("SANDCELL_PACKAGES_INDEX_URL", "http://127.0.0.1/simple"),
                ("SANDCELL_LOGGING_LEVEL", "debug"),
                ("SANDCELL_LOGGING_FILE", ""),
                ("SANDCELL_HOST", "a flag's"),
                ("SANDCELL_TEST_X", "a test's"),
                ("OTHER", "x"),
            ],
            file,
        );
        let config = config.expect("they are right");
        assert_eq!(config.data_dir, Path::new("/somewhere"));
        assert_eq!(config.mirrors_dir(), Path::new("/else"));
        assert_eq!(config.server.listen.port(), 7);
        assert_eq!(config.server.api_keys[1].secret(), "second-key");
        assert_eq!(config.server.allowed_hosts, ["a.example"]);
        assert_eq!(config.limits.memory_bytes, 104_857_600);
        assert!((config.limits.cpus - 0.5).abs() < f64::EPSILON);
        assert!(config.service.preload.is_empty());
        assert_ne!(config.network.default, crate::network::Policy::None);
        assert_eq!(config.logging.file, None);
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for (name, value, told) in [
            ("SANDCELL_LIMIT_MEMORY_BYTES", "1", "no such key"),
            ("SANDCELL_", "1", "no such key"),
            ("SANDCELL_LIMITS_MEMORY_BYTES", "lots", "TOML"),
            ("SANDCELL_LIMITS_MEMORY_BYTES", "-1", "memory_bytes"),
            ("SANDCELL_SERVER_LISTEN", "nowhere", "listen"),
            ("SANDCELL_LOGGING_LEVEL", "loud", "level"),
            ("SANDCELL_SERVER_API_KEYS", "[s3cr3t", "TOML"),
        ] {
            let error = with(&[(name, value)], "").expect_err(name);
            assert!(error.starts_with(name) && error.contains(told), "{error}");
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }
}
