"""Exceptions as text: Python's own format, no colours, no frames of the kernel or of IPython."""

import os
import traceback

import IPython
from IPython.core.error import UsageError

_HIDDEN = (os.path.dirname(IPython.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
# A chain of causes, or a group in a group, is followed this far.
_MAX_CHAIN = 1000


# The name itself, whatever a metaclass says it is.
_name_of = type.__dict__["__name__"].__get__


def class_name(error):
    return _name_of(type(error))


_exit_code_of = SystemExit.code.__get__


def exit_status(error):
    """What a process exits with that this exception ends, and whether Python prints what it says then.
    (None, False) where it is not SystemExit."""
    # Not isinstance(), which believes what an object says of its class.
    if not issubclass(type(error), SystemExit):
        return None, False
    code = _exit_code_of(error)
    if code is None:
        return 0, False
    if issubclass(type(code), int):
        return int.__and__(code, 0xFF), False
    return 1, True


def describe(error, max_bytes):
    """Name, value and traceback of an exception."""
    name = class_name(error)
    try:
        value = str(error)
    except KeyboardInterrupt:
        raise  # a __str__ that takes for ever would be called again below
    except BaseException as problem:
        value = f"<str() of it raised {type(problem).__name__}>"
    try:
        text = _format(error)
    except BaseException as problem:
        # Hostile or broken: a __str__ that exits, a stack too deep to walk, memory used up.
        text = f"{name}: {value}\n(no traceback: formatting it raised {type(problem).__name__})"
    return shorten(name, 256), shorten(value, max_bytes), shorten(text.rstrip("\n"), max_bytes)


def _format(error):
    if isinstance(error, UsageError):
        return f"UsageError: {error}"
    if isinstance(error, SystemExit):
        return f"SystemExit: {error}"
    described = traceback.TracebackException.from_exception(error, compact=True)
    pending, seen = [described], 0
    while pending and seen < _MAX_CHAIN:
        item = pending.pop()
        seen += 1
        kept = [frame for frame in item.stack if not frame.filename.startswith(_HIDDEN)]
        if kept:
            item.stack[:] = kept
        else:
            item.stack = None  # a syntax error of the code itself: nothing was called
        pending.extend(filter(None, (item.__cause__, item.__context__)))
        pending.extend(getattr(item, "exceptions", None) or ())
    return "".join(described.format())


def shorten(text, max_bytes):
    """Head and tail of text that is longer than it may be."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return text
    half = max(0, max_bytes - 64) // 2
    head = data[:half].decode("utf-8", "ignore")
    tail = data[len(data) - half:].decode("utf-8", "ignore")
    return f"{head}\n[... {len(data) - 2 * half} bytes left out ...]\n{tail}"
