//! The head of a request, as a server inside gets it.
//!
//! Nothing of the service's own goes inside, where hostile code reads it: no key, in whichever way it
//! was sent, and no cookie that is for others.

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode, Uri, Version};

use super::To;
use crate::api::error::Refusal;
use crate::api::guard::{Guard, KEY_NAME};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
pub(super) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Those of RFC 9110, 7.6.1, and of what was in use before it.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// How long a message's body is, told by its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// `Content-Length`, or nothing.
    Stated,
    /// Its end is in the body. A `Content-Length` beside this is a lie (RFC 9112, 6.3), and was used
    /// to smuggle requests.
    Chunked,
}

impl Length {
    /// `None` for a coding that nobody here decodes.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        match (codings.next(), codings.next()) {
            (None, _) => Some(Self::Stated),
            (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => {
                Some(Self::Chunked)
            }
            _ => None,
        }
    }
}

/// Removes what is for one hop only, and gives the protocol that the sender would like to change to.
pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap, length: Length) -> Option<HeaderValue> {
    let connection = headers.get_all(header::CONNECTION).iter();
    let listed: Vec<HeaderName> = connection
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // What says where the message ends is not the sender's to have removed.
        .filter(|name| *name != header::CONTENT_LENGTH && *name != header::HOST)
        .collect();
    let upgrade = headers.get(header::UPGRADE).cloned();
    let upgrade = upgrade.filter(|_| listed.contains(&header::UPGRADE));
    for name in listed.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if length == Length::Chunked {
        headers.remove(header::CONTENT_LENGTH);
    }
    upgrade
}

/// Makes the head that goes inside. The second value is the protocol to change to.
///
/// # Errors
/// What the request asks for cannot be passed on.
pub(super) fn inward(
    parts: &Parts,
    to: &To,
    guard: &Guard,
    peer: std::net::IpAddr,
) -> Result<(Request<()>, Option<HeaderValue>), Refusal> {
    if parts.method == Method::CONNECT {
        return Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "CONNECT is for proxies; send the request itself",
        ));
    }
    let Some(length) = Length::of(&parts.headers) else {
        return Err(Refusal::bad_request(
            "bad_transfer_encoding",
            "a body may be chunked and have no other Transfer-Encoding",
        ));
    };
    let mut headers = parts.headers.clone();
    let upgrade = drop_hop_by_hop(&mut headers, length);
    let upgrade = upgrade.filter(|_| parts.version == Version::HTTP_11);
    drop_ours(&mut headers, to, guard);
    forward(&mut headers, to, peer);
    if length == Length::Chunked {
        headers.insert(
            header::TRANSFER_ENCODING,
            HeaderValue::from_static("chunked"),
        );
    }
    // Each request has a connection of its own (RFC 9112, 9.6).
    let connection = match &upgrade {
        Some(protocol) => {
            headers.insert(header::UPGRADE, protocol.clone());
            "Upgrade"
        }
        None => "close",
    };
    headers.insert(header::CONNECTION, HeaderValue::from_static(connection));
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = target(&to.target)?;
    *request.headers_mut() = headers;
    Ok((request, upgrade))
}

fn target(target: &str) -> Result<Uri, Refusal> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, without_key(query).0),
        None => (target, None),
    };
    let target = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    target
        .parse()
        .map_err(|_| Refusal::bad_request("bad_target", "the request's path or query is malformed"))
}

/// A query without a key, byte for byte; and the key's value as it stands there. `None` for a query
/// of which nothing is left.
pub(super) fn without_key(query: &str) -> (Option<String>, Option<&str>) {
    let is_key = |pair: &&str| pair.split('=').next() == Some(KEY_NAME);
    let key = query.split('&').find(is_key);
    let key = key.map(|pair| pair.split_once('=').map_or("", |(_, value)| value));
    if key.is_none() {
        return (Some(query.to_owned()), None);
    }
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_key(pair)).collect();
    ((!rest.is_empty()).then(|| rest.join("&")), key)
}

fn drop_ours(headers: &mut HeaderMap, to: &To, guard: &Guard) {
    // Whether keys are configured or not: a client that has one may send it to every service.
    headers.remove(API_KEY);
    // A server inside may have keys of its own.
    retain(headers, header::AUTHORIZATION, |value| {
        (!guard.is_ours(value)).then(|| value.clone())
    });
    match &to.name {
        // Cookies do not know ports (RFC 6265, 8.5): these may be any service's on this host.
        None => {
            headers.remove(header::COOKIE);
        }
        Some(_) => retain(headers, header::COOKIE, without_cookie),
    }
}

