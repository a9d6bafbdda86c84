import threading
import time

import pytest

from sandcell import ApiError, BadRequest, Client, CodeError, Gone, NotFound, Sandbox, SandcellError


def test_variables_live_on_and_the_last_value_is_the_text(sandbox):
    assert sandbox.run_code("x = 20").text is None
    execution = sandbox.run_code("x + 22")
    assert (execution.ok, execution.text, execution.execution_count) == (True, "42", 2)
    assert execution.results[-1].is_main
    assert execution.usage.wall_seconds < 30
    assert execution.raise_for_error() is execution


def test_the_raw_outcome_is_what_a_request_without_a_stream_answers(sandbox, client):
    code = """
import sys
from IPython.display import display, update_display, clear_output, HTML
print("gone")
clear_output(wait=True)
print("out"); print("err", file=sys.stderr)
display(HTML("<b>1</b>"), display_id="d")
update_display(HTML("<b>2</b>"), display_id="d")
open("file.txt", "w").write("x")
"last"
raise ValueError("no")
"""
    streamed = sandbox.run_code(code).raw
    http = client._transport._http
    plain = http.post(f"{client.url}/sandbox/{sandbox.id}/execute", json={"code": code}).json()
    for both in (streamed, plain):
        both.pop("usage")
        both.pop("execution_count")
        both["files"][0].pop("change")
        both["traceback"] = both["traceback"].splitlines()[-1]
    assert streamed == plain
    assert streamed["stdout"] == "out\n"
    assert [entry["data"] for entry in streamed["results"] if entry["type"] == "text/html"] == ["<b>2</b>"]


def test_an_exception_is_an_outcome_and_an_exception_where_asked_for(sandbox):
    failed = sandbox.run_code("int('x')")
    assert (failed.outcome, failed.state, failed.error.name) == ("error", "kept", "ValueError")
    assert "int('x')" in failed.error.traceback
    with pytest.raises(CodeError, match="invalid literal") as caught:
        failed.raise_for_error()
    assert caught.value.execution is failed


@pytest.mark.parametrize(
    ("code", "timeout", "outcome"),
    [
        ("import time; time.sleep(60)", 1, "timeout"),
        ("b = bytearray(4 << 30)", 60, "out_of_memory"),
        ("import os; os._exit(3)", 60, "kernel_died"),
    ],
)
def test_every_end_has_its_name(sandbox, code, timeout, outcome):
    sandbox.run_code("kept = 1")
    execution = sandbox.run_code(code, timeout=timeout)
    assert execution.outcome == outcome, execution
    assert execution.state in ("kept", "restored")
    assert execution.error.name == outcome
    assert sandbox.run_code("kept").text == "1"


def test_callbacks_hear_of_output_when_it_comes(sandbox):
    told = []
    begun = time.monotonic()
    execution = sandbox.run_code(
        "import sys, time\nprint('a', flush=True); time.sleep(1); print('b', file=sys.stderr)\ndisplay(1); 2",
        on_stdout=lambda text: told.append(("out", text, time.monotonic() - begun)),
        on_stderr=lambda text: told.append(("err", text, time.monotonic() - begun)),
        on_result=lambda result: told.append(("result", result.text, result.is_main)),
    )
    out, err, (first, second) = ([one for one in told if one[0] == kind] for kind in ("out", "err", "result"))
    assert "".join(text for _, text, _ in out) == "a\n"
    assert "".join(text for _, text, _ in err) == "b\n"
    assert err[0][2] - out[0][2] > 0.5
    assert (first, second) == (("result", "1", False), ("result", "2", True))
    assert execution.text == "2"


def test_what_a_callback_raises_is_raised_and_interrupts_the_code(sandbox):
    def fail(text):
        raise KeyError(text)

    begun = time.monotonic()
    with pytest.raises(KeyError):
        sandbox.run_code("print(1, flush=True)\nimport time\ntime.sleep(50)", on_stdout=fail)
    assert sandbox.run_code("1").ok
    assert time.monotonic() - begun < 20


def test_env_stdin_and_context(sandbox):
    execution = sandbox.run_code("import os; input() + os.environ['A']", stdin="x\n", env={"A": "y"})
    assert execution.text == "'xy'"
    context = sandbox.contexts.create("other", cwd="/tmp")
    sandbox.run_code("z = 1", context=context)
    assert sandbox.run_code("z", context=context.id).text == "1"
    assert sandbox.run_code("z").error.name == "NameError"


