//! `tests/data/kernel_cases.json`: code and what a kernel must make of it, as the file itself says.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fixture::Service;
use crate::fixture::http::Incoming;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    code: String,
    stdin: Option<String>,
    stdout: Option<String>,
    stderr: Option<String>,
    #[serde(default)]
    stdout_contains: Texts,
    #[serde(default)]
    stderr_contains: Texts,
    #[serde(default)]
    traceback_contains: Texts,
    #[serde(default)]
    traceback_excludes: Texts,
    error: Option<String>,
    error_value: Option<String>,
    result_text: Option<String>,
    result_mimes: Option<Vec<String>>,
    #[serde(default)]
    result_data: Map<String, Value>,
    results: Option<usize>,
    files: Option<Vec<String>>,
    execution_count: Option<u64>,
}

/// A text or a list of texts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Default for Texts {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Texts {
    fn iter(&self) -> impl Iterator<Item = &String> {
        match self {
            Self::One(text) => std::slice::from_ref(text).iter(),
            Self::Many(texts) => texts.iter(),
        }
    }
}

/// An execution's events, put together.
#[derive(Debug, Default)]
struct Seen {
    stdout: String,
    stderr: String,
    error: Value,
    /// MIME data of each result, updates included.
    results: Vec<Map<String, Value>>,
    ended: Value,
}

impl Seen {
    fn of(mut events: Incoming) -> Self {
        let mut seen = Self::default();
        while let Some(event) = events.event() {
            match text(&event["type"]) {
                "stdout" => seen.stdout.push_str(text(&event["text"])),
                "stderr" => seen.stderr.push_str(text(&event["text"])),
                "error" => seen.error = event,
                "result" => seen
                    .results
                    .push(event["data"].as_object().expect("a bundle").clone()),
                "ended" => seen.ended = event,
                _ => {}
            }
        }
        seen
    }
}

impl Step {
    /// What is not as the step says.
    fn differences(&self, seen: &Seen) -> Vec<String> {
        let mut differences = Vec::new();
        let mut check = |what: &str, wanted: &Value, got: &Value| {
            if wanted != got {
                differences.push(format!("{what}: wanted {wanted}, got {got}"));
            }
        };
        check("error", &json!(self.error), &seen.ended["error"]);
        for (what, wanted, got) in [
            ("stdout", &self.stdout, &seen.stdout),
            ("stderr", &self.stderr, &seen.stderr),
        ] {
            if let Some(wanted) = wanted {
                check(what, &json!(wanted), &json!(got));
            }
        }
        if let Some(value) = &self.error_value {
            check("error_value", &json!(value), &seen.ended["error_value"]);
        }
        if let Some(count) = self.execution_count {
            check(
                "execution_count",
                &json!(count),
                &seen.ended["execution_count"],
            );
        }
        if let Some(files) = &self.files {
            let got: Vec<String> = seen.ended["files"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|f| format!("{} {}", text(&f["change"]), text(&f["path"])))
                .collect();
            check("files", &json!(files), &json!(got));
        }
        if let Some(count) = self.results {
            check("results", &json!(count), &json!(seen.results.len()));
        }
        let last = seen.results.last();
        if let Some(mimes) = &self.result_mimes {
            let mut got: Vec<&String> = last.into_iter().flat_map(Map::keys).collect();
            got.sort_unstable();
            check("result_mimes", &json!(mimes), &json!(got));
        }
        if let Some(wanted) = &self.result_text {
            let got = last
                .and_then(|r| r.get("text/plain"))
                .unwrap_or(&Value::Null);
            check("result_text", &json!(wanted), got);
        }
        for (mime, wanted) in &self.result_data {
            let got = last.and_then(|r| r.get(mime)).unwrap_or(&Value::Null);
            check(mime, wanted, got);
        }
        let traceback = text(&seen.error["traceback"]);
        for (what, texts, within, contained) in [
            ("stdout", &self.stdout_contains, seen.stdout.as_str(), true),
            ("stderr", &self.stderr_contains, &seen.stderr, true),
            ("traceback", &self.traceback_contains, traceback, true),
            ("traceback", &self.traceback_excludes, traceback, false),
        ] {
            for text in texts
                .iter()
                .filter(|text| within.contains(*text) != contained)
            {
                differences.push(format!(
                    "{what} {} {text:?}",
                    if contained { "lacks" } else { "holds" }
                ));
            }
        }
        differences
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn code_does_what_the_cases_say() {
    let file: File =
        serde_json::from_str(include_str!("../data/kernel_cases.json")).expect("cases");
    let service = Service::preloaded();
    let mut failures = Vec::new();
    for case in &file.cases {
        let sandbox = service.create();
        for (number, step) in case.steps.iter().enumerate() {
            let mut request = json!({ "code": step.code });
            if let Some(stdin) = &step.stdin {
                request["stdin"] = json!(stdin);
            }
            let seen = Seen::of(sandbox.stream_json(request));
            let differences = step.differences(&seen);
            if !differences.is_empty() {
                let place = format!("{} (step {}): {}", case.name, number + 1, step.code);
                failures.push(format!(
                    "{place}\n  {}\n{seen:.4000?}",
                    differences.join("\n  ")
                ));
                break;
            }
        }
        sandbox.close().ok();
    }
    assert!(
        failures.is_empty(),
        "{} of {} cases:\n{}",
        failures.len(),
        file.cases.len(),
        failures.join("\n\n")
    );
}
