"""The questions an experiment was made for, answered from its runs: a sentence each, first on the report's page.

A question is data: two arms, and the kind of question, which names the sentences. It is written to `questions.json`
beside the runs, because reports read folders only.

    - { asks: cost, arm: oelm_freeze, against: baseline }
    - { asks: recovery, arm: permutation_qk+rank=8, against: oelm_freeze, rest: baseline }
"""

from collections.abc import Mapping, Sequence
from typing import Any

from oelm.analysis.compare.arms import Comparison
from oelm.analysis.compare.statistics import UNDECIDED, Gap, goal_verdict, more_seeds, paired_gap
from oelm.analysis.report.cells import gap_text
from oelm.analysis.report.rendering import FOLD
from oelm.analysis.report.texts import Texts

ADVANTAGE_PERCENT = 6.0  # by how much orthonormal projections are better than random ones in the original study
LIMITS: dict[str, float] = {"cost": 0.0, "orthogonality": -ADVANTAGE_PERCENT, "recovery": 0.0}
"""Kind of question: by how many percent the arm must be worse than the other for a yes. Decided if the whole interval
lies on one side."""


def answers(comparisons: Sequence[Comparison], questions: Sequence[Mapping[str, Any]], t: Texts) -> list[str]:
    """A sentence for every question whose arms were run; others are left out."""
    told = []
    for question in questions:
        kind, names = str(question.get("asks")), (question.get("arm"), question.get("against"))
        found = _gap(comparisons, *names) if kind in LIMITS else None
        if found is None:
            continue
        parts, rest = [_answer(kind, found, names, t)], _gap(comparisons, names[0], question.get("rest"))
        if rest is not None:
            parts.append(t("answer_rest", against=question["rest"], gap=_shown(*rest, t)))
        told.append(t.join(parts))
    return told


def _gap(comparisons: Sequence[Comparison], arm: Any, against: Any) -> tuple[Gap, Comparison] | None:
    for comparison in comparisons:
        scores = {record.label: record.scores for record in comparison.records}
        gap = paired_gap(comparison.metric, scores.get(arm, {}), scores.get(against, {}))
        if gap:
            return gap, comparison
    return None


def _answer(kind: str, found: tuple[Gap, Comparison], names: tuple[Any, Any], t: Texts) -> str:
    gap, verdict = found[0], goal_verdict(found[0].worse, LIMITS[kind])
    values = {"arm": names[0], "against": names[1], "gap": _shown(*found, t), "seeds": len(gap.by_seed)}
    sentence = t(f"answer_{kind}_{verdict}", **values, advantage=f"{ADVANTAGE_PERCENT:g}")
    missing = more_seeds(gap.logs, LIMITS[kind]) if verdict == UNDECIDED else None
    return t.join([sentence, t("answer_more_seeds", count=missing)]) if missing else sentence


def _shown(gap: Gap, comparison: Comparison, t: Texts) -> str:
    return gap_text(gap, comparison.metric, t).replace(FOLD, " ")
