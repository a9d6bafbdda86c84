"""Drives /mcp/workspace as users of the fourth seed do.

    python workspace_flow.py http://127.0.0.1:8000/mcp/workspace DIRECTORY

DIRECTORY is the first of the service's mcp.local_dirs, on this machine. Runs every check in both
generations of the protocol. Exits with 1 at the first that fails.
"""

import ast
import base64
import os
import pathlib
import shutil
import sys
import textwrap
import time
import traceback

import anyio
from mcp import Client
from mcp_flow import GENERATIONS, images, succeeded, text, transport

TOOLS = {
    "sandbox_initialize",
    "sandbox_exec",
    "write_file_sandbox",
    "copy_project",
    "copy_file",
    "copy_file_from_sandbox",
    "clean_workspace",
    "sandbox_stop",
    "get_container_logs",
}

# The first example of the seed's README, as it is written there.
EXAMPLE = '''
# 初始化执行环境
response = await sandbox_initialize()
container_id = response["container_id"]
workspace_id = response["workspace_id"]

# 写入Python代码
code = """
import numpy as np
import matplotlib.pyplot as plt

# 生成随机数据
data = np.random.randn(1000)
print(f"数据均值: {data.mean():.4f}")
print(f"数据标准差: {data.std():.4f}")

# 保存直方图
plt.figure(figsize=(8, 6))
plt.hist(data, bins=30)
plt.title('正态分布直方图')
plt.savefig('histogram.png')
print("已保存直方图")
"""

await write_file_sandbox(
    container_id=container_id, 
    workspace_id=workspace_id, 
    file_name="analysis.py", 
    file_contents=code
)

# 创建依赖文件
await write_file_sandbox(
    container_id=container_id, 
    workspace_id=workspace_id, 
    file_name="requirements.txt", 
    file_contents="numpy\\nmatplotlib\\n"
)

# 执行代码
result = await sandbox_exec(
    container_id=container_id,
    workspace_id=workspace_id,
    commands=["python analysis.py"]
)

# 获取生成的图像
await copy_file_from_sandbox(
    container_id=container_id,
    workspace_id=workspace_id,
    container_src_path="histogram.png",
    local_dest_path="./output/histogram.png"
)

# 清理工作区
await clean_workspace(container_id, workspace_id)
'''
ORDER = {"clean_workspace": ("container_id", "workspace_id")}


class Workspace:
    """One workspace; its calls name it."""

    def __init__(self, client, url, local, made):
        self.client = client
        self.url = url
        self.local = local
        self.made = made

    @classmethod
    async def open(cls, client, url, local, **arguments):
        made = succeeded(await client.call_tool("sandbox_initialize", arguments))
        return cls(client, url, local, made)

    async def call(self, tool, **arguments):
        ids = {key: self.made[key] for key in ("container_id", "workspace_id")}
        return await self.client.call_tool(tool, ids | arguments)

    async def run(self, *commands, **arguments):
        result = await self.call("sandbox_exec", commands=list(commands), **arguments)
        return result.structured_content

    async def write(self, name, contents, **arguments):
        arguments = {"file_name": name, "file_contents": contents, **arguments}
        return succeeded(await self.call("write_file_sandbox", **arguments))

    async def another(self, **arguments):
        return await self.open(self.client, self.url, self.local, **arguments)


def function(client, name):
    """A tool as the function of the seed's examples."""

    async def call(*positional, **named):
        named |= dict(zip(ORDER.get(name, ()), positional))
        return succeeded(await client.call_tool(name, named))

    return call


async def check_tools(space):
    listed = {tool.name: tool for tool in (await space.client.list_tools()).tools}
    assert set(listed) == TOOLS, set(listed) ^ TOOLS
    for name, tool in listed.items():
        assert tool.title and len(tool.description) > 60, name
        assert tool.output_schema["type"] == "object", name
        assert all(p.get("description") for p in tool.input_schema["properties"].values()), name
    assert "sandbox_initialize" in space.client.instructions


