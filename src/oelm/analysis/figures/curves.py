"""Lines over steps or time: the mean of an arm, its gap to the baseline, and how they are drawn and named."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from oelm.analysis.compare.arms import Arm, Comparison, Run
from oelm.analysis.figures.marks import dashed_line, goal_value, value_label
from oelm.analysis.figures.style import PAPER, Looks
from oelm.analysis.report.texts import Texts

EARLY = 0.15  # share of the steps whose huge values may leave the frame, so that they do not squash the rest
MOST_LINES = 12  # more than these cannot be told apart


@dataclass(frozen=True)
class Line:
    """Mean over seeds and their range, at the steps that all runs of an arm share."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def data(self) -> list[list[float]]:
        return [values.tolist() for values in (self.x, self.mean, self.low, self.high)]


def shown(comparison: Comparison) -> list[Arm]:
    """All arms where there is room for them; else the plain baselines and the best of the others."""
    if len(comparison.arms) <= MOST_LINES:
        return comparison.arms
    ranked = sorted(comparison.arms, key=lambda arm: (not arm.is_baseline, comparison.metric.sign * arm.score))
    chosen = {id(arm) for arm in ranked[:MOST_LINES]}
    return [arm for arm in comparison.arms if id(arm) in chosen]


def mean_line(arm: Arm, key: str) -> Line | None:
    runs = [run for run in arm.runs if run.curve(key)]
    steps = _shared_steps(runs, key)
    return _line(steps, np.array([[run.curve(key)[step] for step in steps] for run in runs]) * arm.metric.scale)


def gap_line(arm: Arm) -> Line | None:
    """The gap to the plain baseline at every shared step, paired by seed."""
    plain = arm.plain_baseline
    key, base = arm.metric.key, {run.seed: run for run in (plain.runs if plain else [])}
    pairs = [(run, base[run.seed]) for run in arm.runs if run.seed in base]
    pairs = [pair for pair in pairs if all(run.curve(key) for run in pair)]
    steps = _shared_steps([run for pair in pairs for run in pair], key)
    own, other = (np.array([[pair[i].curve(key)[s] for s in steps] for pair in pairs]) for i in (0, 1))
    return _line(steps, (own - other) * arm.metric.scale if arm.metric.gap_in_points else 100 * (own / other - 1))


def _shared_steps(runs: Sequence[Run], key: str) -> list[int]:
    return sorted(set.intersection(*(set(run.curve(key)) for run in runs))) if runs else []


def _line(steps: list[int], values: np.ndarray) -> Line | None:  # (runs, steps)
    return Line(np.array(steps), values.mean(axis=0), values.min(axis=0), values.max(axis=0)) if steps else None


def draw_lines(axes: Axes, lines: list[tuple[Arm, Line]], looks: Looks) -> None:
    for arm, line in lines:
        colour, dashes, marker = looks[arm.label]
        marks = {"marker": marker, "markevery": max(1, len(line.x) // 10), "markeredgecolor": PAPER}
        axes.plot(line.x, line.mean, color=colour, linestyle=dashes, **marks)
        if len(arm.runs) > 1:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)


def late_range(lines: list[tuple[Arm, Line]]) -> tuple[float, float]:
    """Lowest and highest value after the first steps."""
    late = [values[line.x >= EARLY * line.x[-1]] for _, line in lines for values in (line.low, line.high)]
    return min(map(np.min, late)), max(map(np.max, late))


def frame_values(axes: Axes, comparison: Comparison, lines: list[tuple[Arm, Line]], t: Texts) -> None:
    """Limits that show the end of training; a log scale where the values still span a lot."""
    low, high = late_range(lines)
    if comparison.true_entropy is not None:
        floor = math.exp(comparison.true_entropy)
        low = min(low, floor)
        dashed_line(axes, floor, t("floor", value=comparison.metric.show(floor)))
    if low > 0 and high / low > 2.5 and not comparison.metric.higher_is_better:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high / low < 30 else (1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(low / (high / low) ** 0.06, high * (high / low) ** 0.03)
    else:
        pad = (high - low) or abs(high) * 0.1 or 1
        axes.set_ylim(low - 0.08 * pad, high + 0.06 * pad)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(value_label(comparison, t))


def frame_gaps(axes: Axes, lines: list[tuple[Arm, Line]], comparison: Comparison) -> None:
    seen = [0.0, goal_value(comparison), *late_range(lines)]
    low, high = min(seen), max(seen)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.08 * (high - low))


def label_ends(axes: Axes, lines: list[tuple[Arm, Line]], looks: Looks, say: Callable[[Arm, float], str]) -> None:
    """Names at the ends of the lines instead of a legend, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    scale = math.log if axes.get_yscale() == "log" else float
    height = axes.get_position().height * axes.figure.get_size_inches()[1] * 72 * 0.85  # type: ignore[union-attr]
    places = [(scale(line.mean[-1]) - scale(low)) / (scale(high) - scale(low)) for _, line in lines]
    spots = _apart(places, 12.5 / height)
    for (arm, line), spot in zip(lines, spots, strict=True):
        colour, _, marker = looks[arm.label]
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3, "alpha": 0.7}
        axes.annotate("", (line.x[-1], line.mean[-1]), (1.035, spot), textcoords="axes fraction", arrowprops=leader)
        axes.plot(1.045, spot, marker=marker, color=colour, transform=axes.transAxes, clip_on=False)
        axes.text(1.065, spot, say(arm, line.mean[-1]), transform=axes.transAxes, va="center", fontsize=9)


def _apart(places: list[float], distance: float) -> list[float]:
    """The same order, at least `distance` from each other, as near as possible to where they were."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = np.array([places[i] for i in order])
    for _ in range(200):
        for i in range(len(moved) - 1):
            short = distance - (moved[i + 1] - moved[i])
            if short > 1e-9:
                moved[i], moved[i + 1] = moved[i] - short / 2, moved[i + 1] + short / 2
        if distance * len(moved) < 1:
            moved = np.clip(moved, 0.0, 1.0)
    return [float(moved[order.index(i)]) for i in range(len(places))]
