"""Every table of the analysis: `facts()` are numbers, for JSON and CSV; `rows()` the same as text, for all others."""

from functools import partial
from typing import Any

import numpy as np

from oelm.analysis.compare.arms import Arm, Comparison
from oelm.analysis.compare.comparison import RATE
from oelm.analysis.compare.record import ArmRecord
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import METRICS, spread
from oelm.analysis.report import cells
from oelm.analysis.report.cells import bytes_cell, number_cell, score_cell, text_cell, word_cell
from oelm.analysis.report.evaluations import evaluation_tables
from oelm.analysis.report.rendering import Column, Table
from oelm.analysis.report.texts import texts

STEPS_SHOWN = 6


def summary_table(loaded: Loaded, lang: str = "en") -> Table:
    """Page one: what every arm reached, how far that is from its baselines, what it cost. Seven columns."""
    t, metrics = texts(lang), {comparison.metric.name for comparison in loaded.comparisons}
    name = t(f"metric_{min(metrics)}") if len(metrics) == 1 else t("column_score")
    columns = [
        _METHOD,
        Column("score", cells.score, heading=t("column_score_of", metric=name)),
        Column("plain", cells.plain_gap),
        Column("equal", cells.equal_gap),
        Column("verdict", cells.verdict, right=False),
        Column("step_time", cells.interleaved_step_time),
        Column("flops_ratio", number_cell("costs.flops_ratio", ".3f")),
    ]
    return Table("summary", columns, _all(loaded), t, _place)


def all_tables(loaded: Loaded, lang: str = "en") -> list[Table]:
    t, arms = texts(lang), _all(loaded)
    opposed = [[r for r in comparison.records if r.opponents] for comparison in loaded.comparisons]
    gaps = [r for rows in opposed for r in sorted(rows, key=lambda r: np.mean(r.opponents[0].gap.logs))]  # best first
    measured, damaged = evaluation_tables(loaded, t, _place)
    skipped = [{"path": str(s.path), "reason": t.note(s.note)} for s in (*loaded.skipped, *damaged)]
    tables = [
        summary_table(loaded, lang),
        Table("yardstick", _YARDSTICK_COLUMNS, [r for r in gaps if r.compute or r.best_trained], t, _place),
        Table("gaps", _GAP_COLUMNS, gaps, t, _place),
        Table("memory", _MEMORY_COLUMNS, arms, t, _place),
        Table("time", _TIME_COLUMNS, [r for r in arms if r.time], t, _place),
        *(sweep_table(comparison, lang) for comparison in loaded.comparisons),
        *(steps_table(comparison, lang) for comparison in loaded.comparisons),
        *measured,
        Table("runs", _RUN_COLUMNS, _run_facts(loaded), t),
        Table("skipped", _SKIPPED_COLUMNS, skipped, t),
    ]
    return [table for table in tables if table.records]


def steps_table(comparison: Comparison, lang: str = "en") -> Table:
    """The arms at equal steps: the mean over seeds at validation steps that all runs share."""
    key = comparison.metric.key
    curves = [set(run.curve(key)) for run in comparison.runs if run.curve(key)]
    common = sorted(set.intersection(*curves)) if curves else []
    last = len(common) - 1
    shown = sorted({common[round(i * last / (STEPS_SHOWN - 1))] for i in range(STEPS_SHOWN)}) if common else []
    records = [
        _where(comparison, arm)
        | {f"step_{s}": spread([run.curve(key)[s] for run in arm.runs if run.curve(key)]).mean for s in shown}
        for arm in comparison.arms
        if any(run.curve(key) for run in arm.runs)
    ]
    t, cell = texts(lang), partial(score_cell, metric=comparison.metric)
    columns = [Column(f"step_{s}", cell(f"step_{s}"), heading=t("at_step", step=f"{s:,}")) for s in shown]
    return Table("steps", [_METHOD, *columns], records if shown else [], t, _place)


