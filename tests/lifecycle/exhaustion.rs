//! A host that has no room for another sandbox.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::fixture::Service;

/// Too few for a sandbox, and enough for a connection.
const LEFT: u64 = 5;

/// The limit with which a process can open [`LEFT`] more descriptors, whatever numbers those have that it
/// holds.
fn nearly_all(pid: i32) -> u64 {
    let mut held: Vec<u64> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the service lives")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    held.sort_unstable();
    let mut free = 0;
    let below = held.iter().enumerate().find_map(|(n, number)| {
        free = number - n as u64;
        (free >= LEFT).then_some(LEFT + n as u64)
    });
    below.unwrap_or(held.len() as u64 + LEFT)
}

#[test]
fn a_service_without_descriptors_says_so_and_keeps_what_it_has() {
    let service = Service::start();
    let kept = service.create();
    kept.execute("x = 40");
    let pid = service.process().pid;
    let limited = |current| {
        let limit = Rlimit {
            current: Some(current),
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        let before = prlimit(Pid::from_raw(pid), Resource::Nofile, limit).expect("may be set");
        before.current.expect("there is a limit")
    };
    let before = limited(nearly_all(pid));
    let answer = service.post_json("/sandbox/create", &json!({}));
    assert!(answer.header("retry-after").is_some());
    let refused = answer.refused(503, "host_exhausted");
    let detail = refused["detail"].as_str().expect("a text");
    assert!(detail.contains("RLIMIT_NOFILE"), "{detail}");
    limited(before);
    service.create();
    assert_eq!(kept.execute("print(x + 2)")["stdout"], "42\n");
    service.assert_healthy();
}
