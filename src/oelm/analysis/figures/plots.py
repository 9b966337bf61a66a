"""The figures: `pictures(loaded, lang)`. What a figure shows is known before it is drawn, and drawn when it is saved.

Text stays text in SVG, so that a browser renders Chinese even where matplotlib has no font for it. PNG needs a font on
this machine; without one it is drawn in English.
"""

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.record import ArmRecord
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import MET, MISSED, UNDECIDED
from oelm.analysis.figures import curves, pareto
from oelm.analysis.figures.marks import ROW, Entry, forest, gap_label, goal_line, goal_value, token_axis
from oelm.analysis.figures.style import FAINT, FONT_STACK, GRID, INK, PAPER, Looks, cjk_font, looks, page_style, saved
from oelm.analysis.report.cells import gap_text, step_time
from oelm.analysis.report.rendering import FOLD
from oelm.analysis.report.texts import Texts, texts
from oelm.analysis.report.words import data_line
from oelm.files import write_atomically

MOST_ROWS, MOST_PANELS = 16, 6  # of the figure on page one: arms in a panel, and comparisons


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    caption: str
    data: Any  # everything drawn, as numbers and names: two pictures of equal data are equal
    draw: Callable[[], Figure]
    texts: Texts

    @cached_property
    def figure(self) -> Figure:
        with page_style(self.name):
            figure, title = self.draw(), "\n".join(self.texts.wrap(self.title, 74))
            figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
            # Laid out once: a layout repeated at every save would shift a little, and every file shall show the same.
            if engine := figure.get_layout_engine():
                engine.execute(figure)
            figure.set_layout_engine("none")
        return figure

    @property
    def digest(self) -> str:
        """Of what is drawn; it stands in every file, so that a stale one is found without comparing pixels."""
        # Five digits: another machine's last bit makes no other picture.
        data = json.loads(json.dumps(self.data), parse_float=lambda digits: float(f"{float(digits):.5g}"))
        return hashlib.sha256(json.dumps([self.title, data], sort_keys=True).encode()).hexdigest()[:16]

    def png(self) -> bytes:
        with page_style(self.name):
            return saved(self.figure, "png", self.digest)

    @cached_property
    def _svg(self) -> str:
        with page_style(self.name):
            return saved(self.figure, "svg", self.digest).decode().replace("'DejaVu Sans'", FONT_STACK)

    def svg(self, inline: bool = False) -> str:
        """As a file of its own, or to stand inside an HTML page whose colours it takes."""
        if not inline:
            return self._svg
        text = re.sub(r"<metadata>.*?</metadata>", "", self._svg[self._svg.index("<svg") :], count=1, flags=re.DOTALL)
        text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
        text = re.sub(r'<g id="[^"]*"', "<g", text)  # several figures in one page would repeat them
        text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(self.title)}"', 1)
        for colour, variable in ((INK, "ink"), (FAINT, "faint"), (GRID, "grid"), (PAPER, "paper")):
            text = text.replace(colour, f"var(--{variable})")
        return text

    def save(self, path: Path) -> None:
        """SVG or PNG, by the suffix; there as a whole or not at all."""
        write_atomically(path, self.svg() if path.suffix == ".svg" else self.png())


def pictures(loaded: Loaded, lang: str = "en") -> list[Picture]:
    """Every figure the runs have data for: the gaps of all comparisons, then comparison by comparison."""
    t, look = texts(lang), looks(loaded.comparisons)
    drawn = [*_gaps(loaded.comparisons, look, t)]
    for number, comparison in enumerate(loaded.comparisons, 1):
        suffix = f"-{number}" if len(loaded.comparisons) > 1 else ""
        for draw in (_curves, _step_times, _pareto):
            for picture in draw(comparison, look, t):
                caption = [picture.caption, data_line(comparison, t) or f"{comparison.dataset}, {comparison.model}."]
                drawn.append(replace(picture, name=picture.name + suffix, caption=t.join(caption)))
    return drawn


def print_language(lang: str) -> str:
    """The language a PNG can be drawn in on this machine."""
    return lang if lang == "en" or cjk_font() else "en"


