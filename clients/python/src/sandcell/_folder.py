"""Folders of this machine as archives, and back."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO

from ._errors import SandcellError

# Not part of a project, or made again from it.
IGNORED = (".git", "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".DS_Store")
MOST_BYTES = 4 * 1024 * 1024 * 1024
# The first level costs a tenth of the default's time and saves nearly as much.
LEVEL = 1


def pack_contents(contents: Mapping[str, bytes], archive: IO[bytes]) -> None:
    """Writes an archive of files that are given by path.

    Raises:
        ValueError: A path is absolute, or leads upward.
    """
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=LEVEL) as tar:
        for name, content in contents.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"{name!r} is no path below a directory")
            member = tarfile.TarInfo(str(path))
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))
    archive.seek(0)


def pack(folder: Path, ignore: Sequence[str], archive: IO[bytes]) -> None:
    """Writes an archive of what is in a folder, apart from links and what is ignored."""

    def kept(name: str) -> bool:
        return not any(fnmatch(name, pattern) for pattern in ignore)

    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=LEVEL, dereference=False) as tar:
        for parent, directories, names in os.walk(folder):
            directories[:] = sorted(name for name in directories if kept(name))
            for name in [*directories, *sorted(filter(kept, names))]:
                path = Path(parent, name)
                member = tar.gettarinfo(path, path.relative_to(folder).as_posix())
                if member is None or not (member.isdir() or member.isreg()):
                    continue
                # Whose they are here is nobody's matter there.
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                if member.isdir():
                    tar.addfile(member)
                    continue
                with path.open("rb") as file:
                    tar.addfile(member, file)
    archive.seek(0)


def unpack(archive: IO[bytes], folder: Path, max_bytes: int) -> list[Path]:
    """Writes the files of a zip archive below a folder, and nothing elsewhere.

    Raises:
        SandcellError: It holds more than ``max_bytes``, or a name that would lead elsewhere.
    """
    archive.seek(0)
    written: list[Path] = []
    try:
        with zipfile.ZipFile(archive) as packed:
            members = packed.infolist()
            if sum(member.file_size for member in members) > max_bytes:
                raise SandcellError(f"the directory holds more than {max_bytes} bytes (max_bytes)")
            targets = [_below(folder, member.filename) for member in members]
            folder.mkdir(parents=True, exist_ok=True)
            for member, target in zip(members, targets):
                if member.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                if _is_link(member):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # No more than `file_size` is read, whatever the data would unpack to.
                with packed.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
                written.append(target)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise SandcellError(f"the archive cannot be read: {error}") from error
    return written


def _is_link(member: zipfile.ZipInfo) -> bool:
    # Whoever packs on Unix keeps the type of a file in the upper half (APPNOTE.TXT 4.4.15).
    return (member.external_attr >> 16) & 0o170000 == 0o120000


def _below(folder: Path, name: str) -> Path:
    """A path below the folder that no name of an archive can lead out of, on no system."""
    parts = name.rstrip("/").split("/")
    for part in parts:
        if (
            part in ("", ".", "..")
            or "\0" in part
            or (os.name == "nt" and any(c in part for c in '\\:*?"<>|'))
        ):
            raise SandcellError(f"the archive holds a name that leads elsewhere: {name!r}")
    return folder.joinpath(*parts)
