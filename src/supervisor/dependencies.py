"""Tells which modules the scripts of a shell command import that are not there.

Run inside the sandbox, as the user, with the command and the home directory as arguments. Prints one
line of JSON: {"requirements": path or null, "modules": [...], "packages": [...]}. Nothing of the
user's is imported or executed; what comes out is as hostile as any output.
"""

import ast
import json
import os
import shlex
import sys
from importlib.machinery import PathFinder

MAX_FILES = 64
MAX_BYTES = 1 << 20
MAX_MODULES = 64
OPERATORS = set(";&|()<>\n")
PYTHON = {"python", "python3"}
# Before a command they are not the command.
PREFIXES = {"env", "exec", "nohup", "time", "do", "then", "else", "if", "while", "{", "!"}
OPTIONAL = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
PIP_VALUES = ("-i", "-c", "-t", "-f", "-e", "--")


def simple_commands(command):
    """Words between operators; where redirections lead is left out."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    words, redirected = [], False
    for token in lexer:
        if token and set(token) <= OPERATORS:
            redirected = set(token) <= {"<", ">", "&"} and not set(token) <= {"&"}
            if not redirected:
                yield words
                words = []
        elif redirected:
            redirected = False
        else:
            words.append(token)
    yield words


def is_python(word):
    name = os.path.basename(word)
    return name in PYTHON or name.startswith("python3.") and name[8:].isdigit()


class Imports(ast.NodeVisitor):
    """Modules that code imports in any case."""

    def __init__(self):
        self.modules = []

    def visit_Import(self, node):
        self.modules += [alias.name for alias in node.names]

    def visit_ImportFrom(self, node):
        if node.level == 0 and node.module:
            self.modules.append(node.module)
            # A submodule, where the package is the user's own.
            self.modules += [f"{node.module}.{alias.name}" for alias in node.names]

    def visit_Try(self, node):
        caught = set()
        for handler in node.handlers:
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            caught |= {getattr(kind, "id", "BaseException") for kind in kinds}
        if not caught & OPTIONAL:
            for part in node.body + node.handlers:
                self.visit(part)
        for part in node.orelse + node.finalbody:
            self.visit(part)

    visit_TryStar = visit_Try

    def visit_If(self, node):
        test = getattr(node.test, "attr", getattr(node.test, "id", None))
        for part in node.orelse if test == "TYPE_CHECKING" else node.body + node.orelse:
            self.visit(part)


class Search:
    def __init__(self, home):
        self.home = home
        self.requirements = None
        self.modules = {}
        self.packages = []
        self.seen = set()

    def command(self, command):
        cwd = self.home
        for words in simple_commands(command):
            while words and ("=" in words[0] or words[0] in PREFIXES):
                words = words[1:]
            if words[:1] == ["cd"] and len(words) == 2:
                cwd = os.path.normpath(os.path.join(cwd, os.path.expanduser(words[1])))
            elif words and is_python(words[0]):
                self.python(words[1:], cwd)
            elif words and os.path.basename(words[0]) in ("pip", "pip3"):
                self.pip(words[1:], cwd)

    def python(self, words, cwd):
        while words and words[0].startswith("-") and words[0] != "-":
            option, words = words[0], words[1:]
            if option == "-c" and words:
                return self.source(words[0].encode(), [cwd])
            if option == "-m" and words[:1] == ["pip"]:
                return self.pip(words[1:], cwd)
            if option == "-m" and words:
                return self.module(words[0], [cwd])
            if option in ("-W", "-X"):
                words = words[1:]
        if not words or words[0] == "-":
            return
        script = os.path.join(cwd, words[0])
        folder = os.path.dirname(script)
        if os.path.isfile(script):
            self.require([folder, cwd])
            self.file(script, [folder])

    def require(self, folders):
        for folder in folders:
            path = os.path.join(folder, "requirements.txt")
            if self.requirements is None and os.path.isfile(path):
                self.requirements = self.inside(path)

    def inside(self, path):
        """Relative to the home directory, or nothing."""
        path = os.path.relpath(os.path.normpath(path), self.home)
        return None if path.startswith("..") else path

    def pip(self, words, cwd):
        if words[:1] != ["install"]:
            return
        packages, words = [], words[1:]
        while words:
            word, words = words[0], words[1:]
            if word in ("-r", "--requirement") and words:
                self.requirements = self.requirements or self.inside(os.path.join(cwd, words[0]))
                words = words[1:]
            elif word.startswith(PIP_VALUES) and word not in ("--quiet", "--no-cache-dir"):
                return  # pip knows better what that means
            elif not word.startswith("-"):
                packages.append(word)
        self.packages += packages

    def file(self, path, paths):
        path = os.path.realpath(path)
        if path in self.seen or len(self.seen) >= MAX_FILES:
            return
        self.seen.add(path)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                source = file.read(MAX_BYTES + 1)
            if len(source) <= MAX_BYTES:
                self.source(source, paths)

    def source(self, source, paths):
        try:
            imports = Imports()
            imports.visit(ast.parse(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return  # Python will say so itself
        for module in imports.modules:
            self.module(module, paths)

    def module(self, module, paths):
        top, _, rest = module.partition(".")
        if top in sys.stdlib_module_names:
            return
        for path in paths + os.environ.get("PYTHONPATH", "").split(":"):
            place = os.path.join(path, top) if path else None
            if place and os.path.isfile(place + ".py"):
                return self.file(place + ".py", paths)
            if place and os.path.isdir(place):
                return self.package(path, place, rest, paths)
        if len(self.modules) < MAX_MODULES and PathFinder.find_spec(top) is None:
            self.modules.setdefault(top, module)

    def package(self, path, place, rest, paths):
        self.file(os.path.join(place, "__init__.py"), paths)
        for name in rest.split(".") if rest else ["__main__"]:
            place = os.path.join(place, name)
            self.file(place + ".py", paths)
            self.file(os.path.join(place, "__init__.py"), paths)


def main():
    search = Search(os.path.realpath(sys.argv[2]))
    try:
        search.command(sys.argv[1])
    except (ValueError, OSError, RecursionError):
        pass  # a command that only a shell understands
    found = {
        "requirements": search.requirements,
        "modules": list(search.modules.values()),
        "packages": search.packages,
    }
    print(json.dumps(found))


main()
