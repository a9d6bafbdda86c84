//! `sandcell run`: a script on the terminal, by itself or through the running service.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::fixture::host::{self, Process};
use crate::fixture::program::{Ran, run};
use crate::fixture::{SANDCELL, Service, mirrors_dir, temp_dir};

const LONGEST: Duration = Duration::from_secs(60);
/// The promise is one second on an idle machine; a machine that runs tests is not idle.
const QUICK: Duration = Duration::from_secs(2);

/// `sandcell run` with a data directory in which no service runs.
fn command(data_dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(SANDCELL);
    command
        .arg("run")
        .arg("--data-dir")
        .arg(data_dir)
        .arg("--mirrors-dir")
        .arg(mirrors_dir())
        .args(args);
    command.stdin(Stdio::null());
    command
}

fn run_alone(args: &[&str]) -> Ran {
    let dir = temp_dir();
    run(&mut command(&dir.path().join("data"), args), LONGEST)
}

fn assert_prints(args: &[&str], stdout: &str) {
    let ran = run_alone(args);
    assert_eq!((ran.code, &*ran.stdout), (Some(0), stdout), "{ran:?}");
}

#[test]
fn code_runs_in_under_a_second() {
    let quickest = (0..3).map(|_| {
        let ran = run_alone(&["-c", "print('hello')"]);
        assert_eq!(
            (ran.code, &*ran.stdout, &*ran.stderr),
            (Some(0), "hello\n", ""),
            "{ran:?}"
        );
        ran.took
    });
    let quickest = quickest.min().expect("three runs");
    println!("sandcell run -c took {quickest:?}");
    assert!(quickest < QUICK, "{quickest:?}");
}

#[test]
fn a_file_and_standard_input_run_too_with_their_arguments() {
    let dir = temp_dir();
    let script = dir.path().join("script.py");
    fs::write(
        &script,
        "import sys\nprint(sys.argv[1:])\nprint(sys.argv[0].endswith('script.py'))\n",
    )
    .expect("written");
    let script = script.to_str().expect("a path");
    assert_prints(
        &[script, "a", "-b", "--c=d", "é f"],
        "['a', '-b', '--c=d', 'é f']\nTrue\n",
    );
    assert_prints(&[script], "[]\nTrue\n");
    assert_prints(&["-c", "import sys; print(sys.argv)"], "['-c']\n");
    assert_prints(
        &["-c", "import sys; print(sys.argv)", "x", "-y", "-c"],
        "['-c', 'x', '-y', '-c']\n",
    );
    let mut piped = command(dir.path(), &["-", "y"]);
    let input = dir.path().join("input");
    fs::write(&input, "import sys\nprint(sys.argv[1:])").expect("written");
    let ran = run(
        piped.stdin(fs::File::open(&input).expect("it is there")),
        LONGEST,
    );
    assert_eq!((ran.code, &*ran.stdout), (Some(0), "['y']\n"), "{ran:?}");
}

#[test]
fn the_exit_status_is_the_script_s() {
    for (code, status) in [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(False)", 0),
        ("import sys; sys.exit(True)", 1),
        ("raise SystemExit('words')", 1),
        ("import os; os._exit(5)", 5),
        ("1/0", 1),
        ("if x print", 1),
    ] {
        let ran = run_alone(&["-c", code]);
        assert_eq!(ran.code, Some(status), "{code}: {ran:?}");
        assert_eq!(ran.stdout, "", "{code}");
    }
    let future = run_alone(&["-c", "from __future__ import annotations\n1/0", "argument"]);
    assert!(future.stderr.contains("line 2,"), "{}", future.stderr);
    let raised = run_alone(&[
        "-c",
        "print('out')\nimport sys; print('err', file=sys.stderr)\ndef f(): 1/0\nf()",
    ]);
    assert_eq!(raised.stdout, "out\n");
    assert!(raised.stderr.starts_with("err\n"), "{}", raised.stderr);
    assert!(
        raised.stderr.contains("line 3, in f")
            && raised
                .stderr
                .ends_with("ZeroDivisionError: division by zero\n"),
        "{}",
        raised.stderr
    );
}

#[test]
fn time_and_memory_are_limited() {
    let timed_out = run_alone(&["--timeout", "1", "-c", "print('begun')\nwhile True: pass"]);
    assert_eq!(
        (timed_out.code, &*timed_out.stdout),
        (Some(124), "begun\n"),
        "{timed_out:?}"
    );
    assert!(timed_out.took < Duration::from_secs(10), "{timed_out:?}");
    let killed = run_alone(&[
        "--memory",
        "128M",
        "-c",
        "print('begun', flush=True)\nb = bytearray(400 << 20)",
    ]);
    assert_eq!(
        (killed.code, &*killed.stdout),
        (Some(137), "begun\n"),
        "{killed:?}"
    );
}

#[test]
fn files_are_kept_on_request() {
    let dir = temp_dir();
    let kept = dir.path().join("kept");
    let code = "import os\nos.makedirs('a/b')\nopen('a/b/c.bin', 'wb').write(bytes(range(256)))\nopen('ü.txt', 'w').write('x')\nos.symlink('/etc/passwd', 'link')";
    let ran = run_alone(&["--keep-files", kept.to_str().expect("a path"), "-c", code]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        fs::read(kept.join("a/b/c.bin")).expect("kept"),
        (0..=255).collect::<Vec<u8>>()
    );
    assert_eq!(fs::read(kept.join("ü.txt")).expect("kept"), b"x");
    assert!(
        fs::symlink_metadata(kept.join("link")).is_err(),
        "links are not kept"
    );
}

