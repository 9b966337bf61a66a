"""What a figure says beside its data: its axes, the goal, the tokens along the top."""

from typing import Any

from matplotlib.axes import Axes

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.statistics import GOAL_PERCENT
from oelm.analysis.figures.style import FAINT, PAPER
from oelm.analysis.report.texts import Texts


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
    value, text = goal_value(comparison), t("goal_line")
    if comparison.metric.gap_in_points:
        text = t("goal_line_points", points=f"{value:.1f}".replace("-", "−"))
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
