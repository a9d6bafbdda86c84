//! What stands between a sandbox with GPUs and the host's files that it is given, with a made-up driver.
//! `tests/gpu` has the rest.

use sandcell::isolation::spec::Ablation;
use sandcell::supervisor::{CreateSpec, Wish};

use crate::laboratory::Laboratory;
use crate::made_up::MadeUp;
use crate::{Found, Place, require};

/// Runs a check in a sandbox with the first of two GPUs.
fn try_in(ablation: Ablation, check: impl Fn(&dyn Place) -> Found) -> Found {
    let host = MadeUp::with_driver(&[(1, 3), (1, 5)]);
    let laboratory = Laboratory::try_configured(ablation, |config| {
        config.gpus.enabled = true;
        config.gpus.driver_root = host.path().to_owned();
    });
    let laboratory = laboratory.expect("the supervisor starts");
    let subject = laboratory.create_with(CreateSpec {
        gpus: Some(Wish::Named(vec!["0".into()])),
        ..CreateSpec::default()
    });
    check(&subject)
}

#[track_caller]
fn upheld_by(check: impl Fn(&dyn Place) -> Found, without: Ablation) {
    try_in(Ablation::default(), &check).expect("everything is on");
    assert!(
        try_in(without, &check).is_err(),
        "nothing is noticed with {without:?}"
    );
}

/// Flags of statvfs(3): 1 read-only, 2 nosuid, 4 nodev, 8 noexec.
fn mounts_are_as_harmless_as_they_can_be(place: &dyn Place) -> Found {
    let seen = place.python(
        "import os\n\
         flags = lambda path: os.statvfs(path).f_flag & 15\n\
         print(flags('/dev/nvidia0'), flags('/usr/lib/x86_64-linux-gnu/libcuda.so.1'), flags('/usr/bin/nvidia-smi'),\n    \
             flags('/proc/driver/nvidia/params'), flags('/sys/module/nvidia'), flags('/sys/devices/system/cpu'))",
    );
    require(seen == "11 7 7 15 15 15\n", || seen.clone())
}

#[test]
fn what_is_given_is_mounted_without_what_it_does_not_need() {
    upheld_by(
        mounts_are_as_harmless_as_they_can_be,
        Ablation {
            no_mount_flags: true,
            ..Ablation::default()
        },
    );
}

fn the_filters_are_the_profile_of_gpus(place: &dyn Place) -> Found {
    // unshare, move_pages, mbind: numbers 272, 279 and 237.
    let seen = place.python(
        "import ctypes, errno\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def call(number, *a):\n    \
             return libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, a)) == 0 or errno.errorcode[ctypes.get_errno()]\n\
         print(call(272, 0x80), call(279, 0, 0, 0, 0, 0, 0), call(237, 0, 0, 0, 0, 0, 0))",
    );
    require(seen == "ENOSYS ENOSYS True\n", || seen.clone())
}

#[test]
fn a_sandbox_with_gpus_has_filters() {
    upheld_by(
        the_filters_are_the_profile_of_gpus,
        Ablation {
            no_seccomp: true,
            ..Ablation::default()
        },
    );
}
