"""SIGINT interrupts user code and nothing else.

A Python signal handler runs between two bytecodes of the main thread, whichever they are. Ours
raises only while `running` is set; handlers that user code installed may raise at any time. So while
the kernel itself works or waits, the main thread blocks every signal. What is pending when an
execution starts is swallowed; what comes once `started` was sent interrupts it.
"""

# The signal module's own wrappers turn each number into an enum member: 30 microseconds.
from _signal import (SIG_BLOCK, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal,
                     valid_signals)
from _thread import get_ident

_EVERY_SIGNAL = frozenset(map(int, valid_signals()))


class Interrupts:
    def __init__(self):
        self.running = False
        # Whether to interrupt what runs, where that is not certain.
        self.wanted = None
        self.main_thread = get_ident()
        # One object, to be compared without asking what user code has put in its place.
        self.handler = self.handle

    def handle(self, number, frame):
        if self.running and (self.wanted is None or self.wanted()):
            raise KeyboardInterrupt

    def arm(self):
        """User code may have taken SIGINT for itself; that ends with the execution."""
        if getsignal(SIGINT) is not self.handler:
            signal(SIGINT, self.handler)

    def hold(self):
        """Blocks signals on the main thread, for as long as it takes handlers to stop raising."""
        while True:
            try:
                pthread_sigmask(SIG_BLOCK, _EVERY_SIGNAL)
                self.arm()
                return
            except BaseException:
                continue

    def forget(self):
        """Swallows what came while no code ran: a late SIGINT, an alarm of an earlier execution."""
        try:
            pthread_sigmask(SIG_SETMASK, ())
        except BaseException:
            pass
        self.hold()

    def run(self, function, *args):
        """Calls user code with signals delivered, those too that came since they were forgotten.
        Returns its value and what it raised."""
        value = None
        try:
            self.running = True
            pthread_sigmask(SIG_SETMASK, ())
            value = function(*args)
            self.running = False
            raised = None
        except BaseException as error:
            # The interpreter looks for signals at calls and loops, not between the raise and here:
            # a second SIGINT finds `running` unset.
            self.running = False
            raised = error
        self.hold()
        return value, raised

    def held(self):
        return _Held(self)


class _Held:
    """Holds signals back for a moment within user code, so that a frame is written whole."""

    def __init__(self, interrupts):
        self.interrupts = interrupts

    def __enter__(self):
        # Where no user code runs they are held back already.
        self.main = (self.interrupts.running
                     and get_ident() == self.interrupts.main_thread)
        if self.main:
            self.before = pthread_sigmask(SIG_BLOCK, _EVERY_SIGNAL)

    def __exit__(self, *_):
        if self.main:
            pthread_sigmask(SIG_SETMASK, self.before)
