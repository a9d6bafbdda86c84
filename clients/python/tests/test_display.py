"""A notebook is shown nothing that could act, unless the result is trusted."""

import base64
import pickle
import pydoc

import pytest

from sandcell import ApiError, Busy, CodeError, Commands, Execution, Result, Sandbox

PNG = base64.b64encode(b"\x89PNG....").decode()
HOSTILE = "<script>alert(1)</script><table><tr><td>1</td></tr></table>"


def shown(result):
    return result._repr_mimebundle_()[0]


def test_pictures_and_text_are_shown_as_they_are():
    result = Result({"image/png": PNG, "text/plain": "<Figure>"}, metadata={"image/png": {"width": 5}})
    assert result._repr_mimebundle_() == (
        {"image/png": PNG, "text/plain": "<Figure>"},
        {"image/png": {"width": 5}},
    )
    assert result.png == result._repr_png_() == b"\x89PNG...."
    assert (result.jpeg, result._repr_html_(), str(result)) == (None, None, "<Figure>")


def test_html_is_shown_in_a_frame_that_can_do_nothing():
    result = Result({"text/html": HOSTILE, "text/plain": "t"})
    frame = shown(result)["text/html"]
    assert frame == result._repr_html_()
    assert frame.startswith('<iframe sandbox="" srcdoc="')
    assert "default-src &#x27;none&#x27;" in frame
    # All of it is one attribute: nothing in it ends the attribute.
    assert frame.count("<") == 2
    assert frame.count('"') == 6
    assert result.html == HOSTILE
    assert shown(result.trusted())["text/html"] == HOSTILE


@pytest.mark.parametrize(
    "mime",
    ["application/javascript", "text/markdown", "text/latex", "image/svg+xml", "application/vnd.x+json"],
)
def test_what_could_act_is_left_out(mime):
    result = Result({mime: HOSTILE, "text/plain": "t"})
    assert mime not in shown(result)
    assert shown(result)["text/plain"] == "t"
    for name in ("_repr_markdown_", "_repr_latex_", "_repr_svg_"):
        assert getattr(result, name)() is None
    assert shown(result.trusted())[mime] == HOSTILE


def test_svg_is_a_picture():
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>x</script></svg>'
    html = shown(Result({"image/svg+xml": svg}))["text/html"]
    assert html.startswith('<img src="data:image/svg+xml;base64,')
    assert "script" not in html


def test_an_execution_shows_itself(sandbox):
    execution = sandbox.run_code(
        "import pandas as pd, matplotlib.pyplot as plt\nplt.plot([1, 2])\npd.DataFrame({'a': [1]})"
    )
    [frame, figure] = sorted(execution.results, key=lambda result: "image/png" in result.data)
    assert "<table" in frame.html
    assert frame._repr_html_().startswith("<iframe")
    assert frame.is_main
    assert figure.png.startswith(b"\x89PNG")
    assert figure.chart["type"] == "line"
    assert isinstance(execution, Execution)


def test_ipython_is_given_what_the_cell_would_have_shown(sandbox):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    show = InteractiveShell.instance().display_formatter.format
    with capture_output() as captured:
        show(
            sandbox.run_code("print('out')\ndisplay({'a': 1}, raw=False)\nimport pandas\npandas.DataFrame()")
        )
        show(sandbox.run_code("1 / 0"))
    [dictionary, frame] = [output.data for output in captured.outputs]
    assert dictionary == {"text/plain": "{'a': 1}"}
    assert frame["text/html"].startswith('<iframe sandbox=""')
    assert captured.stdout.startswith("out\nTraceback")
    assert captured.stdout.endswith("ZeroDivisionError: division by zero\n")


def test_help_tells_of_a_method_what_its_operation_does():
    told = pydoc.render_doc(Sandbox.run_code, renderer=pydoc.plaintext)
    assert "run_code(self, code: 'str', *, on_stdout: " in told
    assert "-> 'Execution'" in told
    assert "code: Python, with IPython's" in told
    assert "at:" not in told
    assert "-> 'Process'" in pydoc.render_doc(Commands.start, renderer=pydoc.plaintext)


def test_errors_survive_pickling(sandbox):
    error = pickle.loads(pickle.dumps(Busy(429, "too_many", "wait", retry_after=2.0)))
    assert isinstance(error, ApiError)
    assert (error.status, error.code, error.detail, error.retry_after) == (429, "too_many", "wait", 2.0)
    execution = sandbox.run_code("1/0")
    assert pickle.loads(pickle.dumps(CodeError(execution))).execution == execution
