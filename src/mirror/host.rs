//! Where this host gets its packages: apt's archive, pip's index, and the certificates it trusts.
//!
//! Nothing here names a registry. What the host configures is used; where it configures nothing,
//! the tools' own defaults are.

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The Python index as pip on this host is configured to use it: environment before the user's
/// files before the system's. All empty means pip's own default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PythonIndex {
    /// `index-url`; may hold credentials.
    pub url: Option<String>,
    /// `extra-index-url`; may hold credentials.
    pub extra_urls: Vec<String>,
    /// `trusted-host`: hosts whose certificate is not checked.
    pub trusted_hosts: Vec<String>,
    /// `proxy`, in addition to the usual environment variables.
    pub proxy: Option<String>,
}

impl PythonIndex {
    /// Reads `PIP_*` and pip's configuration files. What cannot be read counts as not there, as it
    /// does for pip.
    pub fn of_host() -> Self {
        let texts = pip_files()
            .into_iter()
            .filter_map(|path| fs::read_to_string(path).ok());
        Self::from_settings(texts, |name| env::var(name).ok())
    }

    fn from_settings(
        files: impl Iterator<Item = String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let mut settings = BTreeMap::new();
        for text in files {
            settings.extend(pip_settings(&text));
        }
        let get = |key: &str| {
            let name = format!("PIP_{}", key.to_uppercase().replace('-', "_"));
            variable(&name)
                .or_else(|| settings.get(key).cloned())
                .filter(|value| !value.trim().is_empty())
        };
        let words = |key: &str| {
            get(key)
                .map(|value| value.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default()
        };
        Self {
            url: get("index-url").map(|url| url.trim().to_owned()),
            extra_urls: words("extra-index-url"),
            trusted_hosts: words("trusted-host"),
            proxy: get("proxy"),
        }
    }

    /// The environment in which pip and uv use this index, and no configuration file.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let mut variables = vec![
            ("PIP_CONFIG_FILE".to_owned(), "/dev/null".to_owned()),
            ("UV_NO_CONFIG".to_owned(), "1".to_owned()),
            // Hashes, not the order of indexes, decide what is installed.
            (
                "UV_INDEX_STRATEGY".to_owned(),
                "unsafe-best-match".to_owned(),
            ),
        ];
        let mut set = |names: [&str; 2], value: String| {
            variables.extend(names.map(|name| (name.to_owned(), value.clone())));
        };
        if let Some(url) = &self.url {
            set(["PIP_INDEX_URL", "UV_DEFAULT_INDEX"], url.clone());
        }
        if !self.extra_urls.is_empty() {
            set(
                ["PIP_EXTRA_INDEX_URL", "UV_INDEX"],
                self.extra_urls.join(" "),
            );
        }
        if !self.trusted_hosts.is_empty() {
            set(
                ["PIP_TRUSTED_HOST", "UV_INSECURE_HOST"],
                self.trusted_hosts.join(" "),
            );
        }
        if let Some(proxy) = &self.proxy {
            set(["http_proxy", "https_proxy"], proxy.clone());
        }
        variables
    }
}

/// pip's files, least specific first.
fn pip_files() -> Vec<PathBuf> {
    if let Some(file) = env::var_os("PIP_CONFIG_FILE") {
        return vec![PathBuf::from(file)];
    }
    let mut files = vec!["/etc/xdg/pip/pip.conf".into(), "/etc/pip.conf".into()];
    if let Some(home) = env::var_os("HOME").map(PathBuf::from) {
        files.push(home.join(".pip/pip.conf"));
        let config = env::var_os("XDG_CONFIG_HOME").map_or(home.join(".config"), PathBuf::from);
        files.push(config.join("pip/pip.conf"));
    }
    files
}

