//! What is there in a sandbox with GPUs, and not in one without.

use serde_json::{Value, json};

use crate::fixture::sandbox::Sandbox;
use crate::made_up::{MadeUp, uuid};
use crate::{TWO, service};

/// The four nodes of the made-up host: `[major, minor]` of those that open for reading and writing, the
/// error's name of the others.
const OPENED: &str = r"
import errno, json, os
seen = {}
for name in ['nvidia0', 'nvidia1', 'nvidiactl', 'nvidia-uvm']:
    try:
        fd = os.open('/dev/' + name, os.O_RDWR)
        device = os.fstat(fd).st_rdev
        seen[name] = [os.major(device), os.minor(device)]
        os.close(fd)
    except OSError as error:
        seen[name] = errno.errorcode[error.errno]
print(json.dumps(seen))
";

fn opened(sandbox: &Sandbox<'_>) -> Value {
    let by_kernel = sandbox.printed(OPENED);
    let command = format!("python - <<'END'\n{OPENED}\nEND");
    let by_command = sandbox.command(&command);
    let by_command = by_command["stdout"].as_str().expect("a text");
    assert_eq!(
        serde_json::from_str::<Value>(by_command).unwrap(),
        by_kernel
    );
    by_kernel
}

#[test]
fn exactly_the_given_gpu_can_be_opened() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "gpus.sandboxes_per_device = 2");
    let one = service.create_with(&json!({ "gpus": [0] }));
    assert_eq!(one.created["gpus"], json!([uuid(0)]));
    let common = json!({ "nvidiactl": [1, 7], "nvidia-uvm": [1, 9] });
    let with = |own: Value| {
        let mut all = common.clone();
        all.as_object_mut()
            .unwrap()
            .append(&mut own.as_object().unwrap().clone());
        all
    };
    assert_eq!(
        opened(&one),
        with(json!({ "nvidia0": [1, 3], "nvidia1": "ENOENT" }))
    );
    let both = service.create_with(&json!({ "gpus": "all" }));
    assert_eq!(
        opened(&both),
        with(json!({ "nvidia0": [1, 3], "nvidia1": [1, 5] }))
    );
    let none = service.create();
    assert_eq!(none.created.get("gpus"), None);
    let nothing = ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"];
    let nothing: Value = nothing.map(|name| (name, "ENOENT")).into_iter().collect();
    assert_eq!(opened(&none), nothing);
}

/// Libraries by their sonames as a program opens them, the program, and what they read.
const FILES: &str = r"
import ctypes, glob, json, os, subprocess
seen = {}
for name in ['libcuda.so.1', 'libcuda.so', 'libnvidia-ml.so.1']:
    try:
        library = ctypes.CDLL(name)
        function = 'libcuda_answer' if 'cuda' in name else 'libnvidia_ml_answer'
        seen[name] = getattr(library, function)()
    except OSError:
        seen[name] = None
try:
    seen['smi'] = subprocess.run(['nvidia-smi'], capture_output=True, text=True).stdout
except OSError:
    seen['smi'] = None
seen['env'] = {k: v for k, v in os.environ.items() if k.startswith(('NVIDIA', 'CUDA'))}
def texts(top):
    found = {}
    for directory, _, files in os.walk(top):
        for name in files:
            path = os.path.join(directory, name)
            found[path] = open(path).read()
    return found
seen['proc'] = texts('/proc/driver')
# Not what shows a sandbox its own limits.
seen['sys'] = {path: text for path, text in texts('/sys').items() if not path.startswith('/sys/fs/cgroup/')}
seen['pci'] = {os.path.basename(p): os.path.isdir(p) for p in glob.glob('/sys/bus/pci/devices/*')}
print(json.dumps(seen))
";

