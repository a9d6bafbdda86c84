"""Environment variables that a kernel is given after its start, and what it is to believe of its limits.

Most variables are read when they are used, and nothing needs to be done but to set them. Those that Python
or a library reads once are of three kinds:

- what the start of a process does with them can be done later: `_FOLLOWED` says how. At the end of an
  execution what was done for it is undone.
- nothing can be done any more: `FIXED`, and `_AT_IMPORT` once the library that reads it is there. Programs
  that the kernel starts have the variable and the kernel has not, and the answer names it.
- the value is of no use to the one who reads it: the answer names it as well.

A variable that user code sets in `os.environ` is its own matter, as it is in any Python.
"""

import ctypes
import os
import re
import sys
import warnings
# Bound here, as user code may replace what the modules have.
from os import environ
from posix import cpu_count
from time import tzset

from IPython import get_ipython

# Read when an interpreter or a process starts and never again (`python3 --help-env`, ld.so(8), mallopt(3)).
FIXED = frozenset((
    "PYTHONCOERCECLOCALE", "PYTHONDEBUG", "PYTHONDEVMODE", "PYTHONDUMPREFS", "PYTHONDUMPREFSFILE",
    "PYTHONEXECUTABLE", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONINSPECT", "PYTHONMALLOC",
    "PYTHONMALLOCSTATS", "PYTHONNODEBUGRANGES", "PYTHONNOUSERSITE", "PYTHONOPTIMIZE",
    "PYTHONPERFSUPPORT", "PYTHONPLATLIBDIR", "PYTHONPROFILEIMPORTTIME", "PYTHONIMPORTTIME",
    "PYTHONSTARTUP", "PYTHONSTATS", "PYTHONUSERBASE", "PYTHONUTF8", "PYTHONVERBOSE",
    "PYTHONWARNDEFAULTENCODING", "PYTHON_BASIC_REPL", "PYTHON_FROZEN_MODULES", "PYTHON_GIL",
    "PYTHON_HISTORY", "PYTHON_JIT", "PYTHON_PERF_JIT_SUPPORT", "PYTHON_PRESITE",
    "GLIBC_TUNABLES", "LD_AUDIT", "LD_BIND_NOW", "LD_DEBUG", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "LOCPATH", "MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST", "MALLOC_CHECK_", "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_PERTURB_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_",
))

# Read when a library is imported. Figures are results of an execution, whatever the backend.
_AT_IMPORT = {
    "MATPLOTLIBRC": "matplotlib",
    "MPLBACKEND": "matplotlib",
    "MPLCONFIGDIR": "matplotlib",
    "NUMEXPR_MAX_THREADS": "numexpr",
    "OPENBLAS_CORETYPE": "numpy",
    "OPENBLAS_MAIN_FREE": "numpy",
    "OPENBLAS_VERBOSE": "numpy",
    "OPENSSL_CONF": "_ssl",
    "POLARS_MAX_THREADS": "polars",
    "RAYON_NUM_THREADS": "polars",
}


class Change:
    """Variables that are set, and what that led to."""

    def __init__(self, variables):
        self.variables = variables
        self.saved = {}
        self.steps = []
        self.not_applied = []

    def apply(self, fresh=False):
        """`fresh`: no user code has run yet, so no library was loaded since the zygote looked."""
        followers = {}
        for name, value in self.variables.items():
            self.saved[name] = environ.get(name)
            try:
                environ[name] = value
            except ValueError as error:
                print(f"environment variable {name!r} not set: {error}", file=sys.stderr)
                del self.saved[name]
                continue
            if follow := _FOLLOWED.get(name):
                followers.setdefault(follow, []).append(name)
            elif _is_fixed(name, value):
                self.not_applied.append(name)
        if _follow_threads in followers and not fresh:
            find_runtimes()
        for follow, names in followers.items():
            try:
                self.steps.append(follow(names, self.refuse))
            except Exception:  # a number that is too large, say
                self.refuse(names)

    def refuse(self, names):
        """Their values are of no use, or not in this kernel."""
        self.not_applied += names
        return _nothing

    def undo(self):
        for name, value in self.saved.items():
            _attempt(environ.pop, name, None)
            if value is not None:
                _attempt(environ.__setitem__, name, value)
        for step in reversed(self.steps):
            _attempt(step)


