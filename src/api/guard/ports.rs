//! Names, origins and keys of requests for servers inside sandboxes.
//!
//! `<port>-<sandbox id>.<ports_domain>` is a host of its own, so a browser gives the page that it
//! serves an origin of its own. That origin is none that may call the service: [`Guard::admits_origin`]
//! takes `localhost` itself and no name below it.

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use sha2::{Digest, Sha256};

use super::{Authority, Guard, Host, Owner, Refusal, bearer, same, unauthorized};

/// The key's name in a query, and that of the cookie which stands for it.
pub(crate) const KEY_NAME: &str = "sandcell_key";
/// Length of a sandbox's id.
const ID_LENGTH: usize = 26;

/// A host name that leads to a server inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortName {
    /// Of the server.
    pub(crate) port: u16,
    /// Of its sandbox, which there may or may not be.
    pub(crate) sandbox_id: String,
    /// Port of the service, as the client wrote it.
    outer_port: Option<u16>,
}

impl PortName {
    /// Its first label.
    fn label(&self) -> String {
        format!("{}-{}", self.port, self.sandbox_id)
    }
}

/// A port as it is written in a path or name: decimal, without sign and leading zeros.
pub(crate) fn port_number(text: &str) -> Option<u16> {
    let port: u16 = text.parse().ok()?;
    (port > 0 && port.to_string() == text).then_some(port)
}

impl Guard {
    /// The server inside that the request is for by its `Host`; `None` for a request to the service
    /// itself, which [`Guard::check_host`] is to look at.
    ///
    /// # Errors
    /// The target of the request names another host.
    pub(crate) fn port_name(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<PortName>, Refusal> {
        let mut values = headers.get_all(header::HOST).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return Ok(None);
        };
        let named = value.to_str().ok().and_then(|host| self.parse(host));
        // As for the service: the target of an absolute-form request overrules `Host`.
        let target = uri.authority().map(|target| self.parse(target.as_str()));
        if named.is_some() && target.is_some_and(|target| target != named) {
            return Err(Refusal::forbidden(
                "host_not_allowed",
                "the request's target and its Host differ",
            ));
        }
        Ok(named)
    }

    fn parse(&self, authority: &str) -> Option<PortName> {
        let authority = Authority::parse(authority)?;
        let Host::Name(name) = authority.host else {
            return None;
        };
        let label = name.strip_suffix(&self.ports_suffix)?;
        let (port, id) = label.split_once('-')?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        (id.len() == ID_LENGTH && id.bytes().all(plain)).then_some(())?;
        Some(PortName {
            port: port_number(port)?,
            sandbox_id: id.to_owned(),
            outer_port: authority.port,
        })
    }

    /// Whether this `host[:port]` is a server's inside, of whichever sandbox.
    pub(super) fn is_inside(&self, authority: &str) -> bool {
        self.parse(authority).is_some()
    }

    /// Whether a page may call the server of that name: one of the same sandbox, whichever of its
    /// servers it is from, and those that may call the service.
    pub(crate) fn check_origin_by_name(
        &self,
        name: &PortName,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        match only(headers, header::ORIGIN) {
            Some(Some(origin)) if self.inner_port(name, origin).is_some() => Ok(()),
            _ => self.check_origin(headers),
        }
    }

    /// Whether a page may call a server inside by its path below the service: pages that may call the
    /// service, and those of an opaque origin, which send `null`. Every page that was served by path is
    /// of these, as it comes with `Content-Security-Policy: sandbox`; without this it could not call
    /// its own server. Any page of the web can make itself such an origin, and has to know the
    /// sandbox's id then, which is as good as a key.
    pub(crate) fn check_origin_by_path(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match only(headers, header::ORIGIN) {
            Some(Some("null")) => Ok(()),
            _ => self.check_origin(headers),
        }
    }

    /// The port inside that an origin stands for, where it is one of the same sandbox.
    pub(crate) fn inner_port(&self, name: &PortName, origin: &str) -> Option<u16> {
        let origin = origin.to_ascii_lowercase();
        let authority = ["http://", "https://"]
            .iter()
            .find_map(|scheme| origin.strip_prefix(scheme))?;
        let found = self.parse(authority)?;
        let same = found.sandbox_id == name.sandbox_id && found.outer_port == name.outer_port;
        same.then_some(found.port)
    }

