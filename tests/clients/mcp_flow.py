"""Drives a running service through the official MCP client, as a model's host would.

    pip install -r mcp.txt
    python mcp_flow.py http://127.0.0.1:8000/mcp [KEY]

Runs every check in both generations of the protocol: the stateless one (2026-07-28) and the older
one with an initialize handshake and a session. Exits with 1 at the first check that fails.
"""

import base64
import contextlib
import io
import sys
import time
import traceback
import urllib.request

import anyio
from mcp import Client, MCPError
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from PIL import Image

TOOLS = {
    "create_sandbox",
    "list_sandboxes",
    "close_sandbox",
    "execute_python_code",
    "execute_terminal_command",
    "list_files",
    "read_file",
    "write_file",
    "upload_file_to_sandbox",
    "create_context",
    "list_contexts",
    "delete_context",
    "restart_context",
    "interrupt_execution",
    "checkpoint_context",
    "list_checkpoints",
    "restore_context",
    "fork_context",
    "delete_checkpoint",
    "start_process",
    "list_processes",
    "read_process_output",
    "write_process_stdin",
    "signal_process",
    "install_packages_in_sandbox",
    "check_packages_installation_status",
    "list_ports",
    "create_mirror",
    "list_mirrors",
    "delete_mirror",
}
READ_ONLY = {
    "check_packages_installation_status",
    "list_ports",
    "list_sandboxes",
    "list_checkpoints",
    "list_contexts",
    "list_files",
    "list_mirrors",
    "list_processes",
    "read_file",
    "read_process_output",
}
GENERATIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}

FRAME = """import numpy as np
import pandas as pd

data = {
    'Name': ['Alice', 'Bob', 'Charlie', 'David'],
    'Age': [28, 32, 45, 36],
    'Salary': [8000, 12000, 15000, 9000]
}
df = pd.DataFrame(data)
print(df)"""

COLUMN = """avg_age = df['Age'].mean()
print(f"Average Age: {avg_age:.1f}")
df['Age Group'] = pd.cut(df['Age'], bins=[20, 30, 40, 50], labels=['20-30s', '30-40s', '40-50s'])
print(df)"""

SAVE_FRAME = """df.to_csv('processed_data.csv', index=False)
print("Data saved to processed_data.csv 💾")"""

FIGURE = """import numpy as np
import matplotlib.pyplot as plt

x = np.linspace(0, 10, 100)
plt.figure(figsize=(10, 6))
plt.plot(x, np.sin(x), label='Sine Function')
plt.plot(x, np.cos(x), label='Cosine Function')
plt.title('Trigonometric Functions Demo')
plt.xlabel('X-axis')
plt.ylabel('Y-axis')
plt.grid(True)
plt.legend()
plt.tight_layout()"""

SAVE_FIGURE = """plt.savefig('trigonometric_functions.png', dpi=300, bbox_inches='tight')
print("Plot saved as trigonometric_functions.png 🎨")"""


class Session:
    """A client with one sandbox of its own."""

    def __init__(self, client, sandbox_id, key):
        self.client = client
        self.sandbox_id = sandbox_id
        self.key = key

    async def call(self, tool, **arguments):
        return await self.client.call_tool(tool, {"sandbox_id": self.sandbox_id, **arguments})

    async def run(self, code, **arguments):
        return await self.call("execute_python_code", code=code, **arguments)

    def fetch(self, url):
        request = urllib.request.Request(url)
        if self.key:
            request.add_header("X-API-Key", self.key)
        with urllib.request.urlopen(request) as response:
            return response.read()


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


def images(result):
    return [block for block in result.content if block.type == "image"]


def picture(block):
    assert block.mime_type == "image/png", block.mime_type
    return Image.open(io.BytesIO(base64.b64decode(block.data, validate=True)))


def assert_shows_plot(image):
    """An empty canvas has one colour, empty axes a handful; two curves and a legend have many."""
    colours = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(colours) > 50, f"only {len(colours)} colours"
    blue = sum(count for count, (r, g, b) in colours if b > 150 and r < 100)
    orange = sum(count for count, (r, g, b) in colours if r > 200 and 90 < g < 170 and b < 80)
    assert blue > 100 and orange > 100, f"{blue} blue and {orange} orange pixels"


def succeeded(result):
    assert not result.is_error, text(result)
    return result.structured_content


