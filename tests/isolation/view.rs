//! What a sandbox sees of its surroundings.

use std::net::TcpListener;

use sandcell::isolation::spec::Ablation;
use serde_json::{Value, json};

use crate::fixture::{Launch, Service, base_mirror, temp_dir};
use crate::{Found, Place, require, upheld_by};

#[test]
fn there_is_only_the_loopback_interface_and_it_leads_nowhere() {
    let service = Service::start();
    let sandbox = service.create();
    let interfaces =
        "print([line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line])";
    assert_eq!(sandbox.stdout(interfaces), "['lo']\n");
    let on_host = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host_port = on_host.local_addr().expect("an address").port();
    let seen = sandbox.printed(&format!(
        "import errno, json, socket\n\
         def attempt(family, address):\n    \
             with socket.socket(family) as s:\n        \
                 s.settimeout(5)\n        \
                 try: s.connect(address); return 'connected'\n        \
                 except OSError as e: return errno.errorcode.get(e.errno, str(e))\n\
         print(json.dumps([attempt(socket.AF_INET, a) for a in [\n    \
             ('127.0.0.1', {}), ('127.0.0.1', {host_port}), ('10.0.0.1', 80), ('169.254.169.254', 80), ('1.1.1.1', 443)]]\n    \
             + [attempt(socket.AF_INET6, ('2606:4700:4700::1111', 443))]))",
        service.address.port(),
    ));
    assert_eq!(
        seen,
        json!([
            "ECONNREFUSED",
            "ECONNREFUSED",
            "ENETUNREACH",
            "ENETUNREACH",
            "ENETUNREACH",
            "ENETUNREACH"
        ])
    );
    assert_eq!(
        sandbox.execute("import socket; socket.gethostbyname('example.com')")["error"],
        "gaierror"
    );
    let within = "import socket\n\
        s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname())\n\
        c.sendall(b'x'); print(s.accept()[0].recv(1))";
    assert_eq!(sandbox.stdout(within), "b'x'\n", "loopback works");
}

#[test]
fn no_process_but_its_own_is_visible() {
    let service = Service::start();
    let sandbox = service.create();
    let seen = sandbox.printed(
        "import json, os\n\
         pids = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())\n\
         print(json.dumps([pids, os.getpid(), os.getppid()]))",
    );
    let kernel = seen[1].as_i64().expect("a pid");
    assert_eq!(seen[0], json!([1, kernel]));
    assert_eq!(sandbox.command("ps -e -o comm= | sort -u")["exit_code"], 0);
}

/// Walks what is readable and prints the files that hold one of `NEEDLES`.
const SEARCH: &str = r"
import json, os, stat
found, looked = {}, 0
def look(path):
    global looked
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode): return
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError: return
    try:
        data = b''
        while len(data) < 1 << 20 and (more := os.read(fd, 65536)): data += more
    except OSError: pass
    os.close(fd)
    looked += 1
    for name, needle in NEEDLES.items():
        if needle in data or needle in path.encode(): found.setdefault(name, []).append(path)
for top in ['/proc', '/etc', '/run', '/dev', '/tmp', '/home', '/var', '/root', '/sys', '/srv', '/mnt', '/opt/sandcell']:
    for directory, _, names in os.walk(top):
        if directory.startswith('/proc/self/task'): continue
        for name in names: look(os.path.join(directory, name))
for name, needle in NEEDLES.items():
    for key, value in os.environb.items():
        if needle in key + value: found.setdefault(name, []).append('environment')
# The code itself holds the needles: what is found in our own memory is no leak.
print(json.dumps([found, looked]))
";

