"""Results, and how they display themselves in a notebook.

A result comes from code that nobody has vouched for, and a notebook runs whatever HTML, JavaScript or
Markdown it is given, with the reader's rights. So a result offers a notebook only what cannot act: text,
pictures, JSON, and HTML within a frame without scripts, origin or network. :meth:`Result.trusted` lifts
that.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What a notebook shows without running anything of it.
_HARMLESS = ("text/plain", "image/png", "image/jpeg", "image/gif", "image/webp", "application/json")
# A frame with neither scripts nor an origin, in which nothing is fetched (Content Security Policy 3).
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:"
_FRAME = '<iframe sandbox="" srcdoc="{page}" style="width:100%;height:{height}px;border:0"></iframe>'
_PAGE = '<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
# Pixels of a line of a table, and of the tallest frame.
_LINE_PIXELS = 30
_MOST_PIXELS = 600


@dataclass(frozen=True)
class Result:
    """One display: the same thing in one or more MIME types.

    Attributes:
        data: By MIME type, as Jupyter has it: text, base64 for pictures, anything for JSON.
        is_main: Whether it is the value of the last line, else it was displayed.
        kind: ``execute_result``, ``display`` or ``update``.
    """

    data: Mapping[str, Any]
    kind: str = "display"
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    display_id: str | None = None
    is_trusted: bool = field(default=False, repr=False)

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> Result:
        """Reads an event of a stream."""
        return cls(event["data"], event["kind"], event.get("metadata") or {}, event.get("display_id"))

    @property
    def is_main(self) -> bool:
        """Whether it is the value of the last line."""
        return self.kind == "execute_result"

    @property
    def text(self) -> str | None:
        """``text/plain``."""
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        """``text/html``, as the code made it: not to be shown in a page of yours as it is."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """``text/markdown``."""
        return self._text("text/markdown")

    @property
    def latex(self) -> str | None:
        """``text/latex``."""
        return self._text("text/latex")

    @property
    def svg(self) -> str | None:
        """``image/svg+xml``, which may hold scripts."""
        return self._text("image/svg+xml")

    @property
    def json(self) -> Any:
        """``application/json``, decoded."""
        return self.data.get("application/json")

    @property
    def chart(self) -> Any:
        """What a matplotlib figure shows, as data: its type, axes and elements."""
        return self.data.get("application/vnd.e2b.chart.v1+json")

    @property
    def png(self) -> bytes | None:
        """``image/png``."""
        return self._bytes("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """``image/jpeg``."""
        return self._bytes("image/jpeg")

    @property
    def pdf(self) -> bytes | None:
        """``application/pdf``."""
        return self._bytes("application/pdf")

    def formats(self) -> list[str]:
        """The MIME types that there are."""
        return list(self.data)

    def trusted(self) -> Result:
        """The same, displayed with everything in it, scripts included: for code that you trust."""
        return Result(self.data, self.kind, self.metadata, self.display_id, is_trusted=True)

    def _text(self, mime: str) -> str | None:
        value = self.data.get(mime)
        # Some libraries give a list of lines, as notebooks store text.
        return "".join(value) if isinstance(value, list) else value

    def _bytes(self, mime: str) -> bytes | None:
        value = self._text(mime)
        return None if value is None else base64.b64decode(value)

    # -- notebooks (IPython, "Rich display")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], Any]:
        if self.is_trusted:
            return dict(self.data), dict(self.metadata)
        shown = {mime: self.data[mime] for mime in _HARMLESS if mime in self.data}
        framed = self._repr_html_()
        if framed is not None:
            shown["text/html"] = framed
        return shown, {mime: about for mime, about in self.metadata.items() if mime in shown}

    def _repr_html_(self) -> str | None:
        if self.is_trusted:
            return self.html
        if self.html is not None:
            return _framed(self.html)
        if self.svg is not None and not any(mime in self.data for mime in ("image/png", "image/jpeg")):
            # As the source of an image it has no scripts and fetches nothing (SVG 2, "Secure static mode").
            picture = base64.b64encode(self.svg.encode()).decode()
            return f'<img src="data:image/svg+xml;base64,{picture}">'
        return None

    def _repr_png_(self) -> bytes | None:
        return self.png

    def _repr_jpeg_(self) -> bytes | None:
        return self.jpeg

    def _repr_json_(self) -> Any:
        return self.json

    def _repr_svg_(self) -> str | None:
        return self.svg if self.is_trusted else None

    def _repr_markdown_(self) -> str | None:
        return self.markdown if self.is_trusted else None

    def _repr_latex_(self) -> str | None:
        return self.latex if self.is_trusted else None

    def __str__(self) -> str:
        return self.text or f"<{', '.join(self.data)}>"


def _framed(source: str) -> str:
    lines = len(re.findall(r"<tr\b|<br\b|<p\b|<li\b", source, re.IGNORECASE)) + 2
    page = _PAGE.format(policy=_POLICY) + source
    height = min(lines * _LINE_PIXELS, _MOST_PIXELS)
    return _FRAME.format(page=html.escape(page, quote=True), height=height)


def bundles_of(entries: list[dict[str, Any]]) -> list[Result]:
    """Puts together what the entries of an outcome's ``results`` have apart."""
    bundles: dict[int, tuple[str, dict[str, Any]]] = {}
    for entry in entries:
        _, data = bundles.setdefault(entry["bundle"], (entry["kind"], {}))
        data[entry["type"]] = entry["data"]
    return [Result(data, kind) for kind, data in bundles.values()]
