"""The figures: `pictures(loaded, lang)`.

Text stays text in SVG, so that a browser renders Chinese even where matplotlib has no font for it. PNG and PDF need a
font on this machine; without one they are drawn in English.
"""

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import MET, MISSED, UNDECIDED, Interval
from oelm.analysis.figures import pareto
from oelm.analysis.figures.curves import (
    Line,
    draw_lines,
    frame_gaps,
    frame_values,
    gap_line,
    label_ends,
    mean_line,
    shown,
)
from oelm.analysis.figures.forest import Entry, forest
from oelm.analysis.figures.marks import goal_line, goal_value, set_title, token_axis
from oelm.analysis.figures.style import FAINT, FONT_STACK, GRID, INK, PAPER, cjk_font, page_style
from oelm.analysis.report.cells import gap_text, step_time_text
from oelm.analysis.report.rendering import Record
from oelm.analysis.report.tables import gap_of, summary_table
from oelm.analysis.report.texts import MOST_LISTED, Texts, texts
from oelm.runs import folder_name


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
    """Every figure the runs have data for, comparison by comparison."""
    t = texts(lang)
    records = {id(arm): record for arm, record in zip(loaded.arms, summary_table(loaded).records, strict=True)}
    drawn = []
    for number, comparison in enumerate(loaded.comparisons, 1):
        suffix = f"-{number}" if len(loaded.comparisons) > 1 else ""
        own = [records[id(arm)] for arm in comparison.arms]
        for name, draw in _FIGURES.items():
            with page_style(name):
                drawing = draw(comparison, own, t)
                if drawing is None:
                    continue
                title, caption, figure = drawing
                _lay_out(figure)
            caption.append(_which_runs(comparison, t))
            drawn.append(Picture(name + suffix, title, t.join(caption), figure, t))
    return drawn


def _which_runs(comparison: Comparison, t: Texts) -> str:
    """The runs by name; of many arms, what the names end in, since the table of runs has them all."""
    where = f"{comparison.dataset}, {comparison.model}"
    if len(comparison.arms) <= MOST_LISTED:
        return t("figure_runs", where=where, runs=t.listing(_in_short([run.name for run in comparison.runs])))
    names = ((run.name.rpartition("/")[2], folder_name(arm.method)) for arm in comparison.arms for run in arm.runs)
    ends = sorted({name.removeprefix(start) for name, start in names})
    return t("figure_many_runs", where=where, count=len(comparison.arms), ends=t.listing([f"…{end}" for end in ends]))


def _in_short(names: list[str]) -> list[str]:
    """Runs that differ in their last part, mostly the seed, as one: baseline-{0,1,2}."""
    ends: dict[str, list[str]] = {}
    for name in names:
        start, dash, end = name.rpartition("-")
        ends.setdefault(start + dash, []).append(end)
    return [f"{start}{{{','.join(found)}}}" if len(found) > 1 else start + found[0] for start, found in ends.items()]


def print_language(lang: str) -> str:
    """The language PNG and PDF can be drawn in on this machine."""
    return lang if lang == "en" or cjk_font() else "en"


# The figures. Each gives its title, its caption and itself, or nothing if there is nothing to draw.

Drawing = tuple[str, list[str], Figure] | None


def _curves(comparison: Comparison, records: list[Record], t: Texts) -> Drawing:
    lines = [(arm, line) for arm in shown(comparison) if (line := mean_line(arm, comparison.metric.key)) is not None]
    if not lines:
        return None
    gaps = [(arm, line) for arm in shown(comparison) if arm.baseline and (line := gap_line(arm)) is not None]
    figure = Figure(figsize=(7.4, 6.0 if gaps else 4.2), layout="constrained")
    grid = figure.subplots(2 if gaps else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if gaps else [1])
    top, bottom = grid[0, 0], grid[-1, 0]
    title = _curves_title(comparison, records, t)
    draw_lines(top, lines)
    frame_values(top, comparison, lines, t)
    label_ends(top, lines, lambda arm, value: arm.label)
    set_title(figure, title, t)
    if gaps:
        draw_lines(bottom, gaps)
        bottom.axhline(0, color=FAINT, linewidth=1)
        goal_line(bottom, comparison, t)
        bottom.set_ylabel(t("axis_gap_points" if comparison.metric.gap_in_points else "axis_gap"))
        frame_gaps(bottom, gaps, comparison)
        label_ends(bottom, gaps, lambda arm, value: f"{value:+.1f}".replace("-", "−"))
    bottom.set_xlabel(t("axis_steps"))
    bottom.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    bottom.set_xlim(0, 1.01 * max(line.x[-1] for _, line in lines))
    token_axis(top, comparison, t)
    above = any(line.mean.max() > top.get_ylim()[1] for _, line in lines)
    parts = {"caption_curves": True, "caption_lower": bool(gaps), "caption_above": above}
    return (
        title,
        [
            *(t(key) for key, needed in parts.items() if needed),
            *_share_note(comparison, t),
            *_shown_note(comparison, t),
        ],
        figure,
    )


