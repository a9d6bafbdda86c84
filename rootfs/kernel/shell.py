"""IPython's shell, made to run one execution at a time for a client that is not a terminal."""

import ast
import asyncio
import builtins
import codeop
import dis
import io
import os
import re
import sys
from _thread import get_ident
from asyncio.events import _get_running_loop
from posix import close, getpid

from IPython.core.autocall import ExitAutocall, IPyAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from IPython.core.inputtransformer2 import leading_indent
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.macro import Macro
from IPython.utils.text import LSString, SList
from traitlets import Type, default
from traitlets.config import Config

from _sandcell import commands, figures, stdin, structured, tracebacks
from _sandcell.loops import Loops


# Code without any of these is what it looks like (IPython 9: core/inputtransformer2.py): escapes and help,
# prompts, white space before the first line, and what ends a line for IPython and not for a pattern.
_MAYBE_MAGIC = re.compile(r"[%!?\r\v\f\x1c-\x1e\x85\u2028\u2029]|\A(?:\s|\Z)"
                          r"|^[ \t]*(?:[,;/]|>>>|\.\.\.|In \[)", re.MULTILINE)
# The instruction that calls `sys.displayhook`, and nothing else does in code of a module.
_DISPLAY = dis.opmap["CALL_INTRINSIC_1"]
# Runs where code that runs has IPython run more: no code at all.
_NESTED = object()
# Take the name of a script, or else read it from standard input.
_SHELLS = ("bash", "sh")
_FIRST_WORD = re.compile(r"[\w.*]*")

# Displays of threads that outlive their execution, kept for the next one; the rest is dropped.
MAX_LATE = 20

_create_task = asyncio.create_task
_wait = asyncio.wait


class Compiler(CachingCompiler):
    """Names an execution's code as tracebacks, warnings and `inspect` will show it."""

    def ast_parse(self, source, filename="<unknown>", symbol="exec"):
        # Nobody types the rest: `print(1` is "'(' was never closed" and not "incomplete input".
        flags = self.flags & ~codeop.PyCF_ALLOW_INCOMPLETE_INPUT | ast.PyCF_ONLY_AST
        return compile(source, filename, symbol, flags, 1)

    # The execution that runs now: code that it runs through IPython in turn is a part of it.
    running = None

    def get_code_name(self, raw_code, transformed_code, number):
        number = self.running or number
        name, copy = f"<execution {number}>", 1
        while name in self._filename_map:
            copy += 1
            name = f"<execution {number}-{copy}>"
        return name


class ResultHook(DisplayHook):
    """`sys.displayhook`: the value of the last expression becomes a result."""

    guard = None

    def __call__(self, result=None):
        turn = self.guard.suspend()
        try:
            super().__call__(result)
        finally:
            self.guard.resume(turn)

    def quiet(self):
        # IPython tokenizes the whole code to see whether a `;` ends it.
        code = self.shell.history_manager.input_hist_parsed[-1]
        return ";" in code.rstrip().rpartition("\n")[2] and super().quiet()

    def update_user_ns(self, result):
        self.shell.mend_names()
        super().update_user_ns(result)

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        if execution := self.shell.execution:
            # Of the code that calls `sys.displayhook`, by way of our hook and IPython's; a thread may begin
            # with it.
            frame = sys._getframe(2).f_back
            last = execution.ends_at_once and frame is not None and self.shell.ends_with(frame)
            execution.result("execute_result", format_dict, md_dict, last=last)

    def log_output(self, format_dict):
        pass  # IPython keeps a copy of everything shown, for ever

    def finish_displayhook(self):
        self._is_active = False


