//! What tools answer: text for a model, images once, links to files, and the structured content
//! that `outputSchema` promises.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject, Resource};
use rmcp::schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::resources;
use crate::api::download::mime_of;
use crate::api::error::Refusal;
use crate::api::outcome::{Entry, Outcome, Verdict};
use crate::api::truncated::Truncated;
use crate::api::wire::{
    CommandAnswer, Cost, OutputAnswer, ProcessAnswer, ProcessEndAnswer, TouchedFile,
};

/// Displays in other forms, the most readable first; one of each display is shown.
const TEXTS: [&str; 7] = [
    "text/plain",
    "text/markdown",
    "text/latex",
    "application/json",
    "image/svg+xml",
    "text/html",
    "application/javascript",
];
/// What a program reads of a refusal, in the metadata of an answer.
const REFUSAL: &str = "sandcell/refusal";
/// Links to files in one answer; the structured content lists them all.
const LINKS: usize = 20;

/// Bytes of an image in base64. Interfaces of models take 5 MB, and refuse the whole conversation for one
/// that is larger.
const IMAGE_BASE64_BYTES: usize = 5_000_000;

/// Structured content of `execute_python_code`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct PythonAnswer {
    #[serde(flatten)]
    verdict: Verdict,
    /// What the code printed.
    stdout: String,
    /// What it wrote to standard error, warnings for example.
    stderr: String,
    /// Displays and the value of the last expression, as text.
    results: Vec<TextResult>,
    /// How many images follow as image content.
    image_count: usize,
    /// Counts the executions of the context.
    execution_count: u64,
    /// Files of the working directory that the code created, changed or deleted.
    files: Vec<TouchedFile>,
    usage: Cost,
    /// What was too long and was cut; null when nothing was.
    truncated: Option<Truncated>,
}

/// A display as text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct TextResult {
    /// MIME type.
    #[serde(rename = "type")]
    mime: String,
    text: String,
}

/// A success with structured content.
pub(crate) fn success(structured: &impl Serialize, content: Vec<ContentBlock>) -> CallToolResult {
    let mut result = CallToolResult::success(content);
    result.structured_content = serde_json::to_value(structured).ok();
    result
}

/// A refusal, for the model to act on.
pub(crate) fn failure(refusal: &Refusal) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(advice(refusal))]);
    let mut meta = MetaObject::new();
    meta.insert(REFUSAL.to_owned(), refusal.facts());
    result.meta = Some(meta);
    result
}

/// A refusal and what to do about it.
pub(super) fn advice(refusal: &Refusal) -> String {
    let hint = match refusal.code() {
        "sandbox_not_found" => {
            ". It may have expired or been closed; list_sandboxes shows which are alive, \
             create_sandbox makes a new one"
        }
        "context_not_found" => ". list_contexts shows which there are",
        "mirror_not_found" => ". list_mirrors shows which there are",
        "process_not_found" => ". list_processes shows which there are",
        "process_ended" => ". read_process_output shows what it printed and how it ended",
        "file_not_found" => ". list_files shows what there is",
        "container_not_found" | "workspace_not_found" => {
            ". It may have expired or been stopped; sandbox_initialize makes a new one"
        }
        _ => "",
    };
    format!("{}{hint} ({})", refusal.detail(), refusal.code())
}

/// The refusal that [`failure`] made this of.
pub(crate) fn refusal_of(result: &CallToolResult) -> Option<Refusal> {
    let facts = result.meta.as_ref()?.get(REFUSAL)?;
    let text = &result.content.first()?.as_text()?.text;
    let code = format!(" ({})", facts["code"].as_str()?);
    Refusal::of_facts(facts, text.strip_suffix(&code).unwrap_or(text))
}

/// An execution's outcome. `base` is where the client reaches this service over HTTP, if it does; else
/// files are linked to as resources.
pub(crate) fn python(outcome: Outcome, sandbox_id: &str, base: Option<&str>) -> CallToolResult {
    let shown = Shown::of(&outcome.results);
    let text = describe(&outcome, &shown);
    let mut content = vec![ContentBlock::text(text)];
    content.extend(shown.images);
    content.extend(links(&outcome.files, sandbox_id, base));
    let failed = outcome.verdict.error.is_some();
    let structured = PythonAnswer {
        verdict: outcome.verdict,
        stdout: outcome.stdout,
        stderr: outcome.stderr,
        image_count: content
            .iter()
            .filter(|block| block.as_image().is_some())
            .count(),
        results: shown.texts,
        execution_count: outcome.execution_count,
        files: outcome.files,
        usage: outcome.usage,
        truncated: outcome.truncated,
    };
    let mut result = success(&structured, content);
    result.is_error = Some(failed);
    result
}