def _gaps(comparisons: list[Comparison], look: Looks, t: Texts) -> Iterator[Picture]:
    """One panel per comparison: the gap to the plain baseline, best first."""
    panels = [(c, found) for c in comparisons if (found := _ranked(c))][:MOST_PANELS]
    if not panels:
        return
    judged = [record for _, found in panels for record in found]
    counts = {verdict: sum(r.verdict == verdict for r in judged) for verdict in (MET, MISSED, UNDECIDED)}
    entries = [[_gap_entry(record, t) for record in found[:MOST_ROWS]] for _, found in panels]
    caption = [t("caption_gaps")]
    if sum(map(len, entries)) < sum(r.plain is not None for c in comparisons for r in c.records):
        caption.append(t("caption_fewer", drawn=sum(map(len, entries)), count=len(judged)))
    caption += [line for c, _ in panels if (line := data_line(c, t))]
    rows_of = [(c, rows) for (c, _), rows in zip(panels, entries, strict=True)]
    data = [[c.dataset, c.model, goal_value(c), [entry.data for entry in rows]] for c, rows in rows_of]

    def draw() -> Figure:
        heights = [ROW * len(rows) + 0.75 for rows in entries]
        figure = Figure(figsize=(7.6, sum(heights) + 0.6), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (comparison, rows) in zip(grid, rows_of, strict=True):
            forest(axes, rows, [0.0, goal_value(comparison)], look)
            axes.axvline(0, color=FAINT, linewidth=1)
            goal_line(axes, comparison, t, vertical=True)
            axes.set_xlabel(gap_label(comparison, t))
            if len(panels) > 1:
                axes.set_title(f"{comparison.dataset}, {comparison.model}", fontsize=9, pad=18)
        return figure

    yield Picture("gaps", t("title_gaps", **counts), t.join(caption), data, draw, t)


def _ranked(comparison: Comparison) -> list[ArmRecord]:
    found = [record for record in comparison.records if record.plain]
    return sorted(found, key=lambda r: r.plain.gap.value * r.metric.sign if r.plain else 0)


def _gap_entry(record: ArmRecord, t: Texts) -> Entry:
    assert record.plain is not None
    gap, comparable = record.plain.gap, record.plain.comparable
    verdict = f"  {t.word('goal', record.verdict)}" if record.verdict else ""
    text = gap_text(gap, record.metric, t, comparable).replace(FOLD, " ") + verdict
    return Entry(record.label, gap.value, gap.t if comparable else None, list(gap.by_seed.values()), text)


def _curves(comparison: Comparison, look: Looks, t: Texts) -> Iterator[Picture]:
    arms, key = curves.shown(comparison), comparison.metric.key
    lines = [(arm, line) for arm in arms if (line := curves.mean_line(arm, key)) is not None]
    if not lines:
        return
    gaps = [(arm, line) for arm in arms if arm.plain_baseline and (line := curves.gap_line(arm)) is not None]
    above = any(line.mean.max() > 1.1 * curves.late_range(lines)[1] for _, line in lines)
    parts = {"caption_curves": True, "caption_lower": bool(gaps), "caption_above": above}
    caption = [t(key) for key, needed in parts.items() if needed]
    shares = [row["share"] for run in comparison.runs for row in run.validations if isinstance(row.get("share"), float)]
    if shares and min(shares) < 0.995:
        caption.append(t("caption_share", share=f"{100 * min(shares):.0f}"))
    if len(arms) < len(comparison.arms):
        caption.append(t("caption_shown", drawn=len(arms), count=len(comparison.arms)))

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 6.0 if gaps else 4.2), layout="constrained")
        grid = figure.subplots(2 if gaps else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if gaps else [1])
        top, bottom = grid[0, 0], grid[-1, 0]
        curves.draw_lines(top, lines, look)
        curves.frame_values(top, comparison, lines, t)
        curves.label_ends(top, lines, look, lambda arm, value: arm.label)
        if gaps:
            curves.draw_lines(bottom, gaps, look)
            bottom.axhline(0, color=FAINT, linewidth=1)
            goal_line(bottom, comparison, t)
            bottom.set_ylabel(gap_label(comparison, t))
            curves.frame_gaps(bottom, gaps, comparison)
            curves.label_ends(bottom, gaps, look, lambda arm, value: f"{value:+.1f}".replace("-", "−"))
        bottom.set_xlabel(t("axis_steps"))
        bottom.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        bottom.set_xlim(0, 1.01 * max(line.x[-1] for _, line in lines))
        token_axis(top, comparison, t)
        return figure

    data = [[[arm.label, *line.data] for arm, line in drawn] for drawn in (lines, gaps)]
    yield Picture("learning-curves", _curves_title(comparison, t), t.join(caption), data, draw, t)


def _step_times(comparison: Comparison, look: Looks, t: Texts) -> Iterator[Picture]:
    entries = []
    for record in comparison.records:
        if (time := record.time) and not time.is_reference:
            text = step_time(record, t, with_verdict=True) or ""
            hollow = not time.interleaved
            entries.append(Entry(record.label, time.ratio, time.interval, [], text, time.predicted, hollow))
    if all(entry.hollow for entry in entries):  # times of separate runs are no measurement
        return
    ratios = [f"{ratio:.2f}" for ratio in sorted(entry.value for entry in entries)]
    key = "title_step_times" if len(entries) > 1 else "title_step_time"
    title = t(key, low=ratios[0], high=ratios[-1], arm=entries[0].label)

    def draw() -> Figure:
        figure = Figure(figsize=(7.4, 1.35 + ROW * len(entries)), layout="constrained")
        axes = figure.subplots()
        forest(axes, entries, [1.0], look)
        axes.axvline(1, color=FAINT, linewidth=1)
        axes.set_xlabel(t("axis_step_time"))
        return figure

    crosses = [t("caption_predicted")] if any(entry.predicted for entry in entries) else []
    caption = t.join([t("caption_step_times"), *crosses])
    yield Picture("step-times", title, caption, [entry.data for entry in entries], draw, t)


def _pareto(comparison: Comparison, look: Looks, t: Texts) -> Iterator[Picture]:
    panels = pareto.costs(comparison)
    if not panels:
        return
    points = next(iter(panels.values()))
    best = [point.arm.label for point in pareto.frontier(points, comparison.metric.higher_is_better)]
    title = t(f"title_pareto_{next(iter(panels))}", arms=t.listing(best))

    data = {k: [[p.arm.label, p.cost, p.score, p.low, p.high] for p in found] for k, found in panels.items()}
    draw = partial(pareto.draw, comparison, panels, look, t)
    yield Picture("pareto", title, t("caption_pareto"), data, draw, t)


def _curves_title(comparison: Comparison, t: Texts) -> str:
    ranked, steps = sorted(comparison.records, key=lambda r: r.score), sorted({run.step for run in comparison.runs})
    name, ends = t(f"metric_{comparison.metric.name}"), dict.fromkeys((steps[0], steps[-1]))
    low, high = (f"{comparison.metric.show(r.score)} ({r.label})" for r in (ranked[0], ranked[-1]))
    values = {"metric": name[0].upper() + name[1:], "steps": "–".join(f"{step:,}" for step in ends), "only": low}
    return t("title_curves" if len(ranked) > 1 else "title_curve", **values, low=low, high=high)
