//! Building the base: the recipe's steps in order, each in mount and PID namespaces of its own.
//!
//! A build writes to a directory that nobody uses and that gets its name, the mirror's id, by the
//! last rename. Killed at any moment it leaves only that directory, which the next
//! [`Store::open`] or build sweeps; its programs die with it ([`confined`]).

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::MIRROR_OWNER;
use super::error::Error;
use super::host::{self, DebianArchive, PythonIndex};
use super::manifest::{self, Manifest, Scan};
use super::program::{Log, SOURCE_DATE, confined, on_path};
use super::progress::{Event, Step};
use super::recipe;
use super::store::{
    BUILDING, Mirror, RECORD, Record, Store, now_seconds, open_lock, remove_tree, write_manifest,
    write_record,
};
use super::tree;

const SUITE: &str = "trixie";
/// The first release with trixie's keys has this file; its full ring has another name since.
const TRIXIE_KEY: &str = "/usr/share/keyrings/debian-archive-trixie-automatic";
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];
/// Lines like "Unpacking …" and "Setting up …" that installing the packages takes, about.
const PACKAGE_LINES: f64 = 250.0;

type Progress<'a> = &'a mut dyn FnMut(Event);

/// A build in progress.
struct Build<'a> {
    /// Becomes `<mirrors>/<id>`.
    dir: PathBuf,
    /// Files for the steps, outside the tree; gone before the rename.
    inputs: PathBuf,
    log: Log,
    progress: Progress<'a>,
    /// Of the store.
    packages: &'a [String],
}

impl Store {
    /// Builds the base, or returns the one there is: also the one that another process finished
    /// while this one waited for it. Takes two to three minutes on two processors and 1.9 GB of
    /// disk, and installs mmdebstrap on the host where it is missing. The calling thread must live until it
    /// returns: its end ends the build's programs.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::Tool`] for what the host lacks, [`Error::Step`] for a step that
    /// went wrong (most often the network), [`Error::Io`] for the disk.
    pub fn build_base(&self, progress: &mut dyn FnMut(Event)) -> Result<Mirror, Error> {
        let _lock = self.lock_build(progress)?;
        match self.find_base()? {
            Some(mirror) => Ok(mirror),
            None => self.build(progress),
        }
    }

    /// Builds the base even where there is one, with today's Debian packages. Where nothing
    /// changed the mirror there was is returned, whole again if it was damaged.
    ///
    /// # Errors
    /// Those of [`Store::build_base`], and [`Error::InUse`] when a damaged mirror cannot be
    /// replaced because somebody uses it.
    pub fn rebuild_base(&self, progress: &mut dyn FnMut(Event)) -> Result<Mirror, Error> {
        let _lock = self.lock_build(progress)?;
        self.build(progress)
    }

    fn lock_build(&self, progress: Progress) -> Result<File, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotRoot);
        }
        let path = self.lock_path();
        let file = open_lock(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(Event::Waiting);
                file.lock().map_err(Error::io("lock", &path))?;
            }
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path)(source)),
        }
        self.sweep()?;
        Ok(file)
    }

    fn build(&self, progress: Progress) -> Result<Mirror, Error> {
        let dir = self.fresh(BUILDING);
        let mut build = Build {
            inputs: dir.join("inputs"),
            log: Log::create(self.dir.join("build.log"))?,
            dir,
            progress,
            packages: &self.packages,
        };
        let built = build.run().and_then(|id| self.publish(&build.dir, id));
        if built.is_err() {
            remove_tree(&build.dir)?;
        }
        built
    }

    /// Gives a finished build its id, unless a mirror that is the same in every byte has it.
    fn publish(&self, dir: &Path, id: String) -> Result<Mirror, Error> {
        self.publish_owned_by(MIRROR_OWNER, dir, id)
    }

    fn publish_owned_by(&self, owner: u32, dir: &Path, id: String) -> Result<Mirror, Error> {
        let target = self.dir.join(&id);
        if target.exists() {
            let there = self.find(&id)?;
            let clean = there
                .verify_owned_by(owner, &mut |_| ())
                .is_ok_and(|report| report.is_clean());
            if clean {
                let record = dir.join(RECORD);
                let (from, to) = (&record, target.join(RECORD));
                fs::rename(from, &to).map_err(Error::io("replace", &to))?;
                remove_tree(dir)?;
                return self.find(&id);
            }
            self.discard(&there)?;
        }
        let store = File::open(&self.dir).map_err(Error::io("open", &self.dir))?;
        rustix::fs::syncfs(&store).map_err(Error::errno("write back", dir))?;
        fs::rename(dir, &target).map_err(Error::io("rename", dir))?;
        store
            .sync_all()
            .map_err(Error::io("write back", &self.dir))?;
        self.find(&id)
    }
}

