"""Each REST route once with `requests` and once with `curl`: status and shape of its answer.

    SANDCELL_URL=http://127.0.0.1:8000 pytest rest_routes.py

A shape is a type, a list of one shape, or keys with shapes, of which an answer may have more. The table is
in the order in which the routes can be called; what an answer gives under `keep` is for later rows.
"""

import io
import json
import os
import subprocess
import zipfile

import pytest
import requests

URL = os.environ["SANDCELL_URL"]

NUMBER = (int, float)
TEXT_OR_NULL = (str, type(None))
SUCCESS = {"status": "success", "message": str}
CREATED = {"sandbox_id": str, "name": str, "created_at": str, "expires_at": str}
FILE = {"path": str, "size": int, "url": TEXT_OR_NULL, "type": str, "modified_at": str, "mode": str}
USAGE = {"wall_seconds": NUMBER, "peak_memory_bytes": int, "limits_hit": list, "limit_hits": dict}
OUTCOME = {
    "stdout": str,
    "stderr": str,
    "outcome": "ok",
    "state": "kept",
    "error": None,
    "error_value": None,
    "traceback": None,
    "results": list,
    "execution_count": int,
    "files": list,
    "usage": USAGE,
    "truncated": None,
}
CONTEXT = {"context_id": str, "name": str, "cwd": str, "state": str, "execution_count": int}
BRANCH = {**CONTEXT, "not_carried": list, "note": str}
CHECKPOINT = {"checkpoint_id": str, "context_id": str, "created_at": str, "not_carried": list}
PROCESS = {"process_id": str, "pid": int, "state": str, "output_bytes": int, "exit_code": (int, type(None))}
OUTPUT = {"offset": 0, "next_offset": int, "lost_bytes": 0, "chunks": [{"stream": str, "text": str}]}
INSTALL = {"status": str, "success": True, "complete": True, "message": str, "packages": list}
NETWORK = {"network": (str, dict), "open": int, "allowed": int, "refused": int, "refusals": list}
PORT = {"port": int, "address": str, "url": str, "host": str}
MIRROR = {"mirror_id": str, "name": str, "status": "ready", "packages": list, "preload": list}


def archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("unpacked.txt", "x")
    return file.getvalue()


S = "/sandbox/{sandbox_id}"
C = S + "/contexts/{context_id}"
P = S + "/processes/{process_id}"
SERVER = "python3 -u -m http.server 8080"

