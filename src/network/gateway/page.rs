//! A project's page: the files that an index has of it (PEP 503, 592, 629, 658, 691, 700, 714).
//!
//! Whatever form the index answered in, both are given inside. A file without a SHA-256 is left out: what
//! cannot be verified is not passed on. For the same reason metadata is offered only with its SHA-256; a
//! client takes it from the file itself then.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::name::{Digest, file_path, is_file_name};

pub(super) const JSON: &str = "application/vnd.pypi.simple.v1+json";
pub(super) const HTML: &str = "application/vnd.pypi.simple.v1+html";
pub(super) const OLD_HTML: &str = "text/html";

/// A file as the index lists it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct File {
    pub(super) name: String,
    /// Where the index says it is. Never shown inside.
    pub(super) url: Url,
    pub(super) digest: Digest,
    /// Hashes other than SHA-256.
    pub(super) hashes: BTreeMap<String, String>,
    pub(super) requires_python: Option<String>,
    /// Why it was yanked, if it was; the reason may be empty.
    pub(super) yanked: Option<String>,
    /// SHA-256 of its metadata, which is at the file's URL and `.metadata`.
    pub(super) metadata: Option<Digest>,
    /// Bytes.
    pub(super) size: Option<u64>,
    pub(super) upload_time: Option<String>,
}

/// A project's page, rendered for the sandboxes.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) project: String,
    pub(super) files: Vec<File>,
    /// The JSON form; the other is rendered when somebody asks for it.
    pub(super) json: Bytes,
    /// Changes with the page.
    pub(super) tag: String,
    /// It came over TLS, so its files must.
    pub(super) secure: bool,
}

/// What an index said, in either form.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) files: Vec<File>,
    pub(super) versions: Option<Vec<String>>,
}

impl Page {
    pub(super) fn new(project: String, listing: Listing, secure: bool) -> Self {
        let json = Bytes::from(render_json(&project, &listing));
        let tag = Digest(Sha256::digest(&json).into()).to_string()[..32].to_owned();
        Self {
            project,
            files: listing.files,
            json,
            tag,
            secure,
        }
    }

    /// Roughly what it takes in memory, bytes.
    pub(super) fn weight(&self) -> usize {
        let file = |file: &File| size_of::<File>() + file.name.len() + file.url.as_str().len();
        self.json.len() + self.files.iter().map(file).sum::<usize>()
    }

    pub(super) fn find(&self, digest: &Digest, name: &str) -> Option<&File> {
        self.files
            .iter()
            .find(|file| file.digest == *digest && file.name == name)
    }

    /// The page of PEP 503.
    pub(super) fn html(&self) -> String {
        let mut html = html_head(&self.project);
        for file in &self.files {
            let path = file_path(&self.project, &file.digest, &file.name);
            write!(html, "<a href=\"{path}#sha256={}\"", file.digest).expect("a string");
            let mut attribute = |name: &str, value: &str| {
                write!(html, " {name}=\"{}\"", escape(value)).expect("a string");
            };
            if let Some(requires) = &file.requires_python {
                attribute("data-requires-python", requires);
            }
            if let Some(reason) = &file.yanked {
                attribute("data-yanked", reason);
            }
            if let Some(digest) = &file.metadata {
                let value = format!("sha256={digest}");
                attribute("data-core-metadata", &value);
                attribute("data-dist-info-metadata", &value);
            }
            writeln!(html, ">{}</a><br>", file.name).expect("a string");
        }
        html.push_str("</body></html>\n");
        html
    }
}

/// The list of all projects: valid, and empty. The real one has tens of megabytes, and neither pip nor uv
/// needs it to install or to look up a name.
pub(super) fn empty_root(json: bool) -> String {
    if json {
        r#"{"meta":{"api-version":"1.0"},"projects":[]}"#.to_owned()
    } else {
        html_head("projects are not listed, ask for one by its name") + "</body></html>\n"
    }
}