/// Displays, each in one form.
struct Shown {
    texts: Vec<TextResult>,
    images: Vec<ContentBlock>,
}

impl Shown {
    fn of(results: &[Entry]) -> Self {
        let mut shown = Self {
            texts: Vec::new(),
            images: Vec::new(),
        };
        for bundle in results.chunk_by(|left, right| left.bundle == right.bundle) {
            let image = bundle.iter().find_map(image);
            let text = TEXTS.iter().find_map(|mime| as_text(bundle, mime));
            match (image, text) {
                (Some(Image::Shown(image)), _) => shown.images.push(image),
                (Some(Image::TooLarge(text)), _) => shown.texts.push(text),
                (None, Some(text)) => shown.texts.push(text),
                (None, None) => shown.texts.push(unreadable(bundle)),
            }
        }
        shown
    }
}

/// The type of an image that models take, by its first bytes: clients pass images on to interfaces
/// that refuse the whole conversation for one that is not what it claims to be.
pub(crate) fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Some("image/webp"),
        _ => None,
    }
}

/// An image, or what is told in its place.
enum Image {
    Shown(ContentBlock),
    TooLarge(TextResult),
}

fn image(entry: &Entry) -> Option<Image> {
    if !entry.mime.starts_with("image/") {
        return None;
    }
    let mut data = entry.data.as_str()?.to_owned();
    data.retain(|c| !c.is_ascii_whitespace());
    let mime = image_type(&BASE64.decode(&data).ok()?)?;
    if data.len() > IMAGE_BASE64_BYTES {
        return Some(Image::TooLarge(TextResult {
            mime: "text/plain".to_owned(),
            text: format!(
                "[{mime} of {} bytes in base64 is not shown, the limit is {IMAGE_BASE64_BYTES}: \
                 display it smaller, or save it to a file]",
                data.len()
            ),
        }));
    }
    Some(Image::Shown(ContentBlock::image(data, mime)))
}

fn as_text(bundle: &[Entry], mime: &str) -> Option<TextResult> {
    let entry = bundle.iter().find(|entry| entry.mime == mime)?;
    let text = match &entry.data {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(TextResult {
        mime: mime.to_owned(),
        text,
    })
}

fn unreadable(bundle: &[Entry]) -> TextResult {
    let types: Vec<&str> = bundle.iter().map(|entry| entry.mime.as_str()).collect();
    TextResult {
        mime: "text/plain".to_owned(),
        text: format!("[a display of type {}]", types.join(", ")),
    }
}

fn describe(outcome: &Outcome, shown: &Shown) -> String {
    let mut text = String::new();
    section(&mut text, "", &outcome.stdout);
    section(&mut text, "[stderr]\n", &outcome.stderr);
    for result in &shown.texts {
        section(&mut text, "", &result.text);
    }
    let verdict = &outcome.verdict;
    if let Some(traceback) = &verdict.traceback {
        section(&mut text, "", traceback);
    }
    if verdict.outcome == "error" && verdict.traceback.as_deref().unwrap_or_default().is_empty() {
        let name = verdict.error.as_deref().unwrap_or_default();
        let value = verdict.error_value.as_deref().unwrap_or_default();
        section(&mut text, "", &format!("{name}: {value}"));
    }
    if !matches!(verdict.outcome, "ok" | "error") {
        let sentence = verdict.error_value.as_deref().unwrap_or_default();
        section(&mut text, "", &format!("[{}] {sentence}", verdict.outcome));
    }
    let truncated = outcome.truncated.as_ref();
    if let Some(count @ 1..) = truncated.map(|t| t.results_left_out) {
        let left_out = format!("[of {count} results something is left out: they are too large]");
        section(&mut text, "", &left_out);
    }
    let saved = truncated.map(|t| [("stdout", &t.stdout_file), ("stderr", &t.stderr_file)]);
    for (name, file) in saved.into_iter().flatten() {
        if let Some(file) = file {
            let part = if file.complete {
                "all"
            } else {
                "the beginning"
            };
            let kept = format!(
                "[{part} of {name} is in {} ({} bytes)]",
                file.path, file.size
            );
            section(&mut text, "", &kept);
        }
    }
    let mut files = String::new();
    for file in outcome.files.iter().take(LINKS) {
        let _ = writeln!(files, "{} {} ({} bytes)", file.change, file.path, file.size);
    }
    if let Some(more) = outcome.files.len().checked_sub(LINKS + 1) {
        let _ = writeln!(files, "and {} more", more + 1);
    }
    section(&mut text, "[files]\n", &files);
    if text.is_empty() {
        text.push_str(if shown.images.is_empty() {
            "The code ran and printed nothing."
        } else {
            "The code ran and displayed what follows."
        });
    }
    text
}

pub(super) fn section(text: &mut String, title: &str, body: &str) {
    let body = body.trim_end();
    if body.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(title);
    text.push_str(body);
}

fn links<'a>(
    files: &'a [TouchedFile],
    sandbox_id: &'a str,
    base: Option<&'a str>,
) -> impl Iterator<Item = ContentBlock> + 'a {
    let served = files.iter().filter_map(move |file| {
        let url = file.url.as_deref()?;
        let uri = match base {
            Some(base) => format!("{base}{url}"),
            None => resources::uri(sandbox_id, &file.path),
        };
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let mut link = Resource::new(uri, name);
        link.mime_type = Some(mime_of(&file.path).to_owned());
        link.size = Some(file.size);
        Some(ContentBlock::resource_link(link))
    });
    served.take(LINKS)
}

