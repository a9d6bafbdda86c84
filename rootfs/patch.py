"""Teaches the mirror's matplotlib to fall back per glyph whatever font a plot asks for.

matplotlib falls back along a list of *families*, but a generic family ("sans-serif") counts as one
and resolves to a single font. seaborn and most styles set a generic family, so a matplotlibrc alone
would lose every Chinese title as soon as seaborn.set_theme() is called.
"""

from pathlib import Path

import matplotlib

HERE = Path(matplotlib.__file__).parent

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

# File, text in it, text before which (True) or after which (False) the addition goes, addition.
ADDITIONS = (
    ("font_manager.py", GET_FONT, True, FALLBACK),
    ("font_manager.py", LIST, False, """\
            # sandcell: glyphs that no requested font has come from these.
            paths += tuple(entry for entry in _SANDCELL_FALLBACK if entry not in paths)
"""),
    # A label with a formula in it is laid out by mathtext, which knows one text font only.
    ("_mathtext.py", MATH, True, """\
                # sandcell: the same fallback as for plain text.
                from .font_manager import _SANDCELL_FALLBACK
                for path, _ in _SANDCELL_FALLBACK:
                    font = get_font(path)
                    if font.get_char_index(uniindex) != 0:
                        return font, uniindex, False
"""),
)

for name, anchor, before, addition in ADDITIONS:
    path = HERE / name
    text = path.read_text()
    if text.count(anchor) != 1:
        raise SystemExit(f"{path} is not the file this patch was written for: mend rootfs/patch.py")
    path.write_text(text.replace(anchor, addition + anchor if before else anchor + addition))
