//! An execution's events gathered into one outcome.

use std::collections::HashMap;
use std::mem;

use rmcp::schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::openapi;
use super::truncated::Truncated;
use super::wire::{Cost, TouchedFile};
use crate::supervisor::{
    Ended, Ending, Event, Execution, KernelState, PythonError, ResultKind, RichResult,
};

/// The answer to an execution.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Outcome {
    /// What the code wrote to standard output.
    pub(crate) stdout: String,
    /// What it wrote to standard error.
    pub(crate) stderr: String,
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
    /// What it showed, in order; every MIME type of a display is an entry.
    pub(crate) results: Vec<Entry>,
    /// Counts the context's executions; 0 when its variables are lost.
    pub(crate) execution_count: u64,
    /// What it did to files of the working directory.
    pub(crate) files: Vec<TouchedFile>,
    /// What it cost.
    pub(crate) usage: Cost,
    /// What was left out because a limit was hit; null where nothing was.
    pub(crate) truncated: Option<Truncated>,
}

/// How it ended, in words a client can act on.
#[derive(Debug, Serialize, JsonSchema, ToSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Verdict {
    /// `ok`, `error` (the code raised), `timeout`, `interrupted`, `out_of_memory` or `kernel_died`.
    #[schema(value_type = openapi::Ending)]
    pub(crate) outcome: &'static str,
    /// `kept`: variables are as the code left them. `restored`: they are as they were before this
    /// execution. `lost`: the next execution starts with none. Files are always as the code left them.
    #[schema(value_type = openapi::Variables)]
    pub(crate) state: &'static str,
    /// Why variables are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state_reason: Option<String>,
    /// What could not be restored: threads that ran, connections that were open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_restored: Vec<String>,
    /// Variables of the request's `env` that its Python could not follow, as they are fixed when an
    /// interpreter starts; programs that the code started had them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) env_not_applied: Vec<String>,
    /// Null, the exception's class name, or the outcome's name where it is neither `ok` nor `error`.
    pub(crate) error: Option<String>,
    /// The exception's message, or a sentence about the outcome.
    pub(crate) error_value: Option<String>,
    /// The exception's traceback.
    pub(crate) traceback: Option<String>,
    /// What a script would have exited with, where the code ended with `sys.exit()`, `exit()` or
    /// `SystemExit`: with 0 the outcome is `ok`, else `error`. The kernel's own exit code, where
    /// `kernel_died` by exiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// The signal that ended the kernel, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
}

/// One MIME type of one display.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ResultEntry)]
pub(crate) struct Entry {
    /// MIME type.
    #[serde(rename = "type")]
    pub(crate) mime: String,
    /// Text, JSON for JSON types, Base64 for binary ones.
    pub(crate) data: Value,
    /// Entries with the same number are of one display.
    pub(crate) bundle: usize,
    /// How it came to be shown.
    #[schema(value_type = openapi::ResultKind)]
    pub(crate) kind: &'static str,
}

/// Runs an execution to its end; `None` when the supervisor gave it up.
pub(crate) async fn gather(sandbox_id: &str, mut execution: Execution) -> Option<Outcome> {
    let mut gathered = Gathered::default();
    while let Some(event) = execution.next().await {
        if let Some(outcome) = gathered.take(sandbox_id, event) {
            return Some(outcome);
        }
    }
    None
}

/// What an execution has put out so far.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    stdout: String,
    stderr: String,
    displays: Vec<RichResult>,
    /// Places of displays with an id, the first of each.
    by_id: HashMap<String, usize>,
    error: Option<PythonError>,
    clear_pending: bool,
}

impl Gathered {
    /// Adds an event; the last one gives the outcome.
    pub(crate) fn take(&mut self, sandbox_id: &str, event: Event) -> Option<Outcome> {
        match event {
            Event::Started { .. } => {}
            Event::Stdout(text) => {
                self.clear_if_pending();
                self.stdout.push_str(&text);
            }
            Event::Stderr(text) => {
                self.clear_if_pending();
                self.stderr.push_str(&text);
            }
            Event::Result(result) => {
                self.clear_if_pending();
                self.display(result);
            }
            Event::ClearOutput { wait } => {
                self.clear_pending = true;
                if !wait {
                    self.clear_if_pending();
                }
            }
            Event::Error(error) => self.error = Some(error),
            Event::Ended(ended) => return Some(mem::take(self).end(sandbox_id, *ended)),
        }
        None
    }

    fn clear_if_pending(&mut self) {
        if mem::take(&mut self.clear_pending) {
            self.stdout.clear();
            self.stderr.clear();
            self.displays.clear();
            self.by_id.clear();
        }
    }

    /// An update takes the place of the display it updates.
    fn display(&mut self, result: RichResult) {
        let known = result
            .display_id
            .as_ref()
            .and_then(|id| self.by_id.get(id))
            .copied();
        match (result.kind, known) {
            (ResultKind::Update, Some(place)) => self.displays[place].data = result.data,
            _ => {
                if let Some(id) = &result.display_id {
                    self.by_id.entry(id.clone()).or_insert(self.displays.len());
                }
                self.displays.push(result);
            }
        }
    }

