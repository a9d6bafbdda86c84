"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import _ops, _ops_files, _ops_processes
from ._errors import Gone, NotFound
from ._method import Bound, blocking, making, streaming
from ._place import Place
from ._transport import DEFAULT_TIMEOUT, Settings, SyncTransport

if TYPE_CHECKING:
    import builtins
    from types import TracebackType

    import httpx
    from typing_extensions import Self, Unpack

    from ._models import OutputChunk, ProcessInfo, SandboxInfo


class Files(Bound):
    """Files of a sandbox; paths are relative to its working directory."""

    list = blocking(_ops_files.entries)
    stat = blocking(_ops_files.stat)
    exists = blocking(_ops_files.exists)
    mkdir = blocking(_ops_files.mkdir)
    rename = blocking(_ops_files.rename)
    remove = blocking(_ops_files.remove)
    read = blocking(_ops_files.read)
    read_text = blocking(_ops_files.read_text)
    write = blocking(_ops_files.write)
    write_many = blocking(_ops_files.write_many)
    upload = blocking(_ops_files.upload)
    download = blocking(_ops_files.download)
    upload_folder = blocking(_ops_files.upload_folder)
    download_folder = blocking(_ops_files.download_folder)
    watch = streaming(_ops_files.watch)


class Process(Bound):
    """A background process of a sandbox.

    Attributes:
        id: Names it among those of its sandbox.
    """

    def __init__(self, transport: SyncTransport, at: str, process_id: str) -> None:
        super().__init__(transport, _ops_processes.of_process(at, process_id))
        self.id = process_id

    info = blocking(_ops_processes.info)
    read = blocking(_ops_processes.read)
    write = blocking(_ops_processes.write)
    send_signal = blocking(_ops_processes.send_signal)
    kill = blocking(_ops_processes.kill)
    wait = blocking(_ops_processes.wait)
    resize = blocking(_ops_processes.resize)
    delete = blocking(_ops_processes.delete)

    def output(self, offset: int = 0) -> Iterator[OutputChunk]:
        """Goes through what the process writes, from a byte offset on, until it has ended."""
        following = _ops_processes.Following(self._at, offset)
        while not following.ended:
            yield from following.take(self._transport.run(following.ask()))

    def __repr__(self) -> str:
        return f"Process({self.id!r})"


def _process(commands: Commands, info: ProcessInfo) -> Process:
    return commands.process(info.id)


class Commands(Bound):
    """Shell commands in a sandbox."""

    run = blocking(_ops_processes.run)
    stream = streaming(_ops_processes.stream)
    start = making(_ops_processes.start, _process)
    list = blocking(_ops_processes.processes)

    def process(self, process_id: str) -> Process:
        """A background process by its id, which is not asked for."""
        return Process(self._transport, self._at, process_id)


class Contexts(Bound):
    """Contexts of a sandbox: Pythons with variables of their own over the same files."""

    create = blocking(_ops.create_context)
    list = blocking(_ops.contexts)
    restart = blocking(_ops.restart_context)
    delete = blocking(_ops.delete_context)


class Mirrors(Bound):
    """What sandboxes start from: the base, and packages over it."""

    create = blocking(_ops.create_mirror)
    list = blocking(_ops.mirrors)
    get = blocking(_ops.mirror)
    delete = blocking(_ops.delete_mirror)


class Client(Bound):
    """A service.

    Args:
        url: Where it is; ``SANDCELL_URL`` or http://127.0.0.1:8000 by default.
        api_key: A key for it; ``SANDCELL_API_KEY`` by default.
        timeout: Seconds to connect, to send, and without a byte of an answer. Executions, commands and
            whatever else takes its time are waited for as long as they take.
        retries: How often a request is sent again that never left, or a read that was cut off.
        wait_when_busy: Seconds to wait in all when the service answers 429; none by default.
        http: An ``httpx.Client`` to use, which is then yours to close.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 2,
        wait_when_busy: float = 0.0,
        http: httpx.Client | None = None,
    ) -> None:
        settings = Settings.of(url, api_key, timeout, retries, wait_when_busy)
        super().__init__(SyncTransport(settings, http), "")
        self.url = settings.url
        self.mirrors = Mirrors(self._transport, "")

    health = blocking(_ops.health)
    sandboxes = blocking(_ops.sandboxes)

    def create(self, name: str | None = None, **options: Unpack[_ops.CreateOptions]) -> Sandbox:
        """Makes a sandbox, which its ``with`` block closes. Options are those of :meth:`Sandbox.create`."""
        return Sandbox.create(name, client=self, **options)

    def connect(self, sandbox_id: str) -> Sandbox:
        """A sandbox that there is, which its ``with`` block leaves open.

        Raises:
            NotFound: There is none.
            Gone: It was closed.
        """
        return Sandbox.connect(sandbox_id, client=self)

    def close(self) -> None:
        """Closes the connections; sandboxes live on."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


