//! Running the programs of a build: confined, logged, and gone when the build is.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::Error;

/// Files that programs date with today's date are dated with this, seconds since 1970.
pub(super) const SOURCE_DATE: &str = "1767225600";
/// Lines of a failed program's output that its error repeats.
const TAIL_LINES: usize = 20;

/// Everything that a build's programs say.
pub(super) struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Starts a log anew. Only its owner reads it: addresses of private registries are in it.
    pub(super) fn create(path: PathBuf) -> Result<Self, Error> {
        if path.exists() {
            fs::remove_file(&path).map_err(Error::io("delete", &path))?;
        }
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("make", &path))?;
        Ok(Self { path, file })
    }

    pub(super) fn line(&mut self, line: &str) -> Result<(), Error> {
        writeln!(self.file, "{line}").map_err(Error::io("write", &self.path))
    }

    /// Runs a program to its end. Each line of its output goes to the log and to `hear`.
    ///
    /// # Errors
    /// [`Error::Step`] when it does not end with 0, [`Error::Io`] when it cannot be run or logged.
    pub(super) fn run(
        &mut self,
        step: &'static str,
        mut command: Command,
        hear: &mut dyn FnMut(&str),
    ) -> Result<(), Error> {
        let program = PathBuf::from(command.get_program());
        let pipe = std::io::pipe().and_then(|(reader, writer)| {
            let errors = writer.try_clone()?;
            command.stdin(Stdio::null()).stdout(writer).stderr(errors);
            Ok(reader)
        });
        let reader = pipe.map_err(Error::io("make a pipe for", &program))?;
        let mut child = command.spawn().map_err(Error::io("run", &program))?;
        // The command holds the pipe's other end; it must go, or the pipe never ends.
        drop(command);
        let tail = self.copy(reader, &program, hear);
        if tail.is_err() {
            // Nobody listens any more. The error tells more than what these two could add.
            let _ = child.kill();
        }
        let status = child.wait().map_err(Error::io("wait for", &program))?;
        let tail = Vec::from(tail?).join("\n");
        if status.success() {
            return Ok(());
        }
        Err(Error::Step {
            step,
            status: status.to_string(),
            log: self.path.clone(),
            tail,
        })
    }

    /// Copies lines until the program has closed its output; returns the last of them.
    fn copy(
        &mut self,
        output: impl std::io::Read,
        program: &Path,
        hear: &mut dyn FnMut(&str),
    ) -> Result<VecDeque<String>, Error> {
        let mut tail = VecDeque::new();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(Error::io("read the output of", program))?;
            let line = without_credentials(&String::from_utf8_lossy(&line));
            self.line(&line)?;
            hear(&line);
            tail.push_back(line);
            if tail.len() > TAIL_LINES {
                tail.pop_front();
            }
        }
        Ok(tail)
    }
}

/// Starts a command that runs its arguments in new namespaces. They die with the calling thread:
/// the kernel kills `unshare` then (`PDEATHSIG`), and with it the PID namespace.
pub(super) fn confined(network: bool) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"])
        .args(["--pid", "--mount", "--mount-proc", "--ipc", "--uts"])
        .args(["--propagation", "private"]);
    if !network {
        command.arg("--net");
    }
    command
        .arg("--")
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC")
        .env("SOURCE_DATE_EPOCH", SOURCE_DATE);
    command
}

pub(super) fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Takes `user:password@` out of URLs before a line is kept.
fn without_credentials(line: &str) -> String {
    let mut parts = line.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part
            .find(|c: char| c == '/' || c.is_whitespace() || c == '"')
            .unwrap_or(part.len());
        let start = part[..end].rfind('@').map_or(0, |at| at + 1);
        clean.push_str("://");
        clean.push_str(&part[start..]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::super::testing::temp_store;
    use super::*;

    #[test]
    fn logs_hold_no_credentials() {
        let line = "fetch https://me:s3cr@t@a.example/x@1 and http://b.example, user@c.example";
        assert_eq!(
            without_credentials(line),
            "fetch https://a.example/x@1 and http://b.example, user@c.example"
        );
    }

    #[test]
    fn a_failed_program_is_told_with_its_last_words() {
        let store = temp_store();
        let path = store.0.dir.join("build.log");
        let mut log = Log::create(path.clone()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "seq 30; echo last words >&2; exit 3"]);
        let mut heard = 0;
        let error = log.run("try", command, &mut |_| heard += 1).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("try: exit status: 3; "), "{text}");
        assert!(text.ends_with("\n29\n30\nlast words"), "{text}");
        assert!(!text.contains("\n11\n"), "{text}");
        assert_eq!(heard, 31);
        assert_eq!(fs::read_to_string(path).unwrap().lines().count(), 31);
    }

    #[test]
    fn programs_see_no_mount_and_no_process_of_the_host() {
        let store = temp_store();
        let mut command = confined(false);
        let script = "echo $$ && mount -t tmpfs none \"$0\" && touch \"$0/seen\"";
        command.args(["sh", "-c", script]).arg(&store.0.dir);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n");
        assert!(!store.0.dir.join("seen").exists());
    }
}
