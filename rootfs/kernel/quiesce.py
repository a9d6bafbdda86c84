"""What runs in the kernel beside its main thread, and how it is brought to rest before the kernel is copied.

fork(2) copies the calling thread and no other, but all memory: a lock that another thread holds stays locked
in the copy for ever, and a library that counts on its worker threads waits for them. So before each fork with
more than one thread

1. workers that their libraries start again by themselves are ended: OpenMP's, OpenBLAS's, and the loop
   thread of IPython's `%%bash`;
2. what is left must be sound: threads that Python knows must wait (for the interpreter's lock, a file, a
   timer), and hold no lock that the kernel can see; threads of libraries must belong to a library that
   prepares itself for a fork (`_PREPARED`), by pthread_atfork(3);
3. what is not sound is waited for, `SECONDS` in all, and then named: there is no copy.

None of it runs where the kernel has one thread. Measured with one idle thread of `threading`: 0.4 to 0.5 ms a fork,
and up to 120 ms more for a million objects of the heap, as to look at an object writes to it. Ending OpenBLAS's
threads takes 0.8 ms, and `%%bash`'s loop 1.3 ms.
"""

import _thread
import ctypes
import functools
import gc
import io
import os
import platform
import re
import struct
import sys
import threading
from collections import Counter
from itertools import compress
from posix import O_CLOEXEC, O_RDONLY, getpid, listdir, open as open_fd, close, pread, read, stat
from sys import modules
from time import monotonic, sleep

from _sandcell import mappings

# Longest that a fork waits for other threads, in seconds.
SECONDS = 0.05
_PAUSE_SECONDS = 0.001
# `omp_pause_soft` of the OpenMP specification 5.0, section 3.2.44: settings are kept.
_OMP_PAUSE_SOFT = 1

# Libraries whose threads may run while the kernel is forked by libc: they register handlers that make their
# pools anew in the child, as read in their sources (Arrow 20: cpp/src/arrow/util/atfork_internal.cc;
# LLVM 19: openmp/runtime/src/z_Linux_util.cpp); numexpr 2 starts its threads anew under another process id
# (numexpr/interpreter.cpp).
# OpenBLAS ends its threads in one, too, where it hides the function that does.
_PREPARED = re.compile(r"(^|/)(libarrow|libomp|libiomp5|lib[^/]*openblas|numexpr/)")
# Ended before the fork. Where one is left then, it is of another thread's pool.
_OPENMP = re.compile(r"/libgomp[^/]*$")
_OPENBLAS = re.compile(r"/lib[^/]*openblas[^/]*$")
# Whose code every stack and every thread's own variables name.
_OF_ALL = re.compile(r"/(libc|libpthread|ld-linux[^/]*|libstdc\+\+|libgcc_s|libm)[.-][^/]*$|/python3[.\d]*$|^\[")

_OPENBLAS_END = "blas_thread_shutdown_"
_SHT_SYMTAB = 2
_SYMBOL_BYTES = 24

_STACK_BYTES = 65536
_WORD_BYTES = 8

_LOCK = type(_thread.allocate_lock())
_RLOCK = _thread.RLock
_BUFFERED = (io.BufferedWriter, io.BufferedReader, io.BufferedRandom)
_CONDITION = threading.Condition
_is_locked = _LOCK.locked
_get_ident = _thread.get_ident

_PR_GET_TID_ADDRESS = 40


def _find_tid_address():
    address = ctypes.c_void_p()
    prctl = ctypes.CDLL(None).prctl
    if platform.machine() != "x86_64" or prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        return None
    return address.value


# Where libc keeps the main thread's id, which a fork must set; None where it cannot be told.
TID_ADDRESS = _find_tid_address()

# Locks that were there before user code ran; the collector does not list them any more.
_base = []
# Modules of libraries that know by their process id that they have been forked and end the process then, or
# whose state cannot be made anew: what says that they are in use, and their name.
_REFUSED = {
    # OpenMP's layer calls abort() in a fork (numba/np/ufunc/omppool.cpp), with or without threads.
    "numba.np.ufunc.parallel": (lambda module: module._is_initialized, "numba, whose parallel threads have been used,"),
    # libuv's loop keeps its descriptors to itself.
    "uvloop.loop": (lambda module: any(isinstance(item, module.Loop) and not item.is_closed()
                                       for item in gc.get_objects()), "uvloop, which has an event loop,"),
}
# Pausing and ending functions of the runtimes seen so far, by path.
_ending = {}
# What was in the way last time: it is not waited for again.
_last_objection = None


