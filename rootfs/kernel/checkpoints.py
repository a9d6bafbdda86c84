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

A copy of a process that had threads can wait for ever for one that does not exist. `quiesce.py` brings them
to rest before the fork, or says why that is not possible: then there is no copy. `renew.py` puts right in a
copy that has become a kernel what belonged to threads, processes and descriptors of the other.
"""

import ctypes
import os
import random
import select
import signal
import threading
import warnings
# User code may replace what modules like os and signal hold: these are the functions themselves.
from _signal import sigwait
from time import sleep
from posix import (O_CLOEXEC, O_RDONLY, O_RDWR, O_WRONLY, P_ALL, WEXITED, WNOHANG, WNOWAIT, close, dup2, fork,
                   fstat, kill, listdir, open as open_fd, pipe2, read, readlink,
                   setsid, stat, strerror, waitpid, write, _exit)

from _sandcell import quiesce

_SYS_CLONE = 56  # x86-64
_SYS_WAITID = 247
_CLONE_CHILD_CLEARTID = 0x00200000
_CLONE_CHILD_SETTID = 0x01000000
_WCLONE = -0x80000000  # as a signed int

# A checkpoint dies after the kernel when memory is short, and before init, whose score is 0.
_OOM_SCORE_ADJ = b"300"

_WAKE_UP = frozenset({int(signal.SIGUSR1)})
_SIGKILL = int(signal.SIGKILL)
# Not posix.kill(): an audit hook of user code could forbid it, and checkpoints would pile up.
_kill = ctypes.PyDLL(None).kill
_kill.argtypes = [ctypes.c_int, ctypes.c_int]

# `restore: auto`: a fork takes a millisecond, and another for each 100 MiB of variables; and they
# may be there twice soon.
_AUTO_MAX_BYTES = 192 * 1024 * 1024
_AUTO_MAX_SHARE = 4
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Longest that a fork beside other threads may take until it has looked at itself, in milliseconds: hooks that
# libraries have registered for forks run meanwhile.
_FORK_MS = 5000

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


class Unsound(Exception):
    """There is no copy; says why, for people."""


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
        # Whether there are no others, but for the first three, no other thread and no child.
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

    def take(self, shell):
        """Forks a checkpoint in place of the last one. Returns (True, None) in the checkpoint, when
        it has become the kernel, else (False, why there is none)."""
        try:
            pid, hidden = self._fork(shell, self._wait, patient=False)
        except Unsound as objection:
            self.drop()
            return False, str(objection)
        except OSError as error:
            self.drop()
            return False, _not_forked(error)
        if pid == 0:
            _set_oom_score_adj(self.oom_score_adj)
            return True, None
        self.drop()
        self.pid, self.hidden, self.current = pid, hidden, True
        return False, None

    def branch(self, shell, force):
        """Forks a kernel beside this one; with `force` an unsound one too. Returns (its id, None, False), 0 in
        the branch itself, or (None, why there is none, whether that is because it were unsound)."""
        try:
            pid, hidden = self._fork(shell, list, force=force)
        except Unsound as objection:
            return None, str(objection), True
        except OSError as error:
            return None, _not_forked(error), False
        if pid and hidden:
            self.ended.append(pid)
        return pid, None, False

    def let_go(self, waits):
        """In a branch that has its own socket and pipes: what is at the other end of others is not its
        business, nor what happens to the other's process group. `waits` is for one that only others
        branch from."""
        setsid()
        self.missing += _let_go_of_connections(self.kept)
        _set_oom_score_adj(_OOM_SCORE_ADJ if waits else self.oom_score_adj)

    def drop(self):
        """Ends the checkpoint."""
        self.current = False
        if self.pid is None:
            return
        _kill(self.pid, _SIGKILL)  # user code may have been there first
        if self.hidden:
            self.ended.append(self.pid)
        self.pid = None

    def _reap(self):
        """Takes the exit status of ended checkpoints. Later, because it takes them a while to end."""
        for pid in list(self.ended):
            try:
                if waitpid(pid, _WCLONE | WNOHANG) == (0, 0):
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
                _exit(1)  # no descriptor is free: better none than one that keeps others waiting
        _set_oom_score_adj(_OOM_SCORE_ADJ)
        sigwait(_WAKE_UP)
        return missing

    def _fork(self, shell, begin, patient=True, force=False):
        """The fork's id, and whether it is a child that only `__WCLONE` sees; 0 in the fork, once `begin`
        has returned what it did not carry. Raises `Unsound` or OSError where there is none."""
        self._reap()
        hidden, objection, held = _may_clone(), quiesce.refusal(), None
        alone = hidden and objection is None
        if not alone:
            if objection is None:
                objection, held = quiesce.settle(shell, patient)
            if objection and not force:
                raise Unsound(objection)
            # Handlers of libraries, which libc's fork calls, may wait for the thread that is in the way.
            hidden = _may_clone() or objection is not None and quiesce.TID_ADDRESS is not None
        # Looked at here: whatever a checkpoint does, it does in pages that it copies for that. While
        # other threads run there may be more by the time of the fork.
        children = _children(self.pid, self.ended)
        self.alone = hidden and not objection and not children and _are_all({0, 1, 2, *self.kept})
        if not self.alone and not force and (objection := _locks(self.kept)):
            raise Unsound(objection)
        missing = children if alone else _threads() + quiesce.native() + children
        pid, let_go = _clone_hidden(begin) if hidden else _fork_twice(begin, held)
        if pid == 0:
            self.pid, self.current = None, False
            self.ended.clear()
            self.missing = missing + let_go
        return pid, hidden


def _not_forked(error):
    return f"the kernel could not be forked: {error.strerror}"


def rehearse():
    """In the zygote: what runs around each fork and is not ours."""
    _threads()
    _before_fork()
    _after_fork_parent()


def run_always():
    """The functions that a checkpoint of a kernel with one thread and no child runs, for `sharing`."""
    always = Checkpoints
    return {always.objection, always.take, always.drop, always._reap, always._wait, always._fork, _clone_hidden,
            _children, _threads, _are_all, _may_clone, _private_bytes, _set_oom_score_adj,
            quiesce.count, quiesce.refusal}


def _clone_hidden(begin):
    _before_fork()
    pid = _syscall(_SYS_CLONE, _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID, 0, 0, quiesce.TID_ADDRESS, 0)
    if pid == 0:
        # Most checkpoints are never needed: the interpreter is put right in those that are.
        let_go = begin()
        state = random.getstate()
        _after_fork_child()
        random.setstate(state)  # Python seeds its generator anew in every fork
        return 0, let_go
    error = ctypes.get_errno()
    _after_fork_parent()
    if pid < 0:
        raise OSError(error, strerror(error))
    return pid, None


def _fork_twice(begin, held):
    """`held`: what the fork must find at rest, or None."""
    state = random.getstate()
    readable, writable = pipe2(O_CLOEXEC)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's, that there are threads
            between = _fork_by_another(writable)
        if between == 0:
            # Other threads ran until the fork: what it has found them at is looked at here.
            objection = held.objection() if held is not None else None
            write(writable, (objection or "").encode("utf-8", "replace")[:4000] + b"\n")
            close(writable)
            writable = None
            if objection:
                _exit(1)
            close(readable)
            readable = None
            random.setstate(state)
            return 0, begin()
        close(writable)
        writable = None
        try:
            return _hear_from_fork(readable), None
        finally:
            _reap_between(between)
    finally:
        for descriptor in (readable, writable):
            if descriptor is not None:
                close(descriptor)


def _fork_by_another(writable):
    """Forks a process that is init's child, as the one between ends: 0 in the fork, which the one between
    has told the id of."""
    between = fork()
    if between == 0:
        pid = -1
        try:
            pid = fork()
            if pid == 0:
                return 0
            write(writable, b"%d\n" % pid)
        finally:
            if pid != 0:
                _exit(0)
    return between


def _reap_between(pid):
    """It has ended by now, unless what a library has registered to run around forks holds it up."""
    try:
        for _ in range(100):
            if waitpid(pid, WNOHANG) != (0, 0):
                return
            sleep(0.001)
        kill(pid, _SIGKILL)
        waitpid(pid, 0)
    except OSError:
        pass  # SIGCHLD is ignored, or a thread of user code has waited for any child


def _hear_from_fork(readable):
    """The id of the fork, once it has found that it is sound."""
    told = b""
    poll = select.poll()
    poll.register(readable, select.POLLIN)
    while told.count(b"\n") < 2:
        data = read(readable, 4096) if poll.poll(_FORK_MS) else None
        if not data:
            break
        told += data
    lines = told.split(b"\n")
    # Two write: the one between and the fork, in either order.
    numbers = [line for line in lines[:-1] if line.isdigit()]
    texts = [line for line in lines[:-1] if not line.isdigit()]
    if numbers and texts and not texts[0]:
        return int(numbers[0])
    if texts and texts[0]:
        raise Unsound(texts[0].decode("utf-8", "replace"))
    if numbers:
        try:
            kill(int(numbers[0]), _SIGKILL)
        except OSError:
            pass
        raise Unsound("what a library has registered to run around forks did not end")
    raise OSError(11, "Resource temporarily unavailable")


def _threads():
    return [f"thread {thread.name}" for thread in threading.enumerate()
            if thread is not threading.main_thread()]


def _children(checkpoint, ended):
    """Processes that the code started, for people. Checkpoints are not among them."""
    # waitid(2); not that of `posix`, whose exception where there is no child takes ten times as long.
    if _syscall(_SYS_WAITID, P_ALL, 0, 0, WEXITED | WNOHANG | WNOWAIT, 0) < 0:
        return []
    found = []
    for thread in listdir("/proc/self/task"):
        for pid in map(int, quiesce.content(f"/proc/self/task/{thread}/children").split()):
            if pid != checkpoint and pid not in ended:
                name = quiesce.content(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
                found.append(f"process {pid} ({name})")
    return found


def _locks(kept):
    """Why a file that is open must not be open in a copy, or None. A lock of POSIX is its process's
    (F_SETLK, fcntl_locking(2)): a copy does not have it and does not know. Databases lock so: SQLite in a
    transaction and as long as one with a write-ahead log is open, DuckDB, LMDB."""
    for number, path in _others_open(kept):
        # `lock:` lines are in proc_pid_fdinfo(5) since Linux 4.1.
        if path.startswith("/") and b" POSIX " in quiesce.content(f"/proc/self/fdinfo/{number}"):
            return (f"the file {path} is locked by this process, as databases do while they are in use, and a "
                    "copy would not have the lock: close it first")
    return None


def _others_open(kept):
    """Descriptors that are open beside the first three and those that are kept, and where each leads."""
    for number in map(int, listdir("/proc/self/fd")):
        if number >= 3 and number not in kept:
            try:
                yield number, readlink(f"/proc/self/fd/{number}")
            except OSError:
                pass  # the directory's own


def _let_go_of_connections(kept):
    """Closes the checkpoint's copies of pipes and sockets: who is at the other end waits for the end of
    the file, and would for as long as a copy is open. The null device takes their numbers, so that what
    is opened later does not get them. Gives what they were, for people."""
    null = open_fd("/dev/null", O_RDWR | O_CLOEXEC)
    found = []
    for number, path in _others_open({null, *kept}):
        kind = path.partition(":")[0]
        if kind in ("socket", "pipe"):
            dup2(null, number, inheritable=False)
            found.append(f"{kind} on descriptor {number}")
    close(null)
    return found


def _are_all(numbers):
    """Whether these descriptors are open and no others are; False where it would take a look at each."""
    # Their number since Linux 6.2, 0 before.
    if stat("/proc/self/fd").st_size != len(numbers):
        return False
    try:
        for number in numbers:
            fstat(number)
    except OSError:
        return False
    return True


def _may_clone():
    return quiesce.TID_ADDRESS is not None and quiesce.count() == 1


def _set_oom_score_adj(value):
    try:
        file = open_fd("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)
        try:
            write(file, value)
        finally:
            close(file)
    except OSError:
        pass  # no descriptor is free: it may then die first, and that is told


def _private_bytes():
    """Memory that no file backs: resident less shared, of /proc/self/statm (proc_pid_statm(5))."""
    file = open_fd("/proc/self/statm", O_RDONLY | O_CLOEXEC)
    try:
        _, resident, shared, *_ = read(file, 128).split()
    finally:
        close(file)
    return (int(resident) - int(shared)) * _PAGE_BYTES