/// A command's end. A status other than 0 is an answer, not a failure: `grep` says "no" with it.
pub(crate) fn command(answer: &CommandAnswer) -> CallToolResult {
    let mut text = String::new();
    section(&mut text, "", &answer.stdout);
    section(&mut text, "[stderr]\n", &answer.stderr);
    let end = match (answer.ended.timed_out, answer.ended.out_of_memory) {
        (true, _) => "[timeout] the command was killed when its time was over",
        (_, true) => "[out_of_memory] the sandbox's memory limit was hit",
        _ => "",
    };
    section(&mut text, "", end);
    let exit_code = answer.ended.exit_code;
    section(&mut text, "", &format!("[exit code] {exit_code}"));
    let mut result = success(answer, vec![ContentBlock::text(text)]);
    result.is_error = Some(answer.ended.timed_out || answer.ended.out_of_memory);
    result
}

/// What became of a process.
fn fate(state: &str, end: &ProcessEndAnswer) -> String {
    match (end.exit_code, &end.signal) {
        (Some(code), Some(signal)) => format!("{state}, {signal}, exit code {code}"),
        (Some(code), None) => format!("{state}, exit code {code}"),
        (None, _) => state.to_owned(),
    }
}

/// A background process in a list.
pub(crate) fn process_line(process: &ProcessAnswer) -> String {
    let command = process.command.as_deref().unwrap_or("a shell");
    let fate = fate(process.state, &process.end);
    format!("{} {command:?} ({fate})", process.process_id)
}

/// Output of a background process, streams told apart, and where to go on.
pub(crate) fn process_output(answer: &OutputAnswer) -> CallToolResult {
    let mut text = String::new();
    if answer.lost_bytes > 0 {
        let lost = format!(
            "[{} bytes before this are not kept any more]",
            answer.lost_bytes
        );
        section(&mut text, "", &lost);
    }
    for chunk in &answer.chunks {
        let title = match chunk.stream {
            "stderr" => "[stderr]\n",
            _ => "",
        };
        section(&mut text, title, &chunk.text);
    }
    let fate = fate(answer.state, &answer.end);
    let end = format!("[{fate}] next_offset {}", answer.next_offset);
    section(&mut text, "", &end);
    success(answer, vec![ContentBlock::text(text)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bundle: usize, mime: &str, data: &str) -> Entry {
        Entry {
            mime: mime.into(),
            data: data.into(),
            bundle,
            kind: "display",
        }
    }

    #[test]
    fn a_figure_is_shown_once_and_a_table_as_text() {
        let shown = Shown::of(&[
            entry(0, "image/png", "iVBORw0K\nGgo=\n"),
            entry(0, "text/plain", "<Figure>"),
            entry(1, "text/html", "<table>"),
            entry(1, "text/plain", "  a\n0 1"),
            entry(2, "application/x-odd", "?"),
        ]);
        let images: Vec<_> = shown
            .images
            .iter()
            .filter_map(ContentBlock::as_image)
            .collect();
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].data, "iVBORw0KGgo=");
        assert_eq!(images[0].mime_type, "image/png");
        let texts: Vec<_> = shown.texts.iter().map(|text| text.text.as_str()).collect();
        assert_eq!(texts, ["  a\n0 1", "[a display of type application/x-odd]"]);
    }

    #[test]
    fn an_image_that_no_model_takes_is_told_in_words() {
        let head = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
        for (bytes, images) in [(3_000_000, 1), (4_000_000, 0)] {
            let mut png = head.to_vec();
            png.resize(bytes, 0);
            let shown = Shown::of(&[entry(0, "image/png", &BASE64.encode(png))]);
            assert_eq!(
                (shown.images.len(), shown.texts.len()),
                (images, 1 - images)
            );
        }
    }

    #[test]
    fn a_forged_image_is_no_image() {
        for data in ["", "not base64!", "====", "aGVsbG8="] {
            let shown = Shown::of(&[entry(0, "image/png", data)]);
            assert!(shown.images.is_empty(), "{data:?}");
            assert_eq!(shown.texts.len(), 1);
        }
    }
}
