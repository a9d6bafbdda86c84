"""Sends what `__main__` holds to the processes of multiprocessing, by value.

A process that is spawned has a `__main__` of its own, which Python fills by running the parent's script
again. A kernel has no script. So a function or class of `__main__` is pickled as its name, together with
what that name and the names it refers to stand for:

    sender    pickles `f`: (_named, ("f", items)), an item for `f` and for each global that it needs
    receiver  puts each item that it does not have yet into its `__main__`, then looks `f` up there

An item is (name, digest, payload, needed names). Its digest tells whether the receiver has it, so a
global that the receiver changed itself (the initializer of a pool does) stays until the sender's changes.
Nothing is sent to a forked process that it had when it was forked. What has no name, lambdas and what
functions define, is pickled in its place. A kernel never takes an item for a name that it has, so an
instance of a class that comes back is one of the kernel's own class.

multiprocessing's children have this module too: its source is a part of what they are started with,
so it may import nothing of ours.
"""

import abc
import functools
import hashlib
import io
import os
import pickle
import signal
import sys
import tempfile
import threading
import types
import weakref
from multiprocessing import context, process, reduction

# This file's text. The kernel sets it; a child gets it from its parent.
SOURCE = ""
# Longer payloads go through a file, so that the tasks of a pool do not carry them again and again.
INLINE_BYTES = 32 * 1024
# The shell's own, of no use elsewhere, and what every module has.
_SKIPPED = {"get_ipython", "exit", "quit", "__builtins__", "__name__", "__doc__", "__spec__",
            "__loader__", "__package__", "__file__"}
_CACHED = type(functools.lru_cache(lambda: None))
_MAINS = ("__main__", "__mp_main__")
# Run by a child that is started, before anything that it is sent is unpickled.
_BEGIN = """
import sys, types
if "_sandcell.byvalue" not in sys.modules:
    package, module = types.ModuleType("_sandcell"), types.ModuleType("_sandcell.byvalue")
    package.__path__ = []
    sys.modules["_sandcell"], sys.modules["_sandcell.byvalue"] = package, module
    exec(compile(source, "<sandcell>", "exec"), module.__dict__)
    module.SOURCE = source
    getattr(module, begin)()
"""


class Begin:
    """Part of what a child is sent first: makes this module there, and calls a function of it."""

    def __init__(self, begin):
        self.begin = begin

    def __reduce__(self):
        return exec, (_BEGIN, {"source": SOURCE, "begin": self.begin})


def begin():
    """In a child: `__main__` is a new module, as it is where Python runs the script again."""
    global _is_child
    _is_child = True
    # The code that started the child runs in this one still.
    sys.modules["_sandcell"].first_main = sys.modules["__main__"]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__mp_main__")
    from multiprocessing import pool, popen_fork, spawn
    for install, module in ((install_pickler, reduction), (install_spawn, spawn),
                            (install_fork, popen_fork), (install_pool, pool)):
        install(module)


def begin_loky():
    """In a child of joblib's, which sends everything by value itself, but for some exceptions."""
    try:
        from joblib.externals.cloudpickle import cloudpickle
    except ImportError:  # since joblib 1.6
        from cloudpickle import cloudpickle
    plain = cloudpickle.Pickler.reducer_override

    def reducer_override(self, value):
        reduced = _reduce_exception(value) if isinstance(value, BaseException) else NotImplemented
        return plain(self, value) if reduced is NotImplemented else reduced

    cloudpickle.Pickler.reducer_override = reducer_override


_is_child = False


def _has_parent():
    return _is_child or process.parent_process() is not None


def _globals():
    return sys.modules["__main__"].__dict__


# -- what is where


class Missing:
    """In the place of a global that could not be sent: says so when it is used."""

    def __init__(self, name, reason):
        self.__dict__.update(name=name, reason=reason)

    def fail(self, *_, **__):
        raise RuntimeError(f"{self.__dict__['name']!r} of __main__ could not be sent to this process: "
                           f"{self.__dict__['reason']}")

    __call__ = __enter__ = __iter__ = __next__ = __len__ = __getitem__ = __setitem__ = fail
    __contains__ = __bool__ = __setattr__ = __str__ = __add__ = __radd__ = __lt__ = __gt__ = fail

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.fail()

    def __exit__(self, *_):
        pass


