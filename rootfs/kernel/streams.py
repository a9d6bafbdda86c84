"""`sys.stdout` and `sys.stderr` over descriptors 1 and 2, and their repair between executions."""

import ctypes
import io
import os
import select
import sys

from _sandcell import stdin

_libc = ctypes.CDLL(None)
_fflush = _libc.fflush
_fflush.argtypes = [ctypes.c_void_p]
_setvbuf = _libc.setvbuf
_setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_c_stdout = ctypes.c_void_p.in_dll(_libc, "stdout").value
_IOLBF = 1


# Written at once or not at all (PIPE_BUF, pipe(7)).
_ATOMIC_BYTES = 4096


class Turns:
    """Tells in which order Python writes and shows things, where somebody looks on. The two streams are
    pipes, and what is shown goes through a socket: before what is written to another stream than the last
    time, or after something was shown, goes a mark, which the supervisor takes out (`src/kernel/order.rs`)."""

    def __init__(self):
        self.watched = False
        self.prefix = b""
        self.pid = None
        self.pipes = {}
        self.last = None
        self.number = 0
        # Frames that were shown.
        self.frames = 0

    def begin(self, number, pipes):
        """An execution, whose number nobody can guess."""
        self.prefix = b"\0%016x" % number
        self.pid = os.getpid()
        self.pipes = {fd: _identity(copy) for fd, copy in pipes.items()}
        self.last = None
        self.number = self.frames = 0

    def mark(self, fd):
        """What is to be written to a stream first; it was another's turn."""
        self.last = fd
        # User code may have put a file there, or be in a child of its own.
        if os.getpid() != self.pid or self.pipes.get(fd) != _identity(fd):
            return b""
        self.number += 1
        return self.prefix + self.number.to_bytes(4, "big") + self.frames.to_bytes(4, "big")

    def show(self):
        """Called before something is shown."""
        self.frames += 1
        self.last = None


def _identity(fd):
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _careful_write(raw, turns):
    """`write` of a FileIO, as a function that keeps turns and writes all: a signal, or a descriptor that
    another process has made non-blocking, cuts a write short."""
    write = io.FileIO.write.__get__(raw)
    fd = raw.fileno()

    def write_all(data):
        size = len(data) if type(data) is bytes else memoryview(data).nbytes
        if turns.watched and turns.last != fd and (mark := turns.mark(fd)):
            if len(mark) + size <= _ATOMIC_BYTES:
                data = mark + data
            else:
                write_rest(mark, write(mark))
        count = write(data)
        if count != len(data):
            write_rest(data, count)
        return size

    def write_rest(data, count):
        left = memoryview(data).cast("B")[count or 0:]
        while left:
            if count is None:
                select.select([], [fd], [])
            count = write(left)
            left = left[count or 0:]

    return write_all


def _open(fd, name):
    # As with `python -u`: nothing is left in a buffer, and a print takes no code of ours.
    raw = io.FileIO(fd, "w", closefd=False)
    raw.name = name
    # Lone surrogates (file names, cut-off text) must not turn a print into an error.
    text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n",
                            write_through=True)
    text.mode = "w"
    return raw, text


def _is_closed(text):
    try:
        return text.closed
    except ValueError:
        return True  # detached: user code has its buffer


class Streams:
    def __init__(self):
        self.texts = {}
        self.raws = {}
        self.copies = {}
        # Whether signals have handlers of user code, which cut writes short.
        self.signalled = False
        self.turns = Turns()
        # C code that prints is in order with Python at every line. By default it would be only when
        # the process ends, stdout being a pipe.
        _setvbuf(_c_stdout, None, _IOLBF, 0)
        self.open()

    def open(self):
        for fd, name in ((1, "stdout"), (2, "stderr")):
            text = self.texts.get(name)
            if text is None or _is_closed(text):
                self.raws[name], text = _open(fd, f"<{name}>")
                self.texts[name] = text
                self.choose_write(self.raws[name])
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)

    def watch(self, watched, number=0):
        """Begins an execution that somebody looks on at, or nobody does, or ends one."""
        if watched:
            self.turns.begin(number, self.copies)
        if watched != self.turns.watched:
            self.turns.watched = watched
            self.choose_writes()

    def note_signals(self):
        """Called when user code handles a signal."""
        if not self.signalled:
            self.signalled = True
            self.choose_writes()

    def choose_writes(self):
        for raw in self.raws.values():
            self.choose_write(raw)

    def choose_write(self, raw):
        if raw.closed:
            return  # by user code; open() makes another
        # Found before the method of its class.
        if self.turns.watched or self.signalled:
            raw.write = _careful_write(raw, self.turns)
        else:
            raw.__dict__.pop("write", None)

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
            except BaseException:
                pass  # replaced or closed by user code
        # Not fflush(NULL): it would wait for a stream that another thread blocks in.
        _fflush(_c_stdout)
