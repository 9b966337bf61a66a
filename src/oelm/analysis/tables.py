"""Every table of the analysis, each from one source: typed records behind, one way of showing them in front.

table = summary_table(load_runs(["runs/demo"]))
table.records     # numbers, for JSON and CSV
table.rows()      # the same as text, for terminal, markdown and HTML
"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from oelm.analysis.results import Arm, Loaded, Note, Study
from oelm.analysis.statistics import METRICS, NO_DIFFERENCE, Gap, goal_verdict, paired_gap, ratio_verdict, spread
from oelm.analysis.texts import NONE, Texts, texts

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Record = dict[str, Any]
BYTES_PER_VALUE = 4
STEPS_SHOWN = 6
FOLD = "\n"
"""Where a cell may be broken into lines on a narrow terminal."""
PADDING = 2
VERIFIED, NOTHING_FROZEN, NOT_VERIFIED = "verified", "nothing frozen", "not verified"


@dataclass(frozen=True)
class Column:
    key: str
    """Names its heading in `texts`."""
    cell: Callable[..., str]
    """Of a record and the texts."""
    right: bool = True
    heading: str | None = None


@dataclass(frozen=True)
class Table:
    name: str
    columns: list[Column]
    records: list[Record]
    texts: Texts = field(default_factory=lambda: texts("en"))

    @property
    def title(self) -> str:
        return self.texts(f"table_{self.name}")

    def header(self) -> list[str]:
        return [column.heading or self.texts(f"column_{column.key}") for column in self.columns]

    def rows(self, folded: bool = False) -> list[list[str]]:
        """The cells as text; folded, long ones take several lines."""
        cells = [[column.cell(record, self.texts) for column in self.columns] for record in self.records]
        return cells if folded else [[cell.replace(FOLD, " ") for cell in row] for row in cells]

    def csv(self) -> str:
        """All fields of the records, as numbers; an unknown value is an empty cell."""
        out = io.StringIO()
        fields = list(dict.fromkeys(key for record in self.records for key in record))
        writer = csv.DictWriter(out, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return out.getvalue()

    def markdown(self) -> str:
        rows = [[cell.replace("|", r"\|") for cell in row] for row in [self.header(), *self.rows()]]
        rule = ["--:" if column.right else ":--" for column in self.columns]
        return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])

    def rich(self, width: int) -> "list[RichTable]":
        """One table where it fits; else cells are folded and the columns dealt out to several tables."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        header, rows = self.header(), self.rows(folded=False)
        widths = _widths(header, rows)
        parts = [list(range(1, len(header)))]
        if sum(widths) > width:
            rows = self.rows(folded=True)
            widths = _widths([max(name.split(" "), key=len) for name in header], rows)
            parts = _deal(widths, width)
        tables: list[RichTable] = []
        for part in parts:
            table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
            for i in (0, *part):
                justify: Literal["left", "right"] = "right" if self.columns[i].right else "left"
                table.add_column(header[i], justify=justify, max_width=widths[i] - PADDING, overflow="fold")
            for row in rows:
                table.add_row(*(Text(row[i]) for i in (0, *part)))
            tables.append(table)
        return tables


def summary_table(loaded: Loaded, lang: str = "en") -> Table:
    """One row per arm: what it reached, how far that is from the baseline, what it cost."""
    t, metrics = texts(lang), {study.metric.name for study in loaded.studies}
    several = len({(study.dataset, study.model) for study in loaded.studies}) > 1
    columns = [
        _METHOD,
        *(_WHERE if several else []),
        *([Column("metric", _named("metric", "metric"), right=False)] if len(metrics) > 1 else []),
        Column("seeds", _text("seeds")),
        Column("score", _score, heading=t(f"metric_{min(metrics)}") if len(metrics) == 1 else None),
        _GAP,
        _GOAL,
        Column("bits_per_byte", _number("bits_per_byte", ".4f")),
        *_PARAMETERS,
        _STEP_TIME,
        Column("frozen_check", _audit, right=False),
    ]
    return Table(
        "summary", columns, [_summary(loaded, arm, study) for study in loaded.studies for arm in study.arms], t
    )


