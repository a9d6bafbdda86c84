"""The first seed's client; what its READMEs do with it runs in tests/clients/seeds."""

import pytest

from sandcell import NotFound, SandboxClient, SandcellError


@pytest.fixture
def seed(url):
    with SandboxClient(base_url=url) as client:
        before = set(client.list_all_sandboxes())
        client.create_sandbox()
        yield client
        for sandbox_id in set(client.list_all_sandboxes()) - before:
            client.close_sandbox(sandbox_id)


def test_the_current_sandbox_is_the_last_that_was_made(seed):
    first = seed.sandbox_id
    second = seed.create_sandbox()
    assert seed.sandbox_id == second != first
    seed.execute_code("x = 2")
    assert seed.execute_code("print(x)")["stdout"] == "2\n"
    assert seed.execute_code("x", sandbox_id=first)["error"] == "NameError"
    assert {first, second} <= set(seed.list_all_sandboxes())
    # Closing another one leaves the current one.
    assert seed.close_sandbox(first) == {"status": "success", "message": "Sandbox closed"}
    assert seed.sandbox_id == second
    seed.close_sandbox()
    assert seed.sandbox_id is None
    with pytest.raises(SandcellError, match="create_sandbox"):
        seed.execute_code("1")
    with pytest.raises(NotFound):
        seed.execute_code("1", sandbox_id="a" * 26)


def test_answers_are_the_services_own(seed):
    answer = seed.execute_code("import sys\nprint('e', file=sys.stderr)\n1 / 0")
    assert (answer["stdout"], answer["stderr"], answer["error"]) == ("", "e\n", "ZeroDivisionError")
    assert "division by zero" in answer["traceback"]
    assert seed.execute_code("while True: pass", timeout=0.5)["outcome"] == "timeout"
    assert seed.install_package("numpy")["success"] is True
    assert seed.health() == {"status": "healthy"}


def test_files_go_up_and_come_down(seed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "up.txt").write_text("up")
    assert seed.upload_file("up.txt") == {"file_path": "up.txt"}
    assert seed.upload_file("up.txt", "dir/other.txt") == {"file_path": "dir/other.txt"}
    assert sorted(file["path"] for file in seed.list_files()) == ["dir/other.txt", "up.txt"]
    assert seed.download_file("dir/other.txt") == "other.txt"
    assert (tmp_path / "other.txt").read_text() == "up"
    assert seed.download_file("up.txt", "here.txt") == "here.txt"
    assert capsys.readouterr() == ("", "")
