//! User code against the installer, which may reach the package index where user code may not; and
//! clients that do not wait for it.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Scene;
use crate::fixture::host;
use crate::fixture::sandbox::Sandbox;

const SOON: Duration = Duration::from_secs(10);

/// `probe(word)`: waits for a process with that word in its command line, stops it, tries what a
/// process of the same user may do to another, lets it go on, and gives the names of what was possible.
const PROBE: &str = r#"
import os, signal, time

def find(word):
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try: line = open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\0')
        except OSError: continue
        if word in line: return int(pid)

def tries(pid):
    of = f'/proc/{pid}/'
    def read(path): return lambda: os.close(os.open(of + path, os.O_RDONLY)) or open(of + path, 'rb').read(1)
    yield 'memory', lambda: os.close(os.open(of + 'mem', os.O_RDWR))
    yield 'memory of a thread', lambda: os.close(os.open(f'{of}task/{pid}/mem', os.O_RDWR))
    for name in 'environ', 'maps', 'auxv', 'io', 'fdinfo/0': yield name, read(name)
    for name in 'root', 'cwd', 'exe': yield name, lambda name=name: os.readlink(of + name)
    for name in 'root/mnt', 'cwd/.', 'map_files': yield name, lambda name=name: os.listdir(of + name)
    for name in 'fd/1', f'task/{pid}/fd/1': yield name, lambda name=name: os.readlink(of + name)
    for name in 'net', 'user', 'mnt': yield 'ns/' + name, lambda name=name: os.close(os.open(of + 'ns/' + name, os.O_RDONLY))

def probe(word):
    pid, end = None, time.monotonic() + 20
    while pid is None and time.monotonic() < end: pid = find(word)
    os.kill(pid, signal.SIGSTOP)
    done = []
    for name, attempt in tries(pid):
        try: attempt()
        except PermissionError: continue
        done.append(name)
    os.kill(pid, signal.SIGCONT)
    return len(list(tries(pid))), done
"#;

#[track_caller]
fn install(sandbox: &Sandbox<'_>, request: &Value) -> Value {
    let answer = sandbox.service.post_json(&sandbox.path("install"), request);
    answer.ok().json()
}

/// Makes a wheel that wants something, in the working directory.
#[track_caller]
fn make_wheel(sandbox: &Sandbox<'_>, wants: &str) {
    sandbox.stdout(&format!(
        "import zipfile\n\
         with zipfile.ZipFile('bait-1.0-py3-none-any.whl', 'w') as z:\n    \
             d = 'bait-1.0.dist-info/'\n    \
             z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: bait\\nVersion: 1.0\\nRequires-Dist: {wants}\\n')\n    \
             z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n    \
             z.writestr(d + 'RECORD', '')"
    ));
}

fn bait() -> Value {
    json!({"packages": ["bait-1.0-py3-none-any.whl"]})
}

#[test]
fn user_code_cannot_look_into_the_installer() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout(PROBE);
    // An ordinary program of the same user is open to all of it.
    let begun = attacker.service.post_json(
        &attacker.path("processes"),
        &json!({ "command": "exec /bin/sleep 77" }),
    );
    begun.ok();
    let control = attacker.stdout("n, done = probe(b'77')\nprint(n == len(done), n)");
    assert!(control.starts_with("True"), "{control}");
    thread::scope(|scope| {
        let probes = scope.spawn(|| attacker.stdout("print(probe(b'--prefix'))"));
        thread::sleep(Duration::from_millis(300));
        let installed = install(&attacker, &json!({"packages": ["humanize"]}));
        assert_eq!(installed["success"], true, "{installed}");
        let probed = probes.join().unwrap();
        assert!(probed.ends_with(", [])\n"), "{probed}");
    });
    scene.assert_unharmed(&attacker);
}

