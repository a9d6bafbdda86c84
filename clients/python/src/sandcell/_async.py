"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from . import _ops, _ops_files, _ops_processes
from ._errors import Gone, NotFound
from ._method import AsyncBound, async_making, async_streaming, awaited
from ._place import Place
from ._transport import DEFAULT_TIMEOUT, AsyncTransport, Settings

if TYPE_CHECKING:
    import builtins
    from types import TracebackType

    import httpx
    from typing_extensions import Self, Unpack

    from ._models import OutputChunk, ProcessInfo, SandboxInfo

S = TypeVar("S", bound="AsyncSandbox")


class AsyncFiles(AsyncBound):
    """Files of a sandbox; paths are relative to its working directory."""

    list = awaited(_ops_files.entries)
    stat = awaited(_ops_files.stat)
    exists = awaited(_ops_files.exists)
    mkdir = awaited(_ops_files.mkdir)
    rename = awaited(_ops_files.rename)
    remove = awaited(_ops_files.remove)
    read = awaited(_ops_files.read)
    read_text = awaited(_ops_files.read_text)
    write = awaited(_ops_files.write)
    write_many = awaited(_ops_files.write_many)
    upload = awaited(_ops_files.upload)
    download = awaited(_ops_files.download)
    upload_folder = awaited(_ops_files.upload_folder)
    download_folder = awaited(_ops_files.download_folder)
    watch = async_streaming(_ops_files.watch)


class AsyncProcess(AsyncBound):
    """A background process of a sandbox.

    Attributes:
        id: Names it among those of its sandbox.
    """

    def __init__(self, transport: AsyncTransport, at: str, process_id: str) -> None:
        super().__init__(transport, _ops_processes.of_process(at, process_id))
        self.id = process_id

    info = awaited(_ops_processes.info)
    read = awaited(_ops_processes.read)
    write = awaited(_ops_processes.write)
    send_signal = awaited(_ops_processes.send_signal)
    kill = awaited(_ops_processes.kill)
    wait = awaited(_ops_processes.wait)
    resize = awaited(_ops_processes.resize)
    delete = awaited(_ops_processes.delete)

    async def output(self, offset: int = 0) -> AsyncIterator[OutputChunk]:
        """Goes through what the process writes, from a byte offset on, until it has ended."""
        following = _ops_processes.Following(self._at, offset)
        while not following.ended:
            for chunk in following.take(await self._transport.run(following.ask())):
                yield chunk

    def __repr__(self) -> str:
        return f"AsyncProcess({self.id!r})"


def _process(commands: AsyncCommands, info: ProcessInfo) -> AsyncProcess:
    return commands.process(info.id)


class AsyncCommands(AsyncBound):
    """Shell commands in a sandbox."""

    run = awaited(_ops_processes.run)
    stream = async_streaming(_ops_processes.stream)
    start = async_making(_ops_processes.start, _process)
    list = awaited(_ops_processes.processes)

    def process(self, process_id: str) -> AsyncProcess:
        """A background process by its id, which is not asked for."""
        return AsyncProcess(self._transport, self._at, process_id)


class AsyncContexts(AsyncBound):
    """Contexts of a sandbox: Pythons with variables of their own over the same files."""

    create = awaited(_ops.create_context)
    list = awaited(_ops.contexts)
    restart = awaited(_ops.restart_context)
    delete = awaited(_ops.delete_context)


class AsyncMirrors(AsyncBound):
    """What sandboxes start from: the base, and packages over it."""

    create = awaited(_ops.create_mirror)
    list = awaited(_ops.mirrors)
    get = awaited(_ops.mirror)
    delete = awaited(_ops.delete_mirror)


