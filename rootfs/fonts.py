"""Builds matplotlib's font list once, for every sandbox, and proves that CJK text renders."""

import dataclasses
import os
import subprocess
import sys
import warnings
from pathlib import Path

HOME = Path("/opt/sandcell/matplotlib")
os.environ.setdefault("MPLCONFIGDIR", "/tmp/matplotlib")
os.environ["MATPLOTLIBRC"] = str(HOME / "matplotlibrc")

import matplotlib  # noqa: E402
from matplotlib import font_manager  # noqa: E402

# Code names the fonts of its author's desktop. Each name is served by what is here, so that it
# neither warns nor falls back to a font without the glyphs.
ALIASES = {
    "WenQuanYi Micro Hei": (
        "SimHei", "SimSun", "NSimSun", "KaiTi", "FangSong", "Microsoft YaHei", "Microsoft JhengHei",
        "PingFang SC", "PingFang TC", "PingFang HK", "Heiti SC", "Heiti TC", "STHeiti", "STSong",
        "STKaiti", "Songti SC", "Hiragino Sans GB", "Arial Unicode MS", "WenQuanYi Zen Hei",
        "Droid Sans Fallback", "Noto Sans CJK SC", "Noto Sans CJK TC", "Noto Sans CJK JP",
        "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans TC", "Noto Sans JP", "Noto Sans KR",
        "Noto Serif CJK SC", "Source Han Sans SC", "Source Han Sans CN", "Source Han Serif SC",
        "MS Gothic", "MS Mincho", "Meiryo", "Yu Gothic", "Hiragino Sans", "IPAexGothic",
        "IPAGothic", "TakaoGothic", "Malgun Gothic", "NanumGothic", "AppleGothic", "Gulim",
    ),
    "Symbola": ("Segoe UI Emoji", "Segoe UI Symbol", "Apple Color Emoji", "Noto Emoji",
                "Noto Color Emoji"),
    "Liberation Sans": ("Arial", "Helvetica", "Helvetica Neue", "Nimbus Sans"),
    "Liberation Serif": ("Times New Roman", "Times", "Nimbus Roman"),
    "Liberation Mono": ("Courier New", "Courier", "Consolas", "Menlo", "Monaco"),
}


def build() -> None:
    manager = font_manager.FontManager()
    present = {entry.name for entry in manager.ttflist}
    for family, names in ALIASES.items():
        entries = [entry for entry in manager.ttflist if entry.name == family]
        if not entries:
            sys.exit(f"the font {family} is missing")
        for name in names:
            if name in present:
                continue
            for entry in entries:
                manager.ttflist.append(dataclasses.replace(entry, name=name))
    manager.ttflist.sort(key=lambda e: (str(e.fname), e.index, e.name, e.style, str(e.weight)))
    manager.afmlist.sort(key=lambda e: (str(e.fname), e.name, e.style, str(e.weight)))
    font_manager.json_dump(manager, HOME / f"fontlist-v{manager.__version__}.json")


def prove() -> None:
    """Every glyph must be found, in plain matplotlib, in themes and with borrowed names."""
    matplotlib.use("agg")
    import logging

    import matplotlib.pyplot as plt
    import seaborn

    class Refuse(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise AssertionError(record.getMessage())

    logging.getLogger("matplotlib").addHandler(Refuse(logging.WARNING))
    warnings.simplefilter("error")
    for setup in (
        lambda: None,
        seaborn.set_theme,
        lambda: plt.rcParams.update({"font.sans-serif": ["SimHei"]}),
        lambda: plt.rcParams.update({"font.sans-serif": ["SimHei"], "font.family": "sans-serif"}),
        lambda: plt.rcParams.update({"font.family": "Times New Roman"}),
        lambda: plt.style.use("seaborn-v0_8"),
    ):
        plt.rcdefaults()
        matplotlib.rc_file(HOME / "matplotlibrc")
        setup()
        _, axes = plt.subplots()
        axes.plot([-1, 2])
        axes.set_title("中文标题 plot 日本語カナ 한국어 😀🚀 − ✓ é")
        axes.set_xlabel("销售额（千元） $x^2$")
        plt.savefig("/tmp/proof.png")
        plt.close("all")


if sys.argv[1:] == ["prove"]:
    prove()
else:
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "matplotlibrc").write_bytes(Path("/tmp/recipe/matplotlibrc").read_bytes())
    build()
    # A sandbox has the list linked into its own cache directory; so has the proof.
    cache = Path("/tmp/proof")
    cache.mkdir()
    for built in HOME.glob("fontlist-*.json"):
        (cache / built.name).symlink_to(built)
    environment = {**os.environ, "MPLCONFIGDIR": str(cache)}
    subprocess.run([sys.executable, "-B", __file__, "prove"], env=environment, check=True)
