"""An archive is what untrusted code made: it leads nowhere but below the folder."""

import io
import zipfile

import pytest

from sandcell import SandcellError
from sandcell._folder import unpack


def archive(*names, content=b"x", mode=0o100644):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, content, zipfile.ZIP_DEFLATED)
    return file


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//x", "./x", "..", "a/./x"])
def test_names_that_lead_elsewhere_are_refused_before_anything_is_written(tmp_path, name):
    folder = tmp_path / "to"
    with pytest.raises(SandcellError, match="leads elsewhere"):
        unpack(archive("fine", name), folder, 1000)
    assert list(tmp_path.iterdir()) == []


def test_links_are_left_out(tmp_path):
    assert unpack(archive("link", content=b"/etc/passwd", mode=0o120777), tmp_path, 1000) == []
    assert list(tmp_path.iterdir()) == []


def test_bytes_are_counted_as_they_unpack(tmp_path):
    bomb = archive("zeros", content=b"\0" * 10_000_000)
    assert len(bomb.getvalue()) < 100_000
    with pytest.raises(SandcellError, match="more than 1000000 bytes"):
        unpack(bomb, tmp_path, 1_000_000)
    assert list(tmp_path.iterdir()) == []
    [written] = unpack(bomb, tmp_path, 10_000_000)
    assert written.stat().st_size == 10_000_000


def test_sizes_that_lie_write_no_more_than_they_say(tmp_path):
    file = archive("liar", content=b"y" * 5000)
    lied = file.getvalue().replace((5000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    with pytest.raises(SandcellError):
        unpack(io.BytesIO(lied), tmp_path, 1000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(SandcellError, match="cannot be read"):
        unpack(io.BytesIO(b"no"), tmp_path, 1000)