async def check_tools(session):
    listed = {tool.name: tool for tool in (await session.client.list_tools()).tools}
    assert set(listed) == TOOLS, set(listed) ^ TOOLS
    for name, tool in listed.items():
        assert tool.title and len(tool.description) > 60, name
        assert tool.output_schema["type"] == "object", name
        assert bool(tool.annotations.read_only_hint) == (name in READ_ONLY), name
    assert "sandbox" in session.client.instructions


async def check_basic_use(session):
    result = await session.run("print('Hello, Sandbox! 👋')")
    outcome = succeeded(result)
    assert outcome["stdout"] == "Hello, Sandbox! 👋\n", outcome
    assert text(result) == "Hello, Sandbox! 👋"
    assert (outcome["outcome"], outcome["state"]) == ("ok", "kept")
    outcome = succeeded(await session.run("x = 41\nx + 1"))
    assert outcome["results"] == [{"type": "text/plain", "text": "42"}], outcome["results"]
    assert "printed nothing" in text(await session.run("x = 7"))
    assert succeeded(await session.run("print(x)"))["stdout"] == "7\n"
    listed = succeeded(await session.client.call_tool("list_sandboxes", {}))["sandboxes"]
    assert session.sandbox_id in [sandbox["sandbox_id"] for sandbox in listed]


async def check_shared_frame(session):
    assert "Charlie" in succeeded(await session.run(FRAME))["stdout"]
    assert "Average Age: 35.2" in succeeded(await session.run(COLUMN))["stdout"]
    result = await session.run(SAVE_FRAME)
    files = succeeded(result)["files"]
    assert [(f["path"], f["change"]) for f in files] == [("processed_data.csv", "created")], files
    csv = succeeded(await session.call("read_file", path="processed_data.csv"))
    assert csv["encoding"] == "utf-8"
    lines = csv["content"].splitlines()
    assert lines[0] == "Name,Age,Salary,Age Group" and lines[1] == "Alice,28,8000,20-30s", lines
    assert len(lines) == 5
    (link,) = [block for block in result.content if block.type == "resource_link"]
    assert link.mime_type.startswith("text/csv") and link.size == csv["size"]
    assert session.fetch(link.uri).decode() == csv["content"]


async def check_figure(session):
    result = await session.run(FIGURE)
    outcome = succeeded(result)
    (shown,) = images(result)
    assert_shows_plot(picture(shown))
    assert outcome["image_count"] == 1 and outcome["files"] == [], outcome
    assert shown.data[:200] not in str(outcome), "the image is copied into structured content"
    outcome = succeeded(await session.run(SAVE_FIGURE))
    assert [f["path"] for f in outcome["files"]] == ["trigonometric_functions.png"], outcome
    result = await session.call("read_file", path="trigonometric_functions.png")
    saved = succeeded(result)
    assert saved["encoding"] == "image" and saved["content"] is None
    (block,) = images(result)
    image = picture(block)
    assert abs(image.info["dpi"][0] - 300) < 1, image.info
    assert image.width > 2500 and image.height > 1500, image.size
    assert_shows_plot(image)


async def check_exceptions(session):
    await session.run("kept = 'still here'")
    result = await session.run("print('before')\n1 / 0")
    assert result.is_error
    assert "ZeroDivisionError" in text(result) and "Traceback" in text(result), text(result)
    outcome = result.structured_content
    assert outcome["stdout"] == "before\n" and outcome["error"] == "ZeroDivisionError"
    assert outcome["error_value"] == "division by zero" and "\x1b" not in outcome["traceback"]
    result = await session.run("def broken(:\n  pass")
    assert result.is_error and result.structured_content["error"] == "SyntaxError"
    assert succeeded(await session.run("kept"))["results"][0]["text"] == "'still here'"


async def check_long_output(session):
    code = "for n in range(200_000): print(f'line {n:06}')"
    result = await session.run(code)
    truncated = succeeded(result)["truncated"]
    assert truncated["stdout_bytes"] == 2_400_000 > truncated["kept"], truncated
    assert "line 000000" in text(result) and "line 199999" in text(result)
    assert truncated["stdout_file"]["path"] in text(result), text(result)[-500:]
    result = await session.run("1")
    assert succeeded(result)["truncated"] is None


