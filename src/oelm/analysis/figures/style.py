"""How every figure looks: colours, lines, markers, fonts. No two arms of a comparison look alike."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
from matplotlib import font_manager

from oelm.analysis.compare.arms import Comparison

INK, FAINT, GRID, PAPER = "#1f2328", "#6a737d", "#e3e6ea", "#ffffff"
"""Stand-ins that an HTML page replaces by its own colours, so that figures follow light and dark mode."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7570b3", "#44aa99", "#999933")
LINES: tuple[Any, ...] = ("-", (0, (7, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1)), (0, (7, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = "sD^vhp<>8P"
Look = tuple[str, Any, str]
Looks = dict[str, Look]
BASELINE_LOOK: Look = (INK, "-", "o")
CANDIDATES: tuple[Look, ...] = tuple(
    (PALETTE[i % len(PALETTE)], LINES[(i + i // len(PALETTE)) % len(LINES)], MARKERS[i % len(MARKERS)])
    for i in range(len(PALETTE) * len(MARKERS))
)
"""Neighbours differ in all three; the number of colours and that of markers share no factor, so no pair comes twice."""
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


def looks(comparisons: Sequence[Comparison]) -> Looks:
    """Colour, line and marker by label: no two arms of a comparison alike, an arm the same everywhere if possible."""
    found: Looks = {}
    for comparison in comparisons:
        here = {arm.label for arm in comparison.arms}
        for arm in comparison.arms:
            if arm.is_baseline and not arm.number:
                found[arm.label] = BASELINE_LOOK
            taken = {found[label] for label in here & found.keys()}
            if arm.label in found and list(map(found.get, here)).count(found[arm.label]) == 1:
                continue
            free = [look for look in CANDIDATES if look not in taken] or list(CANDIDATES)
            unused = [look for look in free if look not in found.values()] or free
            colours = {colour for colour, _, _ in taken}
            found[arm.label] = next((look for look in unused if look[0] not in colours), unused[0])
    return found


@cache
def cjk_font() -> str | None:
    known = set(font_manager.get_font_names())
    return next((font for font in CJK_FONTS if font in known), None)
