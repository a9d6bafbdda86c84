"""Copies of the kernel: one that waits, so that its variables outlive it, and branches.

After an execution the kernel forks a checkpoint of itself. It sleeps until SIGUSR1, which the
supervisor sends when the kernel has died and all else that it started is gone; then the checkpoint is
the kernel. A newer one ends an older one. A fork does not carry other threads, and a checkpoint keeps
no pipe and no connection open; files and their positions are shared.

`os.wait()` in user code must not wait for a checkpoint. It sees no child whose end sends no SIGCHLD
(`__WCLONE`, waitpid(2)), and no libc makes one: so clone(2) is called directly, with Python's own work
around it. What libc's fork does beyond that, it does for other threads: where there are any, a child
forks the checkpoint and ends, so that it is init's child. That costs twice as much.

A branch is forked in the same way. It is a kernel from the start, with a socket and pipes of its own,
that the supervisor asked for: to run beside this one, or to be branched from again later.
"""

import ctypes
import os
import platform
import random
import signal
import threading
import warnings
# The signal module's own wrapper makes an enum member of the number.
from _signal import sigwait

_SYS_CLONE = 56  # x86-64
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_PR_GET_TID_ADDRESS = 40
_WCLONE = -0x80000000  # as a signed int

# A checkpoint dies after the kernel when memory is short, and before init, whose score is 0.
_OOM_SCORE_ADJ = b"300"

_WAKE_UP = frozenset({int(signal.SIGUSR1)})

# `restore: auto`: a fork takes a millisecond, and another for each 100 MiB of variables; and they
# may be there twice soon.
_AUTO_MAX_BYTES = 192 * 1024 * 1024
_AUTO_MAX_SHARE = 4
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
for _function in (_before_fork, _after_fork_parent, _after_fork_child):
    _function.restype = None
    _function.argtypes = []
# PyDLL: the interpreter's lock is held across the fork.
_syscall = ctypes.PyDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long] * 6


def _tid_address():
    """Where libc keeps the main thread's id, which a fork must set; None where it cannot be told."""
    address = ctypes.c_void_p()
    prctl = ctypes.CDLL(None).prctl
    if platform.machine() != "x86_64" or prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        return None
    return address.value


_TID_ADDRESS = _tid_address()


