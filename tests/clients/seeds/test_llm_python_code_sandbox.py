"""000 and 001: the class `SandboxClient`, against REST."""

import base64
from pathlib import Path

from sandcell import SandboxClient

NAMES = {"SandboxClient": SandboxClient}


def test_basic_usage_of_both_readmes(blocks):
    for block in blocks("llm_python_code_sandbox.md")[:2]:
        Path("test_upload.txt").write_text("to upload")
        names = dict(NAMES)
        before, after = block.up_to("client.list_files()")
        hello, installed = before.run_now(names)
        assert hello["stdout"].startswith("Hello, Sandbox!")
        assert hello["error"] is None
        assert installed["success"] is True
        # The README downloads "the generated CSV file" without having generated one.
        names["client"].execute_code("open('generated.csv', 'w').write('a,b\\n1,2\\n')")
        downloaded, uploaded, closed, listed = after.run_now(names)
        assert Path("generated.csv").read_text() == "a,b\n1,2\n"
        assert downloaded == "generated.csv"
        assert uploaded["file_path"] == "test_upload.txt"
        assert closed == {"status": "success", "message": "Sandbox closed"}
        assert names["sandbox_id"] not in listed
        assert names["files"][0]["path"] == "generated.csv"


def test_multi_round_code_execution(blocks):
    _, first, second, third, _ = blocks("llm_python_code_sandbox.md")[2].run_now(dict(NAMES))
    assert "Alice" in first["stdout"]
    assert "Average Age: 35.2" in second["stdout"]
    assert "Age Group" in second["stdout"]
    assert third["stdout"] == "Data saved to processed_data.csv 💾\n"
    assert third["files"][0]["path"] == "processed_data.csv"
    assert Path("processed_data.csv").read_text().splitlines()[:2] == [
        "Name,Age,Salary,Age Group",
        "Alice,28,8000,20-30s",
    ]


def test_matplotlib_plot_capture(blocks):
    names = dict(NAMES)
    _, _, _, saved, _ = blocks("llm_python_code_sandbox.md")[3].run_now(names)
    assert names["result"]["error"] is None
    [picture] = [entry for entry in names["result"]["results"] if entry["type"] == "image/png"]
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")
    assert "Plot saved as trigonometric_functions.png" in saved["stdout"]
    # The figure of the execution before is still there to be saved, and is not blank.
    png = Path("trigonometric_functions.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 50_000
