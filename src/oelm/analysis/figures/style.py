"""How every figure looks: colours, lines, markers, fonts. No two arms of a comparison look alike."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure

from oelm.analysis.compare.arms import Comparison

STYLE = matplotlib.rc_params_from_file(str(resources.files(__package__) / "page.mplstyle"), use_default_template=False)
INK, FAINT, GRID, PAPER = (STYLE[key] for key in ("text.color", "axes.edgecolor", "grid.color", "figure.facecolor"))
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


@contextmanager
def page_style(salt: str = "page") -> Iterator[None]:
    font: dict[Any, Any] = {"font.family": ["DejaVu Sans", cjk_font()]} if cjk_font() else {}
    with warnings.catch_warnings(), matplotlib.rc_context({**STYLE, **font, "svg.hashsalt": salt}):
        # Missing glyphs are the browser's business in SVG; where they are not, print_language() has chosen English.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def saved(figure: Figure, suffix: str, identifier: str | None = None, dpi: float | None = None) -> bytes:
    """The content of a file, without what would be different tomorrow."""
    out, changing = io.BytesIO(), ("Creator", "Date", "Format", "Type") if suffix == "svg" else ("Software",)
    figure.savefig(out, format=suffix, dpi=dpi, metadata={**dict.fromkeys(changing), "Identifier": identifier})
    return out.getvalue()


def looks(comparisons: Sequence[Comparison]) -> Looks:
    """Colour, line and marker by label: no two arms of a comparison alike, an arm the same everywhere if possible."""
    found: Looks = {}
    for comparison in comparisons:
        here = {arm.label for arm in comparison.arms}
        plain = next((arm.label for arm in comparison.arms if arm.is_baseline), None)
        for arm in comparison.arms:
            if arm.label == plain:
                found[arm.label] = BASELINE_LOOK
            taken = {found[label] for label in here & found.keys()}
            if arm.label in found and list(map(found.get, here)).count(found[arm.label]) == 1:
                continue
            used, colours = set(found.values()), {colour for colour, _, _ in taken}
            found[arm.label] = min(CANDIDATES, key=lambda look: (look in taken, look in used, look[0] in colours))
    return found


@cache
def cjk_font() -> str | None:
    known = set(font_manager.get_font_names())
    return next((font for font in CJK_FONTS if font in known), None)
