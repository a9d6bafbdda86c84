"""Sets libraries up right after they were imported, be it in the zygote or by user code."""

import sys
import types


def watch(name, function):
    """Calls `function(module)` once, when the module of that name has been imported."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        _watched[name] = function


class _Finder:
    """First on `sys.meta_path`: leaves the finding to the others and wraps the loader found."""

    def find_spec(self, name, path=None, target=None):
        function = _watched.pop(name, None)
        if function is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, function)
                return spec
        _watched[name] = function  # not there yet
        return None


class _Loader:
    def __init__(self, loader, function):
        self.loader = loader
        self.function = function

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.function(module)


def _let_plotly_display(renderers):
    # plotly shows MIME bundles only where nbformat is installed, which it does not use for it.
    if not renderers.nbformat:
        renderers.nbformat = types.SimpleNamespace(__version__="5.10.4")


def _let_aiohttp_use_the_proxy(client):
    # The one client that does not look at the proxy variables unless it is told to.
    client.ClientSession.__init__.__kwdefaults__["trust_env"] = True


_watched = {
    "aiohttp.client": _let_aiohttp_use_the_proxy,
    "plotly.io._renderers": _let_plotly_display,
}
sys.meta_path.insert(0, _Finder())
