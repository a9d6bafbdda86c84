"""The checks of tests/vm/run, inside the machine: starts the service and proves its limits.

Runs as root with the mirror's Python, in a root directory of its own; the machine's is
/proc/1/root. Prints `PASS name: what was seen` or `FAIL name: why` for each check and
`N passed, M failed` last. Everything here is emulated and slow, so time limits are generous;
what is measured are amounts, not speeds.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

ADDRESS = "http://127.0.0.1:8000"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
DATA_DIR = "/data"
MIB = 1024 * 1024
READY_SECONDS = 150
REQUEST_SECONDS = 90
SETTLE_SECONDS = 30

LOAD = """
import pandas as pd
frame = pd.DataFrame({"city": ["Oslo", "Rome", "Lima"], "celsius": [4.5, 18.0, 21.5]})
"""
TRANSFORM = """
frame["fahrenheit"] = frame["celsius"] * 9 / 5 + 32
frame["fahrenheit"].max()
"""
SAVE = """
frame.to_csv("weather.csv", index=False)
print(len(frame))
"""
CSV = b"city,celsius,fahrenheit\nOslo,4.5,40.1\nRome,18.0,64.4\nLima,21.5,70.7\n"

MEMORY_BOMB = """
hoard = []
while True:
    hoard.append(b"x" * (8 << 20))
"""
FORK_BOMB = """
import os, signal, time
children = []
try:
    while True:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        children.append(child)
except BlockingIOError:
    print("BlockingIOError", len(children))
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""
DISK_FILL = """
import errno
written = 0
try:
    with open("fill", "wb", buffering=0) as file:
        while True:
            written += file.write(bytes(1 << 20))
except OSError as error:
    print(errno.errorcode[error.errno], written >> 20)
"""
CPU_HOG = """
import time
wall, cpu = time.monotonic(), time.process_time()
while time.monotonic() - wall < 6:
    pass
print((time.process_time() - cpu) / (time.monotonic() - wall))
"""


def in_machine_root():
    """Takes a child back to the machine's own root directory and to a session of its own."""
    os.chroot("/proc/1/root")
    os.chdir("/")
    os.setsid()


def sandcell(*arguments, **options):
    """Starts the binary on the machine."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/root"}
    return subprocess.Popen(
        ["/usr/local/bin/sandcell", *arguments],
        preexec_fn=in_machine_root,
        executable="/usr/local/bin/sandcell",
        env=environment,
        stdin=subprocess.DEVNULL,
        **options,
    )


def request(method, path, body=None, kind="application/json"):
    """Asks the service; the answer's bytes, or an AssertionError that quotes it."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    asked = urllib.request.Request(ADDRESS + path, data=data, method=method)
    if data is not None:
        asked.add_header("Content-Type", kind)
    try:
        with urllib.request.urlopen(asked, timeout=REQUEST_SECONDS) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]}") from None