def bind():
    """In the zygote, before the collector forgets what is there. All else is found when it is needed: what is
    allocated and freed here leaves holes, and kernels would copy the pages that they fill."""
    _base[:] = [item for item in gc.get_objects() if type(item) in (_LOCK, _RLOCK)]


def _find_runtimes():
    for path in _Maps().libraries:
        if path not in _ending:
            _ending[path] = _ending_function(path)


def count():
    """Threads of this process that the operating system knows, the main one included."""
    # A directory has two links and one for each directory in it: here, for each thread.
    return stat("/proc/self/task").st_nlink - 2


def refusal():
    """Why a library that is in use cannot be copied, threads or not; None where there is none."""
    if _REFUSED.keys().isdisjoint(modules):
        return None
    for name, (is_used, library) in _REFUSED.items():
        module = modules.get(name)
        if module is not None and is_used(module):
            return f"{library} cannot go on in a copy of its process"
    return None


def settle(shell, patient):
    """Brings other threads to rest. Gives what is in the way (for people) or None, and what the copy must
    find at rest too. Who is not `patient` does not wait for what was in the way last time."""
    global _last_objection
    deadline = monotonic() + SECONDS
    while True:
        # Without another thread of Python's nobody else holds anything of it.
        held = _Held(gc.get_objects() if len(sys._current_frames()) > 1 else ())
        _end_script_loop(shell, held)
        objection = held.objection() or _of_python_threads()
        if objection is None:
            # Now that no thread is within them.
            _end_runtimes()
            objection = _of_native_threads()
        known = objection == _last_objection and not patient
        if objection is None or known or monotonic() > deadline:
            _last_objection = objection
            return objection, held
        sleep(_PAUSE_SECONDS)


def native():
    """Threads that Python does not know, for people: `3 threads of libfoo.so.1`."""
    numbers = Counter(_libraries_of_native_threads())
    return [f"{number} thread{'s' if number > 1 else ''} of {library}" for library, number in numbers.items()]


def _of_python_threads():
    """Why a thread of Python's is in the way of a fork, or None. One that runs although the interpreter's
    lock is held here is within a library."""
    for tid, name in _python_threads().items():
        if _is_running(tid):
            return f"the thread {name!r} runs code outside of Python"
    return None


def _of_native_threads():
    """Why a thread that Python does not know is in the way of a fork, or None."""
    for library in _libraries_of_native_threads():
        if not _PREPARED.search(library):
            return f"a thread of {library} runs, which a copy of the process would not have"
    return None


def _libraries_of_native_threads():
    """Of each thread that Python does not know."""
    known, main = _python_threads(), getpid()
    others = [tid for tid in map(int, listdir("/proc/self/task")) if tid != main and tid not in known]
    maps = _Maps() if others else None
    return [maps.library_of(tid) for tid in others]


def _python_threads():
    """Names of the threads that Python knows, but for the main one, by the operating system's id."""
    names = {thread.ident: thread.name for thread in threading._active.copy().values()}
    main = _get_ident()
    # glibc keeps a thread's id in its descriptor, whose address is the thread's ident.
    offset = TID_ADDRESS - main
    return {ctypes.c_int.from_address(ident + offset).value: names.get(ident, f"thread {ident}")
            for ident in sys._current_frames() if ident != main}


def _is_running(tid):
    # Nothing where it has ended.
    return content(f"/proc/self/task/{tid}/stat").rpartition(b")")[2].split()[:1] == [b"R"]


def content(path):
    """The beginning of a small file of the kernel's; nothing where it is gone."""
    try:
        file = open_fd(path, O_RDONLY | O_CLOEXEC)
        try:
            return read(file, 65536)
        finally:
            close(file)
    except OSError:
        return b""


