"""What was measured of runs after their training, and what classifiers made of every row, as tables."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from oelm.analysis.compare.arms import Arm, Comparison, Note, Run, is_number
from oelm.analysis.compare.results import Loaded, Skipped
from oelm.analysis.compare.statistics import paired_t, spread
from oelm.analysis.report.cells import number_cell, text_cell
from oelm.analysis.report.rendering import FOLD, Column, Table
from oelm.analysis.report.texts import NONE, Texts
from oelm.errors import OelmError, printable
from oelm.records import read_json, read_rows

MISTAKES = 3
LONGEST = 300
Values = dict[str, dict[int, float]]
"""By measure and seed."""


@dataclass
class Evaluations:
    measures: list[dict[str, Any]] = field(default_factory=list)
    confusions: dict[tuple[str, ...], list[dict[str, Any]]] = field(default_factory=dict)
    """By the classes that there are."""
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[Skipped] = field(default_factory=list)

    def tables(self, t: Texts, place: Callable[[Any], str]) -> Iterator[Table]:
        """A row per measure and arm, per arm and class, per mistake."""
        measure, method, known, called, told = (
            Column(key, text_cell(key), right=False) for key in ("measure", "method", "class", "prediction", "text")
        )
        columns = [measure, method, Column("value", _value), Column("difference", _change)]
        yield Table("evaluation", columns, self.measures, t, place)
        for classes, rows in self.confusions.items():
            said = [Column(f"said_{c}", text_cell(f"said_{c}"), heading=t("column_said", name=c)) for c in classes]
            yield Table("confusion", [method, known, *said], rows, t, place)
        columns = [method, told, known, called, Column("sure", number_cell("sure", ".2f"))]
        yield Table("mistakes", columns, self.mistakes, t, place)


def evaluations(loaded: Loaded) -> Evaluations:
    found = Evaluations()
    for comparison in loaded.comparisons:
        place = {"dataset": comparison.dataset, "model": comparison.model}
        found.measures += [{**place, **row} for row in _measures(comparison, found.damaged)]
        for arm in comparison.arms:
            _predictions(arm, {**place, "method": arm.label}, found)
    return found


def _measures(comparison: Comparison, damaged: list[Skipped]) -> list[dict[str, Any]]:
    arms: dict[str, Values] = {}
    beside: dict[str, Values] = {}
    for arm in comparison.arms:
        for run in arm.runs:
            for record in _records(run, damaged):
                rows = {arm.label: (arms, record["headlines"])}
                rows |= {str(name): (beside, values) for name, values in (record.get("beside") or {}).items()}
                for label, (kept, values) in rows.items():
                    for name, value in values.items():
                        kept.setdefault(label, {}).setdefault(printable(name), {})[run.seed] = value
    baselines = {arm.label: arm.plain_baseline.label for arm in comparison.arms if arm.plain_baseline}
    return [
        {"measure": measure, "method": label, **_figures(values, other)}
        for measure in dict.fromkeys(name for values in arms.values() for name in values)
        for label, kept in (*arms.items(), *beside.items())
        if (values := kept.get(measure))
        for other in [arms.get(baselines.get(label, ""), {}).get(measure, {}) if label in arms else {}]
    ]


def _figures(values: dict[int, float], other: dict[int, float]) -> dict[str, Any]:
    found = spread(list(values.values()))
    apart = [values[seed] - other[seed] for seed in sorted(values.keys() & other.keys())]
    interval = paired_t(apart)
    return {
        **{"mean": found.mean, "std": found.std, "seeds": found.count},
        "difference": spread(apart).mean if apart else None,
        **{"low": interval and interval.low, "high": interval and interval.high},
    }


def _records(run: Run, damaged: list[Skipped]) -> Iterator[dict[str, Any]]:
    """Those with figures for a report; what is damaged is named beside the table, and costs the run nothing else."""
    for file in sorted((run.folder.path / "evaluation").glob("*.json")):
        try:
            record = read_json(file, "headlines") or {}
            figures = [record["headlines"], *(record.get("beside") or {}).values()]
            if not all(map(is_number, (value for one in figures for value in one.values()))):
                raise OelmError("a headline is no number")
            yield record
        except (OelmError, AttributeError) as error:
            damaged.append(Skipped(file, Note("skip_unreadable", {"error": str(error)})))


def _predictions(arm: Arm, place: dict[str, str], found: Evaluations) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for number, run in enumerate(arm.runs):
        file = run.folder.predictions_file
        try:
            rows = read_rows(file, "label", "prediction", "scores")
            pairs = [(str(row["label"]), str(row["prediction"])) for row in rows]
            wrong = [(max(map(float, row["scores"])), row) for row, (a, b) in zip(rows, pairs, strict=True) if a != b]
        except (OelmError, TypeError, ValueError) as error:
            found.damaged.append(Skipped(file, Note("skip_unreadable", {"error": str(error)})))
            continue
        counts.update(pairs)
        for sure, row in sorted(wrong, key=lambda one: -one[0])[: 0 if number else MISTAKES]:
            text = str(row.get("text") or row.get("index"))[:LONGEST]
            known = {"class": str(row["label"]), "prediction": str(row["prediction"])}
            found.mistakes.append({**place, "text": text, **known, "sure": sure})
    classes = tuple(map(str, arm.runs[0].final.get("classes") or ())) if counts else ()
    for label in classes:
        total = sum(counts[label, said] for said in classes)
        shares = {f"said_{c}": f"{counts[label, c]:,} ({counts[label, c] / max(1, total):.0%})" for c in classes}
        found.confusions.setdefault(classes, []).append({**place, "class": label, **shares})


def _value(record: dict[str, Any], t: Texts) -> str:
    spread_of = "" if not record["std"] else f" ± {record['std']:.2g}"
    return f"{record['mean']:.4g}{spread_of}{FOLD}({record['seeds']})"


def _change(record: dict[str, Any], t: Texts) -> str:
    if record["difference"] is None:
        return NONE
    interval = "" if record["low"] is None else f"{FOLD}[{record['low']:+.3g}, {record['high']:+.3g}]"
    return f"{record['difference']:+.3g}{interval}".replace("-", "−")
