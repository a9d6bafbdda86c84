"""What must differ between kernels forked from one zygote, and between kernel and zygote."""

import ctypes
import os
import random
import sys

# numpy's global generator: 624 words of state and the number of those that are used up.
_MT19937_WORDS = 624

_numpy_state = None


def bind():
    """In the zygote, once everything is imported: finds the functions that the child will call."""
    if ssl := sys.modules.get("ssl"):
        # Sets OpenSSL's generators up here, which costs a child a millisecond. OpenSSL would reseed
        # after a fork by itself, if the process id changed; the zygote's and a kernel's, each in a
        # namespace of its own, may well be the same.
        ssl.RAND_bytes(1)
    if numpy_random := sys.modules.get("numpy.random"):
        global _numpy_state
        numpy_random.seed()  # also forgets a normal deviate kept for the next call
        generator = numpy_random.mtrand._rand._bit_generator
        if generator.state["bit_generator"] != "MT19937":
            raise RuntimeError("numpy's global generator is not the one that can be reseeded")
        _numpy_state = generator.ctypes.state_address


def all_generators():
    """Two kernels of one zygote must not draw the same numbers, keys or names."""
    random.seed()
    if _numpy_state is not None:
        # numpy.random.seed() would take 80 pages of numpy to do this.
        size = _MT19937_WORDS * 4
        ctypes.memmove(_numpy_state, os.urandom(size), size)
        ctypes.c_int.from_address(_numpy_state + size).value = _MT19937_WORDS
    if ssl := sys.modules.get("ssl"):
        ssl.RAND_add(os.urandom(32), 32.0)
    if processes := sys.modules.get("multiprocessing.process"):
        processes.current_process().authkey = os.urandom(32)
    if uuid := sys.modules.get("uuid"):
        uuid._node = uuid._last_timestamp = None
    if tempfile := sys.modules.get("tempfile"):
        # Also forgets the directory that the zygote found: the sandbox has its own.
        tempfile._name_sequence = tempfile.tempdir = None