def all_tables(loaded: Loaded, lang: str = "en") -> list[Table]:
    t = texts(lang)
    summary = summary_table(loaded, lang)
    tables = [
        summary,
        Table("gaps", _GAP_COLUMNS, _only([r for r in summary.records if r["gap"] is not None], "gap", "goal"), t),
        Table("memory", _MEMORY_COLUMNS, _only(summary.records, "parameters", "bytes"), t),
        Table("time", _TIME_COLUMNS, _only(summary.records, "step_time", "seconds"), t),
        *(steps_table(study, lang) for study in loaded.studies),
        Table("runs", _RUN_COLUMNS, _run_records(loaded), t),
        Table(
            "skipped", _SKIPPED_COLUMNS, [{"path": str(s.path), "reason": t.note(s.note)} for s in loaded.skipped], t
        ),
    ]
    return [table for table in tables if table.records]


def steps_table(study: Study, lang: str = "en") -> Table:
    """The arms at equal steps: the mean over seeds at validation steps that all runs share."""
    key = study.metric.key
    common = sorted(set.intersection(*(set(run.curve(key)) for run in study.runs))) if study.runs else []
    last = len(common) - 1
    shown = sorted({common[round(i * last / (STEPS_SHOWN - 1))] for i in range(STEPS_SHOWN)}) if common else []
    records = [
        {
            "dataset": study.dataset,
            "model": study.model,
            "method": arm.label,
            "metric": study.metric.name,
            **{f"step_{step}": spread([run.curve(key)[step] for run in arm.runs]).mean for step in shown},
        }
        for arm in study.arms
    ]
    columns = [Column(f"step_{s}", _at_step(f"step_{s}"), heading=texts(lang)("at_step", step=f"{s:,}")) for s in shown]
    return Table("steps", [_METHOD, *columns], records if shown else [], texts(lang))


def notes(loaded: Loaded) -> list[Note]:
    """What must be said under the tables, gravest first."""
    said: list[Note] = []
    for study in loaded.studies:
        where = {"dataset": study.dataset, "model": study.model}
        if not any(arm.is_baseline for arm in study.arms):
            said.append(Note("note_no_baseline", where))
        for arm in study.arms:
            if arm.differences:
                said.append(Note("note_not_comparable", {"arm": arm.label, "differences": arm.differences}))
            if arm.baseline and not arm.scores.keys() & arm.baseline.scores.keys():
                said.append(Note("note_no_common_seed", {"arm": arm.label, "baseline": arm.baseline.label}))
        single = [arm.label for arm in study.arms if len(arm.runs) == 1]
        if single:
            said.append(Note("note_one_seed", {"arms": ", ".join(single), **where}))
    if any((time := loaded.step_time(arm)) and not time.interleaved and not time.is_reference for arm in loaded.arms):
        said.append(Note("note_not_interleaved"))
    for run in loaded.incomplete:
        facts = {"run": run.name, "state": run.state, "step": run.step, "max_steps": run.max_steps or "?"}
        said.append(Note("note_incomplete", facts))
    said += [Note("note_skipped", {"path": str(s.path), "reason": s.note}) for s in loaded.skipped]
    return said


def gap_of(arm: Arm) -> Gap | None:
    return paired_gap(arm.metric, arm.scores, arm.baseline.scores) if arm.baseline else None


# Records


