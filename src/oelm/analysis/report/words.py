"""The verdict in at most five lines, from the same records as the tables."""

import math
from collections.abc import Iterator

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.record import ArmRecord, best_of
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import MET, MISSED, NOT_COMPARABLE, UNDECIDED
from oelm.analysis.report.cells import gap_text, speed_up
from oelm.analysis.report.questions import answers
from oelm.analysis.report.rendering import FOLD
from oelm.analysis.report.texts import Texts
from oelm.bench.ratios import FASTER, SLOWER

MOST_LINES, MOST_NAMES = 5, 3


def verdict_lines(loaded: Loaded, t: Texts) -> list[str]:
    records = [record for comparison in loaded.comparisons for record in comparison.records]
    where = _names(loaded.comparisons)
    if answered := answers(loaded.comparisons, loaded.questions, t):
        return [*answered, *_first_looks(records, where, t), *_times(records, where, t)][:MOST_LINES]
    lines = [*_first_looks(records, where, t), *_bests(loaded.comparisons, where, t), *_speed_ups(records, where, t)]
    verdicts, times = (MET, MISSED, UNDECIDED, NOT_COMPARABLE), list(_times(records, where, t))
    goals = [line for verdict in verdicts if (line := _goal(records, verdict, where, t))]
    if len(lines) + len(goals) + len(times) > MOST_LINES:
        counts = {v: sum(r.verdict == v for r in records) for v in (MET, MISSED, UNDECIDED)}
        goals = [t("line_counts", **counts)]
    lines += [*goals, *times]
    scores = [f"{r.label} {r.metric.show(r.score)}" for r in records]
    return (lines or [t("line_scores", scores=_some(scores, t))])[:MOST_LINES]  # where there is nothing to judge


def data_line(comparison: Comparison, t: Texts) -> str:
    """What a figure or table stands on: tokens, epochs and share of the text, as far as the runs know."""
    seen = comparison.records[0].exposure
    facts = {
        "tokens": _short(seen.tokens) if seen.tokens else None,
        "there": _short(seen.train_tokens) if seen.train_tokens else None,
        "epochs": f"{seen.epochs:.3g}" if seen.epochs is not None else None,
        "share": f"{100 * seen.text_share:.3g}" if seen.text_share is not None else None,
        "floor": comparison.metric.show(math.exp(floor)) if (floor := comparison.true_entropy) is not None else None,
    }
    parts = [t(f"data_{name}", value=value) for name, value in facts.items() if value]
    parts += [t("data_falling")] if any(record.exposure.first_look for record in comparison.records) else []
    return f"{comparison.dataset}, {comparison.model}: {t.listing(parts)}." if parts else ""


def _first_looks(records: list[ArmRecord], where: dict[tuple[str, str], str], t: Texts) -> Iterator[str]:
    found = [r for r in records if r.exposure.first_look]
    if epochs := sorted(r.exposure.epochs for r in found if r.exposure.epochs is not None):
        ends = " – ".join(dict.fromkeys(f"{end:.2f}" for end in (epochs[0], epochs[-1])))
        places = list(dict.fromkeys(name for r in found if (name := where.get((r.dataset, r.model)))))
        yield t("line_first_look", epochs=ends, where=f" ({_some(places, t)})" if places else "")


def _bests(comparisons: list[Comparison], where: dict[tuple[str, str], str], t: Texts) -> Iterator[str]:
    """The best arm of each comparison, with an interval that knows that it was chosen."""
    if found := [best for comparison in comparisons if (best := best_of(comparison))]:
        told = [f"{r.label} {gap_text(gap, r.metric, t)}{_at(r, where)}".replace(FOLD, " ") for r, gap, _ in found]
        among = sorted({count for _, _, count in found})
        count = str(among[0]) if len(among) == 1 else f"{among[0]}–{among[-1]}"
        yield t("line_best" if among[-1] > 1 else "line_only", arms=_some(told, t), count=count)


def _speed_ups(records: list[ArmRecord], where: dict[tuple[str, str], str], t: Texts) -> Iterator[str]:
    """The best that leaves something untrained, beside the best trained arm of equal compute."""
    found = [(r.compute.speedup_flops.value, r) for r in records if r.verdict and r.compute and r.compute.speedup_flops]
    if found:
        record = max(found, key=lambda pair: pair[0])[1]
        rival, text = record.best_trained, speed_up(record, t, "flops")
        gap = gap_text(rival.gap, record.metric, t, rival.comparable) if rival else ""
        against = t("line_rival", baseline=rival.label, gap=gap) if rival else ""
        yield t("line_speedup", arm=record.label + _at(record, where), value=text, rival=against).replace(FOLD, " ")


def _goal(records: list[ArmRecord], verdict: str, where: dict[tuple[str, str], str], t: Texts) -> str:
    found = [record for record in records if record.verdict == verdict]
    if not found:
        return ""
    early = t("first_look")
    names = [f"{r.label}{_at(r, where)}{f' ({early})' if r.exposure.first_look else ''}" for r in found]
    missing = [record.more_seeds for record in found if record.more_seeds]
    more = t("line_more_seeds", count=max(missing)) if missing else ""
    return t(f"line_{verdict.replace(' ', '_')}", count=len(found), arms=_some(names, t), more=more)


def _times(records: list[ArmRecord], where: dict[tuple[str, str], str], t: Texts) -> Iterator[str]:
    if timed := [(r, r.time) for r in records if r.time and r.time.verdict]:
        names = [f"{r.label} {time.ratio:.3f}{_at(r, where)}" for r, time in timed if time.verdict == FASTER]
        slower = sum(time.verdict == SLOWER for _, time in timed)
        yield t("line_times", faster=_some(names, t) or t("nobody"), slower=slower, count=len(timed))


def _names(comparisons: list[Comparison]) -> dict[tuple[str, str], str]:
    """What to call a comparison: its data set, and as much of its model as it takes; nothing if there is one."""
    ways = [
        lambda c: c.dataset,
        lambda c: f"{c.dataset}, {c.model.partition(',')[0]}",
        lambda c: f"{c.dataset}, {c.model}",
    ]
    way = next((way for way in ways if len(set(map(way, comparisons))) == len(comparisons)), ways[-1])
    return {(c.dataset, c.model): way(c) for c in comparisons} if len(comparisons) > 1 else {}


def _at(record: ArmRecord, where: dict[tuple[str, str], str]) -> str:
    name = where.get((record.dataset, record.model))
    return f" ({name})" if name else ""


def _some(names: list[str], t: Texts) -> str:
    more = f" … (+{len(names) - MOST_NAMES})" if len(names) > MOST_NAMES + 1 else ""
    return t.clauses(names[:MOST_NAMES] if more else names) + more


def _short(tokens: int) -> str:
    return f"{tokens / 1e6:.3g}M" if tokens >= 1e6 else f"{tokens / 1e3:.3g}k"