#[test]
fn it_leaves_nothing_behind() {
    let dir = temp_dir();
    let data_dir = dir.path().join("data");
    let mut child = command(
        &data_dir,
        &["-c", "print('x', flush=True)\nwhile True: pass"],
    )
    .stdout(Stdio::piped())
    .spawn()
    .expect("it starts");
    let pid = child.id() as i32;
    let mut line = [0; 2];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut line)
        .expect("it prints");
    let family = host::descendants(pid);
    assert!(family.len() >= 4, "{family:?}");
    let instance = format!("run-{pid}");
    assert!(!host::cgroups(&instance).is_empty());
    Process::of(pid).expect("it lives").signal(Signal::INT);
    assert_eq!(child.wait().expect("our child").code(), Some(130));
    assert!(!family.iter().any(Process::exists), "{family:?}");
    assert_eq!(host::cgroups(&instance), Vec::<std::path::PathBuf>::new());
    assert!(!data_dir.exists(), "no data directory is made");
}

#[test]
fn nothing_outlives_a_killed_run_and_a_later_one_cleans_up() {
    let dir = temp_dir();
    let data_dir = dir.path().join("data");
    let mut child = command(
        &data_dir,
        &["-c", "print('x', flush=True)\nwhile True: pass"],
    )
    .stdout(Stdio::piped())
    .spawn()
    .expect("it starts");
    let mut line = [0; 2];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut line)
        .expect("it prints");
    let family = host::descendants(child.id() as i32);
    let instance = format!("run-{}", child.id());
    child.kill().expect("it can be killed");
    child.wait().expect("our child");
    host::wait_until("every process is gone", Duration::from_secs(2), || {
        !family.iter().any(Process::exists)
    });
    assert_eq!(
        run(&mut command(&data_dir, &["-c", "1"]), LONGEST).code,
        Some(0)
    );
    assert_eq!(host::cgroups(&instance), Vec::<std::path::PathBuf>::new());
}

#[test]
fn it_goes_through_the_running_service() {
    let service = Service::start();
    let keep = temp_dir();
    let code = "import os, sys\nprint('out', sys.argv[1:])\nprint('err', file=sys.stderr)\nopen('f', 'w').write('kept')\nsys.exit(4)";
    let args = [
        "--keep-files",
        keep.path().to_str().expect("a path"),
        "-c",
        code,
        "a",
    ];
    let ran = run(&mut command(service.data_dir(), &args), LONGEST);
    assert_eq!(
        (ran.code, &*ran.stdout),
        (Some(4), "out ['a']\n"),
        "{ran:?}"
    );
    assert!(ran.stderr.starts_with("err\n"), "{}", ran.stderr);
    assert_eq!(fs::read(keep.path().join("f")).expect("kept"), b"kept");
    let timed_out = run(
        &mut command(
            service.data_dir(),
            &["--timeout", "1", "-c", "while True: pass"],
        ),
        LONGEST,
    );
    assert_eq!(timed_out.code, Some(124), "{timed_out:?}");
    let killed = run(
        &mut command(
            service.data_dir(),
            &["--memory", "128M", "-c", "b = bytearray(400 << 20)"],
        ),
        LONGEST,
    );
    assert_eq!(killed.code, Some(137), "{killed:?}");

    // While it runs it is one of the service's sandboxes, and none afterwards.
    let mut child = command(
        service.data_dir(),
        &["-c", "print('x', flush=True)\nwhile True: pass"],
    )
    .stdout(Stdio::piped())
    .spawn()
    .expect("it starts");
    let mut line = [0; 2];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut line)
        .expect("it prints");
    let listed = service.get("/sandboxes").ok().json();
    let names: Vec<_> = listed
        .as_object()
        .expect("a map")
        .values()
        .map(|s| s["name"].clone())
        .collect();
    assert_eq!(names, ["run"]);
    let begun = Instant::now();
    Process::of(child.id() as i32)
        .expect("it lives")
        .signal(Signal::INT);
    assert_eq!(child.wait().expect("our child").code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(10));
    host::wait_until("its sandbox is closed", Duration::from_secs(10), || {
        service.get("/sandboxes").ok().json() == serde_json::json!({})
    });
}

#[test]
fn this_host_is_fit_and_doctor_says_so() {
    let ran = run(Command::new(SANDCELL).args(["doctor", "--json"]), LONGEST);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str::<serde_json::Value>(&ran.stdout).expect("JSON");
}

#[test]
fn unknown_keys_of_the_configuration_are_refused_by_name() {
    let dir = temp_dir();
    let config = dir.path().join("config.toml");
    fs::write(&config, "[limits]\nmemory = 5\n").expect("written");
    let ran = run(
        Command::new(SANDCELL)
            .args(["serve", "--config"])
            .arg(&config),
        LONGEST,
    );
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("memory"), "{}", ran.stderr);
}
