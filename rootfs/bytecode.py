"""Byte-compiles all Python of the mirror and says how far it is.

Unchecked-hash files are loaded without looking at the source's time, so they stay valid through
every copy, and the import of a warm interpreter saves one stat per module.

What a file compiles to depends, in rare cases, on what the process compiled before. So that the
same recipe gives the same mirror, every batch is compiled by a fresh fork, in a fixed order.
"""

import gc
import os
import py_compile
import sys
import traceback
from pathlib import Path

TREES = ("/opt/venv/lib", "/usr/lib/python3", "/usr/lib/python3.13", "/usr/share/python3")
BATCH = 25
# Exit status of a batch that could not do its work.
BROKEN = 255
# Templates are not Python; more than this share of all files is something else.
MAX_FAILED = 0.01


def compile_batch(paths: list[str]) -> int:
    """Returns how many are not valid Python."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    failed = 0
    for path in paths:
        try:
            py_compile.compile(path, doraise=True, invalidation_mode=mode)
        except (py_compile.PyCompileError, UnicodeDecodeError, RecursionError):
            print("not Python:", path, flush=True)
            failed += 1
    return failed


def wait_for_batch() -> int:
    """Returns what `compile_batch` did."""
    failed = os.waitstatus_to_exitcode(os.wait()[1])
    if not 0 <= failed <= BATCH:
        sys.exit(f"a batch ended with {failed}")
    return failed


def main() -> None:
    for tree in TREES:
        for stale in Path(tree).rglob("*.pyc"):
            stale.unlink()
    sources = sorted(str(p) for tree in TREES for p in Path(tree).rglob("*.py") if p.is_file())
    gc.disable()
    running = failed = 0
    for start in range(0, len(sources), BATCH):
        if running == os.process_cpu_count():
            failed += wait_for_batch()
            running -= 1
        if os.fork() == 0:
            status = BROKEN
            try:
                status = compile_batch(sources[start : start + BATCH])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        running += 1
        print(f"progress {start} {len(sources)}", flush=True)
    failed += sum(wait_for_batch() for _ in range(running))
    if failed > MAX_FAILED * len(sources):
        sys.exit("too many files do not compile")


if __name__ == "__main__":
    main()