impl Build<'_> {
    /// Runs every step and returns the id.
    fn run(&mut self) -> Result<String, Error> {
        let start = Instant::now();
        let root = self.dir.join("root");
        for dir in [&self.dir, &self.inputs] {
            fs::DirBuilder::new()
                .mode(0o755)
                .create(dir)
                .map_err(Error::io("make", dir))?;
        }
        let keyring = self.provide_tools()?;
        self.packages(&root, &keyring)?;
        let default_index = self.python(&root)?;
        self.step(Step::ByteCode)?;
        self.enter(
            &root,
            "compile to byte code",
            false,
            &["python3", "/tmp/recipe/bytecode.py"],
        )?;
        self.step(Step::Fonts)?;
        let fonts = ["/opt/venv/bin/python", "-B", "/tmp/recipe/fonts.py"];
        self.enter(&root, "build the font list", false, &fonts)?;
        self.enter(
            &root,
            "finish the tree",
            false,
            &["sh", "/tmp/recipe/finish.sh"],
        )?;
        self.step(Step::Hash)?;
        fs::remove_dir_all(&self.inputs).map_err(Error::io("delete", &self.inputs))?;
        // What follows makes a part of the tree writable for all: for user code, not for the host's users.
        fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o700))
            .map_err(Error::io("close", &self.dir))?;
        tree::strip(&root, MIRROR_OWNER)?;
        let progress = &mut self.progress;
        let Scan { manifest, .. } = Manifest::scan(&root, MIRROR_OWNER, &mut |fraction| {
            progress(Event::Fraction(fraction));
        })?;
        self.record(&manifest, default_index, start)
    }

    fn record(
        &self,
        manifest: &Manifest,
        default_index: String,
        start: Instant,
    ) -> Result<String, Error> {
        let text = write_manifest(&self.dir, manifest)?;
        let record = Record {
            recipe: recipe::key(self.packages),
            created_at: now_seconds(),
            size_bytes: manifest.size_bytes(),
            entries: manifest.entries.len(),
            build_seconds: start.elapsed().as_secs(),
            default_index,
        };
        write_record(&self.dir, RECORD, &record)?;
        Ok(manifest::id_of(&text))
    }

    fn step(&mut self, step: Step) -> Result<(), Error> {
        (self.progress)(Event::Began(step));
        self.log.line(&format!("== {}", step.title()))
    }

    /// mmdebstrap and keys that sign trixie, through apt-get where they are missing.
    fn provide_tools(&mut self) -> Result<PathBuf, Error> {
        let keys = || {
            let known = ["gpg", "pgp", "asc"]
                .iter()
                .any(|extension| Path::new(TRIXIE_KEY).with_extension(extension).exists());
            let ring = KEYRINGS
                .iter()
                .map(PathBuf::from)
                .find(|ring| ring.exists());
            ring.filter(|_| known)
        };
        if !on_path("mmdebstrap") || !on_path("mount") || keys().is_none() {
            if !on_path("apt-get") {
                return Err(Error::Tool {
                    program: "mmdebstrap",
                    mend: "install mmdebstrap and debian-archive-keyring with this system's \
                           package manager, or copy a mirror from a Debian host",
                });
            }
            (self.progress)(Event::Note(
                "installing mmdebstrap, debian-archive-keyring and mount with apt-get".into(),
            ));
            let mut update = Command::new("apt-get");
            update.args(["--quiet", "update"]);
            self.log.run("update apt's lists", update, &mut |_| ())?;
            let mut install = Command::new("apt-get");
            install
                .args(["--quiet", "--yes", "--no-install-recommends", "install"])
                .args(["mmdebstrap", "debian-archive-keyring", "gpg", "mount"])
                .env("DEBIAN_FRONTEND", "noninteractive");
            self.log.run("install mmdebstrap", install, &mut |_| ())?;
        }
        for program in ["mmdebstrap", "mount", "unshare", "setpriv"] {
            if !on_path(program) {
                let mend = "install the Debian packages mmdebstrap, mount and util-linux";
                return Err(Error::Tool { program, mend });
            }
        }
        keys().ok_or(Error::Tool {
            program: "a keyring that signs Debian trixie",
            mend: "upgrade the package debian-archive-keyring",
        })
    }

    fn packages(&mut self, root: &Path, keyring: &Path) -> Result<(), Error> {
        self.step(Step::Packages)?;
        let mut command = confined(true);
        command
            .args([
                "mmdebstrap",
                "--verbose",
                "--mode=root",
                "--variant=essential",
            ])
            .arg("--format=directory")
            .arg(format!("--include={}", recipe::packages(self.packages)))
            .arg(format!("--keyring={}", keyring.display()))
            .arg("--aptopt=APT::Install-Recommends \"false\"")
            // A power cut leaves a build nobody uses, so writing back each file buys nothing.
            .arg("--dpkgopt=force-unsafe-io")
            .arg("--dpkgopt=path-exclude=/usr/share/man/*")
            .arg("--dpkgopt=path-exclude=/usr/share/locale/*")
            .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
            .arg("--dpkgopt=path-include=/usr/share/doc/*/copyright");
        for option in apt_network_options() {
            command.arg(format!("--aptopt={option}"));
        }
        command.arg(SUITE).arg(root);
        command.args(DebianArchive::of_host().lines(SUITE, keyring));
        let (log, progress) = (&mut self.log, &mut self.progress);
        let mut lines = 0.0;
        log.run("install the Debian packages", command, &mut |line| {
            if line.starts_with("Unpacking ") || line.starts_with("Setting up ") {
                lines += 1.0;
                progress(Event::Fraction(lines / PACKAGE_LINES));
            }
        })
    }

    /// Fills `/opt/venv`; returns the index that the mirror's pip uses by default.
    fn python(&mut self, root: &Path) -> Result<String, Error> {
        self.step(Step::Python)?;
        let bundle = root.join("etc/ssl/certs/ca-certificates.crt");
        let own = fs::read_to_string(&bundle).map_err(Error::io("read", &bundle))?;
        let ca = host::merge_certificates([own, host::certificates()]);
        let uv = recipe::uv_requirement();
        let made = [("ca.pem", ca.as_str()), ("uv.txt", uv.as_str())];
        for (name, content) in recipe::INPUTS.iter().chain(&made) {
            let path = self.inputs.join(name);
            fs::write(&path, content).map_err(Error::io("write", &path))?;
        }
        self.enter(
            root,
            "install the Python packages",
            true,
            &["sh", "/tmp/recipe/python.sh"],
        )?;
        let print =
            "from pip._internal.models.index import PyPI; print('default', PyPI.simple_url)";
        let mut index = String::new();
        let command = self.inside(root, false, &["/opt/venv/bin/python", "-B", "-c", print]);
        self.log
            .run("ask pip for its index", command, &mut |line| {
                if let Some(url) = line.strip_prefix("default ") {
                    index = url.to_owned();
                }
            })?;
        Ok(index)
    }

    /// Runs a command of the recipe inside the tree.
    fn enter(
        &mut self,
        root: &Path,
        step: &'static str,
        network: bool,
        command: &[&str],
    ) -> Result<(), Error> {
        let command = self.inside(root, network, command);
        let (log, progress) = (&mut self.log, &mut self.progress);
        let mut seen = 0;
        log.run(step, command, &mut |line| {
            if let Some(fraction) = fraction_of(line, &mut seen) {
                progress(Event::Fraction(fraction));
            }
        })
    }

    fn inside(&self, root: &Path, network: bool, command: &[&str]) -> Command {
        let mut outer = confined(network);
        outer
            .args(["sh", "-c", recipe::ENTER, "enter.sh"])
            .arg(if network { "network" } else { "isolated" })
            .args([root, &self.inputs])
            .args(command)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", "/tmp")
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("SOURCE_DATE_EPOCH", SOURCE_DATE)
            .env("PYTHONHASHSEED", "0");
        if network {
            for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
                for name in [name.to_owned(), name.to_uppercase()] {
                    if let Some(value) = std::env::var_os(&name) {
                        outer.env(name, value);
                    }
                }
            }
            outer.envs(PythonIndex::of_host().environment());
            for name in ["SSL_CERT_FILE", "PIP_CERT"] {
                outer.env(name, "/tmp/recipe/ca.pem");
            }
        }
        outer
    }
}

