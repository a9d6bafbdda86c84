"""The kernel: one blocking loop that runs executions and answers on its socket."""

import builtins
import faulthandler
import functools
import getpass
import os
import signal
import sys
from itertools import islice
from math import inf
from time import monotonic

from _sandcell import (commands, environment, figures, files, imports, lockdown, renew, shell, sources,
                       spawning, stdin, streams, tracebacks, warm)
from _sandcell.channel import Channel, encode
from _sandcell.checkpoints import Checkpoints
from _sandcell.execution import Execution
from _sandcell.guard import Guard
from _sandcell.interrupts import Interrupts

# What programs that the code starts, and libraries that it imports, should find set.
ENVIRONMENT = {
    # A MIME bundle with a page that works by itself and loads its script; others hold all 5 MB of it.
    "PLOTLY_RENDERER": "plotly_mimetype+colab",
    # Our backend is chosen without it; programs that the code starts draw for files only.
    "MPLBACKEND": "agg",
}

# Silence after an execution before the state is kept. Who asks sooner has it kept then, and from then on
# at once: it is forked while he reads his answer.
CHECKPOINT_DELAY_MS = 5

# Of what a callback raises while no execution runs.
_MAX_LATE_TRACEBACK_BYTES = 65536

# To look at so many files takes a tenth of a millisecond.
FEW_FILES = 20


