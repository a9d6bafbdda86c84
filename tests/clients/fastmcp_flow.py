"""Drives a server through fastmcp's client, which many hosts are built on.

    pip install -r fastmcp.txt
    python fastmcp_flow.py SET (http|sse|stdio) (URL [KEY] | COMMAND ARGS…)

SET is default, env or workspace. Exits with 1 at the first check that fails.
"""

import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError


def transport(kind, rest):
    if kind == "stdio":
        return StdioTransport(command=rest[0], args=list(rest[1:]), keep_alive=False)
    kinds = {"http": StreamableHttpTransport, "sse": SSETransport}
    headers = {"Authorization": f"Bearer {rest[1]}"} if len(rest) > 1 else None
    return kinds[kind](rest[0], headers=headers)


async def refused(client, tool, arguments, word):
    try:
        await client.call_tool(tool, arguments)
    except ToolError as error:
        assert word in str(error), error
        return
    raise AssertionError(f"{tool} took {arguments}")


async def check_resources(client, sandbox_id):
    uri = f"sandcell://{sandbox_id}/a%20note.txt"
    found = {str(resource.uri): resource for resource in await client.list_resources()}
    assert uri in found, found
    (content,) = await client.read_resource(uri)
    assert content.text == "grün", content


async def check_prompt(client, name):
    (prompt,) = await client.list_prompts()
    assert prompt.name == name, prompt
    got = await client.get_prompt(name, {"task": "Count to three."})
    assert got.messages[0].content.text.endswith("Count to three.")


async def drive_default(client):
    made = await client.call_tool("create_sandbox", {"name": "fastmcp"})
    at = {"sandbox_id": made.structured_content["sandbox_id"]}
    code = "open('a note.txt', 'w').write('grün')\nprint('Hello 👋')\n6 * 7"
    ran = await client.call_tool("execute_python_code", {**at, "code": code})
    assert ran.structured_content["stdout"] == "Hello 👋\n", ran
    assert ran.structured_content["results"][-1]["text"] == "42", ran
    await refused(client, "execute_python_code", {**at, "code": "1 / 0"}, "ZeroDivisionError")
    await refused(client, "execute_python_code", {"sandbox_id": "a" * 26, "code": "1"}, "create_sandbox")
    told = []

    async def progress(done, total, message):
        told.append(message)

    command = {**at, "command": "for n in 1 2 3; do echo part $n; sleep 0.3; done"}
    await client.call_tool("execute_terminal_command", command, progress_handler=progress)
    assert "part 1" in "".join(told), told
    await check_resources(client, at["sandbox_id"])
    await check_prompt(client, "use_sandbox")
    await client.call_tool("close_sandbox", at)


async def drive_env(client):
    made = await client.call_tool("create_python_env", {})
    at = {"container_id": made.structured_content["container_id"]}
    code = "open('a note.txt', 'w').write('grün')\nprint('Hello 👋')"
    ran = await client.call_tool("execute_python_code", {**at, "code": code})
    assert ran.structured_content["stdout"] == "Hello 👋\n", ran
    assert ran.structured_content["exit_code"] == 0, ran
    await check_resources(client, at["container_id"])
    await check_prompt(client, "use_python_env")


async def drive_workspace(client):
    made = (await client.call_tool("sandbox_initialize", {})).structured_content
    at = {"container_id": made["container_id"], "workspace_id": made["workspace_id"]}
    commands = {**at, "commands": ["echo Hello", "pwd"]}
    ran = (await client.call_tool("sandbox_exec", commands)).structured_content
    assert ran["success"] and ran["results"][0]["stdout"] == "Hello\n", ran
    await check_prompt(client, "use_workspace")
    await client.call_tool("clean_workspace", at)


DRIVES = {"default": drive_default, "env": drive_env, "workspace": drive_workspace}


async def main():
    name, kind, *rest = sys.argv[1:]
    async with Client(transport(kind, rest)) as client:
        tools = await client.list_tools()
        await DRIVES[name](client)
        print(f"ok {name} over {kind}: {len(tools)} tools")


asyncio.run(main())