async def check_example(space):
    scope = {name: function(space.client, name) for name in TOOLS}
    code = compile(EXAMPLE, "README", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    output = pathlib.Path(space.local, "output")
    shutil.rmtree(output, ignore_errors=True)
    await eval(code, scope)
    response, result = scope["response"], scope["result"]
    assert response["mode"] == "persistent" and response["workspace_path"], response
    assert result["success"], result
    (ran,) = result["results"]
    assert ran["command"] == "python analysis.py" and ran["exit_code"] == 0 and ran["success"], ran
    assert "数据均值: " in ran["stdout"] and "已保存直方图" in ran["stdout"], ran
    assert (output / "histogram.png").read_bytes().startswith(b"\x89PNG")
    ids = {key: response[key] for key in ("container_id", "workspace_id")}
    gone = await space.client.call_tool("sandbox_exec", ids | {"commands": ["true"]})
    assert gone.is_error and "sandbox_initialize" in text(gone), text(gone)
    assert gone.structured_content["success"] is False, gone.structured_content


async def check_commands(space):
    result = await space.run("echo one; echo err >&2", "cd /tmp && pwd", "pwd", "exit 3", "echo never")
    assert result["success"] is False and "exit 3" in result["error"], result
    shown = [(r["stdout"], r["stderr"], r["exit_code"], r["success"]) for r in result["results"]]
    assert shown == [
        ("one\n", "err\n", 0, True),
        ("/tmp\n", "", 0, True),
        (space.made["workspace_path"] + "\n", "", 0, True),
        ("", "", 3, False),
    ], shown
    # Each has a shell of its own, and files last.
    result = await space.run("export A=1; echo $A > a.txt", "echo \"[$A]\"; cat a.txt")
    assert result["results"][1]["stdout"] == "[]\n1\n" and result["success"], result
    assert result.get("error") is None, result
    result = await space.call("sandbox_exec", commands=["sleep 60"], timeout_seconds=1)
    (ran,) = result.structured_content["results"]
    assert result.is_error and ran["timed_out"] and ran["exit_code"] == 124, ran
    result = await space.run(*["seq 200000"] * 3)
    sizes = [len(r["stdout"]) for r in result["results"]]
    assert all(r["truncated"] for r in result["results"]) and sum(sizes) < 150_000, sizes
    for commands in [[], ["true"] * 65, ["a\0b"], ["x" * 100_000], "true", [1]]:
        result = await space.call("sandbox_exec", commands=commands)
        assert result.is_error and text(result), commands[:2]
        wrong_type = commands in ("true", [1])
        assert wrong_type or "command" in text(result), (commands[:2], text(result))
    result = await space.call("sandbox_exec", commands=["true"], timeout_seconds=-1)
    assert result.is_error and "timeout_seconds" in text(result), text(result)


async def check_progress(space):
    told = []

    async def tell(progress, total, message):
        told.append((time.monotonic(), message))

    ids = {key: space.made[key] for key in ("container_id", "workspace_id")}
    commands = ["echo first; sleep 1", "echo second"]
    await space.client.call_tool("sandbox_exec", ids | {"commands": commands}, progress_callback=tell)
    assert "".join(message for _, message in told) == "first\nsecond\n", told
    assert told[-1][0] - told[0][0] > 0.5, told


async def check_cancellation(space):
    with anyio.move_on_after(1):
        await space.run("echo begun > ticks; while true; do echo x >> ticks; sleep 0.05; done")
    await anyio.sleep(0.5)
    first = (await space.run("wc -l < ticks"))["results"][0]["stdout"]
    await anyio.sleep(0.5)
    second = (await space.run("wc -l < ticks"))["results"][0]["stdout"]
    assert first == second and int(first) > 3, (first, second)


async def check_separation(space):
    other = await space.another()
    assert other.made["container_id"] == space.made["container_id"]
    assert other.made["workspace_id"] != space.made["workspace_id"]
    await space.write("secret.txt", "mine")
    # In the background until the workspace ends, beside files in every shared place there could be.
    await space.run(
        "touch /tmp/mine /dev/shm/mine",
        "SECRET=mine nohup setsid sleep 1234 >/dev/null 2>&1 & sleep 0.2",
        "SECRET=mine nohup setsid python3 -m http.server 8765 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1",
    )
    look = (
        "ls -A . /tmp /dev/shm; ps -ef 2>/dev/null || cat /proc/[0-9]*/cmdline; "
        "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep SECRE.=; "
        "python3 -c \"import socket; print(socket.socket().connect_ex(('127.0.0.1', 8765)))\""
    )
    seen = (await space.run(look, install_dependencies=False))["results"][0]["stdout"]
    for trace in ["secret.txt", "mine", "1234", "SECRET=mine", "\n0\n"]:
        assert trace in seen, (trace, seen)
    hidden = (await other.run(look, install_dependencies=False))["results"][0]["stdout"]
    for trace in ["secret.txt", "mine", "1234", "SECRET=", "\n0\n"]:
        assert trace not in hidden, (trace, hidden)
    # A workspace is of its container only, and with several of them one has to be named.
    alone = await space.another(use_persistent=False)
    for ids in [
        {"container_id": alone.made["container_id"], "workspace_id": other.made["workspace_id"]},
        {"container_id": space.made["container_id"], "workspace_id": alone.made["workspace_id"]},
        {"container_id": "0" * 26, "workspace_id": other.made["workspace_id"]},
        {"container_id": "0" * 26},
        {"container_id": "../../x", "workspace_id": "\0"},
    ]:
        result = await space.client.call_tool("sandbox_exec", ids | {"commands": ["true"]})
        assert result.is_error and "not_found" in text(result), (ids, text(result))
    arguments = {"container_id": space.made["container_id"], "commands": ["true"]}
    result = await space.client.call_tool("sandbox_exec", arguments)
    assert result.is_error and other.made["workspace_id"] in text(result), text(result)
    succeeded(await other.call("clean_workspace"))
    result = await other.call("clean_workspace")
    assert result.is_error and "workspace_not_found" in text(result), text(result)
    assert (await space.run("cat secret.txt"))["results"][0]["stdout"] == "mine"
    succeeded(await stop(alone))


async def stop(space, **arguments):
    arguments = {"container_id": space.made["container_id"], **arguments}
    return await space.client.call_tool("sandbox_stop", arguments)


async def check_modes(space):
    assert space.made["mode"] == "persistent" and space.made["success"], space.made
    alone = await space.another(use_persistent=False, image="python:3.9-slim")
    assert alone.made["mode"] == "standalone", alone.made
    arguments = {"container_id": alone.made["container_id"], "commands": ["echo $((6 * 7))"]}
    for workspace in [{}, {"workspace_id": None}, {"workspace_id": alone.made["workspace_id"]}]:
        result = await space.client.call_tool("sandbox_exec", arguments | workspace)
        assert succeeded(result)["results"][0]["stdout"] == "42\n"
    await alone.write("x.txt", "x")
    succeeded(await alone.call("clean_workspace"))
    assert (await alone.run("ls -A"))["results"][0]["stdout"] == ""
    # What the caller takes for a persistent container is kept, and so is one that is.
    assert "kept" in succeeded(await stop(alone, is_persistent=True))["message"]
    assert succeeded(await stop(alone))["success"]
    result = await stop(alone)
    assert result.is_error and "container_not_found" in text(result), text(result)
    assert "kept" in succeeded(await stop(space))["message"]
    assert (await space.run("true"))["success"]
    for image in ["node:20", "python/x", "x" * 1000, "a\0b"]:
        arguments = {"image": image, "use_persistent": False}
        result = await space.client.call_tool("sandbox_initialize", arguments)
        assert result.is_error and "image" in text(result), text(result)
        # The seed does not look at the image of a persistent container.
        made = await space.another(image=image)
        assert "not used" in made.made["message"], made.made
        succeeded(await made.call("clean_workspace"))


async def check_files(space):
    home = space.made["workspace_path"]
    written = await space.write("ä b.py", "print('grün')\n", dest_dir="src/deep")
    assert written["file_path"] == f"{home}/src/deep/ä b.py" and written["file_size"] == 15, written
    assert (await space.run("python3 'src/deep/ä b.py'"))["results"][0]["stdout"] == "grün\n"
    for dest_dir in ["/src", f"{home}/src", "src/"]:
        written = await space.write("c.py", "1", dest_dir=dest_dir)
        assert written["file_path"] == f"{home}/src/c.py", (dest_dir, written)
    raw = base64.b64encode(bytes(range(256))).decode()
    await space.write("raw.bin", raw, encoding="base64")
    for path in ["raw.bin", f"{home}/raw.bin"]:
        got = succeeded(await space.call("copy_file_from_sandbox", container_src_path=path))
        assert got["encoding"] == "base64" and got["content"] == raw, got
        assert got["file_size"] == 256 and got["local_path"] is None, got
    got = succeeded(await space.call("copy_file_from_sandbox", container_src_path="src/c.py"))
    assert (got["encoding"], got["content"]) == ("utf-8", "1"), got
    figure = "import matplotlib.pyplot as p; p.plot([1, 2]); p.savefig('f.png')"
    assert (await space.run(f'python -c "{figure}"'))["success"]
    result = await space.call("copy_file_from_sandbox", container_src_path="f.png")
    assert succeeded(result)["encoding"] == "image" and len(images(result)) == 1
    await space.run("ln -s /etc/passwd link; mkfifo fifo; mkdir dir; truncate -s 500M sparse")
    for path in ["link", "fifo", "dir", "missing", "../x", "/etc/passwd", "", "a\0b", "sparse"]:
        for local in [{}, {"local_dest_path": "out/x"}]:
            begun = time.monotonic()
            result = await space.call("copy_file_from_sandbox", container_src_path=path, **local)
            assert result.is_error, (path, text(result))
            assert time.monotonic() - begun < 5, path
    assert not os.path.exists(os.path.join(space.local, "out/x"))
    for name in ["../x", "", "link", "dir", "a\0b", "x" * 5000]:
        result = await space.call("write_file_sandbox", file_name=name, file_contents="x")
        assert result.is_error, (name, text(result))


async def check_local_files(space):
    local = pathlib.Path(space.local)
    (local / "data").mkdir(exist_ok=True)
    (local / "data/table.csv").write_text("a,b\n1,2\n")
    home = space.made["workspace_path"]
    for source, dest, path in [
        ("data/table.csv", {}, "table.csv"),
        (str(local / "data/table.csv"), {"dest_path": "in/t.csv"}, "in/t.csv"),
        ("./data/table.csv", {"dest_path": "in/"}, "in/table.csv"),
    ]:
        copied = succeeded(await space.call("copy_file", local_src_file=source, **dest))
        assert copied["file_path"] == f"{home}/{path}" and copied["file_size"] == 8, copied
        assert (await space.run(f"cat {path}"))["results"][0]["stdout"] == "a,b\n1,2\n"
    await space.run("echo out > result.txt")
    for dest in ["deep/er/result.txt", str(local / "deep/er/result.txt")]:
        arguments = {"container_src_path": "result.txt", "local_dest_path": dest}
        got = succeeded(await space.call("copy_file_from_sandbox", **arguments))
        assert got["local_path"] == dest and got["file_size"] == 4, got
        assert (local / "deep/er/result.txt").read_text() == "out\n"
        (local / "deep/er/result.txt").unlink()


async def check_upload(space):
    """The same files by the tool of /mcp."""
    async with Client(transport(space.url.removesuffix("/workspace"), None)) as client:
        made = succeeded(await client.call_tool("create_sandbox", {}))
        ids = {"sandbox_id": made["sandbox_id"]}
        for dest, path in [
            ({}, "table.csv"),
            ({"dest_path": "/app/results"}, "table.csv"),
            ({"dest_path": "in/"}, "in/table.csv"),
            ({"dest_path": "in/other.csv"}, "in/other.csv"),
        ]:
            arguments = ids | {"local_file_path": "data/table.csv"} | dest
            uploaded = succeeded(await client.call_tool("upload_file_to_sandbox", arguments))
            assert uploaded["file_path"] == path and uploaded["size"] == 8, (dest, uploaded)
            read = succeeded(await client.call_tool("read_file", ids | {"path": path}))
            assert read["content"] == "a,b\n1,2\n", read
        for path in ["/etc/passwd", "../private/canary", "missing", "data"]:
            arguments = ids | {"local_file_path": path}
            result = await client.call_tool("upload_file_to_sandbox", arguments)
            assert result.is_error, (path, text(result))
        succeeded(await client.call_tool("close_sandbox", ids))


async def check_local_attacks(space):
    """What is outside of the listed directories is neither read nor written nor told of."""
    local = pathlib.Path(space.local)
    private = local.parent / "private"
    (private / "canary").write_text("canary")
    for name, target in [
        ("to-file", private / "canary"),
        ("to-dir", private),
        ("relative", "../private"),
        ("proc", "/proc/self"),
        ("root", "/"),
    ]:
        (local / name).unlink(missing_ok=True)
        (local / name).symlink_to(target)
    if not (local / "fifo").exists():
        os.mkfifo(local / "fifo")
    outside = [
        str(private / "canary"),
        "../private/canary",
        str(local / "../private/canary"),
        f"{local}x/canary",
        "data/../../private/canary",
        "to-file",
        "to-dir/canary",
        "relative/canary",
        "proc/environ",
        "root/etc/passwd",
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/self/root/etc/passwd",
        "/dev/zero",
        "fifo",
        "~/x",
        "",
        "a\0b",
        "x" * 5000,
    ]
    for path in outside:
        begun = time.monotonic()
        for tool, arguments in [
            ("copy_file", {"local_src_file": path}),
            ("copy_project", {"local_src_dir": path}),
        ]:
            if tool == "copy_project" and path == "":
                continue
            result = await space.call(tool, **arguments)
            assert result.is_error and "canary\n" not in text(result), (tool, path, text(result))
            assert "success" in result.structured_content, tool
        if path in ("~/x",):
            continue  # a name like any other, below the first directory
        await space.run("echo overwritten > evil.txt")
        arguments = {"container_src_path": "evil.txt", "local_dest_path": path}
        result = await space.call("copy_file_from_sandbox", **arguments)
        assert path == "" or result.is_error, (path, text(result))
        assert time.monotonic() - begun < 10, path
    for path in ["to-dir/new", "relative/new", "to-dir/sub/new", "../private/new"]:
        arguments = {"container_src_path": "evil.txt", "local_dest_path": path}
        assert (await space.call("copy_file_from_sandbox", **arguments)).is_error, path
    assert (private / "canary").read_text() == "canary"
    assert [p.name for p in private.iterdir()] == ["canary"]
    assert not list(local.rglob(".sandcell-*"))
    for name in ["to-file", "to-dir", "relative", "proc", "root"]:
        (local / name).unlink()
    (local / "fifo").unlink()


async def check_project(space):
    project = pathlib.Path(space.local, "project")
    shutil.rmtree(project, ignore_errors=True)
    for path, contents in {
        "main.py": "import pkg.tool; print(pkg.tool.answer())",
        "pkg/__init__.py": "",
        "pkg/tool.py": "def answer(): return 42",
        "run.sh": "#!/bin/sh\npython3 main.py",
        "data/ä.txt": "x",
        ".git/config": "secret",
        "venv/pyvenv.cfg": "",
        "venv/lib/x.py": "x",
        "pkg/__pycache__/tool.pyc": "x",
        "node_modules/y/index.js": "x",
    }.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(contents)
    (project / "run.sh").chmod(0o755)
    (project / "passwd").symlink_to("/etc/passwd")
    (project / "empty").mkdir()
    home = space.made["workspace_path"]
    copied = succeeded(await space.call("copy_project", local_src_dir="project", dest_dir="app"))
    assert copied["dest_dir"] == f"{home}/app" and copied["files"] == 5, copied
    skipped = [".git", "node_modules", "passwd", "pkg/__pycache__", "venv"]
    assert sorted(copied["skipped"]) == skipped and copied["skipped_count"] == 5, copied
    result = await space.run("cd app && ./run.sh", "cd app && find . | sort", "cd app && stat -c %U run.sh")
    assert result["results"][0]["stdout"] == "42\n", result
    names = result["results"][1]["stdout"].split()
    expected = [".", "./data", "./data/ä.txt", "./empty", "./main.py", "./pkg"]
    assert names[:6] == expected and "./run.sh" in names and "./venv" not in names, names
    # Into the workspace itself, twice.
    for _ in range(2):
        copied = succeeded(await space.call("copy_project", local_src_dir=str(project)))
        assert copied["dest_dir"] == home, copied
    assert (await space.run("python main.py"))["results"][0]["stdout"] == "42\n"
    for arguments in [
        {"local_src_dir": "project/main.py"},
        {"local_src_dir": "no-such-directory"},
        {"local_src_dir": "project", "dest_dir": "../up"},
        {"local_src_dir": "project", "dest_dir": "main.py"},
        {},
    ]:
        result = await space.call("copy_project", **arguments)
        assert result.is_error, (arguments, text(result))
    # The service of this test has limits of 50 files and 1 MiB.
    for n in range(60):
        (project / "data" / f"{n}").write_text("x")
    result = await space.call("copy_project", local_src_dir="project")
    assert result.is_error and "mcp.project_files" in text(result), text(result)
    shutil.rmtree(project / "data")
    (project / "large").write_bytes(bytes(2 << 20))
    result = await space.call("copy_project", local_src_dir="project")
    assert result.is_error and "mcp.project_bytes" in text(result), text(result)
    result = await space.call("copy_file", local_src_file="project/large")
    assert result.is_error and "mcp.local_file_bytes" in text(result), text(result)
    await space.run("head -c 2M /dev/zero > large")
    arguments = {"container_src_path": "large", "local_dest_path": "large"}
    result = await space.call("copy_file_from_sandbox", **arguments)
    assert result.is_error and "mcp.local_file_bytes" in text(result), text(result)


async def check_dependencies(space):
    space = await space.another()
    # By its imports, one of which has a package of another name, and what is local or optional has none.
    await space.write("helper.py", "import slugify\n")
    script = """
        import humanize, json, helper
        try:
            import nothing_of_that_name
        except ImportError:
            nothing_of_that_name = None
        print(humanize.intcomma(1000), helper.slugify.slugify('A b'))
    """
    await space.write("script.py", textwrap.dedent(script))
    result = await space.run("python script.py", install_dependencies=False)
    assert not result["success"] and "humanize" in result["results"][0]["stderr"], result
    result = await space.run("cd . && python script.py")
    assert result["success"] and result["results"][0]["stdout"] == "1,000 a-b\n", result
    (installed,) = result["dependencies"]
    assert installed["source"] == "imports" and installed["success"], installed
    assert installed["wanted"] == ["humanize", "python-slugify"], installed
    names = {entry.split("==")[0] for entry in installed["installed"]}
    assert {"humanize", "python-slugify"} <= names, installed
    assert (await space.run("python script.py"))["dependencies"] == []
    # By a requirement file; imports are not looked at then.
    await space.write("requirements.txt", "# of app\nujson>=5,<6\n", dest_dir="app")
    await space.write("app.py", "import ujson; print(ujson.dumps([1]))", dest_dir="app")
    result = await space.run("cd app && python3 app.py")
    assert result["success"] and result["results"][0]["stdout"] == "[1]\n", result
    (installed,) = result["dependencies"]
    assert installed["source"] == "app/requirements.txt", installed
    assert installed["installed"][0].startswith("ujson==5"), installed
    # pip finds what was installed for it, without a network.
    result = await space.run("pip install --quiet toolz", "python -c 'import toolz'")
    assert result["success"] and result["dependencies"][0]["wanted"] == ["toolz"], result
    # What cannot be installed is told, and the command runs all the same.
    await space.write("bad.py", "print('ran')\nimport no_such_package_of_sandcell, tomlkit")
    result = await space.run("python bad.py")
    assert result["results"][0]["stdout"] == "ran\n" and not result["success"], result
    (failed,) = result["dependencies"]
    assert not failed["success"] and "no-such-package-of-sandcell" in failed["message"], failed
    assert [entry.split("==")[0] for entry in failed["installed"]] == ["tomlkit"], failed
    await space.write("requirements.txt", "--index-url http://127.0.0.1:1/\nrich\n", dest_dir="evil")
    await space.write("a.py", "print('ran')", dest_dir="evil")
    result = await space.run("python evil/a.py")
    assert result["success"] and not result["dependencies"][0]["success"], result
    assert "option" in result["dependencies"][0]["message"], result
    # Hostile scripts and files hold nothing up.
    for name, contents in {
        "deep.py": "(" * 100_000,
        "nul.py": "import a\0b",
        "long.py": "import " + ", ".join(f"m{n}" for n in range(5000)),
        "huge.py": "#" * (2 << 20),
        "nested.py": "x = " + "[" * 5000 + "]" * 5000,
    }.items():
        await space.write(name, contents)
        begun = time.monotonic()
        await space.run(f"python {name}")
        assert time.monotonic() - begun < 30, name
    await space.run("mkfifo pipe.py; mkdir reqs; mkfifo reqs/requirements.txt; echo 'print(1)' > reqs/a.py")
    result = await space.run("timeout 1 python pipe.py; python reqs/a.py", timeout_seconds=30)
    assert result["results"][0]["stdout"] == "1\n", result
    logs = succeeded(await space.client.call_tool("get_container_logs", {"container_id": space.made["container_id"]}))["logs"]
    assert "$ install humanize python-slugify" in logs, logs
    succeeded(await space.call("clean_workspace"))


async def check_logs(space):
    alone = await space.another(use_persistent=False)
    ids = {"container_id": alone.made["container_id"]}
    result = await space.client.call_tool("get_container_logs", ids)
    assert succeeded(result) == {"success": True, "logs": ""} and "Nothing" in text(result), text(result)
    await alone.run("echo one", "echo two >&2; exit 4")
    logs = succeeded(await space.client.call_tool("get_container_logs", ids))["logs"]
    assert "$ echo one\none\n[exit code 0]\n" in logs, logs
    assert logs.endswith("$ echo two >&2; exit 4\ntwo\n[exit code 4]\n"), logs
    # The service of this test keeps 16 KiB.
    for n in range(6):
        await alone.run(f"seq 100000; echo end {n}")
    logs = succeeded(await space.client.call_tool("get_container_logs", ids))["logs"]
    assert len(logs) < 20_000 and "end 5" in logs and "echo one" not in logs, len(logs)
    succeeded(await stop(alone))
    result = await space.client.call_tool("get_container_logs", ids)
    assert result.is_error and "container_not_found" in text(result), text(result)


async def check_refusals(space):
    needed = {
        "sandbox_exec": {"commands": ["true"]},
        "write_file_sandbox": {"file_name": "x", "file_contents": "x"},
        "copy_project": {"local_src_dir": "project"},
        "copy_file": {"local_src_file": "x"},
        "copy_file_from_sandbox": {"container_src_path": "x"},
        "clean_workspace": {},
        "sandbox_stop": {},
        "get_container_logs": {},
    }
    for tool, arguments in needed.items():
        ids = {"container_id": "0" * 26}
        if tool == "clean_workspace":
            ids["workspace_id"] = "0" * 26
        result = await space.client.call_tool(tool, ids | arguments)
        assert result.is_error and "sandbox_initialize" in text(result), (tool, text(result))
        assert result.structured_content["success"] is False, tool
        result = await space.client.call_tool(tool, arguments)
        assert result.is_error and "container_id" in text(result), (tool, text(result))
        result = await space.client.call_tool(tool, ids | arguments | {"nonsense": 1})
        assert result.is_error and "nonsense" in text(result), (tool, text(result))
        result = await space.client.call_tool(tool, ids | arguments | {"container_id": 7})
        assert result.is_error, (tool, text(result))
    for arguments in [{"image": 3}, {"use_persistent": "yes"}, {"nonsense": 1}]:
        result = await space.client.call_tool("sandbox_initialize", arguments)
        assert result.is_error, (arguments, text(result))


CHECKS = [
    check_tools,
    check_example,
    check_commands,
    check_progress,
    check_cancellation,
    check_modes,
    check_separation,
    check_files,
    check_local_files,
    check_upload,
    check_local_attacks,
    check_project,
    check_dependencies,
    check_logs,
    check_refusals,
]


async def drive(url, local, mode):
    async with Client(transport(url, None), mode=mode) as client:
        space = await Workspace.open(client, url, local)
        for check in CHECKS:
            begun = time.monotonic()
            await check(space)
            print(f"ok {mode} {check.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
        succeeded(await space.call("clean_workspace"))


def main():
    url, local = sys.argv[1:]
    pathlib.Path(local).parent.joinpath("private").mkdir(exist_ok=True)
    for mode in GENERATIONS:
        try:
            anyio.run(drive, url, local, mode)
        except BaseException:
            traceback.print_exc()
            print(f"failed in mode {mode}", flush=True)
            sys.exit(1)


if __name__ == "__main__":
    main()