def sweep_table(comparison: Comparison, lang: str = "en") -> Table:
    """What the arms reached at every learning rate they were given, and which one their figures are from."""
    swept = [arm for arm in comparison.arms if arm.rates]
    rates = sorted({rate for arm in swept for rate in arm.rates})
    records = [
        _where(comparison, arm)
        | {f"rate_{rate:g}": arm.rates.get(rate) for rate in rates}
        | {"best_rate": arm.best_rate, "rate_shown": arm.settings.get(RATE)}
        for arm in swept
    ]
    cell = partial(score_cell, metric=comparison.metric)
    columns = [Column(f"rate_{rate:g}", cell(f"rate_{rate:g}"), heading=f"{rate:g}") for rate in rates]
    chosen = [Column(key, number_cell(key, "g")) for key in ("best_rate", "rate_shown")]
    return Table("sweep", [_METHOD, *columns, *chosen], records, texts(lang), _place)


def _all(loaded: Loaded) -> list[ArmRecord]:
    return [record for comparison in loaded.comparisons for record in comparison.records]


def _where(comparison: Comparison, arm: Arm) -> dict[str, Any]:
    place = {"dataset": comparison.dataset, "model": comparison.model}
    return {**place, "label": arm.label, "metric": comparison.metric.name}


def _place(record: object) -> str:
    """Which comparison a row belongs to."""
    return "{dataset}, {model}".format_map(record if isinstance(record, dict) else vars(record))


def _run_facts(loaded: Loaded) -> list[dict[str, object]]:
    return [
        {
            **{"run": run.name, "method": run.method.name, "seed": run.seed},
            **{"step": run.step, "max_steps": run.max_steps, "state": run.state},
            **{metric.key: run.final.get(metric.key) for metric in METRICS if metric.key in run.final},
            **{key: (run.result or {}).get(key) for key in ("training_seconds", "validation_seconds")},
        }
        for run in loaded.runs
    ]


# Columns

_METHOD = Column("method", text_cell("label"), right=False)
_GAP_COLUMNS = [
    _METHOD,
    Column("plain", cells.plain_gap),
    Column("equal", cells.equal_gap),
    Column("close", word_cell("close", "goal"), right=False),
    Column("gap_seeds", cells.by_opponent(lambda gap: str(len(gap.by_seed)))),
    Column("correlation", cells.by_opponent(cells.correlation)),
    Column("unpaired", cells.by_opponent(cells.unpaired)),
]
_YARDSTICK_COLUMNS = [
    _METHOD,
    *(Column(f"gap_{at}", partial(cells.equal_compute_gap, at=at)) for at in ("steps", "flops", "time")),
    *(Column(f"speedup_{at}", partial(cells.speed_up, at=at)) for at in ("flops", "time")),
    Column("best_trained", cells.best_trained),
]
_MEMORY_COLUMNS = [
    _METHOD,
    Column("total_parameters", number_cell("costs.parameters", ",")),
    Column("frozen_parameters", number_cell("costs.frozen", ",")),
    *(Column(f"{of}_bytes", bytes_cell(f"costs.{of}_bytes")) for of in ("optimizer", "checkpoint", "peak_memory")),
    Column("frozen_check", word_cell("frozen_check", "frozen"), right=False),
]
_TIME_COLUMNS = [
    _METHOD,
    Column("step_time", cells.step_time),
    Column("step_seconds", number_cell("time.seconds", ".4g")),
    *(Column(key, number_cell(f"costs.{key}", ".3f")) for key in ("flops_ratio", "block_flops_ratio")),
]
_RUN_COLUMNS = [
    *(Column(key, text_cell(key), right=False) for key in ("run", "method")),
    Column("seed", text_cell("seed")),
    *(Column(key, number_cell(key, ",")) for key in ("step", "max_steps")),
    Column("state", word_cell("state", "state"), right=False),
]
_SKIPPED_COLUMNS = [Column(key, text_cell(key), right=False) for key in ("path", "reason")]
