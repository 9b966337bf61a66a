"""What was measured of models after their training, and what classifiers made of every row, arm by arm."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from oelm.analysis.compare.arms import Comparison, Note, Run, is_number
from oelm.analysis.compare.results import Loaded, Skipped, read_run
from oelm.analysis.compare.statistics import paired_t, spread
from oelm.analysis.report.cells import number_cell, text_cell
from oelm.analysis.report.rendering import FOLD, Column, Table
from oelm.analysis.report.texts import NONE, Texts
from oelm.errors import OelmError, printable
from oelm.records import read_json, read_rows
from oelm.runs import RunFolder

MISTAKES = 3
LONGEST = 300
ASKED = ("prompt", "samples", "tokens", "seed", "temperature", "top_k", "top_p", "reference", "words", "stride")
Row = dict[str, Any]


def evaluation_tables(loaded: Loaded, t: Texts, place: Callable[[Any], str]) -> tuple[list[Table], list[Skipped]]:
    """A row per measure and arm, per arm and class, per mistake; and the records that cannot be read."""
    damaged: list[Skipped] = []
    measures: list[Row] = []
    confusions: dict[tuple[str, ...], list[Row]] = {}  # by the classes that there are
    mistakes: list[Row] = []
    for comparison in loaded.comparisons:
        where = {"dataset": comparison.dataset, "model": comparison.model}
        measures += [{**where, **row} for row in _measures(comparison, damaged)]
        for arm in comparison.arms:
            answers = [answer for run in arm.runs if (answer := _answers(run, damaged))]
            counts = Counter((row["class"], row["prediction"]) for answer in answers for row in answer)
            classes = tuple(map(str, arm.runs[0].final.get("classes") or ())) if answers else ()
            for label in classes:
                total = max(1, sum(counts[label, said] for said in classes))
                said = {f"said_{c}": f"{counts[label, c]:,} ({counts[label, c] / total:.0%})" for c in classes}
                confusions.setdefault(classes, []).append({**where, "method": arm.label, "class": label, **said})
            wrong = [row for row in (answers[0] if answers else ()) if row["class"] != row["prediction"]]
            surest = sorted(wrong, key=lambda row: -row["sure"])[:MISTAKES]
            mistakes += [{**where, "method": arm.label, **row} for row in surest]
    measure, method, known, called, told = (
        Column(key, text_cell(key), right=False) for key in ("measure", "method", "class", "prediction", "text")
    )
    figures = [measure, method, Column("value", _value), Column("difference", _change)]
    tables = [Table("evaluation", figures, measures, t, place)]
    for classes, rows in confusions.items():
        shares = [Column(f"said_{c}", text_cell(f"said_{c}"), heading=t("column_said", name=c)) for c in classes]
        tables.append(Table("confusion", [method, known, *shares], rows, t, place))
    columns = [method, told, known, called, Column("sure", number_cell("sure", ".2f"))]
    return [*tables, Table("mistakes", columns, mistakes, t, place)], damaged


def _measures(comparison: Comparison, damaged: list[Skipped]) -> list[Row]:
    """Only what was asked alike is compared; where it was not, a measure is told with what differs."""
    Measure = tuple[str, str]  # its name, and how it was asked
    arms: dict[str, dict[Measure, dict[int, float]]] = {}  # by label, measure and seed
    beside: dict[str, dict[Measure, dict[int, float]]] = {}
    ways: dict[str, dict[str, Row]] = {}
    for arm in comparison.arms:
        for run in arm.runs:
            for record in _records(run, damaged):
                asked = {key: printable(str(record[key])) for key in ASKED if key in record}
                rows = {arm.label: (arms, record["headlines"])}
                rows |= {str(name): (beside, values) for name, values in (record.get("beside") or {}).items()}
                for label, (kept, values) in rows.items():
                    for name, value in values.items():
                        measure = printable(name), str(asked)
                        ways.setdefault(measure[0], {})[measure[1]] = asked
                        kept.setdefault(label, {}).setdefault(measure, {})[run.seed] = value

    def told(name: str, how: str) -> str:
        apart = [f"{k} {v}" for k, v in ways[name][how].items() if any(one.get(k) != v for one in ways[name].values())]
        return f"{name} ({', '.join(apart)})" if apart else name

    baselines = {arm.label: arm.plain_baseline.label for arm in comparison.arms if arm.plain_baseline}
    return [
        {"measure": told(*measure), "method": label, **_figures(values, other)}
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


def _answers(run: Run, damaged: list[Skipped]) -> list[Row]:
    """What a classifier made of every row it was judged by."""
    try:
        return [
            {
                "class": str(row["label"]),
                "prediction": str(row["prediction"]),
                "sure": max(map(float, row["scores"])),
                "text": str(row.get("text") or row.get("index"))[:LONGEST],
            }
            for row in read_rows(run.folder.predictions_file, "label", "prediction", "scores")
        ]
    except (OelmError, TypeError, ValueError) as error:
        damaged.append(Skipped(run.folder.predictions_file, Note("skip_unreadable", {"error": str(error)})))
        return []


def _value(record: dict[str, Any], t: Texts) -> str:
    spread_of = "" if not record["std"] else f" ± {record['std']:.2g}"
    return f"{record['mean']:.4g}{spread_of}{FOLD}({record['seeds']})"


def _change(record: dict[str, Any], t: Texts) -> str:
    if record["difference"] is None:
        return NONE
    interval = "" if record["low"] is None else f"{FOLD}[{record['low']:+.3g}, {record['high']:+.3g}]"
    return f"{record['difference']:+.3g}{interval}".replace("-", "−")


# Several models, which need not be of one comparison


class Measured(NamedTuple):
    name: str
    run: RunFolder | None
    values: dict[str, float]


def across(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Runs that differ in nothing but the seed are one arm; any other model is an arm of its own."""
    arms: dict[str, tuple[str, list[Measured]]] = {}
    for one in measured:
        run = read_run(one.run) if one.run is not None else None
        key, label = (run.arm_key, run.method.name) if isinstance(run, Run) else (one.name, one.name)
        arms.setdefault(key, (label, []))[1].append(one)
    labels = [label for label, _ in arms.values()]
    return [
        {
            "arm": label if labels.count(label) == 1 else f"{label} ({members[0].name})",
            "runs": [one.name for one in members],
            "values": {
                name: _figure([one.values[name] for one in members if name in one.values]) for name in members[0].values
            },
        }
        for label, members in arms.values()
    ]


def arms_table(arms: list[dict[str, Any]], leave_out: str = "-") -> Any:
    """For a terminal: an arm per row and a value per column, but those whose name ends with `leave_out`."""
    from rich.table import Table

    names = list(dict.fromkeys(name for arm in arms for name in arm["values"] if not name.endswith(leave_out)))
    table = Table("arm", "runs", *names, box=None)
    for arm in arms:
        table.add_row(arm["arm"], str(len(arm["runs"])), *(_cell(arm["values"].get(name)) for name in names))
    return table


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "–"
    ends = figure["interval"]
    between = f" [{ends['low']:.3g}, {ends['high']:.3g}]" if ends else ""
    return f"{figure['mean']:.4g}{between}"


def _figure(values: list[float]) -> dict[str, Any]:
    return {**asdict(spread(values)), "interval": (interval := paired_t(values)) and asdict(interval)}