async def check_endings(session):
    await session.run("kept = 1")
    begun = time.monotonic()
    result = await session.run("while True: pass", timeout_seconds=1)
    assert result.is_error and result.structured_content["outcome"] == "timeout", text(result)
    assert time.monotonic() - begun < 10
    assert result.structured_content["state"] == "kept"
    assert succeeded(await session.run("print(kept)"))["stdout"] == "1\n"
    result = await session.run("import os; os._exit(3)")
    outcome = result.structured_content
    assert result.is_error and outcome["outcome"] == "kernel_died", text(result)
    assert outcome["exit_code"] == 3 and outcome["state"] == "restored"
    result = await session.run("import ctypes; ctypes.string_at(0)")
    assert result.structured_content["outcome"] == "kernel_died", text(result)
    assert result.structured_content["signal"] == 11
    assert succeeded(await session.run("print(1 + 1)"))["stdout"] == "2\n"


async def check_refusals(session):
    call = session.client.call_tool
    result = await call("execute_python_code", {"sandbox_id": "a" * 26, "code": "1"})
    assert result.is_error and "create_sandbox" in text(result), text(result)
    result = await call("execute_python_code", {"sandbox_id": session.sandbox_id})
    assert result.is_error and "code" in text(result), text(result)
    result = await session.run("1", timeout_seconds="soon")
    assert result.is_error and "timeout_seconds" in text(result) or "soon" in text(result)
    result = await session.run("1", timeout_seconds=-1)
    assert result.is_error and "timeout_seconds" in text(result), text(result)
    result = await session.run("1", nonsense=True)
    assert result.is_error and "nonsense" in text(result), text(result)
    try:
        await call("no_such_tool", {})
    except MCPError:
        return
    raise AssertionError("an unknown tool was called")


async def check_files(session):
    written = succeeded(
        await session.call("write_file", path="notes/ä b.txt", content="grün\n")
    )
    assert written == {"path": "notes/ä b.txt", "size": 6}, written
    binary = bytes(range(256))
    encoded = base64.b64encode(binary).decode()
    succeeded(
        await session.call("write_file", path="raw.bin", content=encoded, encoding="base64")
    )
    read = succeeded(await session.call("read_file", path="notes/ä b.txt"))
    assert read["content"] == "grün\n", read
    read = succeeded(await session.call("read_file", path="raw.bin"))
    assert read["encoding"] == "base64" and base64.b64decode(read["content"]) == binary
    sizes = succeeded(await session.run("import os; os.path.getsize('raw.bin')"))["results"]
    assert sizes[0]["text"] == "256"
    listed = succeeded(await session.call("list_files"))["files"]
    entries = {file["path"]: file["size"] for file in listed}
    assert entries["notes/ä b.txt"] == 6 and entries["raw.bin"] == 256, entries
    for path in ["../../etc/passwd", "/etc/passwd", "missing.txt", "notes", "", "a\0b"]:
        for arguments in [("read_file", {}), ("write_file", {"content": "x"})]:
            if (arguments[0], path) == ("write_file", "missing.txt"):
                continue
            result = await session.call(arguments[0], path=path, **arguments[1])
            assert result.is_error, f"{arguments[0]} {path!r}: {text(result)}"
    await session.run("import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('fifo')")
    for path in ["link", "fifo"]:
        assert (await session.call("read_file", path=path)).is_error, path
    result = await session.call("write_file", path="x", content="not base64!", encoding="base64")
    assert result.is_error and "base64" in text(result)
    await session.run("open('large.txt', 'w').write('x' * (2 << 20))")
    result = await session.call("read_file", path="large.txt")
    assert result.is_error and "1048576" in text(result), text(result)


async def check_upload(session):
    """Content goes in; local files do not, as this service lists no directory."""
    upload = {"content": "a,b\n", "dest_path": "in/table.csv"}
    uploaded = succeeded(await session.call("upload_file_to_sandbox", **upload))
    assert uploaded["file_path"] == "in/table.csv" and uploaded["size"] == 4, uploaded
    assert uploaded["success"] and uploaded["url"].endswith("/download/in/table.csv"), uploaded
    upload = {"content": "/w==", "encoding": "base64", "dest_path": "/app/results/raw"}
    assert succeeded(await session.call("upload_file_to_sandbox", **upload))["file_path"] == "raw"
    read = await session.run("print(open('in/table.csv').read(), open('raw', 'rb').read())")
    assert text(read) == "a,b\n b'\\xff'", text(read)
    for arguments, word in [
        ({"local_file_path": "/etc/passwd"}, "mcp.local_dirs"),
        ({"local_file_path": "x", "dest_path": "y"}, "mcp.local_dirs"),
        ({"local_file_path": "/etc/passwd", "content": "x"}, "either"),
        ({}, "either"),
        ({"content": "x"}, "dest_path"),
        ({"content": "x", "dest_path": "dir/"}, "dest_path"),
        ({"content": "x", "dest_path": "../x"}, "bad_path"),
        ({"content": "?", "encoding": "base64", "dest_path": "x"}, "base64"),
    ]:
        result = await session.call("upload_file_to_sandbox", **arguments)
        assert result.is_error and word in text(result), (arguments, text(result))