#[test]
fn a_stopped_installer_ends_with_its_time() {
    let scene = Scene::new("limits.install_seconds = 5");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout(PROBE);
    let request = json!({"packages": ["humanize"]});
    thread::scope(|scope| {
        let stop = "pid, end = None, time.monotonic() + 20\n\
                    while pid is None and time.monotonic() < end: pid = find(b'--prefix')\n\
                    os.kill(pid, signal.SIGSTOP)";
        scope.spawn(|| attacker.stdout(stop));
        thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        let stopped = install(&attacker, &request);
        assert_eq!(stopped["status"], "failed", "{stopped}");
        let message = stopped["message"].as_str().unwrap();
        assert!(message.contains("install_seconds"), "{message}");
        assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    });
    let installed = install(&attacker, &request);
    assert_eq!(installed["success"], true, "{installed}");
    scene.assert_unharmed(&attacker);
}

#[test]
fn clients_that_hang_up_leave_nothing_of_the_installer() {
    let scene = Scene::new("");
    let open = || scene.service.process().descriptors().len();
    let before = open();
    let attacker = scene.attacker(&json!({}));
    let path = format!("{}?names=rich", attacker.path("packages"));
    let begun = Instant::now();
    scene.service.get(&path).ok();
    let takes = begun.elapsed();
    // At every moment of it.
    for part in 1..=20 {
        let mut connection = scene.service.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        thread::sleep(takes * part / 21);
    }
    scene.assert_unharmed(&attacker);
    attacker.close().ok();
    // Less what the neighbour may have opened meanwhile: one each time would be 20.
    host::wait_until("its sockets are closed", 2 * SOON, || open() < before + 10);
}

#[test]
fn the_installer_runs_no_program_for_a_wheel() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    make_wheel(&attacker, "x @ git+file:///home/user/repository");
    let refused = install(&attacker, &bait());
    assert_eq!(refused["status"], "failed", "{refused}");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("Git executable not found"),
        "{refused}"
    );
    make_wheel(&attacker, "x @ file:///home/user/project");
    let build = "import os\nos.makedirs('project')\n\
                 open('project/pyproject.toml', 'w').write('[build-system]\\nrequires=[]\\nbuild-backend=\"b\"\\nbackend-path=[\".\"]\\n')\n\
                 open('project/b.py', 'w').write('open(\"/tmp/marker\", \"w\")')";
    attacker.stdout(build);
    install(&attacker, &bait());
    assert_eq!(
        attacker.stdout("print(os.path.exists('/tmp/marker'))"),
        "False\n"
    );
    scene.assert_unharmed(&attacker);
    // Where user code may reach the index itself, both happen.
    let open = scene.attacker(&json!({ "network": "packages" }));
    make_wheel(&open, "x @ git+file:///home/user/repository");
    let tried = install(&open, &bait());
    assert!(
        tried["message"]
            .as_str()
            .unwrap()
            .contains("/usr/bin/git fetch"),
        "{tried}"
    );
    make_wheel(&open, "x @ file:///home/user/project");
    open.stdout(build);
    install(&open, &bait());
    assert_eq!(
        open.stdout("print(os.path.exists('/tmp/marker'))"),
        "True\n"
    );
}

#[test]
fn what_an_install_builds_loses_the_index_with_the_policy() {
    let scene = Scene::new("limits.install_seconds = 30");
    let attacker = scene.attacker(&json!({ "network": "packages" }));
    make_wheel(&attacker, "x @ file:///home/user/project");
    // Asks the index again and again, and notes the answers.
    attacker.stdout(
        "import os\nos.makedirs('project')\n\
         open('project/pyproject.toml', 'w').write('[build-system]\\nrequires=[]\\nbuild-backend=\"b\"\\nbackend-path=[\".\"]\\n')\n\
         open('project/b.py', 'w').write('''\n\
import http.client, time\n\
for _ in range(100):\n    \
    c = http.client.HTTPConnection('127.0.0.1', 3128, timeout=5)\n    \
    c.request('GET', '/simple/')\n    \
    open('/tmp/answers', 'a').write(f'{c.getresponse().status}\\\\n')\n    \
    time.sleep(0.1)\n\
''')",
    );
    let last = "print((open('/tmp/answers').read().split() or [None])[-1] if os.path.exists('/tmp/answers') else None)";
    thread::scope(|scope| {
        scope.spawn(|| install(&attacker, &bait()));
        host::wait_until("the build asks the index", SOON, || {
            attacker.stdout(last) == "200\n"
        });
        let path = attacker.path("network");
        let none = scene.service.send(&crate::fixture::http::Request {
            method: "PUT",
            path: &path,
            headers: &[("Content-Type", "application/json")],
            body: br#"{"network": "none"}"#,
        });
        none.ok();
        host::wait_until("the index is closed to it", SOON, || {
            attacker.stdout(last) == "403\n"
        });
    });
    scene.assert_unharmed(&attacker);
}

