"""Which files of the working directory an execution created, changed or deleted."""

import errno
import os
import time
from os import scandir

MAX_ENTRIES = 20_000
MAX_SECONDS = 0.25
SKIPPED = "__pycache__"
_LINK = "symlink"


class Snapshot:
    """Regular files and symbolic links below a directory, where it is not None: path to what tells
    whether one was touched, of a link one thing more. No link is followed."""

    def __init__(self, root):
        self.files = {}
        self.complete = True
        deadline = time.monotonic() + MAX_SECONDS
        entries = 0
        pending = [(root, "")] if root is not None else []
        while pending:
            path, prefix = pending.pop()
            try:
                with scandir(path) as found:
                    for entry in found:
                        entries += 1
                        name = entry.name
                        # Hidden ones are caches and settings of tools, not a result.
                        if name[0] == "." or name == SKIPPED:
                            continue
                        link = False
                        if entry.is_dir(follow_symlinks=False):
                            pending.append((entry.path, f"{prefix}{name}/"))
                        elif entry.is_file(follow_symlinks=False) or (link := entry.is_symlink()):
                            try:
                                stat = entry.stat(follow_symlinks=False)
                            except OSError:
                                continue  # gone since it was listed
                            state = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
                            self.files[prefix + name] = (*state, _LINK) if link else state
                        if entries >= MAX_ENTRIES:
                            break
            except OSError:
                continue  # gone, or closed to us
            if entries >= MAX_ENTRIES or (pending and time.monotonic() > deadline):
                self.complete = False
                return


def changes(before, after, limit):
    """File changes sorted by path, and whether there may be more than are listed."""
    old, new = before.files, after.files
    if old == new and before.complete and after.complete:
        return [], False
    found = []
    for path, state in new.items():
        if path not in old:
            # What the first look did not reach may have been there all the time.
            if before.complete:
                found.append((path, state[0], "created", _kind(state)))
        elif old[path] != state:
            found.append((path, state[0], "changed", _kind(state)))
    if after.complete:
        found.extend((path, 0, "deleted", _kind(state)) for path, state in old.items() if path not in new)
    found.sort()
    truncated = len(found) > limit or not (before.complete and after.complete)
    return [{"path": _text(path), "size": size, "change": change, "kind": kind}
            for path, size, change, kind in found[:limit]], truncated


def _kind(state):
    return _LINK if state[-1] is _LINK else "file"


def is_full(root, error):
    """Whether no block or no inode is left below a directory, or an execution ended for want of one."""
    # Not `error.errno`, which user code can make anything.
    if issubclass(type(error), OSError) and _errno(error) in (errno.ENOSPC, errno.EDQUOT):
        return True
    try:
        left = os.statvfs(root)
    except OSError:
        return False
    return left.f_bavail == 0 or left.f_favail == 0


_errno = OSError.errno.__get__


def _text(path):
    """A name that is not UTF-8 has its odd bytes, and then `%` too, as %XX."""
    try:
        path.encode()
        return path
    except UnicodeEncodeError:
        raw = os.fsencode(path).replace(b"%", b"%25")
        return raw.decode("utf-8", "surrogateescape").translate(_PERCENT)


_PERCENT = {0xDC00 + byte: f"%{byte:02X}" for byte in range(0x80, 0x100)}
