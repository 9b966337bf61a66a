"""The figures: `pictures(loaded, lang)`. Colour, line and marker belong to a method, so it looks the same everywhere.

Text stays text in SVG, so that a browser renders Chinese even where matplotlib has no font for it. PNG and PDF need a
font on this machine; without one they are drawn in English.
"""

import io
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from oelm.analysis.results import Arm, Loaded, Run, Study
from oelm.analysis.statistics import GOAL_PERCENT
from oelm.analysis.tables import Record, gap_of, summary_table
from oelm.analysis.texts import Texts, texts
from oelm.methods import METHODS

INK, FAINT, GRID, PAPER = "#1f2328", "#6a737d", "#e3e6ea", "#ffffff"
"""Stand-ins that an HTML page replaces by its own colours, so that figures follow light and dark mode."""
PALETTE = (INK, "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7570b3", "#44aa99", "#999933")
LINES: tuple[Any, ...] = ("-", (0, (7, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (2, 1)), (0, (7, 1.5, 1, 1.5, 1, 1.5)))
MARKERS = "osD^vPhp<>"
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "PingFang SC", "Hiragino Sans GB",
    "Microsoft YaHei", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Heiti SC", "Arial Unicode MS",
)  # fmt: skip
FONT_STACK = ", ".join(f"'{font}'" for font in ("DejaVu Sans", "Segoe UI", "Helvetica Neue", "Arial", *CJK_FONTS))
EARLY = 0.12
"""Share of the steps whose huge values may leave the frame, so that they do not squash the rest."""
STYLE = {
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
    "savefig.dpi": 200,
}


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    caption: str
    figure: Figure

    def svg(self, inline: bool = False) -> str:
        """As a file of its own, or to stand inside an HTML page whose colours it takes."""
        out = io.StringIO()
        with _style(self.name):
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            self.figure.savefig(out, format="svg", metadata=nothing, transparent=inline)
        text = out.getvalue().replace("'DejaVu Sans'", FONT_STACK)
        if not inline:
            return text
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text[text.index("<svg") :])
        for colour, variable in ((INK, "ink"), (FAINT, "faint"), (GRID, "grid"), (PAPER, "paper")):
            text = text.replace(colour, f"var(--{variable})")
        return text

    def save(self, path: Path) -> None:
        """SVG, PNG or PDF, by the suffix."""
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            with _style(self.name):
                self.figure.savefig(path)


def pictures(loaded: Loaded, lang: str = "en") -> list[Picture]:
    """Every figure the runs have data for, study by study."""
    t = texts(lang)
    records = {id(arm): record for arm, record in zip(loaded.arms, summary_table(loaded).records, strict=True)}
    drawn = []
    for number, study in enumerate(loaded.studies, 1):
        suffix = f"-{number}" if len(loaded.studies) > 1 else ""
        own = [records[id(arm)] for arm in study.arms]
        for name, draw in _FIGURES.items():
            with _style(name):
                picture = draw(study, own, t)
            if picture is not None:
                runs = t(
                    "figure_runs", where=f"{study.dataset}, {study.model}", runs=t.listing([r.name for r in study.runs])
                )
                drawn.append(Picture(name + suffix, picture[0], f"{picture[1]} {runs}", picture[2]))
    return drawn


def print_language(lang: str) -> str:
    """The language PNG and PDF can be drawn in on this machine."""
    return lang if lang == "en" or cjk_font() else "en"


def cjk_font() -> str | None:
    known = set(font_manager.get_font_names())
    return next((font for font in CJK_FONTS if font in known), None)


# The figures. Each gives its title, its caption and itself, or nothing if there is nothing to draw.

Drawing = tuple[str, str, Figure] | None


