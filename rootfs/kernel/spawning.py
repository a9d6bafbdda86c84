"""Lets processes of multiprocessing have what executions defined: `byvalue` says how."""

import os
import sys
import types

from _sandcell import imports

# Read in the zygote: a kernel does not see our files. It is a module only where multiprocessing is used,
# which it imports.
with open(os.path.join(os.path.dirname(__file__), "byvalue.py"), encoding="utf-8") as _file:
    _SOURCE = _file.read()
_NAME = "_sandcell.byvalue"


def _by_value():
    module = sys.modules.get(_NAME)
    if module is None:
        module = sys.modules[_NAME] = types.ModuleType(_NAME)
        exec(compile(_SOURCE, "byvalue.py", "exec"), module.__dict__)
        module.SOURCE = _SOURCE
    return module


def install():
    for name, function in (("reduction", "install_pickler"), ("spawn", "install_spawn"),
                           ("popen_fork", "install_fork"), ("pool", "install_pool")):
        imports.watch(f"multiprocessing.{name}", _installer(function))
    imports.watch("joblib.pool", _installer("install_joblib"))
    imports.watch("joblib.externals.loky.backend.spawn", _installer("install_loky"))
    imports.watch("multiprocessing.context", _let_methods_be_set_again)


def _installer(function):
    return lambda module: getattr(_by_value(), function)(module)


def _let_methods_be_set_again(context):
    """A script sets its start method once, before it starts anything. A kernel runs many."""
    plain = context.DefaultContext.set_start_method
    context.DefaultContext.set_start_method = lambda self, method, force=False: plain(self, method, True)
