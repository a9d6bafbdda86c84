"""`sys.stdout` and `sys.stderr` over descriptors 1 and 2, and their repair between executions."""

import ctypes
import io
import os
import sys
import termios
import time

from _sandcell import stdin
from _sandcell.channel import unread

_libc = ctypes.CDLL(None)
_fflush = _libc.fflush
_fflush.argtypes = [ctypes.c_void_p]
_setvbuf = _libc.setvbuf
_setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_c_stdout = ctypes.c_void_p.in_dll(_libc, "stdout").value
_IOLBF = 1

_TURN_SECONDS = 0.05
_TURN_PAUSE_SECONDS = 0.00005


class _Turns:
    """Keeps what Python writes to the two streams in the order in which it does. They are two pipes: what
    is in one must be read before something is written to the other. It may not be, while nobody executes
    or a client is slow; then order is not waited for until the pipe has been read."""

    def __init__(self, pipes):
        self.pipes = pipes
        self.last = None
        self.hopeless = False

    def take(self, fd):
        last, self.last = self.last, fd
        if last == fd or last not in self.pipes:
            return
        deadline = time.monotonic() + _TURN_SECONDS
        while _unread(self.pipes[last]):
            if self.hopeless or time.monotonic() > deadline:
                self.hopeless = True
                return
            time.sleep(_TURN_PAUSE_SECONDS)
        self.hopeless = False


def _unread(pipe):
    try:
        return unread(pipe, termios.FIONREAD)
    except OSError:
        return 0  # closed by user code


class _Eager(io.BufferedWriter):
    """Writes through. A bare FileIO would too, but drops the rest of a write cut short by a signal."""

    def __init__(self, raw, turns):
        super().__init__(raw)
        self.turns = turns

    def write(self, data):
        self.turns.take(self.raw.fileno())
        count = super().write(data)
        self.flush()
        return count


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
        self.turns = _Turns(self.copies)
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

    def restore(self, text_of_stdin):
        """Undoes what the last execution did to the streams and their descriptors."""
        self.reconnect()
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
