//! uv, run apart from user code: see [`crate::isolation::apart`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::error::{Error, ErrorKind};
use super::program::{self, Input, Program};
use super::sandbox::Sandbox;
use super::types::{ProcessEnd, Stream};
use crate::isolation::apart::SCRATCH;
use crate::isolation::spec::Apart;
use crate::kernel::output::{Output, PIPE_BYTES};
use crate::network::{INDEX_PATH, Link, PROXY_PORT, Policy, normalize};

const UV: &str = "/opt/sandcell/bin/uv";
/// Debian's own, which user code cannot change, as it can the one of `/opt/venv`.
const PYTHON: &str = "/usr/bin/python3";
/// Where no program is: below what is no directory, so that nobody can make it one.
const NO_PATH: &str = "/dev/null/bin";
/// Where packages go.
const PREFIX: &str = "/opt/venv";
/// uv writes the interpreter that it was given into the commands of packages. That is Debian's, which finds
/// no package of [`PREFIX`]: they are to run with the one that does.
const FIX_COMMANDS: &str = "find /opt/venv/bin -type f -size -64k -print0 \
    | xargs -0 grep -lxZ -m 1 '#!/usr/bin/python3' \
    | xargs -0 -r sed -i '1s|^#!/usr/bin/python3$|#!/opt/venv/bin/python|'";
/// Longest that this may take; it takes 10 ms.
const FIX_TIME: Duration = Duration::from_secs(10);
/// Bytes of each of uv's streams that are kept.
const OUTPUT_BYTES: usize = 256 * 1024;
/// Longest that uv may take to read its requirements.
const STDIN_TIME: Duration = Duration::from_secs(30);
/// Longest that uv may take to list what is installed.
const LIST_TIME: Duration = Duration::from_secs(30);

/// What uv said and how it ended.
pub(super) struct Ran {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) end: ProcessEnd,
}

impl Ran {
    pub(super) fn succeeded(&self) -> bool {
        self.end.code == Some(0) && !self.end.timed_out
    }
}

/// Runs `uv pip` apart from user code, serving the package index to it meanwhile. Where it may build,
/// which runs user code, it is bound by the sandbox's own link: a change of the policy cuts it too.
pub(super) async fn uv(
    sandbox: &Arc<Sandbox>,
    arguments: &[&str],
    stdin: &str,
    longest: Duration,
    building: Option<Arc<Link>>,
) -> Result<Ran, Error> {
    let fixed = ["--python", PYTHON, "--prefix", PREFIX, "--color", "never"];
    let mut argv = vec![UV, "pip", arguments[0]];
    argv.extend(fixed);
    if arguments[0] == "install" {
        argv.push("--break-system-packages");
    }
    argv.extend(&arguments[1..]);
    let program = Program {
        argv: argv.into_iter().map(str::to_owned).collect(),
        cwd: None,
        env: environment(building.is_some()),
        input: Input::Pipe,
        apart: Some(Apart {
            scratch_bytes: sandbox.memory_bytes() / 2,
        }),
        deadline: Some(Instant::now() + longest),
        log_bytes: 2 * OUTPUT_BYTES,
    };
    let (process, listening) = program::start_apart(sandbox, program).await?;
    let listener = TcpListener::from_std(listening.into()).map_err(|e| {
        tracing::error!(sandbox = sandbox.id(), "no listener for the installer: {e}");
        Error::new(
            ErrorKind::Internal,
            "install_failed",
            "the installer could not be started",
        )
    })?;
    let link = building.unwrap_or_else(|| Arc::new(Link::new(sandbox.id(), Policy::Packages)));
    // Nobody may be left to see the end, as when a client that asked for a list has hung up: the
    // socket, and with it the installer's network namespace, must not outlive this call.
    let _index = AbortOnDropHandle::new(tokio::spawn(
        Arc::clone(&sandbox.host.egress).serve(listener, link),
    ));
    let mut reader = process.log.reader(0);
    let (mut stdout, mut stderr) = (Output::new(OUTPUT_BYTES), Output::new(OUTPUT_BYTES));
    let (mut said, mut complained) = (String::new(), String::new());
    let feed = async {
        // Of a uv that does not read or has ended its own output tells more.
        let _ = process.write(stdin.as_bytes(), STDIN_TIME).await;
        let _ = process.close_stdin(STDIN_TIME).await;
    };
    let read = async {
        while let Some(piece) = reader.next(PIPE_BYTES).await {
            match piece.stream {
                Stream::Stderr => complained.push_str(&stderr.push(&piece.bytes)),
                Stream::Stdout | Stream::Pty => said.push_str(&stdout.push(&piece.bytes)),
            }
        }
    };
    tokio::join!(feed, read);
    let end = process.log.wait_end().await;
    if arguments[0] == "install" && end.code == Some(0) {
        fix_commands(sandbox).await;
    }
    said.push_str(&stdout.finish("stdout"));
    complained.push_str(&stderr.finish("stderr"));
    Ok(Ran {
        stdout: said,
        stderr: complained,
        end,
    })
}

