"""What the client does when the service, or what is between, does not do well."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest

from sandcell import (
    ApiError,
    AsyncClient,
    AsyncSandbox,
    Busy,
    Client,
    ConnectionFailed,
    Sandbox,
    SandcellError,
    TimedOut,
    Unauthorized,
)


@contextlib.contextmanager
def serving(*answers):
    """A server that gives each request the next answer: bytes, or a function of the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked = []

    def serve():
        for answer in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                asked.append(head.decode())
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        # What waits in accept() is not woken by close(), but by the end of what it waits for.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        listener.close()


def answer(body, status="200 OK", *headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def refused(status, code, *headers):
    return answer(json.dumps({"detail": "no", "code": code}).encode(), status, *headers)


HEALTHY = answer(b'{"status": "healthy"}')


def hang_up(connection):
    connection.shutdown(socket.SHUT_RDWR)


def silent(connection):
    with contextlib.suppress(OSError):
        connection.recv(1)


def health(url, **options):
    with Client(url, **options) as client:
        return client.health()


def async_health(url, **options):
    async def main():
        async with AsyncClient(url, **options) as client:
            return await client.health()

    return asyncio.run(main())


BOTH = pytest.mark.parametrize("ask", [health, async_health])


@BOTH
def test_a_service_that_is_busy_is_waited_for_where_that_is_asked(ask):
    busy = refused("429 Too Many Requests", "too_many", "Retry-After: 1")
    with serving(busy, busy, HEALTHY) as (url, asked):
        with pytest.raises(Busy) as caught:
            ask(url)
        assert caught.value.retry_after == 1
        begun = time.monotonic()
        assert ask(url, wait_when_busy=5) == "healthy"
        assert time.monotonic() - begun > 0.9
        assert len(asked) == 3
    with serving(busy) as (url, asked), pytest.raises(Busy):
        ask(url, wait_when_busy=0.5)


@BOTH
def test_a_read_that_was_cut_off_is_sent_again(ask):
    with serving(hang_up, HEALTHY) as (url, asked):
        assert ask(url) == "healthy"
        assert len(asked) == 2
    with serving(hang_up, HEALTHY) as (url, asked), pytest.raises(ConnectionFailed):
        ask(url, retries=0)


def test_what_may_have_taken_effect_is_not_sent_again():
    with serving(hang_up, HEALTHY) as (url, asked):
        with pytest.raises(ConnectionFailed):
            Sandbox.create(url=url)
        assert len(asked) == 1


@BOTH
def test_nothing_listens(ask):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(ConnectionFailed, match=str(port)):
        ask(f"http://127.0.0.1:{port}")
    assert time.monotonic() - begun > 0.5


@BOTH
def test_silence_is_given_up(ask):
    with serving(silent) as (url, _), pytest.raises(TimedOut):
        ask(url, timeout=0.5, retries=0)


def test_a_stream_that_breaks_off_is_no_end():
    created = answer(
        b'{"sandbox_id": "x", "name": "n", "created_at": "2026-01-01T00:00:00Z",'
        b' "expires_at": "2026-01-01T00:00:00Z"}'
    )
    cut = answer(b'{"type": "started"}\n{"type": "stdout", "text": "1"}\n')
    closed = answer(b"{}")
    cut_off = pytest.raises(ConnectionFailed, match="before the execution had ended")
    with serving(created, cut, closed) as (url, _), Sandbox.create(url=url) as sandbox, cut_off:
        sandbox.run_code("1")
    failed = answer(b'{"type": "failed", "code": "execution_lost", "detail": "closed"}\n')
    with serving(created, failed, closed) as (url, _), Sandbox.create(url=url) as sandbox:
        with pytest.raises(ApiError) as caught:
            sandbox.run_code("1")
        assert caught.value.code == "execution_lost"

    async def main(url):
        async with AsyncSandbox.create(url=url) as sandbox:
            with pytest.raises(ConnectionFailed):
                await sandbox.commands.run("true")

    with serving(created, cut, closed) as (url, _):
        asyncio.run(main(url))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"status": 1'])
def test_an_answer_of_something_else_is_an_error_of_ours(body):
    with serving(answer(body)) as (url, _), pytest.raises(SandcellError):
        Sandbox.create(url=url)
    with serving(answer(body, "502 Bad Gateway")) as (url, _), pytest.raises(ApiError) as caught:
        health(url)
    assert caught.value.status == 502


def test_the_key_comes_from_the_environment_or_the_caller(monkeypatch):
    monkeypatch.delenv("SANDCELL_API_KEY", raising=False)
    with serving(HEALTHY, HEALTHY, HEALTHY, refused("401 Unauthorized", "unauthorized")) as (url, asked):
        health(url)
        monkeypatch.setenv("SANDCELL_API_KEY", "from-env")
        health(url)
        health(url, api_key="given")
        with pytest.raises(Unauthorized):
            health(url, api_key="")
    keys = [[line for line in head.splitlines() if line.startswith("Authorization")] for head in asked]
    assert keys == [[], ["Authorization: Bearer from-env"], ["Authorization: Bearer given"], []]


def test_addresses(monkeypatch):
    # No address to call, but what the seed's README says.
    assert Client("http://0.0.0.0:8000").url == "http://127.0.0.1:8000"
    assert Client("localhost:1234/").url == "http://localhost:1234"
    assert Client("https://example.com/base/").url == "https://example.com/base"
    monkeypatch.setenv("SANDCELL_URL", "http://127.0.0.1:9")
    assert Client().url == "http://127.0.0.1:9"
    monkeypatch.delenv("SANDCELL_URL")
    assert Client().url == "http://127.0.0.1:8000"
    for wrong in ("ftp://x", "http://"):
        with pytest.raises(ValueError, match="http"):
            Client(wrong)


def test_no_proxy_is_asked_for_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(HEALTHY) as (url, _):
        assert health(url) == "healthy"
