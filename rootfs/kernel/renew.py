"""Puts right, in a copy of the kernel that has become one, what belonged to threads, processes and
descriptors which the copy does not have.

| what | in the copy |
| --- | --- |
| `ThreadPoolExecutor`, `ProcessPoolExecutor` | new and empty: works; what had not ended raises `BrokenExecutor` |
| an executor of loky | broken: says that a new one is needed; `get_reusable_executor()` makes one |
| `multiprocessing.Pool` | broken: every use says that a new one is needed |
| `Popen`, `multiprocessing.Process` | ended by SIGKILL, as far as this process can tell |
| resource tracker, fork server | started anew when they are needed |
| event loops | work; tasks of before are cancelled with a reason |
| IPython's `%%bash` and the like | their loop is made anew |

Libraries are looked at only if the code has imported them.
"""

import asyncio
import asyncio.base_events
import asyncio.base_subprocess
import concurrent.futures
import gc
import selectors
import signal
import sys
from _thread import get_ident
from posix import getpid

REASON = ("it was left behind: this Python process is a copy of one that had it, and threads and processes are "
          "not copied")
_KILLED = -int(signal.SIGKILL)


def everything(shell):
    """In the copy, before user code runs. Gives what is gone and is not its reader's to find, for people:
    tasks, and what could not be put right."""
    by_type = _Instances()
    missing = []
    for renew in (_loops, _script_magics, _thread_pools, _process_pools, _multiprocessing, _loky, _programs):
        try:
            missing += renew(by_type, shell) or ()
        except Exception as error:
            missing.append(f"{renew.__name__.strip('_')}, which could not be renewed: {type(error).__name__}")
    return missing


class _Instances:
    """Objects of the heap by type. A class of user code may claim any `__class__`: `type()` is asked."""

    def __init__(self):
        self.objects = gc.get_objects()

    def of(self, kind):
        return [item for item in self.objects if issubclass(type(item), kind)]


def _loops(by_type, shell):
    return [name for loop in by_type.of(asyncio.base_events.BaseEventLoop) for name in _renew_loop(loop)]


def _programs(by_type, shell):
    subprocess = sys.modules.get("subprocess")
    for process in by_type.of(subprocess.Popen) if subprocess else ():
        if process.returncode is None:
            process.returncode = _KILLED
    for transport in by_type.of(asyncio.base_subprocess.BaseSubprocessTransport):
        _end_transport(transport)
    if socketserver := sys.modules.get("socketserver"):
        for server in by_type.of(socketserver.BaseServer):
            server._BaseServer__is_shut_down.set()  # its thread is gone: shutdown() would wait for it


def _end_transport(transport):
    """A program of asyncio.subprocess has ended and has said all that it will say."""
    if transport._returncode is not None:
        return
    transport._returncode = _KILLED
    for waiter in transport._exit_waiters or ():
        if not waiter.done():
            waiter.set_result(_KILLED)
    transport._exit_waiters = None
    for stream in (getattr(transport._protocol, "stdout", None), getattr(transport._protocol, "stderr", None)):
        if isinstance(stream, asyncio.StreamReader) and not stream.at_eof():
            stream.feed_eof()


def _renew_loop(loop):
    tasks = asyncio.all_tasks(loop)
    missing = [f"asyncio task {task.get_name()}" for task in tasks]
    selector = getattr(loop, "_selector", None)
    if loop.is_closed() or selector is None:
        return missing
    # The selector's descriptor is the other process's, too: it is closed here without a word to it.
    selector.close()
    loop._selector = selectors.DefaultSelector()
    for end in (loop._ssock, loop._csock):
        end.close()
    loop._internal_fds = 0
    loop._make_self_pipe()
    if loop._thread_id not in (None, get_ident()):
        loop.call_soon_threadsafe = _of_lost_thread(loop)
    loop._thread_id = None
    loop._stopping = False
    loop._default_executor = None
    if loop._signal_handlers:
        signal.set_wakeup_fd(loop._csock.fileno())
    # What is ready or waits for a timer stays: a task must run once more to be cancelled.
    for task in tasks:
        task.cancel(REASON)
    return missing