    fn end(self, sandbox_id: &str, ended: Ended) -> Outcome {
        let truncated = Truncated::of(sandbox_id, &ended);
        let bundles = self.displays.into_iter().enumerate();
        Outcome {
            stdout: self.stdout,
            stderr: self.stderr,
            verdict: Verdict::new(&ended, self.error),
            results: bundles.flat_map(|(n, shown)| entries(n, shown)).collect(),
            execution_count: ended.execution_count,
            files: touched(sandbox_id, ended.files),
            usage: ended.usage.into(),
            truncated,
        }
    }
}

pub(super) fn touched(
    sandbox_id: &str,
    files: Vec<crate::supervisor::FileChange>,
) -> Vec<TouchedFile> {
    files
        .into_iter()
        .map(|file| TouchedFile::new(sandbox_id, file))
        .collect()
}

fn entries(bundle: usize, shown: RichResult) -> impl Iterator<Item = Entry> {
    let kind = kind_name(shown.kind);
    shown.data.into_iter().map(move |(mime, data)| Entry {
        mime,
        data,
        bundle,
        kind,
    })
}

pub(super) fn kind_name(kind: ResultKind) -> &'static str {
    match kind {
        ResultKind::Display => "display",
        ResultKind::ExecuteResult => "execute_result",
        ResultKind::Update => "update",
    }
}

impl Verdict {
    pub(super) fn new(ended: &Ended, raised: Option<PythonError>) -> Self {
        let (state, state_reason, not_restored) = match &ended.state {
            KernelState::Kept => ("kept", None, Vec::new()),
            KernelState::Restored { missing } => ("restored", None, missing.clone()),
            KernelState::Lost { reason } => ("lost", Some(reason.clone()), Vec::new()),
        };
        let mut verdict = Self {
            outcome: "ok",
            state,
            state_reason,
            not_restored,
            env_not_applied: ended.env_not_applied.clone(),
            error: None,
            error_value: None,
            traceback: None,
            exit_code: ended.exit_code,
            signal: None,
        };
        let variables = match ended.state {
            KernelState::Kept => "variables are kept",
            KernelState::Restored { .. } => {
                "variables are as they were before it, files are as it left them"
            }
            KernelState::Lost { .. } => "variables are lost, files are kept",
        };
        let wall_seconds = ended.usage.wall.as_secs_f64();
        let (outcome, sentence) = match ended.ending {
            Ending::Ok => return verdict,
            Ending::Error => ("error", String::new()),
            Ending::Timeout => (
                "timeout",
                format!(
                    "the code was stopped after {wall_seconds:.1} seconds{}; {variables}",
                    killed(ended)
                ),
            ),
            Ending::Interrupted => (
                "interrupted",
                format!("the code was interrupted{}; {variables}", killed(ended)),
            ),
            Ending::OutOfMemory => (
                "out_of_memory",
                format!("the sandbox's memory limit was hit; {variables}"),
            ),
            Ending::KernelDied { code, signal } => {
                (verdict.exit_code, verdict.signal) = (code, signal);
                (
                    "kernel_died",
                    format!("{}; {variables}", death(code, signal)),
                )
            }
        };
        verdict.outcome = outcome;
        let (name, value, traceback) = match raised {
            Some(raised) => (raised.name, raised.value, Some(raised.traceback)),
            None => ("Exception".to_owned(), String::new(), None),
        };
        verdict.traceback = traceback;
        if ended.ending == Ending::Error {
            (verdict.error, verdict.error_value) = (Some(name), Some(value));
        } else {
            (verdict.error, verdict.error_value) = (Some(outcome.to_owned()), Some(sentence));
        }
        verdict
    }
}

/// What else ended with code that was stopped.
fn killed(ended: &Ended) -> String {
    match (&ended.state, ended.killed) {
        (KernelState::Kept, 0) => String::new(),
        (KernelState::Kept, 1) => ", a process that it had started was killed".to_owned(),
        (KernelState::Kept, n) => format!(", {n} processes that it had started were killed"),
        _ if ended.execution_count == 0 => String::new(),
        _ => ", its Python process and all that it had started were killed".to_owned(),
    }
}