# Method, path, what is sent (`json`, `text`, `bytes` or `files`), shape of the answer, what is kept of it.
ROUTES = [
    ("GET", "/health", {}, {"status": "healthy"}),
    ("POST", "/sandbox/create", {"json": {"name": "{name}"}}, CREATED, "sandbox_id"),
    ("GET", "/sandboxes", {}, dict),
    ("GET", "/sandboxes?name={name}", {}, dict),
    ("GET", S, {}, {"name": str, "state": str, "expires_at": str}),
    ("POST", S + "/renew", {"json": {"lease_seconds": 3600}}, {"sandbox_id": str, "expires_at": str}),
    ("POST", S + "/execute", {"text": "print('plain')"}, {**OUTCOME, "stdout": "plain\n"}),
    ("POST", S + "/execute", {"json": {"code": "1 + 1", "timeout_seconds": 60}}, OUTCOME),
    ("POST", S + "/command", {"json": {"command": "echo hi"}}, {"stdout": "hi\n", "exit_code": 0}),
    ("POST", S + "/interrupt", {}, {"status": "success", "interrupted": list}),
    # Files.
    ("POST", S + "/upload", {"files": {"file": ("a.txt", b"content")}}, {"file_path": "a.txt"}),
    ("GET", S + "/files", {}, [FILE]),
    ("GET", S + "/download/a.txt", {}, b"content"),
    ("GET", "/sandbox/file?sandbox_id={sandbox_id}&file_path=a.txt", {}, b"content"),
    ("GET", "/sandbox/file?sandbox_name={name}&file_path=/app/results/a.txt", {}, b"content"),
    ("GET", S + "/files/stat?path=a.txt", {}, {**FILE, "type": "file", "size": 7}),
    ("POST", S + "/files/mkdir", {"json": {"path": "d/e"}}, {"path": "d/e"}),
    ("POST", S + "/files/rename", {"json": {"from": "a.txt", "to": "d/b.txt"}}, {"path": "d/b.txt"}),
    ("GET", S + "/files?path=d&recursive=true&kind=any&glob=**", {}, [FILE]),
    ("POST", S + "/files/unpack?path=d&format=zip", {"bytes": archive()}, {"path": "d", "files": 1, "bytes": 1}),
    ("GET", S + "/files/archive?path=d&format=zip", {}, "zip"),
    ("GET", S + "/files/watch", {}, "stream"),
    ("POST", S + "/files/remove", {"json": {"path": "d", "recursive": True}}, {"path": "d"}),
    # Contexts and checkpoints.
    ("POST", S + "/contexts", {"json": {"name": "second"}}, {**CONTEXT, "name": "second"}, "context_id"),
    ("GET", S + "/contexts", {}, [CONTEXT]),
    ("POST", C + "/restart", {}, CONTEXT),
    ("POST", C + "/checkpoint", {"json": {"name": "kept"}}, CHECKPOINT, "checkpoint_id"),
    ("GET", S + "/checkpoints", {}, [CHECKPOINT]),
    ("POST", C + "/restore", {"json": {"checkpoint_id": "{checkpoint_id}"}}, BRANCH),
    ("POST", C + "/fork", {}, BRANCH),
    ("DELETE", S + "/checkpoints/{checkpoint_id}", {}, SUCCESS),
    ("DELETE", C, {}, SUCCESS),
    # Processes.
    ("POST", S + "/processes", {"json": {"command": "cat", "pty": {"columns": 80, "rows": 24}}}, PROCESS, "process_id"),
    ("GET", S + "/processes", {}, [PROCESS]),
    ("GET", P, {}, {**PROCESS, "state": "running"}),
    ("POST", P + "/resize", {"json": {"columns": 100, "rows": 30}}, PROCESS),
    ("POST", P + "/stdin", {"json": {"text": "typed\n"}}, {"status": "success", "written_bytes": 6}),
    ("POST", P + "/stdin", {"bytes": b"more\n"}, {"status": "success", "written_bytes": 5}),
    ("GET", P + "/output?offset=0&wait_seconds=10", {}, OUTPUT),
    ("POST", P + "/signal", {"json": {"signal": "SIGTERM"}}, SUCCESS),
    ("POST", P + "/wait", {"json": {"timeout_seconds": 20}}, {**PROCESS, "state": "exited", "exit_code": 143}),
    ("DELETE", P, {}, SUCCESS),
    # Packages and the network.
    ("POST", S + "/install", {"json": {"package_name": "six"}}, INSTALL),
    ("GET", S + "/packages?names=six,numpy", {}, [{"name": str, "status": "installed", "version": str}]),
    ("PUT", S + "/network", {"json": {"network": "packages"}}, {**NETWORK, "network": "packages"}),
    ("GET", S + "/network", {}, NETWORK),
    ("POST", S + "/processes", {"json": {"command": SERVER}}, PROCESS, "process_id"),
    ("GET", P + "/output?wait_seconds=20", {}, OUTPUT),
    ("GET", S + "/ports", {}, [PORT]),
    ("GET", S + "/port/8080/", {}, bytes),
    # Mirrors.
    ("GET", "/mirrors", {}, [{**MIRROR, "status": str}]),
    ("POST", "/mirrors", {"json": {"packages": ["six"], "wait_seconds": 200}}, MIRROR, "mirror_id"),
    ("GET", "/mirrors/{mirror_id}", {}, MIRROR),
    ("DELETE", "/mirrors/{mirror_id}", {}, SUCCESS),
    # The other routes of the service.
    ("POST", "/mcp/tools/list_sandboxes", {"json": {}}, {"sandboxes": list}),
    ("GET", "/openapi.json", {}, {"openapi": str, "paths": dict}),
    ("GET", "/docs", {}, bytes),
    ("POST", S + "/close", {}, {"status": "success", "message": "Sandbox closed"}),
    ("GET", S + "/download/a.txt", {}, 410),
]
# What is no request with an answer, or is the protocol of another test.
ELSEWHERE = {"/sandbox/{id}/processes/{process}/attach", "/mcp", "/mcp/env", "/mcp/workspace", "/sse", "/messages/"}


