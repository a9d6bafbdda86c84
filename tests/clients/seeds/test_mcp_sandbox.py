"""002: three steps with `requests`, over `POST /mcp/tools/{tool}` and `GET /sandbox/file`."""

from pathlib import Path

import requests


def test_create_execute_download(blocks):
    names = {}
    for block in blocks("mcp_sandbox.md"):
        block.run_now(names)
    assert len(names["sandbox_id"]) == 26
    assert names["response"].status_code == 200
    assert "图表已生成" in names["result"]["stdout"]
    answer = names["file_response"]
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert Path("downloaded_sine_wave.png").read_bytes().startswith(b"\x89PNG")


def test_the_tools_of_the_table(url, tmp_path):
    def tool(name, /, **arguments):
        answer = requests.post(f"{url}/mcp/tools/{name}", json=arguments, timeout=300)
        assert answer.status_code == 200, answer.text
        return answer.json()

    sandbox_id = tool("create_sandbox", name="named")["sandbox_id"]
    assert sandbox_id in str(tool("list_sandboxes"))
    ran = tool("execute_terminal_command", sandbox_id=sandbox_id, command="echo to-file > out.txt; pwd")
    assert (ran["stdout"], ran["exit_code"]) == ("/home/user\n", 0)
    installed = tool("install_packages_in_sandbox", sandbox_id=sandbox_id, package_names=["six"])
    assert installed["success"] is True
    by_name = requests.get(
        f"{url}/sandbox/file", params={"sandbox_name": "named", "file_path": "out.txt"}, timeout=60
    )
    assert by_name.text == "to-file\n"
    tool("close_sandbox", sandbox_id=sandbox_id)
