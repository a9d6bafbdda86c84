//! Who user code is, as the host sees it.

use std::collections::BTreeSet;
use std::ops::Range;

use sandcell::isolation::spec::{Ablation, MIRROR_OWNER};

use crate::fixture::host::{Process, status};
use crate::fixture::{Service, nursery_of};
use crate::laboratory::Laboratory;
use crate::{Found, Place, between_upheld_by, require, upheld_by};

const CAPABILITY_SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
/// CAP_KILL, CAP_SETGID and CAP_SETUID.
const OF_INIT: u64 = 1 << 5 | 1 << 6 | 1 << 7;
const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "uts", "ipc", "cgroup"];

fn uids_differ(a: &dyn Place, b: &dyn Place) -> Found {
    let (a, b) = (a.kernel().uid(), b.kernel().uid());
    require(a != b, || format!("both are {a} on the host"))
}

#[test]
fn each_sandbox_has_a_host_uid_of_its_own() {
    let service = Service::start();
    let sandboxes = [service.create(), service.create(), service.create()];
    let in_block = |ids: &Range<u32>, id: u32| ids.contains(&id) && id != MIRROR_OWNER;
    let mut seen = BTreeSet::new();
    for sandbox in &sandboxes {
        let kernel = sandbox.kernel();
        assert!(in_block(&service.ids, kernel.uid()), "{}", kernel.uid());
        assert!(seen.insert(kernel.uid()), "{} twice", kernel.uid());
        assert_eq!(
            sandbox.python("import os; print(os.getuid(), os.getgid(), os.getgroups())"),
            "1000 1000 []\n"
        );
        assert_eq!(sandbox.init().uid(), MIRROR_OWNER, "init is somebody else");
    }
    // Not again soon after it was given back.
    sandboxes[0].close().ok();
    assert!(seen.insert(service.create().kernel().uid()));
    between_upheld_by(
        uids_differ,
        Ablation {
            shared_uid: true,
            ..Ablation::default()
        },
    );
}

/// What a thread of user code must look like.
fn locked_down(process: &Process) -> Found {
    let id = process.uid().to_string();
    for path in process.threads() {
        let path = path.to_string_lossy();
        let is = |field: &str, wanted: &str| {
            let seen = status(&path, field);
            require(seen == wanted, || {
                format!("{path}: {field} is {seen:?}, not {wanted:?}")
            })
        };
        is("Uid", &[&*id; 4].join("\t"))?;
        is("Gid", &[&*id; 4].join("\t"))?;
        is("Groups", "")?;
        for set in CAPABILITY_SETS {
            is(set, "0000000000000000")?;
        }
        is("NoNewPrivs", "1")?;
        is("Seccomp", "2")?;
        // Of a command, or of what came from a kernel, which has the zygote's too.
        let filters = status(&path, "Seccomp_filters");
        require(["3", "6"].contains(&filters.as_str()), || {
            format!("{path}: {filters} filters")
        })?;
    }
    Ok(())
}

const THREADS: &str = "import threading, time\n\
    stop = threading.Event()\n\
    for _ in range(3): threading.Thread(target=stop.wait, daemon=True).start()";

fn every_thread_is_locked_down(place: &dyn Place) -> Found {
    place.python(THREADS);
    let kernel = place.kernel();
    let threads = kernel.threads().len();
    require(threads >= 4, || format!("{threads} threads"))?;
    locked_down(&kernel)
}

#[test]
fn user_code_has_no_privilege_on_any_thread() {
    upheld_by(
        every_thread_is_locked_down,
        Ablation {
            no_seccomp: true,
            ..Ablation::default()
        },
    );
}

#[test]
fn what_user_code_starts_has_no_privilege() {
    let service = Service::start();
    let sandbox = service.create();
    sandbox.python("import subprocess\np = subprocess.Popen(['sleep', '1000'])");
    let kernel = sandbox.processes("kernel");
    assert_eq!(kernel.len(), 2);
    sandbox.command("setsid sleep 1000 &");
    let command = sandbox.processes("command-0");
    assert_eq!(command.len(), 1, "the daemon is left");
    for process in kernel.iter().chain(&command) {
        assert_eq!(process.uid(), sandbox.kernel().uid());
        locked_down(process).expect("locked down");
    }
}

#[test]
fn init_keeps_three_capabilities_and_cannot_get_more() {
    let service = Service::start();
    let init = service.create().init();
    let set = |name: &str| u64::from_str_radix(&init.status(name), 16).expect("a set");
    assert_eq!([set("CapEff"), set("CapPrm")], [OF_INIT; 2]);
    assert_eq!([set("CapInh"), set("CapAmb"), set("CapBnd")], [0; 3]);
}

#[test]
fn the_service_s_own_helpers_are_nobody_on_the_host() {
    let service = Service::start();
    service.create();
    let nursery = nursery_of(service.process().pid);
    for process in crate::fixture::host::descendants(service.process().pid) {
        let uid = process.uid();
        assert!(
            uid == MIRROR_OWNER || service.ids.contains(&uid),
            "{process:?} is {uid}"
        );
        let user_namespace = process.namespace("user");
        assert_ne!(
            user_namespace,
            service.process().namespace("user"),
            "{process:?}"
        );
    }
    assert_eq!(Process::of(nursery).expect("it lives").uid(), MIRROR_OWNER);
}

fn namespaces_are_separate(a: &dyn Place, b: &dyn Place) -> Found {
    let host = Process::of(std::process::id() as i32).expect("this process");
    for kind in NAMESPACES {
        let [a, b] = [a.kernel(), b.kernel()].map(|p| p.namespace(kind));
        require(a != b, || format!("one {kind} namespace for both: {a}"))?;
        require(a != host.namespace(kind), || {
            format!("the host's {kind} namespace")
        })?;
    }
    Ok(())
}

#[test]
fn every_namespace_is_the_sandbox_s_own() {
    for without in [
        Ablation {
            no_netns: true,
            ..Ablation::default()
        },
        Ablation {
            no_ipcns: true,
            ..Ablation::default()
        },
    ] {
        between_upheld_by(namespaces_are_separate, without);
    }
}

/// Without these there is no sandbox at all: a step of the set-up fails, or the supervisor, which looks
/// at the kernel from outside, refuses it.
#[test]
fn no_sandbox_is_made_where_a_mechanism_is_missing() {
    let without = Ablation::default();
    for (without, noticed) in [
        (
            Ablation {
                no_pidns: true,
                ..without
            },
            "mount proc",
        ),
        (
            Ablation {
                no_mntns: true,
                ..without
            },
            "make mounts private",
        ),
        (
            Ablation {
                keep_capabilities: true,
                ..without
            },
            "CapBnd",
        ),
    ] {
        let started = Laboratory::try_without(without);
        let refused = started.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains(noticed), "{without:?}: {refused:?}");
    }
}

#[test]
fn user_code_shares_all_namespaces_with_its_init() {
    let service = Service::start();
    let sandbox = service.create();
    let (kernel, init) = (sandbox.kernel(), sandbox.init());
    for kind in NAMESPACES {
        assert_eq!(kernel.namespace(kind), init.namespace(kind), "{kind}");
    }
}