/// Where no process can be started the packages are installed all the same.
async fn fix_commands(sandbox: &Arc<Sandbox>) {
    let program = Program {
        argv: ["/bin/sh", "-c", FIX_COMMANDS].map(str::to_owned).to_vec(),
        cwd: None,
        env: BTreeMap::default(),
        input: Input::Empty,
        apart: None,
        deadline: Some(Instant::now() + FIX_TIME),
        log_bytes: OUTPUT_BYTES,
    };
    if let Ok(process) = program::start(sandbox, program).await {
        process.log.wait_end().await;
    }
}

/// All of it: neither the sandbox's nor the host's variables reach uv.
///
/// Where nothing is built uv finds no other program. A wheel of the user's may want `x @ git+…`, for
/// which uv would run git, and that ssh, on the user's repository and with settings of the user's.
fn environment(builds: bool) -> BTreeMap<String, String> {
    let path = if builds { "/usr/bin:/bin" } else { NO_PATH };
    [
        ("PATH", path.to_owned()),
        ("HOME", SCRATCH.to_owned()),
        ("TMPDIR", SCRATCH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TZ", "UTC".to_owned()),
        ("UV_CACHE_DIR", format!("{SCRATCH}/cache")),
        ("UV_NO_CONFIG", "1".to_owned()),
        ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
        (
            "UV_DEFAULT_INDEX",
            format!("http://127.0.0.1:{PROXY_PORT}{INDEX_PATH}"),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// What uv says from its first `error` on, without its prefixes.
pub(super) fn said(stderr: &str) -> String {
    let mut lines = stderr
        .lines()
        .map(|line| line.trim_start_matches(['│', '├', '╰', '─', '▶', '×', ' ']))
        .skip_while(|line| !line.starts_with("error"))
        .map(|line| line.strip_prefix("error: ").unwrap_or(line))
        .map(|line| line.strip_prefix("cause: ").unwrap_or(line))
        .filter(|line| !line.is_empty())
        .peekable();
    if lines.peek().is_none() {
        let last = stderr
            .lines()
            .last()
            .unwrap_or("the installer told no reason");
        return last.trim().to_owned();
    }
    lines.collect::<Vec<_>>().join(" ")
}

/// Versions of what is installed, by normalized name.
pub(super) async fn list(sandbox: &Arc<Sandbox>) -> Result<BTreeMap<String, String>, Error> {
    #[derive(Deserialize)]
    struct Listed {
        name: String,
        version: String,
    }
    let ran = uv(sandbox, &["list", "--format", "json"], "", LIST_TIME, None).await?;
    // From a directory that user code writes to: as little is believed of it as of any output.
    let listed: Vec<Listed> = serde_json::from_str(&ran.stdout).map_err(|_| not_listed(&ran))?;
    Ok(listed
        .into_iter()
        .map(|package| (normalize(&package.name), package.version))
        .collect())
}

fn not_listed(ran: &Ran) -> Error {
    let reason = if ran.end.timed_out {
        format!("that took longer than {} s", LIST_TIME.as_secs())
    } else if ran.end.out_of_memory {
        "that needed more memory than the sandbox has (memory_bytes)".to_owned()
    } else if ran.succeeded() {
        format!("their list is damaged or longer than {OUTPUT_BYTES} bytes")
    } else {
        said(&ran.stderr)
    };
    Error::new(
        ErrorKind::Conflict,
        "packages_unreadable",
        format!("the sandbox's packages could not be listed: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resolvers_words_are_told_without_its_drawing() {
        let stderr = "Using CPython\nerror: No solution found when resolving dependencies\n  cause: \
                      Because a was not found in the package registry and you require a, we can \
                      conclude that your requirements are unsatisfiable.\n";
        let told = said(stderr);
        assert!(told.starts_with("No solution found"), "{told}");
        assert!(told.contains("Because a was not found"), "{told}");
        assert!(!told.contains("cause:"), "{told}");
    }
}
