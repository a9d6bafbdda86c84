"""Tells what an installation has changed below a directory, for a layer of a mirror.

    python layer.py ROOT SINCE

Runs in the sandbox as its user, after the installation. Compiles what is new to byte code that needs
no source's time (as bytecode.py does for the base), then writes to standard output one record for each
entry below ROOT, directories before what is in them: a length (32 bits, big-endian), that many bytes
of JSON, and for a file its content. `src/mirror/unpack.rs` reads it and believes nothing.

New is what has been changed (ctime, which no one can set) at SINCE or later, in seconds since 1970.
"""

import json
import os
import py_compile
import stat
import sys

BLOCK_BYTES = 1 << 20


def compile_new(root, since):
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if not name.endswith(".py") or os.lstat(path).st_ctime < since:
                continue
            try:
                py_compile.compile(path, doraise=True, invalidation_mode=mode)
            except (py_compile.PyCompileError, UnicodeDecodeError, RecursionError, ValueError, OSError):
                pass  # a template, or a directory that is not the user's


def send(out, header):
    data = json.dumps(header).encode()
    out.write(len(data).to_bytes(4, "big") + data)


def tell(out, path, since):
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    header = {"path": path.lstrip("/")}
    if found.st_ctime < since:
        header["type"] = "same"
    elif kind == stat.S_IFDIR:
        header.update(type="directory", mode=stat.S_IMODE(found.st_mode))
    elif kind == stat.S_IFLNK:
        header.update(type="link", target=os.readlink(path))
    elif kind == stat.S_IFREG:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header.update(type="file", mode=stat.S_IMODE(found.st_mode), size=size)
            send(out, header)
            while block := file.read(BLOCK_BYTES):
                out.write(block)
        header = None
    else:
        header["type"] = "special"
    if header is not None:
        send(out, header)
    if kind == stat.S_IFDIR:
        for name in sorted(os.listdir(path)):
            tell(out, f"{path}/{name}", since)


def main():
    root, since = sys.argv[1], float(sys.argv[2])
    compile_new(root, since)
    with os.fdopen(os.dup(1), "wb", BLOCK_BYTES) as out:
        tell(out, root, since)
        send(out, {"type": "end", "path": ""})


if __name__ == "__main__":
    main()
