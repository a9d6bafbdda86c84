"""What an execution gives: its outcome, its results, and the events on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from ._errors import CodeError, ConnectionFailed
from ._models import FileChange, Usage
from ._result import Result, bundles_of

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Error:
    """Why an execution did not end well.

    Attributes:
        name: The exception's class, or the outcome where it is another than ``error``.
        value: The exception's message, or a sentence about the outcome.
        traceback: Text without colour codes; ``None`` where nothing was raised.
    """

    name: str
    value: str
    traceback: str | None = None

    def __str__(self) -> str:
        return self.traceback or f"{self.name}: {self.value}"


@dataclass(frozen=True)
class Event:
    """Something that an execution or a command did, while it does it.

    Attributes:
        type: ``started``, ``stdout``, ``stderr``, ``result``, ``clear_output``, ``error``, ``files``,
            ``usage`` or ``ended``.
        text: Of ``stdout`` and ``stderr``.
        result: Of ``result``.
        raw: The event as it came.
    """

    type: str
    raw: Mapping[str, Any] = field(repr=False)
    text: str = ""
    result: Result | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Event:
        """Reads an event."""
        kind = str(told.get("type"))
        result = Result.of_event(told) if kind == "result" else None
        return cls(kind, told, str(told.get("text", "")), result)


@dataclass(frozen=True)
class Execution:
    """An execution that ended.

    Attributes:
        stdout: What the code printed; head and tail where that was too long (see ``truncated``).
        stderr: Likewise on standard error.
        results: What it displayed, and last the value of its last line.
        outcome: ``ok``, ``error`` (it raised), ``timeout``, ``interrupted``, ``out_of_memory`` or
            ``kernel_died``.
        state: What became of the variables: ``kept``, ``restored`` (as before this execution) or
            ``lost``. Files are as the code left them.
        error: Why it did not end well, if it did not.
        files: What it created, changed or deleted in the working directory.
        usage: What it cost.
        execution_count: Counts the executions of its context.
        truncated: What had to be left out; ``None`` where nothing was.
        raw: The outcome as ``POST /sandbox/{id}/execute`` answers it.
    """

    stdout: str
    stderr: str
    results: list[Result]
    outcome: str
    state: str
    error: Error | None
    files: list[FileChange]
    usage: Usage
    execution_count: int
    truncated: Mapping[str, Any] | None
    raw: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, outcome: dict[str, Any], results: list[Result] | None = None) -> Execution:
        """Reads an outcome; a stream's results say more than its entries do."""
        error = None
        if outcome["error"] is not None:
            error = Error(outcome["error"], outcome.get("error_value") or "", outcome.get("traceback"))
        return cls(
            stdout=outcome["stdout"],
            stderr=outcome["stderr"],
            results=bundles_of(outcome["results"]) if results is None else results,
            outcome=outcome["outcome"],
            state=outcome["state"],
            error=error,
            files=FileChange.each(outcome["files"]),
            usage=Usage.of(outcome["usage"]),
            execution_count=outcome["execution_count"],
            truncated=outcome.get("truncated"),
            raw=outcome,
        )

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end and raised nothing."""
        return self.outcome == "ok"

    @property
    def text(self) -> str | None:
        """The value of the last line as text; ``None`` where that had none."""
        for result in reversed(self.results):
            if result.is_main:
                return result.text
        return None

    @property
    def state_reason(self) -> str | None:
        """Why variables are lost."""
        reason = self.raw.get("state_reason")
        return None if reason is None else str(reason)

    @property
    def exit_code(self) -> int | None:
        """What a script would have exited with, where the code ended with ``sys.exit()`` or the like."""
        code = self.raw.get("exit_code")
        return None if code is None else int(code)

    @property
    def not_restored(self) -> list[str]:
        """What could not be restored with the variables: threads that ran, connections."""
        return list(self.raw.get("not_restored", ()))

    @property
    def env_not_applied(self) -> list[str]:
        """Variables of ``env`` that the Python of the sandbox could not follow."""
        return list(self.raw.get("env_not_applied", ()))

    def raise_for_error(self) -> Execution:
        """Gives itself.

        Raises:
            CodeError: The outcome is not ``ok``.
        """
        if not self.ok:
            raise CodeError(self)
        return self

    def _ipython_display_(self) -> None:
        """Shows everything in a notebook, as if the code had run in its cell."""
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        show: Callable[..., None] = display
        for text in (self.stdout, self.stderr):
            if text:
                print(text, end="" if text.endswith("\n") else "\n")  # noqa: T201 - it is the display
        for result in self.results:
            show(result)
        if self.error:
            print(self.error)  # noqa: T201


class Gathered:
    """Gathers the events of an execution into what the same request answers without a stream."""

    def __init__(self, tell: Callable[[Event], object]) -> None:
        self._tell = tell
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._displays: list[dict[str, Any]] = []
        # Places of displays with an id, the first of each: an update takes its place.
        self._by_id: dict[str, int] = {}
        self._clear_pending = False
        self._ended: dict[str, Any] | None = None

    def feed(self, event: dict[str, Any]) -> object:
        """Takes an event; gives what the callback gave."""
        kind = event.get("type")
        if kind in ("stdout", "stderr", "result"):
            if self._clear_pending:
                self._clear()
            if kind == "result":
                self._display(event)
            else:
                (self._stdout if kind == "stdout" else self._stderr).append(event["text"])
        elif kind == "clear_output":
            self._clear_pending = True
            if not event.get("wait"):
                self._clear()
        elif kind == "ended":
            self._ended = event
        return self._tell(Event.of(event))

    def _clear(self) -> None:
        self._clear_pending = False
        for kept in (self._stdout, self._stderr, self._displays):
            kept.clear()
        self._by_id.clear()

    def _display(self, event: dict[str, Any]) -> None:
        display_id = event.get("display_id")
        known = None if display_id is None else self._by_id.get(display_id)
        if event["kind"] == "update" and known is not None:
            self._displays[known] = {**self._displays[known], "data": event["data"]}
            return
        if display_id is not None:
            self._by_id.setdefault(display_id, len(self._displays))
        self._displays.append(event)

    def outcome(self) -> dict[str, Any]:
        """The outcome as a request without a stream is answered."""
        if self._ended is None:
            raise ConnectionFailed("the connection broke off before the execution had ended")
        left_out = ("type", "stdout_dropped_bytes", "stderr_dropped_bytes")
        ended = {name: value for name, value in self._ended.items() if name not in left_out}
        results = [
            {"type": mime, "data": data, "bundle": bundle, "kind": display["kind"]}
            for bundle, display in enumerate(self._displays)
            for mime, data in display["data"].items()
        ]
        return {
            "stdout": "".join(self._stdout),
            "stderr": "".join(self._stderr),
            **ended,
            "results": results,
        }

    def finish(self) -> Execution:
        """The execution."""
        return Execution.of(self.outcome(), [Result.of_event(display) for display in self._displays])


class Outcome(Gathered):
    """Likewise, for those who want the answer and not a value made of it."""

    def finish(self) -> Any:
        """The outcome."""
        return self.outcome()


def tell(handlers: Iterable[tuple[str, Callable[[Any], object] | None]]) -> Callable[[Event], object]:
    """A function that calls the handler of an event's type with what the event brings."""
    known = {kind: handler for kind, handler in handlers if handler is not None}

    def told(event: Event) -> object:
        handler = known.get(event.type)
        if handler is None:
            return None
        return handler(event.result if event.type == "result" else event.text)

    return told
