"""004: the README's functions are MCP tools at `/mcp/workspace`."""

import asyncio
import os
from pathlib import Path

import pytest
from mcp import Client

TOOLS = (
    "sandbox_initialize",
    "sandbox_exec",
    "write_file_sandbox",
    "copy_project",
    "copy_file",
    "copy_file_from_sandbox",
    "clean_workspace",
    "sandbox_stop",
    "get_container_logs",
)
# The README calls this one by position.
POSITIONS = {"clean_workspace": ("container_id", "workspace_id")}


@pytest.fixture
def local():
    """The server's directory for what the README calls local: `./` is there."""
    return Path(os.environ["SANDCELL_LOCAL_DIR"])


def tools_of(client):
    def tool(name):
        async def call(*args, **kwargs):
            kwargs.update(zip(POSITIONS.get(name, ()), args))
            result = await client.call_tool(name, kwargs)
            assert not result.is_error, result.content
            return result.structured_content

        return call

    return {name: tool(name) for name in TOOLS}


def test_python_code_execution(blocks, url, local):
    async def flow():
        async with Client(f"{url}/mcp/workspace") as client:
            assert {tool.name for tool in (await client.list_tools()).tools} >= set(TOOLS)
            names = tools_of(client)
            await blocks("docker_code_sandbox.md")[0].run(names)
            return names

    names = asyncio.run(flow())
    [ran] = names["result"]["results"]
    assert (ran["command"], ran["exit_code"], ran["success"]) == ("python analysis.py", 0, True)
    assert "数据均值" in ran["stdout"]
    assert "已保存直方图" in ran["stdout"]
    assert (local / "output/histogram.png").read_bytes().startswith(b"\x89PNG")