def _curves(study: Study, records: list[Record], t: Texts) -> Drawing:
    lines = [(arm, line) for arm in study.arms if (line := _line(arm, study.metric.key)) is not None]
    if not lines:
        return None
    gaps = [(arm, line) for arm in study.arms if arm.baseline and (line := _gap_line(arm)) is not None]
    figure = Figure(figsize=(7.4, 6.0 if gaps else 4.2), layout="constrained")
    grid = figure.subplots(2 if gaps else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if gaps else [1])
    top, bottom = grid[0, 0], grid[-1, 0]
    title = _curves_title(study, records, t)
    _draw_lines(top, lines)
    _frame_values(top, study, lines, t)
    _label_ends(top, lines, lambda arm, value: arm.label)
    _set_title(figure, title, t)
    if gaps:
        _draw_lines(bottom, gaps)
        bottom.axhline(0, color=FAINT, linewidth=1)
        _goal_line(bottom, study, t)
        bottom.set_ylabel(t("axis_gap_points" if study.metric.gap_in_points else "axis_gap"))
        _frame_gaps(bottom, gaps, study)
        _label_ends(bottom, gaps, lambda arm, value: f"{value:+.1f}".replace("-", "−"))
    bottom.set_xlabel(t("axis_steps"))
    bottom.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    bottom.set_xlim(0, 1.01 * max(line.x[-1] for _, line in lines))
    per_step = {round(run.result["tokens"] / run.result["steps"]) for run in study.runs if _has_tokens(run)}
    if len(per_step) == 1:
        _token_axis(top, per_step.pop(), t)
    return title, t("caption_curves") + _share_note(study, t), figure


def _time(study: Study, records: list[Record], t: Texts) -> Drawing:
    lines = [(arm, line) for arm in study.arms if (line := _line(arm, study.metric.key, clock=True)) is not None]
    if not lines:
        return None
    longest = max(line.x[-1] for _, line in lines)
    unit, seconds = next(
        u for u in (("hours", 3600), ("minutes", 60), ("seconds", 1)) if longest >= 3 * u[1] or u[1] == 1
    )
    lines = [(arm, Line(line.x / seconds, line.mean, line.low, line.high)) for arm, line in lines]
    figure = Figure(figsize=(7.4, 4.0), layout="constrained")
    axes = figure.subplots()
    title = t("title_time", metric=t(f"metric_{study.metric.name}"))
    _draw_lines(axes, lines)
    _frame_values(axes, study, lines, t)
    axes.set_xlim(0, longest / seconds * 1.01)
    _label_ends(axes, lines, lambda arm, value: arm.label)
    axes.set_xlabel(t(f"axis_{unit}"))
    _set_title(figure, title, t)
    return title, t("caption_time"), figure


def _gaps(study: Study, records: list[Record], t: Texts) -> Drawing:
    rows = [(arm, r, gap) for arm, r in zip(study.arms, records, strict=True) if (gap := gap_of(arm)) is not None]
    if not rows:
        return None
    points = study.metric.gap_in_points
    goal = _goal_value(study)
    inner = [0.0, goal, *(v for _, _, gap in rows for v in gap.by_seed.values())]
    limits = _limits(inner, [v for _, _, gap in rows if gap.t for v in (gap.t.low, gap.t.high)])
    entries = [
        Entry(arm, gap.value, gap.t and (gap.t.low, gap.t.high), gap.bootstrap and (gap.bootstrap.low, gap.bootstrap.high),
              list(gap.by_seed.values()), f"{_signed(r, t)}  {t.word('goal', r['goal'])}")
        for arm, r, gap in rows
    ]  # fmt: skip
    values = [f"{gap.value:+.1f}".replace("-", "−") for _, _, gap in sorted(rows, key=lambda row: row[2].value)]
    counts = {verdict: sum(r["goal"] == verdict for _, r, _ in rows) for verdict in ("met", "missed", "undecided")}
    title = t("title_gaps" if len(rows) > 1 else "title_gap", low=values[0], high=values[-1], **counts,
              unit=t("unit_points", value="").strip() if points else "%", arm=rows[0][0].label,
              verdict=t.word("goal", rows[0][1]["goal"]))  # fmt: skip
    figure, axes = _forest(entries, limits)
    axes.axvline(0, color=FAINT, linewidth=1)
    _goal_line(axes, study, t, vertical=True)
    axes.set_xlabel(t("axis_gap_points" if points else "axis_gap"))
    _set_title(figure, title, t)
    return title, t("caption_gaps"), figure


