"""Turns the operations of ``_ops`` into methods, blocking or not.

The parameters of an operation, but for the first, are those of the method; the first, the path of what it
is about, comes from the object.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Callable, TypeVar, overload

from ._stream import AsyncStream, Stream

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from typing_extensions import Concatenate, ParamSpec, Protocol

    from ._call import Step, StreamCall
    from ._transport import AsyncTransport, SyncTransport

    P = ParamSpec("P")
    T = TypeVar("T")
    E = TypeVar("E")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)

    class Method(Protocol[P, R_co]):
        """A method with these parameters."""

        @overload
        def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], R_co]: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...
        def __get__(self, instance: object, owner: type) -> Any: ...


# Annotations are texts here: what a method gives is what its call or its steps end with.
_WHAT_IS_DONE = re.compile(r"^(?:Call|Steps)\[(.*)\]$")


class Bound:
    """Something of a service that has a path, and a blocking way to it."""

    def __init__(self, transport: SyncTransport, at: str) -> None:
        self._transport = transport
        self._at = at


class AsyncBound:
    """Something of a service that has a path, and an asynchronous way to it."""

    def __init__(self, transport: AsyncTransport, at: str) -> None:
        self._transport = transport
        self._at = at


def _shaped(
    method: Callable[..., Any],
    operation: Callable[..., Any],
    make: Callable[..., Any] | None = None,
    stream: str = "Stream",
) -> Any:
    """Gives a method the name, the text, the parameters and the result of its operation, for ``help``."""
    functools.update_wrapper(method, operation)
    del method.__wrapped__  # type: ignore[attr-defined]
    signature = inspect.signature(operation)
    _, *rest = signature.parameters.values()
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    gives = signature.return_annotation if make is None else inspect.signature(make).return_annotation
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[this, *rest],
        return_annotation=_WHAT_IS_DONE.sub(r"\1", gives).replace("StreamCall[", f"{stream}["),
    )
    if method.__doc__:
        lines = method.__doc__.splitlines(keepends=True)
        method.__doc__ = "".join(line for line in lines if not line.startswith("        at: "))
    return method


def blocking(operation: Callable[Concatenate[str, P], Step[T]]) -> Method[P, T]:
    """A method that does the operation and returns its value."""

    def method(self: Bound, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._transport.run(operation(self._at, *args, **kwargs))

    return _shaped(method, operation)  # type: ignore[no-any-return]


def awaited(operation: Callable[Concatenate[str, P], Step[T]]) -> Method[P, Coroutine[Any, Any, T]]:
    """A coroutine method that does the operation and returns its value."""

    async def method(self: AsyncBound, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transport.run(operation(self._at, *args, **kwargs))

    return _shaped(method, operation)  # type: ignore[no-any-return]


def streaming(operation: Callable[Concatenate[str, P], StreamCall[T, E]]) -> Method[P, Stream[T, E]]:
    """A method that gives an iterator over what comes."""

    def method(self: Bound, *args: P.args, **kwargs: P.kwargs) -> Stream[T, E]:
        return Stream(self._transport, operation(self._at, *args, **kwargs))

    return _shaped(method, operation)  # type: ignore[no-any-return]


def async_streaming(
    operation: Callable[Concatenate[str, P], StreamCall[T, E]],
) -> Method[P, AsyncStream[T, E]]:
    """A method that gives an asynchronous iterator over what comes."""

    def method(self: AsyncBound, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T, E]:
        return AsyncStream(self._transport, operation(self._at, *args, **kwargs))

    return _shaped(method, operation, stream="AsyncStream")  # type: ignore[no-any-return]


def making(operation: Callable[Concatenate[str, P], Step[T]], make: Callable[[Any, T], R]) -> Method[P, R]:
    """A method that does the operation and makes something of its object and of its value."""

    def method(self: Bound, *args: P.args, **kwargs: P.kwargs) -> R:
        return make(self, self._transport.run(operation(self._at, *args, **kwargs)))

    return _shaped(method, operation, make)  # type: ignore[no-any-return]


def async_making(
    operation: Callable[Concatenate[str, P], Step[T]], make: Callable[[Any, T], R]
) -> Method[P, Coroutine[Any, Any, R]]:
    """A coroutine method that does the operation and makes something of its object and of its value."""

    async def method(self: AsyncBound, *args: P.args, **kwargs: P.kwargs) -> R:
        return make(self, await self._transport.run(operation(self._at, *args, **kwargs)))

    return _shaped(method, operation, make)  # type: ignore[no-any-return]
