//! What may be asked of the installer: names with extras, versions and markers (PEP 508), wheels of the
//! working directory, and requirement files made of these. Never an option and never an address: the
//! lines are checked here, and given to uv as the content of a requirement file, not as arguments.

use super::error::{Error, ErrorKind};
use crate::network::{is_project_name, normalize};

/// Characters of one requirement.
const MAX_CHARS: usize = 512;
/// Requirements of one install.
const MAX_REQUIREMENTS: usize = 256;
/// Bytes of a requirement file.
pub(super) const MAX_FILE_BYTES: usize = 256 * 1024;

/// One checked line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Requirement {
    /// As uv reads it.
    pub(super) line: String,
    /// Normalized as PEP 503 has it.
    pub(super) name: String,
}

/// Checks what a request names.
///
/// # Errors
/// `Invalid` names the field, the entry and what would be right.
pub(super) fn check(packages: &[String]) -> Result<Vec<Requirement>, Error> {
    if packages.is_empty() || packages.len() > MAX_REQUIREMENTS {
        return Err(Error::invalid(
            "packages",
            format!("packages names 1 to {MAX_REQUIREMENTS} packages"),
        ));
    }
    let checked = packages
        .iter()
        .map(|text| requirement(text).map_err(|fault| Error::invalid("packages", fault)));
    checked.collect()
}

/// Reads a requirement file.
///
/// # Errors
/// `Invalid` names the line and what is wrong with it.
pub(super) fn of_file(text: &str) -> Result<Vec<Requirement>, Error> {
    let invalid = |fault: String| Error::invalid("requirements_file", fault);
    let mut found = Vec::new();
    let joined = text.replace("\r\n", "\n").replace("\\\n", " ");
    for (number, line) in joined.lines().enumerate() {
        let line = match line.trim_start().starts_with('#') {
            true => "",
            false => line.split(" #").next().unwrap_or_default().trim(),
        };
        if line.is_empty() {
            continue;
        }
        let (plain, hashes) = split_hashes(line);
        let mut read = requirement(plain)
            .map_err(|fault| invalid(format!("requirement {}: {fault}", number + 1)))?;
        for hash in hashes {
            read.line.push(' ');
            read.line.push_str(hash);
        }
        found.push(read);
    }
    if found.is_empty() || found.len() > MAX_REQUIREMENTS {
        return Err(invalid(format!(
            "a requirement file has 1 to {MAX_REQUIREMENTS} requirements"
        )));
    }
    Ok(found)
}

/// A requirement file that is too long or not text.
pub(super) fn bad_file() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "bad_requirements_file",
        format!("a requirement file is text (UTF-8) of at most {MAX_FILE_BYTES} bytes"),
    )
}