def _step_times(study: Study, records: list[Record], t: Texts) -> Drawing:
    rows = [(a, r) for a, r in zip(study.arms, records, strict=True) if r["step_time_ratio"] and not a.is_baseline]
    if not rows:
        return None
    entries = []
    for arm, r in rows:
        interval = (r["step_time_low"], r["step_time_high"]) if r["step_time_low"] is not None else None
        said = f"{r['step_time_ratio']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
        word = t.word("speed", r["step_time_verdict"]) if r["step_time_interleaved"] else t("not_interleaved")
        entry = Entry(arm, r["step_time_ratio"], interval, None, [], f"{said}  {word}",
                      predicted=r["step_time_predicted"], hollow=not r["step_time_interleaved"])  # fmt: skip
        entries.append(entry)
    inner = [1.0, *(e.value for e in entries), *(e.predicted for e in entries if e.predicted)]
    limits = _limits(inner, [v for e in entries if e.interval for v in e.interval])
    ratios = sorted(e.value for e in entries)
    key = "title_step_times" if len(rows) > 1 else "title_step_time"
    title = t(key, low=f"{ratios[0]:.2f}", high=f"{ratios[-1]:.2f}", arm=rows[0][0].label)
    figure, axes = _forest(entries, limits)
    axes.axvline(1, color=FAINT, linewidth=1)
    axes.set_xlabel(t("axis_step_time"))
    _set_title(figure, title, t)
    predicted = " " + t("caption_predicted") if any(e.predicted for e in entries) else ""
    return title, t("caption_step_times") + predicted, figure


_FIGURES: dict[str, Callable[[Study, list[Record], Texts], Drawing]] = {
    "learning-curves": _curves,
    "gaps": _gaps,
    "wall-time": _time,
    "step-times": _step_times,
}


# How they are drawn


@dataclass(frozen=True)
class Line:
    """Mean over seeds and their range, at the steps that all runs of an arm share."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Entry:
    """One row of a figure with intervals."""

    arm: Arm
    value: float
    interval: tuple[float, float] | None
    inner: tuple[float, float] | None
    dots: list[float]
    text: str
    predicted: float | None = None
    hollow: bool = False


def _line(arm: Arm, key: str, clock: bool = False) -> Line | None:
    steps = _shared_steps(arm.runs, key)
    values = np.array([[run.curve(key)[step] for step in steps] for run in arm.runs]) * arm.metric.scale
    if not steps or (clock and not all(run.clock for run in arm.runs)):
        return None
    x = np.mean([[run.seconds_at(s) or 0.0 for s in steps] for run in arm.runs], axis=0) if clock else np.array(steps)
    return Line(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def _gap_line(arm: Arm) -> Line | None:
    """The gap to the baseline at every shared step, paired by seed."""
    key, base = arm.metric.key, {run.seed: run for run in (arm.baseline.runs if arm.baseline else [])}
    pairs = [(run, base[run.seed]) for run in arm.runs if run.seed in base]
    steps = _shared_steps([run for pair in pairs for run in pair], key) if pairs else []
    if not steps:
        return None
    own, other = (np.array([[pair[i].curve(key)[s] for s in steps] for pair in pairs]) for i in (0, 1))
    gaps = (own - other) * arm.metric.scale if arm.metric.gap_in_points else 100 * (own / other - 1)
    return Line(np.array(steps), gaps.mean(axis=0), gaps.min(axis=0), gaps.max(axis=0))


def _shared_steps(runs: Sequence[Run], key: str) -> list[int]:
    return sorted(set.intersection(*(set(run.curve(key)) for run in runs)))


def _look(arm: Arm) -> tuple[str, Any, str]:
    names = list(METHODS)
    i = names.index(arm.method) if arm.method in names else len(names) + sum(arm.method.encode()) % 3
    return PALETTE[i % len(PALETTE)], LINES[i % len(LINES)], MARKERS[i % len(MARKERS)]


def _draw_lines(axes: Axes, lines: list[tuple[Arm, Line]]) -> None:
    for arm, line in lines:
        colour, dashes, marker = _look(arm)
        every = max(1, len(line.x) // 10)
        axes.plot(
            line.x, line.mean, color=colour, linestyle=dashes, marker=marker, markevery=every, markeredgecolor=PAPER
        )
        if len(arm.runs) > 1:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)


def _frame_values(axes: Axes, study: Study, lines: list[tuple[Arm, Line]], t: Texts) -> None:
    """Limits that show the end of training; a log scale where the values still span a lot."""
    late = [v for _, line in lines for v in (*line.low[_late(line)], *line.high[_late(line)])]
    low, high = min(late), max(late)
    floor = math.exp(study.true_entropy) if study.true_entropy is not None else None
    if floor is not None:
        low = min(low, floor)
        axes.axhline(floor, color=FAINT, linewidth=1.2, linestyle=(0, (5, 3)))
        _tag(axes, t("floor", value=study.metric.show(floor)), (0.01, floor), ("axes fraction", "data"), (0, 3))
    if low > 0 and high / low > 2.5 and not study.metric.higher_is_better:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1, 1.5, 2, 3, 5, 7)) if high / low < 30 else LogLocator(subs=(1, 2, 5))
        )
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(low / (high / low) ** 0.06, high * (high / low) ** 0.03)
    else:
        pad = (high - low) or abs(high) * 0.1 or 1
        axes.set_ylim(low - 0.08 * pad, high + 0.06 * pad)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(t("axis_value", metric=t(f"metric_{study.metric.name}"), unit=study.metric.suffix))


def _frame_gaps(axes: Axes, lines: list[tuple[Arm, Line]], study: Study) -> None:
    late = [v for _, line in lines for v in (*line.low[_late(line)], *line.high[_late(line)])]
    low, high = min([0.0, _goal_value(study), *late]), max([0.0, _goal_value(study), *late])
    axes.set_ylim(low - 0.06 * (high - low), high + 0.08 * (high - low))


def _late(line: Line) -> np.ndarray:
    return line.x >= EARLY * line.x[-1]


def _label_ends(axes: Axes, lines: list[tuple[Arm, Line]], say: Callable[[Arm, float], str]) -> None:
    """Names at the ends of the lines instead of a legend, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    scale = math.log if axes.get_yscale() == "log" else float
    height = axes.get_position().height * axes.figure.get_size_inches()[1] * 72 * 0.85  # type: ignore[union-attr]
    place = {id(a): (scale(line.mean[-1]) - scale(low)) / (scale(high) - scale(low)) for a, line in lines}
    spots = _apart([place[id(a)] for a, _ in lines], 12.5 / height)
    for (arm, line), spot in zip(lines, spots, strict=True):
        colour, _, marker = _look(arm)
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
    result = [0.0] * len(places)
    for i, value in zip(order, moved, strict=True):
        result[i] = float(value)
    return result


