//! A service that is measured.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cli::Common;

/// A service of its own for the measurement.
pub(super) struct Service {
    child: Child,
    pub(super) url: String,
    data_dir: PathBuf,
}

impl Service {
    pub(super) fn start(common: &Common, pool: usize) -> Result<Self, String> {
        let config = common.load()?;
        let data_dir =
            std::env::temp_dir().join(format!("sandcell-bench-{}-{pool}", std::process::id()));
        let mut command = Command::new("/proc/self/exe");
        command
            .args([
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--pool",
                &pool.to_string(),
            ])
            .arg("--data-dir")
            .arg(&data_dir)
            .arg("--mirrors-dir")
            .arg(config.mirrors_dir())
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped());
        if let Some(file) = &common.config {
            command.arg("--config").arg(file);
        }
        let mut child = command
            .spawn()
            .map_err(|e| format!("failed to start a service: {e}"))?;
        let out = child.stdout.take().ok_or("the service has no output")?;
        let mut line = String::new();
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        let url = line
            .split_whitespace()
            .find(|w| w.starts_with("http://"))
            .map(str::to_owned);
        let mut service = Self {
            child,
            url: String::new(),
            data_dir,
        };
        service.url = url.ok_or("the service did not start")?;
        // The pool fills up and the probe of the start goes away.
        std::thread::sleep(Duration::from_millis(500));
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data_dir);
    }
}