class Kernel:
    """Made and rehearsed in the zygote; each fork has its own."""

    def __init__(self):
        self.channel = None
        self.checkpoints = Checkpoints()
        self.told_checkpoint = None
        # Whether the last request came within the delay of the answer before it.
        self.hurried = False
        # Whether a callback of an event loop kept the kernel from a request until its time was up.
        self.overdue = False
        # How many directories the import system knew when user code began.
        self.finders_of_base = sys.maxsize
        # Variables of the execution that runs, where it has any.
        self.change = None
        self.interrupts = Interrupts()
        self.streams = streams.Streams()
        self.guard = Guard()
        self.shell = shell.make(self.guard)
        imports.watch("matplotlib.pyplot", figures.install)
        spawning.install()
        # A crash in C prints where Python was, on descriptor 2, before the signal ends the process.
        faulthandler.enable(2)
        # Scripts find their data beside `__file__`. Not a global of `__main__`: multiprocessing would
        # take it for a file that a spawned child can run.
        builtins.__file__ = os.path.join(lockdown.HOME, "main.py")
        builtins.input = stdin.ask
        getpass.getpass = stdin.ask_secret
        os.system = commands.system
        signal.signal = self.noting_signals(signal.signal)
        environment.see_limits()
        sys.breakpointhook = _no_breakpoint
        sources.install(self.shell)
        # Byte code is taken for that of a source with the same size and time in whole seconds. A module
        # that is written twice in a second would stay as it was first; installers compile theirs.
        sys.dont_write_bytecode = True
        sys.argv = [""]

    def noting_signals(self, plain):
        @functools.wraps(plain)
        def set_handler(signalnum, handler):
            if callable(handler) and handler != self.interrupts.handle:
                self.streams.note_signals()
            return plain(signalnum, handler)
        return set_handler

    def take_environment(self, variables):
        """In the zygote, once its own variables have done their work: those of every kernel."""
        os.environ.clear()
        os.environ.update(ENVIRONMENT | environment.thread_environment(1) | variables)

    def serve(self, plan):
        self.interrupts.hold()
        self.finders_of_base = len(sys.path_importer_cache)
        self.shell.user_ns["_dh"][:] = [lockdown.HOME]
        self.channel = Channel(plan.control)
        self.shell.loops.take_over()
        self.streams.copies.update({1: plan.stdout, 2: plan.stderr})
        self.checkpoints.begin(plan)
        self.tell({"type": "ready"})
        self.obey()

    def obey(self):
        """Does what it is asked for, until the other end is closed."""
        answered = -inf
        while (message := self.next_message()) is not None:
            if message["type"] == "execute":
                self.hurried = monotonic() - answered < CHECKPOINT_DELAY_MS / 1000
                answered = self.execute_restorably(message)
            elif message["type"] == "env":
                change = environment.Change(message["env"])
                change.apply(fresh=True)
                self.tell({"type": "env_set", "env_not_applied": sorted(change.not_applied)})
            elif message["type"] == "enter":
                self.enter(message["cwd"])
            elif message["type"] == "branch":
                self.branch(message, self.channel.take_descriptors())
            elif message["type"] == "rehearse":
                warm.converse(self)

    def next_message(self):
        """Waits for it. Meanwhile event loops go on, and what user code has replaced is in place for them and
        for threads."""
        loops = self.shell.loops.all()
        turn = self.guard.enter() if loops or self.guard.replaced else 0
        if loops:
            self.interrupts.wanted = self.channel.is_waiting
            try:
                self.shell.loops.go_on(self.channel, self.run_between)
            except Exception:
                pass  # a loop, a policy or a clock of user code that is none: the loops stand still
            self.interrupts.wanted = None
        message = self.channel.receive()
        self.guard.leave(turn)
        return message

    def run_between(self, function, *args):
        """Runs user code while no execution does. Returns what it raised."""
        self.checkpoints.current = False
        _, raised = self.interrupts.run(function, *args)
        if isinstance(raised, KeyboardInterrupt) and self.channel.is_waiting():
            self.overdue = True
        elif raised is not None:
            turn = self.guard.suspend()
            self.say(self.describe(raised, _MAX_LATE_TRACEBACK_BYTES)[2])
            self.guard.resume(turn)
        return raised

    def tell(self, frame):
        with self.channel.lock:
            self.channel.write(encode(frame))

    def execute_restorably(self, message):
        """With a checkpoint of the state before, and one of the state after while nobody waits. Gives when
        it had answered."""
        if message["restore"] == "never" or not self.checkpoints.current:
            if self.take_checkpoint(message):
                return -inf
        self.checkpoints.current = False
        self.execute(message)
        answered = monotonic()
        # Not at once where nobody is in a hurry: a client that closes the sandbox would wait for the fork.
        if self.channel.is_silent(0 if self.hurried else CHECKPOINT_DELAY_MS):
            self.take_checkpoint(message)
        return answered

    def take_checkpoint(self, message):
        """True in the checkpoint, when it has become the kernel."""
        try:
            objection = self.checkpoints.objection(message["restore"], message["memory_bytes"])
        except Exception as error:  # user code has taken every descriptor, say
            objection = f"the kernel could not look at its memory: {error}"
        if objection:
            self.checkpoints.drop()
        else:
            try:
                awake, objection = self.checkpoints.take(self.shell)
            except Exception as error:  # an audit hook of user code forbids what it takes
                if not self.channel.owned():
                    os._exit(70)
                awake, objection = False, f"the kernel could not be forked: {error}"
            if awake:
                self.go_on()
                return True
        now = {"type": "checkpoint", "pid": self.checkpoints.pid, "objection": objection}
        if now != self.told_checkpoint:
            self.told_checkpoint = now
            self.tell(now)
        return False

    def branch(self, message, descriptors):
        """Forks a kernel with the same variables that speaks over descriptors of its own."""
        try:
            pid, objection, unsound = self.checkpoints.branch(self.shell, message["force"])
        except Exception as error:  # an audit hook of user code forbids what it takes
            if not self.channel.owned():
                os._exit(70)
            pid, objection, unsound = None, f"the kernel could not be forked: {error}", False
        if pid != 0:
            for descriptor in descriptors:
                os.close(descriptor)
            self.tell({"type": "branched", "pid": pid, "objection": objection, "unsound": unsound})
            return
        for theirs, ours in zip(self.checkpoints.kept, descriptors, strict=True):
            os.dup2(ours, theirs, inheritable=False)
            os.close(ours)
        self.streams.reconnect()
        self.checkpoints.let_go(message["waits"])
        self.told_checkpoint = None
        self.go_on()

    def go_on(self):
        """In a fork that has become a kernel."""
        self.interrupts.hold()
        self.channel.take_over()
        missing = self.checkpoints.missing
        if not self.checkpoints.alone:
            missing = renew.everything(self.shell) + missing
        self.shell.loops.take_over()
        self.tell({"type": "restored", "missing": missing})

    def enter(self, directory):
        answer = {"type": "ready"}
        try:
            os.chdir(directory)
            self.shell.user_ns["_dh"][:] = [os.getcwd()]
        except OSError as error:
            answer = {"type": "failed", "step": "enter", "error": os.strerror(error.errno)}
        self.tell(answer)

    def execute(self, request):
        execution = Execution(self.channel, self.streams, self.interrupts, request)
        self.streams.watch(request["prompt"], execution.id)
        self.streams.restore(request.get("stdin"))
        count = self.shell.execution_count
        self.interrupts.forget()
        attempt(stay_somewhere)
        execution.started(count)
        home = lockdown.HOME if request["look_at_files"] else None
        before = look_at(home)
        execution.ends_at_once = len(before.files) <= FEW_FILES
        self.look_again_for_modules()
        self.change = environment.Change(request["env"]) if request["env"] else None

        error = self.run(execution, request)

        self.tidy()
        if not self.channel.owned():
            self.end_forked_child(error)
        exit_code = None
        if error is not None:
            exit_code, said = tracebacks.exit_status(error)
            described = self.describe(error, execution.max_traceback_bytes)
            if said:
                self.say(described[1])
            if exit_code != 0:
                execution.error(*described)
        self.streams.flush()
        self.streams.watch(False)
        after = look_at(home)
        changed, truncated = files.changes(before, after, execution.max_files)
        forks = self.hurried and request["restore"] != "never"
        if forks:
            self.told_checkpoint = None
        execution.done(count, self.shell.execution_count, exit_code, changed, truncated, len(after.files),
                       files.is_full(lockdown.HOME, error), forks,
                       self.change.not_applied if self.change else ())

    def look_again_for_modules(self):
        """A module may have been uploaded a moment after its directory was last looked at, and the
        import system trusts a modification time, which has a grain of some milliseconds.
        importlib.invalidate_caches() would also throw away what the zygote knows of the base."""
        cache = sys.path_importer_cache
        newer = len(cache) - self.finders_of_base
        for finder in list(islice(reversed(cache.values()), max(0, newer))):
            if invalidate := getattr(finder, "invalidate_caches", None):
                attempt(invalidate)

    def run(self, execution, request):
        self.shell.execution = execution
        late, self.shell.late = self.shell.late, []
        for shown in late:
            execution.result(*shown)
        returned, raised = self.interrupts.run(self.run_code, request)
        self.guard.settle()
        error = raised or returned
        if error is None and execution.shown:
            error = execution.shown[0]
        for other in execution.shown:
            if other is not error:
                self.say(self.describe(other, execution.max_traceback_bytes)[2])
        self.shell.execution = None
        return error

    def run_code(self, request):
        """Runs as user code: may be interrupted anywhere."""
        overdue, self.overdue = self.overdue, False
        if overdue:
            raise KeyboardInterrupt("a callback of an asyncio event loop did not end before this could begin")
        if self.change:
            self.change.apply()
        error = self.shell.run(request["code"])
        if self.channel is None or self.channel.owned():
            figures.show()
        return error

    def describe(self, error, max_bytes):
        # Formatting calls the exception's own __str__, which is user code; what is pending now was
        # meant for the code that has ended.
        self.interrupts.forget()
        described, raised = self.interrupts.run(tracebacks.describe, error, max_bytes)
        if raised is not None:
            name = tracebacks.class_name(error)
            instead = tracebacks.class_name(raised)
            described = name, "", f"{name} (no traceback: {instead} in its place)"
        return described

    def say(self, text):
        """On stderr, which is user code where that has replaced it: what it raises is ignored."""
        self.interrupts.run(lambda: print(text, file=sys.stderr))

    def tidy(self):
        """Takes back what must not outlast an execution."""
        attempt(sys.settrace, None)
        attempt(sys.setprofile, None)
        if sys.getrecursionlimit() < 500:
            sys.setrecursionlimit(1000)
        if self.change:
            attempt(self.change.undo)

    def end_forked_child(self, error):
        """`os.fork()` in user code: the child got to the end of the code that the parent runs on."""
        code = 0
        try:
            if error is not None:
                code, said = tracebacks.exit_status(error)
                if code is None or said:
                    code = 1
                    print(tracebacks.describe(error, 65536)[1 if said else 2], file=sys.stderr)
            self.streams.flush()
        finally:
            os._exit(code & 0xFF)


def attempt(function, *args):
    """None where an audit hook of user code, which nothing can take away, does not let it be done."""
    try:
        return function(*args)
    except Exception:
        return None


def look_at(directory):
    found = attempt(files.Snapshot, directory)
    if found is None:
        found = files.Snapshot(None)
        found.complete = False
    return found


def stay_somewhere():
    """The working directory may have been deleted, which makes the oddest calls fail."""
    try:
        os.getcwd()
    except OSError:
        os.chdir(lockdown.HOME)


def _no_breakpoint(*args, **kwargs):
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*args, **kwargs)
    print("breakpoint() ignored: there is no terminal for a debugger", file=sys.stderr)
