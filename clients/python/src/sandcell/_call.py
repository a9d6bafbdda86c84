"""One description of each request, for both ways to send it.

A :class:`Call` says what goes out and how the answer is read, and sends nothing. A *step* is a call,
a piece of :class:`Local` work, or a generator of these that ends with a value: what it yields is done
for it, and it is given what came of that. The transports in ``_transport`` do them, one blocking and
one not, so everything else in this package exists once::

    def exists(at: str, path: str) -> Steps[bool]:
        try:
            yield from stat(at, path)
        except NotFound:
            return False
        return True
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    Protocol,
    TypeVar,
    cast,
)
from urllib.parse import quote

from ._errors import ApiError, ConnectionFailed, SandcellError

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E")

# Longest line of a stream: the service cuts an execution's results at 16 MiB by default, which JSON can
# make six times as long. Whoever sends more without an end of line is no sandcell.
MAX_LINE_BYTES = 512 * 1024 * 1024


class Receiver(Protocol[T_co]):
    """Reads a successful answer as it comes."""

    def take(self, chunk: bytes) -> Iterable[object]:
        """Reads a piece; what it gives is awaited where it can be, or passed on to an iterator."""

    def finish(self) -> T_co:
        """The value of the whole answer."""


class Whole(Generic[T]):
    """Reads an answer that means something only when it is complete."""

    def __init__(self, parse: Callable[[bytes], T]) -> None:
        self._parse = parse
        self._body = bytearray()

    def take(self, chunk: bytes) -> Iterable[object]:
        """Keeps a piece."""
        self._body += chunk
        return ()

    def finish(self) -> T:
        """Parses all of it."""
        return self._parse(bytes(self._body))


class ToFile:
    """Writes an answer to an open file; gives the number of bytes."""

    def __init__(self, file: IO[bytes], max_bytes: int | None = None) -> None:
        self._file = file
        self._most = max_bytes
        self._bytes = 0

    def take(self, chunk: bytes) -> Iterable[object]:
        """Writes a piece."""
        self._bytes += len(chunk)
        if self._most is not None and self._bytes > self._most:
            raise SandcellError(f"the answer is longer than {self._most} bytes (max_bytes)")
        self._file.write(chunk)
        return ()

    def finish(self) -> int:
        """Bytes written."""
        return self._bytes


class Collector(Protocol[T_co]):
    """Makes a value of a stream's events."""

    def feed(self, event: dict[str, Any]) -> object:
        """Takes an event; ``None`` for one that nobody need hear of."""

    def finish(self) -> T_co:
        """The value after the last event.

        Raises:
            ConnectionFailed: The last event did not come.
        """


class Lines(Generic[T]):
    """Reads a stream of JSON objects, one a line."""

    def __init__(self, collector: Collector[T]) -> None:
        self._collector = collector
        self._pieces: list[bytes] = []
        self._waiting = 0

    def take(self, chunk: bytes) -> Iterator[object]:
        """Feeds each line that is complete now; lazily, so that one is dealt with before the next."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join([*self._pieces, end])
            self._pieces, self._waiting = [], 0
            told = self._read(line)
            if told is not None:
                yield told
        self._pieces.append(rest)
        self._waiting += len(rest)
        if self._waiting > MAX_LINE_BYTES:
            raise ConnectionFailed("a line of the stream does not end")

    def _read(self, line: bytes) -> object:
        if not line.strip():
            return None
        event = parsed(line)
        if not isinstance(event, dict):
            raise SandcellError("a line of the stream is not a JSON object")
        kind = event.get("type")
        if kind == "keepalive":
            return None
        if kind == "failed":
            raise ApiError(0, str(event.get("code", "unknown")), str(event.get("detail", "")))
        return self._collector.feed(event)

    def finish(self) -> T:
        """The collector's value."""
        return self._collector.finish()


def parsed(body: bytes) -> Any:
    """Decodes JSON of the service."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise SandcellError(f"the answer is not JSON: {body[:80]!r}") from error


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how its answer is read."""

    method: str
    #: Percent-encoded, from the root of the service.
    path: str
    receiver: Callable[[], Receiver[T]]
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    #: A JSON body.
    json: Any = None
    #: Or bytes, or an open file that is sent from where it stands.
    content: bytes | IO[bytes] | None = None
    #: Or parts of a multipart form: fields, then files as (field, (name, content)).
    form: tuple[Mapping[str, str], list[tuple[str, tuple[str, bytes | IO[bytes]]]]] | None = None
    #: Seconds without a byte of the answer after which it is given up; ``None`` for the client's own.
    silence: float | None = None

    def __iter__(self) -> Generator[AnyStep, Any, T]:
        return cast("T", (yield self))


@dataclass(frozen=True)
class Local(Generic[T]):
    """Work on this machine that may take a while, such as packing a folder."""

    do: Callable[[], T]

    def __iter__(self) -> Generator[AnyStep, Any, T]:
        return cast("T", (yield self))


@dataclass(frozen=True)
class StreamCall(Call[T], Generic[T, E]):
    """A call whose answer is a stream, of these events where it is iterated over."""


AnyStep: TypeAlias = "Call[Any] | Local[Any]"
#: What a generator of steps is declared to return.
Steps: TypeAlias = "Generator[AnyStep, Any, T]"


class Step(Protocol[T_co]):
    """Whatever can be done for a value."""

    def __iter__(self) -> Generator[AnyStep, Any, T_co]:
        """Yields what is to be done."""


def call(
    method: str,
    path: str,
    parse: Callable[[Any], T],
    *,
    json: Any = None,
    params: Mapping[str, object] | None = None,
    silence: float | None = None,
) -> Call[T]:
    """A call whose answer is JSON."""
    return Call(
        method,
        path,
        lambda: Whole(lambda body: parse(parsed(body))),
        json=json,
        params=query(params or {}),
        silence=silence,
    )


def lines(path: str, collector: Callable[[], Collector[T]], **rest: Any) -> StreamCall[T, Any]:
    """A call whose answer is a stream of events; a silent one says something every 5 seconds."""
    method = "GET" if rest.get("json") is None else "POST"
    headers = {"Accept": "application/x-ndjson"}
    return StreamCall(method, path, lambda: Lines(collector()), headers=headers, **rest)


def query(params: Mapping[str, object]) -> dict[str, str]:
    """Query parameters without those that are not set."""
    words = {True: "true", False: "false"}
    return {
        name: words[value] if isinstance(value, bool) else str(value)
        for name, value in params.items()
        if value is not None
    }


def given(**fields: object) -> dict[str, Any]:
    """A JSON body of the fields that are set."""
    return {name: value for name, value in fields.items() if value is not None}


def segment(text: str) -> str:
    """One segment of a path.

    Raises:
        ValueError: It is empty, ``.`` or ``..``, which would name another route.
    """
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} is no id")
    return quote(text, safe="")


def nothing(_: Any) -> None:
    """Reads an answer that says no more than that it is one."""
