//! Programs of `tests/clients`, with their pinned packages installed below `target/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::fixture::program::run;

/// Where the programs are.
pub const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
/// Downloading and installing on a slow line.
const INSTALL: Duration = Duration::from_secs(300);
/// Longest that a program may take.
pub const FLOW: Duration = Duration::from_secs(240);

/// A virtual environment with the pinned client, made once and kept in `target/`.
pub fn python() -> PathBuf {
    let requirements = Path::new(CLIENTS).join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).expect("requirements");
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mcp-client");
    let python = venv.join("bin/python");
    // Written last: an interrupted installation is made again.
    let installed = venv.join("installed.txt");
    if fs::read_to_string(&installed).is_ok_and(|i| i == wanted) {
        return python;
    }
    let _ = fs::remove_dir_all(&venv);
    let made = run(
        Command::new("python3").args(["-m", "venv"]).arg(&venv),
        INSTALL,
    );
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(&requirements);
    let made = run(&mut install, INSTALL);
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::write(&installed, wanted).expect("a file can be written");
    python
}