class Checkpoints:
    def __init__(self):
        self.pid = None
        self.hidden = False
        # Those that end without our doing or have been killed, and are to be reaped.
        self.ended = []
        # Whether it holds what the kernel holds now.
        self.current = False
        # In a checkpoint that has become the kernel: what the fork did not carry.
        self.missing = []
        self.base_bytes = 0
        self.oom_score_adj = b"0"
        self.gpu = False
        # Descriptors that the checkpoint needs when it is the kernel.
        self.kept = ()
        # Whether there are no others, but for the first three.
        self.alone = False

    def begin(self, plan):
        """In a new kernel: what it holds now is the zygote's, and a new kernel can have it too."""
        self.base_bytes = _private_bytes()
        self.oom_score_adj = b"%d" % plan.oom_score_adj
        self.gpu = plan.gpu
        self.kept = (plan.control, plan.stdout, plan.stderr)
        self.current = True

    def objection(self, mode, memory_bytes):
        """Why there should be none, or None."""
        if mode == "never":
            return "restore was \"never\""
        if mode == "auto" and self.gpu:
            return ("the sandbox has GPUs, and a copy of the kernel would have nothing of what is on them "
                    "nor could use them; restore \"always\" keeps other variables")
        own_bytes = _private_bytes() - self.base_bytes
        most_bytes = min(_AUTO_MAX_BYTES, memory_bytes // _AUTO_MAX_SHARE)
        if mode == "auto" and own_bytes > most_bytes:
            return (f"the kernel holds {own_bytes >> 20} MiB, more than the {most_bytes >> 20} MiB up "
                    "to which restore \"auto\" keeps a second copy; \"always\" does")
        return None

    def take(self):
        """Forks a checkpoint in place of the last one. Returns (True, None) in the checkpoint, when
        it has become the kernel, else (False, why it could not be forked)."""
        hidden = _may_clone()
        try:
            # Looked at here: whatever a checkpoint does, it does in pages that it copies for that. While
            # other threads run there may be more by the time of the fork.
            self.alone = hidden and _are_all({0, 1, 2, *self.kept})
            pid = self._fork(hidden, self._wait)
        except OSError as error:
            self.drop()
            return False, f"the kernel could not be forked: {error.strerror}"
        if pid == 0:
            _set_oom_score_adj(self.oom_score_adj)
            return True, None
        self.drop()
        self.pid, self.hidden, self.current = pid, hidden, True
        return False, None

    def branch(self):
        """Forks a kernel beside this one. Returns (its id, None), 0 in the branch itself, or (None, why
        there is none)."""
        hidden = _may_clone()
        try:
            pid = self._fork(hidden, list)
        except OSError as error:
            return None, f"the kernel could not be forked: {error.strerror}"
        if pid and hidden:
            self.ended.append(pid)
        return pid, None

    def let_go(self, waits):
        """In a branch that has its own socket and pipes: what is at the other end of others is not its
        business, nor what happens to the other's process group. `waits` is for one that only others
        branch from."""
        os.setsid()
        self.missing += _let_go_of_connections(self.kept)
        _set_oom_score_adj(_OOM_SCORE_ADJ if waits else self.oom_score_adj)

    def drop(self):
        """Ends the checkpoint."""
        self.current = False
        if self.pid is None:
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:
            pass  # user code was there first
        if self.hidden:
            self.ended.append(self.pid)
        self.pid = None

    def _reap(self):
        """Takes the exit status of ended checkpoints. Later, because it takes them a while to end."""
        for pid in list(self.ended):
            try:
                if os.waitpid(pid, _WCLONE | os.WNOHANG) == (0, 0):
                    continue
            except OSError:
                pass
            self.ended.remove(pid)

    def _wait(self):
        """Until it is needed. In the checkpoint, as it was forked, every signal is blocked. Gives what
        it had to let go of."""
        missing = []
        if not self.alone:
            try:
                missing = _let_go_of_connections(self.kept)
            except OSError:
                os._exit(1)  # no descriptor is free: better none than one that keeps others waiting
        _set_oom_score_adj(_OOM_SCORE_ADJ)
        sigwait(_WAKE_UP)
        return missing

    def _fork(self, hidden, begin):
        """The fork's id; 0 in the fork, once `begin` has returned what it did not carry."""
        self._reap()
        threads = _threads()
        pid, missing = _clone_hidden(begin) if hidden else _fork_twice(begin)
        if pid == 0:
            self.pid, self.current = None, False
            self.ended.clear()
            self.missing = missing + threads
        return pid


def rehearse():
    """In the zygote: what runs around each fork and is not ours."""
    _threads()
    _before_fork()
    _after_fork_parent()


def _clone_hidden(begin):
    _before_fork()
    pid = _syscall(_SYS_CLONE, _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID, 0, 0, _TID_ADDRESS, 0)
    if pid == 0:
        # Most checkpoints are never needed: the interpreter is put right in those that are.
        missing = begin()
        state = random.getstate()
        _after_fork_child()
        random.setstate(state)  # Python seeds its generator anew in every fork
        return 0, missing
    error = ctypes.get_errno()
    _after_fork_parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid, None


def _fork_twice(begin):
    state = random.getstate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, that there are threads
        pid = _fork_by_another()
    if pid:
        return pid, None
    random.setstate(state)
    return 0, begin()


def _threads():
    return [f"thread {thread.name}" for thread in threading.enumerate()
            if thread is not threading.main_thread()]


def _let_go_of_connections(kept):
    """Closes the checkpoint's copies of pipes and sockets: who is at the other end waits for the end of
    the file, and would for as long as a copy is open. The null device takes their numbers, so that what
    is opened later does not get them. Gives what they were, for people."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        if number < 3 or number == null or number in kept:
            continue
        try:
            kind = os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
        except OSError:
            continue  # the directory's own
        if kind in ("socket", "pipe"):
            os.dup2(null, number, inheritable=False)
            found.append(f"{kind} on descriptor {number}")
    os.close(null)
    return found


def _are_all(numbers):
    """Whether these descriptors are open and no others are; False where it would take a look at each."""
    # Their number since Linux 6.2, 0 before.
    if os.stat("/proc/self/fd").st_size != len(numbers):
        return False
    try:
        for number in numbers:
            os.fstat(number)
    except OSError:
        return False
    return True


def _may_clone():
    # A directory has two links and one for each directory in it: here, for each thread.
    return _TID_ADDRESS is not None and os.stat("/proc/self/task").st_nlink == 3


def _fork_by_another():
    """Forks a process that is init's child: the one between has ended. 0 in the fork."""
    readable, writable = os.pipe2(os.O_CLOEXEC)
    try:
        between = os.fork()
        if between == 0:
            pid = -1
            try:
                pid = os.fork()
                if pid == 0:
                    return 0
                os.write(writable, b"%d" % pid)
            finally:
                if pid != 0:
                    os._exit(0)
        os.waitpid(between, 0)
        os.close(writable)
        writable = None
        pid = int(os.read(readable, 32) or 0)
    finally:
        os.close(readable)
        if writable is not None:
            os.close(writable)
    if pid == 0:
        raise OSError(11, "Resource temporarily unavailable")
    return pid


def _set_oom_score_adj(value):
    try:
        file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, value)
        finally:
            os.close(file)
    except OSError:
        pass  # no descriptor is free: it may then die first, and that is told


def _private_bytes():
    """Memory that no file backs: resident less shared, of /proc/self/statm (proc_pid_statm(5))."""
    file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, resident, shared, *_ = os.read(file, 128).split()
    finally:
        os.close(file)
    return (int(resident) - int(shared)) * _PAGE_BYTES
