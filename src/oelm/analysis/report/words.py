"""What the report says in sentences, from the same records as the tables: the verdict in at most five lines, and notes.

An experiment may have been made for questions; then their answers come first, a sentence each. A question is data: two
arms, and the kind of question, which names the sentences. It is written to `questions.json` beside the runs, because
reports read folders only.

    - { asks: cost, arm: oelm_freeze, against: baseline }
    - { asks: recovery, arm: permutation_qk+rank=8, against: oelm_freeze, rest: baseline }
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oelm.analysis.compare import statistics
from oelm.analysis.compare.arms import Arm, Comparison, Note
from oelm.analysis.compare.comparison import RATE
from oelm.analysis.compare.record import ArmRecord, best_of
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import MET, MISSED, NOT_COMPARABLE, UNDECIDED, Gap
from oelm.analysis.report.cells import gap_text, speed_up
from oelm.analysis.report.rendering import FOLD
from oelm.analysis.report.texts import Texts
from oelm.bench.ratios import FASTER, SLOWER

MOST_LINES, MOST_NAMES = 5, 3
WORTH_SAYING = 0.01  # nats by which a loss must have risen since its best before the report speaks of it
MOST_NAMED = 6  # unfinished runs, or arms with the same note, that are named one by one; the tables have them all
ADVANTAGE_PERCENT = 6.0  # by how much orthonormal projections are better than random ones in the original study
LIMITS: dict[str, float] = {"cost": 0.0, "orthogonality": -ADVANTAGE_PERCENT, "recovery": 0.0}
"""Kind of question: by how many percent the arm must be worse than the other for a yes. Decided if the whole interval
lies on one side."""


def verdict_lines(loaded: Loaded, t: Texts) -> list[str]:
    records = [record for comparison in loaded.comparisons for record in comparison.records]
    where = _names(loaded.comparisons)
    if answered := _answers(loaded.comparisons, loaded.questions, t):
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


def first_looks(loaded: Loaded, t: Texts) -> list[str]:
    """What a reader must know before any figure: that it stands on less than an epoch and still falls."""
    records = [record for comparison in loaded.comparisons for record in comparison.records]
    return list(_first_looks(records, _names(loaded.comparisons), t))


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


# Answers


def _answers(comparisons: Sequence[Comparison], questions: Sequence[Mapping[str, Any]], t: Texts) -> list[str]:
    """A sentence for every question whose arms were run; others are left out."""
    told = []
    for question in questions:
        kind = str(question.get("asks"))
        arm, against, third = (question.get(key) for key in ("arm", "against", "rest"))
        found = _gap(comparisons, arm, against, t) if kind in LIMITS else None
        if found is None:
            continue
        gap, shown = found
        verdict = statistics.goal_verdict(gap.worse, LIMITS[kind])
        values = {"arm": arm, "against": against, "gap": shown, "seeds": len(gap.by_seed)}
        parts = [t(f"answer_{kind}_{verdict}", **values, advantage=f"{ADVANTAGE_PERCENT:g}")]
        if verdict == UNDECIDED and (missing := statistics.more_seeds(gap.logs, LIMITS[kind])):
            parts.append(t("answer_more_seeds", count=missing))
        if rest := _gap(comparisons, arm, third, t):
            unequal = any(r.label == arm and r.lacks_equal for c in comparisons for r in c.records)
            parts.append(t("answer_rest_unequal" if unequal else "answer_rest", against=third, gap=rest[1]))
        told.append(t.join(parts))
    return told


def _gap(comparisons: Sequence[Comparison], arm: Any, against: Any, t: Texts) -> tuple[Gap, str] | None:
    """In the first comparison that has both arms; and as it is written."""
    for comparison in comparisons:
        scores = {record.label: record.scores for record in comparison.records}
        if gap := statistics.paired_gap(comparison.metric, scores.get(arm, {}), scores.get(against, {})):
            return gap, gap_text(gap, comparison.metric, t).replace(FOLD, " ")
    return None


# Notes


def notes(loaded: Loaded) -> list[Note]:
    """What must be said under the tables, gravest first."""
    going = {run.method.name for run in loaded.incomplete}
    said = [note for comparison in loaded.comparisons for note in _about(comparison, going)]
    times = [record.time for comparison in loaded.comparisons for record in comparison.records if record.time]
    if any(not time.interleaved and not time.is_reference for time in times):
        said.append(Note("note_not_interleaved"))
    if len(loaded.incomplete) > MOST_NAMED:
        said.append(Note("note_many_incomplete", {"count": len(loaded.incomplete)}))
    for run in loaded.incomplete if len(loaded.incomplete) <= MOST_NAMED else []:
        facts = {"run": run.name, "state": run.state, "step": run.step, "max_steps": run.max_steps or "?"}
        said.append(Note("note_incomplete", facts))
    return said + [Note("note_skipped", {"path": str(s.path), "reason": s.note}) for s in loaded.skipped]


def _about(comparison: Comparison, going: set[str]) -> Iterator[Note]:
    arms, records = comparison.arms, comparison.records

    def note(key: str, **values: Any) -> Note:
        return Note(key, {**values, "dataset": comparison.dataset, "model": comparison.model})

    if not any(arm.is_baseline or arm.baseline for arm in arms):
        yield note("note_no_baseline")
    if unequal := [arm.label for arm in arms if arm.is_unequal]:
        yield note("note_unequal", arms=_first_few(unequal))
    for record in records:
        for other in (opponent for opponent in record.opponents if opponent.differences):
            yield note("note_not_comparable", arm=record.label, baseline=other.label, differences=other.differences)
    for arm in arms:
        if arm.rates and not arm.at_best_rate:
            yield note("note_rate", arm=arm.label, best=arm.best_rate, shown=arm.settings.get(RATE))
        if len(arm.rates) > 2 and arm.best_rate in (min(arm.rates), max(arm.rates)):
            yield note("note_rate_edge", arm=arm.label, best=arm.best_rate)
        if arm.baseline and not arm.scores.keys() & arm.baseline.scores.keys():
            yield note("note_no_common_seed", arm=arm.label, baseline=arm.baseline.label)
    unfinished = [(arm, arm.baseline) for arm in arms if arm.baseline and going & {arm.method, arm.baseline.method}]
    if uneven := [arm.label for arm, other in unfinished if arm.scores.keys() != other.scores.keys()]:
        yield note("note_uneven_seeds", arms=_first_few(uneven))
    splits = {str(run.final["split"]) for run in comparison.runs if run.final.get("split")}
    if splits - {"validation"}:
        yield note("note_split", split=", ".join(sorted(splits)))
    if past := {arm.label: by for arm in arms if (by := past_its_best(arm)) > WORTH_SAYING}:
        yield note("note_past_best", arms=_first_few(list(past)), nats=f"{max(past.values()):.3f}")
    if blank := [run.name for run in comparison.runs if not run.curve(comparison.metric.key)]:
        yield note("note_no_curve", runs=_first_few(blank))
    if single := [r.label for r in records if 1 in (len(r.seeds), *(len(o.gap.by_seed) for o in r.opponents))]:
        yield note("note_one_seed", arms=_first_few(single))


def _first_few(labels: list[str]) -> str:
    more = f" … ({len(labels)})" if len(labels) > MOST_NAMED else ""
    return ", ".join(labels[:MOST_NAMED]) + more


def past_its_best(arm: Arm) -> float:
    """By how many nats the last loss lies above the lowest on the way, on the same part of the validation set."""
    losses = [list(run.curve("loss").values()) for run in arm.runs]
    return max((found[-1] - min(found) for found in losses if found), default=0.0)
