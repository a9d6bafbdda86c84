//! Sandboxes of a supervisor within the test's own process, where single mechanisms can be off.

use sandcell::config::Config;
use sandcell::isolation::Error;
use sandcell::isolation::spec::Ablation;
use sandcell::supervisor::{CreateSpec, Ending, Event, ExecuteSpec, Prepared, Supervisor};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::Place;
use crate::fixture::host::{self, Process};
use crate::fixture::{SANDCELL, base_mirror, temp_dir};

/// A supervisor and what it needs.
pub struct Laboratory {
    runtime: Runtime,
    supervisor: Supervisor,
    _dir: TempDir,
}

impl Laboratory {
    /// With every mechanism on.
    pub fn start() -> Self {
        Self::without(Ablation::default())
    }

    pub fn without(ablation: Ablation) -> Self {
        Self::try_without(ablation).expect("the supervisor starts")
    }

    /// A supervisor makes a sandbox when it starts, and does not start where it cannot.
    pub fn try_without(ablation: Ablation) -> Result<Self, Error> {
        Self::try_configured(ablation, |_| ())
    }

    /// The same with a change of the configuration.
    pub fn try_configured(
        ablation: Ablation,
        change: impl FnOnce(&mut Config),
    ) -> Result<Self, Error> {
        let dir = temp_dir();
        let mut config = Config {
            data_dir: dir.path().join("data"),
            ..Config::default()
        };
        config.service.pool = 0;
        config.service.preload.clear();
        change(&mut config);
        // This thread forks the nursery, which dies with it.
        let prepared =
            Prepared::new(config, SANDCELL.as_ref(), &base_mirror()).expect("the nursery starts");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime starts");
        let supervisor = runtime.block_on(Supervisor::start(prepared.without(ablation)));
        Ok(Self {
            supervisor: supervisor?,
            runtime,
            _dir: dir,
        })
    }

    pub fn create(&self) -> Subject<'_> {
        self.create_with(CreateSpec::default())
    }

    pub fn create_with(&self, spec: CreateSpec) -> Subject<'_> {
        let info = self
            .runtime
            .block_on(self.supervisor.create(spec))
            .expect("a sandbox is made");
        Subject {
            laboratory: self,
            id: info.id,
        }
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        self.runtime.block_on(self.supervisor.drain());
    }
}

/// A sandbox of a laboratory.
pub struct Subject<'a> {
    laboratory: &'a Laboratory,
    id: String,
}

impl Subject<'_> {
    /// Ports inside on which something listens.
    pub fn ports(&self) -> Vec<u16> {
        let Laboratory {
            runtime,
            supervisor,
            ..
        } = self.laboratory;
        let listed = runtime.block_on(supervisor.ports(&self.id));
        let listed = listed.expect("the ports can be listed").into_iter();
        listed.map(|found| found.port).collect()
    }

    /// Connects to a port inside; gives the code of the refusal.
    pub fn dial(&self, port: u16) -> Result<(), &'static str> {
        let Laboratory {
            runtime,
            supervisor,
            ..
        } = self.laboratory;
        let dialled = runtime.block_on(supervisor.dial(&self.id, port));
        dialled.map(drop).map_err(|e| e.code)
    }

    /// Runs code; gives what it printed on both streams and how it ended.
    pub fn execute(&self, code: &str) -> (String, Ending) {
        let spec = ExecuteSpec {
            code: code.to_owned(),
            ..ExecuteSpec::default()
        };
        let supervisor = &self.laboratory.supervisor;
        self.laboratory.runtime.block_on(async {
            let mut execution = supervisor
                .execute(&self.id, spec)
                .await
                .expect("the execution starts");
            let mut said = String::new();
            while let Some(event) = execution.next().await {
                match event {
                    Event::Stdout(text) | Event::Stderr(text) => said.push_str(&text),
                    Event::Error(error) => said.push_str(&error.traceback),
                    Event::Ended(ended) => return (said, ended.ending),
                    _ => {}
                }
            }
            panic!("the execution has no end: {said}");
        })
    }
}

impl Place for Subject<'_> {
    fn python(&self, code: &str) -> String {
        let (said, ending) = self.execute(code);
        assert_eq!(ending, Ending::Ok, "{code}\n{said}");
        said
    }

    fn processes(&self, leaf: &str) -> Vec<Process> {
        host::sandbox_processes(&self.id, leaf)
    }
}
