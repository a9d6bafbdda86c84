//! Code that means harm, or acts as if it did. After every attack the sandbox is usable or reported
//! dead, a neighbour calculates in time, and the service is well.

#[path = "../fixture/mod.rs"]
mod fixture;

mod branches;
mod forgery;
mod installer;
mod memory;
mod network;
mod output;
mod ports;
mod processes;
mod storage;
mod time;

use std::time::{Duration, Instant};

use fixture::Service;
use fixture::sandbox::{Sandbox, shown};
use serde_json::{Value, json};

/// A neighbour that waits for a processor on a machine full of tests.
const NEIGHBOUR: Duration = Duration::from_secs(10);

/// A service with a sandbox to attack from and another beside it.
struct Scene {
    service: Service,
    neighbour: String,
}

impl Scene {
    fn new(config: &str) -> Self {
        let service = Service::with_config(config);
        let neighbour = service.create().id;
        Self { service, neighbour }
    }

    fn attacker(&self, spec: &Value) -> Sandbox<'_> {
        self.service.create_with(spec)
    }

    /// What must hold after an attack.
    #[track_caller]
    fn assert_unharmed(&self, attacker: &Sandbox<'_>) {
        self.assert_others_unharmed();
        // Its own kernel may have to be reported dead once.
        let first = attacker.execute("1 + 1");
        if first["outcome"] != "ok" {
            assert_ne!(first["state"], "kept", "{}", shown(&first));
        }
        attacker.assert_usable();
    }

    #[track_caller]
    fn assert_others_unharmed(&self) {
        let begun = Instant::now();
        let neighbour = self.service.sandbox(&self.neighbour);
        neighbour.assert_usable();
        assert_eq!(
            self.service.get("/health").ok().json(),
            json!({ "status": "healthy" })
        );
        assert!(
            begun.elapsed() < NEIGHBOUR,
            "the neighbour took {:?}",
            begun.elapsed()
        );
    }
}

/// Asserts how an execution ended.
#[track_caller]
fn assert_ended(outcome: &Value, how: &str, state: &str) {
    assert_eq!(
        (&outcome["outcome"], &outcome["state"]),
        (&json!(how), &json!(state)),
        "{}",
        shown(outcome)
    );
}

/// Asserts that an execution raised an exception of this name.
#[track_caller]
fn assert_raised(outcome: &Value, name: &str) {
    assert_eq!(outcome["error"], name, "{}", shown(outcome));
    assert_eq!(outcome["outcome"], "error", "{}", shown(outcome));
}
