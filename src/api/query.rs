//! Queries whose values are paths: decoded once, and what is then not UTF-8 spelled as
//! [`FileEntry::path`](crate::supervisor::FileEntry) spells it.

use axum::http::Uri;

use super::download::{percent_decode, spell};
use super::error::Refusal;

/// The parameters of a request, each at most once.
#[derive(Debug, Default)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads them; names that nobody asks for are ignored.
    pub(crate) fn of(uri: &Uri) -> Result<Self, Refusal> {
        let mut found: Vec<(String, String)> = Vec::new();
        let pairs = uri.query().unwrap_or_default().split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if found.iter().any(|(known, _)| *known == name) {
                return Err(Refusal::invalid(&*name, format!("{name}: given twice")));
            }
            found.push((name, value));
        }
        Ok(Self(found))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A text that must be there.
    pub(crate) fn required(&self, name: &'static str) -> Result<&str, Refusal> {
        self.text(name)
            .ok_or_else(|| Refusal::invalid(name, format!("{name}: needed in the query")))
    }

    pub(crate) fn flag(&self, name: &'static str) -> Result<Option<bool>, Refusal> {
        // As Python's clients write them, too.
        let words = ["true", "1", "True"].map(|word| (word, true));
        let others = ["false", "0", "False"].map(|word| (word, false));
        self.word(name, &[words, others].concat())
    }

    /// A count of 1 or more.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<usize>, Refusal> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(Refusal::invalid(
                name,
                format!("{name}: must be a number of 1 or more"),
            )),
        }
    }

    /// One of some words.
    pub(crate) fn word<T: Copy>(
        &self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        let known = words.iter().find(|(word, _)| *word == value);
        known.map(|(_, meant)| Some(*meant)).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            Refusal::invalid(name, format!("{name}: must be one of {}", words.join(", ")))
        })
    }
}

fn decoded(text: &str) -> Result<String, Refusal> {
    let bytes = percent_decode(&text.replace('+', "%20")).ok_or_else(|| {
        Refusal::bad_request("bad_query", "the query is not percent-encoded well")
    })?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| spell(error.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(query: &str) -> Result<Parameters, Refusal> {
        Parameters::of(&format!("/x?{query}").parse().expect("a target"))
    }

    #[test]
    fn values_are_decoded_once() {
        let found = parameters("a=x%2Fy+z&b=%FF%25&c&&d=1%3D2=3").expect("parameters");
        assert_eq!(found.text("a"), Some("x/y z"));
        assert_eq!(found.text("b"), Some("%FF%25"));
        assert_eq!(found.text("c"), Some(""));
        assert_eq!(found.text("d"), Some("1=2=3"));
        assert_eq!(found.text("e"), None);
    }

    #[test]
    fn what_is_ambiguous_or_malformed_is_refused() {
        for query in ["a=1&a=2", "a=%", "a=%zz"] {
            assert!(parameters(query).is_err(), "{query}");
        }
        let found = parameters("flag=yes&on=1").expect("parameters");
        assert!(found.flag("flag").is_err());
        assert_eq!(found.flag("on").expect("a flag"), Some(true));
    }
}
