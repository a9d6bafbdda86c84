"""What the service tells, as values.

Sizes are bytes, durations seconds, times aware datetimes in UTC. What the service says beyond the
attributes here is in ``raw``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, Callable, TypeVar

from ._errors import CommandFailed, InstallFailed, SandcellError

M = TypeVar("M", bound="Model")

DEFAULT_CONTEXT = "default"


def when(text: str) -> datetime:
    """Reads a time as the service writes it (RFC 3339, UTC)."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def told_as(name: str | None = None, convert: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """Metadata of a field that has another key in the answer, or is converted; null is left as it is."""
    return {"name": name, "convert": convert}


@dataclass(frozen=True)
class Model:
    """Base of all that is read from an answer."""

    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls: type[M], answer: Any) -> M:
        """Reads an answer; keys that it does not know are no error.

        Raises:
            SandcellError: A key is missing or cannot be read.
        """
        values = {}
        try:
            for one in fields(cls):
                name = one.metadata.get("name") or one.name
                convert = one.metadata.get("convert")
                optional = one.default is not MISSING or one.default_factory is not MISSING
                if one.name == "raw" or (optional and name not in answer):
                    continue
                value = answer[name]
                values[one.name] = convert(value) if convert and value is not None else value
        except (LookupError, TypeError, ValueError) as error:
            raise SandcellError(f"the answer is no {cls.__name__}: {error!r}") from error
        return cls(raw=answer, **values)

    @classmethod
    def each(cls: type[M], answers: Any) -> list[M]:
        """Reads a list of them."""
        return [cls.of(answer) for answer in answers]


@dataclass(frozen=True)
class SandboxInfo(Model):
    """A sandbox.

    Attributes:
        id: Names it in every call.
        name: Free text for people.
        expires_at: When it is closed at the latest.
        state: What it does now; ``None`` where that was not asked.
    """

    id: str = field(metadata=told_as("sandbox_id"))
    name: str
    created_at: datetime = field(metadata=told_as(convert=when))
    expires_at: datetime = field(metadata=told_as(convert=when))
    last_used_at: datetime | None = field(default=None, metadata=told_as(convert=when))
    state: str | None = None


@dataclass(frozen=True)
class Lease(Model):
    """How long a sandbox lives.

    Attributes:
        expires_at: When it is closed at the latest.
    """

    expires_at: datetime = field(metadata=told_as(convert=when))


@dataclass(frozen=True)
class FileInfo(Model):
    """A file or directory of a sandbox.

    Attributes:
        path: Relative to the working directory.
        size: Bytes.
        url: Path of the service that serves it; ``None`` for all but files.
        type: ``file``, ``directory``, ``symlink`` or ``other``.
        mode: Permission bits in octal, such as ``0644``.
    """

    path: str
    size: int
    url: str | None = None
    type: str = "file"
    modified_at: datetime | None = field(default=None, metadata=told_as(convert=when))
    mode: str | None = None


@dataclass(frozen=True)
class FileChange(Model):
    """A file that an execution touched.

    Attributes:
        path: Relative to the working directory.
        size: Bytes afterwards, 0 when deleted.
        change: ``created``, ``changed`` or ``deleted``.
        url: Path of the service that serves it; ``None`` for a link and when deleted.
        type: ``file`` or ``symlink``.
    """

    path: str
    size: int
    change: str
    url: str | None = None
    type: str = "file"


@dataclass(frozen=True)
class FileEvent(Model):
    """A change that was watched for.

    Attributes:
        event: ``created``, ``changed``, ``deleted`` or ``renamed``; or ``overflow``: there were too many,
            and only a new list tells how the files are.
        path: Relative to the working directory; what it is called now, where it was renamed.
        source: What it was called before.
        is_directory: Whether it is a directory.
    """

    event: str
    path: str = ""
    source: str | None = field(default=None, metadata=told_as("from"))
    is_directory: bool = field(default=False, metadata=told_as("directory"))


@dataclass(frozen=True)
class Usage(Model):
    """What an execution cost.

    Attributes:
        wall_seconds: From its start to its end.
        peak_memory_bytes: Highest memory of the sandbox so far.
        processes: Processes and threads at the end.
        read_bytes: From files, pipes and sockets; ``None`` where Python died.
        written_bytes: Likewise.
        limits_hit: Which of ``memory``, ``processes``, ``disk``, ``output``, ``time`` were hit.
        limit_hits: How often each was.
    """

    wall_seconds: float
    cpu_user_seconds: float
    cpu_system_seconds: float
    peak_memory_bytes: int
    processes: int
    read_bytes: int | None = None
    written_bytes: int | None = None
    limits_hit: list[str] = field(default_factory=list)
    limit_hits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ContextInfo(Model):
    """A context: variables of its own over the sandbox's files.

    Attributes:
        id: Names it in other calls.
        name: Free text for people.
        cwd: Where its Python starts.
        state: ``idle``, ``busy`` or ``closing``.
        execution_count: Counts its executions; 0 when its variables are fresh.
        not_carried: After a fork or restore, what could not come along: threads, connections.
    """

    id: str = field(metadata=told_as("context_id"))
    name: str
    cwd: str
    created_at: datetime = field(metadata=told_as(convert=when))
    state: str
    execution_count: int
    not_carried: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint(Model):
    """Variables of a context that were kept.

    Attributes:
        id: Names it in other calls.
        name: Free text for people.
        context_id: The context that it is of.
        execution_count: How many executions the context had seen.
        not_carried: What could not be kept: threads, connections.
    """

    id: str = field(metadata=told_as("checkpoint_id"))
    name: str
    context_id: str
    created_at: datetime = field(metadata=told_as(convert=when))
    execution_count: int
    not_carried: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CommandResult(Model):
    """A command that ended.

    Attributes:
        stdout: What it wrote; head and tail where that was too long.
        exit_code: 0 for success; 128 + n when signal n ended it; 124 when its time was over.
        timed_out: Its time was over and it was killed.
        out_of_memory: The sandbox's memory limit killed a process meanwhile.
        truncated: Output beyond the limit was dropped.
    """

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False
    out_of_memory: bool = False
    truncated: bool = False
    wall_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0

    def raise_for_error(self) -> CommandResult:
        """Gives itself.

        Raises:
            CommandFailed: It did not exit with 0.
        """
        if self.exit_code != 0:
            raise CommandFailed(self.exit_code, self.stdout, self.stderr)
        return self


@dataclass(frozen=True)
class ProcessInfo(Model):
    """A background process.

    Attributes:
        id: Names it in other calls.
        pid: Its process id inside the sandbox.
        command: ``None`` for an interactive shell.
        state: ``running`` or ``exited``.
        output_bytes: Bytes that it has written so far.
        exit_code: ``None`` while it runs; 128 + n when signal n ended it; 124 when its time was over.
        signal: Name of the signal that ended it.
    """

    id: str = field(metadata=told_as("process_id"))
    pid: int
    command: str | None
    cwd: str | None
    state: str
    started_at: datetime = field(metadata=told_as(convert=when))
    output_bytes: int
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    out_of_memory: bool = False
    ended_at: datetime | None = field(default=None, metadata=told_as(convert=when))

    @property
    def running(self) -> bool:
        """Whether it had not ended."""
        return self.state == "running"


@dataclass(frozen=True)
class OutputChunk(Model):
    """Output of one stream in a row.

    Attributes:
        stream: ``stdout``, ``stderr`` or ``pty``.
    """

    stream: str
    text: str


@dataclass(frozen=True)
class Output(Model):
    """Output of a background process.

    Attributes:
        offset: Byte offset of the first chunk.
        next_offset: Byte offset to ask for next.
        lost_bytes: Bytes since the offset asked for that were dropped: too much came after them.
        output_bytes: Bytes written so far.
        state: ``running``, or ``exited``: nothing is written any more.
    """

    offset: int
    next_offset: int
    lost_bytes: int
    output_bytes: int
    chunks: list[OutputChunk] = field(metadata=told_as(convert=OutputChunk.each))
    state: str
    exit_code: int | None = None

    @property
    def text(self) -> str:
        """All of it, whichever the stream."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def complete(self) -> bool:
        """Whether nothing follows."""
        return self.state == "exited" and self.next_offset >= self.output_bytes