class _Held:
    """What other threads may hold now: locks, files and modules."""

    def __init__(self, objects):
        self.proxies = False
        self.locks, waiting = list(_base), set()
        self.files = []
        proxy = getattr(modules.get("IPython.core.magics.script"), "_AsyncIOProxy", None)
        kinds = {_LOCK, _RLOCK, _CONDITION, proxy, *_BUFFERED}
        # In C throughout: there may be millions.
        for item in compress(objects, map(kinds.__contains__, map(type, objects))):
            kind = type(item)
            if kind is _LOCK or kind is _RLOCK:
                self.locks.append(item)
            elif kind is _CONDITION:
                # Who waits has a lock of his own that whoever notifies him unlocks: nobody else takes it.
                waiting.update(map(id, item._waiters))
            elif kind is proxy:
                self.proxies = True
            else:
                self.files.append(item)
        self.locks = [lock for lock in self.locks if id(lock) not in waiting]

    def objection(self):
        """The first that is held by another thread, for people; None where nothing is."""
        main = _get_ident()
        for lock in self.locks:
            if type(lock) is _LOCK:
                if _is_locked(lock):
                    return f"a lock is held while {_thread_names()} run"
            elif owner := _owner(lock):
                if owner != main:
                    return f"the thread {_name_of(owner)!r} holds a lock"
        busy_offset = _find_busy_offset()
        if busy_offset is not None:
            for file in self.files:
                owner = ctypes.c_ulong.from_address(id(file) + busy_offset).value
                if owner not in (0, main):
                    return f"the thread {_name_of(owner)!r} is reading or writing a file"
        for reference in list(_module_locks().values()):
            lock = reference()
            owner = getattr(lock, "owner", None)
            if owner is not None and owner != main:
                return f"the thread {_name_of(owner)!r} imports {lock.name}"
        return None


def _module_locks():
    return sys.modules["_frozen_importlib"]._module_locks


def _owner(rlock):
    """Ident of the thread that holds an RLock, 0 where none does. Only its text tells that."""
    text = _RLOCK.__repr__(rlock)
    return int(text.partition("owner=")[2].partition(" ")[0])


def _name_of(ident):
    thread = threading._active.get(ident)
    return thread.name if thread else f"thread {ident}"


def _thread_names():
    names = [repr(thread.name) for thread in threading._active.copy().values()
             if thread.ident != _get_ident()]
    return "the threads " + ", ".join(sorted(names)[:5]) if names else "other threads"


# -- what can be ended


def _end_script_loop(shell, held):
    """The thread in which `%%bash` and the like wait for their programs, unless one is in the background."""
    magics = shell.magics_manager.registry.get("ScriptMagics")
    if magics is None or magics.event_loop is None or magics.bg_processes or held.proxies:
        return
    magics.stop_event_loop()


def _end_runtimes():
    """Ends the worker threads of OpenMP and of OpenBLAS, which start them again when they are needed. No other
    thread may be within them: it would wait for a worker that is gone."""
    if "cv2" in modules:
        _end_opencv(modules["cv2"])
    if not _are_ended():
        _find_runtimes()
        _are_ended()


def _end_opencv(cv2):
    """OpenCV ends its threads when it is told to use one, and starts them again when it needs them."""
    try:
        number = cv2.getNumThreads()
        if number > 1:
            cv2.setNumThreads(1)
            cv2.setNumThreads(number)
    except Exception:
        pass  # it may be half imported; its threads are then in the way


def _are_ended():
    """Calls what is known to end threads. Whether none is left but those of Python."""
    for end in _ending.values():
        if end is not None:
            end()
    # Threads that were told to end are there for a moment more.
    for _ in range(20):
        if count() == 1 + len(_python_threads()):
            return True
        sleep(0.0001)
    return False


def _ending_function(path):
    try:
        if _OPENMP.search(path):
            pause = _loaded(path).omp_pause_resource_all
            return lambda: pause(_OMP_PAUSE_SOFT)
        if _OPENBLAS.search(path):
            try:
                return _loaded(path)[_OPENBLAS_END]
            except AttributeError:
                return _hidden_function(path, _OPENBLAS_END)
    except (OSError, AttributeError):
        pass  # built without threads, or older than OpenMP 5.0
    return None