    /// Whose key the request carries in a header, or in the cookie of this name; as [`Guard::caller`].
    pub(crate) fn caller_by_name(
        &self,
        name: &PortName,
        headers: &HeaderMap,
    ) -> Result<Option<Owner>, Refusal> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let presented = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(cookie, _)| *cookie == KEY_NAME);
        let known = presented.fold(None, |known, (_, token)| {
            let owner = self.owner_of_token(name, token);
            known.or(owner)
        });
        match known {
            Some(owner) => Ok(Some(owner.clone())),
            None => self.caller(headers),
        }
    }

    /// The cookie's value for whoever has shown a key; `None` where there are no keys.
    ///
    /// # Errors
    /// It is none of the keys.
    pub(crate) fn admit(&self, name: &PortName, key: &str) -> Result<Option<String>, Refusal> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        if self.owner_of(key).is_none() {
            return Err(unauthorized());
        }
        Ok(Some(token(&super::digest(key), name)))
    }

    fn owner_of_token(&self, name: &PortName, presented: &str) -> Option<&Owner> {
        let presented = super::digest(presented);
        self.owner_where(|key| same(&super::digest(&token(&key.digest, name)), &presented))
    }

    /// Whether an `Authorization` is one of the keys, and so none of a server's inside.
    pub(crate) fn is_ours(&self, authorization: &HeaderValue) -> bool {
        bearer(authorization).is_some_and(|key| self.owner_of(key).is_some())
    }

    /// Whether the service answers to this host, written `host[:port]`.
    pub(crate) fn answers_to(&self, authority: &str) -> bool {
        Authority::parse(authority).is_some_and(|authority| self.serves(&authority))
    }
}

