"""Drives /mcp/env as the third seed's prompt tells a model to.

    python env_flow.py http://127.0.0.1:8000/mcp/env

Runs every check in both generations of the protocol. Exits with 1 at the first that fails.
"""

import sys
import time
import traceback
import urllib.request

import anyio
from mcp import Client
from mcp_flow import GENERATIONS, images, succeeded, text, transport

TOOLS = {
    "create_python_env",
    "execute_python_code",
    "install_package_in_env",
    "check_package_status",
}


class Environment:
    def __init__(self, client, container_id):
        self.client = client
        self.container_id = container_id

    async def call(self, tool, **arguments):
        return await self.client.call_tool(tool, {"container_id": self.container_id, **arguments})

    async def run(self, code):
        return await self.call("execute_python_code", code=code)


def fetch(url):
    """Without a header: as a browser or a chat's window follows a link."""
    with urllib.request.urlopen(url) as response:
        return response.read()


async def check_tools(env):
    listed = {tool.name: tool for tool in (await env.client.list_tools()).tools}
    assert set(listed) == TOOLS, set(listed) ^ TOOLS
    for name, tool in listed.items():
        assert tool.title and len(tool.description) > 60, name
        assert tool.output_schema["type"] == "object", name
        properties = tool.input_schema.get("properties", {})
        assert all(p.get("description") for p in properties.values()), (name, properties)
    assert "create_python_env" in env.client.instructions


async def check_creation(env):
    created = await env.client.call_tool("create_python_env", {})
    answer = succeeded(created)
    # The seed answers with the id and nothing else.
    assert text(created) == answer["container_id"], text(created)
    assert answer["idle_seconds"] == 3600 and answer["expires_at"], answer


async def check_workflow(env):
    """The prompt's example: create, install, check, run, follow the links."""
    for package in ["pandas", "matplotlib"]:
        answer = succeeded(await env.call("install_package_in_env", package_name=package))
        while answer["status"] == "installing":
            assert answer["success"] is None and not answer["complete"], answer
            await anyio.sleep(1)
            answer = succeeded(await env.call("check_package_status", package_name=package))
        assert answer["status"] == "success" and answer["success"] and answer["complete"], answer
        answer = succeeded(await env.call("check_package_status", package_name=package))
        assert answer["status"] == "success" and package in answer["message"], answer
    code = """
import pandas as pd
import matplotlib.pyplot as plt
df = pd.DataFrame({'x': [1, 2, 3], 'y': [1, 4, 9]})
df.to_csv('tables/data.csv', index=False) if __import__('os').makedirs('tables') is None else 0
df.plot(x='x', y='y')
plt.savefig('figure 1.png')
plt.close()
print('saved')
"""
    result = await env.run(code)
    ran = succeeded(result)
    assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("saved\n", "", 0), ran
    assert sorted(ran["files"]) == ["figure 1.png", "tables/data.csv"], ran
    links = {link["name"]: link["url"] for link in ran["file_links"]}
    assert sorted(links) == sorted(ran["files"]), ran
    assert all(url.startswith("http://127.0.0.1:") for url in links.values()), links
    assert fetch(links["tables/data.csv"]) == b"x,y\n1,1\n2,4\n3,9\n"
    assert fetch(links["figure 1.png"]).startswith(b"\x89PNG")
    assert "http" not in ran["stdout"]


async def check_state(env):
    succeeded(await env.run("kept = 41"))
    ran = succeeded(await env.run("kept + 1"))
    assert ran["results"] == ["42"] and ran["files"] == [] and ran["file_links"] == [], ran
    result = await env.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert len(images(result)) == 1, text(result)
    other = succeeded(await env.client.call_tool("create_python_env", {}))["container_id"]
    result = await env.client.call_tool(
        "execute_python_code", {"container_id": other, "code": "kept"}
    )
    assert result.is_error and "NameError" in result.structured_content["stderr"]


