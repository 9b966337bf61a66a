"""What figures are put together from: axes, the goal, the tokens along the top; and a forest plot.

A forest plot has one row per arm with its estimate, its interval and the numbers at the right.
"""

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.statistics import GOAL_PERCENT, Interval
from oelm.analysis.figures.style import FAINT, INK, PAPER, Looks
from oelm.analysis.report.texts import Texts

ROW = 0.34  # inches of a forest plot


def value_label(comparison: Comparison, t: Texts) -> str:
    unit = f",{comparison.metric.suffix}" if comparison.metric.suffix else ""
    return t("axis_value", metric=t(f"metric_{comparison.metric.name}"), unit=unit)


def gap_label(comparison: Comparison, t: Texts) -> str:
    return t("axis_gap_points" if comparison.metric.gap_in_points else "axis_gap")


def goal_value(comparison: Comparison) -> float:
    """Where the 5 % goal lies on the gap axis; for gaps in points, 5 % of the baseline's own score."""
    if not comparison.metric.gap_in_points:
        return GOAL_PERCENT
    base = [arm.score for arm in comparison.arms if arm.is_baseline]
    base += [arm.plain_baseline.score for arm in comparison.arms if arm.plain_baseline]
    return -GOAL_PERCENT / 100 * (base[0] if base else 1.0) * comparison.metric.scale


def goal_level(comparison: Comparison) -> float | None:
    """The score that is just within the goal, as shown; None without a baseline."""
    metric, base = comparison.metric, [arm.score for arm in comparison.arms if arm.is_baseline]
    return base[0] * (1 + metric.sign * GOAL_PERCENT / 100) * metric.scale if base else None


def goal_line(axes: Axes, comparison: Comparison, t: Texts, vertical: bool = False) -> None:
    value, points = goal_value(comparison), comparison.metric.gap_in_points
    text = t("goal_line_points", points=f"{value:.1f}".replace("-", "−")) if points else t("goal_line")
    dashed_line(axes, value, text, vertical)


def dashed_line(axes: Axes, value: float, text: str, vertical: bool = False) -> None:
    """With a text at its beginning, if there is one."""
    (axes.axvline if vertical else axes.axhline)(value, color=FAINT, linewidth=1.2, linestyle=(0, (5, 3)))
    if not text:
        return
    spot, where = ((value, 1.0), ("data", "axes fraction")) if vertical else ((0.01, value), ("axes fraction", "data"))
    place: dict[str, Any] = {"xycoords": where, "ha": "center" if vertical else "left", "va": "bottom"}
    paper = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    axes.annotate(text, spot, (0, 3), textcoords="offset points", color=FAINT, fontsize=9, bbox=paper, **place)


def token_axis(axes: Axes, comparison: Comparison, t: Texts) -> None:
    """The same axis in tokens, along the top, if a step is the same number of tokens in every run."""
    results = [run.result or {} for run in comparison.runs]
    sizes = {found["tokens"] / found["steps"] for found in results if found.get("tokens") and found.get("steps")}
    if len(sizes) != 1:
        return
    unit, size = ("millions", 1e6) if axes.get_xlim()[1] * min(sizes) >= 1e6 else ("thousands", 1e3)
    factor = min(sizes) / size
    second = axes.secondary_xaxis("top", functions=(lambda x: x * factor, lambda x: x / factor))
    second.set_xlabel(t(f"axis_tokens_{unit}"), fontsize=9)
    second.tick_params(labelsize=9)


@dataclass(frozen=True)
class Entry:
    """One row of a figure with intervals."""

    label: str
    value: float
    interval: Interval | None
    dots: list[float]
    text: str
    predicted: float | None = None
    hollow: bool = False

    @property
    def data(self) -> list[object]:
        ends = [self.interval.low, self.interval.high] if self.interval else []
        return [self.label, self.value, ends, self.dots, self.predicted, self.hollow]


def forest(axes: Axes, entries: list[Entry], marks: list[float], looks: Looks) -> None:
    """One row per arm: estimate, interval, seeds, and the numbers at the right."""
    low, high = _limits(entries, marks)
    for y, entry in enumerate(entries):
        colour, _, marker = looks[entry.label]
        if entry.interval:
            _whisker(axes, y, entry.interval, (low, high), colour)
        if len(entry.dots) > 1:
            axes.plot(entry.dots, [y - 0.24] * len(entry.dots), "o", color=colour, markersize=2.8, alpha=0.7)
        face, edge = (PAPER, colour) if entry.hollow else (colour, PAPER)
        axes.plot(entry.value, y, marker, color=colour, markersize=7, markerfacecolor=face, markeredgecolor=edge)
        if entry.predicted:
            axes.plot(entry.predicted, y, "x", color=INK, markersize=6, markeredgewidth=1.2, zorder=5)
        axes.text(1.02, y, entry.text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_yticks(range(len(entries)), [entry.label for entry in entries])
    axes.set_ylim(len(entries) - 0.45, -0.6)
    axes.set_xlim(low, high)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))


def _limits(entries: list[Entry], marks: list[float]) -> tuple[float, float]:
    """All estimates, and intervals as far as they do not squash them: those of two seeds can be huge."""
    inner = [*marks, *(v for e in entries for v in (e.value, *e.dots, *([e.predicted] if e.predicted else [])))]
    outer = [v for e in entries if e.interval for v in (e.interval.low, e.interval.high)]
    low, high = min(inner), max(inner)
    room = 0.6 * (high - low) or 0.1
    low, high = max(min([low, *outer]), low - room), min(max([high, *outer]), high + room)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _whisker(axes: Axes, y: float, interval: Interval, limits: tuple[float, float], colour: str) -> None:
    """An interval; where it leaves the frame, an arrow says that it goes on."""
    ends = [max(interval.low, limits[0]), min(interval.high, limits[1])]
    axes.plot(ends, [y, y], color=colour, linewidth=1.4, solid_capstyle="butt")
    for end, true_end, arrow in zip(ends, (interval.low, interval.high), "<>", strict=True):
        inside = end == true_end
        axes.plot(end, y, "|" if inside else arrow, color=colour, markersize=8 if inside else 6, clip_on=False)
