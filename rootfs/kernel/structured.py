"""Charts and tables as data, beside the picture and the HTML of a result: for programs that draw
them anew. An extra that nobody asked for: where it fails or grows too large it is left out, silently.
"""

import datetime
import math
import sys
import warnings

CHART = "application/vnd.e2b.chart.v1+json"
DATA = "application/vnd.e2b.data.v1+json"
OPTIONAL = {CHART, DATA}

# Measured: 3 ms a figure and 8 microseconds a point, where drawing takes 35 to 55 ms.
MAX_POINTS = 2_000
MAX_AXES = 12
MAX_CELLS = 10_000  # a millisecond to extract and, where they are floats, ten to encode
MAX_DEPTH = 20
MAX_BYTES = 1024 * 1024  # of JSON: the supervisor keeps no longer entry
# Integers that every parser takes.
MIN_INTEGER, MAX_INTEGER = -2**63, 2**64 - 1


def of(value):
    """Further entries for the bundle of a value that is displayed."""
    try:
        if _is(value, "matplotlib.figure", "Figure"):
            return _named(CHART, _chart(value))
        if _is(value, "pandas", "DataFrame"):
            return _named(DATA, _columns(value))
    except Exception:
        pass
    return {}


def preload():
    """In the zygote: the first figure of a kernel should not wait for pydantic."""
    try:
        import e2b_charts  # noqa: F401
    except ImportError:
        pass  # a mirror without it has no chart data


def _is(value, module, name):
    # Only what is imported already can have made the value.
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


class Plain(dict):
    """JSON as it should be: the encoder need not try it first, which takes as long as encoding."""


def _named(mime, data):
    return {mime: Plain(data)} if data else {}


# -- charts


def _chart(figure):
    if len(figure.axes) > MAX_AXES or sum(map(_points, figure.axes)) > MAX_POINTS:
        return None
    if any(axes.name == "3d" for axes in figure.axes):
        return None  # its lines hold what they project to
    from e2b_charts import chart_figure_to_chart
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own use of matplotlib
        chart = chart_figure_to_chart(figure)
        # Not its JSON mode: ticks may be NumPy's integers, which that refuses.
        return chart and _Plainer().of(chart.model_dump())


def _points(axes):
    lines = sum(len(line.get_xdata(orig=False)) for line in axes.lines)
    offsets = sum(len(collection.get_offsets()) for collection in axes.collections)
    return lines + offsets + len(axes.patches)


# -- tables


def _columns(frame):
    if frame.size > MAX_CELLS:
        return None
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        return None  # a column would hide another
    plain = _Plainer()
    return {name: _values(frame.iloc[:, place], plain) for place, name in enumerate(names)}


def _values(column, plain):
    values = column.tolist()
    kind = column.dtype.kind if isinstance(column.dtype, sys.modules["numpy"].dtype) else "O"
    if kind in "biu":
        return values
    if kind == "f":
        return [value if math.isfinite(value) else None for value in values]
    return [plain.of(value) for value in values]


class _Plainer:
    """Makes JSON of what cells hold; raises once it gets too much, as a single cell may be."""

    def __init__(self):
        self.left = MAX_BYTES

    def of(self, value, depth=0):
        value = self.scalar(value)
        self.left -= 4 + (len(value) if isinstance(value, str) else 0)
        if self.left < 0 or depth > MAX_DEPTH:
            raise ValueError("too much")
        if isinstance(value, list):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {str(key): self.of(item, depth + 1) for key, item in value.items()}
        return value

    def scalar(self, value):
        """JSON's, or a list or dict as it is."""
        if value is None or isinstance(value, (bool, str, list, dict)):
            return value
        if hasattr(value, "dtype") and hasattr(value, "tolist"):
            value = value.tolist()  # NumPy's, in a column of objects
        if isinstance(value, int):
            return value if MIN_INTEGER <= value <= MAX_INTEGER else str(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if _missing(value):  # NaT is a datetime too
            return None
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, tuple):
            return list(value)
        return value if isinstance(value, (str, list)) else str(value)


def _missing(value):
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NaT or value is pandas.NA)
