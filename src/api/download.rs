//! `GET /sandbox/{id}/download/{path}`: a file's bytes, by descriptor.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};

use super::caller::Caller;
use super::error::Refusal;
use super::openapi;
use super::rest::SandboxId;
use super::version::{Verdict, Version};
use super::wire::percent_encode;
use crate::supervisor::OpenFile;

const CHUNK_BYTES: u64 = 256 * 1024;

/// Download a file
///
/// One range of bytes may be asked for (RFC 9110, section 14; of several, all bytes come); conditions
/// on the ETag and the time are heeded (section 13).
#[utoipa::path(
    get,
    path = "/sandbox/{id}/download/{*path}",
    operation_id = "download_file",
    tag = "files",
    params(("Range" = Option<String>, Header, description = "Which bytes, such as `bytes=0-99`."), ("If-Range" = Option<String>, Header, description = "The ETag or date that the range is of use for."), ("If-None-Match" = Option<String>, Header, description = "The ETag of what the client has.")),
    responses((
            status = 200, description = "The whole file. Its type is guessed from its name.",
            content((openapi::RawBytes = "application/octet-stream"), (openapi::FileOfAnyType = "*/*")),
            headers(
                ("Accept-Ranges" = String, description = "`bytes`"),
                ("Content-Disposition" = String, description = "The file's name, as an attachment (RFC 6266)."),
                ("ETag" = String, description = "Changes with the file."),
                ("Last-Modified" = String, description = "Missing where the time cannot be written."),
            )
        ),
        (
            status = 206, description = "The range.",
            content((openapi::RawBytes = "application/octet-stream"), (openapi::FileOfAnyType = "*/*")),
            headers(("Content-Range" = String, description = "Which bytes of how many these are."))
        ),
        (status = 304, description = "The client has it.")),
    extensions(("x-errors" = json!(["range_not_satisfiable", "files", "sandbox_gone", "file_changed_since"]))),
)]
pub(crate) async fn download(
    Caller(app): Caller,
    SandboxId(id): SandboxId,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let path = path_of(&uri)?;
    let opened = app.supervisor.open_file(&id, &path).await?;
    answer(opened, &path, Attached::Saved, &headers)
}

/// A file, or what of it is asked for.
pub(super) fn answer(
    opened: OpenFile,
    path: &str,
    attached: Attached,
    asked: &HeaderMap,
) -> Result<Response, Refusal> {
    let version = Version::of(&opened);
    let mut answer = HeaderMap::new();
    insert(&mut answer, header::ETAG, Some(version.etag.clone()));
    insert(&mut answer, header::LAST_MODIFIED, version.modified.clone());
    // To be kept, but asked about each time: user code changes files as it likes.
    let cache = HeaderValue::from_static("private, no-cache");
    answer.insert(header::CACHE_CONTROL, cache);
    match version.judge(asked) {
        Verdict::Send => {}
        Verdict::NotModified => return Ok((StatusCode::NOT_MODIFIED, answer).into_response()),
        Verdict::Failed => return Err(precondition_failed(&version)),
    }
    let wanted = asked
        .get(header::RANGE)
        .filter(|_| version.range_applies(asked))
        .and_then(|value| parse_range(value.to_str().ok()?, opened.size))
        .unwrap_or(Wanted::All);
    let (status, first, length) = match wanted {
        Wanted::All => (StatusCode::OK, 0, opened.size),
        Wanted::Part { first, length } => (StatusCode::PARTIAL_CONTENT, first, length),
        Wanted::Nothing => return Err(unsatisfiable(opened.size)),
    };
    answer.insert(header::CONTENT_LENGTH, length.into());
    answer.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(mime_of(path)),
    );
    answer.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(attached.policy()),
    );
    // Other sites may link to it, but not draw it into pages of theirs.
    answer.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-site"),
    );
    insert(
        &mut answer,
        header::CONTENT_DISPOSITION,
        Some(disposition(attached, path)),
    );
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {first}-{}/{}", first + length - 1, opened.size);
        insert(&mut answer, header::CONTENT_RANGE, Some(range));
    }
    let body = Body::from_stream(bytes_of(opened, first, length));
    Ok((status, answer, body).into_response())
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: Option<String>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
        headers.insert(name, value);
    }
}