async def check_commands(session):
    result = await session.call("execute_terminal_command", command="echo out; echo err >&2; exit 3")
    answer = succeeded(result)
    assert (answer["stdout"], answer["stderr"], answer["exit_code"]) == ("out\n", "err\n", 3)
    assert "[exit code] 3" in text(result)
    await session.run("open('shared.txt', 'w').write('from python')")
    answer = succeeded(await session.call("execute_terminal_command", command="cat shared.txt; id -u"))
    assert answer["stdout"] == "from python1000\n", answer
    result = await session.call("execute_terminal_command", command="sleep 60", timeout_seconds=1)
    assert result.is_error and result.structured_content["exit_code"] == 124, text(result)


async def check_packages(session):
    probe = "import socket\ntry: socket.create_connection(('127.0.0.1', 3128), 1)\nexcept OSError as e: print('closed')"
    assert text(await session.run(probe)).strip() == "closed"
    # One pure, one with compiled parts; the answer says what became of each.
    result = await session.call("install_packages_in_sandbox", package_names=["humanize", "ujson"])
    answer = succeeded(result)
    assert answer["status"] == "installed" and answer["success"] and answer["complete"], answer
    assert [p["name"] for p in answer["packages"]] == ["humanize", "ujson"], answer
    assert "installed: humanize " in text(result), text(result)
    result = await session.run("import humanize, ujson\nprint(humanize.intcomma(1000), ujson.dumps([1]))")
    assert text(result).startswith("1,000 [1]"), text(result)
    assert text(await session.run(probe)).strip() == "closed"
    result = await session.call("install_packages_in_sandbox", package_names=["no-such-package-of-sandcell"])
    assert result.is_error and result.structured_content["status"] == "not_found", text(result)
    result = await session.call("install_packages_in_sandbox", package_names=["requests==2.31", "urllib3==1.20"])
    assert result.is_error and result.structured_content["status"] == "failed", text(result)
    assert "urllib3" in text(result), text(result)
    result = await session.call("install_packages_in_sandbox", package_names=["--index-url=x"])
    assert result.is_error and "is an option" in text(result), text(result)
    names = ["humanize", "numpy", "no_such_package_of_sandcell", "never-asked-for"]
    answer = succeeded(await session.call("check_packages_installation_status", package_names=names))
    told = [package["status"] for package in answer["packages"]]
    assert told == ["installed", "installed", "not_found", "not_installed"], answer


async def check_long_commands(session):
    result = await session.call("execute_terminal_command", command="seq 500000")
    answer = succeeded(result)
    assert answer["truncated"] and len(answer["stdout"]) < 100_000, len(answer["stdout"])
    assert answer["stdout"].startswith("1\n2\n") and answer["stdout"].endswith("\n500000\n")


async def check_progress(session):
    told = []

    async def tell(progress, total, message):
        told.append((time.monotonic(), progress, message))

    code = "import time\nfor i in range(3):\n    print('step', i, flush=True)\n    time.sleep(0.3)"
    result = await session.client.call_tool(
        "execute_python_code",
        {"sandbox_id": session.sandbox_id, "code": code},
        progress_callback=tell,
    )
    ended = time.monotonic()
    assert "".join(message for _, _, message in told) == "step 0\nstep 1\nstep 2\n", told
    assert succeeded(result)["stdout"] == "step 0\nstep 1\nstep 2\n"
    assert ended - told[0][0] > 0.5, "progress came only at the end"
    numbers = [progress for _, progress, _ in told]
    assert numbers == sorted(set(numbers)), numbers


async def check_cancellation(session):
    """Cancelling the call interrupts the code and keeps the variables."""
    await session.run("ticks = 0")
    code = "import time\nwhile True:\n    ticks += 1\n    time.sleep(0.05)"
    with anyio.move_on_after(1):
        await session.run(code)
    begun = time.monotonic()
    first = int(succeeded(await session.run("print(ticks)", timeout_seconds=20))["stdout"])
    assert time.monotonic() - begun < 5, "the code ran on"
    await anyio.sleep(0.5)
    second = int(succeeded(await session.run("print(ticks)"))["stdout"])
    assert first == second > 3, (first, second)


