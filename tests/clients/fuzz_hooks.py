"""What schemathesis cannot know of this service: ids of things that are there.

Made-up ids only ever find 404. So most cases get the id of a live sandbox, a new one whenever it was
closed, and of what is in it. Loaded by SCHEMATHESIS_HOOKS=fuzz_hooks with this directory on PYTHONPATH.
"""

import os

import requests
import schemathesis

BASE = os.environ["FUZZ_SERVICE"]
# One case in so many keeps the id that was made up for it.
MADE_UP = 8
live = {"id": None, "process": None, "checkpoint": None}
cases = 0


def post(path, **json):
    answer = requests.post(BASE + path, json=json, timeout=60)
    return answer.json() if answer.status_code == 200 else {}


def renew():
    """A sandbox with a file, a process on a terminal and a checkpoint."""
    known = requests.get(BASE + "/sandboxes", timeout=60).json()
    if live["id"] in known:
        return
    for sandbox in list(known)[2:]:
        post(f"/sandbox/{sandbox}/close")
    created = post("/sandbox/create", lease_seconds=3600)
    if "sandbox_id" not in created:
        return
    at = f"/sandbox/{created['sandbox_id']}"
    post(f"{at}/execute", code="open('a.txt', 'w').write('x' * 1000); kept = 1")
    process = post(f"{at}/processes", command="cat", pty={"columns": 80, "rows": 24})
    kept = post(f"{at}/contexts/default/checkpoint")
    live["id"] = created["sandbox_id"]
    live["process"] = process.get("process_id")
    live["checkpoint"] = kept.get("checkpoint_id")


@schemathesis.hook
def before_call(context, case, kwargs):
    global cases
    cases += 1
    parameters = case.path_parameters
    if not parameters or cases % MADE_UP == 0:
        return
    if "id" in parameters:
        renew()
    known = {**live, "context": "default", "mirror": "default"}
    for name, value in known.items():
        if name in parameters and value:
            parameters[name] = value
    if case.operation.label.endswith("/download/{path}") and cases % 2:
        parameters["path"] = "a.txt"
    if case.operation.label.endswith("/wait"):
        # The process runs for as long as its sandbox: a case that waits for its end tells nothing.
        case.body = {"timeout_seconds": 0.01}