/// Reads by position in the blocking pool. A file that shrinks meanwhile is an error, which breaks
/// the connection off: never a success with less than was promised.
fn bytes_of(opened: OpenFile, first: u64, length: u64) -> impl Stream<Item = io::Result<Bytes>> {
    let opened = Arc::new(opened);
    stream::try_unfold((first, length), move |(at, left)| {
        let opened = Arc::clone(&opened);
        async move {
            if left == 0 {
                return Ok(None);
            }
            let bytes = read_at(opened, at, left.min(CHUNK_BYTES)).await?;
            let read = bytes.len() as u64;
            Ok(Some((bytes, (at + read, left - read))))
        }
    })
}

/// Some bytes of a file, at least one.
async fn read_at(opened: Arc<OpenFile>, at: u64, most: u64) -> io::Result<Bytes> {
    let read = move || {
        let mut buffer = vec![0; usize::try_from(most).map_err(io::Error::other)?];
        let read = opened.file.read_at(&mut buffer, at)?;
        buffer.truncate(read);
        if buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(buffer.into())
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(io::Error::other)?
}

/// A whole file, which its size when opened promises to be no longer than `limit` bytes; grown
/// meanwhile, it is cut there.
pub(crate) async fn read_all(opened: OpenFile, limit: u64) -> io::Result<Vec<u8>> {
    let opened = Arc::new(opened);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < opened.size.min(limit) {
        let left = opened.size.min(limit) - bytes.len() as u64;
        let read = read_at(
            Arc::clone(&opened),
            bytes.len() as u64,
            left.min(CHUNK_BYTES),
        );
        bytes.extend_from_slice(&read.await?);
    }
    Ok(bytes)
}

/// The path as [`FileEntry::path`](crate::supervisor::FileEntry) writes it: the URL is decoded
/// once, and what is then not UTF-8 is percent-encoded. Dots and slashes are left as they came:
/// whether a path stays inside is decided where it is opened.
fn path_of(uri: &Uri) -> Result<String, Refusal> {
    let raw = uri.path().splitn(5, '/').nth(4).unwrap_or_default();
    let bytes = percent_decode(raw)
        .ok_or_else(|| Refusal::bad_request("bad_path", "the path is not percent-encoded well"))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| spell(error.as_bytes())))
}

pub(crate) fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(*rest.next()?).to_digit(16);
        bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    Some(bytes)
}

pub(super) fn spell(bytes: &[u8]) -> String {
    let mut spelled = String::new();
    for chunk in bytes.utf8_chunks() {
        spelled.push_str(&chunk.valid().replace('%', "%25"));
        for byte in chunk.invalid() {
            spelled.push_str(&format!("%{byte:02X}"));
        }
    }
    spelled
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    Part { first: u64, length: u64 },
    Nothing,
}

/// One byte range (RFC 9110, section 14). `None` for what is malformed or several ranges at once,
/// which a server may ignore.
fn parse_range(value: &str, size: u64) -> Option<Wanted> {
    let number = |digits: &str| -> Option<u64> {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let (unit, range) = value.split_once('=')?;
    let (first, last) = range.trim().split_once('-')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, end) = match (first.trim(), last.trim()) {
        ("", suffix) => (size.saturating_sub(number(suffix)?), size),
        (first, "") => (number(first)?, size),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            (first, last.saturating_add(1).min(size))
        }
    };
    Some(match end.checked_sub(first) {
        None | Some(0) => Wanted::Nothing,
        Some(length) => Wanted::Part { first, length },
    })
}

fn precondition_failed(version: &Version) -> Refusal {
    let refusal = Refusal::new(
        StatusCode::PRECONDITION_FAILED,
        "file_changed_since",
        "the file is another version than If-Match or If-Unmodified-Since asks for",
    );
    match HeaderValue::try_from(version.etag.as_str()) {
        Ok(etag) => refusal.with_header(header::ETAG, etag),
        Err(_) => refusal,
    }
}

fn unsatisfiable(size: u64) -> Refusal {
    Refusal::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "range_not_satisfiable",
        format!("the file has {size} bytes"),
    )
    .with_header(
        header::CONTENT_RANGE,
        HeaderValue::try_from(format!("bytes */{size}")).unwrap_or(HeaderValue::from_static("")),
    )
}

/// What a browser does with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attached {
    /// Saves it.
    Saved,
    /// Shows it where it can.
    Shown,
}

