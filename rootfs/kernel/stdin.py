"""What `input()`, `getpass` and `sys.stdin` read: text that came with the execution, or nothing.

Descriptor 0 is `/dev/null` either way: what the code starts cannot eat the lines meant for `input()`,
nor wait for a person.
"""

import io
import os
import sys

_FD = 0


class _Text(io.BytesIO):
    name = "<stdin>"

    def fileno(self):
        return _FD  # so that it can be handed to a child


# The last one, where it had nothing to give.
_empty = None


def restore(text):
    """A `sys.stdin` for an execution that is as new, and its descriptor put right."""
    global _empty
    if text or not _is_as_new(sys.stdin):
        sys.stdin = io.TextIOWrapper(_Text((text or "").encode()), encoding="utf-8")
        _empty = None if text else sys.stdin
    sys.__stdin__ = sys.stdin
    try:
        os.fstat(_FD)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # takes the lowest number


def _is_as_new(stdin):
    try:
        return stdin is _empty is not None and not vars(stdin) and not stdin.buffer.getvalue()
    except (AttributeError, ValueError):  # without its buffer, closed
        return False


def ask(prompt="", *_, **__):
    """In the place of input()."""
    if sys.stdin is None:
        raise RuntimeError("input(): lost sys.stdin")
    print(prompt, end="", flush=True)
    # Whatever sys.stdin is: the code may have put lines of its own there.
    line = sys.stdin.readline()
    if not line:
        raise EOFError("there is nobody to answer input(): put the value into the code, "
                       "or give the lines as `stdin` of the execution")
    return line.removesuffix("\n")


def ask_secret(prompt="Password: ", *_, **__):
    """In the place of getpass.getpass()."""
    return ask(prompt)
