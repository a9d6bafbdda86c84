//! Examples of every route: requests that were really run, and their answers. A test runs them again
//! (`tests/api/document.rs`), and writes them down anew when it is asked to.

use std::sync::LazyLock;

use serde_json::Value;

/// The sandbox of all examples.
pub(super) const SANDBOX_ID: &str = "7k2m9q4r8s1t3v5w6x0y2z4a6b";

/// By the operation's id: `request` and `answer`.
static EXAMPLES: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("examples.json")).expect("a test has read them")
});

/// Gives an operation its example.
pub(super) fn add(operation: &mut Value) {
    let Some(id) = operation["operationId"].as_str() else {
        return;
    };
    let example = &EXAMPLES[id];
    for (part, place) in [
        ("request", "/requestBody/content/application~1json"),
        ("answer", "/responses/200/content/application~1json"),
    ] {
        let content = operation.pointer_mut(place);
        if let (Some(value), Some(content)) = (example.get(part), content) {
            content["example"] = value.clone();
        }
    }
    if let Some(code) = operation.pointer_mut("/requestBody/content/text~1plain") {
        code["example"] = "print(6 * 7)".into();
    }
}
