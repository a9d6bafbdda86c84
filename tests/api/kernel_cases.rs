//! `tests/data/kernel_cases.json`: code and what a kernel must make of it, as the file itself says.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::fixture::{Service, shown};

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

impl Step {
    /// What is not as the step says.
    fn differences(&self, outcome: &Value) -> Vec<String> {
        let mut differences = Vec::new();
        let mut check = |what: &str, wanted: &Value, got: &Value| {
            if wanted != got {
                differences.push(format!("{what}: wanted {wanted}, got {got}"));
            }
        };
        check("error", &json!(self.error), &outcome["error"]);
        for (what, wanted) in [
            ("stdout", &self.stdout),
            ("stderr", &self.stderr),
            ("error_value", &self.error_value),
        ] {
            if let Some(wanted) = wanted {
                check(what, &json!(wanted), &outcome[what]);
            }
        }
        if let Some(count) = self.execution_count {
            check("execution_count", &json!(count), &outcome["execution_count"]);
        }
        if let Some(files) = &self.files {
            let got: Vec<String> = list(&outcome["files"])
                .map(|f| format!("{} {}", text(&f["change"]), text(&f["path"])))
                .collect();
            check("files", &json!(files), &json!(got));
        }
        let bundles: Vec<u64> = list(&outcome["results"]).filter_map(|r| r["bundle"].as_u64()).collect();
        let last = bundles.last();
        if let Some(count) = self.results {
            let mut distinct = bundles.clone();
            distinct.dedup();
            check("results", &json!(count), &json!(distinct.len()));
        }
        let of_last = || list(&outcome["results"]).filter(move |r| r["bundle"].as_u64().as_ref() == last);
        if let Some(mimes) = &self.result_mimes {
            let mut got: Vec<&str> = of_last().map(|r| text(&r["type"])).collect();
            got.sort_unstable();
            check("result_mimes", &json!(mimes), &json!(got));
        }
        if let Some(wanted) = &self.result_text {
            let got = of_last().find(|r| r["type"] == "text/plain").map(|r| &r["data"]);
            check("result_text", &json!(wanted), got.unwrap_or(&Value::Null));
        }
        for (what, wanted, contained) in [
            ("stdout", &self.stdout_contains, true),
            ("stderr", &self.stderr_contains, true),
            ("traceback", &self.traceback_contains, true),
            ("traceback", &self.traceback_excludes, false),
        ] {
            for wanted in wanted.iter().filter(|w| text(&outcome[what]).contains(*w) != contained) {
                differences.push(format!("{what}: {} {wanted:?}", if contained { "lacks" } else { "holds" }));
            }
        }
        differences
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn code_does_what_the_cases_say() {
    let file: File = serde_json::from_str(include_str!("../data/kernel_cases.json")).expect("cases");
    let service = Service::preloaded();
    let mut failures = Vec::new();
    for case in &file.cases {
        let sandbox = service.create();
        for (number, step) in case.steps.iter().enumerate() {
            let outcome = sandbox.execute(&step.code);
            let differences = step.differences(&outcome);
            if !differences.is_empty() {
                let place = format!("{} (step {}): {}", case.name, number + 1, step.code);
                failures.push(format!("{place}\n  {}\n{}", differences.join("\n  "), shown(&outcome)));
                break;
            }
        }
        sandbox.close().ok();
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), file.cases.len(), failures.join("\n\n"));
}