def _of_lost_thread(loop):
    """For a loop that ran in a thread of its own: who hands it work would wait for ever."""
    plain = loop.call_soon_threadsafe

    def call_soon_threadsafe(callback, *args, context=None):
        if not loop.is_running():
            raise RuntimeError(f"the thread that ran this event loop is gone: {REASON}")
        return plain(callback, *args, context=context)

    return call_soon_threadsafe


def _script_magics(by_type, shell):
    magics = shell.magics_manager.registry.get("ScriptMagics")
    if magics is None or magics.event_loop is None:
        return
    magics.event_loop = None
    if magics._event_loop_finalizer is not None:
        magics._event_loop_finalizer.detach()
        magics._event_loop_finalizer = None
    magics.bg_processes.clear()


def _thread_pools(by_type, shell):
    module = sys.modules.get("concurrent.futures.thread")
    if module is None:
        return
    for pool in by_type.of(module.ThreadPoolExecutor):
        if pool._threads and not pool._shutdown:
            module.ThreadPoolExecutor.__init__(pool, pool._max_workers, pool._thread_name_prefix,
                                               pool._initializer, pool._initargs)
    # Those that wait in a queue or ran in a thread; none of this process will end.
    for future in by_type.of(concurrent.futures.Future):
        _fail(future, concurrent.futures.BrokenExecutor(f"the future has no result: {REASON}"))


def _fail(future, error):
    if not future.done():
        try:
            future.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass


def _process_pools(by_type, shell):
    module = sys.modules.get("concurrent.futures.process")
    if module is None:
        return
    for pool in by_type.of(module.ProcessPoolExecutor):
        if pool._shutdown_thread:
            continue
        # Also one without processes: its queues are pipes, which a copy lets go of.
        module.ProcessPoolExecutor.__init__(
            pool, pool._max_workers, pool._mp_context, pool._initializer, pool._initargs,
            max_tasks_per_child=pool._max_tasks_per_child)


def _multiprocessing(by_type, shell):
    if module := sys.modules.get("multiprocessing.pool"):
        for pool in by_type.of(module.Pool):
            if pool._state != module.TERMINATE:
                _break_pool(module, pool)
    if module := sys.modules.get("multiprocessing.util"):
        # Proxies of managers and queues that are bound to a process, as in a child that multiprocessing forks.
        module._run_after_forkers()
    if module := sys.modules.get("multiprocessing.process"):
        module._children.clear()
        for process in by_type.of(module.BaseProcess):
            if process._popen is not None and process is not module._current_process:
                process._parent_pid = getpid()
                process._popen.returncode = _KILLED if process._popen.returncode is None \
                    else process._popen.returncode
    if module := sys.modules.get("multiprocessing.resource_tracker"):
        _forget_helper(module._resource_tracker, "_fd", "_pid")
    if module := sys.modules.get("multiprocessing.forkserver"):
        _forget_helper(module._forkserver, "_forkserver_alive_fd", "_forkserver_pid",
                       "_forkserver_address")


def _forget_helper(helper, *attributes):
    for name in attributes:
        setattr(helper, name, None)


def _break_pool(module, pool):
    error = RuntimeError(f"the Pool cannot be used: {REASON}. Make a new multiprocessing.Pool")

    def refuse():
        raise error

    pool._check_running = refuse
    pool._state = module.TERMINATE
    pool._pool = []
    for result in list(pool._cache.values()):
        if isinstance(result, module.IMapIterator):
            result._items.append((False, error))
            result._length = result._index + 1
        else:
            result._success, result._value = False, error
            result._event.set()
    pool._cache.clear()


def _loky(by_type, shell):
    module = sys.modules.get("joblib.externals.loky.reusable_executor")
    if module is None:
        return
    module._executor = module._executor_kwargs = None
    process_executor = sys.modules["joblib.externals.loky.process_executor"]
    broken = process_executor.BrokenProcessPool(f"the executor cannot be used: {REASON}. Make a new one")
    for pool in by_type.of(process_executor.ProcessPoolExecutor):
        pool._flags.flag_as_broken(broken)
        pool._executor_manager_thread = None
    if tracker := sys.modules.get("joblib.externals.loky.backend.resource_tracker"):
        _forget_helper(tracker._resource_tracker, "_fd", "_pid")
