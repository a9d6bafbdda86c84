"""Changes a few lines of installed packages, each for a reason that its section below gives.

A text that is not there exactly once ends the build: the package has changed, and so must this file.
"""

import sysconfig
from pathlib import Path

HERE = Path(sysconfig.get_path("purelib"))

# matplotlib falls back along a list of *families*, but a generic family ("sans-serif") counts as one
# and resolves to a single font. seaborn and most styles set a generic family, so a matplotlibrc alone
# would lose every Chinese title as soon as seaborn.set_theme() is called. These fall back per glyph.

LIST = """\
                if isinstance(fname, FontPath) else (_cached_realpath(fname), 0)
                for fname in font_filepaths)
"""
GET_FONT = """\
@_api.delete_parameter('3.11', 'hinting_factor')
def get_font("""
FALLBACK = """\
_SANDCELL_FALLBACK = tuple(
    (path, 0) for path in (
        os.path.realpath(cbook._get_data_path('fonts', 'ttf', 'DejaVuSans.ttf')),
        '/usr/share/fonts/truetype/wqy/wqy-microhei.ttc',
        '/usr/share/fonts/truetype/ancient-scripts/Symbola_hint.ttf',
    ) if os.path.exists(path))


"""
MATH = """\
                _log.warning("Font %r does not have a glyph for %a [U+%x], "
                             "substituting with a dummy symbol.",
                             new_fontname, sym, uniindex)
                font = self._get_font('rm')
"""

# pandas imports numexpr, if it is there, together with itself: 12 ms and a pool of threads in every
# start. Here it is imported when it is asked for. What pandas does without being asked (arithmetic on
# more than a million elements) stays numpy's: compute.use_numexpr turns it on.
CHECK = """\
ne = import_optional_dependency("numexpr", errors="warn")

# the installed version if pandas refuses to use it, otherwise None
NUMEXPR_BLOCKED_VERSION: str | None = None

if ne is not None and Version(ne.__version__).base_version in BLOCKED_NUMEXPR_VERSIONS:
    NUMEXPR_BLOCKED_VERSION = ne.__version__
    ne = None

NUMEXPR_INSTALLED = ne is not None
"""
LAZY_CHECK = """\
# sandcell: looked for, not imported.
NUMEXPR_BLOCKED_VERSION: str | None = None
NUMEXPR_INSTALLED = importlib.util.find_spec("numexpr") is not None
"""
EXPRESSIONS = """\
if NUMEXPR_INSTALLED:
    import numexpr as ne
"""
LAZY_EXPRESSIONS = """\
class _NumExpr:
    # sandcell: imported when a function of it is called.
    def __getattr__(self, name):
        import numexpr

        return getattr(numexpr, name)


ne = _NumExpr()
"""

# plotly draws images in a browser that kaleido starts, and there is none. plotly-print runs the part
# of plotly.js that draws SVG; traces that need WebGL or maps are refused instead of left out.
NO_KALEIDO = """\
    if not kaleido_available():
        raise RuntimeError(KALEIDO_REQUIRED_MSG)

"""
TO_IMAGE = """\
    # Convert figure to dict (and validate if requested)
    fig_dict = validate_coerce_fig_to_dict(fig, validate)

    # Check"""
WRITE_IMAGE = "    # Try to cast `file` as a pathlib object `path`.\n"
WRITE_IMAGES = "    # Broadcast arguments into correct format for passing to Kaleido\n"
DRAWN_WITHOUT_A_BROWSER = '''\
def _sandcell_to_image(fig_dict, format, width, height, scale):
    """Draws with plotly-print, as there is neither kaleido nor a browser."""
    from plotly_print import core, engine

    # The same marks, drawn as SVG.
    without_gl = {"scattergl": "scatter", "scatterpolargl": "scatterpolar"}
    traces = [
        {**trace, "type": without_gl.get(trace.get("type"), trace.get("type", "scatter"))}
        for trace in fig_dict.get("data", [])
    ]
    known = set(json.loads(engine.get_engine().context.eval(
        "JSON.stringify(Object.keys(Plotly.PlotSchema.get().traces))")))
    unknown = sorted({trace["type"] for trace in traces} - known)
    if unknown:
        raise ValueError(
            f"an image of {', '.join(unknown)} needs a browser, which is not here: "
            "use fig.write_html(), or draw it with matplotlib"
        )
    format = (format or defaults.default_format).lower()
    if format not in ("png", "jpg", "jpeg", "webp", "svg", "pdf"):
        raise ValueError(f"cannot draw {format!r}: use png, jpg, webp, svg or pdf")
    layout = fig_dict.get("layout", {})
    themed = layout.get("template", {}).get("layout", {})
    size = {
        "width": width or layout.get("width") or themed.get("width") or defaults.default_width,
        "height": height or layout.get("height") or themed.get("height") or defaults.default_height,
    }
    figure = {"data": traces, "layout": layout}
    if format == "pdf":
        from vl_convert import svg_to_pdf

        return svg_to_pdf(core.to_svg(figure, **size), scale=scale or defaults.default_scale)
    return core.to_image(figure, format=format, scale=scale or defaults.default_scale, **size)


'''
DRAW = """\
    if not kaleido_available():
        fig_dict = validate_coerce_fig_to_dict(fig, validate)
        return _sandcell_to_image(fig_dict, format, width, height, scale)

"""
DRAW_EACH = """\
    if not kaleido_available():
        for one in broadcast_args_to_dicts(
            fig=fig, file=file, format=format, scale=scale, width=width, height=height, validate=validate
        ):
            write_image(**one)
        return

"""

