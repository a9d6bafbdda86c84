//! What the scripts of a command need and do not have, found inside the sandbox by a program of ours
//! (`dependencies.py`) and installed as any package is, before the command runs.
//!
//! ```text
//! command ─► program inside: parses it, looks for requirements.txt, else parses imports
//!               │ names, as hostile as any output
//!               ▼
//!            import name → package (PACKAGES) ─► install ─► the command, whatever came of that
//! ```

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::error::Error;
use super::program::{self, Input, Program};
use super::requirements::MAX_FILE_BYTES;
use super::sandbox::Sandbox;
use super::types::{Dependencies, InstallInfo, InstallSpec, PackageStatus};
use super::{files, install};
use crate::isolation::spec::HOME;
use crate::network::is_project_name;

const PROGRAM: &str = include_str!("dependencies.py");
const PYTHON: &str = "/opt/venv/bin/python3";
/// Longest that the program may take; it reads a few files.
const LOOK_TIME: Duration = Duration::from_secs(10);
/// Bytes of its answer.
const ANSWER_BYTES: usize = 64 * 1024;
/// Longer commands hold programs of their own, and are not looked at.
const MAX_COMMAND_BYTES: usize = 8 * 1024;
/// Packages of one command; more is what a requirement file is for.
const MAX_PACKAGES: usize = 32;
/// Beside the installer's own time.
const GRACE: Duration = Duration::from_secs(5);
/// Told as the source where it is no file.
const IMPORTS: &str = "imports";