def _goal_value(study: Study) -> float:
    """Where the 5 % goal lies on the gap axis; for gaps in points, 5 % of the baseline's own score."""
    if not study.metric.gap_in_points:
        return GOAL_PERCENT
    base = [arm.scores.values() for arm in study.arms if arm.is_baseline]
    mean = float(np.mean(list(base[0]))) if base else 1.0
    return -GOAL_PERCENT / 100 * mean * study.metric.scale


def _goal_line(axes: Axes, study: Study, t: Texts, vertical: bool = False) -> None:
    value = _goal_value(study)
    (axes.axvline if vertical else axes.axhline)(value, color=FAINT, linewidth=1.2, linestyle=(0, (5, 3)))
    if vertical:
        _tag(axes, t("goal_line"), (value, 1.0), ("data", "axes fraction"), (0, 3), "center")
    else:
        _tag(axes, t("goal_line"), (0.01, value), ("axes fraction", "data"), (0, 3))


def _tag(
    axes: Axes, text: str, spot: tuple[float, float], where: Any, shift: tuple[int, int], side: str = "left"
) -> None:
    paper = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    axes.annotate(
        text, spot, shift, xycoords=where, textcoords="offset points", color=FAINT, fontsize=9, ha=side, bbox=paper
    )


def _limits(inner: list[float], outer: list[float]) -> tuple[float, float]:
    """All estimates, and intervals as far as they do not squash them: those of two seeds can be huge."""
    low, high = min(inner), max(inner)
    room = 0.6 * (high - low) or 0.1
    low, high = max(min([low, *outer]), low - room), min(max([high, *outer]), high + room)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _forest(entries: list[Entry], limits: tuple[float, float]) -> tuple[Figure, Axes]:
    """One row per arm: estimate, interval, seeds, and the numbers at the right."""
    figure = Figure(figsize=(7.4, 1.35 + 0.42 * len(entries)), layout="constrained")
    axes = figure.subplots()
    low, high = limits
    for y, entry in enumerate(entries):
        colour, _, marker = _look(entry.arm)
        if entry.interval:
            a, b = max(entry.interval[0], low), min(entry.interval[1], high)
            axes.plot([a, b], [y, y], color=colour, linewidth=1.4, solid_capstyle="butt")
            for end, inside, arrow in ((a, entry.interval[0] >= low, "<"), (b, entry.interval[1] <= high, ">")):
                axes.plot(
                    end, y, marker="|" if inside else arrow, color=colour, markersize=8 if inside else 6, clip_on=False
                )
        if entry.inner:
            axes.plot(entry.inner, [y, y], color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
        axes.plot(entry.dots, [y - 0.24] * len(entry.dots), "o", color=colour, markersize=2.8, alpha=0.7)
        face = PAPER if entry.hollow else colour
        axes.plot(
            entry.value,
            y,
            marker=marker,
            color=colour,
            markersize=7.5,
            markerfacecolor=face,
            markeredgecolor=colour if entry.hollow else PAPER,
        )
        if entry.predicted:
            axes.plot(entry.predicted, y, marker="x", color=INK, markersize=6, markeredgewidth=1.2, zorder=5)
        axes.annotate(
            entry.text, (1.02, y), xycoords=("axes fraction", "data"), va="center", fontsize=9, annotation_clip=False
        )
    axes.set_yticks(range(len(entries)), [entry.arm.label for entry in entries])
    axes.set_ylim(len(entries) - 0.45, -0.6)
    axes.set_xlim(low, high)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    return figure, axes


def _set_title(figure: Figure, title: str, t: Texts) -> None:
    lines = textwrap.wrap(title, 38 if t.lang == "zh" else 70)
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11, fontweight="bold")