/// `name==1.0 --hash=sha256:…`, as pip-compile writes it.
fn split_hashes(line: &str) -> (&str, Vec<&str>) {
    let Some(at) = line.find(" --hash=") else {
        return (line, Vec::new());
    };
    let is_hash = |word: &&str| {
        let digest = word.strip_prefix("--hash=sha256:");
        digest.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let hashes: Vec<&str> = line[at..].split_whitespace().collect();
    if hashes.iter().all(is_hash) {
        (line[..at].trim_end(), hashes)
    } else {
        (line, Vec::new())
    }
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let text = text.trim();
    if text.chars().count() > MAX_CHARS {
        return Err(format!("a requirement has up to {MAX_CHARS} characters"));
    }
    let shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
    if text.starts_with('-') {
        return Err(format!(
            "{shown:?} is an option; name packages only: the index and other options are the operator's"
        ));
    }
    if text.contains("://") || text.contains('@') {
        return Err(format!(
            "{shown:?} is an address; name a package of the index, or upload a wheel and name its file"
        ));
    }
    // White space of other kinds could be an end of a line to uv.
    let plain = |c: char| matches!(c, ' ' | '\t') || c.is_ascii_graphic();
    let parsed = if !text.chars().all(plain) {
        None
    } else if text.ends_with(".whl") {
        wheel(text)
    } else {
        named(text)
    };
    parsed.ok_or_else(|| {
        format!(
            "{shown:?} is no requirement: a name with extras and versions (\"rich\", \
             \"pandas[excel]>=2,<3\") or a wheel of the working directory (\"dist/x-1.0-py3-none-any.whl\")"
        )
    })
}

/// A wheel: a relative path of plain components.
fn wheel(path: &str) -> Option<Requirement> {
    let path = path.strip_prefix("./").unwrap_or(path);
    let plain = |part: &str| {
        !part.is_empty()
            && part != ".."
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._+-!".contains(&b))
    };
    if !path.split('/').all(plain) || path.starts_with('-') {
        return None;
    }
    let (name, _) = path.rsplit('/').next()?.split_once('-')?;
    is_project_name(name).then(|| Requirement {
        line: format!("./{path}"),
        name: normalize(name),
    })
}

/// `name [extras] versions ; marker`. What versions and markers mean is uv's to judge: here only such
/// characters pass as they are made of, and no word that could be an option.
fn named(text: &str) -> Option<Requirement> {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let mut rest = rest.trim_start();
    if let Some(inside) = rest.strip_prefix('[') {
        let (extras, after) = inside.split_once(']')?;
        let all_names = extras.split(',').all(|extra| is_project_name(extra.trim()));
        if !all_names && !extras.trim().is_empty() {
            return None;
        }
        rest = after.trim_start();
    }
    let (versions, marker) = rest.split_once(';').unwrap_or((rest, ""));
    let made_of = |text: &str, others: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || others.contains(c))
    };
    let starts_right = versions.is_empty() || versions.starts_with(['<', '>', '=', '!', '~', '(']);
    let option = rest.split_whitespace().any(|word| word.starts_with('-'));
    (is_project_name(name)
        && starts_right
        && !option
        && made_of(versions, "<>=!~,.*+_-() ")
        && made_of(marker, "<>=!~,.*+_-() '\""))
    .then(|| Requirement {
        line: text.to_owned(),
        name: normalize(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_versions_extras_markers_and_wheels_pass() {
        for (text, name) in [
            ("rich", "rich"),
            (" Flask-SQLAlchemy ", "flask-sqlalchemy"),
            ("ruamel.yaml>=0.18,<1", "ruamel-yaml"),
            ("pandas[excel, plot] ~= 2.0", "pandas"),
            ("x==1!2.0+local", "x"),
            (
                "typing_extensions; python_version < '3.14'",
                "typing-extensions",
            ),
            ("a (>=1)", "a"),
            ("dist/My_Pkg-1.0-py3-none-any.whl", "my-pkg"),
        ] {
            assert_eq!(
                requirement(text).map(|r| r.name),
                Ok(name.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn options_and_addresses_are_refused() {
        for text in [
            "",
            "-r other.txt",
            "--index-url=http://x.example",
            "rich --index-url=http://x.example",
            "rich -e .",
            "rich @ https://x.example/r.whl",
            "git+https://x.example/r",
            "rich\n--pre",
            "rich\n>=1",
            "rich\u{2028}[x]",
            "rich[a,\nb]",
            "rich[a]\u{c}==1",
            "rich\r\n;python_version>'3'",
            "rich\0",
            "../x-1.0-py3-none-any.whl",
            "/tmp/x-1.0-py3-none-any.whl",
            "-x-1.0-py3-none-any.whl",
            "file:///x-1.0-py3-none-any.whl",
            "${HOME}",
            "x[--pre]",
            ".",
            "./dir",
            "rich 1.0",
            "ri\u{301}ch",
        ] {
            assert!(requirement(text).is_err(), "{text:?}");
        }
        assert!(check(&[]).is_err());
        assert!(check(&vec!["a".into(); MAX_REQUIREMENTS + 1]).is_err());
    }

    #[test]
    fn requirement_files_are_read_as_pip_writes_them() {
        let hash = format!("--hash=sha256:{}", "a".repeat(64));
        let text = format!("# all\nrich==13.0 # why\n\nattrs==1 \\\n    {hash} \\\n    {hash}\n");
        let lines: Vec<String> = of_file(&text)
            .unwrap()
            .into_iter()
            .map(|r| r.line)
            .collect();
        assert_eq!(
            lines,
            ["rich==13.0".into(), format!("attrs==1 {hash} {hash}")]
        );
        for text in [
            "",
            "# nothing",
            "-r more.txt",
            "rich\n--index-url x",
            "rich --hash=md5:1",
        ] {
            assert!(of_file(text).is_err(), "{text:?}");
        }
    }
}