impl Attached {
    /// What a sandbox wrote is never a page of ours, whatever a browser takes it for: it gets an origin
    /// of its own, in which no script runs, no form is sent and no window opened (CSP 3, `sandbox`).
    /// HTML and SVG that are shown are still pictures of a page, so nothing is fetched for them either:
    /// what they may have is in them.
    fn policy(self) -> &'static str {
        match self {
            Self::Saved => "sandbox",
            Self::Shown => {
                "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
                 font-src data:; media-src data:"
            }
        }
    }
}

/// RFC 6266: an ASCII name for old clients and, where that is not all, the whole name, encoded
/// (RFC 8187), for the others. Names that are no text are told as they are listed.
pub(super) fn disposition(attached: Attached, path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    // `%` too: some clients decode it where no encoding is (RFC 6266, appendix D).
    let plain = |c: char| c == ' ' || (c.is_ascii_graphic() && !"\"\\%".contains(c));
    let ascii: String = name
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect();
    let kind = match attached {
        Attached::Saved => "attachment",
        Attached::Shown => "inline",
    };
    let encoded = percent_encode(name, b"");
    format!("{kind}; filename=\"{ascii}\"; filename*=UTF-8''{encoded}")
}

/// MIME type by the name's extension.
pub(crate) fn mime_of(path: &str) -> &'static str {
    let extension = path
        .rsplit('/')
        .next()
        .and_then(|name| name.rsplit_once('.'));
    let extension = extension.map_or("", |(_, extension)| extension);
    match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" | "py" | "toml" | "ini" | "cfg" | "rst" => "text/plain; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "tsv" => "text/tab-separated-values; charset=utf-8",
        "md" => "text/markdown; charset=utf-8",
        "html" | "htm" => "text/html; charset=utf-8",
        "json" | "geojson" => "application/json",
        "ipynb" => "application/x-ipynb+json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "xml" => "application/xml",
        "yaml" | "yml" => "application/yaml",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "parquet" => "application/vnd.apache.parquet",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "xls" => "application/vnd.ms-excel",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_once_and_not_normalised() {
        for (raw, path) in [
            ("/sandbox/i/download/a/b.csv", "a/b.csv"),
            ("/sandbox/i/download//etc/passwd", "/etc/passwd"),
            ("/sandbox/i/download/../../x", "../../x"),
            ("/sandbox/i/download/%2e%2e%2f%2Fx", "..//x"),
            ("/sandbox/i/download/%252e%252e", "%2e%2e"),
            ("/sandbox/i/download/%C3%A4%00", "ä\0"),
            ("/sandbox/i/download/%25/%FF.txt", "%25/%FF.txt"),
            ("/sandbox/i/download/%25.txt", "%.txt"),
        ] {
            let uri = raw.parse().expect("a target");
            assert_eq!(path_of(&uri).expect("a path"), path, "{raw}");
        }
        for raw in [
            "/sandbox/i/download/%",
            "/sandbox/i/download/%4",
            "/sandbox/i/download/%+1",
        ] {
            assert!(path_of(&raw.parse().expect("a target")).is_err(), "{raw}");
        }
    }

    #[test]
    fn ranges_are_single_and_inside() {
        let part = |first, length| Some(Wanted::Part { first, length });
        for (value, wanted) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-5", part(2, 4)),
            ("bytes=2-", part(2, 8)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=2-99999999999999999999999", part(2, 8)),
            ("Bytes = 9-9", part(9, 1)),
            ("bytes=10-", Some(Wanted::Nothing)),
            ("bytes=10-20", Some(Wanted::Nothing)),
            ("bytes=-0", Some(Wanted::Nothing)),
            ("bytes=99999999999999999999999-", Some(Wanted::Nothing)),
            ("bytes=5-2", None),
            ("bytes=-", None),
            ("bytes=+1-2", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
            ("0-1", None),
        ] {
            assert_eq!(parse_range(value, 10), wanted, "{value}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Some(Wanted::Nothing));
    }

    #[test]
    fn names_cannot_break_out_of_their_header() {
        assert_eq!(
            disposition(Attached::Saved, "d/a\"b\r\nX: y\\ä.csv"),
            "attachment; filename=\"a_b__X: y__.csv\"; \
             filename*=UTF-8''a%22b%0D%0AX%3A%20y%5C%C3%A4.csv"
        );
    }
}