fn html_head(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\">\
         <meta name=\"pypi:repository-version\" content=\"1.0\">\
         <title>{title}</title></head><body>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[derive(Deserialize)]
struct Project {
    meta: Meta,
    #[serde(default)]
    files: Vec<Listed>,
    versions: Option<Vec<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Meta {
    api_version: String,
}

/// A file as the index's JSON has it. Optional keys of odd types are as good as absent.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Listed {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
    #[serde(default)]
    requires_python: Value,
    #[serde(default)]
    yanked: Value,
    #[serde(default)]
    core_metadata: Value,
    /// PEP 691's first name of it, and the one that was deployed (PEP 714).
    #[serde(default)]
    dist_info_metadata: Value,
    #[serde(default)]
    data_dist_info_metadata: Value,
    #[serde(default)]
    size: Value,
    #[serde(default)]
    upload_time: Value,
}

/// Reads the JSON form. `base` is where it came from: links may be relative.
///
/// # Errors
/// What is wrong with it, for people.
pub(super) fn parse_json(body: &[u8], base: &Url) -> Result<Listing, String> {
    let project: Project =
        serde_json::from_slice(body).map_err(|_| "a page that is no page of an index")?;
    check_version(&project.meta.api_version)?;
    let files = project.files.into_iter();
    Ok(Listing {
        files: files.filter_map(|file| file.read(base)).collect(),
        versions: project.versions,
    })
}

/// PEP 629: another major version may mean anything.
pub(super) fn check_version(version: &str) -> Result<(), String> {
    if version.split('.').next() == Some("1") {
        Ok(())
    } else {
        Err("a page of an unknown version of the index protocol".to_owned())
    }
}

impl Listed {
    fn read(self, base: &Url) -> Option<File> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = [
            &self.core_metadata,
            &self.dist_info_metadata,
            &self.data_dist_info_metadata,
        ]
        .into_iter()
        .find_map(|value| Digest::parse(value.get("sha256")?.as_str()?));
        let yanked = match &self.yanked {
            Value::Bool(true) => Some(String::new()),
            value => text(value),
        };
        let digest = Digest::parse(self.hashes.get("sha256")?)?;
        let mut hashes = self.hashes;
        hashes.remove("sha256");
        let url = link(base, &self.url)?;
        is_file_name(&self.filename).then_some(File {
            url,
            digest,
            hashes,
            requires_python: text(&self.requires_python),
            yanked,
            metadata,
            size: self.size.as_u64(),
            upload_time: text(&self.upload_time),
            name: self.filename,
        })
    }
}

/// A link of a page, without its fragment.
pub(super) fn link(base: &Url, link: &str) -> Option<Url> {
    let mut url = base.join(link).ok()?;
    url.set_fragment(None);
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

#[derive(Serialize)]
struct Rendered<'a> {
    meta: Meta,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    versions: Option<&'a [String]>,
    files: Vec<RenderedFile<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct RenderedFile<'a> {
    filename: &'a str,
    url: String,
    hashes: BTreeMap<&'a str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requires_python: Option<&'a str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    yanked: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    core_metadata: Option<BTreeMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dist_info_metadata: Option<BTreeMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upload_time: Option<&'a str>,
}

fn render_json(project: &str, listing: &Listing) -> String {
    // PEP 700: 1.1 promises versions, and sizes of all files.
    let full = listing.versions.is_some() && listing.files.iter().all(|file| file.size.is_some());
    let rendered = Rendered {
        meta: Meta {
            api_version: if full { "1.1" } else { "1.0" }.to_owned(),
        },
        name: project,
        versions: listing.versions.as_deref(),
        files: listing
            .files
            .iter()
            .map(|file| RenderedFile::new(project, file))
            .collect(),
    };
    serde_json::to_string(&rendered).expect("a page is plain data")
}

impl<'a> RenderedFile<'a> {
    fn new(project: &str, file: &'a File) -> Self {
        let mut hashes: BTreeMap<&str, String> = file
            .hashes
            .iter()
            .map(|(name, hash)| (name.as_str(), hash.clone()))
            .collect();
        hashes.insert("sha256", file.digest.to_string());
        let metadata = || {
            let digest = file.metadata?.to_string();
            Some(BTreeMap::from([("sha256", digest)]))
        };
        Self {
            filename: &file.name,
            url: file_path(project, &file.digest, &file.name),
            hashes,
            requires_python: file.requires_python.as_deref(),
            yanked: match file.yanked.as_deref() {
                None => Value::Null,
                Some("") => Value::Bool(true),
                Some(reason) => Value::from(reason),
            },
            core_metadata: metadata(),
            data_dist_info_metadata: metadata(),
            size: file.size,
            upload_time: file.upload_time.as_deref(),
        }
    }
}