#[test]
fn nothing_that_is_readable_names_the_host() {
    let service = Service::launch(&Launch {
        env: &[("SANDCELL_TEST_CANARY", "c4n4ry-0f-th3-h0st")],
        ..Launch::default()
    });
    let sandbox = service.create();
    let host_name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let needles: Vec<(&str, String)> = vec![
        ("canary variable", "c4n4ry-0f-th3-h0st".into()),
        (
            "data directory",
            service.data_dir().to_string_lossy().into_owned(),
        ),
        ("checkout", env!("CARGO_MANIFEST_DIR").into()),
        ("mirror", base_mirror().to_string_lossy().into_owned()),
        ("cgroup", service.instance.clone()),
    ];
    let table: String = needles
        .iter()
        .map(|(name, text)| format!("{name:?}: {text:?}.encode(),"))
        .collect();
    let seen = sandbox.printed(&format!("NEEDLES = {{{table}}}\n{SEARCH}"));
    assert_eq!(seen[0], json!({}));
    assert!(
        seen[1].as_u64().is_some_and(|files| files > 100),
        "{} files",
        seen[1]
    );
    // The host's name may be a short word: looked for where names are kept.
    let named = sandbox.command(
        "uname -n; hostname; cat /proc/sys/kernel/hostname /etc/hostname; grep -v '^#' /etc/hosts; env | grep -i host",
    );
    let words: Vec<&str> = named["stdout"]
        .as_str()
        .expect("a text")
        .split_whitespace()
        .collect();
    assert!(
        words.starts_with(&["sandbox", "sandbox", "sandbox"]) && !words.contains(&&*host_name),
        "{words:?}"
    );
    assert_ne!(host_name, "sandbox", "this test would see nothing");
    // The search finds what is there.
    let control = "NEEDLES = {'passwd': b'/usr/sbin/nologin'}\n".to_owned() + SEARCH;
    assert_eq!(sandbox.printed(&control)[0]["passwd"][0], "/etc/passwd");
}

#[test]
fn no_path_of_the_host_is_visible() {
    let service = Service::start();
    let sandbox = service.create();
    let canary = temp_dir();
    std::fs::write(canary.path().join("canary"), "of the host").expect("a file can be written");
    let path = canary.path().join("canary");
    let code = format!(
        "import os\nprint(os.path.exists({path:?}), os.path.exists({:?}))",
        env!("CARGO_MANIFEST_DIR")
    );
    assert_eq!(sandbox.stdout(&code), "False False\n");
    // The root of the mount namespace is the sandbox's: there is nothing above it.
    let code = format!(
        "import os\nprint(any(os.path.exists(p + {path:?}) for p in ['/proc/1/root', '/proc/self/root', '/..' * 9]))"
    );
    assert_eq!(sandbox.stdout(&code), "False\n");
    assert_eq!(sandbox.stdout("import os\nprint(sorted(os.environ) == sorted(set(os.environ) & ALLOWED))".replace(
        "ALLOWED",
        "{'HOME','USER','LOGNAME','SHELL','PATH','LANG','TERM','TZ','VIRTUAL_ENV','PYTHONUNBUFFERED','MPLBACKEND',\
         'MATPLOTLIBRC','MPLCONFIGDIR','PLOTLY_RENDERER','OMP_NUM_THREADS','NUMBA_NUM_THREADS','RAYON_NUM_THREADS',\
         'POLARS_MAX_THREADS','GOMAXPROCS','PYTHON_CPU_COUNT','PYTHONDONTWRITEBYTECODE','PYTHONHASHSEED','PYDEVD_DISABLE_FILE_VALIDATION'}"
    ).as_str()), "True\n");
}

/// Mount points and file systems.
const MOUNTS: [(&str, &str); 12] = [
    ("/", "overlay"),
    ("/dev", "tmpfs"),
    ("/dev/full", "devtmpfs"),
    ("/dev/null", "devtmpfs"),
    ("/dev/pts", "devpts"),
    ("/dev/random", "devtmpfs"),
    ("/dev/shm", "tmpfs"),
    ("/dev/tty", "devtmpfs"),
    ("/dev/urandom", "devtmpfs"),
    ("/dev/zero", "devtmpfs"),
    ("/proc", "proc"),
    ("/sys", "tmpfs"),
];

fn mounts(place: &dyn Place) -> Vec<Value> {
    let seen = place.python(
        "import json\n\
         rows = []\n\
         for line in open('/proc/self/mountinfo'):\n    \
             left, right = line.split(' - ')\n    \
             left, right = left.split(), right.split()\n    \
             rows.append([left[4], right[0], left[5].split(',')])\n\
         print(json.dumps(rows))",
    );
    serde_json::from_str(&seen).expect("rows")
}