def _attempt(function, *arguments):
    """What is to be put back may be of user code's making by now."""
    try:
        function(*arguments)
    except Exception:
        pass


def _is_fixed(name, value):
    if name in FIXED:
        return bool(value) or not name.startswith("PYTHON")  # an empty one is none, to Python
    if name == "PYTHONIOENCODING":
        # Streams of an execution are UTF-8, as its answer is.
        return value.lower() not in ("", "utf-8", "utf8")
    return _AT_IMPORT.get(name) in sys.modules


# -- what variables lead to. Each function takes those names of its own that were set, and what refuses some,
# and gives what undoes it once the variables are what they were.

def _follow_time_zone(names, refuse):
    tzset()
    return tzset


_path_entries = []


def _follow_path(names, refuse):
    before = list(_path_entries)
    entries = environ["PYTHONPATH"].split(os.pathsep)
    _replace_path_entries([os.path.abspath(entry) for entry in entries if entry])
    return lambda: _replace_path_entries(before)


def _replace_path_entries(entries):
    for entry in _path_entries:
        if entry in sys.path:
            sys.path.remove(entry)
    at = 1 if sys.path[:1] == [""] else 0
    sys.path[at:at] = entries
    _path_entries[:] = entries


def _follow_safe_path(names, refuse):
    if not environ["PYTHONSAFEPATH"] or "" not in sys.path:
        return _nothing
    at = sys.path.index("")
    del sys.path[at]
    return lambda: sys.path.insert(at, "")


def _follow_warnings(names, refuse):
    filters, options = list(warnings.filters), list(sys.warnoptions)
    wrong = False
    for option in filter(None, environ["PYTHONWARNINGS"].split(",")):
        try:
            warnings._setoption(option)
            sys.warnoptions.append(option)
        except warnings._OptionError:
            wrong = True
    ours = list(warnings.filters)

    def undo():
        now = warnings.filters
        if len(now) == len(ours) and all(map(_is, now, ours)):
            now[:] = filters
        else:  # user code has changed them too, and its filters stay
            added = {id(item) for item in ours} - {id(item) for item in filters}
            now[:] = [item for item in now if id(item) not in added]
            now += [item for item in filters if item not in now]
        sys.warnoptions[:] = options
        warnings._filters_mutated()

    if wrong:
        undo()
        return refuse(names)
    return undo


def _is(one, other):
    return one is other


def _follow_locale(names, refuse):
    """As the start of an interpreter: only what characters are (LC_CTYPE), and C is taken for C.UTF-8
    (PEP 538)."""
    import locale
    before = locale.setlocale(locale.LC_CTYPE)
    wanted = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8" if wanted in ("C", "POSIX") else wanted)
    except locale.Error:
        return refuse(names)
    return lambda: locale.setlocale(locale.LC_CTYPE, before)


def _follow_temporary_directory(names, refuse):
    tempfile = sys.modules.get("tempfile")
    if tempfile is None:
        return _nothing
    before, tempfile.tempdir = tempfile.tempdir, None
    return lambda: setattr(tempfile, "tempdir", before)


def _follow_bytecode(names, refuse):
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = bool(environ["PYTHONDONTWRITEBYTECODE"])
    return lambda: setattr(sys, "dont_write_bytecode", before)


def _follow_bytecode_prefix(names, refuse):
    before = sys.pycache_prefix
    sys.pycache_prefix = environ["PYTHONPYCACHEPREFIX"] or None
    return lambda: setattr(sys, "pycache_prefix", before)


def _follow_digits(names, refuse):
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(int(environ["PYTHONINTMAXSTRDIGITS"]))
    except ValueError:
        return refuse(names)
    return lambda: sys.set_int_max_str_digits(before)


