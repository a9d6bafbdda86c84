//! What a reload may change.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::{Config, tree};

/// What becomes of a configuration that was read again.
#[derive(Debug)]
pub struct Reload {
    /// What the service is to go on with.
    pub config: Config,
    /// Keys that have changed, as `section.key`.
    pub changed: BTreeSet<String>,
    /// Keys that differ and stay as they are until the service starts again.
    pub left: BTreeSet<String>,
}

impl Config {
    /// Takes over from another configuration what may change while the service runs.
    pub fn reload(&self, new: &Self) -> Reload {
        let mut config = self.clone();
        let (to, from) = (&mut config.server, &new.server);
        to.api_keys.clone_from(&from.api_keys);
        to.allowed_hosts.clone_from(&from.allowed_hosts);
        to.allowed_origins.clone_from(&from.allowed_origins);
        config.logging.level = new.logging.level;
        config.logging.file.clone_from(&new.logging.file);
        let (to, from) = (&mut config.limits, &new.limits);
        to.memory_bytes = from.memory_bytes;
        to.max_memory_bytes = from.max_memory_bytes;
        to.cpus = from.cpus;
        to.max_cpus = from.max_cpus;
        to.processes = from.processes;
        to.max_processes = from.max_processes;
        to.disk_bytes = from.disk_bytes;
        to.max_disk_bytes = from.max_disk_bytes;
        to.max_timeout_seconds = from.max_timeout_seconds;
        to.lease_seconds = from.lease_seconds;
        to.max_lease_seconds = from.max_lease_seconds;
        config.service.max_sandboxes = new.service.max_sandboxes;
        config.network.default.clone_from(&new.network.default);
        let mut changed = differences(&tree(self), &tree(&config));
        // As data they do not tell one key from another.
        if self.server.api_keys != config.server.api_keys {
            changed.insert("server.api_keys".into());
        }
        let left = differences(&tree(&config), &tree(new));
        Reload {
            config,
            changed,
            left,
        }
    }
}

fn differences(one: &Json, other: &Json) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (Json::Object(one), Json::Object(other)) = (one, other) else {
        return found;
    };
    for (name, value) in one {
        match (value, &other[name]) {
            (Json::Object(keys), Json::Object(others)) => {
                let differs = keys.iter().filter(|(key, value)| others[*key] != **value);
                found.extend(differs.map(|(key, _)| format!("{name}.{key}")));
            }
            (value, other) if value != other => {
                found.insert(name.clone());
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ApiKey;

    /// Another value that the key may have.
    fn another(path: &str, value: &Json) -> Json {
        match path {
            "server.listen" => "127.0.0.1:8001".into(),
            "server.on_disconnect" => "continue".into(),
            "logging.level" => "debug".into(),
            "logging.format" => "json".into(),
            "network.default" => "open".into(),
            _ => match value {
                Json::Number(n) if n.is_u64() => (n.as_u64().unwrap_or(0) + 1).into(),
                Json::Number(n) => (n.as_f64().unwrap_or(0.0) + 1.0).into(),
                Json::Array(_) => vec!["another"].into(),
                Json::Bool(b) => (!b).into(),
                _ => "another".into(),
            },
        }
    }

    #[test]
    fn what_sandcell_toml_marks_is_what_a_reload_changes() {
        let text = include_str!("../../sandcell.toml");
        let old = Config::default();
        let defaults = tree(&old);
        let mut section = String::new();
        let mut marked = false;
        let mut seen = 0;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = format!("{}.", name.trim_end_matches(']'));
            } else if line.starts_with("# [reload]") {
                marked = true;
            } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ")
                && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                && !(key == "api_keys" && line.starts_with('#'))
            {
                let path = format!("{section}{key}");
                let pointer = format!("/{}", path.replace('.', "/"));
                let mut new = defaults.clone();
                let value = new.pointer_mut(&pointer).expect("a key of ours");
                *value = another(&path, value);
                let new: Config = serde_json::from_value(new).expect("it is right");
                let reload = old.reload(&new);
                let (changes, stays) = if marked {
                    (&reload.changed, &reload.left)
                } else {
                    (&reload.left, &reload.changed)
                };
                assert_eq!(changes.iter().collect::<Vec<_>>(), [&path]);
                assert!(stays.is_empty(), "{path}: {stays:?}");
                marked = false;
                seen += 1;
            }
        }
        assert!(seen > 60, "{seen}");
    }

    #[test]
    fn another_key_is_a_change_that_shows_none() {
        let with = |key: &str| {
            let mut config = Config::default();
            config.server.api_keys = vec![ApiKey::plain(key)];
            config
        };
        let reload = with("first-key").reload(&with("second-key"));
        assert_eq!(
            reload.changed.iter().collect::<Vec<_>>(),
            ["server.api_keys"]
        );
        assert!(!tree(&reload.config).to_string().contains("-key"));
        let reload = with("first-key").reload(&with("first-key"));
        assert!(reload.changed.is_empty() && reload.left.is_empty());
    }
}
