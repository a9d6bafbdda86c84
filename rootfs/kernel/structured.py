"""Charts and tables as data, beside the picture and the HTML of a result: for programs that draw
them anew. An extra that nobody asked for: where it fails or grows too large it is left out, silently.
"""

import datetime
import json
import math
import sys
import warnings

CHART = "application/vnd.e2b.chart.v1+json"
DATA = "application/vnd.e2b.data.v1+json"
OPTIONAL = {CHART, DATA}

# Measured: 3 ms a figure and 8 microseconds a point, where drawing takes 35 to 55 ms.
MAX_POINTS = 2_000
MAX_AXES = 12
MAX_CELLS = 10_000  # some milliseconds, about as long as their HTML
MAX_BYTES = 1024 * 1024  # of JSON: the supervisor keeps no longer entry


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


def _named(mime, data):
    return {mime: data} if data and len(json.dumps(data)) <= MAX_BYTES else {}


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
        return chart and _cell(chart.model_dump())


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
    return {name: _values(frame.iloc[:, place]) for place, name in enumerate(names)}


def _values(column):
    values = column.tolist()
    kind = column.dtype.kind if isinstance(column.dtype, sys.modules["numpy"].dtype) else "O"
    if kind in "biu":
        return values
    if kind == "f":
        return [value if math.isfinite(value) else None for value in values]
    return [_cell(value) for value in values]


def _cell(value):
    if value is None or isinstance(value, (bool, str)):
        return value
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        value = value.tolist()  # NumPy's, in a column of objects
    if isinstance(value, int):
        return value  # execution.py knows which are too large for JSON
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if _missing(value):  # NaT is a datetime too
        return None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_cell(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _cell(item) for key, item in value.items()}
    return str(value)


def _missing(value):
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NaT or value is pandas.NA)
