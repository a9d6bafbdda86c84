"""Two ways to do the steps of ``_call``: blocking, and with asyncio."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import IO, Any, TypeVar, cast

import httpx

from ._call import AnyStep, Call, Local, Step
from ._errors import ApiError, Busy, ConnectionFailed, TimedOut, refusal

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
# Seconds to connect, to send, and without a byte of an answer.
DEFAULT_TIMEOUT = 60.0
# Bytes of a file that are sent at a time.
CHUNK_BYTES = 256 * 1024
# Seconds between two tries of a request that never left, times the number of the try.
TRY_AGAIN_SECONDS = 0.2
# An error is a sentence; a longer answer is not ours.
MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True)
class Settings:
    """How to reach a service."""

    url: str
    api_key: str | None
    timeout: float
    retries: int
    wait_when_busy: float

    @classmethod
    def of(
        cls,
        url: str | None,
        api_key: str | None,
        timeout: float,
        retries: int,
        wait_when_busy: float,
    ) -> Settings:
        """Settings with what is not given taken from the environment."""
        url = url or os.environ.get("SANDCELL_URL") or DEFAULT_URL
        if "://" not in url:
            url = f"http://{url}"
        parts = httpx.URL(url)
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ValueError(f"url: {url!r} is not an http or https address")
        if parts.host == "0.0.0.0":  # noqa: S104 - an address to listen on, which no client can call
            parts = parts.copy_with(host="127.0.0.1")
        api_key = os.environ.get("SANDCELL_API_KEY") if api_key is None else api_key
        return cls(str(parts).rstrip("/"), api_key or None, timeout, retries, wait_when_busy)

    def options(self) -> dict[str, Any]:
        """Arguments of an ``httpx`` client."""
        return {
            "trust_env": not _is_loopback(httpx.URL(self.url).host),
            "follow_redirects": False,
            # Each execution that runs holds one; how many may run is the service's to say.
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        }

    def request(self, call: Call[Any]) -> dict[str, Any]:
        """Arguments of ``httpx.Client.stream``, apart from an open file as the body."""
        headers = {"User-Agent": "sandcell-python", **call.headers}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        silence = self.timeout if call.silence is None else max(call.silence, self.timeout)
        request: dict[str, Any] = {
            "method": call.method,
            "url": self.url + call.path,
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout, read=silence, pool=None),
        }
        if call.params:
            request["params"] = dict(call.params)
        if call.form:
            request["data"], request["files"] = call.form
        elif call.content is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
            request["content"] = call.content
        elif call.json is not None:
            request["json"] = call.json
        return request

    def pause(self, call: Call[Any], error: Exception, tries: int, waited: float) -> float | None:
        """Seconds to wait before another try that can do no harm; ``None`` where there is none."""
        if isinstance(error, Busy):
            # Refused before anything was done.
            seconds = error.retry_after or 1.0
            return seconds if waited + seconds <= self.wait_when_busy else None
        if tries >= self.retries:
            return None
        unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        # The service closes idle connections, perhaps just when one is used again.
        closed = isinstance(error, httpx.RemoteProtocolError) and call.method == "GET"
        return TRY_AGAIN_SECONDS * (tries + 1) if unsent or closed else None


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, which no proxy should be asked for."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _failure(error: httpx.HTTPError, url: str) -> ConnectionFailed:
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{url} did not answer in time ({type(error).__name__})")
    return ConnectionFailed(f"{url}: {error or type(error).__name__}")


class SyncTransport:
    """Does steps, blocking."""

    def __init__(self, settings: Settings, http: httpx.Client | None = None) -> None:
        self.settings = settings
        self._owned = http is None
        self._http = http if http is not None else httpx.Client(**settings.options())

    def close(self) -> None:
        """Closes the connections, unless the ``httpx.Client`` is the caller's."""
        if self._owned:
            self._http.close()

    def run(self, step: Step[T]) -> T:
        """Does a step to its end."""
        flow = iter(step)
        try:
            wanted = next(flow)
            while True:
                try:
                    value = self._do(wanted)
                except Exception as error:
                    wanted = flow.throw(error)
                else:
                    wanted = flow.send(value)
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            # Whatever ended this early, what the flow holds open is closed now.
            flow.close()

    def _do(self, step: AnyStep) -> Any:
        if isinstance(step, Local):
            return step.do()
        with self.open(step) as (response, receiver):
            for chunk in response:
                for _ in receiver.take(chunk):
                    pass
            return receiver.finish()

    @contextmanager
    def open(self, call: Call[T]) -> Iterator[tuple[Iterator[bytes], Any]]:
        """Sends a request; gives the bytes of its answer and what reads them."""
        tries, waited = 0, 0.0
        while True:
            try:
                response = self._begin(call)
                break
            except (Busy, httpx.HTTPError) as error:
                pause = self.settings.pause(call, error, tries, waited)
                if pause is None:
                    if isinstance(error, httpx.HTTPError):
                        raise _failure(error, self.settings.url) from error
                    raise
                tries, waited = tries + (not isinstance(error, ApiError)), waited + pause
                time.sleep(pause)
        try:
            yield self._bytes(response), call.receiver()
        finally:
            response.close()

    def _begin(self, call: Call[Any]) -> httpx.Response:
        response = self._http.send(self._http.build_request(**self.settings.request(call)), stream=True)
        if response.status_code == 200:
            return response
        try:
            body = b""
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    break
            raise refusal(response.status_code, response.headers, body)
        finally:
            response.close()

    def _bytes(self, response: httpx.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise _failure(error, self.settings.url) from error


class AsyncTransport:
    """Does steps with asyncio."""

    def __init__(self, settings: Settings, http: httpx.AsyncClient | None = None) -> None:
        self.settings = settings
        self._owned = http is None
        self._http = http if http is not None else httpx.AsyncClient(**settings.options())

    async def close(self) -> None:
        """Closes the connections, unless the ``httpx.AsyncClient`` is the caller's."""
        if self._owned:
            await self._http.aclose()

    async def run(self, step: Step[T]) -> T:
        """Does a step to its end."""
        flow = iter(step)
        try:
            wanted = next(flow)
            while True:
                try:
                    value = await self._do(wanted)
                except Exception as error:
                    wanted = flow.throw(error)
                else:
                    wanted = flow.send(value)
        except StopIteration as end:
            return cast("T", end.value)
        finally:
            # Whatever ended this early, what the flow holds open is closed now.
            flow.close()

    async def _do(self, step: AnyStep) -> Any:
        if isinstance(step, Local):
            return await asyncio.get_running_loop().run_in_executor(None, step.do)
        async with self.open(step) as (response, receiver):
            async for chunk in response:
                for told in receiver.take(chunk):
                    if isawaitable(told):
                        await told
            return receiver.finish()

    @asynccontextmanager
    async def open(self, call: Call[T]) -> AsyncIterator[tuple[AsyncIterator[bytes], Any]]:
        """Sends a request; gives the bytes of its answer and what reads them."""
        tries, waited = 0, 0.0
        while True:
            try:
                response = await self._begin(call)
                break
            except (Busy, httpx.HTTPError) as error:
                pause = self.settings.pause(call, error, tries, waited)
                if pause is None:
                    if isinstance(error, httpx.HTTPError):
                        raise _failure(error, self.settings.url) from error
                    raise
                tries, waited = tries + (not isinstance(error, ApiError)), waited + pause
                await asyncio.sleep(pause)
        chunks = self._bytes(response)
        try:
            yield chunks, call.receiver()
        finally:
            await chunks.aclose()
            await response.aclose()

    async def _begin(self, call: Call[Any]) -> httpx.Response:
        arguments = self.settings.request(call)
        content = arguments.get("content")
        if content is not None and not isinstance(content, bytes):
            arguments["headers"]["Content-Length"] = str(_bytes_left(content))
            arguments["content"] = _pieces(content)
        response = await self._http.send(self._http.build_request(**arguments), stream=True)
        if response.status_code == 200:
            return response
        try:
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    break
            raise refusal(response.status_code, response.headers, body)
        finally:
            await response.aclose()

    async def _bytes(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except httpx.HTTPError as error:
            raise _failure(error, self.settings.url) from error


def _bytes_left(file: IO[bytes]) -> int:
    at = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(at)
    return end - at


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        piece = await loop.run_in_executor(None, file.read, CHUNK_BYTES)
        if not piece:
            return
        yield piece
