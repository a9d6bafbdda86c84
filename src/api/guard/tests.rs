//! Look-alikes of loopback, and keys.

use axum::http::{HeaderMap, HeaderValue, Uri, header};

use super::*;

fn guard(server: config::Server, listen: &str) -> Guard {
    Guard::new(&server, listen.parse().expect("an address")).expect("a safe configuration")
}

fn local() -> Guard {
    guard(config::Server::default(), "127.0.0.1:8000")
}

fn keyed() -> config::Server {
    config::Server {
        api_keys: ["first-key", "second-key"].map(ApiKey::plain).to_vec(),
        ..config::Server::default()
    }
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).expect("a header value"));
    }
    headers
}

fn host_passes(guard: &Guard, host: &str) -> bool {
    guard
        .check_host(&Uri::from_static("/health"), &headers(&[("host", host)]))
        .is_ok()
}

#[test]
fn loopback_names_and_addresses_pass_with_any_port() {
    for host in [
        "localhost",
        "LocalHost:1",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.8.9.10:65535",
        "[::1]",
        "[::1]:8000",
        "[0:0:0:0:0:0:0:1]:8000",
        "0.0.0.0:8000",
    ] {
        assert!(host_passes(&local(), host), "{host}");
    }
}

#[test]
fn look_alike_hosts_are_refused() {
    for host in [
        "",
        "evil.com",
        "localhost.evil.com",
        "evil-localhost",
        "localhost.",
        "localhost:",
        "localhost:x",
        "localhost:+1",
        "localhost:65536",
        "localhost:80:80",
        "localhost:80@evil.com",
        "localhost@evil.com",
        "user:pass@127.0.0.1",
        "evil.com@localhost",
        "localhost/evil.com",
        "localhost#evil.com",
        "localhost?evil.com",
        "localhost evil.com",
        "localhost,evil.com",
        "localhost\\evil.com",
        "127.0.0.1.nip.io",
        "127.0.0.1.evil.com:8000",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.0.0.01",
        "::1",
        "[::1",
        "::1]",
        "[::1].evil.com",
        "[::1]evil.com",
        "[::1]:8000x",
        "[::1%lo]",
        "[::ffff:10.0.0.1]",
        "[127.0.0.1]",
        "10.0.0.1",
        "192.168.0.1:8000",
        "169.254.169.254",
        "host..name",
        "%6cocalhost",
    ] {
        assert!(!host_passes(&local(), host), "{host:?}");
    }
}

#[test]
fn exactly_one_host_header_is_required() {
    let uri = Uri::from_static("/health");
    assert!(local().check_host(&uri, &HeaderMap::new()).is_err());
    for pair in [["localhost", "localhost"], ["localhost", "evil.com"]] {
        let both = headers(&[("host", pair[0]), ("host", pair[1])]);
        assert!(local().check_host(&uri, &both).is_err(), "{pair:?}");
    }
    let mut latin = HeaderMap::new();
    latin.insert(
        header::HOST,
        HeaderValue::from_bytes(b"localhost\xff").expect("opaque bytes"),
    );
    assert!(local().check_host(&uri, &latin).is_err());
}

#[test]
fn absolute_form_targets_are_checked_beside_host() {
    let local_host = headers(&[("host", "localhost:8000")]);
    for (target, passes) in [
        ("http://localhost:8000/health", true),
        ("http://127.0.0.1/health", true),
        ("http://evil.com/health", false),
        ("http://localhost@evil.com/health", false),
        ("http://evil.com@localhost/health", false),
        ("http://localhost.evil.com/health", false),
    ] {
        let uri = target.parse::<Uri>().expect("a target");
        let passed = local().check_host(&uri, &local_host).is_ok();
        assert_eq!(passed, passes, "{target}");
    }
    let ours = Uri::from_static("http://localhost:8000/health");
    assert!(
        local()
            .check_host(&ours, &headers(&[("host", "evil.com")]))
            .is_err()
    );
}

#[test]
fn listen_address_and_listed_hosts_pass() {
    let server = config::Server {
        allowed_hosts: vec!["Box.Example".into(), "other.example:8443".into()],
        ..keyed()
    };
    let guard = guard(server, "192.168.7.7:8000");
    for (host, passes) in [
        ("192.168.7.7", true),
        ("192.168.7.7:9", true),
        ("192.168.7.8", false),
        ("box.example", true),
        ("BOX.example:1234", true),
        ("a.box.example", false),
        ("other.example:8443", true),
        ("other.example", false),
        ("other.example:443", false),
    ] {
        assert_eq!(host_passes(&guard, host), passes, "{host}");
    }
}

#[test]
fn any_address_but_no_name_passes_when_listening_on_all() {
    let guard = guard(keyed(), "0.0.0.0:8000");
    assert!(host_passes(&guard, "192.168.7.7:8000"));
    assert!(host_passes(&guard, "[2001:db8::1]:8000"));
    assert!(!host_passes(&guard, "evil.com:8000"));
    assert!(!host_passes(&guard, "192.168.7.7.nip.io:8000"));
}

