"""The kernel's socket: frames of a 32-bit big-endian length and that many bytes of JSON."""

import codecs
import json
from _json import encode_basestring, make_encoder
from _socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, SOCK_STREAM, socket
from _struct import calcsize, unpack
from _thread import allocate_lock
from array import array
from fcntl import ioctl
from posix import getpid, read, write
from select import POLLIN, poll
from termios import FIONREAD, TIOCOUTQ
from time import monotonic, sleep

MAX_FRAME_BYTES = 32 * 1024 * 1024
_READ_BYTES = 1 << 16
# A branch needs three: its socket and its two pipes.
_ANCILLARY_BYTES = CMSG_SPACE(3 * calcsize("i"))

_PAUSE_SECONDS = 0.00005


def _escape_surrogates(error):
    # A lone surrogate has no UTF-8 and, as \udXXX in JSON, no meaning for strict parsers. It
    # arrives as the text that backslashreplace gives on stdout, its backslash escaped for JSON.
    text = "".join(f"\\\\u{ord(char):04x}" for char in error.object[error.start:error.end])
    return text, error.end


codecs.register_error("sandcell", _escape_surrogates)
_decode = json.JSONDecoder().raw_decode


def _refuse(value):
    raise TypeError(f"{type(value).__name__} is not JSON")


# What json.JSONEncoder makes for each call, whose methods user code may replace: no indentation, `:` and `,`
# between, keys as they come, none left out, no NaN. Cycles end in RecursionError.
_chunks = make_encoder(None, _refuse, encode_basestring, None, ":", ",", False, False, False)


def encode(message):
    """JSON of a message: valid UTF-8 whatever its strings hold, ValueError for NaN and the like."""
    return "".join(_chunks(message, 0)).encode("utf-8", "sandcell")


def _framed(payload):
    return len(payload).to_bytes(4, "big") + payload


def are_read(sockets, pipes, seconds):
    """Waits until the supervisor has read what was sent there. It may not while its client is slow, or
    others print without end: then False, after so many seconds."""
    queues = [(fd, TIOCOUTQ) for fd in sockets] + [(fd, FIONREAD) for fd in pipes]
    deadline = monotonic() + seconds
    while any(_unread(*queue) for queue in queues):
        if monotonic() > deadline:
            return False
        sleep(_PAUSE_SECONDS)
    return True


def _unread(fd, request):
    """Bytes that the other end has not read: SIOCOUTQ of a socket (unix(7)), FIONREAD of a pipe."""
    try:
        return unpack("i", ioctl(fd, request, bytes(4)))[0]
    except OSError:
        return 0  # closed by user code


class Channel:
    """Reads on the main thread only; writes from any thread of the process that made it."""

    def __init__(self, fd):
        self.fd = fd
        # Family and type are given, so that nothing is asked of the descriptor.
        self.socket = socket(AF_UNIX, SOCK_STREAM, 0, fd)
        self.pid = getpid()
        self.lock = allocate_lock()
        self.received = bytearray()
        # Frames that go with the next one: each that goes alone wakes the supervisor up.
        self.held = b""
        # Came with the message that was received last.
        self.descriptors = []
        self.readable = poll()
        self.readable.register(fd, POLLIN)

    def receive(self):
        """The next message, None at end of file."""
        while True:
            if len(self.received) >= 4:
                end = 4 + int.from_bytes(self.received[:4], "big")
                if len(self.received) >= end:
                    message, _ = _decode(self.received[4:end].decode())
                    del self.received[:end]
                    return message
            self.wait()
            data, ancillary, _, _ = self.socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES,
                                                        MSG_CMSG_CLOEXEC)
            if not data:
                return None
            self.received += data
            for _, _, payload in ancillary:
                self.descriptors += array("i", payload)

    def wait(self):
        # A signal that another thread took while the kernel was idle runs its handler when this
        # returns. If that raises, it must not be on the way out of read(), with a frame in hand.
        while True:
            try:
                self.readable.poll()
                return
            except BaseException:
                continue

    def is_silent(self, milliseconds):
        """Whether nothing comes for so long."""
        return not self.received and not self.readable.poll(milliseconds)

    def is_waiting(self):
        """Whether a request has come that was not read."""
        return not self.is_silent(0)

    def take_descriptors(self):
        taken, self.descriptors = self.descriptors, []
        return taken

    def take_over(self):
        """In a fork that has become a kernel: what was meant for the other one goes."""
        self.pid = getpid()
        self.lock = allocate_lock()
        self.held = b""
        self.received.clear()
        while self.readable.poll(0) and read(self.fd, _READ_BYTES):
            pass

    def owned(self):
        """False in a child that user code forked: the socket is not its to speak on."""
        return getpid() == self.pid

    def hold(self, payload):
        """Keeps a frame until the next is written, which is about to be. For callers of `write`."""
        self.held += _framed(payload)

    def write(self, payload):
        """Writes a frame that `encode` made. The caller holds the lock and has signals held back."""
        left = memoryview(self.held + _framed(payload))
        self.held = b""
        while left:
            left = left[write(self.fd, left):]
