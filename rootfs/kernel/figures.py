"""The matplotlib backend of a kernel: Agg, whose figures become results.

What a figure's life looks like to the code that draws it:

- Every figure that is open when an execution ends is shown once, and so is every open one at
  `plt.show()`. A shown figure is no longer pyplot's current one: plotting in a later execution
  starts a new figure, as in a notebook.
- The last figure shown stays in reach: while no figure is open, `plt.savefig()`, and `plt.gcf()`
  called by the user's own code, mean that one. A notebook would save an empty canvas.
"""

import sys

from IPython import get_ipython
from IPython.core.pylabtools import select_figure_formats
from IPython.display import display

BACKEND = "module://_sandcell.figures"

# Names by which code asks for "no window, please": that is what this backend is.
_SAME = {"agg", "inline", "module://matplotlib_inline.backend_inline", BACKEND.lower()}

# Of matplotlib, set by install(): it may be imported late, or never.
pyplot = Gcf = Figure = FigureCanvas = None
_switch_backend = _savefig = _gcf = None

_last_shown = None
_displayed = set()


def install(imported_pyplot):
    """Makes pyplot draw here. For imports.watch()."""
    global pyplot, Gcf, Figure, FigureCanvas, _switch_backend, _savefig, _gcf
    from matplotlib._pylab_helpers import Gcf
    from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas
    from matplotlib.figure import Figure
    from matplotlib_inline.config import InlineBackend
    pyplot = imported_pyplot
    _switch_backend, _savefig, _gcf = pyplot.switch_backend, pyplot.savefig, pyplot.gcf
    for function in (switch_backend, savefig, gcf):
        function.__doc__ = getattr(pyplot, function.__name__).__doc__
        setattr(pyplot, function.__name__, function)
    pyplot.switch_backend(BACKEND)
    # `%config InlineBackend.figure_format = "svg"` and set_matplotlib_formats() work as in notebooks.
    shell = get_ipython()
    settings = InlineBackend.instance(parent=shell)
    settings.shell = shell
    shell.configurables.append(settings)
    select_figure_formats(shell, settings.figure_formats, **settings.print_figure_kwargs)


def show(*args, **kwargs):
    """Shows all open figures; `pyplot.show()` calls it."""
    global _last_shown
    if pyplot is None:
        return
    managers = Gcf.get_all_fig_managers()
    displayed = set(_displayed)
    # Detached first: a figure that cannot be drawn must not come again at the end.
    Gcf.figs.clear()
    _displayed.clear()
    for manager in managers:
        figure = manager.canvas.figure
        if not (figure.axes or figure.lines or figure.texts or figure.images or figure.patches):
            continue
        _last_shown = figure
        if id(figure) not in displayed:
            display(figure)


def are_open():
    """Whether show() has anything to do."""
    return pyplot is not None and bool(Gcf.figs)


def note_displayed(value):
    """The value of a last expression, or of `display()`, need not be shown again at the end."""
    global _last_shown
    if pyplot is not None and isinstance(value, Figure):
        _last_shown = value
        _displayed.add(id(value))


def forget():
    """After the zygote's rehearsal."""
    global _last_shown
    _last_shown = None
    _displayed.clear()
    if pyplot is not None:
        Gcf.figs.clear()
        # matplotlib empties this cache in a forked child, which dirties half a megabyte there.
        from matplotlib import font_manager
        font_manager._get_font.cache_clear()


def switch_backend(newbackend):
    if isinstance(newbackend, str) and newbackend.lower() in _SAME:
        newbackend = BACKEND
    _switch_backend(newbackend)


def savefig(*args, **kwargs):
    if not Gcf.figs and _last_shown is not None:
        return _last_shown.savefig(*args, **kwargs)
    return _savefig(*args, **kwargs)


def gcf():
    # pyplot's own functions and libraries such as seaborn look for a figure to draw on; only code of
    # an execution that asks for "the current figure" means the one it has just seen.
    if not Gcf.figs and _last_shown is not None:
        shell = get_ipython()
        if shell is not None and sys._getframe(1).f_globals is shell.user_ns:
            return _last_shown
    return _gcf()