def by_requests(method, path, sent):
    arguments = {"timeout": 300}
    if "json" in sent:
        arguments["json"] = sent["json"]
    elif "files" in sent:
        arguments["files"] = sent["files"]
    elif sent:
        arguments["data"] = sent.get("bytes") or sent["text"]
    stream = path.endswith("/watch")
    answer = requests.request(method, URL + path, stream=stream, **arguments)
    if stream:
        return answer.status_code, next(answer.iter_lines())
    return answer.status_code, answer.content


def by_curl(method, path, sent):
    command = ["curl", "-sS", "--max-time", "300", "-X", method, "-w", "\n%{http_code}", URL + path]
    stdin = b""
    if "files" in sent:
        [(field, (name, stdin))] = sent["files"].items()
        command += ["-F", f"{field}=@-;filename={name}"]
    elif sent:
        [(kind, data)] = sent.items()
        media = {"json": "application/json", "text": "text/plain", "bytes": "application/octet-stream"}[kind]
        stdin = json.dumps(data).encode() if kind == "json" else data if kind == "bytes" else data.encode()
        command += ["-H", f"Content-Type: {media}", "--data-binary", "@-"]
    if path.endswith("/watch"):
        # A stream has no end: what has come when the time is over is it.
        command[command.index("300")] = "2"
        told = subprocess.run(command, input=stdin, capture_output=True).stdout
        body, status = told.rsplit(b"\n", 1)
        return int(status), body.splitlines()[0]
    told = subprocess.run(command, input=stdin, capture_output=True, check=True).stdout
    body, status = told.rsplit(b"\n", 1)
    return int(status), body


def filled(value, known):
    return value.format(**known) if isinstance(value, str) and value.startswith("{") else value


def check(value, shape, where="answer"):
    if isinstance(shape, list):
        assert isinstance(value, list), where
        assert value, where
        for n, one in enumerate(value):
            check(one, shape[0], f"{where}[{n}]")
    elif isinstance(shape, dict):
        assert isinstance(value, dict), where
        for key, inner in shape.items():
            assert key in value, f"{where}.{key} is missing: {value}"
            check(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, (type, tuple)):
        assert isinstance(value, shape), f"{where}: {value!r}"
    else:
        assert value == shape, f"{where}: {value!r}"


@pytest.mark.parametrize("ask", [by_requests, by_curl])
def test_every_route(ask):
    known = {"name": f"routes-{ask.__name__}"}
    for method, path, sent, shape, *keep in ROUTES:
        path = path.format(**known)
        if "json" in sent:
            sent = {"json": {name: filled(value, known) for name, value in sent["json"].items()}}
        status, body = ask(method, path, sent)
        where = f"{method} {path}"
        if isinstance(shape, int):
            assert status == shape, f"{where}: {status} {body[:500]}"
            check(json.loads(body), {"detail": str, "code": str}, where)
            continue
        assert status == 200, f"{where}: {status} {body[:500]}"
        if shape == "zip":
            assert zipfile.ZipFile(io.BytesIO(body)).testzip() is None
        elif shape == "stream":
            check(json.loads(body), {"event": "watching"}, where)
        elif shape is bytes or isinstance(shape, bytes):
            check(body, shape, where)
        else:
            answer = json.loads(body)
            check(answer, shape, where)
            known.update({key: answer[key] for key in keep})


def test_the_table_has_every_route_of_the_description():
    described = requests.get(f"{URL}/openapi.json", timeout=60).json()["paths"]
    wanted = {(method.upper(), path) for path, verbs in described.items() for method in verbs if path not in ELSEWHERE}
    called = {(method, path.partition("?")[0]) for method, path, *_ in ROUTES}

    def matches(path, template):
        ours, theirs = path.split("/"), template.split("/")
        return len(ours) == len(theirs) and all(a == b or "{" in b for a, b in zip(ours, theirs))

    missing = [
        (method, template)
        for method, template in wanted
        if template not in ELSEWHERE
        and not any(m == method and matches(path, template) for m, path in called)
    ]
    assert missing == []
