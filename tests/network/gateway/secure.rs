//! TLS: whom the gateway believes, and that it never goes from an encrypted connection to an open one.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sandcell::mirror::host::PythonIndex;

use super::fake::{Fake, file, get, page, path_of, quick, reply};
use super::serving::Serving;

/// A server's settings with a certificate that only those trust who are given it (PEM).
fn tls() -> (Arc<ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (Arc::new(config), made.cert.pem())
}

#[test]
fn only_a_trusted_certificate_or_a_trusted_host_is_believed_and_tls_is_kept() {
    let open = Fake::start(|_| page(&[]));
    let (away, link) = (open.url("/simple/down/"), open.url("/f/a.whl"));
    let (config, pem) = tls();
    let fake = Fake::listen(Some(config), move |seen| match seen.path.as_str() {
        "/simple/down/" => reply(302, &format!("location: {away}\r\n"), ""),
        "/simple/open/" => page(&[file("a.whl", &link, b"a")]),
        _ => page(&[]),
    });
    let index = |trusted: &[String]| PythonIndex {
        url: Some(format!("https://{}/simple/", fake.address)),
        trusted_hosts: trusted.to_vec(),
        ..PythonIndex::default()
    };
    let ask = |certificates: &str, trusted: &[String]| {
        let serving = Serving::of(&quick(), &index(trusted), certificates);
        let answer = get(serving.address, "/simple/a/");
        (answer.status, answer.text())
    };
    let (status, text) = ask("", &[]);
    assert!(
        status == 503 && text.contains("certificate"),
        "{status} {text}"
    );
    let (_, another) = tls();
    assert_eq!(ask(&another, &[]).0, 503);
    assert_eq!(ask("", &["192.0.2.1".to_owned()]).0, 503);
    assert_eq!(ask(&pem, &[]).0, 200);
    assert_eq!(ask("", &[fake.address.to_string()]).0, 200);
    assert_eq!(ask("", &["127.0.0.1".to_owned()]).0, 200);

    let serving = Serving::of(&quick(), &index(&[]), &pem);
    for path in ["/simple/down/".to_owned(), path_of("open", "a.whl", b"a")] {
        let answer = get(serving.address, &path);
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert!(
            answer.text().contains("encrypted connection"),
            "{}",
            answer.text()
        );
    }
    assert!(open.seen("").is_empty());
}