class Sandbox(Place, Bound):
    """A sandbox. Make one with :meth:`create`; its ``with`` block closes it.

    Attributes:
        id: Names it in every call.
        files: Its files.
        commands: Shell commands and background processes.
        contexts: Pythons with variables of their own.
        client: The service.
    """

    def __init__(self, sandbox_id: str, client: Client, *, owns_client: bool = False) -> None:
        Place.__init__(self, client.url, sandbox_id)
        Bound.__init__(self, client._transport, _ops.of_sandbox(sandbox_id))
        self.client = client
        self._owns_client = owns_client
        self._closes = False
        self.files = Files(self._transport, self._at)
        self.commands = Commands(self._transport, self._at)
        self.contexts = Contexts(self._transport, self._at)

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        client: Client | None = None,
        url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[_ops.CreateOptions],
    ) -> Self:
        """Makes a sandbox.

        Args:
            name: Free text for people.
            client: The service; else one is made of ``url`` and ``api_key``, as :class:`Client` does.
            url: Where the service is.
            api_key: A key for it.
            options: See :class:`CreateOptions`.

        Raises:
            BadRequest: An option is out of range; ``field`` names it.
            Busy: There are as many sandboxes as there may be.
        """
        service = client if client is not None else Client(url, api_key=api_key)
        try:
            info = service._transport.run(_ops.create("", name, **options))
        except BaseException:
            if client is None:
                service.close()
            raise
        sandbox = cls(info.id, service, owns_client=client is None)
        sandbox._closes = True
        return sandbox

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        client: Client | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> Self:
        """A sandbox that there is, which its ``with`` block leaves open.

        Raises:
            NotFound: There is none.
            Gone: It was closed.
        """
        service = client if client is not None else Client(url, api_key=api_key)
        sandbox = cls(sandbox_id, service, owns_client=client is None)
        try:
            sandbox.info()
        except BaseException:
            if client is None:
                service.close()
            raise
        return sandbox

    @classmethod
    def list(
        cls,
        *,
        name: str | None = None,
        state: str | None = None,
        mirror: str | None = None,
        client: Client | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """Lists the live sandboxes, those with this name, state or mirror where one is given."""
        if client is not None:
            return client.sandboxes(name=name, state=state, mirror=mirror)
        with Client(url, api_key=api_key) as own:
            return own.sandboxes(name=name, state=state, mirror=mirror)

    info = blocking(_ops.info)
    renew = blocking(_ops.renew)
    run_code = blocking(_ops.run_code)
    stream_code = streaming(_ops.stream_code)
    interrupt = blocking(_ops.interrupt)
    install = blocking(_ops.install)
    packages = blocking(_ops.packages)
    network = blocking(_ops.network)
    set_network = blocking(_ops.set_network)
    ports = blocking(_ops.ports)
    checkpoint = blocking(_ops.checkpoint)
    checkpoints = blocking(_ops.checkpoints)
    delete_checkpoint = blocking(_ops.delete_checkpoint)
    restore = blocking(_ops.restore)
    fork = blocking(_ops.fork)

    def close(self) -> None:
        """Ends everything in the sandbox and removes it; does nothing when it is gone already."""
        try:
            self._transport.run(_ops.close(self._at))
        except (NotFound, Gone):
            pass
        finally:
            self.disconnect()

    def disconnect(self) -> None:
        """Closes the connections and leaves the sandbox as it is."""
        if self._owns_client:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._closes:
            self.close()
        else:
            self.disconnect()
