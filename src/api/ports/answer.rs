//! The head of an answer of a server inside, as the client gets it.
//!
//! It is hostile. By path it comes from the service's own origin, where a page could call the service,
//! and headers speak for the whole host:
//!
//! | by path | because |
//! |---|---|
//! | `Content-Security-Policy: sandbox` added | the page gets an opaque origin: its calls come with `Origin: null`, which no route of the service takes, and it has no storage and no service workers (HTML standard, 7.1.5) |
//! | `Set-Cookie`, `Clear-Site-Data` dropped | they are for all ports of the host, and those of other programs |
//! | `Service-Worker-Allowed` dropped | a worker would see every request of its origin |
//! | `Strict-Transport-Security`, `Alt-Svc`, `NEL`, `Report-To`, `Accept-CH`, … dropped | they set how browsers reach the origin, and where they report failures |
//! | `Access-Control-*` replaced | who may read is said of an origin that is the service's |
//! | `Location` below the prefix | a client that follows a 307 sends its request again, key and all; it must not get to the service's own routes that way |
//!
//! By name the origin is the server's own, so these stay, but for what reaches further than the name:
//! `Domain` of cookies, `Clear-Site-Data` (the whole registrable domain) and the names that a proxy
//! before the service would obey (`X-Accel-Redirect`).

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::response::Parts;
use url::{Host, Url};

use super::To;
use super::request::{Length, drop_hop_by_hop, retain};
use crate::api::guard::{Guard, KEY_NAME};

/// What a page may do that has an opaque origin. Not `allow-same-origin`, which would take that away,
/// and not `allow-popups-to-escape-sandbox`.
const SANDBOX: HeaderValue = HeaderValue::from_static(
    "sandbox allow-downloads allow-forms allow-modals allow-pointer-lock allow-popups allow-scripts",
);
/// See the module's text.
const NOT_BY_PATH: [&str; 14] = [
    "accept-ch",
    "alt-svc",
    "critical-ch",
    "expect-ct",
    "nel",
    "origin-agent-cluster",
    "public-key-pins",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "set-cookie2",
    "strict-transport-security",
    "sourcemap",
];
const NEVER: [&str; 4] = [
    "clear-site-data",
    "x-accel-redirect",
    "x-lighttpd-send-file",
    "x-sendfile",
];
const ACCESS_CONTROL: &str = "access-control-";

/// Makes an answer's head one for the client; `keyed` when the client has sent a key in a header. Gives
/// the protocol that the server changes to. `None` when the body's end could not be told.
pub(super) fn outward(
    parts: &mut Parts,
    to: &To,
    guard: &Guard,
    keyed: bool,
) -> Option<Option<HeaderValue>> {
    let headers = &mut parts.headers;
    let length = Length::of(headers)?;
    let upgrade = drop_hop_by_hop(headers, length);
    for name in NEVER {
        headers.remove(name);
    }
    retain(headers, header::LOCATION, |value| {
        let location = value.to_str().ok()?;
        HeaderValue::try_from(redirected(location, to, guard, keyed)?).ok()
    });
    match &to.name {
        Some(_) => retain(headers, header::SET_COOKIE, own_cookie),
        None => confine(headers),
    }
    Some(upgrade)
}

fn confine(headers: &mut HeaderMap) {
    for name in NOT_BY_PATH {
        headers.remove(name);
    }
    let access: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(ACCESS_CONTROL))
        .cloned()
        .collect();
    for name in access {
        headers.remove(name);
    }
    // Beside the server's own: a page is under all of them.
    headers.append(header::CONTENT_SECURITY_POLICY, SANDBOX);
}