#[test]
fn libraries_programs_and_what_they_read_are_found() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "");
    let sandbox =
        service.create_with(&json!({ "gpus": [uuid(1)], "env": { "CUDA_CACHE_DISABLE": "1" } }));
    let seen = sandbox.printed(FILES);
    assert_eq!(seen["libcuda.so.1"], 7);
    assert_eq!(seen["libcuda.so"], 7);
    assert_eq!(seen["libnvidia-ml.so.1"], 8);
    assert_eq!(seen["smi"], format!("GPU {}\n", uuid(1)));
    assert_eq!(
        seen["env"],
        json!({ "CUDA_CACHE_DISABLE": "1", "NVIDIA_VISIBLE_DEVICES": uuid(1) })
    );
    let paths = |key: &str| -> Vec<String> {
        let mut paths: Vec<String> = seen[key].as_object().unwrap().keys().cloned().collect();
        paths.sort();
        paths
    };
    assert_eq!(
        paths("proc"),
        [
            "/proc/driver/nvidia/gpus/0000:02:00.0/information",
            "/proc/driver/nvidia/params",
            "/proc/driver/nvidia/version",
        ]
    );
    let params = seen["proc"]["/proc/driver/nvidia/params"].as_str().unwrap();
    assert!(params.contains("ModifyDeviceFiles: 0"), "{params}");
    assert_eq!(
        paths("sys"),
        [
            "/sys/devices/pci0000:00/0000:02:00.0/vendor",
            "/sys/devices/system/cpu/online",
            "/sys/module/nvidia/initstate",
            "/sys/module/nvidia_uvm/initstate",
        ]
    );
    assert_eq!(seen["pci"], json!({ "0000:02:00.0": true }));
    // The same in a program that is started, and in a kernel that is launched later.
    let command = sandbox.command("nvidia-smi; python -c 'import ctypes; print(ctypes.CDLL(\"libcuda.so.1\").libcuda_answer())'");
    assert_eq!(command["stdout"], format!("GPU {}\n7\n", uuid(1)));
    let context = sandbox
        .service
        .post_json(&sandbox.path("contexts"), &json!({}));
    let context = context.ok().json()["context_id"].clone();
    let outcome = sandbox.execute_json(&json!({ "code": FILES, "context_id": context }));
    let later: Value = serde_json::from_str(outcome["stdout"].as_str().unwrap()).unwrap();
    assert_eq!(later, seen);
}

#[test]
fn a_sandbox_without_gpus_sees_nothing_of_the_driver() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "");
    let seen = service.create().printed(FILES);
    assert_eq!(
        seen,
        json!({
            "libcuda.so.1": null, "libcuda.so": null, "libnvidia-ml.so.1": null,
            "smi": null, "env": {}, "proc": {}, "sys": {
                "/sys/devices/system/cpu/online": "0\n", "/sys/devices/system/cpu/possible": "0\n",
                "/sys/devices/system/cpu/present": "0\n"
            }, "pci": {},
        })
    );
}

/// Flags of the file systems that things are on (statvfs(3)), and what user code can do to them.
const FLAGS: &str = r"
import json, os
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC = 1, 2, 4, 8
def flags(path):
    found = os.statvfs(path).f_flag
    return [bool(found & bit) for bit in [READ_ONLY, NO_SUID, NO_DEV, NO_EXEC]]
places = {'node': '/dev/nvidia0', 'file': '/usr/lib/x86_64-linux-gnu/libcuda.so.1', 'program': '/usr/bin/nvidia-smi',
          'proc': '/proc/driver/nvidia/params', 'sys': '/sys/module/nvidia/initstate', 'own': '/home/user'}
seen = {name: flags(path) for name, path in places.items()}
done = []
library, link = places['file'], '/usr/lib/x86_64-linux-gnu/libcuda.so'
for what in [lambda: open(library, 'r+'), lambda: os.unlink(link), lambda: os.unlink('/dev/nvidia0'),
             lambda: os.chmod('/dev/nvidia0', 0o600), lambda: os.utime('/dev/nvidia0'), lambda: os.utime(library),
             lambda: os.symlink('x', '/usr/lib/x86_64-linux-gnu/libnew.so'), lambda: open('/sys/new', 'w'),
             lambda: open('/proc/driver/nvidia/params', 'w'), lambda: os.mknod('/dev/nvidia7', 0o20666, os.makedev(1, 5)),
             lambda: os.mknod('/home/user/nvidia7', 0o20666, os.makedev(1, 5))]:
    try: what(); done.append(True)
    except OSError: done.append(False)
open('/home/user/control', 'w'); os.utime('/home/user/control'); os.chmod('/home/user/control', 0o600)
print(json.dumps([seen, any(done)]))
";