/// Modules whose packages have other names, sorted. A dotted name stands for itself only.
const PACKAGES: [(&str, &str); 70] = [
    ("Bio", "biopython"),
    ("Crypto", "pycryptodome"),
    ("Cryptodome", "pycryptodomex"),
    ("Levenshtein", "levenshtein"),
    ("MySQLdb", "mysqlclient"),
    ("OpenGL", "pyopengl"),
    ("OpenSSL", "pyopenssl"),
    ("PIL", "pillow"),
    ("PyPDF2", "pypdf2"),
    ("Xlib", "python-xlib"),
    ("absl", "absl-py"),
    ("attr", "attrs"),
    ("barcode", "python-barcode"),
    ("bs4", "beautifulsoup4"),
    ("bson", "pymongo"),
    ("cairo", "pycairo"),
    ("corsheaders", "django-cors-headers"),
    ("cpuinfo", "py-cpuinfo"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("decouple", "python-decouple"),
    ("discord", "discord-py"),
    ("django_filters", "django-filter"),
    ("dns", "dnspython"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("engineio", "python-engineio"),
    ("environ", "django-environ"),
    ("faiss", "faiss-cpu"),
    ("fitz", "pymupdf"),
    ("gi", "pygobject"),
    ("git", "gitpython"),
    ("github", "pygithub"),
    ("google.cloud.storage", "google-cloud-storage"),
    ("google.generativeai", "google-generativeai"),
    ("google.protobuf", "protobuf"),
    ("googleapiclient", "google-api-python-client"),
    ("gridfs", "pymongo"),
    ("grpc", "grpcio"),
    ("haystack", "haystack-ai"),
    ("jose", "python-jose"),
    ("jwt", "pyjwt"),
    ("kafka", "kafka-python"),
    ("lxml_html_clean", "lxml-html-clean"),
    ("magic", "python-magic"),
    ("markdown_it", "markdown-it-py"),
    ("mpl_toolkits", "matplotlib"),
    ("multipart", "python-multipart"),
    ("nacl", "pynacl"),
    ("osgeo", "gdal"),
    ("pkg_resources", "setuptools"),
    ("pptx", "python-pptx"),
    ("psycopg2", "psycopg2-binary"),
    ("pyximport", "cython"),
    ("rest_framework", "djangorestframework"),
    ("ruamel", "ruamel-yaml"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("slugify", "python-slugify"),
    ("snappy", "python-snappy"),
    ("socketio", "python-socketio"),
    ("socks", "pysocks"),
    ("telegram", "python-telegram-bot"),
    ("tlz", "toolz"),
    ("umap", "umap-learn"),
    ("usb", "pyusb"),
    ("websocket", "websocket-client"),
    ("yaml", "pyyaml"),
    ("zmq", "pyzmq"),
];

/// What the program inside found.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Found {
    /// A requirement file, relative to the working directory.
    requirements: Option<String>,
    /// Modules that cannot be imported.
    modules: Vec<String>,
    /// What `pip install` was given.
    packages: Vec<String>,
}

/// Installs what a command's scripts need and do not have. `None` where nothing was to be done.
/// `tell` hears of an installation before it begins.
///
/// # Errors
/// `Conflict` when the sandbox is being closed. Everything else is told by the answer: the command is
/// to run in any case.
pub(super) async fn provide(
    sandbox: &Arc<Sandbox>,
    command: &str,
    tell: &mpsc::Sender<String>,
) -> Result<Option<Dependencies>, Error> {
    let concerned = ["python", "pip"].iter().any(|word| command.contains(word));
    if !concerned || command.len() > MAX_COMMAND_BYTES {
        return Ok(None);
    }
    let Some(found) = look(sandbox, command).await? else {
        return Ok(None);
    };
    let file = found.requirements.filter(|path| !path.is_empty());
    let packages = match &file {
        Some(_) => found.packages,
        None => wanted(&found.modules, found.packages),
    };
    if packages.len() > MAX_PACKAGES || (file.is_none() && packages.is_empty()) {
        return Ok(None);
    }
    let mark = match &file {
        Some(path) => mark(sandbox, path).await,
        None => None,
    };
    if mark.is_some() && packages.is_empty() && sandbox.workspace.is_satisfied(mark) {
        return Ok(None);
    }
    let source = file.clone().unwrap_or_else(|| IMPORTS.to_owned());
    let shown = match &file {
        Some(path) => [std::slice::from_ref(path), &packages].concat(),
        None => packages.clone(),
    };
    let _ = tell
        .send(format!("installing {}\n", shown.join(", ")))
        .await;
    let mut done = try_install(sandbox, packages.clone(), file.clone()).await;
    let mut missing = Vec::new();
    if let Ok(info) = &done
        && info.status != PackageStatus::Installed
        && file.is_none()
    {
        // One that the index does not have keeps the others out.
        let absent = |p: &&super::types::PackageInfo| p.status == PackageStatus::NotFound;
        let names: BTreeSet<_> = info
            .packages
            .iter()
            .filter(absent)
            .map(|p| &p.name)
            .collect();
        let left = packages.iter().zip(&info.packages);
        let left = left.filter(|(_, told)| !names.contains(&told.name));
        let left: Vec<String> = left.map(|(package, _)| package.clone()).collect();
        if !names.is_empty() && !left.is_empty() {
            missing = names.into_iter().cloned().collect();
            done = try_install(sandbox, left, None).await;
        }
    }
    sandbox.refuse_closing()?;
    let dependencies = told(source, shown, done, &missing);
    if dependencies.success {
        sandbox.workspace.satisfy(mark);
    }
    // A file whose requirements were there all the time is nothing to tell of.
    let nothing = dependencies.success && dependencies.installed.is_empty();
    Ok((!nothing).then_some(dependencies))
}

async fn try_install(
    sandbox: &Arc<Sandbox>,
    packages: Vec<String>,
    requirements_file: Option<String>,
) -> Result<InstallInfo, Error> {
    let longest = Duration::from_secs(sandbox.host.config.limits.install_seconds);
    let spec = InstallSpec {
        packages,
        requirements_file,
        upgrade: false,
        wait: longest + GRACE,
    };
    install::install(sandbox, spec).await
}

fn told(
    source: String,
    wanted: Vec<String>,
    done: Result<InstallInfo, Error>,
    missing: &[String],
) -> Dependencies {
    let (success, installed, mut message) = match done {
        Ok(info) => {
            let success = info.status == PackageStatus::Installed;
            (success, added(&info.stderr), info.message)
        }
        Err(e) => (false, Vec::new(), format!("nothing was installed: {e}")),
    };
    if !missing.is_empty() {
        message.push_str("; the package index has no ");
        message.push_str(&missing.join(", "));
    }
    Dependencies {
        source,
        wanted,
        installed,
        success: success && missing.is_empty(),
        message,
    }
}

/// What uv says it has added (` + name==1.0`).
fn added(stderr: &str) -> Vec<String> {
    let names = stderr.lines().filter_map(|line| line.strip_prefix(" + "));
    names.map(str::to_owned).collect()
}

/// Packages of modules, and those that were named; no name twice.
fn wanted(modules: &[String], packages: Vec<String>) -> Vec<String> {
    let of_modules = modules.iter().filter_map(|module| package_of(module));
    let all: BTreeSet<String> = of_modules.chain(packages).collect();
    all.into_iter().collect()
}

/// The package that has a module, by its own name where no other is known.
fn package_of(module: &str) -> Option<String> {
    let known = |name: &str| {
        let place = PACKAGES.binary_search_by_key(&name, |(module, _)| module);
        place.ok().map(|place| PACKAGES[place].1.to_owned())
    };
    let mut name = module;
    loop {
        if let Some(package) = known(name) {
            return Some(package);
        }
        match name.rsplit_once('.') {
            Some((parent, _)) => name = parent,
            None => break,
        }
    }
    is_project_name(name).then(|| name.to_owned())
}

/// Content of a requirement file, so that it is not installed again and again.
async fn mark(sandbox: &Sandbox, path: &str) -> Option<[u8; 32]> {
    let open = files::open(sandbox, path).await.ok()?;
    let mut bytes = Vec::new();
    let most = MAX_FILE_BYTES as u64 + 1;
    open.file.take(most).read_to_end(&mut bytes).ok()?;
    Some(Sha256::digest(&bytes).into())
}

/// Asks the program inside. `None` when it has no usable answer: it is beside the point.
async fn look(sandbox: &Arc<Sandbox>, command: &str) -> Result<Option<Found>, Error> {
    let argv = [PYTHON, "-I", "-c", PROGRAM, command, HOME];
    let program = Program {
        argv: argv.map(str::to_owned).to_vec(),
        cwd: None,
        env: Default::default(),
        input: Input::Empty,
        apart: None,
        deadline: Some(Instant::now() + LOOK_TIME),
        log_bytes: ANSWER_BYTES,
    };
    let process = match program::start(sandbox, program).await {
        Ok(process) => process,
        // The command itself will not start either, and tells why.
        Err(_) => return sandbox.refuse_closing().map(|()| None),
    };
    let end = process.log.wait_end().await;
    sandbox.refuse_closing()?;
    let kept = process.log.since(0, ANSWER_BYTES);
    let stdout = |piece: &super::types::Piece| piece.stream == super::types::Stream::Stdout;
    let pieces = kept.pieces.into_iter().filter(stdout);
    let bytes: Vec<u8> = pieces.flat_map(|piece| piece.bytes).collect();
    let found = serde_json::from_slice(&bytes);
    if let Err(e) = &found {
        let code = end.exit_code();
        tracing::debug!(
            sandbox = sandbox.id(),
            code,
            "no dependencies were found: {e}"
        );
    }
    Ok(found.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_packages() {
        assert!(PACKAGES.is_sorted_by_key(|(module, _)| module));
        for (module, package) in [
            ("cv2", "opencv-python-headless"),
            ("PIL.Image", "pillow"),
            ("sklearn.svm", "scikit-learn"),
            ("yaml", "pyyaml"),
            ("google.cloud.storage.blob", "google-cloud-storage"),
            ("ruamel.yaml", "ruamel-yaml"),
            ("humanize", "humanize"),
            ("rich.console", "rich"),
        ] {
            assert_eq!(package_of(module).as_deref(), Some(package), "{module}");
        }
        for hostile in ["", "--pre", "a b", "x\n--index-url", "a;b", "é", "../x"] {
            assert_eq!(package_of(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn what_is_wanted_is_wanted_once() {
        let modules = ["rich.table", "rich", "PIL", "a b"].map(str::to_owned);
        let all = wanted(&modules, vec!["rich".into(), "x>=1".into()]);
        assert_eq!(all, ["pillow", "rich", "x>=1"]);
    }

    #[test]
    fn what_the_installer_added_is_told() {
        let stderr = "Resolved 2\n - rich==1\n + rich==2\n + mdurl==0.1\n";
        assert_eq!(added(stderr), ["rich==2", "mdurl==0.1"]);
    }
}