fn death(code: Option<i32>, signal: Option<i32>) -> String {
    match (code, signal) {
        (_, Some(signal)) => {
            let name =
                nix::sys::signal::Signal::try_from(signal).map(nix::sys::signal::Signal::as_str);
            format!(
                "signal {signal} ({}) ended the Python process",
                name.unwrap_or("unknown")
            )
        }
        (Some(code), None) => format!("the Python process exited with code {code}"),
        (None, None) => "the Python process ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::supervisor::{LeftOut, Usage, Written};

    fn shown(kind: ResultKind, text: &str, display_id: Option<&str>) -> Event {
        let mut data = Map::new();
        data.insert("text/plain".into(), text.into());
        Event::Result(RichResult {
            kind,
            data,
            metadata: Map::new(),
            display_id: display_id.map(String::from),
        })
    }

    fn lost() -> KernelState {
        KernelState::Lost {
            reason: "a reason".into(),
        }
    }

    fn restored() -> KernelState {
        KernelState::Restored {
            missing: Vec::new(),
        }
    }

    fn end(ending: Ending, state: KernelState) -> Event {
        Event::Ended(Box::new(Ended {
            ending,
            state,
            execution_count: 3,
            files: Vec::new(),
            files_truncated: false,
            results_left_out: LeftOut::default(),
            exit_code: None,
            disk_full: false,
            env_not_applied: Vec::new(),
            killed: 0,
            usage: Usage::default(),
            stdout: Written::default(),
            stderr: Written::default(),
        }))
    }

    fn outcome(events: impl IntoIterator<Item = Event>) -> Outcome {
        let mut gathered = Gathered::default();
        let mut events = events.into_iter();
        events
            .find_map(|event| gathered.take("id", event))
            .expect("an end")
    }

    fn finished(events: impl IntoIterator<Item = Event>) -> Outcome {
        let end = end(Ending::Ok, KernelState::Kept);
        outcome(events.into_iter().chain([end]))
    }

    #[test]
    fn cleared_output_is_gone_at_once_or_with_the_next() {
        let print = |text: &str| Event::Stdout(text.into());
        let clear = |wait| Event::ClearOutput { wait };
        assert_eq!(finished([print("a"), clear(false)]).stdout, "");
        assert_eq!(finished([print("a"), clear(true)]).stdout, "a");
        assert_eq!(finished([print("a"), clear(true), print("b")]).stdout, "b");
        let display = shown(ResultKind::Display, "x", None);
        let cleared = finished([display, clear(true), print("b")]);
        assert!(cleared.results.is_empty());
    }

    #[test]
    fn an_update_replaces_its_display() {
        let updated = finished([
            shown(ResultKind::Display, "0 %", Some("bar")),
            shown(ResultKind::Display, "other", None),
            shown(ResultKind::Update, "50 %", Some("bar")),
            shown(ResultKind::Update, "of an earlier execution", Some("old")),
        ]);
        let texts: Vec<_> = updated.results.iter().map(|entry| &entry.data).collect();
        assert_eq!(texts, ["50 %", "other", "of an earlier execution"]);
        let bundles: Vec<_> = updated.results.iter().map(|entry| entry.bundle).collect();
        assert_eq!(bundles, [0, 1, 2]);
    }

    #[test]
    fn endings_are_distinct() {
        let (kept, restored, lost) = (KernelState::Kept, restored(), lost());
        let died = |code, signal| Ending::KernelDied { code, signal };
        for (ending, state, error, said) in [
            (Ending::Ok, kept.clone(), None, ""),
            (Ending::Error, kept.clone(), Some("Exception"), ""),
            (
                Ending::Timeout,
                kept.clone(),
                Some("timeout"),
                "variables are kept",
            ),
            (
                Ending::Timeout,
                lost.clone(),
                Some("timeout"),
                "files are kept",
            ),
            (
                Ending::Interrupted,
                kept.clone(),
                Some("interrupted"),
                "interrupted",
            ),
            (
                Ending::OutOfMemory,
                restored.clone(),
                Some("out_of_memory"),
                "memory limit",
            ),
            (
                died(Some(3), None),
                lost.clone(),
                Some("kernel_died"),
                "exited with code 3",
            ),
            (
                died(None, Some(11)),
                lost.clone(),
                Some("kernel_died"),
                "SIGSEGV",
            ),
        ] {
            let word = match &state {
                KernelState::Kept => "kept",
                KernelState::Restored { .. } => "restored",
                KernelState::Lost { .. } => "lost",
            };
            let verdict = outcome([end(ending, state)]).verdict;
            assert_eq!(verdict.error.as_deref(), error, "{ending:?}");
            let value = verdict.error_value.unwrap_or_default();
            assert!(value.contains(said), "{ending:?}: {value}");
            assert_eq!(verdict.state, word);
            assert_eq!(verdict.state_reason.is_some(), word == "lost");
        }
    }

    #[test]
    fn an_exception_is_told_by_name_and_dropped_output_by_a_marker() {
        let raised = Event::Error(PythonError {
            name: "ValueError".into(),
            value: "no".into(),
            traceback: "Traceback".into(),
        });
        let verdict = outcome([raised, end(Ending::Error, KernelState::Kept)]).verdict;
        assert_eq!(verdict.error.as_deref(), Some("ValueError"));
        assert_eq!(verdict.error_value.as_deref(), Some("no"));
        assert_eq!(verdict.traceback.as_deref(), Some("Traceback"));
        let Event::Ended(mut ended) = end(Ending::Ok, KernelState::Kept) else {
            unreachable!("just made");
        };
        ended.stdout = Written {
            bytes: 8,
            left_out_bytes: 7,
            saved: None,
        };
        let cut = outcome([Event::Stdout("x".into()), Event::Ended(ended)]);
        assert_eq!(cut.stdout, "x");
        let truncated = serde_json::to_value(cut.truncated).expect("JSON");
        assert_eq!(
            (&truncated["stdout_bytes"], &truncated["kept"]),
            (&8.into(), &1.into())
        );
    }
}
