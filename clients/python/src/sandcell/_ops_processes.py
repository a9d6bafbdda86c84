"""Commands and background processes. ``at`` is the path of the sandbox, or of the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from ._call import Call, Steps, StreamCall, call, given, lines, nothing, query, segment
from ._errors import ConnectionFailed
from ._execution import Event, tell
from ._models import CommandResult, Output, OutputChunk, ProcessInfo

# Seconds that one request waits for news of a process; proxies between give up silent ones.
SLICE_SECONDS = 25.0


class Ran:
    """Gathers the events of a command."""

    def __init__(self, told: Callable[[Event], object]) -> None:
        self._tell = told
        self._text: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._ended: dict[str, Any] | None = None

    def feed(self, event: dict[str, Any]) -> object:
        """Takes an event."""
        kind = str(event.get("type"))
        if kind in self._text:
            self._text[kind].append(event["text"])
        elif kind == "ended":
            self._ended = event
        return self._tell(Event.of(event))

    def finish(self) -> CommandResult:
        """How it ended."""
        if self._ended is None:
            raise ConnectionFailed("the connection broke off before the command had ended")
        return CommandResult.of({**{kind: "".join(text) for kind, text in self._text.items()}, **self._ended})


def _command(
    command: str, cwd: str | None, env: Mapping[str, str] | None, timeout: float | None
) -> dict[str, Any]:
    return given(command=command, cwd=cwd, env=env, timeout_seconds=timeout)


def run(
    at: str,
    command: str,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
) -> Call[CommandResult]:
    """Runs a shell command (``bash -lc``) to its end.

    Args:
        at: The sandbox.
        command: The command line.
        cwd: Where it starts: absolute, or relative to the working directory.
        env: Environment variables.
        timeout: Seconds of wall time that it may take; by default what the service has, 300.
        on_stdout: Called with each piece of standard output when it comes; awaited if it is async.
        on_stderr: Likewise for standard error.

    Returns:
        How it ended, whatever its exit code; see :meth:`CommandResult.raise_for_error`.
    """
    handler = tell([("stdout", on_stdout), ("stderr", on_stderr)])
    return lines(f"{at}/command", lambda: Ran(handler), json=_command(command, cwd, env, timeout))


def stream(
    at: str,
    command: str,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> StreamCall[CommandResult, Event]:
    """Runs a shell command, and gives an iterator over its events; ``value`` is how it ended.

    Leaving the ``with`` block early kills the command. Arguments are those of :meth:`run`.
    """

    def itself(event: Event) -> Event:
        return event

    return lines(f"{at}/command", lambda: Ran(itself), json=_command(command, cwd, env, timeout))


def start(
    at: str,
    command: str | None = None,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    pty: tuple[int, int] | None = None,
    timeout: float | None = None,
) -> Call[ProcessInfo]:
    """Starts a shell command that runs on while other requests come.

    Args:
        at: The sandbox.
        command: The command line; without one, with ``pty``, a login shell.
        cwd: Where it starts: absolute, or relative to the working directory.
        env: Environment variables.
        pty: Columns and rows of a terminal that it runs on.
        timeout: Seconds after which it is killed; never by default.
    """
    window = None if pty is None else {"columns": pty[0], "rows": pty[1]}
    body = given(command=command, cwd=cwd, env=env, pty=window, timeout_seconds=timeout)
    return call("POST", f"{at}/processes", ProcessInfo.of, json=body)


def processes(at: str) -> Call[list[ProcessInfo]]:
    """Lists the background processes, those that have ended among them."""
    return call("GET", f"{at}/processes", ProcessInfo.each)


def of_process(at: str, process_id: str) -> str:
    """The path of a process."""
    return f"{at}/processes/{segment(process_id)}"


# -- one process


def info(at: str) -> Call[ProcessInfo]:
    """Tells how the process stands."""
    return call("GET", at, ProcessInfo.of)


def read(at: str, offset: int = 0, *, wait_seconds: float = 0.0) -> Call[Output]:
    """Reads what the process has written.

    Args:
        at: The process.
        offset: Byte offset to read from: 0, or the ``next_offset`` of an earlier answer.
        wait_seconds: Seconds to wait for more where there is nothing yet.
    """
    params = query({"offset": offset, "wait_seconds": wait_seconds or None})
    silence = wait_seconds + 2 * SLICE_SECONDS
    return call("GET", f"{at}/output", Output.of, params=params, silence=silence)


class Following:
    """Goes through the output of a process, one request after the other."""

    def __init__(self, at: str, offset: int) -> None:
        self._at = at
        self.offset = offset
        self.ended = False

    def ask(self) -> Call[Output]:
        """The next request."""
        return read(self._at, self.offset, wait_seconds=SLICE_SECONDS)

    def take(self, output: Output) -> list[OutputChunk]:
        """What its answer brings."""
        self.offset = output.next_offset
        self.ended = output.complete
        return output.chunks


def write(at: str, data: str | bytes = b"", *, close: bool = False) -> Steps[None]:
    r"""Writes to the standard input of the process, or to its terminal.

    Args:
        at: The process.
        data: Text, which is sent as UTF-8, or bytes.
        close: Whether to close the input afterwards; on a terminal send ``"\\x04"`` instead.

    Raises:
        Conflict: It has ended, or its input is closed.
    """
    if isinstance(data, str):
        return (yield from call("POST", f"{at}/stdin", nothing, json={"text": data, "close": close}))
    if data:
        answered: Call[Any] = call("POST", f"{at}/stdin", nothing)
        yield from Call("POST", answered.path, answered.receiver, content=data)
    if close:
        yield from call("POST", f"{at}/stdin", nothing, json={"close": True})
    return None


def send_signal(at: str, signal: str) -> Call[None]:
    """Sends a signal, by its name, such as ``SIGINT`` or ``SIGTERM``."""
    return call("POST", f"{at}/signal", nothing, json={"signal": signal})


def kill(at: str) -> Call[None]:
    """Ends the process and all that it started, at once."""
    return send_signal(at, "SIGKILL")


def wait(at: str, timeout: float | None = None) -> Steps[ProcessInfo]:
    """Waits for the end of the process.

    Args:
        at: The process.
        timeout: Seconds to wait at most; without end where it is not given.

    Returns:
        How it stands: ``running`` where the time was over first.
    """
    left = timeout
    while True:
        piece = SLICE_SECONDS if left is None else min(left, SLICE_SECONDS)
        if piece <= 0:
            return (yield from info(at))
        body = {"timeout_seconds": piece}
        told = yield from call(
            "POST", f"{at}/wait", ProcessInfo.of, json=body, silence=piece + 2 * SLICE_SECONDS
        )
        if not told.running:
            return told
        left = None if left is None else left - piece


def resize(at: str, columns: int, rows: int) -> Call[ProcessInfo]:
    """Sets the size of the terminal of the process."""
    return call("POST", f"{at}/resize", ProcessInfo.of, json={"columns": columns, "rows": rows})


def delete(at: str) -> Call[None]:
    """Ends the process, if it runs, and forgets it and its output."""
    return call("DELETE", at, nothing)