# Without an index pip tries for a minute and then says that the package does not exist.
PIP_MAIN = """\
    command = create_command(cmd_name, isolated=("--isolated" in cmd_args))
    command._cli = cli

    return command.main(cmd_args)
"""
PIP_MAIN_HERE = """\
    # sandcell: a sandbox that may reach an index is told so by these.
    alone = not any(name.lower() in ("pip_index_url", "http_proxy", "https_proxy") for name in os.environ)
    if alone:
        os.environ.setdefault("PIP_RETRIES", "0")
        os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    command = create_command(cmd_name, isolated=("--isolated" in cmd_args))
    command._cli = cli

    status = command.main(cmd_args)
    if status and alone and cmd_name in ("install", "download", "wheel", "index"):
        with open("/opt/sandcell/no-index.txt") as file:
            print(file.read(), end="", file=sys.stderr)
    return status
"""

# plotly-print asks for "quickjs", which quickjs-ng is; pip would call it missing.
REQUIRES = "Requires-Dist: quickjs>=1.19.0\n"

# File, text in it, what takes its place.
CHANGES = (
    ("matplotlib/font_manager.py", GET_FONT, FALLBACK + GET_FONT),
    ("matplotlib/font_manager.py", LIST, LIST + """\
            # sandcell: glyphs that no requested font has come from these.
            paths += tuple(entry for entry in _SANDCELL_FALLBACK if entry not in paths)
"""),
    # A label with a formula in it is laid out by mathtext, which knows one text font only.
    ("matplotlib/_mathtext.py", MATH, """\
                # sandcell: the same fallback as for plain text.
                from .font_manager import _SANDCELL_FALLBACK
                for path, _ in _SANDCELL_FALLBACK:
                    font = get_font(path)
                    if font.get_char_index(uniindex) != 0:
                        return font, uniindex, False
""" + MATH),
    ("pandas/core/computation/check.py", "import warnings\n", "import importlib.util\nimport warnings\n"),
    ("pandas/core/computation/check.py", CHECK, LAZY_CHECK),
    ("pandas/core/computation/expressions.py", EXPRESSIONS, LAZY_EXPRESSIONS),
    ("pandas/core/config_init.py", '"use_numexpr", True,', '"use_numexpr", False,'),
    ("plotly/io/_kaleido.py", "def to_image(\n", DRAWN_WITHOUT_A_BROWSER + "def to_image(\n"),
    ("plotly/io/_kaleido.py", NO_KALEIDO + TO_IMAGE, DRAW + TO_IMAGE),
    ("plotly/io/_kaleido.py", NO_KALEIDO + WRITE_IMAGE, WRITE_IMAGE),
    ("plotly/io/_kaleido.py", NO_KALEIDO + WRITE_IMAGES, DRAW_EACH + WRITE_IMAGES),
    ("pip/_internal/cli/main.py", PIP_MAIN, PIP_MAIN_HERE),
    ("plotly_print-*.dist-info/METADATA", REQUIRES, REQUIRES.replace("quickjs", "quickjs-ng").replace("1.19.0", "0.1")),
)

for name, old, new in CHANGES:
    for path in HERE.glob(name):
        text = path.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{path} is not the file this change was written for: fix rootfs/patch.py")
        path.write_text(text.replace(old, new))
        break
    else:
        raise SystemExit(f"{name} is missing: fix rootfs/patch.py")
