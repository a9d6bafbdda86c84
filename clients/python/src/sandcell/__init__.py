"""Client for sandcell: warm, isolated, stateful Python sandboxes.

>>> from sandcell import Sandbox
>>> with Sandbox.create() as sandbox:
...     sandbox.run_code("20 + 22").text
'42'

:class:`Sandbox` blocks, :class:`AsyncSandbox` is for asyncio, :class:`SandboxClient` is what programs for
"LLM Python Code Sandbox" use.
"""

from ._async import (
    AsyncClient,
    AsyncCommands,
    AsyncContexts,
    AsyncFiles,
    AsyncMirrors,
    AsyncProcess,
    AsyncSandbox,
)
from ._errors import (
    ApiError,
    BadRequest,
    Busy,
    CodeError,
    CommandFailed,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Gone,
    InstallFailed,
    NoSpace,
    NotFound,
    SandcellError,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from ._execution import Error, Event, Execution
from ._models import (
    Checkpoint,
    CommandResult,
    ContextInfo,
    FileChange,
    FileEvent,
    FileInfo,
    InstallResult,
    Lease,
    ListeningPort,
    Mirror,
    NetworkInfo,
    Output,
    OutputChunk,
    Package,
    ProcessInfo,
    SandboxInfo,
    Usage,
)
from ._ops import CreateOptions
from ._result import Result
from ._stream import AsyncStream, Stream
from ._sync import Client, Commands, Contexts, Files, Mirrors, Process, Sandbox
from .client import SandboxClient

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncCommands",
    "AsyncContexts",
    "AsyncFiles",
    "AsyncMirrors",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncStream",
    "BadRequest",
    "Busy",
    "Checkpoint",
    "Client",
    "CodeError",
    "CommandFailed",
    "CommandResult",
    "Commands",
    "Conflict",
    "ConnectionFailed",
    "ContextInfo",
    "Contexts",
    "CreateOptions",
    "Error",
    "Event",
    "Execution",
    "FileChange",
    "FileEvent",
    "FileInfo",
    "Files",
    "Forbidden",
    "Gone",
    "InstallFailed",
    "InstallResult",
    "Lease",
    "ListeningPort",
    "Mirror",
    "Mirrors",
    "NetworkInfo",
    "NoSpace",
    "NotFound",
    "Output",
    "OutputChunk",
    "Package",
    "Process",
    "ProcessInfo",
    "Result",
    "Sandbox",
    "SandboxClient",
    "SandboxInfo",
    "SandcellError",
    "Stream",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Usage",
]
