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


def restore(text):
    """A new `sys.stdin` for an execution, and its descriptor put right."""
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(_Text((text or "").encode()), encoding="utf-8")
    try:
        os.fstat(_FD)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # takes the lowest number


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