async def check_contexts(session):
    created = succeeded(await session.call("create_context", name="second"))
    second = created["context_id"]
    assert created["name"] == "second" and created["state"] == "idle", created
    await session.run("mine = 'of default'")
    result = await session.run("mine", context_id=second)
    assert result.is_error and result.structured_content["error"] == "NameError", text(result)
    await session.run("mine = 'of second'", context_id=second)
    assert succeeded(await session.run("print(mine)"))["stdout"] == "of default\n"
    listed = succeeded(await session.call("list_contexts"))["contexts"]
    assert [context["context_id"] for context in listed] == ["default", second], listed
    restarted = succeeded(await session.call("restart_context", context_id=second))
    assert restarted["execution_count"] == 0, restarted
    assert (await session.run("mine", context_id=second)).is_error
    assert succeeded(await session.call("delete_context", context_id=second))["status"] == "success"
    result = await session.run("1", context_id=second)
    assert result.is_error and "list_contexts" in text(result), text(result)
    result = await session.call("delete_context", context_id="default")
    assert result.is_error and "default_context" in text(result), text(result)


async def check_checkpoints(session):
    await session.run("path = ['start']")
    made = succeeded(await session.call("checkpoint_context", name="start"))
    checkpoint = made["checkpoint_id"]
    await session.run("path.append('first try')")
    branch = succeeded(await session.call("fork_context"))["context_id"]
    await session.run("path.append('branch')", context_id=branch)
    shown = succeeded(await session.run("print(path)", context_id=branch))["stdout"]
    assert shown == "['start', 'first try', 'branch']\n", shown
    restored = succeeded(await session.call("restore_context", checkpoint_id=checkpoint))
    assert restored["context_id"] == "default" and restored["not_carried"] == [], restored
    assert succeeded(await session.run("print(path)"))["stdout"] == "['start']\n"
    other = succeeded(await session.call("fork_context", checkpoint_id=checkpoint))["context_id"]
    shown = succeeded(await session.run("print(path)", context_id=other))["stdout"]
    assert shown == "['start']\n", shown
    for context in (branch, other):
        succeeded(await session.call("delete_context", context_id=context))
    listed = succeeded(await session.call("list_checkpoints"))["checkpoints"]
    assert [kept["checkpoint_id"] for kept in listed] == [checkpoint], listed
    succeeded(await session.call("delete_checkpoint", checkpoint_id=checkpoint))
    result = await session.call("restore_context", checkpoint_id=checkpoint)
    assert result.is_error and "checkpoint_not_found" in text(result), text(result)


async def check_processes(session):
    command = "echo ready; while read line; do echo \"got $line\"; done; echo over >&2; exit 3"
    started = succeeded(await session.call("start_process", command=command))
    assert started["state"] == "running" and started["exit_code"] is None, started
    at = {"process_id": started["process_id"]}
    result = await session.call("read_process_output", **at, wait_seconds=20)
    output = succeeded(result)
    assert output["chunks"] == [{"stream": "stdout", "text": "ready\n"}], output
    assert text(result) == f"ready\n[running] next_offset {output['next_offset']}", text(result)
    succeeded(await session.call("write_process_stdin", **at, text="a\n"))
    await expect_output(session, at, output["next_offset"], "got a\n")
    listed = succeeded(await session.call("list_processes"))["processes"]
    assert [p["process_id"] for p in listed] == [at["process_id"]], listed
    succeeded(await session.call("write_process_stdin", **at, text="b\n", close=True))
    await expect_output(session, at, output["next_offset"], "over\n")
    while (ended := succeeded(await session.call("read_process_output", **at)))["state"] == "running":
        await anyio.sleep(0.1)
    assert ended["exit_code"] == 3, ended
    result = await session.call("signal_process", **at, signal="SIGTERM")
    assert result.is_error and "process_ended" in text(result), text(result)
    started = succeeded(await session.call("start_process", command="tty; sleep 1000", terminal=True))
    at = {"process_id": started["process_id"]}
    await expect_output(session, at, 0, "/dev/pts/")
    succeeded(await session.call("signal_process", **at, signal="SIGKILL"))
    while (ended := succeeded(await session.call("read_process_output", **at)))["state"] == "running":
        await anyio.sleep(0.1)
    assert ended["signal"] == "SIGKILL", ended
    result = await session.call("read_process_output", process_id="0" * 26)
    assert result.is_error and "list_processes" in text(result), text(result)