class AsyncClient(AsyncBound):
    """A service.

    Args:
        url: Where it is; ``SANDCELL_URL`` or http://127.0.0.1:8000 by default.
        api_key: A key for it; ``SANDCELL_API_KEY`` by default.
        timeout: Seconds to connect, to send, and without a byte of an answer. Executions, commands and
            whatever else takes its time are waited for as long as they take.
        retries: How often a request is sent again that never left, or a read that was cut off.
        wait_when_busy: Seconds to wait in all when the service answers 429; none by default.
        http: An ``httpx.AsyncClient`` to use, which is then yours to close.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 2,
        wait_when_busy: float = 0.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        settings = Settings.of(url, api_key, timeout, retries, wait_when_busy)
        super().__init__(AsyncTransport(settings, http), "")
        self.url = settings.url
        self.mirrors = AsyncMirrors(self._transport, "")

    health = awaited(_ops.health)
    sandboxes = awaited(_ops.sandboxes)

    def create(self, name: str | None = None, **options: Unpack[_ops.CreateOptions]) -> Opening[AsyncSandbox]:
        """Makes a sandbox, which its block closes. Options are those of :meth:`AsyncSandbox.create`."""
        return AsyncSandbox.create(name, client=self, **options)

    def connect(self, sandbox_id: str) -> Opening[AsyncSandbox]:
        """A sandbox that there is, which its block leaves open.

        Raises:
            NotFound: There is none.
            Gone: It was closed.
        """
        return AsyncSandbox.connect(sandbox_id, client=self)

    async def close(self) -> None:
        """Closes the connections; sandboxes live on."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSandbox(Place, AsyncBound):
    """A sandbox. Make one with :meth:`create`; its block closes it.

    ::

        async with AsyncSandbox.create() as sandbox:
            execution = await sandbox.run_code("1 + 1")

    Attributes:
        id: Names it in every call.
        files: Its files.
        commands: Shell commands and background processes.
        contexts: Pythons with variables of their own.
        client: The service.
    """

    def __init__(self, sandbox_id: str, client: AsyncClient, *, owns_client: bool = False) -> None:
        Place.__init__(self, client.url, sandbox_id)
        AsyncBound.__init__(self, client._transport, _ops.of_sandbox(sandbox_id))
        self.client = client
        self._owns_client = owns_client
        self._closes = False
        self.files = AsyncFiles(self._transport, self._at)
        self.commands = AsyncCommands(self._transport, self._at)
        self.contexts = AsyncContexts(self._transport, self._at)

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        client: AsyncClient | None = None,
        url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[_ops.CreateOptions],
    ) -> Opening[Self]:
        """Makes a sandbox: to be awaited, or for ``async with``.

        Args:
            name: Free text for people.
            client: The service; else one is made of ``url`` and ``api_key``, as :class:`AsyncClient` does.
            url: Where the service is.
            api_key: A key for it.
            options: See :class:`CreateOptions`.

        Raises:
            BadRequest: An option is out of range; ``field`` names it.
            Busy: There are as many sandboxes as there may be.
        """

        async def made() -> Self:
            service = client if client is not None else AsyncClient(url, api_key=api_key)
            try:
                info = await service._transport.run(_ops.create("", name, **options))
            except BaseException:
                if client is None:
                    await service.close()
                raise
            sandbox = cls(info.id, service, owns_client=client is None)
            sandbox._closes = True
            return sandbox

        return Opening(made)

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        client: AsyncClient | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> Opening[Self]:
        """A sandbox that there is, which its block leaves open: to be awaited, or for ``async with``.

        Raises:
            NotFound: There is none.
            Gone: It was closed.
        """

        async def found() -> Self:
            service = client if client is not None else AsyncClient(url, api_key=api_key)
            sandbox = cls(sandbox_id, service, owns_client=client is None)
            try:
                await sandbox.info()
            except BaseException:
                if client is None:
                    await service.close()
                raise
            return sandbox

        return Opening(found)

    @classmethod
    async def list(
        cls,
        *,
        name: str | None = None,
        state: str | None = None,
        mirror: str | None = None,
        client: AsyncClient | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """Lists the live sandboxes, those with this name, state or mirror where one is given."""
        if client is not None:
            return await client.sandboxes(name=name, state=state, mirror=mirror)
        async with AsyncClient(url, api_key=api_key) as own:
            return await own.sandboxes(name=name, state=state, mirror=mirror)

    info = awaited(_ops.info)
    renew = awaited(_ops.renew)
    run_code = awaited(_ops.run_code)
    stream_code = async_streaming(_ops.stream_code)
    interrupt = awaited(_ops.interrupt)
    install = awaited(_ops.install)
    packages = awaited(_ops.packages)
    network = awaited(_ops.network)
    set_network = awaited(_ops.set_network)
    ports = awaited(_ops.ports)
    checkpoint = awaited(_ops.checkpoint)
    checkpoints = awaited(_ops.checkpoints)
    delete_checkpoint = awaited(_ops.delete_checkpoint)
    restore = awaited(_ops.restore)
    fork = awaited(_ops.fork)

    async def close(self) -> None:
        """Ends everything in the sandbox and removes it; does nothing when it is gone already."""
        try:
            await self._transport.run(_ops.close(self._at))
        except (NotFound, Gone):
            pass
        finally:
            await self.disconnect()

    async def disconnect(self) -> None:
        """Closes the connections and leaves the sandbox as it is."""
        if self._owns_client:
            await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._closes:
            await self.close()
        else:
            await self.disconnect()


class Opening(Generic[S]):
    """A sandbox that is to come: await it, or enter it with ``async with``."""

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, S]]) -> None:
        self._open = open_
        self._sandbox: S | None = None

    def __await__(self) -> Generator[Any, None, S]:
        return self._open().__await__()

    async def __aenter__(self) -> S:
        self._sandbox = await self._open()
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._sandbox is not None:
            await self._sandbox.__aexit__(kind, error, where)