class Publisher(DisplayPublisher):
    """What `display()` calls."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        self._validate_data(data, metadata)
        display_id = (transient or {}).get("display_id")
        shown = "update" if update else "display", data, metadata, display_id
        if execution := self.shell.execution:
            execution.result(*shown)
        elif len(self.shell.late) < MAX_LATE:
            self.shell.late.append(shown)

    def clear_output(self, wait=False):
        if execution := self.shell.execution:
            execution.clear_output(wait)


# What has only its text, unless somebody registers more: no instance has attributes of its own.
PLAIN = frozenset((bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple,
                   type(None)))


class Formatter(DisplayFormatter):
    # Where formatters keep what was registered, looked up once: a trait takes a microsecond.
    tables = ()
    tables_of = 0

    def format(self, obj, include=None, exclude=None):
        if type(obj) in PLAIN and not include and not exclude and not self.knows(obj):
            text = self.formatters["text/plain"](obj)
            return {"text/plain": self.instead_of(obj) if text is None else text}, {}
        figures.note_displayed(obj)
        self.parent.failed_format = None
        try:
            data, metadata = super().format(obj, include, exclude)
        except Exception:  # of IPython, over a bundle that is none
            self.parent.showtraceback()
            data, metadata = {}, {}
        some = {mime: value for mime, value in data.items() if value is not None}
        if data and not some:
            some = {"text/plain": self.formatters["text/plain"](obj) or object.__repr__(obj)}
        data = some
        if not data and self.parent.failed_format is not None:
            data = {"text/plain": self.instead_of(obj)}
        if "image/png" in data:
            data.pop("image/jpeg", None)  # Pillow gives every picture as both
        if data and include is None:
            data |= structured.of(obj)
        return data, metadata

    def instead_of(self, obj):
        """Text for an object that has none: what its formatter raised, which IPython has shown."""
        error, self.parent.failed_format = self.parent.failed_format, None
        if error is None:
            return object.__repr__(obj)
        name, value, _ = tracebacks.describe(error, 2000)
        return f"<{tracebacks.class_name(obj)} object whose repr raised {name}: {value}>"

    def knows(self, obj):
        """Whether something is registered that shows this object as more than its text."""
        formatters = self.formatters
        if self.tables_of != len(formatters):
            others = [self.ipython_display_formatter, self.mimebundle_formatter,
                      *(of for mime, of in formatters.items() if mime != "text/plain")]
            self.tables = [table for of in others for table in (
                of.singleton_printers, of.type_printers, of.deferred_printers)]
            self.tables_of = len(formatters)
        return any(table and _is_in(table, obj) for table in self.tables)


def _is_in(table, obj):
    return id(obj) in table or any(kind in table or (kind.__module__, kind.__name__) in table
                                   for kind in type(obj).__mro__)


class Exit(ExitAutocall):
    """`exit`, `exit()` and `exit(3)`: IPython's own takes no status and asks for a terminal."""

    def __call__(self, code=None):
        raise SystemExit(code)

    def __repr__(self):
        return "Use exit() to end the execution"


