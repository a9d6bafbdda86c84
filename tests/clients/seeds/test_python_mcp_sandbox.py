"""003: the workflow of its sample prompt, four tools over SSE at `/sse`."""

import asyncio
import time

import requests
from mcp import ClientSession
from mcp.client.sse import sse_client

CODE = """
import pandas as pd
import matplotlib
import matplotlib.pyplot as plt

df = pd.DataFrame({"x": [1, 2, 3], "y": [1, 4, 9]})
df.to_csv("data.csv", index=False)
plt.plot(df.x, df.y)
plt.savefig("plot.png")
print(len(df), "rows")
"""


def test_the_workflow_of_the_sample_prompt(url):
    async def flow():
        async with sse_client(f"{url}/sse") as streams, ClientSession(*streams) as session:
            await session.initialize()

            async def tool(name, fails=False, **arguments):
                result = await session.call_tool(name, arguments)
                assert result.is_error == fails, result.content
                return result.structured_content

            tools = {tool.name for tool in (await session.list_tools()).tools}
            assert tools >= {
                "create_python_env",
                "execute_python_code",
                "install_package_in_env",
                "check_package_status",
            }
            container_id = (await tool("create_python_env"))["container_id"]
            for package in ("pandas", "matplotlib", "humanize"):
                about = {"container_id": container_id, "package_name": package}
                status = await tool("install_package_in_env", **about)
                deadline = time.monotonic() + 200
                while not status["complete"] and time.monotonic() < deadline:
                    await asyncio.sleep(0.5)
                    status = await tool("check_package_status", **about)
                assert status["success"], status
            ran = await tool("execute_python_code", container_id=container_id, code=CODE)
            assert (ran["stdout"], ran["exit_code"]) == ("3 rows\n", 0)
            links = {link["name"]: link["url"] for link in ran["file_links"]}
            wrong = {"container_id": container_id, "code": "print(1)\n1 / 0"}
            failed = await tool("execute_python_code", fails=True, **wrong)
            assert failed["exit_code"] != 0
            assert "ZeroDivisionError" in failed["stderr"]
            return links

    links = asyncio.run(flow())
    assert {"data.csv", "plot.png"} <= set(links)
    get = lambda name: requests.get(requests.compat.urljoin(url, links[name]), timeout=60)  # noqa: E731
    assert get("data.csv").text == "x,y\n1,1\n2,4\n3,9\n"
    assert get("plot.png").content.startswith(b"\x89PNG")
