"""The figures: `pictures(loaded, lang)`. Colour, line and marker belong to a method, so it looks the same everywhere.

Text stays text in SVG, so that a browser renders Chinese even where matplotlib has no font for it. PNG and PDF need a
font on this machine; without one they are drawn in English.
"""

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from oelm.analysis.results import Arm, Loaded, Run, Study
from oelm.analysis.statistics import GOAL_PERCENT, MET, MISSED, UNDECIDED, Interval
from oelm.analysis.tables import Record, gap_of, gap_text, step_time_text, summary_table
from oelm.analysis.texts import Texts, texts
from oelm.methods import METHODS

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
EARLY = 0.15
"""Share of the steps whose huge values may leave the frame, so that they do not squash the rest."""
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


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    caption: str
    figure: Figure
    texts: Texts

    def svg(self, inline: bool = False) -> str:
        """As a file of its own, or to stand inside an HTML page whose colours it takes."""
        out = io.StringIO()
        with page_style(self.name):
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            self.figure.savefig(out, format="svg", metadata=nothing, transparent=inline)
        text = out.getvalue().replace("'DejaVu Sans'", FONT_STACK)
        if not inline:
            return text
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text[text.index("<svg") :])
        text = re.sub(r'<g id="[^"]*"', "<g", text)  # several figures in one page would repeat them
        text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(self.title)}"', 1)
        for colour, variable in ((INK, "ink"), (FAINT, "faint"), (GRID, "grid"), (PAPER, "paper")):
            text = text.replace(colour, f"var(--{variable})")
        return text

    def save(self, path: Path) -> None:
        """SVG, PNG or PDF, by the suffix."""
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        else:
            with page_style(self.name):
                self.figure.savefig(path)

    def add_caption(self) -> None:
        """For a page where nothing else could say what is drawn."""
        lines = self.texts.wrap(self.caption, 105)
        self.figure.set_layout_engine("constrained")
        width, height = self.figure.get_size_inches()
        self.figure.set_size_inches(width, height + 0.16 * (len(lines) + 1))
        self.figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5)


def pictures(loaded: Loaded, lang: str = "en") -> list[Picture]:
    """Every figure the runs have data for, study by study."""
    t = texts(lang)
    records = {id(arm): record for arm, record in zip(loaded.arms, summary_table(loaded).records, strict=True)}
    drawn = []
    for number, study in enumerate(loaded.studies, 1):
        suffix = f"-{number}" if len(loaded.studies) > 1 else ""
        own = [records[id(arm)] for arm in study.arms]
        for name, draw in _FIGURES.items():
            with page_style(name):
                drawing = draw(study, own, t)
                if drawing is None:
                    continue
                title, caption, figure = drawing
                _lay_out(figure)
            where, runs = f"{study.dataset}, {study.model}", t.listing([run.name for run in study.runs])
            caption.append(t("figure_runs", where=where, runs=runs))
            drawn.append(Picture(name + suffix, title, t.join(caption), figure, t))
    return drawn


def print_language(lang: str) -> str:
    """The language PNG and PDF can be drawn in on this machine."""
    return lang if lang == "en" or cjk_font() else "en"


@cache
def cjk_font() -> str | None:
    known = set(font_manager.get_font_names())
    return next((font for font in CJK_FONTS if font in known), None)


# The figures. Each gives its title, its caption and itself, or nothing if there is nothing to draw.

Drawing = tuple[str, list[str], Figure] | None


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
    _token_axis(top, study, t)
    above = any(line.mean.max() > top.get_ylim()[1] for _, line in lines)
    parts = {"caption_curves": True, "caption_lower": bool(gaps), "caption_above": above}
    return title, [*(t(key) for key, needed in parts.items() if needed), *_share_note(study, t)], figure


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
    return title, [t("caption_time")], figure