def _token_axis(axes: Axes, per_step: int, t: Texts) -> None:
    """The same axis in tokens, along the top."""
    unit, size = next(
        u
        for u in (("tokens_millions", 1e6), ("tokens_thousands", 1e3))
        if axes.get_xlim()[1] * per_step >= u[1] or u[1] == 1e3
    )
    second = axes.secondary_xaxis("top", functions=(lambda x: x * per_step / size, lambda x: x * size / per_step))
    second.set_xlabel(t(f"axis_{unit}"), fontsize=9)
    second.tick_params(labelsize=9)


def _has_tokens(run: Run) -> bool:
    return bool(run.result and run.result.get("tokens") and run.result.get("steps"))


def _signed(record: Record, t: Texts) -> str:
    interval = "" if record["gap_low"] is None else f" [{record['gap_low']:+.1f}, {record['gap_high']:+.1f}]"
    return (t(f"unit_{record['gap_unit']}", value=f"{record['gap']:+.1f}") + interval).replace("-", "−")


def _share_note(study: Study, t: Texts) -> str:
    shares = [row["share"] for run in study.runs for row in run.validations if isinstance(row.get("share"), float)]
    return " " + t("caption_share", share=f"{100 * min(shares):.0f}") if shares and min(shares) < 0.995 else ""


def _curves_title(study: Study, records: list[Record], t: Texts) -> str:
    ranked = sorted(records, key=lambda r: r["score"])
    values = {"metric": t(f"metric_{study.metric.name}"), "steps": f"{max(run.step for run in study.runs):,}"}
    first, last = (f"{study.metric.show(r['score'])} ({r['method']})" for r in (ranked[0], ranked[-1]))
    if len(ranked) == 1:
        return t("title_curve", **values, only=first)
    return t("title_curves", **values, low=first, high=last)


def _style(salt: str) -> AbstractContextManager[None]:
    # Missing glyphs are the browser's business in SVG; where they are not, print_language() has chosen English.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    font = {"font.family": ["DejaVu Sans", cjk_font()]} if cjk_font() else {}
    return matplotlib.rc_context({**STYLE, **font, "svg.hashsalt": salt})