/// The settings of `[global]` and, stronger, `[install]`. Values go on over indented lines.
fn pip_settings(text: &str) -> BTreeMap<String, String> {
    let (mut global, mut install) = (BTreeMap::new(), BTreeMap::new());
    let (mut section, mut key) = (String::new(), String::new());
    for line in text.lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = content
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = name.to_lowercase();
            continue;
        }
        let settings: &mut BTreeMap<String, String> = match section.as_str() {
            "global" => &mut global,
            "install" => &mut install,
            _ => continue,
        };
        if line.starts_with([' ', '\t']) && settings.contains_key(&key) {
            let value = settings.entry(key.clone()).or_default();
            value.push(' ');
            value.push_str(content);
        } else if let Some((name, value)) = content.split_once(['=', ':']) {
            key = name.trim().to_lowercase().replace('_', "-");
            settings.insert(key.clone(), value.trim().to_owned());
        }
    }
    global.append(&mut install);
    global
}

/// URIs of the Debian archive that apt on this host uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DebianArchive {
    pub(super) main: Option<String>,
    pub(super) security: Option<String>,
}

impl DebianArchive {
    pub(super) fn of_host() -> Self {
        let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
        if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
            let mut more: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            more.sort();
            files.extend(more);
        }
        let mut archive = Self::default();
        for file in files {
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("list") => archive.add(one_line_uris(&text)),
                Some("sources") => archive.add(deb822_uris(&text)),
                _ => {}
            }
        }
        archive
    }

    fn add(&mut self, uris: Vec<String>) {
        for uri in uris {
            if !(uri.starts_with("http://") || uri.starts_with("https://")) {
                continue;
            }
            match uri.trim_end_matches('/').rsplit('/').next() {
                Some("debian") => self.main.get_or_insert(uri),
                Some("debian-security") => self.security.get_or_insert(uri),
                _ => continue,
            };
        }
    }

    /// Lines of a `sources.list` for `suite`; none leaves the choice to mmdebstrap.
    pub(super) fn lines(&self, suite: &str, keyring: &Path) -> Vec<String> {
        let Some(main) = &self.main else {
            return Vec::new();
        };
        let signed = keyring.display();
        let line =
            |uri: &str, suite: &str| format!("deb [signed-by=\"{signed}\"] {uri} {suite} main");
        let mut lines = vec![line(main, suite), line(main, &format!("{suite}-updates"))];
        if let Some(security) = &self.security {
            lines.push(line(security, &format!("{suite}-security")));
        }
        lines
    }
}

fn one_line_uris(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let rest = line.trim().strip_prefix("deb")?;
            let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
            let rest = match rest.strip_prefix('[') {
                Some(options) => options.split_once(']')?.1,
                None => rest,
            };
            let mut words = rest.split_whitespace();
            let uri = words.next()?;
            words.any(|word| word == "main").then(|| uri.to_owned())
        })
        .collect()
}

