"""Makes what the zygote holds cheap to fork and unlikely to be copied.

A fork copies page tables and, later, each page that either side writes to. Measured with the whole
preload list, on a busy 2-core machine: immortal objects and frozen collections halve the pages that a
kernel copies until its first answer (4.0 to 2.2 MiB); huge pages halve the fork. Code that lies together
spares the first execution 110 of 250 page faults and 0.8 of 4 ms, and an interpreter that is mapped
already spares a new kernel 70 of 370.
"""

import ctypes
import gc
import os
import sys
import threading
import types

from _sandcell import mappings

_MADV_COLLAPSE = 25  # Linux 6.1; works whatever /sys/kernel/mm/transparent_hugepage says
_HUGE_PAGE_BYTES = 2 * 1024 * 1024
# These live as long as a call does; what is running now must be able to end.
_PASSING = (types.FrameType, types.GeneratorType, types.CoroutineType, types.TracebackType)

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_mprotect = ctypes.CDLL(None).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PROT_READ = 1
_PROT_EXEC = 4


def gather_code(run, modules, others):
    """Copies the code that `run` executes, that of `modules` and of `others` to where it lies together.

    Code is written to while it runs (PEP 659; CPython 3.13): by conditional jumps, and by instructions that
    find other types than before. Functions of many modules lie a page or more apart, and each kernel would
    copy all those pages.
    """
    codes = {}

    def note(code, offset):
        codes[id(code)] = code

    # Not a profile function, which an execution takes back at its end.
    watch, tool = sys.monitoring, sys.monitoring.PROFILER_ID
    watch.use_tool_id(tool, "sandcell")
    watch.register_callback(tool, watch.events.PY_START, note)
    watch.set_events(tool, watch.events.PY_START)
    try:
        run()
    finally:
        watch.set_events(tool, watch.events.NO_EVENTS)
        watch.register_callback(tool, watch.events.PY_START, None)
        watch.free_tool_id(tool)
    for function in others:
        note(function.__code__, 0)
    functions = [item for item in gc.get_objects() if type(item) is types.FunctionType]
    for function in functions:
        if function.__module__ in modules:
            note(function.__code__, 0)
    copies = {}

    def copy(code):
        if id(code) not in copies:
            # What is defined within it, when it runs, has its code from here.
            inner = (copy(item) if id(item) in codes else item for item in code.co_consts)
            copies[id(code)] = code.replace(co_consts=tuple(inner))
        return copies[id(code)]

    def copy_all():
        for code in codes.values():
            copy(code)

    # What a new thread allocates lies in memory of its own (PYTHONMALLOC=mimalloc).
    thread = threading.Thread(target=copy_all)
    thread.start()
    thread.join()
    for function in functions:
        function.__code__ = copies.get(id(function.__code__), function.__code__)


def freeze():
    """Called once, when everything that kernels will share exists."""
    gc.collect()
    _make_immortal()
    # What exists now is looked at by no collection in a kernel: that would write to all of it.
    gc.freeze()
    _collapse()
    _join_segments()
    _carry_interpreter()


def _make_immortal():
    """Sets the reference counts of all objects so that they are never written again (PEP 683).

    Merely reading an object counts references, and so copies its page. Every object of the zygote
    outlives its kernels anyway.
    """
    # Where the count is and what makes it immortal belongs to one version of CPython. Elsewhere
    # kernels only share less.
    if sys.version_info[:2] != (3, 13) or sys.maxsize < 2**32 or sys.byteorder != "little":
        return
    seen = set()
    found = gc.get_objects()
    ours = {id(seen), id(found)}
    while found:
        fresh = []
        ours.add(id(fresh))
        for item in found:
            number = id(item)
            if number in seen or number in ours or isinstance(item, _PASSING):
                continue
            seen.add(number)
            fresh.append(item)
        found = gc.get_referents(*fresh)
        for item in fresh:
            if type(item) is types.CodeType:  # not known to the collector
                found += (item.co_consts, item.co_names, item.co_filename, item.co_name,
                          item.co_qualname, item.co_linetable, item.co_exceptiontable)
        ours.add(id(found))
    for number in seen:
        ctypes.memset(number, 0xFF, 4)


def _collapse():
    """Turns private memory into huge pages: one entry for fork to copy where there were 512."""
    regions = []
    for mapping in mappings.read():
        if "w" not in mapping.access or mapping.path not in ("", "[heap]"):
            continue
        if regions and regions[-1][1] == mapping.start:
            regions[-1][1] = mapping.end
        else:
            regions.append([mapping.start, mapping.end])
    for start, end in regions:
        start = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        while start + _HUGE_PAGE_BYTES <= end:
            # A range with nothing in it, or a kernel without huge pages, refuses: no matter.
            _madvise(start, _HUGE_PAGE_BYTES, _MADV_COLLAPSE)
            start += _HUGE_PAGE_BYTES


def _join_segments():
    """Makes one mapping of a library's header, code and constants, which a linker keeps apart so that
    constants cannot be executed. A fork copies mapping by mapping, and an exit frees them so: 630
    mappings become 410, which takes a tenth off either. User code may map executable memory as it
    likes: nothing is lost.
    """
    segments = mappings.read()
    for before, segment, after in zip([None, *segments], segments, [*segments[1:], None]):
        if segment.access == "r--p" and (segment.extends(before) or segment.extends(after)):
            _mprotect(segment.start, segment.end - segment.start, _PROT_READ | _PROT_EXEC)


def _carry_interpreter():
    """Has forks copy what is mapped of the interpreter's and libc's code. Of a mapping in which nothing
    was ever written a fork copies nothing (vma_needs_copy, mm/memory.c, Linux 5.13), and a kernel would map
    it anew, 16 pages at a time."""
    interpreter = os.path.realpath(sys.executable)
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for mapping in mappings.read():
                of_libc = os.path.basename(mapping.path).startswith("libc.so")
                if mapping.access == "r-xp" and (of_libc or mapping.path == interpreter):
                    # What was there: only that it was written counts. This may write to code
                    # (proc_pid_mem(5)).
                    first = os.pread(memory.fileno(), 1, mapping.start)
                    os.pwrite(memory.fileno(), first, mapping.start)
    except OSError:
        pass  # forbidden, by proc_mem.force_override say: kernels map it anew