def _summary(loaded: Loaded, arm: Arm, study: Study) -> Record:
    score, gap, time = spread(list(arm.scores.values())), gap_of(arm), loaded.step_time(arm)
    t, boot = (gap.t, gap.bootstrap) if gap else (None, None)
    total, frozen, trainable = (_first(arm, f"{kind}_parameters") for kind in ("total", "frozen", "trainable"))
    verified = all((run.result or {}).get("frozen_verified") is True for run in arm.runs)
    return {
        "dataset": study.dataset,
        "model": study.model,
        "method": arm.label,
        "metric": study.metric.name,
        "seeds": score.count,
        "seed_list": " ".join(map(str, arm.scores)),
        "score": score.mean,
        "score_std": score.std,
        "gap": gap.value if gap else None,
        "gap_unit": "points" if study.metric.gap_in_points else "percent",
        "gap_seeds": len(gap.by_seed) if gap else 0,
        "gap_low": t.low if t else None,
        "gap_high": t.high if t else None,
        "gap_bootstrap_low": boot.low if boot else None,
        "gap_bootstrap_high": boot.high if boot else None,
        "goal": goal_verdict(gap.worse) if gap else None,
        "comparable": not arm.differences,
        "bits_per_byte": _mean(arm, "bits_per_byte"),
        "total_parameters": total,
        "frozen_parameters": frozen,
        "trainable_parameters": trainable,
        "frozen_check": NOTHING_FROZEN if frozen == 0 else VERIFIED if verified else NOT_VERIFIED,
        "step_time_ratio": time.ratio if time else None,
        "step_time_low": time.low if time else None,
        "step_time_high": time.high if time else None,
        "step_time_predicted": time.predicted if time else None,
        "step_time_interleaved": bool(time and time.interleaved),
        "step_time_verdict": ratio_verdict(time.low, time.high) if time else None,
        "median_step_seconds": _mean(arm, "median_step_time"),
        "training_seconds": _mean(arm, "training_seconds"),
        "validation_seconds": _mean(arm, "validation_seconds"),
        "weight_bytes": None if total is None else BYTES_PER_VALUE * total,
        "optimizer_bytes": None if trainable is None else 2 * BYTES_PER_VALUE * trainable,
        "checkpoint_bytes": None if None in (total, trainable) else BYTES_PER_VALUE * (total + 2 * trainable),  # type: ignore[operator]
        "peak_memory_bytes": _mean(arm, "peak_memory_bytes"),
        "is_baseline": arm.is_baseline,
    }


def _only(records: list[Record], *topics: str) -> list[Record]:
    """The fields that say which arm it is, and those whose name has one of the topics in it."""
    always = ("dataset", "model", "method", "metric", "comparable", "is_baseline")
    return [{k: v for k, v in r.items() if k in always or any(topic in k for topic in topics)} for r in records]


def _run_records(loaded: Loaded) -> list[Record]:
    return [
        {
            "run": run.name,
            "method": run.method["name"],
            "seed": run.seed,
            "step": run.step,
            "max_steps": run.max_steps,
            "state": run.state,
            **{metric.key: run.final.get(metric.key) for metric in METRICS if metric.key in run.final},
        }
        for run in loaded.runs
    ]


def _mean(arm: Arm, key: str) -> float | None:
    values = arm.facts(key)
    return spread(values).mean if values else None


def _first(arm: Arm, key: str) -> int | None:
    values = arm.facts(key)
    return int(values[0]) if values else None


# Cells