class _Kept:
    """An item, and the value that it is of."""

    def __init__(self, value, item, epoch):
        self.item, self.epoch = item, epoch
        try:
            self.value = weakref.ref(value)
        except TypeError:
            self.value = lambda: value

    def is_of(self, value):
        return self.value() is value


class Names:
    """The names of `__main__`: what was sent of them, and what has come."""

    def __init__(self):
        self.lock = threading.RLock()
        self.kept = {}
        self.pending = {}
        # Functions and classes by digest: what comes back is the one that was sent.
        self.sent = weakref.WeakValueDictionary()
        # Counts the processes that were started. Of a value that changes within itself, each is sent
        # what it is then.
        self.epoch = 0
        self.files = []
        self.pid = os.getpid()

    def note_start(self):
        with self.lock:
            self.epoch += 1
            if self.pid != os.getpid():
                self.pid, self.files = os.getpid(), []  # forked: they are the parent's
            if not _children():
                for path in self.files:
                    try:
                        os.remove(path)
                    except OSError:
                        pass  # removed by user code
                self.files.clear()
                if not _has_parent():
                    self.kept.clear()

    def items(self, names):
        """Items of these names and of those that they need, but of what every receiver has."""
        with self.lock:
            found, seen, todo = [], set(_SKIPPED), list(names)
            held, had = _globals(), _had()
            while todo:
                name = todo.pop()
                if name in seen or name not in held:
                    continue
                seen.add(name)
                value = held[name]
                if had and all(of.get(name) == id(value) for of in had):
                    todo += _references(value)
                elif item := self.item(name, value):
                    found.append(item)
                    todo += item[3]
            return tuple(found)

    def item(self, name, value):
        kept = self.kept.get(name)
        if kept and kept.is_of(value) and kept.epoch in (None, self.epoch):
            return kept.item
        if _has_parent() and kept and not _is_definition(value):
            return None  # this process has set it for itself
        try:
            payload, needs = _dump(value, name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            payload, needs = pickle.dumps(_Later(_missing, name, reason)), ()
        digest = hashlib.blake2b(payload, digest_size=16).digest()
        if _is_definition(value):
            self.sent[digest] = value
        if len(payload) > INLINE_BYTES:
            payload = self.store(payload)
        item = name, digest, payload, tuple(needs)
        self.kept[name] = _Kept(value, item, self.epoch)
        return item

    def store(self, payload):
        try:
            with tempfile.NamedTemporaryFile(prefix="global-", delete=False) as file:
                self.files.append(file.name)
                file.write(payload)
            return file.name
        except OSError:
            return payload  # no room: then it is carried

    def offer(self, items):
        """Takes what is new here."""
        with self.lock:
            for item in items:
                name, digest = item[:2]
                kept = self.kept.get(name)
                if _has_parent():
                    if kept is None or kept.item[1] != digest:
                        self.pending[name] = item
                elif name not in _globals():
                    self.pending[name] = item
            for name in list(self.pending):
                self.load(name)

    def load(self, name):
        item = self.pending.pop(name, None)
        if item is None:
            return
        # What refers to itself through others is in the middle of it.
        self.kept[name] = _Kept(None, item, None)
        try:
            payload = item[2]
            if isinstance(payload, str):
                with open(payload, "rb") as file:
                    payload = file.read()
            value = pickle.loads(payload)
        except Exception as error:
            value = Missing(name, f"{type(error).__name__}: {error}")
        _globals()[name] = value
        self.kept[name] = _Kept(value, item, None)

    def find(self, where, items=()):
        """What a qualified name stands for."""
        first, *rest = where.split(".")
        with self.lock:
            self.load(first)
            value = None
            if not _has_parent():
                value = next((self.sent.get(item[1]) for item in items if item[0] == first), None)
            if value is None:
                try:
                    value = _globals()[first]
                except KeyError:
                    raise AttributeError(f"module '__main__' has no attribute {first!r}") from None
        if type(value) is Missing:
            value.fail()
        for name in rest:
            value = getattr(value, name)
        return value


    def renew(self):
        """In a fork: another thread may have held it."""
        self.lock = threading.RLock()


names = Names()
os.register_at_fork(after_in_child=names.renew)


def _children():
    return [child for child in process._children
            if child._popen is not None and child._popen.method in ("fork", "spawn", "forkserver")
            and child._popen.returncode is None]


def _had():
    """Of each process that may be sent something: what its `__main__` held when it was forked. Empty
    where one was not, or nobody is there yet."""
    if context.get_spawning_popen() is not None:
        return []
    found = [getattr(child, "_sandcell_had", None) for child in _children()]
    if _has_parent():
        found.append(getattr(process.current_process(), "_sandcell_had", None))
    return found if all(found) else []


# -- what is sent


def _is_definition(value):
    return isinstance(value, (types.FunctionType, type, _CACHED))


def _name_in_main(value):
    """The name by which `__main__` holds a function or class, or None."""
    if getattr(value, "__module__", None) not in _MAINS:
        return None
    where = getattr(value, "__qualname__", None)
    return where if where and _resolve(_globals(), where) is value else None


def _resolve(held, where):
    first, *rest = where.split(".")
    found = held.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def _is_importable(value):
    module = getattr(value, "__module__", None)
    if module == "builtins" or not isinstance(module, str):
        return True  # pickle knows, or says that it cannot
    held = getattr(sys.modules.get(module), "__dict__", {})
    return module not in _MAINS and _resolve(held, value.__qualname__) is value


def reduce(pickler, value):
    """`reducer_override` of multiprocessing's picklers."""
    kind = type(value)
    if kind is types.FunctionType or kind is _CACHED or issubclass(kind, type):
        if kind in getattr(pickler, "dispatch_table", ()) or _is_importable(value):
            return NotImplemented
        where = _name_in_main(value)
        if where is None:
            payload, needs = _dump(value, None)
            return _load, (payload, _tracker_id(value), names.items(needs))
        items = names.items([where.partition(".")[0]])
        return (_named, (where, items)) if items else NotImplemented
    if isinstance(value, BaseException):
        return _reduce_exception(value)
    return NotImplemented


def _reduce_exception(value):
    """An exception whose `__init__` takes something else than `args` cannot be made by calling it."""
    kind = type(value)
    if (kind.__reduce__ is BaseException.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
            and type(kind.__init__) is types.FunctionType
            and type(kind.__new__) is not types.FunctionType):
        return _make_exception, (kind, value.args), value.__dict__ or None
    return NotImplemented


def _make_exception(kind, args):
    return kind.__new__(kind, *args)


def _named(where, items):
    names.offer(items)
    return names.find(where, items)


def _find(where):
    return names.find(where)


def _load(payload, tracker_id, items):
    names.offer(items)
    if tracker_id is not None:
        from cloudpickle import cloudpickle
        # It comes back: it is as it was, and what it holds must not be set anew.
        known = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
        if known is not None:
            return known
    return pickle.loads(payload)


def _tracker_id(value):
    if not isinstance(value, type):
        return None
    from cloudpickle import cloudpickle
    return cloudpickle._get_or_create_tracker_id(value)


class _Later:
    """Pickled, a call that the receiver makes."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def _missing(name, reason):
    return Missing(name, reason)


def _bind(name, make, args):
    """Makes a function or class and gives it its name at once: what it holds may refer to it."""
    value = make(*args)
    _globals()[name] = value
    return value


def _make_concrete(make, args):
    """A class that is made without its methods: what it holds may be instances of it."""
    kind = make(*args)
    kind.__abstractmethods__ = frozenset()
    return kind


def _cache(function, parameters, attributes):
    cached = functools.lru_cache(**parameters)(function)
    cached.__dict__.update(attributes)
    return cached


def _dump(value, name):
    """The pickle of a value, by value, and the names that it needs. It is to have `name`, or None."""
    buffer = io.BytesIO()
    pickler = _pickler()(buffer, value, name)
    pickler.dump(value)
    pickler.needs.pop(name, None)
    return buffer.getvalue(), [need for need in pickler.needs if need not in _SKIPPED]


@functools.cache
def _pickler():
    from cloudpickle import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def __init__(self, file, root, name):
            # Looked up when it is initialized.
            self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, types.CodeType: reduce_code,
                                   **reduction.ForkingPickler._extra_reducers}
            super().__init__(file)
            self.root, self.name, self.needs = root, name, {}

        def reducer_override(self, value):
            if not _is_definition(value):
                return _reduce_exception(value) if isinstance(value, BaseException) else NotImplemented
            where = _name_in_main(value)
            if where and (first := where.partition(".")[0]) != self.name:
                self.needs[first] = None
                return _find, (where,)
            if type(value) is _CACHED:
                if _is_importable(value):
                    return NotImplemented
                attributes = {key: item for key, item in value.__dict__.items() if key != "__wrapped__"}
                reduced = _cache, (value.__wrapped__, value.cache_parameters(), attributes)
            else:
                reduced = super().reducer_override(value)
                if isinstance(value, abc.ABCMeta) and reduced is not NotImplemented:
                    reduced = (_make_concrete, reduced[:2], *reduced[2:])
            if value is self.root and self.name and reduced is not NotImplemented:
                reduced = (_bind, (self.name, *reduced[:2]), *reduced[2:])
            return reduced

        def _dynamic_function_reduce(self, function):
            make, args, state, *rest = super()._dynamic_function_reduce(function)
            if function.__globals__ is _globals():
                self.needs.update(dict.fromkeys(state[1]["__globals__"]))
                state[1]["__globals__"] = {}
                args = (args[0], _Later(_globals), *args[2:])
            return make, args, state, *rest

    def reduce_code(code):
        make, args = cloudpickle._code_reduce(code)
        # Tracebacks of the child say where it was defined.
        return make, (*args[:10], code.co_filename, *args[11:])

    return Pickler


def _references(value):
    """Names of `__main__` that a function or class refers to, as far as can be seen without pickling."""
    from cloudpickle import cloudpickle
    found, todo, seen = [], [value], set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, types.FunctionType):
            if item.__globals__ is _globals():
                found += cloudpickle._extract_code_globals(item.__code__)
            for cell in item.__closure__ or ():
                try:
                    todo.append(cell.cell_contents)
                except ValueError:
                    pass  # empty
        elif isinstance(item, type) and item.__module__ in _MAINS:
            todo += [*item.__bases__, *vars(item).values()]
        elif isinstance(item, (classmethod, staticmethod, _CACHED)):
            todo.append(item.__wrapped__)
        elif isinstance(item, property):
            todo += filter(None, (item.fget, item.fset, item.fdel))
    return found


# -- what is hooked into multiprocessing


def install_pickler(module):
    module.ForkingPickler.reducer_override = reduce


def install_joblib(module):
    module.CustomizablePickler.reducer_override = reduce


def install_spawn(module):
    plain = module.get_preparation_data

    def get_preparation_data(name):
        names.note_start()
        data = plain(name)
        # No script is run again, whatever `__file__` says.
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
        return data | {"sandcell": Begin("begin")}

    module.get_preparation_data = get_preparation_data


def install_loky(module):
    plain = module.get_preparation_data
    module.get_preparation_data = lambda *args, **options: (
        plain(*args, **options) | {"sandcell": Begin("begin_loky")})


def install_fork(module):
    plain = module.Popen._launch

    def _launch(self, process_obj):
        names.note_start()
        process_obj._sandcell_had = {name: id(value) for name, value in list(_globals().items())}
        plain(self, process_obj)

    module.Popen._launch = _launch


# -- pools
#
# multiprocessing.Pool starts a worker that fails again and again, and waits for ever for the result of
# one that has ended, or for a task or a result that cannot be unpickled. Here each is an exception.


class _Enclosed:
    """Pickled, something whose unpickling may fail: that is kept until it is opened."""

    def __init__(self, value):
        self.open = lambda: value

    def __reduce__(self):
        return _enclosed, (bytes(reduction.ForkingPickler.dumps(self.open())),)


def _enclosed(data):
    enclosed = _Enclosed(None)
    enclosed.open = lambda: pickle.loads(data)
    return enclosed


class _Result:
    """Pickled, a worker's (success, value)."""

    def __init__(self, pair):
        self.pair = pair

    def __reduce__(self):
        return _open_result, (bytes(reduction.ForkingPickler.dumps(self.pair)),)


def _open_result(data):
    try:
        return pickle.loads(data)
    except Exception as error:
        return False, error


def _call(enclosed):
    function, args, kwds = enclosed.open()
    return function(*args, **kwds)


class _Answers:
    """A worker's queue of results."""

    def __init__(self, queue):
        self.queue, self._reader = queue, queue._reader

    def put(self, answer):
        job, number, pair = answer
        self.queue.put((job, number, _Result(pair)))


class _Failing:
    """A worker's queue of tasks where its initializer has failed: each gives that."""

    def __init__(self, queue, task):
        self.queue, self.task, self._writer = queue, task, queue._writer

    def get(self):
        task = self.queue.get()
        return task and (*task[:2], *self.task)


def work(inqueue, outqueue, initializer=None, initargs=(), maxtasks=None, wrap_exception=False):
    """A worker of a pool."""
    from multiprocessing import pool, queues
    if type(outqueue) is queues.SimpleQueue and hasattr(outqueue, "_reader"):
        outqueue = _Answers(outqueue)
        if initializer is not None:
            try:
                _call(initializer)
            except Exception as error:
                inqueue = _Failing(inqueue, (pool._helper_reraises_exception, (error,), {}))
            initializer = None
    _plain_worker(inqueue, outqueue, initializer, initargs, maxtasks, wrap_exception)


_plain_worker = None


def install_pool(module):
    global _plain_worker
    from multiprocessing import queues
    _plain_worker, module.worker = module.worker, work
    pools = module.Pool
    repopulate, setup, check = (pools._repopulate_pool_static, pools._setup_queues,
                                pools._check_running)
    handle, join = pools._handle_workers.__func__, pools._join_exited_workers

    def _repopulate_pool_static(ctx, Process, processes, pool, inqueue, outqueue, initializer,
                                initargs, *rest):
        if initializer is not None and type(outqueue) is queues.SimpleQueue:
            initializer = _Enclosed((initializer, initargs, {}))
        repopulate(ctx, Process, processes, pool, inqueue, outqueue, initializer, (), *rest)

    def _setup_queues(self):
        setup(self)
        if type(self._inqueue) is queues.SimpleQueue:
            send = self._quick_put
            self._quick_put = lambda task: send(
                task and (*task[:2], _call, (_Enclosed(task[2:]),), {}))

    def _handle_workers(cls, cache, *rest):
        # (taskqueue, ctx, Process, processes, pool, inqueue, outqueue, initializer, initargs,
        # maxtasksperchild, ...)
        threading.current_thread().pool = cache, rest[5], rest[6], rest[9]
        handle(cls, cache, *rest)

    def _join_exited_workers(workers):
        thread = threading.current_thread()
        cache, inqueue, outqueue, maxtasks = getattr(thread, "pool", (None,) * 4)
        codes = [worker.exitcode for worker in workers]
        # A worker that has ended by now and had not before is for the next time.
        exited = [worker for worker, code in zip(workers, codes) if code is not None]
        join(exited)
        workers[:] = [worker for worker, code in zip(workers, codes) if code is None]
        lost = [code for code in codes if code or (code == 0 and maxtasks is None)]
        if not lost or cache is None or thread._state != module.RUN:
            return len(workers) < len(codes) and not getattr(cache, "broken", None)
        cache.broken = (f"a worker process of the pool {_end(lost[0])}: what it worked on and what waited "
                        "is lost")
        for worker in workers:
            worker.kill()
            worker.join()
        workers.clear()
        # One that was killed may have held them.
        for lock in (inqueue._rlock, outqueue._wlock):
            lock.acquire(block=False)
            lock.release()
        for result in list(cache.values()):
            _fail(result, RuntimeError(cache.broken))
        return False

    def _check_running(self):
        check(self)
        if broken := getattr(self._cache, "broken", None):
            raise RuntimeError(broken)

    def _fail(result, error):
        # What the pool's threads say of it later goes nowhere.
        del result._cache[result._job]
        result._cache = {result._job: result}
        # Not released here: who releases a pool last ends it, and waits for this thread.
        pool = result._pool
        if isinstance(result, module.IMapIterator):
            result._set(result._index, (False, error))
            result._length = result._index
        else:
            result._number_left = 1  # of the chunks of a map
            result._set(0, (False, error))
        result._pool = pool

    pools._repopulate_pool_static = staticmethod(_repopulate_pool_static)
    pools._setup_queues = _setup_queues
    pools._handle_workers = classmethod(_handle_workers)
    pools._join_exited_workers = staticmethod(_join_exited_workers)
    pools._check_running = _check_running


def _end(code):
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