def _gaps(study: Study, records: list[Record], t: Texts) -> Drawing:
    rows = [(arm, r, gap) for arm, r in zip(study.arms, records, strict=True) if (gap := gap_of(arm)) is not None]
    if not rows:
        return None
    points = study.metric.gap_in_points
    entries = [
        Entry(arm, gap.value, gap.t, gap.bootstrap, list(gap.by_seed.values()), gap_text(r, t, with_goal=True))
        for arm, r, gap in rows
    ]
    values = [f"{value:+.1f}".replace("-", "−") for value in sorted(gap.value for _, _, gap in rows)]
    counts = {verdict: sum(r["goal"] == verdict for _, r, _ in rows) for verdict in (MET, MISSED, UNDECIDED)}
    unit, verdict = t("unit_points", value="").strip() if points else "%", t.word("goal", rows[0][1]["goal"])
    facts = {"low": values[0], "high": values[-1], "unit": unit, "arm": rows[0][0].label, "verdict": verdict, **counts}
    title = t("title_gaps" if len(rows) > 1 else "title_gap", **facts)
    figure, axes = _forest(entries, [0.0, _goal_value(study)])
    axes.axvline(0, color=FAINT, linewidth=1)
    _goal_line(axes, study, t, vertical=True)
    axes.set_xlabel(t("axis_gap_points" if points else "axis_gap"))
    _set_title(figure, title, t)
    return title, [t("caption_gaps")], figure


def _step_times(study: Study, records: list[Record], t: Texts) -> Drawing:
    entries = []
    for arm, r in zip(study.arms, records, strict=True):
        ratio, low, high = (r[f"step_time_{key}"] for key in ("ratio", "low", "high"))
        if ratio is not None and not arm.is_baseline:
            interval = None if low is None or high is None else Interval(low, high)
            text = step_time_text(r, t, with_verdict=True)
            predicted, hollow = r["step_time_predicted"], not r["step_time_interleaved"]
            entries.append(Entry(arm, ratio, interval, None, [], text, predicted, hollow))
    if not entries:
        return None
    ratios = [f"{ratio:.2f}" for ratio in sorted(entry.value for entry in entries)]
    key = "title_step_times" if len(entries) > 1 else "title_step_time"
    title = t(key, low=ratios[0], high=ratios[-1], arm=entries[0].arm.label)
    figure, axes = _forest(entries, [1.0])
    axes.axvline(1, color=FAINT, linewidth=1)
    axes.set_xlabel(t("axis_step_time"))
    _set_title(figure, title, t)
    crosses = [t("caption_predicted")] if any(entry.predicted for entry in entries) else []
    return title, [t("caption_step_times"), *crosses], figure


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
    interval: Interval | None
    inner: Interval | None
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
    """Colour, line and marker by method; a second arm of the same method is paler and has the next line."""
    names = list(METHODS)
    i = names.index(arm.method) if arm.method in names else len(names) + sum(arm.method.encode()) % len(PALETTE)
    colour = PALETTE[i % len(PALETTE)]
    if arm.number:
        share = 0.6 ** min(arm.number, 2)
        colour = to_hex(tuple(share * part + (1 - share) * 0.7 for part in to_rgb(colour)))  # type: ignore[arg-type]
    return colour, LINES[(i + arm.number) % len(LINES)], MARKERS[(i + arm.number) % len(MARKERS)]


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
    axes.set_ylabel(
        t(
            "axis_value",
            metric=t(f"metric_{study.metric.name}"),
            unit=f",{study.metric.suffix}" if study.metric.suffix else "",
        )
    )


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
        if distance * len(moved) < 1:
            moved = np.clip(moved, 0.0, 1.0)
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


