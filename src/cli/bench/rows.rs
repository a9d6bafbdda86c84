//! Rows of a table of measurements.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::isolation::sys;

/// Samples of one measure.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) samples: Vec<Duration>,
    pub(super) failures: usize,
}

impl Row {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            samples: Vec::new(),
            failures: 0,
        }
    }

    /// Sample `n`; the first (0) warms up. `None` is a wrong answer.
    pub(super) fn add(&mut self, n: usize, took: Option<Duration>) {
        match (n, took) {
            (0, _) => {}
            (_, Some(took)) => self.samples.push(took),
            (_, None) => self.failures += 1,
        }
    }

    /// Milliseconds of a quantile of all samples.
    fn quantile_ms(&self, q: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        let index = ((sorted.len() as f64 * q) as usize).min(last);
        sorted
            .get(index)
            .map_or(f64::NAN, |d| d.as_secs_f64() * 1e3)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "p50_ms": self.quantile_ms(0.5),
            "p95_ms": self.quantile_ms(0.95),
            "p99_ms": self.quantile_ms(0.99),
            "max_ms": self.quantile_ms(1.0),
            "samples": self.samples.len(),
            "failures": self.failures,
        })
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:<40} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>7} {:>8}",
            self.name,
            self.quantile_ms(0.5),
            self.quantile_ms(0.95),
            self.quantile_ms(0.99),
            self.quantile_ms(1.0),
            self.samples.len(),
            self.failures
        )
    }
}

/// The bare floor of this moment: fork a small process and wait for it.
pub(super) fn floor(samples: usize) -> Row {
    let mut row = Row::new("floor: fork and wait");
    for _ in 0..samples {
        let started = Instant::now();
        match sys::fork_into(0, None) {
            Ok(sys::Fork::Child) => sys::exit_now(0),
            Ok(sys::Fork::Parent { pidfd, .. }) => {
                let _ = rustix::process::waitid(
                    rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
                    rustix::process::WaitIdOptions::EXITED,
                );
                row.samples.push(started.elapsed());
            }
            Err(_) => row.failures += 1,
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_all_samples() {
        let samples = (1..=100).map(Duration::from_millis).collect();
        let row = Row {
            name: "x",
            samples,
            failures: 0,
        };
        assert_eq!(row.quantile_ms(0.5), 51.0);
        assert_eq!(row.quantile_ms(0.99), 100.0);
        assert_eq!(row.quantile_ms(1.0), 100.0);
    }
}
