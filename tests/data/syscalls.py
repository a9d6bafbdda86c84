"""Tries every system call number in three ABIs and says what the kernel answered.

Runs inside a sandbox. `python3 syscalls.py [golden.json]` prints one JSON object:

    {"native": {"0": "EBADF", ...}, "x32": {...}, "i386": {...}, "arguments": {...},
     "mismatches": [...]}

Each number is tried in a child of its own with -1 for every argument, which no call accepts to do
harm with: descriptors, pointers, flags and lengths are all invalid. An answer is an error's name,
"ok", the name of the signal that ended the child, "exited" or "blocked".

With a golden table, `mismatches` names every answer that differs from it, and the exit status is 1
if there is one.
"""

import ctypes
import errno
import json
import mmap
import os
import select
import signal
import sys

LAST_NUMBER = 600
X32_BIT = 0x40000000
BLOCKED_SECONDS = 1.0

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# These end, replace or suspend the caller by design, or return twice on one stack; what the filter
# says to clone is asked below, argument by argument.
NOT_TRIED = {
    "rt_sigreturn": 15,
    "clone": 56,
    "fork": 57,
    "vfork": 58,
}


def name_of(value):
    """The name of a system call's answer."""
    return "ok" if value != -1 else errno.errorcode[ctypes.get_errno()]


def native(number, *arguments):
    """Makes a system call in the native ABI; six arguments."""
    padded = [*arguments, *[-1] * (6 - len(arguments))]
    return name_of(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, padded)))


def i386(number):
    """Makes a system call through the gate of 32-bit programs, with -1 in every register."""
    code = (
        b"\x53"  # push rbx
        + b"\xb8" + number.to_bytes(4, "little")  # mov eax, number
        + b"\xbb\xff\xff\xff\xff"  # mov ebx, -1
        + b"\xb9\xff\xff\xff\xff"  # mov ecx, -1
        + b"\xba\xff\xff\xff\xff"  # mov edx, -1
        + b"\xbe\xff\xff\xff\xff"  # mov esi, -1
        + b"\xbf\xff\xff\xff\xff"  # mov edi, -1
        + b"\xcd\x80"  # int 0x80
        + b"\x5b"  # pop rbx
        + b"\xc3"  # ret
    )
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    value = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    return "ok" if value >= 0 else errno.errorcode.get(-value, str(value))