class Shell(InteractiveShell):
    displayhook_class = Type(ResultHook)
    display_pub_class = Type(Publisher)
    compiler_class = Type(Compiler)

    @default("exiter")
    def _our_exiter(self):
        return Exit(self)

    # The execution that runs now; what is displayed belongs to it.
    execution = None
    # What of it runs now; not what that runs through IPython in turn.
    running_code = None
    # What was shown last while an object was formatted.
    failed_format = None

    def __init__(self, guard, **kwargs):
        self.guard = ResultHook.guard = guard
        self.loops = Loops()
        self.late = []
        super().__init__(**kwargs)
        cleanups = self.input_transformer_manager.cleanup_transforms
        cleanups[cleanups.index(leading_indent)] = _leading_indent
        self.note_hooks()

    # Profiles, startup files and databases of a person at a terminal: none of it is read or written.
    def _ipython_dir_changed(self, change):
        pass  # IPython would make the directory

    def init_ipython_dir(self, ipython_dir):
        self.ipython_dir = os.path.join(os.path.expanduser("~"), ".ipython")

    def init_profile_dir(self, profile_dir):
        self.db = {}

    def init_virtualenv(self):
        pass

    def init_completer(self):
        pass

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_user_ns(self):
        super().init_user_ns()
        # The real open(): descriptors 1 and 2 are put right again before each execution.
        for names in (self.user_ns, self.user_ns_hidden):
            names.pop("open", None)
        # A module has one; without it multiprocessing cannot spawn.
        self.user_ns["__spec__"] = None

    def mend_names(self):
        """IPython looks these up among the user's own names: taken or deleted, nothing would run."""
        history = self.history_manager
        self.user_ns["_ih"] = history.input_hist_parsed
        self.user_ns["_oh"] = history.output_hist
        self.user_ns["_dh"] = history.dir_hist
        self.user_ns["get_ipython"] = self.get_ipython
        # Without it, code would get the kernel's own builtins.
        self.user_ns.setdefault("__builtins__", builtins)

    def init_hooks(self):
        super().init_hooks()
        self.set_hook("show_in_pager", _print_page, 0)

    def enable_matplotlib(self, gui=None):
        # `%matplotlib inline`: figures are shown as it is. There is no page that those of a notebook could live in.
        import matplotlib.pyplot
        if gui in ("notebook", "nbagg", "widget", "ipympl"):
            gui = "inline"
        matplotlib.pyplot.switch_backend(gui or "inline")
        return gui, figures.BACKEND

    # -- running code

    def run(self, code):
        """Runs code as an execution. Returns the exception that ended it, or None."""
        problem = None
        self.running_code = None
        self.mend_names()
        try:
            cell = self.transform_cell(code)
        except Exception:
            cell, problem = code, sys.exc_info()
        self.compile.running = self.execution_count
        coroutine = self.run_cell_async(code, store_history=True, transformed_cell=cell,
                                        preprocessing_exc_tuple=problem)
        # should_run_async compiles the code a second time: not needed where the word is missing.
        if problem is None and ("await" in cell or "async" in cell) and self.should_run_async(
                code, transformed_cell=cell, preprocessing_exc_tuple=None):
            result = self._run_in_loop(coroutine)
        else:
            result = _run_without_loop(coroutine)
            if self.loops.all():
                self._begin_tasks()
        # run_cell fires these, run_cell_async does not.
        self.events.trigger("post_execute")
        self.events.trigger("post_run_cell", result)
        return result.error_before_exec or result.error_in_exec

    def note_hooks(self):
        """In the zygote: who transforms code now, and is called after it, does nothing to plain code."""
        self.own_transforms = self._transforms()
        self.own_followers = self._followers()

    def transform_cell(self, raw_cell):
        """As IPython's, which looks at every token, where there may be something for it to transform."""
        if self._is_python(raw_cell):
            return raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
        return super().transform_cell(raw_cell)

    def _is_python(self, code):
        """Whether nothing in it can be meant for IPython, and nobody else transforms code."""
        if _MAYBE_MAGIC.search(code) or self._transforms() != self.own_transforms:
            return False
        if "\n" in code.rstrip("\n"):
            return True
        # Of a single line the first word may be a magic's, an alias or an object that calls itself.
        word = _FIRST_WORD.match(code)[0]
        if self.autocall or isinstance(self.user_ns.get(word), (IPyAutocall, Macro)):
            return False
        return not (self.automagic and self.find_magic(word))

    def _transforms(self):
        first, then = self.input_transformer_manager, self.prefilter_manager
        return [*first.cleanup_transforms, *first.line_transforms, *first.token_transformers,
                *self.input_transformers_post, *then.transformers, *then.checkers]

    def ends_with(self, frame):
        """Whether an execution ends with the value that this frame displays: it is that of the last
        expression, and there are no figures, tasks, functions that others want to have called then, nor
        streams of theirs to flush."""
        code = frame.f_code
        return (code is self.running_code and code.co_code[frame.f_lasti] == _DISPLAY
                and type(sys.stdout) is type(sys.stderr) is io.TextIOWrapper
                and self.ast_node_interactivity in ("last_expr", "last_expr_or_assign")
                and not self.loops.all() and not figures.are_open()
                and self._followers() == self.own_followers)

    def _followers(self):
        callbacks = self.events.callbacks
        return [*callbacks["post_execute"], *callbacks["post_run_cell"]]

    def run_cell(self, *args, **kwargs):
        """Code within an execution: what `%%capture` runs must show its figures there."""
        result = super().run_cell(*args, **kwargs)
        figures.show()
        return result

    async def run_code(self, code_obj, result=None, *, async_=False):
        """As IPython's, but every exception is an outcome, SystemExit too, and none is printed."""
        outer = self.running_code
        self.running_code = code_obj if outer is None else _NESTED
        turn = self.guard.enter()
        try:
            if async_:
                await eval(code_obj, self.user_global_ns, self.user_ns)
            else:
                exec(code_obj, self.user_global_ns, self.user_ns)
        except BaseException as error:
            self.guard.leave(turn)
            if result is not None:
                result.error_in_exec = error
            if self.custom_exceptions and isinstance(error, self.custom_exceptions):
                self.CustomTB(type(error), error, error.__traceback__)
            else:
                self.showtraceback()
            return True
        finally:
            self.guard.leave(turn)
            self.running_code = outer
        return False

    def create_task(self, coro, **options):
        """`asyncio.create_task` in code that does not await: of the loop that later code awaits in."""
        if _get_running_loop() is None and get_ident() == self.loops.main_thread:
            return self.loops.ready().create_task(coro, **options)
        return _create_task(coro, **options)

    def _begin_tasks(self):
        turn = self.guard.enter()
        try:
            self.loops.begin_tasks()
        except Exception:
            pass  # of a loop that user code has broken; tasks keep their own
        finally:
            self.guard.leave(turn)

    def _run_in_loop(self, coroutine):
        loop = self.loops.ready()
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt as interrupt:
            if not task.done():
                # The loop was waiting. Let the code's own clean-up run, and see where it waited.
                task.cancel()
                loop.run_until_complete(_wait([task], timeout=1))
                if task.done() and not task.cancelled() and not task.exception():
                    waited = task.result().error_in_exec
                    if waited is not None:
                        raise interrupt.with_traceback(waited.__traceback__) from None
            raise

    # -- exceptions

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        try:
            _, value, _ = self._get_exc_info(exc_tuple)
        except ValueError:
            print("No traceback available to show.", file=sys.stderr)
            return
        self.failed_format = value
        if self.execution is not None:
            self.execution.shown.append(value)

    def showsyntaxerror(self, filename=None, running_compiled_code=False):
        self.showtraceback()

    def showindentationerror(self):
        self.showtraceback()

    def _format_exception_for_storage(self, exception, filename=None, running_compiled_code=False):
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    # -- commands

    def system(self, cmd):
        """`!command`: on descriptors 1 and 2 themselves."""
        command = self.var_expand(cmd, depth=1)
        if sys.stdout is sys.__stdout__:
            code = commands.run(command)
        else:  # under %%capture and the like
            code = commands.run(command, sys.stdout.write)
        self.user_ns["_exit_code"] = code

    def getoutput(self, cmd, split=True, depth=0):
        """`x = !command`"""
        parts = []
        code = commands.run(self.var_expand(cmd, depth=depth + 1), parts.append)
        self.user_ns["_exit_code"] = code
        text = "".join(parts)
        return SList(text.splitlines()) if split else LSString(text)

    system_piped = system_raw = system

    def run_cell_magic(self, magic_name, line, cell):
        if magic_name == "script":
            first, _, rest = line.strip().partition(" ")
            if first in _SHELLS:
                magic_name, line = first, rest
        if magic_name in _SHELLS and stdin.is_given() and "--bg" not in line:
            return self._run_script(magic_name, line, cell)
        return super().run_cell_magic(magic_name, line, cell)

    def _run_script(self, program, line, cell):
        """`%%bash` gives the shell its script as standard input. Where the execution has an input, that is
        for what the script runs, and the script is a file."""
        script = stdin.memory_file("script", cell.encode("utf-8", "surrogateescape"))
        given = stdin.memory_file("stdin", stdin.rest())
        try:
            path, input_path = (f"/proc/{getpid()}/fd/{number}" for number in (script, given))
            # `-s` says that arguments follow, and no file.
            line, named = re.subn(r"(?:^|(?<=\s))-s(?=\s|$)", path, line, count=1)
            arguments = line if named else f"{line} {path}"
            line = f"""-c 'exec {program} "$@" <{input_path}' {program} {arguments}"""
            return super().run_cell_magic("sh", line, "\n")
        finally:
            close(given)
            close(script)

    def ask_exit(self):
        raise SystemExit


def _leading_indent(lines):
    # IPython 9's empties lines of white space, in text between quotes too.
    return leading_indent(lines) if lines and lines[0][0].isspace() else lines


def make(guard):
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor"
    shell = Shell.instance(guard=guard, config=config)
    # IPython puts its builtins there for each execution and takes them away after it, and whenever names
    # of builtins come or go, all code has to look up its own anew. Here they stay.
    shell.builtin_trap.__enter__()
    asyncio.create_task = asyncio.tasks.create_task = shell.create_task
    shell.loops.install()
    return shell


def _run_without_loop(coroutine):
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("the code waits for an event loop that it did not ask for")


def _print_page(shell, data, start=0, screen_lines=0):
    print(data["text/plain"] if isinstance(data, dict) else data)
