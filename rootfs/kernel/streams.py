"""`sys.stdout` and `sys.stderr` over descriptors 1 and 2, and their repair between executions."""

import ctypes
import io
import os
import sys

from _sandcell import stdin
from _sandcell.channel import are_read

_libc = ctypes.CDLL(None)
_fflush = _libc.fflush
_fflush.argtypes = [ctypes.c_void_p]
_setvbuf = _libc.setvbuf
_setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_c_stdout = ctypes.c_void_p.in_dll(_libc, "stdout").value
_IOLBF = 1

_TURN_SECONDS = 0.05


class Turns:
    """Keeps what Python writes and shows in the order in which it does. The two streams are pipes, and what
    is shown goes through a socket: what is in one must be read before something comes into another. It may
    not be, while nobody executes or a client is slow; then order is not waited for until it has been."""

    def __init__(self, pipes):
        self.pipes = pipes
        self.last = None
        # Where something was shown last.
        self.socket = None
        self.hopeless = False

    def write(self, fd):
        """Called before something is written to a stream."""
        last, self.last = self.last, fd
        if last == fd:
            return
        if last in self.pipes:
            self.wait([], [self.pipes[last]])
        elif self.socket is not None:
            self.wait([self.socket], [])

    def show(self, socket):
        """Called before something is shown. Whoever else wrote to the pipes, programs say, wrote before."""
        self.last, self.socket = None, socket
        self.wait([], self.pipes.values())

    def wait(self, sockets, pipes):
        self.hopeless = not are_read(sockets, pipes, 0 if self.hopeless else _TURN_SECONDS)


class _Eager(io.BufferedWriter):
    """Writes through. A bare FileIO would too, but drops the rest of a write cut short by a signal."""

    def __init__(self, raw, turns):
        super().__init__(raw)
        self.turns = turns

    def write(self, data):
        self.turns.write(self.raw.fileno())
        count = super().write(data)
        self.flush()
        return count

    def renew(self):
        """In a copy of the kernel: another thread may have held the lock, which is made anew."""
        super().__init__(self.raw)


def _open(fd, name, turns):
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    # Lone surrogates (file names, cut-off text) must not turn a print into an error.
    text = io.TextIOWrapper(_Eager(raw, turns), encoding="utf-8", errors="backslashreplace",
                            newline="\n", write_through=True)
    text.mode = "w"
    return text


class Streams:
    def __init__(self):
        self.texts = {}
        self.copies = {}
        self.turns = Turns(self.copies)
        # C code that prints is in order with Python at every line. By default it would be only when
        # the process ends, stdout being a pipe.
        _setvbuf(_c_stdout, None, _IOLBF, 0)
        self.open()

    def open(self):
        for fd, name in ((1, "stdout"), (2, "stderr")):
            text = self.texts.get(name)
            if text is None or text.closed:
                text = self.texts[name] = _open(fd, f"<{name}>", self.turns)
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)

    def reconnect(self):
        for fd, copy in self.copies.items():
            os.dup2(copy, fd)
            os.set_blocking(fd, True)  # asyncio's pipes are not, and copies share it

    def renew(self):
        """In a copy of the kernel that has become one."""
        for text in self.texts.values():
            try:
                text.buffer.renew()
            except ValueError:
                pass  # user code has taken it apart

    def restore(self, text_of_stdin):
        """Undoes what the last execution did to the streams and their descriptors."""
        self.reconnect()
        self.turns.last = self.turns.socket = None
        self.open()
        stdin.restore(text_of_stdin)

    def flush(self):
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:
                pass  # replaced or closed by user code
        # Not fflush(NULL): it would wait for a stream that another thread blocks in.
        _fflush(_c_stdout)
