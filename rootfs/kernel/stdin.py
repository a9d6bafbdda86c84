"""Standard input of an execution: descriptor 0, and what Python reads from it.

Text that comes with an execution is a sealed memory file on descriptor 0, so that Python, C code and
programs that the code starts all read it, and one continues where another stopped. A file and not a
pipe: nobody has to feed it, however long it is; a program that took more than it needed (`head -1`) can
put the position back, which POSIX asks of utilities; and whoever opens /dev/stdin gets all of it, as
with `python3 script.py <input.txt`. Where nothing was given, descriptor 0 is `/dev/null`, and nobody
waits for a person.
"""

import ctypes
import sys
from _io import FileIO, BytesIO, TextIOWrapper
from _io import open as open_file
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from posix import (MFD_ALLOW_SEALING, MFD_CLOEXEC, O_RDONLY, close, dup2, fstat, lseek, makedev,
                   memfd_create, set_inheritable, write)
from posix import open as open_descriptor

_FD = 0
_NULL = "/dev/null"
_NULL_DEVICE = makedev(1, 3)
_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE

_libc = ctypes.CDLL(None)
# Neither takes the stream's lock, which a thread that reads may hold for ever.
_purge = _libc.__fpurge
_clear_error = _libc.clearerr_unlocked
for _function in (_purge, _clear_error):
    _function.argtypes = [ctypes.c_void_p]
    _function.restype = None
_c_stdin = ctypes.c_void_p.in_dll(_libc, "stdin").value


class _State:
    def __init__(self):
        # The file object that `sys.stdin` is at the beginning of an execution.
        self.text = None
        # Whether text came with the execution that runs now, or ran last.
        self.given = False


_state = _State()


def restore(text):
    """Puts descriptor 0 and `sys.stdin` right for an execution."""
    # Nothing is written where nothing was given: a kernel's pages are those of all kernels until then.
    if text or _state.given or not _is_null() or not _is_plain(_state.text):
        _state.given = bool(text)
        _renew((text or "").encode("utf-8", "surrogatepass"))
    sys.stdin = sys.__stdin__ = _state.text


def _renew(data):
    try:
        if data:
            _put(lambda: memory_file("stdin", data))
        elif not _is_null():
            _put(_open_null)
        if not _begin_again(_state.text):
            _state.text = _open()
    except Exception as error:
        # User code has used up the memory, say, or an audit hook of it raises.
        _state.text = TextIOWrapper(BytesIO(data), encoding="utf-8")
        if data:
            print(f"sys.stdin has the input, but descriptor 0 may not: {error}", file=sys.stderr)
    # What C code has read ahead, and that it has seen the end.
    _purge(_c_stdin)
    _clear_error(_c_stdin)


def _begin_again(text):
    """Has the file object of an earlier execution read the new input: code may have kept methods of it, as in
    `input = sys.stdin.readline`. False where there is none."""
    if not _is_plain(text) or type(getattr(text.buffer, "raw", None)) is not FileIO:
        return False
    try:
        text.seek(0, 2)  # a seek to the beginning alone keeps what was read ahead
        text.seek(0)
    except (OSError, ValueError):
        return False
    return True


def is_given():
    return _state.given


def rest():
    """What of the given text is still to be read from descriptor 0; reads it."""
    with open_file(_FD, "rb", closefd=False) as file:
        return file.read()


def memory_file(name, data):
    """A descriptor of a file in memory that cannot be changed any more."""
    file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)
    try:
        left = memoryview(data)
        while left:
            left = left[write(file, left):]
        fcntl(file, F_ADD_SEALS, _SEALS)
        lseek(file, 0, 0)
    except BaseException:
        close(file)
        raise
    return file


def _put(make):
    """Makes a descriptor number 0."""
    try:
        file = make()
    except OSError:
        # User code may have taken every number; the lowest free one is given first.
        close(_FD)
        file = make()
    if file == _FD:
        set_inheritable(file, True)
    else:
        dup2(file, _FD)
        close(file)


def _open_null():
    return open_descriptor(_NULL, O_RDONLY)


def _is_null():
    try:
        return fstat(_FD).st_rdev == _NULL_DEVICE
    except OSError:
        return False


def _is_plain(text):
    """Whether user code has not closed it, nor given it another encoding."""
    try:
        return (text is not None and not text.closed and text.encoding == "utf-8"
                and text.errors == "strict")
    except ValueError:  # detached from its buffer
        return False


def _open():
    text = open_file(_FD, encoding="utf-8", closefd=False)
    text.buffer.raw.name = "<stdin>"
    return text


def ask(prompt="", *_, **__):
    """In the place of input()."""
    if sys.stdin is None:
        raise RuntimeError("input(): lost sys.stdin")
    print(prompt, end="", flush=True)
    # Whatever sys.stdin is: the code may have put lines of its own there.
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line" if _state.given else
                       "there is nobody to answer input(): put the value into the code, "
                       "or give the lines as `stdin` of the execution")
    return line.removesuffix("\n")


def ask_secret(prompt="Password: ", *_, **__):
    """In the place of getpass.getpass()."""
    return ask(prompt)
