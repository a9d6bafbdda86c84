"""What the zygote does so that kernels need not: imports, and rehearsals of everything."""

import contextlib
import fcntl
import glob
import importlib
import linecache
import os
import shutil
import signal
import socket
import sys
import types

from _sandcell import checkpoints, environment, execution, figures, quiesce, reseed, sharing, structured
from _sandcell.channel import Channel, encode

# Where the mirror keeps matplotlib's settings and its list of fonts.
MATPLOTLIB = "/opt/sandcell/matplotlib"

_REHEARSAL = (
    "1+1",
    "print('warm', end='')",
    "x = [1, 2, 3]\nx",
    "import asyncio\nawait asyncio.sleep(0)",
    "1/0",
    "x = = 1",
    "%time 1+1",
    "from IPython.display import display, HTML\ndisplay(HTML('<b>x</b>'))",
)
_REHEARSAL_OF = {
    "numpy": ("import numpy as np\nnp.linalg.solve(np.eye(8) + 1, np.ones(8))\nnp.zeros(5).sum()",
              "np.random.rand(3)\nnp.random.default_rng().normal(size=3)\nnp.arange(12).reshape(3, 4)"),
    "pandas": ("import pandas as pd\npd.DataFrame({'a': [1, 2, 3], 'b': list('xyx')})",
               "pd.DataFrame({'a': [1, 2, 3], 'b': list('xyx')}).groupby('b').a.sum()",
               "print(pd.DataFrame({'a': [1.5], 'b': ['x']}).describe())"),
    "matplotlib.pyplot": ("import matplotlib.pyplot as plt\nplt.plot([1, 2], label='x')\n"
                          "plt.title('x')\nplt.xlabel('x')\nplt.legend()\nplt.show()",
                          "fig, ax = plt.subplots()\nax.bar(['a', 'b'], [1, 2])"),
}

# What every execution goes through, from the frame that asks for it to those that answer.
_CONVERSATION = ("print(1+1)", "x = [1, 2, 3]\nx")
_REQUEST = {"type": "execute", "restore": "never", "env": {}, "memory_bytes": 0, "max_files": 1,
            "look_at_files": True, "prompt": False, "max_result_bytes": 65536, "max_traceback_bytes": 65536}
# How often, for the interpreter to specialize the instructions on that way (PEP 659).
_TIMES = 8
# What a child runs before its first execution.
_RUN_IN_FORKS = {"__main__", "_sandcell.lockdown", "_sandcell.reseed"}


class _Discard:
    """Takes the place of an Execution: formats, encodes, sends nothing."""

    def __init__(self):
        self.shown = []

    def result(self, kind, data, metadata=None, display_id=None):
        execution._jsonable_bundle(data)

    def clear_output(self, wait):
        pass


def up(kernel, preload):
    """Imports and rehearses. Returns the modules that could not be imported, with the reason."""
    _settle_matplotlib()
    shell = kernel.shell
    failed = []
    # pandas and others decide at import whether they are in a terminal: by get_ipython() and an
    # attribute that notebooks have. We are as wide as a notebook.
    shell.kernel = types.SimpleNamespace()
    for name in preload:
        try:
            importlib.import_module(name)
        except BaseException as error:  # SystemExit too
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if "matplotlib.pyplot" in sys.modules:
        structured.preload()
    _rehearse(kernel)
    reseed.bind()
    environment.find_runtimes()
    quiesce.bind()
    return failed


def _settle_matplotlib():
    # matplotlib insists on a directory that it can write to. The zygote has only its own; the list
    # of fonts, seconds of work, comes from the mirror.
    own = os.environ.get("MPLCONFIGDIR")
    if own and not os.path.isdir(own):
        os.makedirs(own)
        for path in glob.glob(f"{MATPLOTLIB}/fontlist-*.json"):
            shutil.copy(path, own)


def _rehearse(kernel):
    shell = kernel.shell
    snippets = []
    for module, more in _REHEARSAL_OF.items():
        if module in sys.modules:
            snippets += more
    snippets += _REHEARSAL
    with _silence():
        for code in snippets:
            error = kernel.run(_Discard(), {"env": {}, "code": code})
            if error is not None:
                kernel.describe(error, 65536)
    shell.loops.close()
    # matplotlib has functions of its own called by now.
    shell.note_hooks()
    kernel.guard.watch()
    sharing.gather_code(lambda: _go_through(kernel), _RUN_IN_FORKS, checkpoints.run_always())
    for _ in range(_TIMES):
        converse(kernel)
    figures.forget()
    # An execution leaves signals blocked, as a kernel wants them while it waits.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _go_through(kernel):
    """All that runs for an execution, what goes with a fork too."""
    converse(kernel)
    checkpoints.rehearse()


def converse(kernel):
    """Executions that come and are answered as real ones are, and leave nothing behind. In a kernel that
    waits in a pool too: the first real one then finds the pages that it writes copied already."""
    ours, theirs = (Channel(end.detach()) for end in socket.socketpair())
    pipes = kernel.streams.copies
    kept = kernel.channel, kernel.checkpoints.current, kernel.told_checkpoint, dict(pipes)
    kernel.channel = ours
    for number, code in enumerate(_CONVERSATION):
        theirs.write(encode(_REQUEST | {"id": number, "code": code}))
    theirs.socket.shutdown(socket.SHUT_WR)
    kernel.interrupts.hold()
    try:
        with _silence() as out:
            pipes.update({1: out, 2: out})
            kernel.obey()
    finally:
        theirs.socket.close()
        ours.socket.close()
        pipes.clear()
        kernel.channel, kernel.checkpoints.current, kernel.told_checkpoint, before = kept
        pipes.update(before)
    _forget(kernel.shell)


@contextlib.contextmanager
def _silence():
    """Descriptors 1 and 2 lead nowhere for a while; gives one that does."""
    out = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    kept = [(fd, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)) for fd in (1, 2)]
    for fd, _ in kept:
        os.dup2(out, fd)
    try:
        yield out
    finally:
        for fd, copy in kept:
            os.dup2(copy, fd)
            os.close(copy)
        os.close(out)


def _forget(shell):
    """As if nothing had been executed yet."""
    shell.reset(new_session=True)
    shell.last_execution_result = None
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    shell.compile._filename_map.clear()
    for name in [name for name in linecache.cache if name.startswith("<")]:
        del linecache.cache[name]