#[test]
fn an_install_that_cannot_begin_is_told_as_failed() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({ "processes": 40 }));
    attacker.stdout(
        "import subprocess\nkept = []\n\
         try:\n    while True: kept.append(subprocess.Popen(['sleep', '1000']))\n\
         except OSError: pass",
    );
    let path = attacker.path("install");
    let request = json!({"packages": ["humanize"]});
    let refused = attacker.service.post_json(&path, &request);
    refused.refused(429, "too_many_processes");
    attacker.stdout("for each in kept: each.kill(); each.wait()");
    let told = attacker
        .service
        .get(&format!("{}?names=humanize", attacker.path("packages")))
        .ok()
        .json();
    assert_eq!(told[0]["status"], "failed", "{told}");
    let installed = install(&attacker, &request);
    assert_eq!(installed["success"], true, "{installed}");
    scene.assert_unharmed(&attacker);
}

#[test]
fn the_installer_runs_and_reads_nothing_that_user_code_planted() {
    let scene = Scene::new("");
    let attacker = scene.attacker(&json!({}));
    attacker.stdout(
        r#"
import os, pathlib
note = 'import os; open("/tmp/marker", "a").write(os.readlink("/proc/self/ns/net") + "\\n")\n'
packages = '/opt/venv/lib/python3.13/site-packages/'
home = '/home/user/'
index = 'index-url = "http://127.0.0.1:9/"\n'
planted = {packages + 'planted.pth': note, home + 'pyproject.toml': '[tool.uv]\n' + index, home + 'uv.toml': index,
           home + '.config/uv/uv.toml': index, home + '.env': 'UV_DEFAULT_INDEX=http://127.0.0.1:9/\n'}
for module in 'sitecustomize', 'usercustomize', 'json', 'platform', 'sysconfig':
    planted[home + module + '.py'] = note
for program in 'uv', 'git', 'ldd':
    planted['/opt/venv/bin/' + program] = '#!/bin/sh\nreadlink /proc/self/ns/net >> /tmp/marker\n'
for path, text in planted.items():
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
"#,
    );
    let installed = install(&attacker, &json!({"packages": ["humanize"]}));
    assert_eq!(installed["success"], true, "{installed}");
    assert_eq!(
        attacker.stdout("print(os.path.exists('/tmp/marker'))"),
        "False\n"
    );
    // What was planted does its work where user code runs.
    attacker.command("cd /home/user && /opt/venv/bin/python3 -c ''; /opt/venv/bin/uv");
    let said = attacker.stdout("print(len(open('/tmp/marker').readlines()))");
    assert!(said.trim().parse::<u32>().unwrap() >= 2, "{said}");
    scene.assert_unharmed(&attacker);
}

#[test]
fn many_who_ask_for_packages_take_little_of_the_service() {
    let scene = Scene::new("limits.queue = 4");
    let attacker = scene.attacker(&json!({}));
    let path = format!("{}?names=rich", attacker.path("packages"));
    let before = scene.service.process().descriptors().len();
    let mut asking: Vec<_> = (0..60).map(|_| scene.service.connect()).collect();
    for connection in &mut asking {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
    }
    let most = (0..20).map(|_| {
        thread::sleep(Duration::from_millis(50));
        scene.service.process().descriptors().len()
    });
    let most = most.max().unwrap();
    // Beside the connections themselves those of one installer; without a limit 8 for each.
    assert!(most < before + 60 + 40, "{most}, {before} before");
    drop(asking);
    scene.assert_unharmed(&attacker);
}
