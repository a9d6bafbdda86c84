//! Requests as other people's clients write them: byte order marks, halves of surrogate pairs.

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::fixture::sandbox::Sandbox;

fn send(sandbox: &Sandbox<'_>, body: &str) -> Value {
    let answer = sandbox.service.post(
        &sandbox.path("execute"),
        "application/json",
        body.as_bytes(),
    );
    answer.ok().json()
}

#[test]
fn a_byte_order_mark_is_taken_as_python_takes_it() {
    let service = Service::start();
    let sandbox = service.create();
    for body in [
        "\u{feff}{\"code\": \"print(1)\"}",
        "{\"code\": \"\\ufeffprint(1)\"}",
        "\u{feff}{\"code\": \"\u{feff}print(1)\"}",
    ] {
        assert_eq!(send(&sandbox, body)["stdout"], "1\n", "{body:?}");
    }
    assert_eq!(sandbox.stdout("\u{feff}print(2)"), "2\n");
    assert_eq!(
        sandbox.stdout("\u{feff}# -*- coding: utf-8 -*-\nprint('\u{feff}' == '\\ufeff')"),
        "True\n"
    );
    // One that is not at the start is Python's to refuse.
    let inside = sandbox.execute("x = 1\n\u{feff}print(1)");
    assert_eq!(inside["error"], "SyntaxError", "{inside}");
    let twice = sandbox.execute("\u{feff}\u{feff}print(1)");
    assert_eq!(twice["error"], "SyntaxError", "{twice}");
    // Other JSON, and the code of tools.
    let created = service.post(
        "/sandbox/create",
        "application/json",
        "\u{feff}{\"name\": \"marked\"}".as_bytes(),
    );
    assert_eq!(created.ok().json()["name"], "marked");
    let arguments = json!({ "sandbox_id": sandbox.id, "code": "\u{feff}print(3)" });
    let marked = format!("\u{feff}{arguments}");
    let ran = service.post(
        "/mcp/tools/execute_python_code",
        "application/json",
        marked.as_bytes(),
    );
    assert_eq!(ran.ok().json()["stdout"], "3\n");
    let utf16: Vec<u8> = "\u{feff}print(1)"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for kind in ["text/plain", "application/json"] {
        let refused = service.post(&sandbox.path("execute"), kind, &utf16);
        refused.refused(400, "invalid_utf8");
    }
    sandbox.assert_usable();
}

#[test]
fn half_of_a_surrogate_pair_in_code_is_what_python_says_of_it() {
    let service = Service::start();
    let sandbox = service.create();
    for code in [
        r"x = '\ud83d'",
        r"print(1)  # \ud83d",
        r"'\ude00'",
        r"'\udc80\udfff'",
        r"f'{1}\ud83d\ud83d\ude00'",
        r"%time '\ud83d'",
        r"await f('\ud83d')",
        r"\ud83d",
        r"!echo \ud83d",
    ] {
        let outcome = send(&sandbox, &format!("{{\"code\": \"{code}\"}}"));
        assert_eq!(outcome["error"], "UnicodeEncodeError", "{code}: {outcome}");
        assert!(
            outcome["error_value"]
                .as_str()
                .is_some_and(|text| text.ends_with("surrogates not allowed")),
            "{code}: {outcome}"
        );
        assert_eq!(outcome["state"], "kept", "{code}: {outcome}");
    }
    // Whole pairs, escapes that Python reads, and what stands for halves on the way.
    for (code, printed) in [
        (r"print('\ud83d\ude00')", "😀\n"),
        (r"print(ascii('\\ud83d'))", "'\\ud83d'\n"),
        (
            r"print(ascii('\ufdd0\ufdd1'), ascii('\udbff\udfff'))",
            "'\\ufdd0\\ufdd1' '\\U0010ffff'\n",
        ),
    ] {
        assert_eq!(
            send(&sandbox, &format!("{{\"code\": \"{code}\"}}"))["stdout"],
            printed,
            "{code}"
        );
    }
    // Tools, with and without the protocol.
    let body = format!(r#"{{"sandbox_id": "{}", "code": "'\ud83d'"}}"#, sandbox.id);
    let ran = service.post(
        "/mcp/tools/execute_python_code",
        "application/json",
        body.as_bytes(),
    );
    assert_eq!(ran.ok().json()["error"], "UnicodeEncodeError");
    sandbox.assert_usable();
}

#[test]
fn half_of_a_pair_that_would_have_to_be_bytes_is_refused_by_name() {
    let service = Service::start();
    let sandbox = service.create();
    for (path, body, field) in [
        (
            sandbox.path("execute"),
            r#"{"code": "1", "stdin": "\ud83d"}"#.to_owned(),
            "stdin",
        ),
        (
            sandbox.path("execute"),
            r#"{"code": "1", "env": {"A": "\ud83d"}}"#.to_owned(),
            "env.A",
        ),
        (
            sandbox.path("command"),
            r#"{"command": "echo \ud83d"}"#.to_owned(),
            "command",
        ),
        (
            "/sandbox/create".to_owned(),
            r#"{"name": "\ud83d"}"#.to_owned(),
            "name",
        ),
        (
            "/mcp/tools/write_file".to_owned(),
            format!(
                r#"{{"sandbox_id": "{}", "file_path": "a", "content": "\ud83d"}}"#,
                sandbox.id
            ),
            "content",
        ),
    ] {
        let refused = service.post(&path, "application/json", body.as_bytes());
        assert!(
            refused.text().contains("surrogate"),
            "{path}: {}",
            refused.text()
        );
        refused.refused_field(field);
    }
    // Broken JSON stays broken JSON.
    let broken = service.post(
        &sandbox.path("execute"),
        "application/json",
        br#"{"code": "\ud83d""#,
    );
    broken.refused(400, "malformed_json");
}

#[test]
fn a_request_full_of_halves_takes_no_longer_than_another() {
    let service = Service::start();
    let sandbox = service.create();
    let begun = std::time::Instant::now();
    let body = format!(r#"{{"code": "x = '{}'"}}"#, r"\ud83d".repeat(400_000));
    let answer = service.post(
        &sandbox.path("execute"),
        "application/json",
        body.as_bytes(),
    );
    assert_eq!(answer.ok().json()["error"], "UnicodeEncodeError");
    // Squared it would be half a minute.
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}
