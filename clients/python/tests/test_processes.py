import time

import pytest

from sandcell import CommandFailed, Conflict, NotFound


def test_a_command_runs_to_its_end(sandbox):
    told = []
    result = sandbox.commands.run(
        "echo out; echo err >&2; pwd; exit 3", cwd="/tmp", env={"A": "b"}, on_stdout=told.append
    )
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("out\n/tmp\n", "err\n", 3, False)
    assert "".join(told) == result.stdout
    with pytest.raises(CommandFailed, match="exited with 3: err") as caught:
        result.raise_for_error()
    assert caught.value.exit_code == 3
    assert sandbox.commands.run("true").raise_for_error().ok


def test_a_command_has_its_time(sandbox):
    result = sandbox.commands.run("sleep 60", timeout=0.5)
    assert (result.timed_out, result.exit_code) == (True, 124)


def test_a_command_as_a_stream(sandbox):
    with sandbox.commands.stream("echo 1; sleep 0.5; echo 2") as stream:
        assert "".join(event.text for event in stream if event.type == "stdout") == "1\n2\n"
    assert stream.value.exit_code == 0


def test_a_process_runs_on_and_its_output_is_followed(sandbox):
    process = sandbox.commands.start("for i in 1 2 3; do echo $i; sleep 0.3; done; echo end >&2; exit 4")
    assert process.info().running
    chunks = list(process.output())
    assert "".join(chunk.text for chunk in chunks if chunk.stream == "stdout") == "1\n2\n3\n"
    assert chunks[-1].text == "end\n"
    assert process.wait().exit_code == 4
    # From the start again, and from an offset.
    assert process.read().text == "1\n2\n3\nend\n"
    assert process.read(offset=4).text == "3\nend\n"
    assert [one.id for one in sandbox.commands.list()] == [process.id]
    process.delete()
    with pytest.raises(NotFound):
        process.info()


def test_a_process_is_written_to(sandbox):
    process = sandbox.commands.start("cat; echo done")
    process.write("text\n")
    process.write(b"bytes \xc3\xa4\n", close=True)
    assert "".join(chunk.text for chunk in process.output()) == "text\nbytes ä\ndone\n"
    process.wait()
    with pytest.raises(Conflict):
        process.write("late")


def test_a_process_is_signalled_and_waited_for(sandbox):
    process = sandbox.commands.start("sleep 60")
    begun = time.monotonic()
    assert process.wait(timeout=0.5).running
    assert 0.4 < time.monotonic() - begun < 20
    process.send_signal("SIGTERM")
    assert process.wait().signal == "SIGTERM"
    other = sandbox.commands.start("sleep 60")
    other.kill()
    assert other.wait().exit_code == 137


def test_a_terminal(sandbox):
    shell = sandbox.commands.start(pty=(80, 24))
    assert shell.resize(100, 30).raw["pty"] == {"columns": 100, "rows": 30}
    shell.write("stty size; exit\n")
    text = "".join(chunk.text for chunk in shell.output())
    assert "30 100" in text


def test_a_process_is_found_by_its_id(sandbox):
    process = sandbox.commands.start("echo hi")
    assert sandbox.commands.process(process.id).wait().exit_code == 0