async def check_endings(env):
    for code, exit_code in [
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(5)", 5),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("def broken(:", 1),
    ]:
        answer = (await env.run(code)).structured_content
        assert answer["exit_code"] == exit_code, (code, answer)
    result = await env.run("import sys; print('out'); print('err', file=sys.stderr); 1 / 0")
    answer = result.structured_content
    assert answer["stdout"] == "out\n", answer
    assert answer["stderr"].startswith("err\n") and "ZeroDivisionError" in answer["stderr"], answer
    assert result.is_error and "Traceback" in text(result)


async def check_packages(env):
    begun = time.monotonic()
    answer = succeeded(await env.call("install_package_in_env", package_name="humanize"))
    assert time.monotonic() - begun < 8, "the answer came late"
    while not answer["complete"]:
        await anyio.sleep(1)
        answer = succeeded(await env.call("check_package_status", package_name="humanize"))
    assert answer["status"] == "success", answer
    ran = succeeded(await env.run("import humanize; print(humanize.intcomma(1000))"))
    assert ran["stdout"] == "1,000\n", ran
    result = await env.call("install_package_in_env", package_name="no-such-package-of-sandcell")
    answer = result.structured_content
    while not answer["complete"]:
        await anyio.sleep(1)
        result = await env.call("check_package_status", package_name="no-such-package-of-sandcell")
        answer = result.structured_content
    assert (answer["status"], answer["success"]) == ("not_found", False), answer
    answer = succeeded(await env.call("check_package_status", package_name="never-asked-for"))
    assert (answer["status"], answer["complete"]) == ("not_found", True), answer
    assert "install_package_in_env" in answer["message"], answer
    answer = succeeded(await env.call("check_package_status", package_name="numpy, pandas"))
    assert answer["status"] == "success" and "numpy" in answer["message"], answer


async def check_refusals(env):
    gone = "a" * 26
    for tool, arguments in [
        ("execute_python_code", {"code": "1"}),
        ("install_package_in_env", {"package_name": "rich"}),
        ("check_package_status", {"package_name": "rich"}),
    ]:
        result = await env.client.call_tool(tool, {"container_id": gone, **arguments})
        assert result.is_error and "create_python_env" in text(result), (tool, text(result))
        assert "error" in result.structured_content, tool
        result = await env.client.call_tool(tool, arguments)
        assert result.is_error and "container_id" in text(result), (tool, text(result))
        result = await env.call(tool, **arguments, nonsense=1)
        assert result.is_error and "nonsense" in text(result), (tool, text(result))
    result = await env.client.call_tool("execute_python_code", {"container_id": gone, "code": "1"})
    answer = result.structured_content
    assert answer["exit_code"] == 1 and answer["files"] == answer["file_links"] == [], answer
    for name in ["", "--index-url=x", "-r x.txt", "a @ http://x.example/a.whl", "x;y z"]:
        for tool in ["install_package_in_env", "check_package_status"]:
            result = await env.call(tool, package_name=name)
            assert result.is_error or not result.structured_content["success"], (tool, name)
    result = await env.call("install_package_in_env", package_name="--index-url=x")
    assert result.is_error and "option" in text(result), text(result)
    result = await env.client.call_tool("create_python_env", {"nonsense": 1})
    assert result.is_error, text(result)


CHECKS = [
    check_tools,
    check_creation,
    check_workflow,
    check_state,
    check_endings,
    check_packages,
    check_refusals,
]


async def drive(url, mode):
    async with Client(transport(url, None), mode=mode) as client:
        created = succeeded(await client.call_tool("create_python_env", {}))
        env = Environment(client, created["container_id"])
        for check in CHECKS:
            begun = time.monotonic()
            await check(env)
            print(f"ok {mode} {check.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)


def main():
    for mode in GENERATIONS:
        try:
            anyio.run(drive, sys.argv[1], mode)
        except BaseException:
            traceback.print_exc()
            print(f"failed in mode {mode}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
