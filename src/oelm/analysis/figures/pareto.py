"""What an arm reaches against what it costs: step time at the left, parameters that train at the right.

An arm on the line has no rival that is both cheaper and better. Of many arms only these and the baseline are named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Bbox

from oelm.analysis.compare.arms import Arm, Comparison
from oelm.analysis.figures.marks import dashed_line, goal_level, value_label
from oelm.analysis.figures.style import FAINT, PAPER, Looks
from oelm.analysis.report.texts import Texts

SPOTS = [(dx, dy) for far in (7, 40, 80, 130) for dy in (5, -14, 18, -27, 31, -40, 48, -57, 70) for dx in (far, -far)]
"""Where a name may stand, in points from its marker: the first two beside it; from the others a line leads to it."""
MOST_NAMED = 8
FEWEST = 4  # fewer arms are told better by the tables


@dataclass(frozen=True)
class Point:
    arm: Arm
    cost: float
    score: float  # as shown, e.g. accuracy in percent
    low: float | None = None
    high: float | None = None  # the interval of the cost


def frontier(points: Sequence[Point], higher_is_better: bool) -> list[Point]:
    """The points that no other beats or equals in both cost and score, cheapest first."""
    sign = -1 if higher_is_better else 1
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, sign * p.score)):
        if not best or sign * point.score < sign * best[-1].score:
            best.append(point)
    return best


def costs(comparison: Comparison) -> dict[str, list[Point]]:
    """The points of every panel there is data for: only step times measured side by side, only costs that differ."""
    timed, sized = [], []
    for record in comparison.records:
        if not record.comparable:
            continue
        score, time = record.score * comparison.metric.scale, record.time
        if time and time.interleaved:
            timed.append(Point(record.arm, time.ratio, score, time.low, time.high))
        if record.costs.trainable:
            sized.append(Point(record.arm, record.costs.trainable, score))
    panels = {"step_time": timed, "trainable": sized}
    return {name: p for name, p in panels.items() if len(p) >= FEWEST and len({point.cost for point in p}) > 1}


def draw(comparison: Comparison, panels: dict[str, list[Point]], looks: Looks, t: Texts) -> Figure:
    figure = Figure(figsize=(max(7.4, 4.6 * len(panels) + 1.0), 4.6), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, points) in zip(grid, panels.items(), strict=True):
        _panel(axes, comparison, points, looks)
        axes.set_xlabel(t(f"axis_{name}"))
    if "trainable" in panels:
        grid[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1e6:g}"))
    grid[0].set_ylabel(value_label(comparison, t))
    if (level := goal_level(comparison)) is not None:
        for axes in grid:
            dashed_line(axes, level, t("goal_line") if axes is grid[0] else "")
    return figure


def _panel(axes: Axes, comparison: Comparison, points: list[Point], looks: Looks) -> None:
    best = frontier(points, comparison.metric.higher_is_better)
    named = [p for p in points if len(points) <= MOST_NAMED or p in best or p.arm.is_baseline]
    for point in points:
        colour, _, marker = looks[point.arm.label]
        if point.low is not None and point.high is not None:
            axes.plot([point.low, point.high], [point.score] * 2, color=colour, linewidth=1, alpha=0.5)
        size = 8 if point in named else 5
        axes.plot(point.cost, point.score, marker, color=colour, markersize=size, markeredgecolor=PAPER, zorder=3)
    axes.step([p.cost for p in best], [p.score for p in best], where="post", color=FAINT, linewidth=1, zorder=1)
    axes.margins(0.1, 0.2)  # room for names
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    _name(axes, named, points)


def _name(axes: Axes, named: list[Point], points: list[Point]) -> None:
    """Labels beside their points, each at the first spot that neither a marker nor an earlier label takes."""
    axes.autoscale_view()
    place = axes.transData.transform
    inch = axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]
    corners = [place((point.cost, point.score)) - 4 * inch for point in points]
    taken = [Bbox.from_bounds(x, y, 8 * inch, 8 * inch) for x, y in corners]
    for point in named:
        x, y = place((point.cost, point.score))
        width, height = 5.4 * len(point.arm.label) * inch, 10 * inch
        for dx, dy in SPOTS:
            left = x + dx * inch - (width if dx < 0 else 0)
            box = Bbox.from_bounds(left, y + dy * inch, width, height)
            inside = all(axes.bbox.contains(x, y) for x, y in (box.p0, box.p1))
            if inside and not box.count_overlaps(taken):
                break
        taken.append(box)
        corner = (1.0 if dx < 0 else 0.0, 0.0 if dy > 0 else 1.0)  # of the label, nearest to the marker
        line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3, "relpos": corner}
        how: dict[str, Any] = {"ha": "right" if dx < 0 else "left", "textcoords": "offset points", "fontsize": 8.5}
        how["arrowprops"] = None if (dx, dy) in SPOTS[:2] else line
        axes.annotate(point.arm.label, (point.cost, point.score), (dx, dy), **how)
