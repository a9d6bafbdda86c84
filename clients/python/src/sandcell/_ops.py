"""What can be asked of a service and of a sandbox. ``at`` is the path of what is asked.

Each of these is a method of both clients: its parameters, its docstring and its result are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, TypedDict, Union

from ._call import Call, StreamCall, call, given, lines, nothing, segment
from ._execution import Event, Execution, Gathered, Outcome, tell
from ._models import (
    DEFAULT_CONTEXT,
    Checkpoint,
    ContextInfo,
    InstallResult,
    Lease,
    ListeningPort,
    Mirror,
    NetworkInfo,
    Package,
    SandboxInfo,
)
from ._result import Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

ContextLike = Union[str, ContextInfo]
CheckpointLike = Union[str, Checkpoint]
#: ``none``, ``packages``, ``open`` or ``{"allow": [...], "packages": bool}``; a bool is ``none`` or ``open``.
Policy = Union[str, bool, Mapping[str, Any]]

# Seconds until a sandbox is there: the first of a mirror waits for its modules to be imported.
CREATE_SECONDS = 300.0
# Seconds beyond a wait that a request asks for until its answer must be there.
GRACE_SECONDS = 60.0


def id_of(what: str | ContextInfo | Checkpoint) -> str:
    """The id of a context or a checkpoint."""
    return what if isinstance(what, str) else what.id


def of_sandbox(sandbox_id: str) -> str:
    """The path of a sandbox."""
    return f"/sandbox/{segment(sandbox_id)}"


# -- the service


def health(at: str) -> Call[str]:
    """Asks how the service is: ``healthy``."""
    return call("GET", f"{at}/health", lambda answer: str(answer["status"]))


class CreateOptions(TypedDict, total=False):
    """How a sandbox is made; what is left out is the service's default.

    Attributes:
        mirror: Id or name of what it starts from; the base by default.
        memory_bytes: Bytes of RAM.
        cpus: Processors, such as 0.5.
        disk_bytes: Bytes of files.
        processes: Processes and threads.
        lease_seconds: Seconds after which it is closed.
        idle_seconds: Seconds without use after which it is closed.
        network: What it may reach; nothing by default.
        env: Environment variables of everything that runs in it.
        gpus: ``all``, a number of GPUs, or a list of their UUIDs; none by default.
    """

    mirror: str | None
    memory_bytes: int | None
    cpus: float | None
    disk_bytes: int | None
    processes: int | None
    lease_seconds: int | None
    idle_seconds: int | None
    network: Policy | None
    env: Mapping[str, str] | None
    gpus: str | int | list[str] | None


def create(at: str, name: str | None = None, **options: Unpack[CreateOptions]) -> Call[SandboxInfo]:
    """Makes a sandbox.

    Args:
        at: The service.
        name: Free text for people.
        options: See :class:`CreateOptions`.

    Raises:
        BadRequest: An option is out of range; ``field`` names it.
        Busy: There are as many sandboxes as there may be.
    """
    body = given(name=name, **options)
    return call("POST", f"{at}/sandbox/create", SandboxInfo.of, json=body, silence=CREATE_SECONDS)


def sandboxes(
    at: str, *, name: str | None = None, state: str | None = None, mirror: str | None = None
) -> Call[list[SandboxInfo]]:
    """Lists the live sandboxes, those with this name, state or mirror where one is given."""
    params = {"name": name, "state": state, "mirror": mirror}

    def each(answer: Any) -> list[SandboxInfo]:
        return [SandboxInfo.of({**about, "sandbox_id": known}) for known, about in answer.items()]

    return call("GET", f"{at}/sandboxes", each, params=params)


def create_mirror(
    at: str,
    packages: Sequence[str],
    *,
    preload: Sequence[str] = (),
    name: str | None = None,
    base: str | None = None,
    timeout: float = 300.0,
) -> Call[Mirror]:
    """Makes a mirror: packages that sandboxes start with, imported and warm where they are preloaded.

    Args:
        at: The service.
        packages: Requirements, such as ``rich`` or ``polars>=1``.
        preload: Modules of these that are imported ahead.
        name: To create sandboxes by.
        base: The mirror that these are added to.
        timeout: Seconds to wait for it; it goes on being made when they are over.
    """
    body = given(packages=list(packages), preload=list(preload), name=name, base=base, wait_seconds=timeout)
    return call("POST", f"{at}/mirrors", Mirror.of, json=body, silence=timeout + GRACE_SECONDS)


def mirrors(at: str) -> Call[list[Mirror]]:
    """Lists the mirrors, the base among them."""
    return call("GET", f"{at}/mirrors", Mirror.each)


def mirror(at: str, mirror_id: str) -> Call[Mirror]:
    """Tells how a mirror stands, by id or name."""
    return call("GET", f"{at}/mirrors/{segment(mirror_id)}", Mirror.of)


def delete_mirror(at: str, mirror_id: str) -> Call[None]:
    """Removes a mirror, by id or name.

    Raises:
        Conflict: Sandboxes use it.
    """
    return call("DELETE", f"{at}/mirrors/{segment(mirror_id)}", nothing, silence=GRACE_SECONDS)


# -- a sandbox


def info(at: str) -> Call[SandboxInfo]:
    """Tells how the sandbox stands; its limits are in ``raw``."""
    sandbox_id = at.rpartition("/")[2]
    return call("GET", at, lambda answer: SandboxInfo.of({"sandbox_id": sandbox_id, **answer}))


def renew(at: str, lease_seconds: int | None = None, *, idle_seconds: int | None = None) -> Call[Lease]:
    """Gives the sandbox a new lease from now on.

    Args:
        at: The sandbox.
        lease_seconds: Seconds from now after which it is closed; the service's default where not given.
        idle_seconds: Seconds without use after which it is closed.
    """
    body = given(lease_seconds=lease_seconds, idle_seconds=idle_seconds)
    return call("POST", f"{at}/renew", Lease.of, json=body)


def close(at: str) -> Call[None]:
    """Ends everything in the sandbox and removes it."""
    return call("POST", f"{at}/close", nothing, silence=GRACE_SECONDS)


def execution(
    at: str,
    code: str,
    timeout: float | None,
    context: ContextLike | None,
    env: Mapping[str, str] | None,
    stdin: str | None,
    restore: str | None,
    on_disconnect: str | None,
) -> tuple[str, dict[str, Any]]:
    """Path and body of an execution."""
    body = given(
        code=code,
        context_id=None if context is None else id_of(context),
        timeout_seconds=timeout,
        env=env,
        stdin=stdin,
        restore=restore,
        on_disconnect=on_disconnect,
    )
    return f"{at}/execute", body


def run_code(
    at: str,
    code: str,
    *,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
    on_result: Callable[[Result], object] | None = None,
    timeout: float | None = None,
    context: ContextLike | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    restore: str | None = None,
    on_disconnect: str | None = None,
) -> Call[Execution]:
    """Runs code in the sandbox's Python, which keeps its variables from one execution to the next.

    That the code raises, runs out of time or memory, or kills its Python is an outcome and no
    exception: see :attr:`Execution.outcome` and :meth:`Execution.raise_for_error`.

    Args:
        at: The sandbox.
        code: Python, with IPython's ``%`` and ``!``.
        on_stdout: Called with each piece of standard output when it comes; awaited if it is async.
        on_stderr: Likewise for standard error.
        on_result: Likewise for each display, and for the value of the last line.
        timeout: Seconds of wall time that the code may take; by default what the service has, 300.
        context: In which of the sandbox's contexts.
        env: Environment variables for this execution.
        stdin: What ``input()`` reads.
        restore: ``auto``, ``always`` or ``never``: whether variables survive the death of the Python.
        on_disconnect: ``interrupt`` (the default) or ``continue`` the code when this client goes away.

    Raises:
        NotFound: There is no such sandbox or context.
        Busy: Too many executions wait in the context.
        ConnectionFailed: The connection broke off; the code was interrupted, unless it was to go on.
    """
    path, body = execution(at, code, timeout, context, env, stdin, restore, on_disconnect)
    handler = tell([("stdout", on_stdout), ("stderr", on_stderr), ("result", on_result)])
    return lines(path, lambda: Gathered(handler), json=body)


def stream_code(
    at: str,
    code: str,
    *,
    timeout: float | None = None,
    context: ContextLike | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    restore: str | None = None,
    on_disconnect: str | None = None,
) -> StreamCall[Execution, Event]:
    """Runs code, and gives an iterator over its events; ``value`` is the :class:`Execution` at its end.

    Leaving the ``with`` block early interrupts the code. Arguments are those of :meth:`run_code`.
    """
    path, body = execution(at, code, timeout, context, env, stdin, restore, on_disconnect)

    def itself(event: Event) -> Event:
        return event

    return lines(path, lambda: Gathered(itself), json=body)


def outcome(at: str, code: str, timeout: float | None = None) -> Call[Any]:
    """Runs code; gives what the service answers a request without a stream."""
    path, body = execution(at, code, timeout, None, None, None, None, None)
    return lines(path, lambda: Outcome(tell([])), json=body)


def interrupt(at: str, context: ContextLike | None = None) -> Call[list[str]]:
    """Stops what runs, as Ctrl-C does, in one context or in all; names those in which something ran."""
    body = given(context_id=None if context is None else id_of(context))
    return call("POST", f"{at}/interrupt", lambda answer: list(answer["interrupted"]), json=body)


def install(
    at: str,
    *packages: str,
    requirements_file: str | None = None,
    upgrade: bool = False,
    timeout: float = 300.0,
) -> Call[InstallResult]:
    """Installs packages of the index; running Pythons can import them at once.

    Args:
        at: The sandbox.
        packages: Names with extras and versions, or wheels of the working directory.
        requirements_file: A file of the working directory that lists more.
        upgrade: Newer versions, even where what is there would do.
        timeout: Seconds to wait for the end; the installation goes on when they are over.

    Returns:
        How it stands; see :meth:`InstallResult.raise_for_error`.
    """
    body = given(
        packages=list(packages),
        requirements_file=requirements_file,
        upgrade=upgrade or None,
        wait_seconds=timeout,
    )
    return call("POST", f"{at}/install", InstallResult.of, json=body, silence=timeout + GRACE_SECONDS)


def packages(at: str, *names: str) -> Call[list[Package]]:
    """Tells of packages whether they are installed, and in which version."""
    return call("GET", f"{at}/packages", Package.each, params={"names": ",".join(names)})


def network(at: str) -> Call[NetworkInfo]:
    """Tells what the sandbox may reach and has reached."""
    return call("GET", f"{at}/network", NetworkInfo.of)


def set_network(at: str, policy: Policy) -> Call[NetworkInfo]:
    """Sets what the sandbox may reach from now on; open connections that are no longer allowed are cut."""
    return call("PUT", f"{at}/network", NetworkInfo.of, json={"network": policy})


def ports(at: str) -> Call[list[ListeningPort]]:
    """Lists the TCP ports on which something inside listens."""
    return call("GET", f"{at}/ports", ListeningPort.each)


# -- contexts and checkpoints


def create_context(
    at: str, name: str | None = None, *, cwd: str | None = None, env: Mapping[str, str] | None = None
) -> Call[ContextInfo]:
    """Makes a context: another Python over the same files.

    Args:
        at: The sandbox.
        name: Free text for people.
        cwd: Where it starts: absolute, or relative to the working directory.
        env: Environment variables of everything that runs in it.
    """
    body = given(name=name, cwd=cwd, env=env)
    return call("POST", f"{at}/contexts", ContextInfo.of, json=body, silence=GRACE_SECONDS)


def contexts(at: str) -> Call[list[ContextInfo]]:
    """Lists the contexts, ``default`` among them."""
    return call("GET", f"{at}/contexts", ContextInfo.each)


def restart_context(at: str, context: ContextLike = DEFAULT_CONTEXT) -> Call[ContextInfo]:
    """Gives a context a fresh Python: variables gone, ``env`` and ``cwd`` kept."""
    path = f"{at}/contexts/{segment(id_of(context))}/restart"
    return call("POST", path, ContextInfo.of, silence=GRACE_SECONDS)


def delete_context(at: str, context: ContextLike) -> Call[None]:
    """Ends a context."""
    path = f"{at}/contexts/{segment(id_of(context))}"
    return call("DELETE", path, nothing, silence=GRACE_SECONDS)


def checkpoint(
    at: str, context: ContextLike = DEFAULT_CONTEXT, *, name: str | None = None, force: bool | None = None
) -> Call[Checkpoint]:
    """Keeps the variables of a context under an id. Files are not kept.

    A context whose threads, libraries or open files make a copy unsound is refused (``not_copyable``), unless
    `force` is set.
    """
    path = f"{at}/contexts/{segment(id_of(context))}/checkpoint"
    return call("POST", path, Checkpoint.of, json=given(name=name, force=force), silence=GRACE_SECONDS)


def checkpoints(at: str) -> Call[list[Checkpoint]]:
    """Lists the checkpoints."""
    return call("GET", f"{at}/checkpoints", Checkpoint.each)


def delete_checkpoint(at: str, checkpoint: CheckpointLike) -> Call[None]:
    """Ends a checkpoint."""
    return call("DELETE", f"{at}/checkpoints/{segment(id_of(checkpoint))}", nothing)


def restore(at: str, checkpoint: CheckpointLike, context: ContextLike = DEFAULT_CONTEXT) -> Call[ContextInfo]:
    """Brings a checkpoint's variables back, in any context of the sandbox and as often as wanted."""
    path = f"{at}/contexts/{segment(id_of(context))}/restore"
    return call(
        "POST", path, ContextInfo.of, json={"checkpoint_id": id_of(checkpoint)}, silence=GRACE_SECONDS
    )


def fork(
    at: str,
    context: ContextLike = DEFAULT_CONTEXT,
    *,
    checkpoint: CheckpointLike | None = None,
    name: str | None = None,
    force: bool | None = None,
) -> Call[ContextInfo]:
    """Makes another context with the variables of a context, or of a checkpoint, that goes its own way.

    `force` is that of a checkpoint.
    """
    body = given(name=name, force=force, checkpoint_id=None if checkpoint is None else id_of(checkpoint))
    path = f"{at}/contexts/{segment(id_of(context))}/fork"
    return call("POST", path, ContextInfo.of, json=body, silence=GRACE_SECONDS)