def in_child(attempt):
    """Runs `attempt` in a child and returns its answer, or how the child ended without one."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = attempt()
            os.write(writable, answer.encode())
        finally:
            os._exit(0)
    os.close(writable)
    ready, _, _ = select.select([readable], [], [], BLOCKED_SECONDS)
    answer = os.read(readable, 64).decode() if ready else "blocked"
    os.close(readable)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        return answer
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exited"


def clone(flags):
    """Clones with these flags; a child that this really makes ends at once."""
    caller = os.getpid()
    answer = native(56, flags | signal.SIGCHLD, 0, 0, 0, 0, 0)
    if os.getpid() != caller:
        os._exit(0)
    return answer


def argument_cases():
    """The calls whose arguments decide, by name."""
    cases = {f"socket family {family}": lambda f=family: native(41, f, 2, 0) for family in range(46)}
    cases |= {
        f"socketpair family {family}": lambda f=family: native(53, f, 1, 0) for family in range(46)
    }
    # High bits that the kernel ignores must not hide a forbidden value.
    high = 1 << 32
    cases |= {
        "socket family 16 with high bits": lambda: native(41, high | 16, 3, 0),
        "socket inet stream tcp": lambda: native(41, 2, 1, 6),
        "socket inet6 dgram udp nonblock cloexec": lambda: native(41, 10, 2 | 0o2004000, 17),
        "socket inet raw": lambda: native(41, 2, 3 | 0o2000000, 255),
        "socket inet icmp": lambda: native(41, 2, 2, 1),
        "socket inet seqpacket": lambda: native(41, 2, 5, 132),
        "socket inet stream sctp": lambda: native(41, 2, 1, 132),
        "socket inet stream mptcp": lambda: native(41, 2, 1, 262),
        "socket inet dccp": lambda: native(41, 2, 6, 33),
        "socket inet packet": lambda: native(41, 2, 10, 768),
        "socket unix seqpacket": lambda: native(41, 1, 5, 0),
        "clone": lambda: clone(0),
    }
    for name, flag in {
        "parent": 0x8000,
        "newns": 0x20000,
        "newcgroup": 0x2000000,
        "newuts": 0x4000000,
        "newipc": 0x8000000,
        "newuser": 0x10000000,
        "newpid": 0x20000000,
        "newnet": 0x40000000,
    }.items():
        cases[f"clone {name}"] = lambda f=flag: clone(f)
        cases[f"clone {name} with high bits"] = lambda f=flag: clone(high | f)
    for name, command in {"tiocsti": 0x5412, "tioclinux": 0x541C, "tiocsetd": 0x5423}.items():
        cases[f"ioctl {name}"] = lambda c=command: native(16, -1, c, 0)
        cases[f"ioctl {name} with high bits"] = lambda c=command: native(16, -1, high | c, 0)
    for name, value in {"default": 0, "query": 0xFFFFFFFF, "no randomize": 0x40000}.items():
        cases[f"personality {name}"] = lambda v=value: native(135, v)
    cases["personality no randomize with high bits"] = lambda: native(135, high | 0x40000)
    for name, option in {"seccomp": 22, "mm": 35, "sched core": 62}.items():
        cases[f"prctl {name}"] = lambda o=option: native(157, o)
        cases[f"prctl {name} with high bits"] = lambda o=option: native(157, high | o)
    for name, level, option in [
        ("attach filter", 1, 26),
        ("attach bpf", 1, 50),
        ("attach reuseport cbpf", 1, 51),
        ("attach reuseport ebpf", 1, 52),
        ("tcp ulp", 6, 31),
        ("reuseaddr", 1, 2),
    ]:
        cases[f"setsockopt {name}"] = lambda l=level, o=option: native(54, -1, l, o, 0, 0)
    for name, kind in {"character": 0o020600, "block": 0o060600, "fifo": 0o010600}.items():
        cases[f"mknod {name}"] = lambda k=kind: native(133, 0, k, 0)
        cases[f"mknodat {name}"] = lambda k=kind: native(259, -1, 0, k, 0)
    return cases


def mismatches(answers, golden):
    """What differs from the golden table; an allowed call may answer anything of its own."""
    found = []
    denied = {
        str(number): answer
        for answer, numbers in golden["native"]["denied"].items()
        for number in numbers
    }
    optional = {str(number) for number in golden["native"]["may_be_missing"]}
    for number, answer in answers["native"].items():
        expected = denied.get(number)
        if expected and answer != expected:
            found.append(f"native {number}: {answer}, expected {expected}")
        lost = answer == "SIGSYS" or (answer == "ENOSYS" and number not in optional)
        if not expected and lost:
            found.append(f"native {number}: {answer}, expected to be allowed")
    for abi in ("x32", "i386"):
        found += [
            f"{abi} {number}: {answer}, expected {golden[abi]}"
            for number, answer in answers[abi].items()
            if answer != golden[abi]
        ]
    if answers["arguments"].keys() != golden["arguments"].keys():
        found.append("arguments: other cases than in the golden table")
    found += [
        f"{case}: {answer}, expected {golden['arguments'].get(case)}"
        for case, answer in answers["arguments"].items()
        if answer != golden["arguments"].get(case)
    ]
    return found


def main():
    """Tries everything and prints the answers."""
    # Core files of the children that SIGSYS ends would only take time.
    libc.prctl(4, 0, 0, 0, 0)
    numbers = range(LAST_NUMBER + 1)
    answers = {
        "native": {
            str(n): in_child(lambda: native(n)) for n in numbers if n not in NOT_TRIED.values()
        },
        "x32": {str(n): in_child(lambda: native(n | X32_BIT)) for n in numbers},
        "i386": {str(n): in_child(lambda: i386(n)) for n in numbers},
        "arguments": {case: in_child(attempt) for case, attempt in argument_cases().items()},
    }
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as table:
            answers["mismatches"] = mismatches(answers, json.load(table))
    json.dump(answers, sys.stdout)
    print()
    sys.exit(1 if answers.get("mismatches") else 0)


if __name__ == "__main__":
    main()