fn mounts_have_their_flags(place: &dyn Place) -> Found {
    for row in mounts(place) {
        let (point, flags) = (text(&row[0]), row[2].as_array().expect("flags"));
        let has = |flag: &str| flags.contains(&Value::from(flag));
        // A bound device node, as itself or over a file of /proc, is nothing that could be executed.
        if row[1] != "devtmpfs" {
            require(has("nosuid"), || format!("nosuid: {row}"))?;
            let nodev = has("nodev") || point.starts_with("/dev");
            require(nodev, || format!("nodev: {row}"))?;
            let read_only = has("ro") || !point.starts_with("/proc/");
            require(read_only, || format!("ro: {row}"))?;
        }
    }
    Ok(())
}

#[test]
fn mounts_take_no_privilege_from_files() {
    upheld_by(
        mounts_have_their_flags,
        Ablation {
            no_mount_flags: true,
            ..Ablation::default()
        },
    );
}

#[test]
fn mounts_are_those_of_the_golden_list() {
    let service = Service::start();
    let mut points: Vec<(String, String)> = mounts(&service.create())
        .iter()
        .map(|r| (text(&r[0]), text(&r[1])))
        .filter(|(p, _)| !p.starts_with("/proc/"))
        .collect();
    points.sort();
    let golden: Vec<(String, String)> = MOUNTS
        .iter()
        .map(|(p, k)| ((*p).to_owned(), (*k).to_owned()))
        .collect();
    assert_eq!(points, golden);
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What of `/proc` tells of the host is empty or absent, and nothing of `/proc/sys` can be written.
fn proc_is_masked(place: &dyn Place) -> Found {
    let seen: Value = serde_json::from_str(&place.python(
        "import json, os\n\
         told = []\n\
         for name in ['acpi', 'asound', 'bus', 'cmdline', 'config.gz', 'diskstats', 'driver', 'fs', 'interrupts', 'iomem', 'ioports',\n    \
             'irq', 'kallsyms', 'kcore', 'keys', 'key-users', 'latency_stats', 'modules', 'partitions', 'sched_debug',\n    \
             'scsi', 'sysrq-trigger', 'timer_list']:\n    \
             path = '/proc/' + name\n    \
             try: content = os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(100)\n    \
             except OSError: continue\n    \
             if content: told.append(path)\n\
         for path in ['/proc/sys/kernel/hostname', '/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches',\n    \
             '/proc/sysrq-trigger']:\n    \
             try: os.close(os.open(path, os.O_WRONLY))\n    \
             except OSError: continue\n    \
             if path != '/proc/sysrq-trigger': told.append(path + ' can be written')\n\
         with open('/proc/self/mountinfo') as mounts:\n    \
             if not any(m.split()[4] == '/proc/sys' and 'ro' in m.split()[5].split(',') for m in mounts):\n        \
                 told.append('/proc/sys is writable')\n\
         print(json.dumps(told))",
    )).expect("a list");
    require(seen == json!([]), || format!("{seen}"))
}

#[test]
fn proc_tells_nothing_of_the_host() {
    upheld_by(
        proc_is_masked,
        Ablation {
            no_masks: true,
            ..Ablation::default()
        },
    );
}

/// What is shown of limits can be written, replaced, covered or taken away by nobody inside.
fn limits_are_shown_for_good(place: &dyn Place) -> Found {
    let seen = place.python(
        "import ctypes, json, os\n\
         changed = []\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def attempt(what, act):\n    \
             try: act()\n    \
             except OSError: return\n    \
             changed.append(what)\n\
         def check(result):\n    \
             if result != 0: raise OSError(ctypes.get_errno(), '')\n\
         open('/tmp/mine', 'w').close()\n\
         directories = ['/sys', '/sys/fs/cgroup', '/sys/devices/system/cpu']\n\
         files = ['/proc/cpuinfo', '/proc/meminfo', '/proc/stat', '/sys/devices/system/cpu/online',\n    \
             '/sys/devices/system/cpu/possible', '/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/cpu.max']\n\
         for path in files:\n    \
             kept = open(path).read()\n    \
             assert kept\n    \
             attempt('write ' + path, lambda: os.write(os.open(path, os.O_WRONLY), kept.encode()))\n    \
             attempt('mode ' + path, lambda: os.chmod(path, 0o666))\n    \
             attempt('time ' + path, lambda: os.utime(path, (1, 1)))\n    \
             assert open(path).read(10) == kept[:10]\n\
         for path in files:\n    \
             attempt('link ' + path, lambda: os.link('/tmp/mine', path))\n    \
             attempt('rename ' + path, lambda: os.rename('/tmp/mine', path))\n    \
             attempt('remove ' + path, lambda: os.unlink(path))\n    \
             attempt('unmount ' + path, lambda: check(libc.umount2(path.encode(), 2)))\n\
         for path in directories:\n    \
             attempt('make in ' + path, lambda: os.mkdir(path + '/mine'))\n    \
             attempt('unmount ' + path, lambda: check(libc.umount2(path.encode(), 2)))\n    \
             attempt('mount on ' + path, lambda: check(libc.mount(b'x', path.encode(), b'tmpfs', 0, None)))\n\
         print(json.dumps(changed))",
    );
    require(seen.trim() == "[]", || seen.clone())
}

#[test]
fn nobody_inside_changes_what_is_shown_of_limits() {
    upheld_by(
        limits_are_shown_for_good,
        Ablation {
            writable_view: true,
            ..Ablation::default()
        },
    );
}

#[test]
fn no_device_can_be_made_and_only_harmless_ones_are_there() {
    let service = Service::start();
    let sandbox = service.create();
    let seen = sandbox.printed(
        "import json, os, stat\n\
         devices = sorted(n for n in os.listdir('/dev') if stat.S_ISCHR(os.lstat('/dev/' + n).st_mode)\n    \
             or stat.S_ISBLK(os.lstat('/dev/' + n).st_mode))\n\
         made = []\n\
         for directory in ['/home/user', '/tmp', '/dev', '/dev/shm']:\n    \
             for kind in [stat.S_IFCHR, stat.S_IFBLK]:\n        \
                 try: os.mknod(directory + '/device', kind | 0o666, os.makedev(1, 3)); made.append(directory)\n        \
                 except OSError: pass\n\
         print(json.dumps([devices, made]))",
    );
    assert_eq!(
        seen,
        json!([["full", "null", "random", "tty", "urandom", "zero"], []])
    );
}

#[test]
fn set_uid_programs_stay_the_user() {
    let service = Service::start();
    let sandbox = service.create();
    let planted = sandbox.command("find / -xdev -perm /6000 -type f 2>/dev/null");
    assert_eq!(planted["stdout"], "", "the base has none");
    let seen = sandbox.command("cp /usr/bin/sleep s; chmod 6755 s; ./s 1000 & until grep -q ^s$ /proc/$!/comm; do :; done; grep -E '^[UG]id' /proc/$!/status");
    assert_eq!(
        seen["stdout"], "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\n",
        "{seen}"
    );
}

#[test]
fn its_own_limits_and_cgroup_cannot_be_changed_from_inside() {
    let service = Service::start();
    let sandbox = service.create();
    let seen = sandbox.printed(
        "import json, os, resource\n\
         raised = []\n\
         for name in ['RLIMIT_NOFILE', 'RLIMIT_CORE', 'RLIMIT_MEMLOCK', 'RLIMIT_MSGQUEUE']:\n    \
             number = getattr(resource, name)\n    \
             soft, hard = resource.getrlimit(number)\n    \
             try: resource.setrlimit(number, (hard + 1, hard + 1)); raised.append(name)\n    \
             except (OSError, ValueError): pass\n\
         fd = os.open('/proc/self/oom_score_adj', os.O_WRONLY)\n\
         try: os.write(fd, b'-1'); raised.append('oom_score_adj')\n\
         except OSError: pass\n\
         cgroups = [os.path.join(d, n) for d, _, names in os.walk('/sys') for n in names]\n\
         cgroups = [path for path in cgroups if os.access(path, os.W_OK)]\n\
         print(json.dumps([raised, cgroups, open('/proc/self/cgroup').read()]))",
    );
    assert_eq!(seen[0], json!([]));
    assert_eq!(seen[1], json!([]), "nothing of /sys can be written");
    let cgroup = seen[2].as_str().expect("a text");
    assert!(!cgroup.contains("sandcell"), "{cgroup}");
}
