"""Lets processes that multiprocessing spawns find what executions defined.

A spawned process runs the script of its parent again, up to `if __name__ == "__main__"`, to have its
functions and classes. A kernel has no script: we write one, of what executions defined. It holds no
other statement of theirs, since they were not written with running twice in mind.
"""

import ast
import os
import tempfile

from IPython import get_ipython

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def install(spawn):
    """For imports.watch()."""
    plain = spawn.get_preparation_data

    def get_preparation_data(name):
        data = plain(name)
        if not data.keys() & {"init_main_from_name", "init_main_from_path"}:
            data["init_main_from_path"] = _write_script()
        return data

    spawn.get_preparation_data = get_preparation_data


def _write_script():
    parts = [ast.unparse(_tolerant(node)) for code in get_ipython().history_manager.input_hist_parsed
             for node in _definitions(code)]
    directory = tempfile.gettempdir()
    path = os.path.join(directory, f"definitions-{os.getpid()}.py")
    # A process that starts meanwhile may be reading it.
    with tempfile.NamedTemporaryFile("w", dir=directory, delete=False, encoding="utf-8",
                                     errors="surrogatepass") as file:
        file.write("\n".join(parts))
    os.replace(file.name, path)
    return path


def _definitions(code):
    try:
        nodes = ast.parse(code).body
    except (SyntaxError, ValueError):
        return []  # it did not run either
    return [node for node in nodes if isinstance(node, _DEFINITIONS) or _is_constant(node)]


def _is_constant(node):
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _tolerant(node):
    """What fails may not be needed: a decorator, or a base class, of something else."""
    ignore = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
    return ast.fix_missing_locations(ast.Try([node], [ignore], [], []))