def _follow_memory_traces(names, refuse):
    import tracemalloc
    try:
        frames = int(environ["PYTHONTRACEMALLOC"] or 0)
        if frames == 0 or tracemalloc.is_tracing():
            return _nothing
        tracemalloc.start(frames)
    except ValueError:
        return refuse(names)
    return tracemalloc.stop


def _follow_loop_debugging(names, refuse):
    """A loop that is made later looks itself."""
    loop = getattr(get_ipython(), "loop", None)
    if loop is None:
        return _nothing
    before = loop.get_debug()
    loop.set_debug(bool(environ["PYTHONASYNCIODEBUG"]))
    return lambda: loop.set_debug(before)


def _follow_processors(names, refuse):
    before = os.cpu_count, os.process_cpu_count
    value = environ["PYTHON_CPU_COUNT"]
    # As the interpreter has it: "default" is what the system says.
    count = cpu_count() if value in ("", "default") else _positive(value)
    if count is None:
        return refuse(names)
    os.cpu_count = os.process_cpu_count = cpu_count if count == cpu_count() else lambda: count

    def undo():
        os.cpu_count, os.process_cpu_count = before
    return undo


def _nothing():
    pass


# -- threads of numeric libraries

_OPENMP = "OMP_NUM_THREADS"

# Name of the library's file, what sets and tells its threads, and the variables that it reads at its
# start, the first that is set. numpy and scipy each bring an OpenBLAS of their own, with a suffix in its
# symbols.
_RUNTIMES = (
    ("openblas", (("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
                  ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
                  ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
                  ("openblas_set_num_threads", "openblas_get_num_threads")),
     ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", _OPENMP)),
    ("libgomp", (("omp_set_num_threads", "omp_get_max_threads"),), (_OPENMP,)),
    ("libomp", (("omp_set_num_threads", "omp_get_max_threads"),), (_OPENMP,)),
    ("libiomp", (("omp_set_num_threads", "omp_get_max_threads"),), (_OPENMP,)),
    ("mkl_rt", (("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),), ("MKL_NUM_THREADS", _OPENMP)),
    ("libblis", (("bli_thread_set_num_threads", "bli_thread_get_num_threads"),),
     ("BLIS_NUM_THREADS", _OPENMP)),
)
_LIBRARY = re.compile(r"/\S*/([^/\s]*(?:openblas|libgomp|libomp|libiomp|mkl_rt|libblis)[^/\s]*\.so[^/\s]*)$",
                      re.MULTILINE)

# Of each loaded library: its functions and variables, by its path.
_runtimes = {}


def find_runtimes():
    """Looks for libraries with threads. In the zygote, so that a kernel finds them bound, and in a kernel
    whose code may have loaded others."""
    with open("/proc/self/maps") as maps:
        found = {match[0] for match in _LIBRARY.finditer(maps.read())}
    for path in sorted(found - _runtimes.keys()):
        file = os.path.basename(path)
        for part, functions, variables in _RUNTIMES:
            if part in file:
                if bound := _bind(path, functions):
                    _runtimes[path] = *bound, variables
                break


def _bind(path, functions):
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    for setter, getter in functions:
        setter, getter = getattr(library, setter, None), getattr(library, getter, None)
        if setter is not None and getter is not None:
            setter.argtypes, setter.restype = [ctypes.c_int], None
            getter.argtypes, getter.restype = [], ctypes.c_int
            return setter, getter
    return None


def _all_runtimes():
    """Setter, getter and variables of all that is loaded."""
    found = dict(_runtimes)
    if numexpr := sys.modules.get("numexpr"):
        found[numexpr.__name__] = (numexpr.set_num_threads, numexpr.get_num_threads,
                                   ("NUMEXPR_NUM_THREADS", _OPENMP))
    if pyarrow := sys.modules.get("pyarrow"):
        found[pyarrow.__name__] = pyarrow.set_cpu_count, pyarrow.cpu_count, (_OPENMP,)
    if numba := sys.modules.get("numba"):
        found[numba.__name__] = numba.set_num_threads, numba.get_num_threads, ("NUMBA_NUM_THREADS",)
    return found


def set_threads(count):
    """Variables and libraries of a kernel that has so many processors, before user code runs."""
    environ.update(thread_environment(count))
    for setter, _, _ in _runtimes.values():
        setter(count)
    if pyarrow := sys.modules.get("pyarrow"):
        pyarrow.set_cpu_count(count)


def thread_environment(count):
    return dict.fromkeys(_THREADS_OF_PROGRAMS, str(count))


def _follow_threads(names, refuse):
    """OpenMP's own setting is of the calling thread: that of the executions."""
    before = {}
    wrong = {name for name in names if _positive(environ[name].partition(",")[0]) is None}
    for key, (setter, getter, variables) in _all_runtimes().items():
        count = _threads_of(variables)
        try:
            if count != (now := getter()):
                setter(count)
                before[key] = setter, now
        except ValueError:  # numba takes no more than there were at its import
            wrong.update(name for name in variables if name in names)

    def undo():
        find_runtimes()
        for key, (setter, _, variables) in _all_runtimes().items():
            if key in before:
                setter(before[key][1])
            elif key not in known:  # loaded meanwhile, to the variables of then
                setter(_threads_of(variables))

    refuse(sorted(wrong))
    known = set(_all_runtimes())
    return undo


def _threads_of(variables):
    for name in variables:
        if count := _positive(environ.get(name, "").partition(",")[0]):
            return count
    return os.cpu_count() or 1


def _positive(text):
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number > 0 else None


# As `thread_env` of src/supervisor/setup.rs, for programs that the kernel starts.
_THREADS_OF_PROGRAMS = (_OPENMP, "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS",
                        "GOMAXPROCS", "PYTHON_CPU_COUNT")

_FOLLOWED = {
    "LANG": _follow_locale,
    "LC_ALL": _follow_locale,
    "LC_CTYPE": _follow_locale,
    "PYTHONASYNCIODEBUG": _follow_loop_debugging,
    "PYTHONDONTWRITEBYTECODE": _follow_bytecode,
    "PYTHONINTMAXSTRDIGITS": _follow_digits,
    "PYTHONPATH": _follow_path,
    "PYTHONPYCACHEPREFIX": _follow_bytecode_prefix,
    "PYTHONSAFEPATH": _follow_safe_path,
    "PYTHONTRACEMALLOC": _follow_memory_traces,
    "PYTHONWARNINGS": _follow_warnings,
    "PYTHON_CPU_COUNT": _follow_processors,
    "TEMP": _follow_temporary_directory,
    "TMP": _follow_temporary_directory,
    "TMPDIR": _follow_temporary_directory,
    "TZ": _follow_time_zone,
} | dict.fromkeys((_OPENMP, "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS",
                   "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"), _follow_threads)


# -- limits

_PAGES_OF = {name: field for field, names in {
    "MemTotal:": ("SC_PHYS_PAGES", os.sysconf_names["SC_PHYS_PAGES"]),
    "MemAvailable:": ("SC_AVPHYS_PAGES", os.sysconf_names["SC_AVPHYS_PAGES"]),
}.items() for name in names}
_sysconf = os.sysconf
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


def see_limits():
    """In the zygote. What Python asks the system for goes by files that show the sandbox's limits, but
    for two answers that come from system calls of the host's: the processors of the affinity mask, and
    the memory of sysinfo(2)."""
    os.process_cpu_count = os.cpu_count
    os.sysconf = sysconf


def sysconf(name, /):
    """In the place of os.sysconf()."""
    field = _PAGES_OF.get(name)
    if field is None:
        return _sysconf(name)
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        kib = next(int(line.split()[1]) for line in meminfo if line.startswith(field))
    return kib // _PAGE_KIB