def _time(comparison: Comparison, records: list[Record], t: Texts) -> Drawing:
    lines = [
        (arm, line)
        for arm in shown(comparison)
        if (line := mean_line(arm, comparison.metric.key, clock=True)) is not None
    ]
    if not lines:
        return None
    longest = max(line.x[-1] for _, line in lines)
    unit, seconds = next(
        u for u in (("hours", 3600), ("minutes", 60), ("seconds", 1)) if longest >= 3 * u[1] or u[1] == 1
    )
    lines = [(arm, Line(line.x / seconds, line.mean, line.low, line.high)) for arm, line in lines]
    figure = Figure(figsize=(7.4, 4.0), layout="constrained")
    axes = figure.subplots()
    title = t("title_time", metric=t(f"metric_{comparison.metric.name}"))
    draw_lines(axes, lines)
    frame_values(axes, comparison, lines, t)
    axes.set_xlim(0, longest / seconds * 1.01)
    label_ends(axes, lines, lambda arm, value: arm.label)
    axes.set_xlabel(t(f"axis_{unit}"))
    set_title(figure, title, t)
    return title, [t("caption_time"), *_shown_note(comparison, t)], figure


def _gaps(comparison: Comparison, records: list[Record], t: Texts) -> Drawing:
    rows = [(arm, r, gap) for arm, r in zip(comparison.arms, records, strict=True) if (gap := gap_of(arm)) is not None]
    if not rows:
        return None
    points = comparison.metric.gap_in_points
    entries = [
        Entry(arm, gap.value, gap.t, gap.bootstrap, list(gap.by_seed.values()), gap_text(r, t, with_goal=True))
        for arm, r, gap in rows
    ]
    values = [f"{value:+.1f}".replace("-", "−") for value in sorted(gap.value for _, _, gap in rows)]
    judged = [r for arm, r, _ in rows if arm.made.freezes] or [r for _, r, _ in rows]
    counts = {verdict: sum(r["goal"] == verdict for r in judged) for verdict in (MET, MISSED, UNDECIDED)}
    unit, verdict = t("unit_points", value="").strip() if points else "%", t.word("goal", rows[0][1]["goal"])
    facts = {"low": values[0], "high": values[-1], "unit": unit, "arm": rows[0][0].label, "verdict": verdict, **counts}
    key = "title_gap" if len(rows) == 1 else "title_gaps" if len(judged) == len(rows) else "title_gaps_some_frozen"
    title = t(key, **facts)
    figure, axes = forest(entries, [0.0, goal_value(comparison)])
    axes.axvline(0, color=FAINT, linewidth=1)
    goal_line(axes, comparison, t, vertical=True)
    axes.set_xlabel(t("axis_gap_points" if points else "axis_gap"))
    set_title(figure, title, t)
    return title, [t("caption_gaps")], figure


def _step_times(comparison: Comparison, records: list[Record], t: Texts) -> Drawing:
    entries = []
    for arm, r in zip(comparison.arms, records, strict=True):
        ratio, low, high = (r[f"step_time_{key}"] for key in ("ratio", "low", "high"))
        if ratio is not None and not arm.is_baseline:
            interval = None if low is None or high is None else Interval(low, high)
            text = step_time_text(r, t, with_verdict=True)
            predicted, hollow = r["step_time_predicted"], not r["step_time_interleaved"]
            entries.append(Entry(arm, ratio, interval, None, [], text, predicted, hollow))
    if all(entry.hollow for entry in entries):  # times of separate runs are no measurement
        return None
    ratios = [f"{ratio:.2f}" for ratio in sorted(entry.value for entry in entries)]
    key = "title_step_times" if len(entries) > 1 else "title_step_time"
    title = t(key, low=ratios[0], high=ratios[-1], arm=entries[0].arm.label)
    figure, axes = forest(entries, [1.0])
    axes.axvline(1, color=FAINT, linewidth=1)
    axes.set_xlabel(t("axis_step_time"))
    set_title(figure, title, t)
    crosses = [t("caption_predicted")] if any(entry.predicted for entry in entries) else []
    return title, [t("caption_step_times"), *crosses], figure


def _pareto(comparison: Comparison, records: list[Record], t: Texts) -> Drawing:
    panels = pareto.costs(comparison, records)
    if not panels:
        return None
    points = next(iter(panels.values()))
    best = [point.arm.label for point in pareto.frontier(points, comparison.metric.higher_is_better)]
    title = t(f"title_pareto_{next(iter(panels))}", arms=t.listing(best))
    figure = pareto.draw(comparison, panels, t)
    set_title(figure, title, t)
    return title, [t("caption_pareto")], figure


_FIGURES: dict[str, Callable[[Comparison, list[Record], Texts], Drawing]] = {
    "learning-curves": _curves,
    "gaps": _gaps,
    "wall-time": _time,
    "step-times": _step_times,
    "pareto": _pareto,
}


def _share_note(comparison: Comparison, t: Texts) -> list[str]:
    shares = [row["share"] for run in comparison.runs for row in run.validations if isinstance(row.get("share"), float)]
    return [t("caption_share", share=f"{100 * min(shares):.0f}")] if shares and min(shares) < 0.995 else []


def _shown_note(comparison: Comparison, t: Texts) -> list[str]:
    drawn = len(shown(comparison))
    return [t("caption_shown", drawn=drawn, count=len(comparison.arms))] if drawn < len(comparison.arms) else []


def _curves_title(comparison: Comparison, records: list[Record], t: Texts) -> str:
    ranked = sorted(records, key=lambda r: r["score"])
    name = t(f"metric_{comparison.metric.name}")
    steps = sorted({run.step for run in comparison.runs})
    shown_steps = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,}–{steps[-1]:,}"
    values = {"metric": name[0].upper() + name[1:], "steps": shown_steps}
    first, last = (f"{comparison.metric.show(r['score'])} ({r['method']})" for r in (ranked[0], ranked[-1]))
    if len(ranked) == 1:
        return t("title_curve", **values, only=first)
    return t("title_curves", **values, low=first, high=last)


def _lay_out(figure: Figure) -> None:
    """Once and for all: a layout repeated at every save would shift a little, and every file shall show the same."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")
