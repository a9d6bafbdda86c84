//! The HTML form of a project's page (PEP 503), as indexes without the JSON form answer.

use std::collections::BTreeMap;

use html5gum::{HtmlString, Spanned, StartTag, Token, Tokenizer};
use reqwest::Url;

use super::name::{Digest, is_file_name};
use super::page::{File, Listing, check_version, link};

/// Reads a page. `base` is where it came from, unless the page says otherwise (`<base href>`).
///
/// # Errors
/// What is wrong with it, for people.
pub(super) fn parse_html(body: &[u8], base: &Url) -> Result<Listing, String> {
    let mut base = base.clone();
    let mut files = Vec::new();
    let mut anchor: Option<Anchor> = None;
    for Ok(token) in Tokenizer::new(body) {
        match token {
            Token::StartTag(tag) => match tag.name.as_slice() {
                b"base" => {
                    if let Some(url) = attribute(&tag, b"href").and_then(|href| link(&base, &href))
                    {
                        base = url;
                    }
                }
                b"meta"
                    if attribute(&tag, b"name").as_deref() == Some("pypi:repository-version") =>
                {
                    check_version(&attribute(&tag, b"content").unwrap_or_default())?;
                }
                b"a" => {
                    files.extend(anchor.take().and_then(|anchor| anchor.read(&base)));
                    anchor = Some(Anchor {
                        attributes: tag.attributes,
                        text: Vec::new(),
                    });
                }
                _ => {}
            },
            Token::String(text) => {
                if let Some(anchor) = &mut anchor {
                    anchor.text.extend_from_slice(&text);
                }
            }
            Token::EndTag(tag) if tag.name.as_slice() == b"a" => {
                files.extend(anchor.take().and_then(|anchor| anchor.read(&base)));
            }
            _ => {}
        }
    }
    Ok(Listing {
        files,
        versions: None,
    })
}

type Attributes = BTreeMap<HtmlString, Spanned<HtmlString, ()>>;

fn attribute(tag: &StartTag<()>, name: &[u8]) -> Option<String> {
    value(&tag.attributes, name)
}

fn value(attributes: &Attributes, name: &[u8]) -> Option<String> {
    let value = attributes.get(name)?;
    Some(String::from_utf8_lossy(value).into_owned())
}

struct Anchor {
    attributes: Attributes,
    text: Vec<u8>,
}

impl Anchor {
    fn read(self, base: &Url) -> Option<File> {
        let get = |name: &str| value(&self.attributes, name.as_bytes());
        let href = get("href")?;
        // The hash is the link's fragment: `#sha256=<hex>`.
        let digest = Digest::parse(href.rsplit_once("#sha256=")?.1)?;
        let url = link(base, &href)?;
        let name = String::from_utf8_lossy(&self.text).trim().to_owned();
        let metadata = ["data-core-metadata", "data-dist-info-metadata"]
            .into_iter()
            .find_map(|name| Digest::parse(get(name)?.strip_prefix("sha256=")?));
        is_file_name(&name).then(|| File {
            name,
            url,
            digest,
            hashes: BTreeMap::new(),
            requires_python: get("data-requires-python"),
            yanked: get("data-yanked"),
            metadata,
            size: None,
            upload_time: None,
        })
    }
}
