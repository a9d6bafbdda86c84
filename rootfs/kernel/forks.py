"""Keeps the zygote's forks free of hooks that have nothing to do there.

Libraries ask to be called around every fork (`os.register_at_fork`), to release locks that another
thread may hold, or to seed generators. The zygote has one thread that holds no lock, and `reseed`
seeds a kernel's generators; calling these hooks costs a kernel 0.2 of the 2 ms between fork and
lock-down, mostly in pages copied. So theirs wait until a kernel exists: forks of user code run them.
"""

import os
import sys

# Modules whose hooks can wait, as read in their sources (CPython 3.13, IPython 9, matplotlib 3.10).
# What others register runs at every fork. So do those of `threading`: it notes the new thread's id.
_CAN_WAIT = {
    "_sandcell.byvalue",  # renews a lock
    "asyncio.events",  # forgets a running loop
    "concurrent.futures.thread",  # releases a lock, forgets threads
    "logging",  # releases locks
    "matplotlib.font_manager",  # empties a cache, which figures.forget() has done
    "random",  # seeds
}

# Theirs are never run: IPython stops a thread that writes history to a database, and we have none.
_USELESS = {"IPython.core.history"}

_register = os.register_at_fork
_waiting = []


def hold_back():
    """Call it before anything else is imported."""
    os.register_at_fork = _note


def let_go():
    """In the child: from here on forks are those of user code."""
    os.register_at_fork = _register
    for hooks in _waiting:
        _register(**hooks)


def _note(**hooks):
    module = sys._getframe(1).f_globals.get("__name__")
    if module in _CAN_WAIT:
        _waiting.append(hooks)
    elif module not in _USELESS:
        _register(**hooks)