async def check_ports(session):
    assert succeeded(await session.call("list_ports"))["ports"] == []
    command = "python -m http.server 8123 --bind 127.0.0.1"
    started = succeeded(await session.call("start_process", command=command))
    with anyio.fail_after(30):
        while not (ports := succeeded(await session.call("list_ports"))["ports"]):
            await anyio.sleep(0.2)
    assert [port["port"] for port in ports] == [8123], ports
    at = {"process_id": started["process_id"]}
    succeeded(await session.call("signal_process", **at, signal="SIGKILL"))


async def check_mirrors(session):
    call = session.client.call_tool
    told = []

    async def progress(done, total, message):
        told.append(message)

    wanted = {"packages": ["humanize"], "name": "with-humanize"}
    made = succeeded(await call("create_mirror", wanted, progress_callback=progress))
    assert made["status"] == "ready", made
    assert [package["name"] for package in made["packages"]] == ["humanize"], made
    assert any("making the mirror" in message for message in told), told
    names = [mirror["name"] for mirror in succeeded(await call("list_mirrors", {}))["mirrors"]]
    assert names == ["default", "with-humanize"], names
    created = succeeded(await call("create_sandbox", {"mirror": "with-humanize"}))
    at = {"sandbox_id": created["sandbox_id"]}
    code = "import humanize; print(humanize.intcomma(1000))"
    assert succeeded(await call("execute_python_code", {**at, "code": code}))["stdout"] == "1,000\n"
    result = await call("delete_mirror", {"mirror": "with-humanize"})
    assert result.is_error and "mirror_in_use" in text(result), text(result)
    succeeded(await call("close_sandbox", at))
    succeeded(await call("delete_mirror", {"mirror": "with-humanize"}))


async def expect_output(session, at, offset, expected):
    """Reads on from an offset until the text has come."""
    seen = ""
    while expected not in seen:
        arguments = {**at, "offset": offset, "wait_seconds": 20}
        output = succeeded(await session.call("read_process_output", **arguments))
        assert output["chunks"], (seen, output)
        seen += "".join(chunk["text"] for chunk in output["chunks"])
        offset = output["next_offset"]


async def check_interrupt(session):
    assert succeeded(await session.call("interrupt_execution"))["interrupted"] == []
    outcomes = []

    async def run():
        outcomes.append(await session.run("kept = 1\nwhile True: pass"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        with anyio.fail_after(20):
            while succeeded(await session.call("interrupt_execution", context_id="default"))[
                "interrupted"
            ] == []:
                await anyio.sleep(0.2)
    (result,) = outcomes
    assert result.is_error and result.structured_content["outcome"] == "interrupted", text(result)
    assert result.structured_content["state"] == "kept", text(result)


async def check_close(session):
    assert succeeded(await session.call("close_sandbox"))["status"] == "success"
    result = await session.call("close_sandbox")
    assert result.is_error and "sandbox_not_found" in text(result)
    listed = succeeded(await session.client.call_tool("list_sandboxes", {}))["sandboxes"]
    assert session.sandbox_id not in [sandbox["sandbox_id"] for sandbox in listed]


CHECKS = [
    check_tools,
    check_basic_use,
    check_shared_frame,
    check_figure,
    check_exceptions,
    check_long_output,
    check_endings,
    check_refusals,
    check_files,
    check_upload,
    check_commands,
    check_packages,
    check_long_commands,
    check_progress,
    check_cancellation,
    check_contexts,
    check_checkpoints,
    check_processes,
    check_ports,
    check_mirrors,
    check_interrupt,
    check_close,
]


@contextlib.asynccontextmanager
async def transport(url, key):
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with create_mcp_http_client(headers=headers) as http:
        async with streamable_http_client(url, http_client=http) as streams:
            yield streams


async def drive(url, key, mode):
    async with Client(transport(url, key), mode=mode) as client:
        assert client.protocol_version == GENERATIONS[mode], client.protocol_version
        created = succeeded(await client.call_tool("create_sandbox", {"name": f"mcp_flow {mode}"}))
        assert created["name"] == f"mcp_flow {mode}" and created["expires_at"] > created["created_at"]
        session = Session(client, created["sandbox_id"], key)
        for check in CHECKS:
            begun = time.monotonic()
            await check(session)
            print(f"ok {mode} {check.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)


def main():
    url = sys.argv[1]
    key = sys.argv[2] if len(sys.argv) > 2 else None
    for mode in GENERATIONS:
        try:
            anyio.run(drive, url, key, mode)
        except BaseException:
            traceback.print_exc()
            print(f"failed in mode {mode}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
