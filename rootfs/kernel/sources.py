"""Lets `inspect` find the source of classes that executions define.

A function's code names the execution that it is from. A class has the number of its first line (Python
3.13), and is otherwise looked for in the file of its module, which `__main__` has none of.
"""

import ast
import functools
import inspect
import linecache

_plain_getfile = inspect.getfile


def install(shell):
    @functools.wraps(_plain_getfile)
    def getfile(object):
        if isinstance(object, type) and object.__module__ == "builtins":
            # Scripts find their own name there (`__file__`).
            raise TypeError(f"{object!r} is a built-in class")
        try:
            return _plain_getfile(object)
        except (OSError, TypeError):
            name = _execution_of(object, shell) if isinstance(object, type) else None
            if name is None:
                raise
            return name

    inspect.getfile = getfile


def _execution_of(kind, shell):
    """The name of the code that defines a class, or None."""
    line = vars(kind).get("__firstlineno__")
    if kind.__module__ != "__main__" or line is None:
        return None
    names = {name for name in map(_code_name, vars(kind).values()) if name}
    # The newest first: the class may have been defined again, at the same line.
    for name in reversed(shell.compile._filename_map):
        if (not names or name in names) and _defines(name, kind.__qualname__, line):
            return name
    return None


def _code_name(member):
    for attribute in ("fget", "__wrapped__"):
        member = getattr(member, attribute, None) or member
    name = getattr(getattr(member, "__code__", None), "co_filename", "")
    return name if name.startswith("<execution") else None


@functools.lru_cache(256)
def _classes(code):
    """(qualified name, first line) of every class that is defined in some code."""
    found, todo = set(), [("", ast.parse(code))]
    while todo:
        prefix, node = todo.pop()
        inner = prefix
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.add((prefix + node.name, first))
            inner = f"{prefix}{node.name}."
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = f"{prefix}{node.name}.<locals>."
        todo += [(inner, child) for child in ast.iter_child_nodes(node)]
    return found


def _defines(name, qualified, line):
    try:
        return (qualified, line) in _classes("".join(linecache.getlines(name)))
    except (SyntaxError, ValueError, RecursionError):
        return False