def test_a_stream_gives_events_and_then_the_execution(sandbox):
    with sandbox.stream_code("print('x'); 5") as stream:
        with pytest.raises(SandcellError, match="not read to its end"):
            _ = stream.value
        kinds = [event.type for event in stream]
    assert list(dict.fromkeys(kinds)) == ["started", "stdout", "result", "files", "usage", "ended"]
    assert (stream.value.text, stream.value.stdout) == ("5", "x\n")
    # Without a block as well.
    assert "".join(event.text for event in sandbox.stream_code("print(1)")) == "1\n"


def test_leaving_a_stream_interrupts_the_code(sandbox):
    with sandbox.stream_code("import time\nprint('begun', flush=True)\ntime.sleep(50)\nlate = 1") as stream:
        for event in stream:
            if event.type == "stdout":
                break
    begun = time.monotonic()
    assert sandbox.run_code("late").error.name == "NameError"
    assert time.monotonic() - begun < 20


def test_interrupt_from_another_thread(sandbox):
    begun = threading.Event()
    ended = []

    def work():
        code = "import time\nprint('x', flush=True)\ntime.sleep(50)"
        ended.append(sandbox.run_code(code, on_stdout=lambda _: begun.set()))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(20)
    assert sandbox.interrupt() == ["default"]
    thread.join(20)
    assert ended[0].outcome == "interrupted"
    assert sandbox.interrupt("default") == []


def test_an_execution_is_waited_for_longer_than_the_client_waits_for_silence(url):
    # The service says something every 5 seconds; an execution behind another one, too.
    with Client(url, timeout=8) as client, client.create() as sandbox:
        ended = []
        code = "import time; time.sleep(10); 'slept'"
        threads = [
            threading.Thread(target=lambda: ended.append(sandbox.run_code(code).text)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert ended == ["'slept'", "'slept'"]


def test_refusals_are_exceptions_with_status_code_and_detail(sandbox, client):
    with pytest.raises(BadRequest) as caught:
        sandbox.run_code("1", timeout=-1)
    assert (caught.value.status, caught.value.field) == (422, "timeout_seconds")
    with pytest.raises(BadRequest) as caught:
        client.create(memory_bytes=1)
    assert caught.value.field == "memory_bytes"
    with pytest.raises(NotFound) as caught:
        client.connect("a" * 26)
    assert caught.value.code == "sandbox_not_found"
    assert str(caught.value.status) in str(caught.value)
    for wrong in ("", "..", "."):
        with pytest.raises(ValueError, match="is no id"):
            client.connect(wrong)
    # An id is one segment of a path, whatever is in it.
    with pytest.raises(ApiError):
        client.connect("a/../../health")


def test_the_block_of_create_closes_and_that_of_connect_does_not(client):
    with client.create("mine") as sandbox:
        with client.connect(sandbox.id) as same:
            assert same.run_code("1").text == "1"
        assert sandbox.info().name == "mine"
        assert sandbox.id in [info.id for info in client.sandboxes(name="mine")]
    with pytest.raises((Gone, NotFound)):
        sandbox.info()
    sandbox.close()


def test_a_sandbox_with_a_client_of_its_own(url):
    with Sandbox.create(env={"A": "b"}, cpus=0.5) as sandbox:
        assert sandbox.run_code("import os; os.environ['A']").text == "'b'"
        assert sandbox.id in [info.id for info in Sandbox.list()]
        with Sandbox.connect(sandbox.id, url=url) as same:
            assert same.run_code("1").ok


def test_a_lease_is_renewed(sandbox):
    before = sandbox.info()
    renewed = sandbox.renew(lease_seconds=7 * 3600)
    assert (renewed.expires_at - before.created_at).total_seconds() == pytest.approx(7 * 3600, abs=60)


def test_code_that_exits_has_an_exit_code(sandbox):
    assert sandbox.run_code("1").exit_code is None
    ended = sandbox.run_code("import sys; sys.exit()")
    assert (ended.ok, ended.exit_code, ended.error) == (True, 0, None)
    failed = sandbox.run_code("sys.exit(3)")
    assert (failed.ok, failed.exit_code, failed.error.name) == (False, 3, "SystemExit")