/// A cookie for the server's own name only. Its parent domain has other sandboxes below it.
fn own_cookie(value: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = value.as_bytes().split(|byte| *byte == b';');
    let name = |part: &[u8]| {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii().to_ascii_lowercase()
    };
    let pair = parts.next()?;
    if name(pair) == KEY_NAME.as_bytes() {
        return None;
    }
    let kept = parts.filter(|part| name(part) != b"domain");
    let all: Vec<&[u8]> = [pair].into_iter().chain(kept).collect();
    HeaderValue::from_bytes(&all.join(&b';')).ok()
}

/// A `Location` as the client can follow it; `None` where it must not.
///
/// It is resolved as browsers do it (URL standard), who forgive much, and written anew from that.
fn redirected(location: &str, to: &To, guard: &Guard, keyed: bool) -> Option<String> {
    let base = Url::parse(&format!("http://localhost:{}", to.port)).ok()?;
    let base = base.join(&to.target).ok()?;
    let url = base.join(location).ok()?;
    let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
        // Of another scheme, which is none of ours and none that reaches us.
        return (!keyed).then(|| url.to_string());
    };
    let rest = &url[url::Position::BeforePath..];
    // The server's own name for itself, as it has it from `Host`.
    if is_loopback(&host) && matches!(url.scheme(), "http" | "https") {
        return to.public(port, rest);
    }
    let authority = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_string(),
    };
    let own = to.outer_host.as_deref() == Some(authority.as_str());
    // As it has it from `X-Forwarded-Host`.
    if own || guard.answers_to(&authority) {
        return to.public(to.port, rest);
    }
    // A client that follows takes the key along: curl -L and Python's requests keep `X-API-Key`.
    (!keyed).then(|| url.to_string())
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => address.is_loopback() || address.is_unspecified(),
        Host::Ipv6(address) => address.is_loopback() || address.is_unspecified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ports::tests::{guard, to_name, to_path};
    use axum::http::Response;

    fn outward_of(to: &To, pairs: &[(&str, &str)]) -> HeaderMap {
        let mut response = Response::new(());
        for (name, value) in pairs {
            let name: HeaderName = name.parse().expect("a name");
            let value = HeaderValue::from_str(value).expect("a value");
            response.headers_mut().append(name, value);
        }
        let mut parts = response.into_parts().0;
        outward(&mut parts, to, &guard(), false).expect("the body has an end");
        parts.headers
    }

    const HARMFUL: [(&str, &str); 14] = [
        ("set-cookie", "a=b; Path=/"),
        ("clear-site-data", "\"*\""),
        ("service-worker-allowed", "/"),
        ("strict-transport-security", "max-age=99999999"),
        ("alt-svc", "h2=\"evil.example:443\""),
        ("nel", "{}"),
        ("report-to", "{}"),
        ("reporting-endpoints", "a=\"https://evil.example\""),
        ("accept-ch", "DPR"),
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("x-accel-redirect", "/secret"),
        ("keep-alive", "timeout=9"),
        ("proxy-authenticate", "Basic"),
    ];

    #[test]
    fn by_path_nothing_speaks_for_the_origin_of_the_service() {
        let sent = [
            &HARMFUL[..],
            &[
                ("content-type", "text/html"),
                ("content-security-policy", "default-src 'self'"),
                ("etag", "\"1\""),
            ],
        ]
        .concat();
        let headers = outward_of(&to_path("/"), &sent);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-security-policy", "content-type", "etag"]);
        let policies: Vec<_> = headers.get_all("content-security-policy").iter().collect();
        assert_eq!(policies[0], "default-src 'self'");
        let sandbox = policies[1].to_str().expect("a text");
        assert!(sandbox.starts_with("sandbox ") && sandbox.contains("allow-scripts"));
        for token in ["allow-same-origin", "escape", "top-navigation"] {
            assert!(!sandbox.contains(token), "{token}");
        }
    }

    #[test]
    fn by_name_a_server_speaks_for_its_own_name_only() {
        let headers = outward_of(&to_name("/"), &HARMFUL);
        assert!(!headers.contains_key("content-security-policy"));
        assert_eq!(headers["access-control-allow-origin"], "*");
        for gone in ["clear-site-data", "x-accel-redirect", "keep-alive"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        let cookies = [
            ("set-cookie", "a=b; Domain=example.com; Path=/x; HttpOnly"),
            ("set-cookie", "c=domain=d;DOMAIN = .localhost"),
            ("set-cookie", "sandcell_key=planted; Path=/"),
            ("set-cookie", "domain=e"),
        ];
        let headers = outward_of(&to_name("/"), &cookies);
        let left: Vec<_> = headers.get_all("set-cookie").iter().collect();
        assert_eq!(left, ["a=b; Path=/x; HttpOnly", "c=domain=d", "domain=e"]);
    }

    #[test]
    fn a_body_has_one_length() {
        let both = [("transfer-encoding", "chunked"), ("content-length", "3")];
        assert!(
            outward_of(&to_path("/"), &both)
                .get("content-length")
                .is_none()
        );
        let mut parts = Response::new(()).into_parts().0;
        let coding = HeaderValue::from_static("gzip, chunked");
        parts.headers.insert(header::TRANSFER_ENCODING, coding);
        assert!(outward(&mut parts, &to_path("/"), &guard(), false).is_none());
    }

    #[test]
    fn by_path_redirects_stay_below_the_prefix() {
        let to = to_path("/a/b?c");
        let prefix = to.prefix(8000);
        for (location, below) in [
            ("/x?y=1#z", "/x?y=1#z"),
            ("x", "/a/x"),
            ("../../../../sandbox/create", "/sandbox/create"),
            ("?q", "/a/b?q"),
            ("\\..\\sandbox\\create", "/sandbox/create"),
            ("http://localhost:8000/x", "/x"),
            ("http://127.0.0.1:8000", "/"),
            ("//localhost:8000/x", "/x"),
            ("http:\\\\localhost:8000\\x", "/x"),
            // Names of the service itself.
            ("http://sandbox.example/sandbox/create", "/sandbox/create"),
            ("//SANDBOX.example/x", "/x"),
            ("http://me@sandbox.example:80/x", "/x"),
            (&format!("http://sandbox.example{prefix}/x"), "/x"),
        ] {
            let followed = redirected(location, &to, &guard(), true);
            assert_eq!(followed, Some(format!("{prefix}{below}")), "{location}");
        }
        let escape = format!("{prefix}/%2e%2e/%2E./..//sandbox/create");
        let followed = redirected(&escape, &to, &guard(), true).expect("a path");
        assert!(
            followed.starts_with(&prefix) && !followed.contains(".."),
            "{followed}"
        );
        // Another port of the service's host is another port inside.
        let other = redirected("http://127.1:18100/sandbox/create", &to, &guard(), true);
        assert_eq!(other, Some(format!("{}/sandbox/create", to.prefix(18100))));
    }

    #[test]
    fn redirects_elsewhere_are_not_for_who_has_sent_a_key() {
        for to in [to_path("/"), to_name("/")] {
            for location in ["https://other.example/x", "//other.example", "other:x"] {
                assert_eq!(redirected(location, &to, &guard(), true), None);
                assert!(redirected(location, &to, &guard(), false).is_some());
            }
            assert_eq!(redirected("http://[", &to, &guard(), false), None);
        }
    }

    #[test]
    fn by_name_redirects_lead_to_names() {
        let to = to_name("/a/b");
        let host = to.outer_host.clone().expect("a host");
        let other = host.replace("8000-", "3000-");
        for (location, followed) in [
            ("/x", "/x".to_owned()),
            ("//localhost:8000/x", "/x".to_owned()),
            ("http://localhost:8000/x", "/x".to_owned()),
            (&format!("http://{host}/x"), "/x".to_owned()),
            ("http://localhost:3000/x", format!("http://{other}/x")),
        ] {
            assert_eq!(redirected(location, &to, &guard(), true), Some(followed));
        }
    }
}
