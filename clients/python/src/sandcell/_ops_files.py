"""Files of a sandbox.

``at`` is the path of the sandbox; paths of files are relative to its working directory, ``/home/user``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Callable, Union
from urllib.parse import quote

from . import _folder
from ._call import Call, Local, Steps, StreamCall, ToFile, Whole, call, lines, nothing, parsed, query
from ._errors import ApiError, NotFound
from ._models import FileEvent, FileInfo

LocalPath = Union[str, "os.PathLike[str]"]
Content = Union[str, bytes, IO[bytes]]

# Seconds until the service has packed or unpacked what a folder holds.
ARCHIVE_SECONDS = 600.0


def entries(
    at: str,
    path: str | None = None,
    *,
    glob: str | None = None,
    recursive: bool | None = None,
    kind: str | None = None,
) -> Call[list[FileInfo]]:
    """Lists what is in the working directory: without arguments all regular files, at any depth.

    Args:
        at: The sandbox.
        path: A directory; the working directory by default.
        glob: Only paths that match, such as ``**/*.csv``.
        recursive: Whether to go into directories, as it does by default.
        kind: ``file`` (the default), ``directory``, ``symlink``, ``other`` or ``any``.
    """
    params = {"path": path, "glob": glob, "recursive": recursive, "kind": kind}
    return call("GET", f"{at}/files", FileInfo.each, params=params)


def stat(at: str, path: str) -> Call[FileInfo]:
    """Tells of one file or directory.

    Raises:
        NotFound: There is none.
    """
    return call("GET", f"{at}/files/stat", FileInfo.of, params={"path": path})


def exists(at: str, path: str) -> Steps[bool]:
    """Whether there is a file or directory of this name."""
    try:
        yield from stat(at, path)
    except NotFound as error:
        if error.code != "file_not_found":
            raise
        return False
    return True


def mkdir(at: str, path: str, *, parents: bool = True) -> Call[None]:
    """Makes a directory, and those above it unless ``parents`` is false."""
    return call("POST", f"{at}/files/mkdir", nothing, json={"path": path, "parents": parents})


def rename(at: str, source: str, target: str, *, overwrite: bool = False) -> Call[None]:
    """Moves a file or directory.

    Raises:
        Conflict: There is something at the target and ``overwrite`` is false.
    """
    body = {"from": source, "to": target, "overwrite": overwrite}
    return call("POST", f"{at}/files/rename", nothing, json=body)


def remove(at: str, path: str, *, recursive: bool = False) -> Call[None]:
    """Deletes a file or an empty directory, with ``recursive`` a directory and all that is in it."""
    return call("POST", f"{at}/files/remove", nothing, json={"path": path, "recursive": recursive})


# -- content


def _download(at: str, path: str, receiver: Callable[[], Any]) -> Call[Any]:
    return Call("GET", f"{at}/download/{quote(path, safe='/')}", receiver)


def read(at: str, path: str) -> Call[bytes]:
    """Gives the bytes of a file.

    Raises:
        NotFound: There is no such file.
    """
    return _download(at, path, lambda: Whole(bytes))


def read_text(at: str, path: str, encoding: str = "utf-8") -> Call[str]:
    """Gives the text of a file.

    Raises:
        NotFound: There is no such file.
        UnicodeDecodeError: It is not in that encoding.
    """
    return _download(at, path, lambda: Whole(lambda body: body.decode(encoding)))


def download(at: str, path: str, local_path: LocalPath | None = None) -> Steps[Path]:
    """Saves a file on this machine; it is there only when all of it has come.

    Args:
        at: The sandbox.
        path: The file.
        local_path: Where to; by default its name in the current directory. A directory takes the name.

    Returns:
        Where it is now.
    """
    target = Path(local_path) if local_path is not None else Path()
    # Only the last part: a path that code has chosen is no path for this machine.
    name = path.rstrip("/").rpartition("/")[2]
    if local_path is None or target.is_dir():
        if name in ("", ".", ".."):
            raise ValueError(f"path: {path!r} names no file")
        target = target / name
    with _replaced(target) as file:
        yield from _download(at, path, lambda: ToFile(file))
    return target


@contextlib.contextmanager
def _replaced(target: Path) -> Iterator[IO[bytes]]:
    """A new file that takes its place when it is complete."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        # What mkstemp makes is for its owner alone.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink()
        raise


def write(at: str, path: str, content: Content) -> Call[str]:
    """Writes a file, and makes the directories above it.

    Args:
        at: The sandbox.
        path: The file; what is there is replaced.
        content: Text, which is written as UTF-8, bytes, or a file that is open for reading in binary.

    Returns:
        Its path.
    """
    if isinstance(content, str):
        content = content.encode()
    part = ("file", (path.rpartition("/")[2] or "file", content))
    return Call(
        "POST",
        f"{at}/upload",
        lambda: Whole(lambda body: str(parsed(body)["file_path"])),
        # The path first: a large file cannot wait for it.
        form=({"file_path": path}, [part]),
        silence=ARCHIVE_SECONDS,
    )


def upload(at: str, local_path: LocalPath, path: str | None = None) -> Steps[str]:
    """Copies a file of this machine into the sandbox.

    Args:
        at: The sandbox.
        local_path: The file.
        path: Where to; by default its name in the working directory. With ``/`` at its end a directory.

    Returns:
        Its path in the sandbox.
    """
    name = Path(local_path).name
    target = name if path is None else path + name if path.endswith("/") else path
    with Path(local_path).open("rb") as file:
        return (yield from write(at, target, file))


# -- many files


def _unpack(at: str, path: str, archive: IO[bytes]) -> Call[int]:
    def written(body: bytes) -> int:
        return int(parsed(body)["files"])

    return Call(
        "POST",
        f"{at}/files/unpack",
        lambda: Whole(written),
        params=query({"path": path, "format": "tar.gz"}),
        headers={"Content-Type": "application/gzip"},
        content=archive,
        silence=ARCHIVE_SECONDS,
    )


def write_many(at: str, files: Mapping[str, str | bytes], *, path: str = ".") -> Steps[int]:
    """Writes several files in one request, and makes the directories above them.

    Args:
        at: The sandbox.
        files: Contents by path.
        path: The directory that they are relative to.

    Returns:
        How many files were written.
    """
    contents = {name: data.encode() if isinstance(data, str) else data for name, data in files.items()}
    with tempfile.TemporaryFile() as archive:
        yield from Local(lambda: _folder.pack_contents(contents, archive))
        return (yield from _unpack(at, path, archive))


def upload_folder(
    at: str,
    local_path: LocalPath,
    path: str = ".",
    *,
    ignore: Sequence[str] = _folder.IGNORED,
) -> Steps[int]:
    """Copies what is in a folder of this machine into a directory of the sandbox.

    Symbolic links are left out: they would lead nowhere, or to a file that was not meant.

    Args:
        at: The sandbox.
        local_path: The folder.
        path: The directory, which is made if it is not there; the working directory by default.
        ignore: Names, with ``*`` and ``?``, of files and folders that are left out at any depth.

    Returns:
        How many files were written.
    """
    folder = Path(local_path)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder")
    with tempfile.TemporaryFile() as archive:
        yield from Local(lambda: _folder.pack(folder, ignore, archive))
        return (yield from _unpack(at, path, archive))


def download_folder(
    at: str,
    path: str,
    local_path: LocalPath,
    *,
    max_bytes: int = _folder.MOST_BYTES,
) -> Steps[list[Path]]:
    """Copies what is in a directory of the sandbox into a folder of this machine.

    Nothing is written outside of the folder, no link is made, and files keep no permissions: what is in
    a sandbox is what untrusted code made.

    Args:
        at: The sandbox.
        path: The directory.
        local_path: The folder, which is made if it is not there; files of the same names are replaced.
        max_bytes: Most that is written, in bytes; 4 GiB by default.

    Returns:
        The files that were written.

    Raises:
        SandcellError: The directory holds more than ``max_bytes``, or a name that would lead elsewhere.
    """
    with tempfile.TemporaryFile() as archive:
        yield Call(
            "GET",
            f"{at}/files/archive",
            lambda: ToFile(archive, max_bytes),
            params=query({"path": path, "format": "zip"}),
            silence=ARCHIVE_SECONDS,
        )
        return (yield from Local(lambda: _folder.unpack(archive, Path(local_path), max_bytes)))


class Watched:
    """Reads the events of a watch, which ends only with its sandbox."""

    def feed(self, event: dict[str, Any]) -> object:
        """Takes an event."""
        kind = event.get("event")
        if kind == "ended":
            raise ApiError(0, str(event.get("code", "unknown")), str(event.get("detail", "")))
        return None if kind in (None, "watching") else FileEvent.of(event)

    def finish(self) -> None:
        """Nothing more comes."""


def watch(at: str, path: str | None = None, *, recursive: bool | None = None) -> StreamCall[None, FileEvent]:
    """Gives an iterator over changes from now on: :class:`FileEvent`, until its ``with`` block is left.

    Args:
        at: The sandbox.
        path: A directory; the working directory by default.
        recursive: Whether changes in the directories below it are told, too.
    """
    params = query({"path": path, "recursive": recursive})
    return lines(f"{at}/files/watch", Watched, params=params)