@dataclass(frozen=True)
class Package(Model):
    """A package of a sandbox.

    Attributes:
        name: Normalized: lower case, words joined by ``-``.
        status: ``installed``, ``installing``, ``failed``, ``not_found`` or ``not_installed``.
        message: Why it is not installed.
    """

    name: str
    status: str
    version: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class InstallResult(Model):
    """How an installation stands.

    Attributes:
        status: ``installed``, ``installing``, ``failed`` or ``not_found``.
        success: Whether all packages are installed.
        complete: Whether it has ended; when not, it goes on, and ``packages`` tells how it stands.
        message: What happened, in a sentence.
        packages: Each package that was named.
    """

    status: str
    success: bool
    complete: bool
    message: str
    packages: list[Package] = field(metadata=told_as(convert=Package.each))
    stdout: str = ""
    stderr: str = ""

    def raise_for_error(self) -> InstallResult:
        """Gives itself.

        Raises:
            InstallFailed: Not everything is installed.
        """
        if not self.success:
            raise InstallFailed(self.message)
        return self


@dataclass(frozen=True)
class NetworkInfo(Model):
    """What a sandbox may reach and has reached.

    Attributes:
        policy: ``none``, ``packages``, ``open`` or ``{"allow": [...], "packages": bool}``.
        open: Connections that are open now.
        allowed: Connections and requests that reached a host.
        refused: Those that did not.
        refusals: The last of those: ``host``, ``port``, ``reason``, ``message``.
    """

    policy: Any = field(metadata=told_as("network"))
    open: int
    allowed: int
    refused: int
    bytes_sent: int
    bytes_received: int
    refusals: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ListeningPort(Model):
    """A TCP port on which something inside listens.

    Attributes:
        address: What it is bound to.
        url: Path of the service that leads to it, for programs and simple pages.
        host: Host name of the service that leads to it, for browsers.
    """

    port: int
    address: str
    url: str
    host: str


@dataclass(frozen=True)
class Mirror(Model):
    """What sandboxes start from: the base, or packages over it.

    Attributes:
        id: What ``create(mirror=...)`` takes, as it does the name.
        status: ``building``, ``ready`` or ``failed``.
        detail: Why it failed.
        packages: What was added: ``name`` and ``version``.
        preload: Modules that are imported ahead.
    """

    id: str = field(metadata=told_as("mirror_id"))
    name: str
    base: str | None
    status: str
    detail: str | None = None
    packages: list[Mapping[str, str]] = field(default_factory=list)
    preload: list[str] = field(default_factory=list)
    size_bytes: int | None = None
    created_at: datetime | None = field(default=None, metadata=told_as(convert=when))
