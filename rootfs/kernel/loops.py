"""Event loops of the main thread: the one that code finds, and what goes on in them between executions.

As in a notebook, the main thread has a loop: `asyncio.get_event_loop()` gives it, top-level `await` runs in
it, and so does what `asyncio.create_task()` gets from code that does not await. It is made when it is
first asked for, and never in the zygote: kernels would share its epoll descriptor. As in a script, it
does not run while other code does, so that `asyncio.run()` and `loop.run_until_complete()` work.

While no execution runs, the kernel waits for its socket and, where there is a loop, for what the loop
waits for: its epoll descriptor is readable, a timer is due. Then the loop goes on for one round. So an
idle kernel in which nothing is scheduled does nothing, and a loop costs nothing where there is none. A
round is user code: signals are delivered, and what it replaced in modules is in place. SIGINT interrupts
it where a request waits, which means that a callback did not end before the request's time was up;
otherwise it is forgotten.
"""

from _thread import get_ident
from asyncio import AbstractEventLoop, AbstractEventLoopPolicy, BaseEventLoop, all_tasks, events
from asyncio.events import _get_running_loop, get_event_loop_policy
from asyncio.selector_events import BaseSelectorEventLoop
from posix import getpid
from select import POLLIN, poll
from threading import current_thread

# Loops that are not asyncio's own (uvloop's) do not tell when they have something to do. Where there are
# several loops, such a one runs for so long at a time; else until a request comes.
_SLICE_SECONDS = 0.02
# Rounds in a row that may fail before a loop is left alone until the next execution.
_MOST_FAILURES = 3
_MOST_SECONDS = 86400


class Loops:
    def __init__(self):
        self.main_thread = get_ident()
        # The process whose loops these are: a child that user code forks must not touch their descriptors.
        self.pid = getpid()
        # The one in which code awaited last.
        self.last = None

    def install(self):
        """In the zygote. For all policies, also for those that user code sets later (uvloop's is one)."""
        loops = self

        def get_event_loop(self):
            loop = self._local._loop
            if (loop is None or loop.is_closed()) and get_ident() == loops.main_thread:
                loop = loops.of(self)
                self.set_event_loop(loop)
            if loop is None:
                raise RuntimeError(f"There is no current event loop in thread {current_thread().name!r}.")
            return loop

        events.BaseDefaultEventLoopPolicy.get_event_loop = get_event_loop
        events.BaseDefaultEventLoopPolicy._kernel_loop = None

    def of(self, policy):
        """The loop of the main thread under a policy while no other is set: `asyncio.run()` ends with
        none being set."""
        loop = policy._kernel_loop
        if loop is None or loop.is_closed() or getpid() != self.pid:
            loop = policy._kernel_loop = policy.new_event_loop()
        return loop

    def ready(self):
        """The loop that code is to await in."""
        policy = get_event_loop_policy()
        try:
            loop = policy.get_event_loop()
            usable = not loop.is_closed() and not loop.is_running()
        except RuntimeError:
            usable = False
        if not usable:
            loop = policy.new_event_loop()
            policy.set_event_loop(loop)
        self.last = loop
        return loop

    def all(self):
        """Those that the main thread has; makes none."""
        policy = events._event_loop_policy
        if self.last is None and policy is None:
            return []
        found = [self.last]
        if isinstance(policy, AbstractEventLoopPolicy):
            local = getattr(policy, "_local", None)
            found += [getattr(local, "_loop", None), getattr(policy, "_kernel_loop", None)]
        found = [loop for loop in dict.fromkeys(found)
                 if isinstance(loop, AbstractEventLoop) and not loop.is_closed()]
        return found if found and getpid() == self.pid else []

    def begin_tasks(self):
        """What code has left to a loop begins, as when code awaits."""
        if _get_running_loop() is None:
            for loop in self.all():
                if not loop.is_running() and all_tasks(loop):
                    _go_round(loop)

    def take_over(self):
        """In a new kernel, and in a copy of one, where `renew` has made asyncio's own loops new. Others share
        their descriptors with the kernel that was copied, and are left to it."""
        self.pid = getpid()
        if not isinstance(self.last, BaseEventLoop):
            self.last = None
        policy = events._event_loop_policy
        if policy is not None and not isinstance(getattr(policy, "_kernel_loop", None), BaseEventLoop):
            policy._kernel_loop = None
        local = getattr(policy, "_local", None)
        if local is not None and not isinstance(getattr(local, "_loop", None), BaseEventLoop):
            local._loop = None

    def close(self):
        """In the zygote, after its rehearsal."""
        for loop in self.all():
            loop.close()
        self.last = None
        events.set_event_loop_policy(None)

    def go_on(self, channel, run):
        """Lets loops go on until a request comes, or none is left. `run` calls user code and returns what it
        raised."""
        failures = {}
        while not channel.received:
            loops = [loop for loop in self.all()
                     if not loop.is_running() and failures.get(loop, 0) < _MOST_FAILURES]
            if not loops:
                return
            waits = [(loop, *_awaited(loop)) for loop in loops]
            ready = _wait(channel.fd, waits)
            if channel.fd in ready:
                return
            for loop, number, _ in waits:
                timer = _due_timer(loop) if number is not None else None
                if number is None:
                    raised = run(_run_for, loop, channel.fd, _SLICE_SECONDS if len(loops) > 1 else None)
                elif number in ready or timer is not None or loop._ready:
                    raised = run(_go_round, loop)
                else:
                    continue
                # A timer that stays due: user code has stopped the clock.
                failed = raised is not None or (timer is not None and _due_timer(loop) is timer)
                failures[loop] = failures.get(loop, 0) + 1 if failed else 0


def _awaited(loop):
    """A descriptor that is readable when the loop has something to do, and in how many seconds it has
    anyway; (None, 0) for a loop that does not tell."""
    if not isinstance(loop, BaseSelectorEventLoop):
        return None, 0
    try:
        number = loop._selector.fileno()
    except (AttributeError, ValueError):
        return None, 0
    if loop._ready:
        return number, 0
    if loop._scheduled:
        return number, min(max(0, loop._scheduled[0]._when - loop.time()), _MOST_SECONDS)
    return number, None


def _due_timer(loop):
    timers = loop._scheduled
    return timers[0] if timers and timers[0]._when <= loop.time() else None


def _wait(request, waits):
    """Descriptors that are readable once any is, or a loop has something to do."""
    waiting = poll()
    waiting.register(request, POLLIN)
    for _, number, _ in waits:
        if number is not None:
            waiting.register(number, POLLIN)
    seconds = min((seconds for *_, seconds in waits if seconds is not None), default=None)
    while True:
        try:
            return {number for number, _ in waiting.poll(seconds and seconds * 1000)}
        except BaseException:
            continue  # from a signal that another thread took, see Channel.wait()


def _go_round(loop):
    stop = loop.call_soon(loop.stop)
    try:
        loop.run_forever()
    finally:
        stop.cancel()  # an exception may have come before it


def _run_for(loop, request, seconds):
    def stop():
        loop.remove_reader(request)  # once: uvloop stops its next run too for each more that it is told
        loop.stop()

    loop.add_reader(request, stop)
    timer = None if seconds is None else loop.call_later(seconds, loop.stop)
    try:
        loop.run_forever()
    finally:
        loop.remove_reader(request)
        if timer is not None:
            timer.cancel()
