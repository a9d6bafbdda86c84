import io
from datetime import datetime, timezone

import pytest

from sandcell import BadRequest, Conflict, NotFound, SandcellError


def test_files_are_written_read_and_listed(sandbox):
    assert sandbox.files.write("a/b.txt", "hällo") == "a/b.txt"
    assert sandbox.files.read("a/b.txt") == "hällo".encode()
    assert sandbox.files.read_text("a/b.txt") == "hällo"
    sandbox.files.write("c.bin", io.BytesIO(b"\x00\xff" * 100_000))
    sandbox.files.write("empty", b"")
    [first, second, third] = sandbox.files.list()
    assert (first.path, first.size, first.type) == ("a/b.txt", 6, "file")
    assert (second.path, second.size, third.size) == ("c.bin", 200_000, 0)
    assert abs((datetime.now(timezone.utc) - first.modified_at).total_seconds()) < 60
    assert sandbox.files.read("empty") == b""


@pytest.mark.parametrize(
    "name", ["ä ö.txt", "per%cent", "qu?ery#hash", "a+b&c=d", "new\nline", "%2e%2e", "'\""]
)
def test_names_are_any_text(sandbox, name):
    assert sandbox.files.write(name, name) == name
    assert [file.path for file in sandbox.files.list()] == [name]
    assert sandbox.files.read_text(name) == name
    assert sandbox.files.stat(name).path == name


def test_paths_lead_nowhere_else(sandbox):
    for wrong in ("../x", "/etc/passwd", ""):
        with pytest.raises((BadRequest, NotFound)):
            sandbox.files.write(wrong, "x")
        with pytest.raises((BadRequest, NotFound)):
            sandbox.files.read(wrong)


def test_single_files_go_up_and_come_down(sandbox, tmp_path, monkeypatch):
    local = tmp_path / "up.txt"
    local.write_text("up")
    assert sandbox.files.upload(local) == "up.txt"
    assert sandbox.files.upload(str(local), "dir/other.txt") == "dir/other.txt"
    assert sandbox.files.upload(local, "dir/") == "dir/up.txt"
    monkeypatch.chdir(tmp_path)
    local.unlink()
    assert sandbox.files.download("dir/other.txt").read_text() == "up"
    assert (tmp_path / "other.txt").read_text() == "up"
    assert sandbox.files.download("up.txt", tmp_path / "down.txt") == tmp_path / "down.txt"
    (tmp_path / "folder").mkdir()
    assert sandbox.files.download("up.txt", tmp_path / "folder") == tmp_path / "folder" / "up.txt"
    # What fails leaves nothing, and what was there is as it was.
    with pytest.raises(NotFound):
        sandbox.files.download("nothing", tmp_path / "down.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down.txt", "folder", "other.txt"]
    assert (tmp_path / "down.txt").read_text() == "up"


def test_directories_are_made_renamed_and_removed(sandbox):
    sandbox.files.mkdir("a/b")
    assert sandbox.files.stat("a/b").type == "directory"
    sandbox.files.write("a/b/c", "x")
    sandbox.files.rename("a/b", "d")
    assert (sandbox.files.exists("a/b"), sandbox.files.exists("d/c")) == (False, True)
    sandbox.files.write("e", "y")
    with pytest.raises(Conflict):
        sandbox.files.rename("e", "d/c")
    sandbox.files.rename("e", "d/c", overwrite=True)
    assert sandbox.files.read_text("d/c") == "y"
    with pytest.raises((Conflict, BadRequest)):
        sandbox.files.remove("d")
    sandbox.files.remove("d", recursive=True)
    with pytest.raises(NotFound):
        sandbox.files.stat("d")


def test_lists_are_narrowed(sandbox):
    sandbox.files.write_many({"a/x.py": "1", "a/b/y.py": "2", "z.txt": b"3"})
    assert [f.path for f in sandbox.files.list(glob="**/*.py")] == ["a/b/y.py", "a/x.py"]
    assert {(f.path, f.type) for f in sandbox.files.list("a", recursive=False, kind="any")} == {
        ("a/b", "directory"),
        ("a/x.py", "file"),
    }
    assert [f.path for f in sandbox.files.list(kind="directory", recursive=True)] == ["a", "a/b"]


def test_many_are_written_at_once(sandbox):
    assert sandbox.files.write_many({"x": "1", "d/y": b"\x00"}, path="sub") == 2
    assert sandbox.files.read("sub/d/y") == b"\x00"
    for wrong in ("/x", "../x", "a/../../x", ""):
        with pytest.raises(ValueError, match="no path below"):
            sandbox.files.write_many({wrong: "1"})


def test_folders_go_up_and_come_down(sandbox, tmp_path):
    up = tmp_path / "up"
    for name in ("a.txt", "sub/b.txt", ".git/config", "sub/__pycache__/c.pyc", "sub/empty/x.log"):
        (up / name).parent.mkdir(parents=True, exist_ok=True)
        (up / name).write_text(name)
    (up / "link").symlink_to("/etc/passwd")
    assert sandbox.files.upload_folder(up, "project", ignore=(".git", "__pycache__", "*.log")) == 2
    assert [file.path for file in sandbox.files.list("project", recursive=True, kind="file")] == [
        "project/a.txt",
        "project/sub/b.txt",
    ]
    assert sandbox.files.stat("project/sub/empty").type == "directory"
    sandbox.commands.run("ln -s /etc/passwd project/passwd; chmod 4777 project/a.txt").raise_for_error()
    down = tmp_path / "down"
    written = sandbox.files.download_folder("project", down)
    files = {path.relative_to(down).as_posix() for path in down.rglob("*") if path.is_file()}
    assert {"a.txt", "sub/b.txt"} <= files
    assert len(written) == len(files)
    assert not any(path.is_symlink() for path in down.rglob("*"))
    assert (down / "a.txt").stat().st_mode & 0o7000 == 0
    with pytest.raises(NotADirectoryError):
        sandbox.files.upload_folder(up / "a.txt")


def test_a_folder_that_is_too_much_is_not_taken(sandbox, tmp_path):
    sandbox.commands.run("mkdir d; truncate -s 3M d/big").raise_for_error()
    with pytest.raises(SandcellError, match="more than 1000000 bytes"):
        sandbox.files.download_folder("d", tmp_path / "down", max_bytes=1_000_000)
    assert not (tmp_path / "down").exists()


def test_changes_are_watched(sandbox):
    with sandbox.files.watch() as changes:
        sandbox.run_code("open('new.txt', 'w').close()")
        event = next(changes)
        assert (event.event, event.path) == ("created", "new.txt")
        sandbox.files.remove("new.txt")
        while event.event != "deleted":
            event = next(changes)
        assert event.path == "new.txt"
