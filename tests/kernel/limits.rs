//! Limits are what was asked for, from the pool as well as made anew, and are what programs see: a kernel,
//! a command, a background process.

use std::collections::BTreeMap;
use std::fs;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::host::{cgroups, hierarchies, wait_until};
use crate::fixture::sandbox::Sandbox;
use crate::fixture::{Launch, Service};

const MIB: u64 = 1024 * 1024;

/// A program that prints as JSON what it finds of its limits: as a script, and as code of a kernel.
const SEEN: &str = r#"
import json, multiprocessing, os, resource
def kib(name):
    return next(int(l.split()[1]) for l in open('/proc/meminfo') if l.startswith(name + ':'))
def text(path):
    return open(path).read().strip()
root = os.statvfs('/')
seen = {
    'cpu_count': [os.cpu_count(), os.process_cpu_count(), multiprocessing.cpu_count()],
    'online': [os.sysconf('SC_NPROCESSORS_ONLN'), os.sysconf('SC_NPROCESSORS_CONF')],
    'lists': [text('/sys/devices/system/cpu/' + n) for n in ('online', 'possible', 'present')],
    'cpuinfo': sum(l.startswith('processor') for l in open('/proc/cpuinfo')),
    'stat': sum(l[:3] == 'cpu' and l[3].isdigit() for l in open('/proc/stat')),
    'memory': kib('MemTotal') * 1024,
    'is_available': 0 < kib('MemAvailable') <= kib('MemTotal'),
    'swap': kib('SwapTotal'),
    'cgroup': {n: text('/sys/fs/cgroup/' + n) for n in
               ('cpu.max', 'memory.max', 'memory.swap.max', 'pids.max', 'cgroup.controllers')},
    'disk': [root.f_blocks * root.f_frsize, root.f_files],
    'rlimits': {n: resource.getrlimit(getattr(resource, n)) for n in sorted(dir(resource))
                if n.startswith('RLIMIT_')},
    'threads': {n: os.environ.get(n) for n in ('OMP_NUM_THREADS', 'NUMBA_NUM_THREADS', 'RAYON_NUM_THREADS',
                'POLARS_MAX_THREADS', 'GOMAXPROCS', 'PYTHON_CPU_COUNT')},
    'own': os.environ.get('OWN'),
}
print(json.dumps(seen))
"#;

/// Threads of the OpenBLAS that numpy has loaded.
const BLAS: &str = r#"
import ctypes, re
import numpy
path = re.search(r'/\S*numpy\S*openblas\S*', open('/proc/self/maps').read())[0]
print(ctypes.CDLL(path).scipy_openblas_get_num_threads64_())
"#;

/// What a kernel, a command and a background process print.
fn everywhere(sandbox: &Sandbox<'_>, code: &str) -> [Value; 3] {
    let kernel = sandbox.printed(code);
    sandbox.upload("look.py", code.as_bytes()).ok();
    let printed = |text: &str| -> Value {
        serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
    };
    let outcome = sandbox.command("python3 look.py");
    let command = printed(outcome["stdout"].as_str().expect("a text"));
    let start = json!({ "command": "python3 look.py > seen.tmp; mv seen.tmp seen.json" });
    let path = sandbox.path("processes");
    sandbox.service.post_json(&path, &start).ok();
    let mut seen = Vec::new();
    wait_until("the process has looked", Duration::from_secs(30), || {
        let answer = sandbox.download("seen.json");
        let found = answer.status == 200;
        seen = answer.body;
        found
    });
    let process = printed(&String::from_utf8_lossy(&seen));
    // The next one is not to find this one's.
    sandbox.command("rm seen.json");
    [kernel, command, process]
}

/// What is different by its nature: a kernel cannot see the memory that a command uses.
fn assert_same(seen: &[Value; 3]) -> &Value {
    let [kernel, command, process] = seen;
    assert_eq!(kernel, command, "in a kernel and in a command");
    assert_eq!(kernel, process, "in a kernel and in a process");
    kernel
}

/// The description that the API gives, without what is each sandbox's own.
fn described(sandbox: &Sandbox<'_>) -> Value {
    let path = format!("/sandbox/{}", sandbox.id);
    let mut described = sandbox.service.get(&path).ok().json();
    for own in ["sandbox_id", "created_at", "expires_at", "last_used_at"] {
        described.as_object_mut().expect("an object").remove(own);
    }
    described
}