#[test]
fn what_is_given_is_read_only_and_only_nodes_are_devices() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "");
    let sandbox = service.create_with(&json!({ "gpus": 1 }));
    let [seen, done] =
        <[Value; 2]>::try_from(sandbox.printed(FLAGS).as_array().unwrap().clone()).unwrap();
    assert_eq!(done, json!(false), "user code changed what it was given");
    assert_eq!(
        seen,
        json!({
            "node": [true, true, false, true],
            "file": [true, true, true, false],
            "program": [true, true, true, false],
            "proc": [true, true, true, true],
            "sys": [true, true, true, true],
            "own": [false, true, true, false],
        })
    );
    // It is the host's file that is there, not a copy.
    let path = "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
    let seen = sandbox.command(&format!("md5sum < {path}"))["stdout"].clone();
    let outside = std::process::Command::new("md5sum")
        .stdin(std::fs::File::open(host.at(path)).unwrap())
        .output();
    assert_eq!(seen.as_str().unwrap().as_bytes(), outside.unwrap().stdout);
}

/// Answers to system calls by their numbers: mbind, set_mempolicy, and, as controls of the rest,
/// move_pages, unshare and the ioctl(2) numbers of drivers and terminals.
const CALLS: &str = r"
import ctypes, errno, json, mmap, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    arguments = [ctypes.c_ulong(a) for a in arguments]
    return 'ok' if libc.syscall(ctypes.c_long(number), *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
page = libc.mmap
page.restype = ctypes.c_void_p
page.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
own = page(None, 4096, 3, 0x22, -1, 0)
reserved = page(None, 1 << 40, 0, 0x4022, -1, 0)
null = os.open('/dev/null', os.O_RDWR)
drivers = [0xc00446c9, 0xc020462a, 0xc030462b, 0xc0384627, 0x30000001, 37, 75]
print(json.dumps({
    'mbind': call(237, own, 4096, 0, 0, 0, 0),
    'set_mempolicy': call(238, 0, 0, 0),
    'move_pages': call(279, 0, 0, 0, 0, 0, 0),
    'unshare': call(272, 0x10000000),
    'drivers': sorted({call(16, null, number, 0) for number in drivers}),
    'terminal': call(16, null, 0x5412, 0),
    'reserved': reserved not in (None, 2**64 - 1),
    'address_space': resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY,
    'locked_kib': resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] // 1024,
}))
";

#[test]
fn sandboxes_with_gpus_may_make_two_calls_more_and_no_others() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "");
    let calls = |sandbox: &Sandbox<'_>| {
        let by_kernel = sandbox.printed(CALLS);
        let command = sandbox.command(&format!("python - <<'END'\n{CALLS}\nEND"));
        let by_command = command["stdout"].as_str().expect("a text");
        assert_eq!(
            serde_json::from_str::<Value>(by_command).unwrap(),
            by_kernel
        );
        by_kernel
    };
    let with = calls(&service.create_with(&json!({ "gpus": [0] })));
    let without = calls(&service.create());
    for (name, gpu, default) in [
        ("mbind", "ok", "ENOSYS"),
        ("set_mempolicy", "ok", "ENOSYS"),
        ("move_pages", "ENOSYS", "ENOSYS"),
        ("unshare", "ENOSYS", "ENOSYS"),
        ("terminal", "EPERM", "EPERM"),
    ] {
        assert_eq!(
            (&with[name], &without[name]),
            (&json!(gpu), &json!(default)),
            "{name}"
        );
    }
    // No filter stands between a program and the driver: the null device knows no ioctl.
    assert_eq!(with["drivers"], json!(["ENOTTY"]));
    assert_eq!(with["reserved"], true);
    assert_eq!(with["address_space"], true);
    assert_eq!(without["locked_kib"], 64);
    assert!(with["locked_kib"].as_u64() > Some(64), "{with}");
}

#[test]
fn no_checkpoint_is_kept_unasked_of_a_kernel_with_gpus() {
    let host = MadeUp::with_driver(&TWO);
    let service = service(&host, "");
    let after_death = |sandbox: &Sandbox<'_>, restore: &str| {
        let run = |code: &str| sandbox.execute_json(&json!({ "code": code, "restore": restore }));
        run("x = 1");
        let ended = run("import os\nos._exit(1)");
        (ended["state"].clone(), ended["state_reason"].to_string())
    };
    let with = service.create_with(&json!({ "gpus": 1 }));
    let (state, reason) = after_death(&with, "auto");
    assert_eq!(state, "lost");
    assert!(reason.contains("the sandbox has GPUs"), "{reason}");
    assert_eq!(after_death(&with, "always").0, "restored");
    assert_eq!(after_death(&service.create(), "auto").0, "restored");
}
