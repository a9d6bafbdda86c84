//! Names that are not UTF-8, as text.

/// Text form of a name: itself where it is UTF-8, else with `%` and invalid bytes percent-encoded.
pub fn shown(path: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(path) {
        return text.to_owned();
    }
    let mut text = String::with_capacity(path.len() + 16);
    for chunk in path.utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25"));
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
