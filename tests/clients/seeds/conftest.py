"""Runs the code of the seeds' READMEs as it stands there, addresses aside."""

import ast
import asyncio
import inspect
import os
import re
from pathlib import Path

import pytest

ADDRESSES = ("http://0.0.0.0:8000", "http://localhost:8000")


@pytest.fixture(scope="session")
def url():
    return os.environ["SANDCELL_URL"]


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Block:
    """A block of Python of a README."""

    def __init__(self, code, url):
        for address in ADDRESSES:
            code = code.replace(address, url)
        # One statement of a README is indented by a space, which no Python takes.
        self.statements = ast.parse(re.sub(r"(?m)^ (?=\w)", "", code)).body

    def up_to(self, line):
        """Splits it before the statement that this is a line of."""
        at = [n for n, one in enumerate(self.statements) if line in ast.unparse(one)][0]
        parts = [self.statements[:at], self.statements[at:]]
        for part in parts:
            block = object.__new__(Block)
            block.statements = part
            yield block

    def run(self, names):
        """Runs it; gives the values of its bare calls, in order."""

        async def steps():
            values = []
            for one in self.statements:
                bare = isinstance(one, ast.Expr)
                tree = ast.Expression(one.value) if bare else ast.Module([one], [])
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                done = eval(compile(tree, "README", "eval" if bare else "exec", flags=flags), names)
                done = await done if inspect.iscoroutine(done) else done
                if bare:
                    values.append(done)
            return values

        return steps()

    def run_now(self, names):
        return asyncio.run(self.run(names))


@pytest.fixture
def blocks(url):
    def blocks(name):
        text = Path(__file__).with_name(name).read_text("utf-8")
        return [Block(code, url) for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]

    return blocks
