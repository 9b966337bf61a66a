"""What a report says in plain words: a paragraph per comparison, computed from the same records as the tables.

A handful of arms is told one by one. Of many only counts and the ends of the ranking are: the tables have the rest.
"""

import math

from oelm.analysis.compare.arms import Arm, Comparison
from oelm.analysis.compare.statistics import (
    FASTER,
    MET,
    MISSED,
    NO_DIFFERENCE,
    NOT_COMPARABLE,
    SLOWER,
    UNDECIDED,
    spread,
)
from oelm.analysis.report.rendering import Record
from oelm.analysis.report.texts import Texts

MOST_TOLD = 8
"""Arms that are told one by one."""
FIRST, LAST = 5, 3
"""Of more than these, the best and the worst that are named."""


def paragraph(comparison: Comparison, records: list[Record], t: Texts) -> str:
    many = len(comparison.arms) > MOST_TOLD
    names = t("sum_count", count=len(comparison.arms)) if many else t.listing([arm.label for arm in comparison.arms])
    said = [t("sum_study", dataset=comparison.dataset, model=comparison.model, arms=names)]
    said += [_about_baseline(comparison, arm, t) for arm in comparison.arms if arm.is_baseline]
    if not any(arm.is_baseline for arm in comparison.arms):
        scores = [f"{r['method']} {comparison.metric.show(r['score'])}" for r in records]
        said.append(t("sum_scores", metric=t(f"metric_{comparison.metric.name}"), scores=t.listing(scores)))
    gaps = [(arm, r) for arm, r in zip(comparison.arms, records, strict=True) if r["gap"] is not None]
    if gaps and many:
        said += _about_many(comparison, gaps, t)
    elif gaps:
        said += [t("sum_goal"), t.list_sentences([_about_gap(comparison, r, t) for _, r in gaps])]
    close = [r for arm, r in gaps if arm.made.freezes and r["goal_1"] == MET]
    said += [t("sum_close", arms=_some([_with_gap(r, t) for r in _ranked(comparison, close)], t))] if close else []
    return t.join([*said, *_about_times(records, t)])


def _about_baseline(comparison: Comparison, arm: Arm, t: Texts) -> str:
    score = spread(list(arm.scores.values()))
    metric, shown = t(f"metric_{comparison.metric.name}"), comparison.metric.show(score.mean)
    sentence = t("sum_baseline", arm=arm.label, metric=metric, score=shown, seeds=score.count)
    if comparison.true_entropy is None or arm.number:
        return sentence
    floor = math.exp(comparison.true_entropy)
    above = f"{100 * (score.mean / floor - 1):.1f}"
    return t.join([sentence, t("sum_floor", arm=arm.label, floor=comparison.metric.show(floor), percent=above)])


def _about_gap(comparison: Comparison, record: Record, t: Texts) -> str:
    gap, interval = record["gap"], ""
    if record["gap_low"] is not None:
        low, high = (f"{record[key]:+.1f}".replace("-", "−") for key in ("gap_low", "gap_high"))
        interval = t("sum_interval", low=low, high=high)
    comparable = record["goal"] != NOT_COMPARABLE
    interval = _against(record, t) + (interval if comparable else "")  # which would say more than is known
    shown = f"{abs(gap):.1f}"
    key = "sum_incomparable" if not comparable else "sum_equal" if float(shown) == 0 else "sum_gap"
    return t(
        key,
        arm=record["method"],
        gap=t(f"unit_{record['gap_unit']}", value=shown),
        direction=t("better" if (gap > 0) == comparison.metric.higher_is_better else "worse"),
        interval=interval,
        goal=t.word("goal", record["goal"]),
    )


def _about_many(comparison: Comparison, gaps: list[tuple[Arm, Record]], t: Texts) -> list[str]:
    """Who meets the goal, who misses it and of whom nobody knows; then the arms that freeze nothing."""
    freezing = _ranked(comparison, [r for arm, r in gaps if arm.made.freezes])
    controls = _ranked(comparison, [r for arm, r in gaps if not arm.made.freezes])
    told = []
    for verdict in (MET, MISSED, UNDECIDED, NOT_COMPARABLE):
        found = [_with_gap(r, t) for r in freezing if r["goal"] == verdict]
        key = f"sum_many_{verdict.replace(' ', '_')}"
        told += [t(key, count=len(found), arms=_some(found, t))] if found else []
    said = [t("sum_goal"), t.list_sentences(told)] if told else []
    return [*said, *([t("sum_controls", arms=_some([_with_gap(r, t) for r in controls], t))] if controls else [])]


def _about_times(records: list[Record], t: Texts) -> list[str]:
    timed = sorted((r for r in records if r["step_time_verdict"]), key=lambda r: r["step_time_ratio"])
    if not timed:
        return []
    if len(timed) <= MOST_TOLD:
        told = [(f"{r['method']} {r['step_time_ratio']:.3f}", t.word("speed", r["step_time_verdict"])) for r in timed]
        return [t("sum_time", times=t.listing([t("sum_judged", what=what, verdict=verdict) for what, verdict in told]))]
    groups = []
    for verdict in (FASTER, NO_DIFFERENCE, SLOWER):
        found = [f"{r['method']} {r['step_time_ratio']:.3f}" for r in timed if r["step_time_verdict"] == verdict]
        if found:
            groups.append(t("sum_times", verdict=t.word("speed", verdict), count=len(found), arms=_some(found, t)))
    return [t("sum_time", times=t.clauses(groups))]


def _ranked(comparison: Comparison, records: list[Record]) -> list[Record]:
    """Best gap first."""
    return sorted(records, key=lambda r: r["gap"], reverse=comparison.metric.higher_is_better)


def _with_gap(record: Record, t: Texts) -> str:
    gap = t(f"unit_{record['gap_unit']}", value=f"{record['gap']:+.1f}").replace("-", "−")
    return f"{record['method']} {gap}{_against(record, t)}"


def _against(record: Record, t: Texts) -> str:
    """The opponent, where it is not the plain baseline."""
    return t("sum_against", baseline=record["gap_against"]) if record["gap_against_plain"] is False else ""


def _some(names: list[str], t: Texts) -> str:
    if len(names) <= FIRST + LAST:
        return t.listing(names)
    return f"{t.listing(names[:FIRST])} … {t.listing(names[-LAST:])}"