def _text(key: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else str(record[key])


def _named(key: str, prefix: str) -> Callable[[Record, Texts], str]:
    """A word of ours (a verdict, a state), in the reader's language."""
    return lambda record, t: NONE if record.get(key) is None else t.word(prefix, record[key])


def _number(key: str, spec: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else format(record[key], spec)


def _bytes(key: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else f"{record[key] / 2**20:,.1f} MiB"


def _at_step(key: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: _metric_of(record).show(record[key])


def _metric_of(record: Record) -> Any:
    return next(metric for metric in METRICS if metric.name == record["metric"])


def _score(record: Record, t: Texts) -> str:
    metric, std = _metric_of(record), record["score_std"]
    mean = metric.show(record["score"])
    if std is None:
        return mean
    digits = len(mean.removesuffix(metric.suffix).partition(".")[2])
    return f"{mean.removesuffix(metric.suffix)} ± {std * metric.scale:.{digits}f}{metric.suffix}"


def _interval(low: float | None, high: float | None, spec: str) -> str:
    return "" if low is None or high is None else f"{FOLD}[{low:{spec}}, {high:{spec}}]".replace("-", "−")


def gap_text(record: Record, t: Texts, with_goal: bool = False) -> str:
    if record["gap"] is None:
        return NONE
    value = t(f"unit_{record['gap_unit']}", value=f"{record['gap']:+.1f}").replace("-", "−")
    text = value + ("" if record["comparable"] else " *") + _interval(record["gap_low"], record["gap_high"], "+.1f")
    return f"{text}  {t.word('goal', record['goal'])}".replace(FOLD, " ") if with_goal else text


def _bootstrap(record: Record, t: Texts) -> str:
    return _interval(record["gap_bootstrap_low"], record["gap_bootstrap_high"], "+.1f").strip() or NONE


def step_time_text(record: Record, t: Texts, with_verdict: bool = False) -> str:
    """Only what is surprising has a word in a table; a figure has room for all."""
    ratio, verdict = record["step_time_ratio"], record["step_time_verdict"]
    if ratio is None:
        return NONE
    if not record["step_time_interleaved"]:
        text = "1" if record["is_baseline"] else f"{ratio:.2f}{FOLD}({t('not_interleaved').replace(' ', FOLD)})"
    else:
        text = f"{ratio:.3f}" + _interval(record["step_time_low"], record["step_time_high"], ".3f")
        if verdict == NO_DIFFERENCE or (verdict and with_verdict):
            text += f"{FOLD}{t.word('speed', verdict)}"
    return text.replace(FOLD, " ") if with_verdict else text


def _audit(record: Record, t: Texts) -> str:
    return t.word("frozen", record["frozen_check"]).replace(" ", FOLD)


def _widths(header: list[str], rows: list[list[str]]) -> list[int]:
    from rich.cells import cell_len

    columns = zip(header, *rows, strict=True)
    return [PADDING + max(cell_len(line) for cell in column for line in cell.split(FOLD)) for column in columns]


def _deal(widths: list[int], width: int) -> list[list[int]]:
    """Columns after the first, into as few tables as fit."""
    parts: list[list[int]] = [[]]
    for i in range(1, len(widths)):
        if parts[-1] and widths[0] + sum(widths[j] for j in parts[-1]) + widths[i] > width:
            parts.append([])
        parts[-1].append(i)
    return parts


_METHOD = Column("method", _text("method"), right=False)
_WHERE = [Column("dataset", _text("dataset"), right=False), Column("model", _text("model"), right=False)]
_GAP = Column("gap", gap_text)
_GOAL = Column("goal", _named("goal", "goal"), right=False)
_STEP_TIME = Column("step_time", step_time_text)
_PARAMETERS = [Column(f"{k}_parameters", _number(f"{k}_parameters", ",")) for k in ("total", "frozen", "trainable")]
_GAP_COLUMNS = [
    _METHOD,
    Column("gap_seeds", _text("gap_seeds")),
    _GAP,
    Column("gap_bootstrap", _bootstrap),
    _GOAL,
]
_MEMORY_COLUMNS = [
    _METHOD,
    *_PARAMETERS,
    Column("optimizer_bytes", _bytes("optimizer_bytes")),
    Column("checkpoint_bytes", _bytes("checkpoint_bytes")),
    Column("peak_memory_bytes", _bytes("peak_memory_bytes")),
]
_TIME_COLUMNS = [
    _METHOD,
    _STEP_TIME,
    Column("step_time_predicted", _number("step_time_predicted", ".3f")),
    Column("median_step_seconds", _number("median_step_seconds", ".4g")),
    Column("training_seconds", _number("training_seconds", ",.1f")),
    Column("validation_seconds", _number("validation_seconds", ",.1f")),
]
_RUN_COLUMNS = [
    Column("run", _text("run"), right=False),
    Column("method", _text("method"), right=False),
    Column("seed", _text("seed")),
    Column("step", _number("step", ",")),
    Column("max_steps", _number("max_steps", ",")),
    Column("state", _named("state", "state"), right=False),
]
_SKIPPED_COLUMNS = [Column("path", _text("path"), right=False), Column("reason", _text("reason"), right=False)]
