//! Parts that die without being asked to.

use std::time::Duration;

use rustix::process::Signal;

use crate::fixture::host::{self, Process};
use crate::fixture::{Launch, Service, nursery_of, temp_dir, zygote_of};

/// Within this nothing may be left of a service that was killed.
const GONE: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(20);

#[test]
fn nothing_outlives_a_killed_service_and_the_next_one_finds_a_clean_host() {
    let dir = temp_dir();
    let data_dir = dir.path().join("data");
    let with_pool = Launch {
        data_dir: Some(&data_dir),
        args: &["--pool", "1"],
        ..Launch::default()
    };
    let without_pool = Launch {
        data_dir: Some(&data_dir),
        ..Launch::default()
    };
    let mut service = Service::launch(&with_pool);
    let busy = service.create();
    let mut events = busy.stream("import subprocess\nsubprocess.Popen(['setsid', 'sleep', '1000'])\nprint('begun', flush=True)\nwhile True: pass");
    while events.event().expect("code that prints")["type"] != "stdout" {}
    busy.command("nohup setsid sleep 1000 >/dev/null 2>&1 &");
    let instance = service.instance.clone();
    let family = service.kill();
    assert!(family.len() >= 6, "{family:?}");
    host::wait_until("every process is gone", GONE, || {
        !family.iter().any(Process::exists)
    });
    let left = host::sandbox_count(&instance);
    assert!(
        left >= 2,
        "the kernel keeps cgroups, or this test proves nothing"
    );

    let mut next = Service::launch(&without_pool);
    assert_eq!(next.instance, instance);
    host::wait_until("cgroups of dead sandboxes are gone", SOON, || {
        host::sandbox_count(&instance) == 0
    });
    next.assert_healthy();
    // Twice is as once.
    next.kill();
    Service::launch(&without_pool).assert_healthy();
}

#[test]
fn a_service_whose_nursery_dies_says_so_and_ends_clean() {
    let mut service = Service::start();
    let sandbox = service.create().id;
    let family = host::descendants(service.process().pid);
    let nursery = Process::of(nursery_of(service.process().pid)).expect("it lives");
    nursery.signal(Signal::KILL);
    let status = service.wait();
    assert_eq!(status.code(), Some(1), "{status} {sandbox}");
    assert!(service.log().contains("nursery"), "{}", service.log());
    assert!(!family.iter().any(Process::exists));
    assert_eq!(
        host::cgroups(&service.instance),
        Vec::<std::path::PathBuf>::new()
    );
}

#[test]
fn a_zygote_that_dies_is_replaced() {
    let service = Service::start();
    let before = service.create();
    before.execute("kept = 1");
    let zygote = zygote_of(service.process().pid);
    zygote.signal(Signal::KILL);
    host::wait_until("it is dead", SOON, || !zygote.exists());
    assert_eq!(
        before.stdout("print(kept)"),
        "1\n",
        "kernels that live go on"
    );
    service.assert_healthy();
}

#[test]
fn a_sandbox_whose_init_dies_is_gone_and_others_are_not() {
    let service = Service::start();
    let (victim, other) = (service.create(), service.create());
    victim.processes("init")[0].signal(Signal::KILL);
    host::wait_until("it is gone", SOON, || {
        service.get(&victim.path("files")).status == 404
    });
    other.assert_usable();
    host::wait_until("its cgroups are gone", SOON, || {
        host::sandbox_count(&service.instance) == 1
    });
}

#[test]
fn a_kernel_that_is_killed_while_idle_is_reported_and_replaced() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.execute("x = 1");
    host::wait_until("it has a checkpoint", SOON, || {
        sandbox.processes("kernel").len() == 2
    });
    // And has told of it, a moment later.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let kernel = sandbox.processes("kernel")[0];
    kernel.signal(Signal::KILL);
    host::wait_until("it is dead", SOON, || !kernel.exists());
    let told = sandbox.execute("print('ran')");
    assert_eq!(told["state"], "restored", "{told}");
    assert_eq!(told["signal"], 9, "{told}");
    assert_eq!(sandbox.stdout("print(x)"), "1\n");
}
