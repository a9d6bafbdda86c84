"""Keeps what user code puts into the standard library away from the kernel's own work.

User code may replace whatever it likes: `mock.patch("os.getcwd", ...)`, the guards of graders that set
`os.kill` and others to None, a frozen clock, a fake file system, `del builtins.print`. That is meant for
its own code; it must neither end the kernel nor change how executions are run and answered. Three things
see to it:

- The kernel's modules have builtins of their own (`zygote.py`), bind when they are imported what they use
  while user code runs, and are not in `sys.modules`, where libraries that replace a function wherever
  it is bound (freezegun, pyfakefs) would find them.
- IPython and the standard library look names up when they are called. So for the kernel's own work
  what was there in the zygote is put back, and what user code had put there is back before its code
  runs again: `Guard.leave()` and `Guard.enter()`.
- What fails nevertheless (because of an audit hook that raises, say, which nothing can take away) is an
  outcome of the execution.

Each dictionary of CPython 3.13 has a version, a number that every change of it changes (PEP 509). It tells
in a microsecond or two that nothing was replaced; otherwise the modules whose version is another are looked at
name by name. Where there is no such version all of them are, which takes 0.2 ms.
"""

import ctypes
import functools
import importlib
import os
import sys
import types
from _thread import get_ident

# What the kernel, IPython and the parts of the library below them look up when they run code and answer,
# found by replacing all of a module. asyncio is not among them: nest_asyncio replaces half of it for good,
# and only code that awaits needs it.
_MODULES = """
    builtins sys os posixpath genericpath io _io time signal threading _weakrefset weakref traceback linecache
    tokenize textwrap re ast codeop contextlib warnings types functools copy collections collections.abc
    itertools inspect abc enum random shutil datetime math resource gc ctypes
    importlib._bootstrap importlib._bootstrap_external IPython.core.interactiveshell IPython.core.compilerop
    IPython.core.displayhook IPython.core.formatters IPython.core.history IPython.core.events
    IPython.core.inputtransformer2 IPython.lib.pretty""".split()
# What these import only when they are called.
_LAZY = ("__future__", "token", "keyword", "string", "platform", "typing", "pickle", "json", "subprocess",
         "tempfile", "stat", "struct", "select", "selectors", "socket", "_sandcell", "_sandcell.figures")
_LAZY_PACKAGES = ("IPython", "traitlets")

# Values that nothing replaces in the course of normal work. Others, locks say, are replaced by their like;
# and in the place of None modules put what they make when it is first needed.
_CONSTANT = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType,
             type(functools.lru_cache(len)), type(os.environ), type(...), type(NotImplemented), int,
             float, complex, str, bytes, tuple, frozenset, set, dict, list)
# What user code is meant to set, and what the kernel itself sets once it runs.
_FREE = {
    "os": {"register_at_fork", "cpu_count", "process_cpu_count"},
    "time": {"timezone", "altzone", "daylight", "tzname"},
    "sys": {"displayhook", "excepthook", "breakpointhook", "unraisablehook", "__displayhook__",
            "__excepthook__", "__breakpointhook__", "__unraisablehook__", "argv", "path", "meta_path", "path_hooks",
            "warnoptions", "_xoptions", "orig_argv", "dont_write_bytecode", "pycache_prefix",
            "stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__",
            "last_exc", "last_type", "last_value", "last_traceback"},
}
_MISSING = object()
_TAG_OFFSET_BYTES = 24  # of `ma_version_tag` in a PyDictObject
# So many bytes.join() takes without allocating memory for it, whose pages would be fetched and given back
# with each execution.
_GROUP = 10
_join = b"".join


class Guard:
    """User code runs between `enter()` and `leave()`, on the main thread; threads see what is there."""

    def __init__(self):
        # Dictionaries that are watched, and what of them is put back.
        self.spaces = []
        self.tags = None
        # The versions when user code began.
        self.seen = None
        # Number of the present turn of user code, 0 while the kernel works.
        self.turn = 0
        self.turns = 0
        # What user code has replaced, by index of the dictionary and name, and whether it is in place.
        self.replaced = {}
        self.in_place = False
        self.main_thread = get_ident()

    def watch(self):
        """In the zygote, when all is imported that will be."""
        for name in _MODULES:
            values = vars(importlib.import_module(name))
            free = _FREE.get(name, ())
            self.spaces.append((values, {key: value for key, value in values.items()
                                         if value is not None and key not in free}))
        needed = {*_MODULES, *_LAZY}
        self.spaces.append((sys.modules, {name: module for name, module in sys.modules.items()
                                          if name in needed or name.partition(".")[0] in _LAZY_PACKAGES}))
        if _have_versions():
            tags = [ctypes.c_uint64.from_address(id(values) + _TAG_OFFSET_BYTES)
                    for values, _ in self.spaces]
            self.tags = [tags[at:at + _GROUP] for at in range(0, len(tags), _GROUP)]

    def enter(self):
        """Before user code runs. Gives what to end this turn with; 0 where it runs already, or on another
        thread than the main one."""
        if self.turn or get_ident() != self.main_thread:
            return 0
        if self.replaced:
            self._give_back()
        self._note()
        self.turns = self.turn = self.turns + 1
        return self.turn

    def leave(self, turn):
        """After user code ran, whatever ended it."""
        if turn == 0 or turn != self.turn:
            return
        if self.replaced or self.tags is None or list(map(_join, self.tags)) != self.seen:
            self._take()
        self.turn = 0

    def suspend(self):
        """For the kernel's work in the midst of user code. Gives what to resume with."""
        turn = self.turn
        if turn == 0 or get_ident() != self.main_thread:
            return 0
        self.leave(turn)
        return turn

    def resume(self, turn):
        if turn:
            if self.replaced:
                self._give_back()
                self._note()
            self.turn = turn

    def settle(self):
        """After whatever has interrupted the end of a turn."""
        self.leave(self.turn)

    def _note(self):
        if self.tags is not None:
            self.seen = list(map(_join, self.tags))

    def _take(self):
        found = {}
        for index in self._changed():
            values, ours = self.spaces[index]
            get = values.get
            for name, value in ours.items():
                current = get(name, _MISSING)
                if current is not value and (type(current) is not type(value)
                                             or isinstance(value, _CONSTANT)):
                    found[index, name] = current
        # An interrupt may have come while this, or its opposite, was under way.
        self.replaced = found if self.in_place else self.replaced | found
        self.in_place = False
        for index, name in found:
            values, ours = self.spaces[index]
            values[name] = ours[name]

    def _changed(self):
        if self.tags is None:
            return range(len(self.spaces))
        now, seen = _join(map(_join, self.tags)), _join(self.seen)
        changed = {at // 8 for at in range(0, len(now), 8) if now[at:at + 8] != seen[at:at + 8]}
        return changed.union(index for index, _ in self.replaced)

    def _give_back(self):
        for (index, name), value in self.replaced.items():
            values = self.spaces[index][0]
            if value is _MISSING:
                values.pop(name, None)
            else:
                values[name] = value
        self.in_place = True


def _have_versions():
    """Whether a dictionary's version is where it is known to be."""
    if sys.version_info[:2] != (3, 13) or sys.maxsize < 2**32:
        return False
    values = {"name": 1}
    tag = ctypes.c_uint64.from_address(id(values) + _TAG_OFFSET_BYTES)
    versions = [tag.value]
    values["name"] = 2
    versions.append(tag.value)
    del values["name"]
    versions.append(tag.value)
    return len(set(versions)) == 3