def _loaded(path):
    # PyDLL: the interpreter's lock is held in calls, so that no thread gets there meanwhile.
    return ctypes.PyDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def _hidden_function(path, name):
    """A function without arguments that a library does not export, by its table of all symbols (elf(5)),
    which wheels of NumPy have. None where it has been stripped."""
    base = next((mapping.start for mapping in mappings.read()
                 if mapping.path == path and mapping.offset == 0), None)
    with io.FileIO(path) as file:
        def at(offset, size):
            return pread(file.fileno(), size, offset)

        header = at(0, 64)
        if header[:6] != b"\x7fELF\2\1" or base is None:
            return None
        offset, = struct.unpack_from("<Q", header, 40)
        size, number = struct.unpack_from("<HH", header, 58)
        sections = [struct.unpack("<IIQQQQIIQQ", at(offset + size * n, 64)) for n in range(number)]
        for _, kind, _, _, start, length, link, _, _, _ in sections:
            if kind != _SHT_SYMTAB:
                continue
            names = at(sections[link][4], sections[link][5])
            wanted = names.find(b"\0" + name.encode() + b"\0") + 1
            # Found as bytes: 24,000 symbols are as many objects, and holes in the zygote's memory afterwards.
            symbols, place = at(start, length), -1
            while wanted and (place := symbols.find(struct.pack("<I", wanted), place + 1)) >= 0:
                if place % _SYMBOL_BYTES == 0:
                    address, = struct.unpack_from("<Q", symbols, place + 8)
                    return ctypes.PYFUNCTYPE(ctypes.c_int)(base + address)
    return None


# -- whose a thread is


class _Maps:
    """Executable mappings of this process."""

    def __init__(self):
        all_mappings = mappings.read()
        self.code = [mapping for mapping in all_mappings if "x" in mapping.access and mapping.path]
        self.memory = [mapping for mapping in all_mappings if not mapping.path]
        self.libraries = sorted({mapping.path for mapping in self.code if mapping.path.startswith("/")})

    def library_of(self, tid):
        """File name, with its package, of the library whose function a waiting thread was started with, or the
        thread's own name where that cannot be told."""
        name = content(f"/proc/self/task/{tid}/comm").decode("utf-8", "replace").strip()
        # Number and arguments of the system call, stack pointer, program counter (proc_pid_syscall(5));
        # "running" where it is in none.
        fields = content(f"/proc/self/task/{tid}/syscall").split()
        if len(fields) < 9:
            return f"another library (thread {name!r})"
        try:
            address, stack = self._stack_from(int(fields[7], 16))
        except OSError:
            return "another library"
        words = [word for word, in struct.iter_unpack("=Q", stack[:len(stack) & -_WORD_BYTES])]
        below, starter = [], None
        for place, word in enumerate(words[:-2]):
            # glibc's descriptor of a thread (struct pthread) begins with its own address, twice.
            if word == address + place * _WORD_BYTES == words[place + 2]:
                starter = next(filter(None, map(self._path_of, words[place + 3:])), None)
                break
            if path := self._path_of(word):
                below.append(path)
        if starter and _OF_ALL.search(starter):
            # std::thread's own function: whose function that calls lies on the stack.
            starter = next((path for path in reversed(below) if not _OF_ALL.search(path)), None)
        if starter is None:
            return f"another library (thread {name!r})"
        # `numexpr/interpreter.so` says more than `interpreter.so`.
        _, packages, inner = starter.partition("/site-packages/")
        return inner if packages else starter.rpartition("/")[2]

    def _path_of(self, address):
        return next((code.path for code in self.code if code.start <= address < code.end), None)

    def _stack_from(self, pointer):
        """Address and content of the end of a stack, with libc's descriptor of the thread above it."""
        end = next((stack.end for stack in self.memory if stack.start <= pointer < stack.end),
                   pointer + _STACK_BYTES)
        start = max(pointer, end - _STACK_BYTES) & -_WORD_BYTES
        memory = open_fd("/proc/self/mem", O_RDONLY | O_CLOEXEC)
        try:
            return start, pread(memory, end - start, start)
        finally:
            close(memory)


class _Probe(io.RawIOBase):
    """A file that looks, while it is written to, at the object that writes."""

    def writable(self):
        return True

    def write(self, data):
        size = io.BufferedWriter.__basicsize__
        words = (ctypes.c_ulong * (size // _WORD_BYTES)).from_address(id(self.writer))
        self.found = [at * _WORD_BYTES for at, word in enumerate(words) if word == _get_ident()]
        return len(data)


@functools.cache
def _find_busy_offset():
    """Where a buffered file object notes which thread is in it, in bytes from its address (`owner` in
    CPython's Modules/_io/bufferedio.c): the word that is the thread's ident while it is, and 0 otherwise.
    None where that cannot be told."""
    raw = _Probe()
    raw.writer = io.BufferedWriter(raw)
    raw.writer.write(b"x")
    raw.writer.flush()
    found, address = raw.found, id(raw.writer)
    idle = [at for at in found if ctypes.c_ulong.from_address(address + at).value == 0]
    del raw.writer
    return idle[0] if len(idle) == 1 else None
