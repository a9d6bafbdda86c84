//! Clients of REST: the Python client of `clients/python` with all that it promises, what the READMEs of
//! the projects before this one do, and each route with `requests` and `curl`.

mod fixture;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use fixture::program::run;
use fixture::python::{install_wheel, venv};
use fixture::{Launch, Service, temp_dir};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python");
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
/// What mypy has read of others' packages.
const MYPY_CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/mypy");
/// Longest that a program may take.
const LONGEST: Duration = Duration::from_secs(600);

/// The Python that has the client's wheel and what tests it.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let python = venv(&Path::new(CLIENTS).join("python.txt"));
        install_wheel(&python, Path::new(PROJECT));
        python
    })
}

/// `python -m` something, in a directory, which it writes nothing to.
fn module(dir: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(python());
    command
        .args(["-m"])
        .args(arguments)
        .current_dir(dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("SANDCELL_API_KEY");
    command
}

#[track_caller]
fn passes(command: &mut Command) {
    let ran = run(command, LONGEST);
    println!("{}", ran.stdout);
    assert_eq!(
        ran.code,
        Some(0),
        "{command:?}\n{}\n{}",
        ran.stdout,
        ran.stderr
    );
}

/// Runs pytest against a service.
#[track_caller]
fn pytest(service: &Service, dir: &str, arguments: &[&str]) {
    let mut all = vec!["pytest", "-p", "no:cacheprovider", "--tb=short"];
    all.extend(arguments);
    let url = format!("http://{}", service.address);
    passes(module(dir, &all).env("SANDCELL_URL", url));
}

#[test]
fn the_python_client_is_typed_and_tidy_for_python_3_9() {
    passes(&mut module(PROJECT, &["ruff", "check", "--no-cache"]));
    passes(&mut module(
        PROJECT,
        &["ruff", "format", "--no-cache", "--check"],
    ));
    passes(&mut module(
        PROJECT,
        &["mypy", "--cache-dir", MYPY_CACHE, "src"],
    ));
    // What would be newer than that, in syntax or library.
    let mut vermin = Command::new(python().with_file_name("vermin"));
    vermin.args([
        "--quiet",
        "--no-tips",
        "--target=3.9-",
        "--violations",
        "src",
    ]);
    passes(vermin.current_dir(PROJECT));
    // What is installed says that it has types.
    let user = "import sandcell; x: int = sandcell.Sandbox.create().run_code('1')";
    let told = run(
        &mut module(
            CLIENTS,
            &["mypy", "--strict", "--cache-dir", MYPY_CACHE, "-c", user],
        ),
        LONGEST,
    );
    assert!(
        told.stdout
            .contains("has type \"Execution\", variable has type \"int\""),
        "{told:?}"
    );
}

#[test]
fn the_python_client_passes_its_tests_and_does_what_its_texts_say() {
    let service = Service::preloaded();
    pytest(&service, PROJECT, &["tests"]);
    pytest(
        &service,
        PROJECT,
        &["--doctest-glob=README.md", "README.md"],
    );
    pytest(
        &service,
        PROJECT,
        &["--doctest-modules", "--pyargs", "sandcell"],
    );
}

#[test]
fn the_code_of_the_seeds_runs_as_written() {
    let local = temp_dir();
    let service = Service::launch(&Launch {
        config: &format!("mcp.local_dirs = [{:?}]", local.path()),
        preload: true,
        ..Launch::default()
    });
    let mut seeds = module(
        &format!("{CLIENTS}/seeds"),
        &["pytest", "-p", "no:cacheprovider", "--tb=short"],
    );
    seeds
        .env("SANDCELL_URL", format!("http://{}", service.address))
        .env("SANDCELL_LOCAL_DIR", local.path());
    passes(&mut seeds);
}

#[test]
fn every_route_answers_requests_and_curl() {
    let service = Service::preloaded();
    pytest(&service, CLIENTS, &["rest_routes.py"]);
}
