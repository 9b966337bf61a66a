"""What must be said under the tables: what is not comparable, not paired, not finished, not read."""

from oelm.analysis.compare.arms import Arm, Note
from oelm.analysis.compare.comparison import RATE
from oelm.analysis.compare.results import Loaded

WORTH_SAYING = 0.01
"""Nats by which a loss must have risen since its best before the report speaks of it."""
MOST_NAMED = 6
"""Unfinished runs, or arms with the same note, that are named one by one; the tables have them all."""


def notes(loaded: Loaded) -> list[Note]:
    """What must be said under the tables, gravest first."""
    said: list[Note] = []
    for comparison in loaded.comparisons:
        where = {"dataset": comparison.dataset, "model": comparison.model}
        if not any(arm.is_baseline or arm.baseline for arm in comparison.arms):
            said.append(Note("note_no_baseline", where))
        unequal = [arm.label for arm in comparison.arms if arm.is_unequal]
        if unequal:
            said.append(Note("note_unequal", {"arms": _first_few(unequal), **where}))
        for record in comparison.records:
            for opponent in (opponent for opponent in record.opponents if opponent.differences):
                about = {"baseline": opponent.label, "differences": opponent.differences}
                said.append(Note("note_not_comparable", {"arm": record.label, **about}))
        for arm in comparison.arms:
            if arm.rates and not arm.at_best_rate:
                facts = {"arm": arm.label, "best": arm.best_rate, "shown": arm.settings.get(RATE)}
                said.append(Note("note_rate", {**facts, **where}))
            if len(arm.rates) > 2 and arm.best_rate in (min(arm.rates), max(arm.rates)):
                said.append(Note("note_rate_edge", {"arm": arm.label, "best": arm.best_rate, **where}))
            if arm.baseline and not arm.scores.keys() & arm.baseline.scores.keys():
                said.append(Note("note_no_common_seed", {"arm": arm.label, "baseline": arm.baseline.label}))
        splits = {str(run.final["split"]) for run in comparison.runs if run.final.get("split")}
        if splits - {"validation"}:
            said.append(Note("note_split", {"split": ", ".join(sorted(splits)), **where}))
        past = [(arm, by) for arm in comparison.arms if (by := past_its_best(arm)) > WORTH_SAYING]
        if past:
            labels, worst = [arm.label for arm, _ in past], f"{max(by for _, by in past):.3f}"
            said.append(Note("note_past_best", {"arms": _first_few(labels), "nats": worst, **where}))
        blank = [run.name for run in comparison.runs if not run.curve(comparison.metric.key)]
        if blank:
            said.append(Note("note_no_curve", {"runs": _first_few(blank)}))
        single = [
            record.label
            for record in comparison.records
            if len(record.seeds) == 1 or any(len(opponent.gap.by_seed) == 1 for opponent in record.opponents)
        ]
        if single:
            said.append(Note("note_one_seed", {"arms": _first_few(single), **where}))
    times = [record.time for comparison in loaded.comparisons for record in comparison.records if record.time]
    if any(not time.interleaved and not time.is_reference for time in times):
        said.append(Note("note_not_interleaved"))
    if len(loaded.incomplete) > MOST_NAMED:
        said.append(Note("note_many_incomplete", {"count": len(loaded.incomplete)}))
    else:
        for run in loaded.incomplete:
            facts = {"run": run.name, "state": run.state, "step": run.step, "max_steps": run.max_steps or "?"}
            said.append(Note("note_incomplete", facts))
    said += [Note("note_skipped", {"path": str(s.path), "reason": s.note}) for s in loaded.skipped]
    return said


def _first_few(labels: list[str]) -> str:
    more = f" … ({len(labels)})" if len(labels) > MOST_NAMED else ""
    return ", ".join(labels[:MOST_NAMED]) + more


def past_its_best(arm: Arm) -> float:
    """By how many nats the last loss lies above the lowest on the way, on the same part of the validation set."""
    losses = [list(run.curve("loss").values()) for run in arm.runs]
    return max((found[-1] - min(found) for found in losses if found), default=0.0)
