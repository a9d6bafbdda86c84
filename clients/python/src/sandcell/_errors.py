"""What can go wrong, as exceptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._execution import Execution


class SandcellError(Exception):
    """Any failure of this package."""


class ConnectionFailed(SandcellError):
    """The service could not be reached, or the connection broke off before the answer was whole.

    Whether a request that was on its way took effect is not known.
    """


class TimedOut(ConnectionFailed):
    """The service was silent for longer than the client waits."""


class ApiError(SandcellError):
    """The service refused a request.

    Attributes:
        status: HTTP status, 400 to 599; 0 where the refusal came within a stream that had begun.
        code: Stable word for programs, for example ``sandbox_not_found``.
        detail: One sentence for people.
        field: The field of the request that is to blame, where one is.
        retry_after: Seconds after which another try may succeed, where the service says so.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{detail} ({status} {code})" if status else f"{detail} ({code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.status, self.code, self.detail, self.field, self.retry_after)


def _rebuilt(
    cls: type[ApiError], status: int, code: str, detail: str, field: str | None, retry_after: float | None
) -> ApiError:
    return cls(status, code, detail, field=field, retry_after=retry_after)


class BadRequest(ApiError):
    """400 or 422: the request is not one that the service takes."""


class Unauthorized(ApiError):
    """401: the service wants a key (``api_key``, ``SANDCELL_API_KEY``)."""


class Forbidden(ApiError):
    """403: not from here, or not for this caller."""


class NotFound(ApiError):
    """404: no such sandbox, file, context, process, checkpoint or route."""


class Conflict(ApiError):
    """409: not in the state that things are in."""


class Gone(ApiError):
    """410: the sandbox was closed, or its lease ended."""


class TooLarge(ApiError):
    """413: larger than a limit, which the detail names."""


class Busy(ApiError):
    """429: a limit on how much at once; ``retry_after`` says when to try again."""


class Unavailable(ApiError):
    """503: not now."""


class NoSpace(ApiError):
    """507: the disk of the sandbox or of the service is full."""


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: BadRequest,
    429: Busy,
    503: Unavailable,
    507: NoSpace,
}


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The exception for an answer that is no success."""
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        # Not from sandcell: a proxy between, or another service at that address.
        told = {"detail": body[:200].decode("utf-8", "replace").strip() or f"status {status}"}
    try:
        retry_after = float(headers["retry-after"])
    except (KeyError, ValueError):
        retry_after = None
    field = told.get("field")
    return _BY_STATUS.get(status, ApiError)(
        status,
        str(told.get("code", "unknown")),
        str(told.get("detail", "")),
        field=field if isinstance(field, str) else None,
        retry_after=retry_after,
    )


class CodeError(SandcellError):
    """Code that was run did not end well; raised only where asked for.

    Attributes:
        execution: All of what it did.
        name: The exception's class, or ``timeout``, ``interrupted``, ``out_of_memory``, ``kernel_died``.
        value: The exception's message, or a sentence about the end.
    """

    def __init__(self, execution: Execution) -> None:
        error = execution.error
        self.execution = execution
        self.name = error.name if error else execution.outcome
        self.value = error.value if error else ""
        text = f"{self.name}: {self.value}"
        if error and error.traceback:
            text += f"\n{error.traceback}"
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.execution,)


class CommandFailed(SandcellError):
    """A command did not exit with 0; raised only where asked for.

    Attributes:
        exit_code: What it exited with; 128 + n when signal n ended it, 124 when its time was over.
        stdout: What it had written.
        stderr: What it had written to standard error.
    """

    def __init__(self, exit_code: int, stdout: str, stderr: str) -> None:
        last = stderr.strip().splitlines()[-1:] or stdout.strip().splitlines()[-1:]
        super().__init__(f"the command exited with {exit_code}" + "".join(f": {line}" for line in last))
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exit_code, self.stdout, self.stderr)


class InstallFailed(SandcellError):
    """Packages were not installed; raised only where asked for."""
