"""`sys.stdout` and `sys.stderr` over descriptors 1 and 2, and their repair between executions."""

import ctypes
import io
import os
import select
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
        # Whether somebody looks on, and so sees in which order things come.
        self.watched = False
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


def _careful_write(raw, turns):
    """`write` of a FileIO, as a function that keeps turns and writes all: a signal, or a descriptor that
    another process has made non-blocking, cuts a write short."""
    write = io.FileIO.write.__get__(raw)
    fd = raw.fileno()

    def write_all(data):
        if turns.watched:
            turns.write(fd)
        count = write(data)
        size = len(data) if type(data) is bytes else memoryview(data).nbytes
        if count != size:
            left = memoryview(data).cast("B")[count or 0:]
            while left:
                if count is None:
                    select.select([], [fd], [])
                count = write(left)
                left = left[count or 0:]
        return size

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


class Streams:
    def __init__(self):
        self.texts = {}
        self.raws = {}
        self.copies = {}
        # Whether signals have handlers of user code, which cut writes short.
        self.signalled = False
        self.turns = Turns(self.copies)
        # C code that prints is in order with Python at every line. By default it would be only when
        # the process ends, stdout being a pipe.
        _setvbuf(_c_stdout, None, _IOLBF, 0)
        self.open()

    def open(self):
        for fd, name in ((1, "stdout"), (2, "stderr")):
            text = self.texts.get(name)
            if text is None or text.closed:
                self.raws[name], text = _open(fd, f"<{name}>")
                self.texts[name] = text
                self.choose_write(self.raws[name])
            setattr(sys, name, text)
            setattr(sys, f"__{name}__", text)

    def watch(self, watched):
        """Begins an execution that somebody looks on at, or nobody does."""
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
