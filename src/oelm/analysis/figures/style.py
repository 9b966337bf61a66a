"""How every figure looks: colours, lines, markers, fonts. Colour, line and marker belong to a method."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.colors import to_hex, to_rgb

from oelm.analysis.compare.arms import Arm
from oelm.freezing.methods import METHODS

INK, FAINT, GRID, PAPER = "#1f2328", "#6a737d", "#e3e6ea", "#ffffff"
"""Stand-ins that an HTML page replaces by its own colours, so that figures follow light and dark mode."""
PALETTE = (INK, "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7570b3", "#44aa99", "#999933")
LINES: tuple[Any, ...] = ("-", (0, (7, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1)), (0, (7, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = "osD^vhp<>8"
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "PingFang SC", "Hiragino Sans GB",
    "Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Heiti SC", "Arial Unicode MS",
)  # fmt: skip
FONT_STACK = ", ".join(f"'{font}'" for font in ("DejaVu Sans", "Segoe UI", "Helvetica Neue", "Arial", *CJK_FONTS))
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "savefig.dpi": 200,
}


@contextmanager
def page_style(salt: str = "page") -> Iterator[None]:
    font: dict[Any, Any] = {"font.family": ["DejaVu Sans", cjk_font()]} if cjk_font() else {}
    with warnings.catch_warnings(), matplotlib.rc_context({**STYLE, **font, "svg.hashsalt": salt}):
        # Missing glyphs are the browser's business in SVG; where they are not, print_language() has chosen English.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def look(arm: Arm) -> tuple[str, Any, str]:
    """Colour, line and marker by method; a second arm of the same method is paler and has the next line."""
    names = list(METHODS)
    i = names.index(arm.method) if arm.method in names else len(names) + sum(arm.method.encode()) % len(PALETTE)
    colour = PALETTE[i % len(PALETTE)]
    if arm.number:
        share = 0.6 ** min(arm.number, 2)
        colour = to_hex(tuple(share * part + (1 - share) * 0.7 for part in to_rgb(colour)))  # type: ignore[arg-type]
    return colour, LINES[(i + arm.number) % len(LINES)], MARKERS[(i + arm.number) % len(MARKERS)]


@cache
def cjk_font() -> str | None:
    known = set(font_manager.get_font_names())
    return next((font for font in CJK_FONTS if font in known), None)
