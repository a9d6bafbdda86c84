//! Creating and closing again and again leaves everything where it was.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fixture::host::{self, Process};
use crate::fixture::{Service, nursery_of, zygote_of};

/// Cycles, unless `SANDCELL_TEST_CYCLES` says another number.
const CYCLES: usize = 60;
/// The first ones fill caches and pools of threads.
const WARM_UP: usize = 10;
/// Memory that may come and go: an allocator's arenas.
const SLACK_BYTES: u64 = 6 << 20;
/// And what each cycle may add to that: nothing that would fill a machine in a million.
const SLACK_CYCLE_BYTES: u64 = 1 << 10;

/// What must not grow.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    processes: usize,
    cgroups: usize,
    mounts_of_host: usize,
    mounts_of_nursery: usize,
    descriptors: usize,
    descriptors_of_nursery: usize,
    descriptors_of_zygote: usize,
}

fn held(service: &Service) -> Held {
    let pid = service.process().pid;
    let nursery = nursery_of(pid);
    let mounts = |pid: i32| {
        fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_or(0, |m| m.lines().count())
    };
    let descriptors = |pid: i32| Process::of(pid).map_or(0, |p| p.descriptors().len());
    Held {
        processes: host::descendants(pid).len(),
        cgroups: host::cgroups(&service.instance).len(),
        mounts_of_host: host::mounts_with("sandbox").len(),
        mounts_of_nursery: mounts(nursery),
        descriptors: descriptors(pid),
        descriptors_of_nursery: descriptors(nursery),
        descriptors_of_zygote: descriptors(zygote_of(pid).pid),
    }
}

/// Memory of the service and of the two processes that live as long.
fn memory_bytes(service: &Service) -> u64 {
    let pid = service.process().pid;
    let nursery = Process::of(nursery_of(pid)).expect("it lives");
    [service.process(), nursery, zygote_of(pid)]
        .iter()
        .map(Process::rss_bytes)
        .sum()
}

fn cycle(service: &Service) {
    let sandbox = service.create();
    assert_eq!(sandbox.stdout("print(6 * 7)"), "42\n");
    assert_eq!(sandbox.command("echo x")["stdout"], "x\n");
    sandbox.upload("f", b"x").ok();
    sandbox.download("f").ok();
    sandbox.close().ok();
}

#[test]
fn cycles_of_create_execute_and_close_leave_nothing() {
    let cycles =
        std::env::var("SANDCELL_TEST_CYCLES").map_or(CYCLES, |n| n.parse().expect("a number"));
    let service = Service::start();
    for _ in 0..WARM_UP {
        cycle(&service);
    }
    // What it holds once nothing changes any more; where it should end up, until it is there.
    let settled = |wanted: Option<&Held>| {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut last = held(&service);
        loop {
            sleep(Duration::from_millis(50));
            let now = held(&service);
            let same = now == last && wanted.is_none_or(|w| *w == now);
            last = now;
            if same && host::sandbox_count(&service.instance) == 0 || Instant::now() > deadline {
                return last;
            }
        }
    };
    let before = settled(None);
    let memory = memory_bytes(&service);
    let begun = Instant::now();
    for _ in 0..cycles {
        cycle(&service);
    }
    let took = begun.elapsed();
    let after = settled(Some(&before));
    assert_eq!(after, before);
    let growth = memory_bytes(&service).saturating_sub(memory);
    println!("{cycles} cycles in {took:?}; memory {memory} grew by {growth} bytes; {after:?}");
    assert!(
        growth < SLACK_BYTES + SLACK_CYCLE_BYTES * cycles as u64,
        "{growth} bytes after {cycles} cycles"
    );
}
