"""What a forked child does before it may run user code: join the sandbox and give up everything.

`STEPS` is the order, and the order is the point: cgroups before memory is used, namespaces while
the capabilities that they ask for are there, identity before the filters, the filters last. No step
is optional; the first that fails is reported and ends the process.

Nothing here is looked up for the first time in the child: modules, C functions and structures are
bound when the zygote starts.
"""

import base64
import ctypes
import fcntl
import json
import os
import resource

HOME = "/home/user"
USER_ID = 1000

# The control socket and the copies of the output pipes live this high, where user code that closes
# "all" descriptors (0 to 255 as a rule) does not meet them, and low enough for a table of 1024.
HIGH_FD = 1000

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x20080522

# NOROOT, KEEP_CAPS off and NO_CAP_AMBIENT_RAISE, each with its lock: uid 0 means nothing to this
# process or its children, whatever they execute.
SECUREBITS = 0b11100011

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_capset = _libc.capset
_capget = _libc.capget

with open("/proc/sys/kernel/cap_last_cap") as _file:
    LAST_CAPABILITY = int(_file.read())

NAMESPACES = (os.CLONE_NEWUSER | os.CLONE_NEWNS | os.CLONE_NEWUTS | os.CLONE_NEWIPC
              | os.CLONE_NEWNET | os.CLONE_NEWCGROUP)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilitySets(ctypes.Structure):
    _fields_ = [("sets", ctypes.c_uint32 * 6)]


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


class Filter:
    """A classic BPF program, ready to be installed."""

    def __init__(self, text):
        code = base64.b64decode(text, validate=True)
        if not code or len(code) % 8:
            raise ValueError("a filter is not a sequence of 8-byte instructions")
        self.buffer = ctypes.create_string_buffer(code, len(code))
        self.program = _FilterProgram(len(code) // 8, ctypes.addressof(self.buffer))


class Plan:
    """One child: what it was given and where that went."""

    def __init__(self, fds, request, filters):
        self.init, self.control, self.stdout, self.stderr, *self.cgroups = fds
        self.rlimits = request["rlimits"]
        self.oom_score_adj = request["oom_score_adj"]
        self.gpu = request["gpu"]
        self.filters = filters


def enter(plan):
    for step in STEPS:
        try:
            step(plan)
        except BaseException as error:
            _report(plan.control, step.__name__, error)
            os._exit(70)


def join_cgroups(plan):
    for procs in plan.cgroups:
        os.write(procs, b"0")


def raise_oom_score(plan):
    # While the zygote's /proc is in reach and the process may still write there.
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"%d" % plan.oom_score_adj)
    os.close(fd)


def await_sandbox(plan):
    # The fork is as much work as init's set-up, so the supervisor asks for both at once. A byte says
    # that the namespaces are as they should be; end of file, that there is no sandbox to join.
    if os.read(plan.control, 1) != b"g":
        raise ConnectionError("the sandbox was given up")


def join_namespaces(plan):
    # One call joins all of them or none; the user namespace comes first within it and brings the
    # capabilities that the others ask for (setns(2), pidfd since Linux 5.8).
    os.setns(plan.init, NAMESPACES)


def start_session(plan):
    os.setsid()


def place_descriptors(plan):
    limit = plan.rlimits.get("RLIMIT_NOFILE", HIGH_FD + 3)
    base = max(3, min(HIGH_FD, limit - 3, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 3))
    received = (plan.control, plan.stdout, plan.stderr)
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base) for fd in received]
    if copies != [base, base + 1, base + 2]:
        raise OSError(f"descriptors {copies} where {base} and up should be free")
    plan.control, plan.stdout, plan.stderr = copies
    os.dup2(plan.stdout, 1)
    os.dup2(plan.stderr, 2)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.set_blocking(plan.control, True)


def close_descriptors(plan):
    os.closerange(3, plan.control)
    os.closerange(plan.stderr + 1, 2**31 - 1)


def limit_resources(plan):
    for name, value in plan.rlimits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def drop_groups(plan):
    os.setgroups([])


def drop_bounding_set(plan):
    for capability in range(LAST_CAPABILITY + 1):
        _check(_prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))


def clear_ambient_set(plan):
    _check(_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))


def lock_securebits(plan):
    _check(_prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0))


def drop_identity(plan):
    os.setresgid(USER_ID, USER_ID, USER_ID)
    os.setresuid(USER_ID, USER_ID, USER_ID)
    # The change of ids has seen to it where fs.suid_dumpable is not 1; the service refuses 1.
    _check(_prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


def drop_capabilities(plan):
    # setresuid emptied the permitted and effective sets; the inheritable one it leaves alone.
    _check(_capset(ctypes.byref(_header), ctypes.byref(_no_capabilities)))


def verify_identity(plan):
    found = _CapabilitySets()
    _check(_capget(ctypes.byref(_header), ctypes.byref(found)))
    if any(found.sets):
        raise PermissionError(f"capabilities left: {list(found.sets)}")
    ids = os.getresuid() + os.getresgid()
    if ids != (USER_ID,) * 6 or os.getgroups():
        raise PermissionError(f"identity is {ids}, groups {os.getgroups()}")
    if _prctl(PR_GET_SECUREBITS, 0, 0, 0, 0) != SECUREBITS:
        raise PermissionError("securebits are not as they were set")


def forbid_new_privileges(plan):
    _check(_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if _prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        raise PermissionError("no_new_privs is not set")


def allow_own_proc(plan):
    # A change of ids makes a process non-dumpable, and its /proc/self root's.
    _check(_prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))


def enter_home(plan):
    try:
        os.chdir(HOME)
    except OSError:
        os.chdir("/")  # user code has closed it, and may want to open it again


def install_filters(plan):
    for program in plan.filters:
        address = ctypes.addressof(program.program)
        _check(_prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address, 0, 0))


STEPS = (
    join_cgroups,
    raise_oom_score,
    await_sandbox,
    join_namespaces,
    start_session,
    place_descriptors,
    close_descriptors,
    limit_resources,
    drop_groups,
    drop_bounding_set,
    clear_ambient_set,
    lock_securebits,
    drop_identity,
    drop_capabilities,
    verify_identity,
    forbid_new_privileges,
    enter_home,
    install_filters,
    # Not a moment earlier: a process of the same user may write to the memory of a dumpable one, and
    # one that is not sealed yet would do its bidding without filters.
    allow_own_proc,
)


def leave_out(names):
    """For tests that see what each step is there for; the list is empty otherwise."""
    global STEPS
    STEPS = tuple(step for step in STEPS if step.__name__ not in names)


_header = _CapabilityHeader(CAPABILITY_VERSION_3, 0)
_no_capabilities = _CapabilitySets()


def _check(result):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _report(control, step, error):
    text = f"{type(error).__name__}: {error}"
    frame = json.dumps({"type": "failed", "step": step, "error": text}).encode()
    try:
        os.write(control, len(frame).to_bytes(4, "big") + frame)
    except OSError:
        pass
