//! Files of sandboxes as resources: `sandcell://{sandbox_id}/{path}`, the path percent-encoded.
//!
//! A client may ask for all files of all its sandboxes, so a list comes in pages, and a page looks into
//! a bounded number of sandboxes. Lists are in the order of ids and paths, which a cursor names the last
//! of: files that come and go between pages are neither told twice nor make others be left out.

use std::fmt::Write as _;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as CURSOR;
use rmcp::ErrorData;
use rmcp::model::{ListResourcesResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::api::download::{mime_of, percent_decode, read_all};
use crate::api::error::Refusal;
use crate::api::wire::percent_encode;
use crate::supervisor::{FileEntry, Supervisor};

/// Resources of a page.
const PAGE: usize = 200;
/// Sandboxes that a page looks into.
const PAGE_SANDBOXES: usize = 16;
/// Bytes of a file that is read at once.
const READ_BYTES: u64 = 5 * 1024 * 1024;
const SCHEME: &str = "sandcell://";

/// Address of a file.
pub(super) fn uri(sandbox_id: &str, path: &str) -> String {
    format!("{SCHEME}{sandbox_id}/{}", percent_encode(path, b"/"))
}

/// The sandbox and the path of an address.
fn parse(uri: &str) -> Option<(&str, String)> {
    let (id, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let path = String::from_utf8(percent_decode(path)?).ok()?;
    (!id.is_empty() && !path.is_empty()).then_some((id, path))
}

/// How addresses are made.
pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new("sandcell://{sandbox_id}/{+path}", "sandbox-file")
        .with_title("File of a sandbox")
        .with_description(
            "A file of a sandbox's working directory: sandbox_id as the tools give it (some call it \
             container_id), path relative to the working directory, percent-encoded.",
        )
}

/// One page of the files of all sandboxes that the supervisor's handle sees.
///
/// # Errors
/// The cursor is none of ours.
pub(super) async fn list(
    supervisor: &Supervisor,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, ErrorData> {
    let from = cursor.map(read_cursor).transpose()?;
    let (from_id, from_path) = from.unwrap_or_default();
    let mut ids: Vec<String> = supervisor.list().into_iter().map(|info| info.id).collect();
    ids.retain(|id| *id >= from_id);
    ids.sort();
    let mut resources = Vec::new();
    let mut last = None;
    for (looked_into, id) in ids.iter().enumerate() {
        if looked_into == PAGE_SANDBOXES {
            return Ok(page(resources, last));
        }
        // One that was closed meanwhile has no files.
        let mut files = supervisor.list_files(id).await.unwrap_or_default();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        for file in &files {
            if *id == from_id && file.path <= from_path {
                continue;
            }
            if resources.len() == PAGE {
                return Ok(page(resources, last));
            }
            resources.push(resource(id, file));
            last = Some((id.clone(), file.path.clone()));
        }
        // All of it was told.
        last = Some((id.clone(), char::MAX.to_string()));
    }
    Ok(page(resources, None))
}

fn page(resources: Vec<Resource>, last: Option<(String, String)>) -> ListResourcesResult {
    let mut result = ListResourcesResult::with_all_items(resources);
    result.next_cursor = last.map(|(id, path)| CURSOR.encode(format!("{id}/{path}")));
    result
}

fn read_cursor(cursor: &str) -> Result<(String, String), ErrorData> {
    let text = CURSOR.decode(cursor).ok();
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
    let parts = text.as_deref().and_then(|text| text.split_once('/'));
    let (id, path) = parts.ok_or_else(|| {
        ErrorData::invalid_params("cursor: must be the nextCursor of an answer", None)
    })?;
    Ok((id.to_owned(), path.to_owned()))
}

fn resource(id: &str, file: &FileEntry) -> Resource {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let mut description = String::new();
    let _ = write!(description, "{} of sandbox {id}", file.path);
    Resource::new(uri(id, &file.path), name)
        .with_description(description)
        .with_mime_type(mime_of(&file.path))
        .with_size(file.size)
}

/// The content of a file: text where it is UTF-8, else bytes.
///
/// # Errors
/// There is no such file, or it is too large.
pub(super) async fn read(
    supervisor: &Supervisor,
    address: &str,
) -> Result<ResourceContents, ErrorData> {
    let told = |refusal: &Refusal| {
        let data = json!({ "uri": address, "code": refusal.code() });
        let text = refusal.detail().to_owned();
        match refusal.code() {
            "file_too_large" => ErrorData::invalid_params(text, Some(data)),
            "internal" => ErrorData::internal_error(text, Some(data)),
            _ => ErrorData::resource_not_found(text, Some(data)),
        }
    };
    let Some((id, path)) = parse(address) else {
        let text = "uri: must be sandcell://{sandbox_id}/{path}, as resources/list gives it";
        return Err(told(&Refusal::bad_request("bad_uri", text)));
    };
    let opened = supervisor.open_file(id, &path).await;
    let opened = opened.map_err(|error| told(&error.into()))?;
    if opened.size > READ_BYTES {
        let text = format!(
            "{path} has {} bytes and a resource at most {READ_BYTES}; download it from the REST \
             route, or read parts of it with code",
            opened.size
        );
        return Err(told(&Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "file_too_large",
            text,
        )));
    }
    let bytes = read_all(opened, READ_BYTES).await.map_err(|error| {
        tracing::debug!(%error, "a file could not be read to its end");
        let text = "the file changed while it was read";
        told(&Refusal::new(StatusCode::CONFLICT, "file_changed", text))
    })?;
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, address),
        Err(error) => ResourceContents::blob(BASE64.encode(error.as_bytes()), address),
    };
    Ok(contents.with_mime_type(mime_of(&path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_back_to_its_file() {
        for path in ["a.txt", "a b/ä%20#?.txt", "../x", "a//b", "%FF"] {
            let uri = uri("id", path);
            assert!(uri.is_ascii() && !uri.contains(['#', '?', ' ']), "{uri}");
            assert_eq!(parse(&uri), Some(("id", path.to_owned())), "{uri}");
        }
        for uri in [
            "",
            "sandcell://",
            "sandcell://id",
            "sandcell://id/",
            "sandcell:///a",
            "file:///a",
            "sandcell://id/%",
            "sandcell://id/%zz",
            "sandcell://id/%FF",
            "SANDCELL://id/a",
        ] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }

    #[test]
    fn a_cursor_is_ours_or_refused() {
        let result = page(Vec::new(), Some(("id".into(), "a/b".into())));
        let cursor = result.next_cursor.expect("a cursor");
        assert_eq!(read_cursor(&cursor).ok(), Some(("id".into(), "a/b".into())));
        for cursor in ["", "?", "AAAA", "0"] {
            assert!(read_cursor(cursor).is_err(), "{cursor}");
        }
    }
}
