"""The client of "LLM Python Code Sandbox", method for method: what was written for it runs unchanged.

New code is better off with :class:`sandcell.Sandbox`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _ops, _ops_files
from ._call import call
from ._errors import SandcellError
from ._transport import DEFAULT_TIMEOUT, Settings, SyncTransport

if TYPE_CHECKING:
    import os
    from types import TracebackType

    from typing_extensions import Self, Unpack


class SandboxClient:
    """Sandboxes of a service, one of them the current one.

    Every method that is about a sandbox takes a ``sandbox_id``; without one it is about the sandbox that
    :meth:`create_sandbox` made last. Answers are the service's JSON as it came.

    Args:
        base_url: Where the service is; ``SANDCELL_URL`` or http://127.0.0.1:8000 by default.
        api_key: A key for it; ``SANDCELL_API_KEY`` by default.
        timeout: Seconds to connect, to send, and without a byte of an answer. Executions are waited for
            as long as they take.

    Attributes:
        base_url: Where the service is.
        sandbox_id: The current sandbox; ``None`` where there is none.
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self._transport = SyncTransport(
            Settings.of(base_url, api_key, timeout, retries=2, wait_when_busy=0.0)
        )
        self.base_url = self._transport.settings.url
        self.sandbox_id: str | None = None

    def create_sandbox(self, name: str | None = None, **options: Unpack[_ops.CreateOptions]) -> str:
        """Makes a sandbox, which is the current one from now on; gives its id."""
        info = self._transport.run(_ops.create("", name, **options))
        self.sandbox_id = info.id
        return info.id

    def execute_code(
        self, code: str, sandbox_id: str | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        """Runs code; variables live on in the next execution.

        Args:
            code: Python.
            sandbox_id: Another sandbox than the current one.
            timeout: Seconds that the code may take; what the service has by default.

        Returns:
            ``stdout``, ``stderr``, ``error`` (``None``, or what it raised), ``traceback``, ``results``
            (base64 for pictures) and more.
        """
        answer: dict[str, Any] = self._transport.run(_ops.outcome(self._at(sandbox_id), code, timeout))
        return answer

    def install_package(self, package_name: str, sandbox_id: str | None = None) -> dict[str, Any]:
        """Installs a package; ``success`` says whether it is there, ``message`` what happened."""
        result = self._transport.run(_ops.install(self._at(sandbox_id), package_name))
        return dict(result.raw)

    def list_files(self, sandbox_id: str | None = None) -> list[dict[str, Any]]:
        """Lists all files of the working directory: ``path``, ``size`` and more."""
        return [dict(file.raw) for file in self._transport.run(_ops_files.entries(self._at(sandbox_id)))]

    def download_file(
        self,
        file_path: str,
        local_path: str | os.PathLike[str] | None = None,
        sandbox_id: str | None = None,
    ) -> str:
        """Saves a file of the sandbox on this machine.

        Args:
            file_path: The file, as :meth:`list_files` gives it.
            local_path: Where to; by default its name in the current directory.
            sandbox_id: Another sandbox than the current one.

        Returns:
            Where it is now.
        """
        return str(self._transport.run(_ops_files.download(self._at(sandbox_id), file_path, local_path)))

    def upload_file(
        self,
        local_path: str | os.PathLike[str],
        file_path: str | None = None,
        sandbox_id: str | None = None,
    ) -> dict[str, Any]:
        """Copies a file of this machine into the sandbox.

        Args:
            local_path: The file.
            file_path: Where to; by default its name in the working directory.
            sandbox_id: Another sandbox than the current one.

        Returns:
            ``file_path``: where it is in the sandbox.
        """
        path = self._transport.run(_ops_files.upload(self._at(sandbox_id), local_path, file_path))
        return {"file_path": path}

    def close_sandbox(self, sandbox_id: str | None = None) -> dict[str, Any]:
        """Ends a sandbox and all that is in it; gives ``status`` and ``message``."""
        closed = self._at(sandbox_id)
        answer = self._transport.run(call("POST", f"{closed}/close", dict, silence=_ops.GRACE_SECONDS))
        if sandbox_id is None or sandbox_id == self.sandbox_id:
            self.sandbox_id = None
        return answer

    def list_all_sandboxes(self) -> dict[str, dict[str, Any]]:
        """Lists the live sandboxes: by id ``name``, ``created_at``, ``expires_at`` and more."""
        return self._transport.run(call("GET", "/sandboxes", dict))

    def health(self) -> dict[str, Any]:
        """Asks how the service is: ``{"status": "healthy"}``."""
        return self._transport.run(call("GET", "/health", dict))

    def _at(self, sandbox_id: str | None) -> str:
        chosen = self.sandbox_id if sandbox_id is None else sandbox_id
        if chosen is None:
            raise SandcellError("there is no sandbox: call create_sandbox() first, or give a sandbox_id")
        return _ops.of_sandbox(chosen)

    def close(self) -> None:
        """Closes the connections; sandboxes live on."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
