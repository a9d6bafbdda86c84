"""The zygote: imports everything once, then forks kernels into sandboxes.

It lives in the mirror's root, read-only, as root of the outer user namespace, with one thread, no
network and no user code. Descriptor 3 is its socket; `src/kernel/protocol.rs` says what travels
there. A fork goes:

    zygote                                      child
    setns(pidfd of init, pid namespace)
    fork ------------------------------------>  reseed
    setns(own pid namespace)                    lockdown.STEPS, in order, else Failed and exit
    Forked + pidfd of the child                 Ready, then kernel.Kernel.serve() until it is killed
    wait; on SIGCHLD: Exited
"""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys

# A fork copies one thread; a lock that another one holds would never be released. So libraries that
# start threads when they are loaded are told not to (the first name is Arrow's jemalloc), and one
# malloc arena is less to copy. Kernels get an environment of their own.
os.environ.update({
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": "/run/sandcell/matplotlib",
    "MATPLOTLIBRC": "/opt/sandcell/matplotlib/matplotlibrc",
})
M_ARENA_MAX = -8
ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

# Our modules form a package with an odd name, found by no path entry: user code that writes and
# imports its own `kernel.py` or `files.py` must get that one.
_HERE = os.path.dirname(os.path.abspath(__file__))
_spec = importlib.machinery.ModuleSpec("_sandcell", None, is_package=True)
_spec.submodule_search_locations.append(_HERE)
sys.modules["_sandcell"] = importlib.util.module_from_spec(_spec)
# The interpreter puts the script's directory first; code in an execution imports from where it is.
sys.path[:] = [""] + [entry for entry in sys.path if entry not in ("", _HERE)]

from _sandcell import forks  # noqa: E402

forks.hold_back()

import array  # noqa: E402
import json  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import traceback  # noqa: E402

from _sandcell import kernel, lockdown, reseed, sharing, warm  # noqa: E402

PROTOCOL = 9
SOCKET_FD = 3
MAX_PACKET_BYTES = 128 * 1024
# Four fixed ones and a cgroup.procs a controller of a hybrid host; more are cut off by the kernel.
MAX_FDS = 32


class Zygote:
    def __init__(self):
        self.socket = socket.socket(fileno=SOCKET_FD)
        self.socket.set_inheritable(False)
        self.ids = {}
        # The pid namespace to return to after a fork: this process's own, not its children's.
        self.own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.wakeup_read, self.wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def start(self):
        """Answers Start: imports, warms up and reports Ready. False at end of file."""
        request, _ = self.receive()
        if request is None:
            return False
        self.filters = [lockdown.Filter(text) for text in request["filters"]]
        self.gpu_filters = [lockdown.Filter(text) for text in request["gpu_filters"]]
        self.kernel = kernel.Kernel()
        lockdown.leave_out(request["without"])
        failed = warm.up(self.kernel, request["preload"])
        threads = thread_names()
        if len(threads) != 1:
            names = ", ".join(sorted(set(threads) - {threads[0]}) or threads)
            self.send({"type": "failed", "id": 0, "error": "the imports leave threads running "
                       f"({names}), and a kernel forked beside them could hang: leave the module "
                       "that starts them out of preload"})
            return False
        self.kernel.take_environment(request["env"])
        sharing.freeze()
        version = "%d.%d.%d" % sys.version_info[:3]
        self.send({"type": "ready", "protocol": PROTOCOL, "python": version,
                   "failed_preloads": failed})
        return True

    def serve(self):
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self.wakeup_read, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self.wakeup_read:
                    os.read(fd, 4096)
                    self.reap()
                    continue
                request, fds = self.receive()
                if request is None:
                    return
                try:
                    self.fork(request, fds)
                finally:
                    for received in fds:
                        os.close(received)

    def fork(self, request, fds):
        number = request["id"]
        try:
            pid = self.fork_into(fds[0])
            if pid == 0:
                self.become_kernel(request, fds)
            self.ids[pid] = number
            pidfd = os.pidfd_open(pid)
        except (OSError, IndexError) as error:
            self.send({"type": "failed", "id": number, "error": f"failed to fork: {error}"})
            return
        try:
            self.send({"type": "forked", "id": number}, pidfd)
        finally:
            os.close(pidfd)

    def fork_into(self, init):
        # The pid namespace of children can be chosen, that of a running process cannot: so it is
        # set around the fork, and one fork is enough.
        os.setns(init, os.CLONE_NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                os.setns(self.own_pid_namespace, os.CLONE_NEWPID)
        return pid

    def become_kernel(self, request, fds):
        """The child. Whatever happens, it never returns into the zygote's loop."""
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # The descriptors are closed by number below; an object that closed one later could hit
            # a descriptor that user code opened in the meantime.
            self.socket.detach()
            forks.let_go()
            filters = self.gpu_filters if request["gpu"] else self.filters
            plan = lockdown.Plan(fds, request, filters)
            reseed.all_generators()
            lockdown.enter(plan)
            if request["threads"] > 1:
                reseed.numeric_threads(request["threads"])
            self.kernel.serve(plan)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def reap(self):
        while self.ids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self.ids.pop(pid, None)
            if number is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            self.send({"type": "exited", "id": number, "code": code if code >= 0 else None,
                       "signal": -code if code < 0 else None})

    def receive(self):
        # Not socket.recv_fds: that one leaves descriptors behind when a packet is cut off.
        try:
            data, control, flags, _ = self.socket.recvmsg(
                MAX_PACKET_BYTES, socket.CMSG_SPACE(MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, control, flags = b"", [], 0  # closed with packets of ours unread
        if not data:
            return None, []
        fds = array.array("i")
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise RuntimeError("a packet of the supervisor was cut off")
        return json.loads(data), list(fds)

    def send(self, message, *fds):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([json.dumps(message).encode()], rights)


def thread_names():
    names = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as file:
            names.append(file.read().strip())
    return names


def main():
    zygote = Zygote()
    if zygote.start():
        zygote.serve()


if __name__ == "__main__":
    main()
