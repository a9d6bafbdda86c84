//! Where packages come from: an index's address with its credentials, and the client that speaks to it.

use std::time::Duration;

use reqwest::{Certificate, Client, NoProxy, Proxy, Url, redirect};

use super::error::Error;
use crate::mirror::host::PythonIndex;

/// Seconds to connect, of the time in which the index must answer.
const CONNECT_SECONDS: u64 = 10;
/// Idle connections kept for each host: as many as uv asks at once while it resolves.
const IDLE_CONNECTIONS: usize = 16;
const USER_AGENT: &str = concat!("sandcell/", env!("CARGO_PKG_VERSION"));
/// One index.
pub(super) struct Index {
    /// With a slash at the end and without credentials.
    pub(super) url: Url,
    /// Sent to this index's origin and to no other.
    pub(super) credentials: Option<(String, Option<String>)>,
}

impl Index {
    /// `setting` is named when the URL is none that a page can be fetched from.
    pub(super) fn new(setting: &'static str, text: &str) -> Result<Self, Error> {
        // Neither the text nor the parser's words: the text may hold a password.
        let wrong = || Error::Setting {
            setting,
            reason: "must be a URL that starts with https:// or http://".to_owned(),
        };
        let mut url = Url::parse(text.trim()).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong());
        }
        let decode = |part: &str| percent_decode(part).ok_or_else(wrong);
        let credentials = match (url.username(), url.password()) {
            ("", None) => None,
            (name, password) => Some((decode(name)?, password.map(decode).transpose()?)),
        };
        url.set_query(None);
        url.set_fragment(None);
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(Self {
            url: without_credentials(url),
            credentials,
        })
    }

    pub(super) fn is_secure(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Where a project's page is; the name is normalized.
    pub(super) fn project(&self, name: &str) -> Url {
        let mut url = self.url.clone();
        url.set_path(&format!("{}{name}/", self.url.path()));
        url
    }
}

/// A client that follows no redirects. `checked`: it believes these certificates (PEM) and no others.
pub(super) fn client(
    host: &PythonIndex,
    certificates: &str,
    timeout: Duration,
    checked: bool,
) -> Result<Client, Error> {
    let wrong = |setting, reason: &str| Error::Setting {
        setting,
        reason: reason.to_owned(),
    };
    // ring, as the other provider needs a C toolchain with CMake. A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(USER_AGENT)
        .redirect(redirect::Policy::none())
        .referer(false)
        .connect_timeout(timeout.min(Duration::from_secs(CONNECT_SECONDS)))
        .read_timeout(timeout)
        .pool_max_idle_per_host(IDLE_CONNECTIONS);
    if checked {
        let bundle = Certificate::from_pem_bundle(certificates.as_bytes())
            .map_err(|_| wrong("the host's certificate bundle", "cannot be read"))?;
        builder = builder.tls_certs_only(bundle);
    } else {
        builder = builder
            .tls_certs_only([])
            .tls_danger_accept_invalid_certs(true);
    }
    // Without pip's own setting the environment decides (`https_proxy`, `no_proxy`), as with pip.
    if let Some(proxy) = &host.proxy {
        let proxy = Proxy::all(proxy.trim())
            .map_err(|_| wrong("pip's proxy", "must be a URL, as http://host:port"))?;
        builder = builder.proxy(proxy.no_proxy(NoProxy::from_env()));
    }
    builder
        .build()
        .map_err(|error| wrong("the host's certificate bundle", &error.to_string()))
}

pub(super) fn without_credentials(mut url: Url) -> Url {
    // Fails for URLs that cannot have any.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_keeps_its_credentials_apart_and_its_path_complete() {
        let index = Index::new("x", " https://us%40er:pa%2Fss@a.example/b/simple?q#f ").unwrap();
        assert_eq!(
            index.project("rich").as_str(),
            "https://a.example/b/simple/rich/"
        );
        let credentials = ("us@er".to_owned(), Some("pa/ss".to_owned()));
        assert_eq!(index.credentials, Some(credentials));
    }

    #[test]
    fn a_wrong_index_is_refused_by_its_setting_and_its_password_is_not_told() {
        for text in [
            "",
            "a.example",
            "ftp://u:secret@a.example/",
            "https://u:secret@",
            "https://u:secret%zz@a.example/",
        ] {
            let Err(error) = Index::new("packages.index_url", text) else {
                panic!("{text} is taken");
            };
            let error = error.to_string();
            assert!(error.starts_with("packages.index_url must"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