class Sandbox:
    """A sandbox of the service, closed at the end of its block."""

    def __init__(self, **spec):
        self.id = json.loads(request("POST", "/sandbox/create", spec))["sandbox_id"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        request("POST", f"/sandbox/{self.id}/close", b"")

    def execute(self, code):
        """Runs code; the outcome."""
        answer = request("POST", f"/sandbox/{self.id}/execute", code.encode(), "text/plain")
        return json.loads(answer)

    def prints(self, code, expected):
        """Runs code that must succeed and print this."""
        outcome = self.execute(code)
        assert outcome["outcome"] == "ok", outcome
        assert outcome["stdout"].strip() == expected, outcome

    def download(self, path):
        """A file's bytes."""
        return request("GET", f"/sandbox/{self.id}/download/{path}")


def processes():
    """Ids of all processes of the machine but the kernel's threads."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.readlink(f"/proc/{entry}/exe"):
                    found.add(int(entry))
            except OSError:
                continue
    return found


def describe(pids):
    """What these processes are, for a failure's text."""
    lines = []
    for pid in sorted(pids):
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            lines.append(f"{pid} {command[:80]}")
        except OSError:
            continue
    return lines


def cgroups():
    """All cgroups of the machine."""
    return {path for path, _, _ in os.walk(CGROUPS)}


def traces():
    """What a service may leave on a machine, apart from its data directory."""
    mounts = {
        line.split(" - ")[0].split(" ")[4]
        for line in pathlib.Path("/proc/1/mountinfo").read_text().splitlines()
    }
    loops = {
        path.parent.parent.name for path in pathlib.Path("/sys/block").glob("loop*/loop/backing_file")
    }
    return {"processes": processes(), "cgroups": cgroups(), "mounts": mounts, "loops": loops}


def added(before):
    """What there is more than `before`, by kind, without the empty kinds."""
    now = traces()
    more = {kind: now[kind] - before[kind] for kind in before}
    if more["processes"]:
        more["processes"] = describe(more["processes"])
    return {kind: sorted(map(str, things)) for kind, things in more.items() if things}


def settles(condition, seconds=SETTLE_SECONDS):
    """Waits until a condition holds; its last value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.2)


class Machine:
    """The checks, in order; each is named after what it proves."""

    def __init__(self):
        self.untouched = traces()
        self.service = None
        self.resting_cgroups = set()

    def start(self):
        """Starts the service and waits until it is healthy."""
        began = time.monotonic()
        self.service = sandcell("serve", "--port", "8000", "--data-dir", DATA_DIR)
        while True:
            code = self.service.poll()
            assert code is None, f"serve ended with {code}"
            try:
                request("GET", "/health")
                return f"healthy after {time.monotonic() - began:.0f} s"
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() - began < READY_SECONDS, "serve is not healthy in time"
                time.sleep(0.5)

    def check_doctor_finds_cgroup_v2(self):
        """`doctor` names the layout and finds nothing missing."""
        doctor = sandcell("doctor", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = doctor.communicate(timeout=REQUEST_SECONDS)[0].decode()
        print(text)
        assert doctor.returncode == 0, f"exit {doctor.returncode}"
        assert "cgroup v2" in text.lower(), "does not say cgroup v2"
        return "exit 0"

    def check_service_starts(self):
        """The service starts on a kernel where every controller is on v2."""
        detail = self.start()
        with Sandbox() as sandbox:
            sandbox.prints("print(6 * 7)", "42")
        # The pool refills in the background; what is there at rest is the baseline.
        time.sleep(5)
        self.resting_cgroups = cgroups()
        return detail

    def check_pandas_flow(self):
        """Three executions share a frame; its CSV is downloaded."""
        with Sandbox() as sandbox:
            sandbox.prints(LOAD, "")
            outcome = sandbox.execute(TRANSFORM)
            texts = [entry["data"] for entry in outcome["results"] if entry["type"] == "text/plain"]
            assert any("70.7" in text for text in texts), outcome
            sandbox.prints(SAVE, "3")
            content = sandbox.download("weather.csv")
            assert content == CSV, content
        return f"{len(content)} bytes of CSV"

    def check_memory_bomb(self):
        """The memory limit ends the execution, not the sandbox, and nothing is swapped."""
        with Sandbox(memory_bytes=384 * MIB) as sandbox:
            sandbox.prints("x = 1\nprint(x)", "1")
            limits = [
                path.parent
                for path in CGROUPS.rglob("memory.max")
                if path.read_text().strip() == str(384 * MIB)
            ]
            assert limits, "no cgroup has the sandbox's memory limit"
            for cgroup in limits:
                swap = (cgroup / "memory.swap.max").read_text().strip()
                assert swap == "0", f"{cgroup}: memory.swap.max is {swap}"
            outcome = sandbox.execute(MEMORY_BOMB)
            assert outcome["outcome"] == "out_of_memory", outcome
            sandbox.prints("print(2)", "2")
        used = {line.split()[3] for line in open("/proc/swaps") if line.startswith("/dev/")}
        assert used == {"0"}, f"swap in use: {used}"
        return "out_of_memory at 384 MiB, next execution works, swap on and unused"

    def check_fork_bomb(self):
        """The process limit shows as BlockingIOError inside."""
        with Sandbox(processes=48) as sandbox:
            outcome = sandbox.execute(FORK_BOMB)
            assert outcome["outcome"] == "ok", outcome
            name, children = outcome["stdout"].split()
            assert name == "BlockingIOError" and 24 <= int(children) < 48, outcome
            sandbox.prints("print(3)", "3")
        return f"BlockingIOError after {children} children of 48 processes"

    def check_cpu_hog(self):
        """A loop gets its share of a processor, no more."""
        with Sandbox(cpus=0.5) as sandbox:
            outcome = sandbox.execute(CPU_HOG)
            assert outcome["outcome"] == "ok", outcome
            share = float(outcome["stdout"])
            assert 0.35 <= share <= 0.65, f"used {share:.2f} CPUs of 0.5"
        return f"used {share:.2f} CPUs of 0.5"

    def check_full_disk(self):
        """The disk limit is the file system's own; on this kernel it is not a tmpfs's."""
        with Sandbox(disk_bytes=64 * MIB) as sandbox:
            outcome = sandbox.execute(DISK_FILL)
            assert outcome["outcome"] == "ok", outcome
            name, mebibytes = outcome["stdout"].split()
            assert name == "ENOSPC" and 32 <= int(mebibytes) <= 64, outcome
            sandbox.prints("import os\nos.unlink('fill')\nprint(4)", "4")
        return f"ENOSPC after {mebibytes} MiB of 64"

    def check_close_leaves_no_cgroup(self):
        """All sandboxes of the checks before are closed: the cgroups are as they were at rest."""
        assert json.loads(request("GET", "/sandboxes")) == {}
        count = len(self.resting_cgroups)
        settles(lambda: len(cgroups()) <= count)
        now = cgroups()
        assert len(now) <= count, sorted(now - self.resting_cgroups)
        return f"{len(now)} cgroups, as at rest"

    def check_kill_of_the_supervisor(self):
        """Nothing outlives the supervisor, and a restart cleans what the kernel keeps."""
        sandbox = Sandbox()
        sandbox.prints("import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint(4)", "4")
        self.service.send_signal(signal.SIGKILL)
        self.service.wait()
        assert settles(lambda: "processes" not in added(self.untouched)), added(self.untouched)
        detail = self.start()
        assert json.loads(request("GET", "/sandboxes")) == {}
        with Sandbox() as fresh:
            fresh.prints("print(5)", "5")
        count = len(self.resting_cgroups)
        settles(lambda: len(cgroups()) <= count)
        assert len(cgroups()) <= count, sorted(cgroups() - self.resting_cgroups)
        return f"no process left; restart {detail}"

    def check_stop_leaves_nothing(self):
        """SIGTERM drains and cleans: processes, cgroups, mounts and loop devices as before."""
        Sandbox().prints("print(6)", "6")
        self.service.send_signal(signal.SIGTERM)
        code = self.service.wait(timeout=REQUEST_SECONDS)
        assert code == 0, f"serve ended with {code}"
        settles(lambda: not added(self.untouched))
        left = added(self.untouched)
        assert not left, left
        return "exit 0; no process, cgroup, mount or loop device left"


def main():
    """Runs the checks."""
    machine = Machine()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0
    for name in vars(Machine):
        if not name.startswith("check_") or (wanted not in name and name != "check_service_starts"):
            continue
        title = name.removeprefix("check_").replace("_", " ")
        began = time.monotonic()
        try:
            detail = getattr(machine, name)()
            passed += 1
            print(f"PASS {title}: {detail} ({time.monotonic() - began:.0f} s)")
        except Exception as error:
            failed += 1
            why = str(error).replace("\n", " ") or type(error).__name__
            print(f"FAIL {title}: {why[:2000]} ({time.monotonic() - began:.0f} s)")
    if machine.service and machine.service.poll() is None:
        machine.service.kill()
    print(f"{passed} passed, {failed} failed")


if __name__ == "__main__":
    main()