/// How far a step is, from a line that it said: `progress DONE TOTAL`, or uv naming a package,
/// which it does twice, when fetched and when installed.
fn fraction_of(line: &str, seen: &mut usize) -> Option<f64> {
    if let Some(rest) = line.strip_prefix("progress ") {
        let (done, total) = rest.split_once(' ')?;
        return Some(done.parse::<f64>().ok()? / total.parse::<f64>().ok()?);
    }
    let line = line.trim_start();
    if !line.starts_with("Downloaded ") && !line.starts_with("+ ") {
        return None;
    }
    *seen += 1;
    Some(*seen as f64 / (2 * recipe::requirement_count()) as f64)
}

/// How apt on this host reaches its archive: proxies, certificates. The tree keeps none of it.
fn apt_network_options() -> Vec<String> {
    let Ok(output) = Command::new("apt-config").arg("dump").output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with("Acquire::http") && !line.ends_with(" \"\";"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::testing::{OWNER, small_store};
    use super::*;

    #[test]
    fn a_second_builder_waits_and_takes_what_the_first_built() {
        let (store, mirror) = small_store();
        let first = store.0.lock_build(&mut |_| ()).unwrap();
        std::thread::scope(|scope| {
            let (send, events) = mpsc::channel();
            let store = &store.0;
            let second =
                scope.spawn(move || store.build_base(&mut |event| send.send(event).unwrap()));
            let waits = events.recv_timeout(Duration::from_secs(10));
            assert_eq!(waits, Ok(Event::Waiting));
            assert!(!second.is_finished());
            drop(first);
            assert_eq!(second.join().unwrap().unwrap().id, mirror.id);
        });
    }

    #[test]
    fn the_same_tree_again_only_renews_the_record() {
        let (store, mirror) = small_store();
        let again = store.0.fresh(BUILDING);
        fs::create_dir(&again).unwrap();
        let record = Record {
            build_seconds: 77,
            ..mirror.record.clone()
        };
        write_record(&again, RECORD, &record).unwrap();
        let lock = mirror.lock_shared().unwrap();
        let kept = store
            .0
            .publish_owned_by(*OWNER, &again, mirror.id.clone())
            .unwrap();
        assert_eq!((kept.id, kept.record), (mirror.id.clone(), record));
        assert!(!again.exists());
        // A damaged one is replaced, but not under the feet of a sandbox.
        fs::write(mirror.root.join("etc/hosts"), "evil").unwrap();
        fs::create_dir(&again).unwrap();
        let refused = store.0.publish_owned_by(*OWNER, &again, mirror.id.clone());
        assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
        drop(lock);
    }

    #[test]
    fn a_step_tells_how_far_it_is() {
        let mut seen = 0;
        assert_eq!(fraction_of("progress 100 400", &mut seen), Some(0.25));
        assert_eq!(fraction_of("progress of sorts", &mut seen), None);
        assert_eq!(fraction_of("Resolved 61 packages", &mut seen), None);
        let first = fraction_of(" Downloaded numpy", &mut seen).unwrap();
        let second = fraction_of(" + numpy==1", &mut seen).unwrap();
        assert!(0.0 < first && first < second && second < 0.1);
    }
}