/// A `Cookie` without the one that stands for a key.
fn without_cookie(value: &HeaderValue) -> Option<HeaderValue> {
    let ours = |pair: &[u8]| {
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii() == KEY_NAME.as_bytes()
    };
    let bytes = value.as_bytes();
    if !bytes.split(|byte| *byte == b';').any(ours) {
        return Some(value.clone());
    }
    let rest: Vec<&[u8]> = bytes
        .split(|byte| *byte == b';')
        .filter(|pair| !ours(pair))
        .map(<[u8]>::trim_ascii)
        .collect();
    (!rest.is_empty()).then(|| HeaderValue::from_bytes(&rest.join(&b"; "[..])).ok())?
}

/// Replaces each value of a header, or removes it.
pub(super) fn retain(
    headers: &mut HeaderMap,
    name: HeaderName,
    change: impl Fn(&HeaderValue) -> Option<HeaderValue>,
) {
    let kept: Vec<HeaderValue> = headers.get_all(&name).iter().filter_map(change).collect();
    headers.remove(&name);
    for value in kept {
        headers.append(&name, value);
    }
}

/// Says where the request comes from, and makes it one for the server itself.
fn forward(headers: &mut HeaderMap, to: &To, peer: std::net::IpAddr) {
    // `Forwarded` (RFC 7239) says the same in another way, and would be the client's own word.
    headers.remove(header::FORWARDED);
    headers.remove(FORWARDED_PREFIX);
    // Answered here, when the body is first read.
    headers.remove(header::EXPECT);
    let said = headers.get(FORWARDED_FOR).and_then(|v| v.to_str().ok());
    let from = said.map_or_else(|| peer.to_string(), |said| format!("{said}, {peer}"));
    let outer_host = headers.remove(header::HOST);
    let set = [
        (FORWARDED_FOR, Some(from)),
        (FORWARDED_PROTO, Some(to.scheme.to_owned())),
        (
            FORWARDED_PREFIX,
            to.name.is_none().then(|| to.prefix(to.port)),
        ),
        // Development servers answer to no name but localhost, for fear of DNS rebinding, and the name
        // of the service is nothing that they could know.
        (header::HOST, Some(format!("localhost:{}", to.port))),
    ];
    for (name, value) in set {
        if let Some(value) = value.and_then(|v| HeaderValue::try_from(v).ok()) {
            headers.insert(name, value);
        }
    }
    if let Some(host) = outer_host {
        headers.insert(FORWARDED_HOST, host);
    }
    // Servers compare Origin with Host; a page of their own stays one.
    if let Some(port) = to.origin_port
        && let Ok(origin) = HeaderValue::try_from(format!("http://localhost:{port}"))
    {
        headers.insert(header::ORIGIN, origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ports::tests::{guard, to_name, to_path};

    fn inward_of(to: &To, pairs: &[(&str, &str)]) -> (Request<()>, Option<HeaderValue>) {
        let mut request = Request::new(());
        for (name, value) in pairs {
            let name: HeaderName = name.parse().expect("a name");
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            request.headers_mut().append(name, value);
        }
        let peer = [127, 0, 0, 1].into();
        inward(&request.into_parts().0, to, &guard(), peer).expect("it can be passed on")
    }

    fn all(request: &Request<()>, name: &str) -> Vec<String> {
        let values = request.headers().get_all(name).iter();
        values
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
            .collect()
    }

    #[test]
    fn keys_stay_outside_and_those_of_the_server_go_inside() {
        for to in [to_path("/"), to_name("/")] {
            let (sent, _) = inward_of(
                &to,
                &[
                    ("authorization", "Bearer first-key"),
                    ("authorization", "bearer  second-key "),
                    ("authorization", "Bearer its-own"),
                    ("x-api-key", "first-key"),
                    ("x-api-key", "mistyped"),
                ],
            );
            assert_eq!(all(&sent, "authorization"), ["Bearer its-own"]);
            assert!(all(&sent, "x-api-key").is_empty());
        }
        let (sent, _) = inward_of(
            &to_name("/?a=1&sandcell_key=first-key&&b=%20"),
            &[
                ("cookie", "a=1; sandcell_key=token;b=2"),
                ("cookie", "sandcell_key=x"),
            ],
        );
        assert_eq!(all(&sent, "cookie"), ["a=1; b=2"]);
        assert_eq!(sent.uri(), "/?a=1&&b=%20");
        let (sent, _) = inward_of(&to_path("/?sandcell_key=x"), &[("cookie", "a=1")]);
        assert!(
            all(&sent, "cookie").is_empty(),
            "it may be of another service"
        );
        assert_eq!(sent.uri(), "/");
    }

    #[test]
    fn what_is_for_one_hop_is_dropped() {
        let (sent, upgrade) = inward_of(
            &to_path("/"),
            &[
                ("connection", "keep-alive, X-Once, content-length, host"),
                ("keep-alive", "timeout=5"),
                ("x-once", "1"),
                ("te", "trailers"),
                ("proxy-authorization", "Basic x"),
                ("upgrade", "websocket"),
                ("content-length", "0"),
                ("expect", "100-continue"),
                ("accept", "*/*"),
            ],
        );
        let mut names: Vec<&str> = sent.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "accept",
            "connection",
            "content-length",
            "host",
            "x-forwarded-for",
            "x-forwarded-prefix",
            "x-forwarded-proto",
        ];
        assert_eq!((names.as_slice(), upgrade), (&expected[..], None));
        assert_eq!(all(&sent, "connection"), ["close"]);
        let ask = [("connection", "Upgrade"), ("upgrade", "websocket")];
        let (sent, upgrade) = inward_of(&to_path("/"), &ask);
        assert_eq!(upgrade, Some(HeaderValue::from_static("websocket")));
        assert_eq!(all(&sent, "connection"), ["Upgrade"]);
        let both = [("transfer-encoding", "chunked"), ("content-length", "5")];
        let (sent, _) = inward_of(&to_path("/"), &both);
        assert_eq!(all(&sent, "transfer-encoding"), ["chunked"]);
        assert!(all(&sent, "content-length").is_empty());
    }

    #[test]
    fn a_server_is_told_where_a_request_comes_from_by_us() {
        let said = [
            ("host", "localhost:18100"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-prefix", "/evil"),
            ("origin", "http://localhost:18100"),
        ];
        let (sent, _) = inward_of(&to_path("/"), &said);
        assert_eq!(all(&sent, "host"), ["localhost:8000"]);
        assert_eq!(all(&sent, "x-forwarded-for"), ["1.2.3.4, 127.0.0.1"]);
        assert_eq!(all(&sent, "x-forwarded-host"), ["localhost:18100"]);
        assert_eq!(all(&sent, "x-forwarded-proto"), ["http"]);
        assert_eq!(
            all(&sent, "x-forwarded-prefix"),
            [to_path("/").prefix(8000)]
        );
        assert_eq!(all(&sent, "origin"), ["http://localhost:18100"]);
        assert!(all(&sent, "forwarded").is_empty());
        let mut to = to_name("/");
        to.origin_port = Some(3000);
        let (sent, _) = inward_of(&to, &said);
        assert!(all(&sent, "x-forwarded-prefix").is_empty());
        assert_eq!(all(&sent, "origin"), ["http://localhost:3000"]);
    }

    #[test]
    fn targets_arrive_as_they_were_sent() {
        for target in [
            "/",
            "//a",
            "/a//b/../c/./",
            "/%2e%2E/%00?",
            "/x?y=?&z=%zz",
            "/a;b=c,d:e@f",
        ] {
            let (sent, _) = inward_of(&to_path(target), &[]);
            assert_eq!(sent.uri().to_string(), target);
        }
    }

    #[test]
    fn unknown_transfer_codings_and_tunnels_are_refused() {
        let refused = |method: Method, coding: &str| {
            let mut request = Request::new(());
            *request.method_mut() = method;
            let value = HeaderValue::from_str(coding).expect("a value");
            request
                .headers_mut()
                .insert(header::TRANSFER_ENCODING, value);
            let peer = [127, 0, 0, 1].into();
            inward(&request.into_parts().0, &to_name("/"), &guard(), peer).is_err()
        };
        assert!(refused(Method::POST, "gzip, chunked"));
        assert!(refused(Method::CONNECT, "chunked"));
        assert!(!refused(Method::POST, "Chunked"));
    }
}