#[test]
fn origins_are_loopback_or_listed() {
    let server = config::Server {
        allowed_origins: vec![
            "https://App.example".into(),
            "vscode-webview://panel".into(),
        ],
        ..config::Server::default()
    };
    let guard = guard(server, "127.0.0.1:8000");
    for (origin, passes) in [
        ("http://localhost:3000", true),
        ("https://127.0.0.1", true),
        ("http://[::1]:8000", true),
        ("https://app.example", true),
        ("vscode-webview://panel", true),
        ("null", false),
        ("", false),
        ("localhost", false),
        ("file://", false),
        ("http://app.example", false),
        ("https://app.example:8443", false),
        ("https://app.example.evil.com", false),
        ("https://evil.com", false),
        ("http://localhost.evil.com", false),
        ("http://localhost:3000/", false),
        ("http://localhost@evil.com", false),
        ("http://evil.com#localhost", false),
        ("http://127.0.0.1.nip.io", false),
        ("ftp://localhost", false),
        ("chrome-extension://localhost", false),
    ] {
        let passed = guard.check_origin(&headers(&[("origin", origin)])).is_ok();
        assert_eq!(passed, passes, "{origin:?}");
    }
    for (origin, host, passes) in [
        ("http://sandbox.example:8000", "sandbox.example:8000", true),
        ("https://Sandbox.example", "sandbox.example", true),
        ("http://192.0.2.7:8000", "192.0.2.7:8000", true),
        // Another port may be another's.
        ("http://sandbox.example:9000", "sandbox.example:8000", false),
        ("http://sandbox.example", "sandbox.example:8000", false),
        ("http://page.sandbox.example", "sandbox.example", false),
        ("ftp://sandbox.example", "sandbox.example", false),
        ("sandbox.example", "sandbox.example", false),
        ("null", "null", false),
    ] {
        let sent = headers(&[("origin", origin), ("host", host)]);
        assert_eq!(guard.check_origin(&sent).is_ok(), passes, "{origin} {host}");
    }
    assert!(guard.check_origin(&HeaderMap::new()).is_ok());
    let twice = headers(&[
        ("origin", "http://localhost"),
        ("origin", "http://localhost"),
    ]);
    assert!(guard.check_origin(&twice).is_err());
}

#[test]
fn keys_pass_in_either_header_and_nothing_else_does() {
    let guard = guard(keyed(), "0.0.0.0:8000");
    for (pairs, passes) in [
        (&[("authorization", "Bearer first-key")][..], true),
        (&[("authorization", "bearer second-key")], true),
        (&[("x-api-key", "second-key")], true),
        (
            &[("authorization", "Bearer nope"), ("x-api-key", "first-key")],
            true,
        ),
        (&[], false),
        (&[("authorization", "first-key")], false),
        (&[("authorization", "Basic first-key")], false),
        (&[("authorization", "Bearer ")], false),
        (&[("x-api-key", "")], false),
        (&[("x-api-key", "first-ke")], false),
        (&[("x-api-key", "first-keyy")], false),
        (&[("x-api-key", "First-key")], false),
    ] {
        assert_eq!(guard.caller(&headers(pairs)).is_ok(), passes, "{pairs:?}");
    }
    assert!(local().caller(&HeaderMap::new()).is_ok());
}

#[test]
fn exposure_without_keys_and_useless_keys_are_refused() {
    let refused = |server: config::Server, listen: &str| {
        check(&server, listen.parse().expect("an address")).is_err()
    };
    let with_keys = |keys: &[&str]| config::Server {
        api_keys: keys.iter().map(|key| config::ApiKey::plain(key)).collect(),
        ..config::Server::default()
    };
    for listen in [
        "0.0.0.0:1",
        "[::]:1",
        "192.168.0.1:1",
        "[::ffff:127.0.0.1]:1",
    ] {
        assert!(refused(with_keys(&[]), listen), "{listen}");
        assert!(!refused(with_keys(&["key"]), listen), "{listen}");
    }
    for listen in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1"] {
        assert!(!refused(with_keys(&[]), listen), "{listen}");
    }
    for key in ["", " ", "a b", "a\nb", "schlüssel"] {
        assert!(refused(with_keys(&["good", key]), "0.0.0.0:1"), "{key:?}");
    }
}

#[test]
fn unusable_list_entries_are_named() {
    for entry in ["*", "http://x.example", "x.example/", "a b", ""] {
        let server = config::Server {
            allowed_hosts: vec![entry.into()],
            ..config::Server::default()
        };
        let error = check(&server, "127.0.0.1:1".parse().expect("an address"));
        assert!(
            error.is_err_and(|e| e.to_string().contains("allowed_hosts")),
            "{entry:?}"
        );
    }
    for entry in [
        "*",
        "null",
        "x.example",
        "*.example",
        "https://x.example/",
        "https://",
    ] {
        let server = config::Server {
            allowed_origins: vec![entry.into()],
            ..config::Server::default()
        };
        let error = check(&server, "127.0.0.1:1".parse().expect("an address"));
        assert!(
            error.is_err_and(|e| e.to_string().contains("allowed_origins")),
            "{entry:?}"
        );
    }
}

#[test]
fn every_origin_may_call_where_that_is_listed_but_none_from_inside() {
    let server = config::Server {
        api_keys: vec![ApiKey::plain("a-key")],
        allowed_origins: vec!["*".into(), "https://app.example".into()],
        ..config::Server::default()
    };
    let listen = "127.0.0.1:18100".parse().expect("an address");
    let guard = Guard::new(&server, listen).expect("it is safe");
    let inside = "http://8000-0123456789abcdefghjkmnpqrs.localhost:18100";
    for (origin, admitted, trusted) in [
        ("https://app.example", true, true),
        ("http://localhost:3000", true, true),
        ("https://other.example", true, false),
        ("null", false, false),
        ("x", false, false),
        (inside, false, false),
        (&inside.to_ascii_uppercase(), false, false),
    ] {
        let found = (guard.admits_origin(origin), guard.trusts_origin(origin));
        assert_eq!(found, (admitted, trusted), "{origin}");
    }
}