fn deb822_uris(text: &str) -> Vec<String> {
    let mut uris = Vec::new();
    let without_comments: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in without_comments.join("\n").split("\n\n") {
        let field = |wanted: &str| {
            let mut value = String::new();
            let mut inside = false;
            for line in stanza.lines() {
                if line.starts_with([' ', '\t']) {
                    if inside {
                        value.push(' ');
                        value.push_str(line);
                    }
                } else if let Some((name, rest)) = line.split_once(':') {
                    inside = name.eq_ignore_ascii_case(wanted);
                    if inside {
                        value.push_str(rest);
                    }
                }
            }
            value
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let is = |name: &str, value: &str| field(name).iter().any(|word| word == value);
        if is("Types", "deb") && is("Components", "main") && !is("Enabled", "no") {
            uris.extend(field("URIs"));
        }
    }
    uris
}

/// The certificates this host trusts: the bundles that its environment names, and the system's.
pub fn certificates() -> String {
    const VARIABLES: [&str; 5] = [
        "SSL_CERT_FILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    ];
    const SYSTEM: [&str; 3] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
    ];
    let named = VARIABLES.iter().filter_map(env::var_os).map(PathBuf::from);
    let files: Vec<PathBuf> = named.chain(SYSTEM.map(PathBuf::from)).collect();
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    merge_certificates(texts)
}

/// Every certificate of the bundles once, in order.
pub(super) fn merge_certificates(bundles: impl IntoIterator<Item = String>) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let (mut seen, mut merged) = (HashSet::new(), String::new());
    for bundle in bundles {
        for part in bundle.split(BEGIN).skip(1) {
            let Some((body, _)) = part.split_once(END) else {
                continue;
            };
            let body: String = body.split_whitespace().collect::<Vec<_>>().join("\n");
            if seen.insert(body.clone()) {
                merged.push_str(&format!("{BEGIN}\n{body}\n{END}\n"));
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(files: &[&str], variables: &[(&str, &str)]) -> PythonIndex {
        let files = files.iter().map(ToString::to_string);
        PythonIndex::from_settings(files, |name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_configured_means_the_tools_default() {
        assert_eq!(index(&[], &[]), PythonIndex::default());
        assert_eq!(
            index(&["[global]\ncert = /x\n"], &[]),
            PythonIndex::default()
        );
        assert_eq!(
            index(&[], &[("PIP_INDEX_URL", " ")]),
            PythonIndex::default()
        );
    }

    #[test]
    fn the_more_specific_setting_wins() {
        let system = "[global]\nindex_url = https://a.example/simple\ntrusted-host = a.example\n";
        let user = "# mine\n[global]\nindex-url: https://b.example/simple\n\
                    extra-index-url =\n    https://c.example/s\n    https://d.example/s\n";
        let found = index(&[system, user], &[]);
        assert_eq!(found.url.as_deref(), Some("https://b.example/simple"));
        assert_eq!(
            found.extra_urls,
            ["https://c.example/s", "https://d.example/s"]
        );
        assert_eq!(found.trusted_hosts, ["a.example"]);
        let found = index(&[system, user], &[("PIP_INDEX_URL", "https://e.example/s")]);
        assert_eq!(found.url.as_deref(), Some("https://e.example/s"));
        let install =
            "[install]\nindex-url = https://f.example/s\n[global]\nindex-url = https://g.example\n";
        assert_eq!(
            index(&[install], &[]).url.as_deref(),
            Some("https://f.example/s")
        );
    }

    #[test]
    fn pip_and_uv_hear_the_same() {
        let found = index(&[], &[("PIP_INDEX_URL", "https://a.example/s")]);
        let environment = found.environment();
        for name in ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"] {
            assert!(environment.contains(&(name.into(), "https://a.example/s".into())));
        }
    }

    #[test]
    fn the_archive_is_found_in_both_formats() {
        let mut archive = DebianArchive::default();
        archive.add(one_line_uris(
            "# deb http://no.example/debian trixie main\n\
             deb-src http://no.example/debian trixie main\n\
             deb cdrom:[Debian]/ trixie main\n\
             deb http://other.example/tool stable main\n\
             deb [arch=amd64 signed-by=/k] http://a.example/debian/ trixie main contrib\n",
        ));
        archive.add(deb822_uris(
            "Types: deb deb-src\n# a comment\nURIs: http://b.example/debian\nSuites: trixie\n\
             Components: main\n\nEnabled: no\nTypes: deb\nURIs: http://no.example/debian-security\n\
             Components: main\n\nTypes: deb\nURIs:\n http://c.example/debian-security\n\
             Components: main\n",
        ));
        assert_eq!(archive.main.as_deref(), Some("http://a.example/debian/"));
        assert_eq!(
            archive.security.as_deref(),
            Some("http://c.example/debian-security")
        );
        let lines = archive.lines("trixie", Path::new("/k.gpg"));
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[2],
            "deb [signed-by=\"/k.gpg\"] http://c.example/debian-security trixie-security main"
        );
    }

    #[test]
    fn a_certificate_is_kept_once() {
        let one = "# A\n-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n";
        let two = "-----BEGIN CERTIFICATE-----\r\nAAA\r\n-----END CERTIFICATE-----\n\
                   -----BEGIN CERTIFICATE-----\nBBB\n-----END CERTIFICATE-----";
        let merged = merge_certificates([one.to_owned(), two.to_owned()]);
        assert_eq!(merged.matches("BEGIN").count(), 2);
        assert!(merged.find("AAA") < merged.find("BBB"));
    }
}
