"""What must be said under the tables: what is not comparable, not paired, not finished, not read."""

from collections.abc import Iterator
from typing import Any

from oelm.analysis.compare.arms import Arm, Comparison, Note
from oelm.analysis.compare.comparison import RATE
from oelm.analysis.compare.results import Loaded

WORTH_SAYING = 0.01  # nats by which a loss must have risen since its best before the report speaks of it
MOST_NAMED = 6  # unfinished runs, or arms with the same note, that are named one by one; the tables have them all


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
