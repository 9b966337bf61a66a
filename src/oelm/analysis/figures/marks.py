"""What a figure says beside its data: its title, the goal, the floor, the tokens along the top."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.statistics import GOAL_PERCENT
from oelm.analysis.figures.style import FAINT, PAPER
from oelm.analysis.report.texts import Texts


def set_title(figure: Figure, title: str, t: Texts) -> None:
    figure.suptitle("\n".join(t.wrap(title, 74)), x=0.01, ha="left", fontsize=11, fontweight="bold")


def goal_value(comparison: Comparison) -> float:
    """Where the 5 % goal lies on the gap axis; for gaps in points, 5 % of the baseline's own score."""
    if not comparison.metric.gap_in_points:
        return GOAL_PERCENT
    base = [arm.scores.values() for arm in comparison.arms if arm.is_baseline]
    base += [arm.plain_baseline.scores.values() for arm in comparison.arms if arm.plain_baseline]
    mean = float(np.mean(list(base[0]))) if base else 1.0
    return -GOAL_PERCENT / 100 * mean * comparison.metric.scale


def goal_level(comparison: Comparison) -> float | None:
    """The score that is just within the goal, as shown; None without a baseline."""
    base = [float(np.mean(list(arm.scores.values()))) for arm in comparison.arms if arm.is_baseline]
    if not base:
        return None
    worse = -GOAL_PERCENT if comparison.metric.higher_is_better else GOAL_PERCENT
    return base[0] * (1 + worse / 100) * comparison.metric.scale


def goal_line(axes: Axes, comparison: Comparison, t: Texts, vertical: bool = False) -> None:
    value = goal_value(comparison)
    text = t("goal_line")
    if comparison.metric.gap_in_points:
        text = t("goal_line_points", points=f"{value:.1f}".replace("-", "−"))
    (axes.axvline if vertical else axes.axhline)(value, color=FAINT, linewidth=1.2, linestyle=(0, (5, 3)))
    if vertical:
        tag(axes, text, (value, 1.0), ("data", "axes fraction"), (0, 3), "center")
    else:
        tag(axes, text, (0.01, value), ("axes fraction", "data"), (0, 3))


def tag(
    axes: Axes, text: str, spot: tuple[float, float], where: Any, shift: tuple[int, int], side: str = "left"
) -> None:
    paper = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    axes.annotate(
        text,
        spot,
        shift,
        xycoords=where,
        textcoords="offset points",
        color=FAINT,
        fontsize=9,
        ha=side,
        va="bottom",
        bbox=paper,
    )


def token_axis(axes: Axes, comparison: Comparison, t: Texts) -> None:
    """The same axis in tokens, along the top, if a step is the same number of tokens in every run."""
    results = [
        run.result for run in comparison.runs if run.result and run.result.get("tokens") and run.result.get("steps")
    ]
    sizes = {result["tokens"] / result["steps"] for result in results}
    if len(sizes) != 1:
        return
    unit, size = ("millions", 1e6) if axes.get_xlim()[1] * min(sizes) >= 1e6 else ("thousands", 1e3)
    factor = min(sizes) / size
    second = axes.secondary_xaxis("top", functions=(lambda x: x * factor, lambda x: x / factor))
    second.set_xlabel(t(f"axis_tokens_{unit}"), fontsize=9)
    second.tick_params(labelsize=9)
