"""A forest plot: one row per arm with its estimate, its interval and the numbers at the right."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from oelm.analysis.compare.statistics import Interval
from oelm.analysis.figures.style import INK, PAPER, Looks

ROW = 0.34  # inches


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