/// What a key becomes in a cookie: good for one name, and nothing that leads back to the key. Browsers
/// send cookies to every port of a host, not only to the one that set them.
fn token(key: &[u8; 32], name: &PortName) -> String {
    let of = |text: &[u8]| {
        Sha256::new()
            .chain_update(key)
            .chain_update(text)
            .finalize()
    };
    // Twice, as in HMAC, so that one name's cannot be extended to another's.
    let outer = of(&of(name.label().as_bytes()));
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A header's only value; `Some(None)` for several and for what is no text.
fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<Option<&str>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    Some(first.to_str().ok().filter(|_| values.next().is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const ID: &str = "0123456789abcdefghjkmnpqrs";

    fn guard(keys: &[&str], domain: &str) -> Guard {
        let server = config::Server {
            api_keys: keys.iter().map(|key| config::ApiKey::plain(key)).collect(),
            ports_domain: domain.into(),
            ..config::Server::default()
        };
        Guard::new(&server, "127.0.0.1:18100".parse().expect("an address")).expect("it is safe")
    }

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, HeaderValue::from_str(value).expect("a header value"));
        }
        headers
    }

    fn named(guard: &Guard, host: &str) -> Option<PortName> {
        let headers = headers(&[(header::HOST, host)]);
        let found = guard.port_name(&Uri::from_static("/"), &headers);
        found.expect("target and Host agree")
    }

    #[test]
    fn exactly_the_names_of_servers_inside_are_taken_for_such() {
        for domain in ["localhost", "boxes.example.com"] {
            let guard = guard(&[], domain);
            for host in [
                format!("8000-{ID}.{domain}"),
                format!("8000-{ID}.{domain}:18100"),
                format!("8000-{}.{}", ID.to_uppercase(), domain.to_uppercase()),
                format!("1-{ID}.{domain}:80"),
                format!("65535-{ID}.{domain}"),
            ] {
                let found = named(&guard, &host).expect(&host);
                assert_eq!(found.sandbox_id, ID, "{host}");
            }
            for host in [
                domain.to_owned(),
                format!("{ID}.{domain}"),
                format!("0-{ID}.{domain}"),
                format!("08-{ID}.{domain}"),
                format!("+8-{ID}.{domain}"),
                format!("-8000-{ID}.{domain}"),
                format!("65536-{ID}.{domain}"),
                format!("8000-{ID}x.{domain}"),
                format!("8000-{}.{domain}", &ID[1..]),
                format!("8000_{ID}.{domain}"),
                format!("8000-{ID}{domain}"),
                format!("8000-{ID}.{domain}."),
                format!("8000-{ID}..{domain}"),
                format!("8000-{ID}.x.{domain}"),
                format!("x.8000-{ID}.{domain}"),
                format!("8000-{ID}.evil.{domain}"),
                format!("8000-{ID}.{domain}.evil.com"),
                format!("8000-{ID}.evil-{domain}"),
                format!("8000-{ID}.evil{domain}"),
                format!("8000-{}_.{domain}", &ID[1..]),
                format!("8000-{ID}.{domain}@evil.com"),
                format!("evil.com@8000-{ID}.{domain}"),
                format!("8000-{ID}.{domain}:"),
                format!("8000-{ID}.{domain}:x"),
                format!("8000-{ID}.{domain}/x"),
            ] {
                assert_eq!(named(&guard, &host), None, "{host}");
                if host != "localhost" {
                    let headers = headers(&[(header::HOST, &host)]);
                    let api = guard.check_host(&Uri::from_static("/"), &headers);
                    assert!(api.is_err(), "{host}");
                }
            }
        }
        let host = format!("8000-{ID}.localhost");
        let twice = [(header::HOST, &*host), (header::HOST, &*host)];
        let found = guard(&[], "localhost").port_name(&Uri::from_static("/"), &headers(&twice));
        assert!(matches!(found, Ok(None)));
    }

    #[test]
    fn the_service_itself_does_not_answer_to_names_of_servers_inside() {
        let guard = guard(&[], "localhost");
        let host = format!("8000-{ID}.localhost:18100");
        let headers = headers(&[(header::HOST, &host)]);
        assert!(guard.check_host(&Uri::from_static("/"), &headers).is_err());
    }

    #[test]
    fn the_target_of_a_request_must_name_the_same_server() {
        let guard = guard(&[], "localhost");
        let host = format!("8000-{ID}.localhost");
        let by_name = headers(&[(header::HOST, &host)]);
        let to = |target: String| target.parse::<Uri>().expect("a target");
        let same = to(format!("http://{host}/x"));
        assert!(matches!(guard.port_name(&same, &by_name), Ok(Some(_))));
        for other in [
            "http://localhost/x".into(),
            format!("http://8001-{ID}.localhost/x"),
        ] {
            assert!(guard.port_name(&to(other), &by_name).is_err());
        }
        let api = headers(&[(header::HOST, "localhost")]);
        assert!(matches!(guard.port_name(&same, &api), Ok(None)));
        assert!(guard.check_host(&same, &api).is_err());
    }

    #[test]
    fn pages_from_inside_may_call_their_sandbox_and_not_the_service() {
        let guard = guard(&[], "localhost");
        let name = named(&guard, &format!("8000-{ID}.localhost:18100")).expect("a name");
        let other = ID.replace('0', "1");
        for (origin, by_name, by_path, api) in [
            (
                format!("http://8000-{ID}.localhost:18100"),
                true,
                false,
                false,
            ),
            (
                format!("https://8000-{ID}.localhost:18100"),
                true,
                false,
                false,
            ),
            (
                format!("http://3000-{ID}.localhost:18100"),
                true,
                false,
                false,
            ),
            (format!("http://8000-{ID}.localhost"), false, false, false),
            (format!("http://8000-{ID}.localhost:1"), false, false, false),
            (
                format!("http://8000-{other}.localhost:18100"),
                false,
                false,
                false,
            ),
            (format!("http://{ID}.localhost:18100"), false, false, false),
            ("http://evil.localhost:18100".into(), false, false, false),
            ("http://localhost:3000".into(), true, true, true),
            ("null".into(), false, true, false),
            ("https://evil.example".into(), false, false, false),
        ] {
            let sent = headers(&[(header::ORIGIN, &origin)]);
            let asked = (
                guard.check_origin_by_name(&name, &sent).is_ok(),
                guard.check_origin_by_path(&sent).is_ok(),
                guard.check_origin(&sent).is_ok(),
            );
            assert_eq!(asked, (by_name, by_path, api), "{origin}");
        }
        let twice = headers(&[(header::ORIGIN, "null"), (header::ORIGIN, "null")]);
        assert!(guard.check_origin_by_path(&twice).is_err());
    }

    #[test]
    fn a_cookie_is_good_for_one_name_and_one_key() {
        let guard = guard(&["first-key", "second-key"], "localhost");
        let name = |port| named(&guard, &format!("{port}-{ID}.localhost")).expect("a name");
        let token = guard
            .admit(&name(8000), "second-key")
            .expect("a key")
            .expect("keys");
        assert!(!token.contains("second"));
        assert!(guard.admit(&name(8000), "third-key").is_err());
        let passes = |port, cookie: String| {
            let sent = headers(&[(header::COOKIE, &cookie)]);
            guard.caller_by_name(&name(port), &sent).is_ok()
        };
        assert!(passes(8000, format!("a=b; {KEY_NAME}={token}; c=d")));
        assert!(!passes(8001, format!("{KEY_NAME}={token}")));
        assert!(!passes(8000, format!("{KEY_NAME}=second-key")));
        assert!(!passes(8000, format!("{KEY_NAME}={}", &token[1..])));
        assert!(!passes(8000, "a=b".into()));
        let by_header = headers(&[(header::HeaderName::from_static("x-api-key"), "first-key")]);
        assert!(guard.caller_by_name(&name(8000), &by_header).is_ok());
    }
}