def _limits(entries: list[Entry], marks: list[float]) -> tuple[float, float]:
    """All estimates, and intervals as far as they do not squash them: those of two seeds can be huge."""
    inner = [*marks, *(v for e in entries for v in (e.value, *e.dots, *([e.predicted] if e.predicted else [])))]
    outer = [v for e in entries if e.interval for v in (e.interval.low, e.interval.high)]
    low, high = min(inner), max(inner)
    room = 0.6 * (high - low) or 0.1
    low, high = max(min([low, *outer]), low - room), min(max([high, *outer]), high + room)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _forest(entries: list[Entry], marks: list[float]) -> tuple[Figure, Axes]:
    """One row per arm: estimate, interval, seeds, and the numbers at the right."""
    figure = Figure(figsize=(7.4, 1.35 + 0.42 * len(entries)), layout="constrained")
    axes = figure.subplots()
    low, high = _limits(entries, marks)
    for y, entry in enumerate(entries):
        colour, _, marker = _look(entry.arm)
        if entry.interval:
            _whisker(axes, y, entry.interval, (low, high), colour)
        if entry.inner:
            ends = [entry.inner.low, entry.inner.high]
            axes.plot(ends, [y, y], color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
        axes.plot(entry.dots, [y - 0.24] * len(entry.dots), "o", color=colour, markersize=2.8, alpha=0.7)
        face, edge = (PAPER, colour) if entry.hollow else (colour, PAPER)
        axes.plot(entry.value, y, marker, color=colour, markersize=7, markerfacecolor=face, markeredgecolor=edge)
        if entry.predicted:
            axes.plot(entry.predicted, y, "x", color=INK, markersize=6, markeredgewidth=1.2, zorder=5)
        axes.text(1.02, y, entry.text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_yticks(range(len(entries)), [entry.arm.label for entry in entries])
    axes.set_ylim(len(entries) - 0.45, -0.6)
    axes.set_xlim(low, high)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    return figure, axes


def _whisker(axes: Axes, y: float, interval: Interval, limits: tuple[float, float], colour: str) -> None:
    """An interval; where it leaves the frame, an arrow says that it goes on."""
    ends = [max(interval.low, limits[0]), min(interval.high, limits[1])]
    axes.plot(ends, [y, y], color=colour, linewidth=1.4, solid_capstyle="butt")
    for end, true_end, arrow in zip(ends, (interval.low, interval.high), "<>", strict=True):
        inside = end == true_end
        axes.plot(end, y, "|" if inside else arrow, color=colour, markersize=8 if inside else 6, clip_on=False)


def _set_title(figure: Figure, title: str, t: Texts) -> None:
    figure.suptitle("\n".join(t.wrap(title, 74)), x=0.01, ha="left", fontsize=11, fontweight="bold")


def _token_axis(axes: Axes, study: Study, t: Texts) -> None:
    """The same axis in tokens, along the top, if a step is the same number of tokens in every run."""
    results = [run.result for run in study.runs if run.result and run.result.get("tokens") and run.result.get("steps")]
    sizes = {result["tokens"] / result["steps"] for result in results}
    if len(sizes) != 1:
        return
    unit, size = ("millions", 1e6) if axes.get_xlim()[1] * min(sizes) >= 1e6 else ("thousands", 1e3)
    factor = min(sizes) / size
    second = axes.secondary_xaxis("top", functions=(lambda x: x * factor, lambda x: x / factor))
    second.set_xlabel(t(f"axis_tokens_{unit}"), fontsize=9)
    second.tick_params(labelsize=9)


def _share_note(study: Study, t: Texts) -> list[str]:
    shares = [row["share"] for run in study.runs for row in run.validations if isinstance(row.get("share"), float)]
    return [t("caption_share", share=f"{100 * min(shares):.0f}")] if shares and min(shares) < 0.995 else []


def _curves_title(study: Study, records: list[Record], t: Texts) -> str:
    ranked = sorted(records, key=lambda r: r["score"])
    name = t(f"metric_{study.metric.name}")
    values = {"metric": name[0].upper() + name[1:], "steps": f"{max(run.step for run in study.runs):,}"}
    first, last = (f"{study.metric.show(r['score'])} ({r['method']})" for r in (ranked[0], ranked[-1]))
    if len(ranked) == 1:
        return t("title_curve", **values, only=first)
    return t("title_curves", **values, low=first, high=last)


def _lay_out(figure: Figure) -> None:
    """Once and for all: a layout repeated at every save would shift a little, and every file shall show the same."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


@contextmanager
def page_style(salt: str = "page") -> Iterator[None]:
    font: dict[Any, Any] = {"font.family": ["DejaVu Sans", cjk_font()]} if cjk_font() else {}
    with warnings.catch_warnings(), matplotlib.rc_context({**STYLE, **font, "svg.hashsalt": salt}):
        # Missing glyphs are the browser's business in SVG; where they are not, print_language() has chosen English.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