/// What the host enforces.
fn enforced(sandbox: &Sandbox<'_>) -> BTreeMap<&'static str, String> {
    let mut found = BTreeMap::new();
    for root in hierarchies() {
        for name in [
            "pids.max",
            "memory.max",
            "memory.limit_in_bytes",
            "cpu.max",
            "cpu.cfs_quota_us",
        ] {
            let instance = root.join("sandcell").join(&sandbox.service.instance);
            if let Ok(text) =
                fs::read_to_string(instance.join(format!("s-{}", sandbox.id)).join(name))
            {
                found.insert(name, text);
            }
        }
    }
    assert_eq!(found.len(), 3, "{found:?}");
    found
}

#[test]
fn a_sandbox_from_the_pool_is_what_one_made_anew_is() {
    let launch = |pool| {
        Service::launch(&Launch {
            preload: true,
            args: &["--pool", pool],
            ..Launch::default()
        })
    };
    let (pooled, anew) = (launch("2"), launch("0"));
    let ready = || cgroups(&pooled.instance).into_iter();
    let mut from_pool = 0;
    for spec in [
        json!({}),
        json!({ "cpus": 2 }),
        json!({ "cpus": 0.5 }),
        json!({ "cpus": 2.5, "processes": 100 }),
        json!({ "memory_bytes": 2048 * MIB }),
        json!({ "memory_bytes": 512 * MIB, "cpus": 2 }),
        json!({ "memory_bytes": 3072 * MIB, "disk_bytes": 64 * MIB + 5000 }),
        json!({ "lease_seconds": 100, "idle_seconds": 50, "network": "open", "env": { "OWN": "1" } }),
        json!({ "cpus": 2, "env": { "OMP_NUM_THREADS": "3", "OWN": "2" } }),
    ] {
        let mut spec = spec;
        spec["name"] = "the same".into();
        wait_until("the pool is full", Duration::from_secs(20), || {
            let sandboxes = ready().filter(|path| path.to_string_lossy().ends_with("/init"));
            sandboxes.count() >= 2
        });
        // It is put into the pool once its kernel has rehearsed.
        std::thread::sleep(Duration::from_millis(500));
        let before: Vec<_> = ready().collect();
        let (one, other) = (pooled.create_with(&spec), anew.create_with(&spec));
        from_pool += usize::from(before.iter().any(|p| p.to_string_lossy().contains(&one.id)));
        let limits = described(&one);
        assert_eq!(limits, described(&other), "{spec}");
        let [seen, seen_anew] = [&one, &other].map(|sandbox| everywhere(sandbox, SEEN));
        assert_eq!(seen, seen_anew, "{spec}");
        let seen = assert_same(&seen);
        let disk = limits["limits"]["disk_bytes"].as_u64().expect("a number");
        assert_eq!(seen["disk"][0], disk, "{spec}");
        let most = disk + 4096;
        assert_eq!(
            seen["rlimits"]["RLIMIT_FSIZE"],
            json!([most, most]),
            "{spec}"
        );
        assert_eq!(seen["memory"], limits["limits"]["memory_bytes"], "{spec}");
        let wanted = match (&spec["env"]["OMP_NUM_THREADS"], spec["cpus"].as_f64()) {
            (Value::String(threads), _) => threads.clone(),
            (_, cpus) => cpus.unwrap_or(1.0).ceil().to_string(),
        };
        for sandbox in [&one, &other] {
            assert_eq!(sandbox.stdout(BLAS).trim(), wanted, "{spec}");
        }
        assert_eq!(enforced(&one), enforced(&other), "{spec}");
        one.close().ok();
        other.close().ok();
    }
    assert!(from_pool >= 5, "{from_pool} of them came from the pool");
}

#[test]
fn programs_see_the_limits_and_not_the_host() {
    let service = Service::start();
    for (cpus, count) in [(0.25, 1), (1.0, 1), (1.5, 2), (3.0, 3)] {
        let sandbox = service
            .create_with(&json!({ "cpus": cpus, "memory_bytes": 700 * MIB, "processes": 77 }));
        let all = everywhere(&sandbox, SEEN);
        let seen = assert_same(&all);
        let list = if count == 1 {
            "0".to_owned()
        } else {
            format!("0-{}", count - 1)
        };
        assert_eq!(seen["cpu_count"], json!([count, count, count]));
        assert_eq!(seen["online"], json!([count, count]));
        assert_eq!(seen["lists"], json!([list, list, list]));
        assert_eq!(
            (&seen["cpuinfo"], &seen["stat"]),
            (&json!(count), &json!(count))
        );
        assert_eq!(
            (&seen["memory"], &seen["swap"]),
            (&json!(700 * MIB), &json!(0))
        );
        assert_eq!(seen["is_available"], true);
        let quota = (cpus * 100_000.0) as u64;
        assert_eq!(
            seen["cgroup"],
            json!({
                "cpu.max": format!("{quota} 100000"), "memory.max": (700 * MIB).to_string(),
                "memory.swap.max": "0", "pids.max": "77", "cgroup.controllers": "cpu memory pids",
            })
        );
        let said = sandbox
            .command("nproc; lscpu --parse=CPU | grep -vc '#'; free -b | awk '/Mem/ {print $2}'");
        let total = 700 * MIB;
        assert_eq!(
            said["stdout"],
            format!("{count}\n{count}\n{total}\n"),
            "{said}"
        );
        // joblib takes what can really run at once, where that is less.
        let at_once = available_parallelism().map_or(1, |n| n.get().min(count));
        let libraries = "import joblib, psutil\n\
            print(joblib.cpu_count(), psutil.cpu_count(), psutil.virtual_memory().total)";
        let told = format!("{at_once} {count} {total}\n");
        assert_eq!(sandbox.stdout(libraries), told);
        let of_program = sandbox.command(&format!("python3 -c '{}'", libraries.replace('\n', ";")));
        assert_eq!(of_program["stdout"], told, "{of_program}");
    }
}

/// `MemAvailable` in MiB, and how long it took until it was as expected.
const AVAILABLE: &str = "import time\n\
    def available():\n    \
        return next(int(l.split()[1]) for l in open('/proc/meminfo') if l.startswith('MemAvailable')) >> 10\n\
    def wait(condition):\n    \
        end = time.monotonic() + 1.5\n    \
        while not condition(available()) and time.monotonic() < end: time.sleep(0.01)\n    \
        return available()\n";

#[test]
fn available_memory_is_at_most_a_second_old() {
    let service = Service::start();
    let sandbox = service.create_with(&json!({ "memory_bytes": 512 * MIB }));
    sandbox.execute(AVAILABLE);
    let before: u64 = sandbox
        .printed("print(available())")
        .as_u64()
        .expect("a number");
    assert!((400..=512).contains(&before), "{before} MiB");
    // Within an execution.
    // A mapping of its own, which an allocator would not keep when it is let go.
    let code = format!(
        "import mmap\nx = mmap.mmap(-1, 200 << 20)\nfor _ in range(200): x.write(bytes(1 << 20))\n\
         print(wait(lambda now: now < {before} - 150))"
    );
    let within = sandbox.printed(&code).as_u64().expect("a number");
    assert!(before - within >= 190, "{before} MiB, then {within}");
    // What was freed while nothing ran is seen by the first read of the next, after a second.
    sandbox.execute("x.close()");
    std::thread::sleep(Duration::from_millis(1100));
    let after = sandbox
        .printed("print(available())")
        .as_u64()
        .expect("a number");
    assert!(after + 20 >= before, "{before} MiB, then {after}");
    // In a process, of what another one uses.
    let begun = Instant::now();
    let path = sandbox.path("processes");
    let hold =
        json!({ "command": "python3 -c 'x = b\"x\" * (150 << 20); import time; time.sleep(60)'" });
    sandbox.service.post_json(&path, &hold).ok();
    let script = format!(
        "{AVAILABLE}\nend = time.monotonic() + 10\n\
        while available() > {before} - 140 and time.monotonic() < end: time.sleep(0.05)\nprint(available())"
    );
    sandbox.upload("watch.py", script.as_bytes()).ok();
    let told = sandbox.command("python3 watch.py");
    let left: u64 = told["stdout"]
        .as_str()
        .expect("a text")
        .trim()
        .parse()
        .expect("a number");
    assert!(
        before - left >= 140,
        "{left} MiB after {:?}",
        begun.elapsed()
    );
    // The cgroup's file says the same.
    let current = "print(int(open('/sys/fs/cgroup/memory.current').read()) >> 20)";
    let current = sandbox.printed(current).as_u64().expect("a number");
    assert!((150..400).contains(&current), "{current} MiB");
}

#[test]
fn the_disk_is_what_the_api_tells() {
    let service = Service::start();
    for (memory, disk, room) in [
        (1024 * MIB, 10 * MIB, 10 * MIB),
        // In whole pages.
        (1024 * MIB, 10 * MIB + 1, 10 * MIB),
        // No more than the memory has.
        (256 * MIB, 1024 * MIB, 0),
    ] {
        let sandbox = service.create_with(&json!({ "memory_bytes": memory, "disk_bytes": disk }));
        let told = described(&sandbox)["limits"]["disk_bytes"]
            .as_u64()
            .expect("a number");
        let seen = "import shutil; print(shutil.disk_usage('/').total, shutil.disk_usage('/dev/shm').total)";
        assert_eq!(sandbox.stdout(seen), format!("{told} {told}\n"));
        if room > 0 {
            assert_eq!(told, room);
        } else {
            assert!((memory / 2..memory).contains(&told), "{told}");
        }
    }
    let sandbox = service.create_with(&json!({ "disk_bytes": 10 * MIB }));
    let fill = "try:\n    \
        with open('big', 'wb', 0) as f:\n        \
            while True: f.write(bytes(1 << 16))\n\
        except OSError as e: print(e.strerror)\n\
        import os; print(os.path.getsize('big') >> 20)";
    assert_eq!(sandbox.stdout(fill), "No space left on device\n10\n");
    let filled = sandbox.command("rm big; dd if=/dev/zero of=big bs=64k 2>&1 | grep -o 'No space.*'; ls -s --block-size=1M big");
    assert_eq!(
        filled["stdout"], "No space left on device\n10 big\n",
        "{filled}"
    );
}
