"""Iterators over what comes in a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ._errors import SandcellError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._call import StreamCall
    from ._transport import AsyncTransport, SyncTransport

E = TypeVar("E")
T = TypeVar("T")

_UNFINISHED = "the stream was not read to its end"


class _Base(Generic[T]):
    def __init__(self) -> None:
        self._value: T | None = None
        self._finished = False

    @property
    def value(self) -> T:
        """What the whole stream comes to, after its end.

        Raises:
            SandcellError: It was not read to its end.
        """
        if not self._finished:
            raise SandcellError(_UNFINISHED)
        return cast("T", self._value)

    def _finish(self, value: T) -> None:
        self._value, self._finished = value, True


class Stream(_Base[T], Generic[T, E]):
    """What comes, one by one: iterate once, best in a ``with`` block, which ends it."""

    def __init__(self, transport: SyncTransport, call: StreamCall[T, E]) -> None:
        super().__init__()
        self._transport = transport
        self._call = call
        self._open = ExitStack()
        self._events: Iterator[E] | None = None

    def _begin(self) -> Iterator[E]:
        # Sent at once, so that what is refused is refused here.
        chunks, receiver = self._open.enter_context(self._transport.open(self._call))

        def events() -> Iterator[E]:
            with self._open:
                for chunk in chunks:
                    yield from receiver.take(chunk)
                self._finish(receiver.finish())

        return events()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        if self._events is None:
            self._events = self._begin()
        return next(self._events)

    def close(self) -> None:
        """Leaves the stream; what is at its other end is told."""
        self._open.close()

    def __enter__(self) -> Self:
        if self._events is None:
            self._events = self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(_Base[T], Generic[T, E]):
    """What comes, one by one: iterate once, best in an ``async with`` block, which ends it."""

    def __init__(self, transport: AsyncTransport, call: StreamCall[T, E]) -> None:
        super().__init__()
        self._transport = transport
        self._call = call
        self._open = AsyncExitStack()
        self._events: AsyncGenerator[E, None] | None = None

    async def _begin(self) -> AsyncGenerator[E, None]:
        chunks, receiver = await self._open.enter_async_context(self._transport.open(self._call))

        async def events() -> AsyncGenerator[E, None]:
            async with self._open:
                async for chunk in chunks:
                    for event in receiver.take(chunk):
                        yield event
                self._finish(receiver.finish())

        return events()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        if self._events is None:
            self._events = await self._begin()
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """Leaves the stream; what is at its other end is told."""
        if self._events is not None:
            await self._events.aclose()
        await self._open.aclose()

    async def __aenter__(self) -> Self:
        if self._events is None:
            self._events = await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()
