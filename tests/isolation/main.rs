//! What stands between a sandbox and everything else: seen from inside by Python code, from outside
//! through the host's `/proc`. A check that a mechanism upholds is a function over a [`Place`], and
//! runs twice: where everything is on it must pass, where the mechanism is off it must fail.

#[path = "../fixture/mod.rs"]
mod fixture;

#[allow(dead_code, reason = "tests/gpu and the unit tests use all of it")]
#[path = "../../src/gpu/testing.rs"]
mod made_up;

mod descriptors;
mod gpus;
mod identity;
mod init;
mod laboratory;
mod limits;
mod neighbours;
mod ports;
mod syscalls;
mod view;

use fixture::host::Process;
use laboratory::Laboratory;
use sandcell::isolation::spec::Ablation;

/// A sandbox that a check looks at.
trait Place {
    /// Runs code that must end well; gives what it printed.
    fn python(&self, code: &str) -> String;
    /// Processes of a leaf of its cgroup: `init`, `kernel`, `command-<n>`.
    fn processes(&self, leaf: &str) -> Vec<Process>;

    fn kernel(&self) -> Process {
        self.processes("kernel")
            .into_iter()
            .next()
            .expect("the kernel lives")
    }

    fn init(&self) -> Process {
        self.processes("init")
            .into_iter()
            .next()
            .expect("init lives")
    }
}

impl Place for fixture::sandbox::Sandbox<'_> {
    fn python(&self, code: &str) -> String {
        self.stdout(code)
    }

    fn processes(&self, leaf: &str) -> Vec<Process> {
        fixture::sandbox::Sandbox::processes(self, leaf)
    }
}

/// What a check found wrong.
type Found = Result<(), String>;

/// Fails with the text unless the condition holds.
fn require(condition: bool, otherwise: impl FnOnce() -> String) -> Found {
    if condition { Ok(()) } else { Err(otherwise()) }
}

/// Asserts that a check passes where everything is on, and fails without a mechanism.
#[track_caller]
fn upheld_by(check: impl Fn(&dyn Place) -> Found, without: Ablation) {
    between_upheld_by(|place, _| check(place), without);
}

/// The same for a check over two sandboxes.
#[track_caller]
fn between_upheld_by(check: impl Fn(&dyn Place, &dyn Place) -> Found, without: Ablation) {
    let try_in = |laboratory: &Laboratory| check(&laboratory.create(), &laboratory.create());
    if let Err(found) = try_in(&Laboratory::start()) {
        panic!("{found}");
    }
    let control = try_in(&Laboratory::without(without));
    assert!(control.is_err(), "nothing is noticed with {without:?}");
}
