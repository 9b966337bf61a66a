"""Every table of the analysis, each from one source: typed records behind, one way of showing them in front.

table = summary_table(load_runs(["runs/demo"]))
table.records     # numbers, for JSON and CSV
table.rows()      # the same as text, for terminal, markdown and HTML
"""

from oelm.analysis.compare.arms import Arm, Comparison
from oelm.analysis.compare.comparison import RATE, differences
from oelm.analysis.compare.results import Loaded
from oelm.analysis.compare.statistics import (
    GOAL_PERCENT,
    METRICS,
    NOT_COMPARABLE,
    Gap,
    goal_verdict,
    paired_gap,
    ratio_verdict,
    spread,
)
from oelm.analysis.report.cells import (
    audit_text,
    bootstrap_text,
    bytes_cell,
    gap_text,
    metric_of,
    number_cell,
    plain_gap_text,
    score_cell,
    score_text,
    step_time_text,
    text_cell,
    word_cell,
)
from oelm.analysis.report.rendering import Column, Record, Table
from oelm.analysis.report.texts import Note, texts
from oelm.runs import checkpoint_bytes

STEPS_SHOWN = 6
WORTH_SAYING = 0.01
"""Nats by which a loss must have risen since its best before the report speaks of it."""
MOST_NAMED = 6
"""Unfinished runs, or arms with the same note, that are named one by one; the tables have them all."""
VERIFIED, NOTHING_FROZEN, NOT_VERIFIED = "verified", "nothing frozen", "not verified"


def summary_table(loaded: Loaded, lang: str = "en") -> Table:
    """One row per arm: what it reached, how far that is from the baseline, what it cost."""
    t, metrics = texts(lang), {comparison.metric.name for comparison in loaded.comparisons}
    columns = [
        _METHOD,
        *_where(loaded),
        *([Column("metric", word_cell("metric", "metric"), right=False)] if len(metrics) > 1 else []),
        Column("seeds", text_cell("seeds")),
        Column("score", score_text, heading=t(f"metric_{min(metrics)}") if len(metrics) == 1 else None),
        _GAP,
        _GOAL,
        *([Column("bits_per_byte", number_cell("bits_per_byte", ".4f"))] if "perplexity" in metrics else []),
        *_PARAMETERS,
        _STEP_TIME,
        Column("frozen_check", audit_text, right=False),
    ]
    return Table(
        "summary",
        columns,
        [_summary(loaded, arm, comparison) for comparison in loaded.comparisons for arm in comparison.arms],
        t,
    )


def all_tables(loaded: Loaded, lang: str = "en") -> list[Table]:
    t = texts(lang)
    summary, first = summary_table(loaded, lang), [_METHOD, *_where(loaded)]
    gaps = sorted((r for r in summary.records if r["gap"] is not None), key=_place_among_gaps)
    others = any(r["gap_against_plain"] is False for r in gaps)
    gap_columns = [c for c in _GAP_COLUMNS if others or c.key not in ("gap_against", "gap_plain")]
    tables = [
        summary,
        Table("gaps", [*first, *gap_columns], _only(gaps, "gap", "goal"), t),
        Table("memory", [*first, *_MEMORY_COLUMNS], _only(summary.records, "parameters", "bytes"), t),
        Table("time", [*first, *_TIME_COLUMNS], _only(summary.records, "step_time", "seconds"), t),
        *(sweep_table(comparison, lang) for comparison in loaded.comparisons),
        *(steps_table(comparison, lang) for comparison in loaded.comparisons),
        Table("runs", _RUN_COLUMNS, _run_records(loaded), t),
        Table(
            "skipped", _SKIPPED_COLUMNS, [{"path": str(s.path), "reason": t.note(s.note)} for s in loaded.skipped], t
        ),
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
        {
            "dataset": comparison.dataset,
            "model": comparison.model,
            "method": arm.label,
            "metric": comparison.metric.name,
            **{f"step_{s}": spread([run.curve(key)[s] for run in arm.runs if run.curve(key)]).mean for s in shown},
        }
        for arm in comparison.arms
        if any(run.curve(key) for run in arm.runs)
    ]
    columns = [
        Column(f"step_{s}", score_cell(f"step_{s}"), heading=texts(lang)("at_step", step=f"{s:,}")) for s in shown
    ]
    return Table("steps", [_METHOD, *columns], records if shown else [], texts(lang))


def sweep_table(comparison: Comparison, lang: str = "en") -> Table:
    """What the arms reached at every learning rate they were given, and which one their figures are from."""
    swept = [arm for arm in comparison.arms if arm.rates]
    rates = sorted({rate for arm in swept for rate in arm.rates})
    records = [
        {
            "dataset": comparison.dataset,
            "model": comparison.model,
            "method": arm.label,
            "metric": comparison.metric.name,
            **{f"rate_{rate:g}": arm.rates.get(rate) for rate in rates},
            "best_rate": arm.best_rate,
            "rate_shown": arm.settings.get(RATE),
        }
        for arm in swept
    ]
    columns = [Column(f"rate_{rate:g}", score_cell(f"rate_{rate:g}"), heading=f"{rate:g}") for rate in rates]
    chosen = [Column(key, number_cell(key, "g")) for key in ("best_rate", "rate_shown")]
    return Table("sweep", [_METHOD, *columns, *chosen], records, texts(lang))


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
        for arm in comparison.arms:
            if arm.differences:
                said.append(Note("note_not_comparable", {"arm": arm.label, "differences": arm.differences}))
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
            a.label for a in comparison.arms if len(a.runs) == 1 or ((gap := gap_of(a)) and len(gap.by_seed) == 1)
        ]
        if single:
            said.append(Note("note_one_seed", {"arms": _first_few(single), **where}))
    if any((time := loaded.step_time(arm)) and not time.interleaved and not time.is_reference for arm in loaded.arms):
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


def _where(loaded: Loaded) -> list[Column]:
    """What tells the comparisons apart: columns for data set and model, if there are several."""
    found = {
        "dataset": {comparison.dataset for comparison in loaded.comparisons},
        "model": {comparison.model for comparison in loaded.comparisons},
    }
    return [Column(key, text_cell(key), right=False) for key, values in found.items() if len(values) > 1]


def _place_among_gaps(record: Record) -> tuple[str, str, float]:
    """Best first within a comparison."""
    sign = -1 if metric_of(record).higher_is_better else 1
    return record["dataset"], record["model"], sign * record["gap"]


def past_its_best(arm: Arm) -> float:
    """By how many nats the last loss lies above the lowest on the way, on the same part of the validation set."""
    losses = [list(run.curve("loss").values()) for run in arm.runs]
    return max((found[-1] - min(found) for found in losses if found), default=0.0)


def gap_of(arm: Arm) -> Gap | None:
    return paired_gap(arm.metric, arm.scores, arm.baseline.scores) if arm.baseline else None


def gap_to_plain(arm: Arm) -> Gap | None:
    """The gap to the baseline without adapters, if that was trained alike."""
    plain = arm.plain_baseline
    alike = plain is not None and not differences(arm, plain)
    return paired_gap(arm.metric, arm.scores, plain.scores) if plain and alike else None


# Records


def _summary(loaded: Loaded, arm: Arm, comparison: Comparison) -> Record:
    score, gap, time = spread(list(arm.scores.values())), gap_of(arm), loaded.step_time(arm)
    t, boot = (gap.t, gap.bootstrap) if gap else (None, None)
    plain = gap_to_plain(arm)
    total, frozen, trainable = (_first(arm, f"{kind}_parameters") for kind in ("total", "frozen", "trainable"))
    verified = all((run.result or {}).get("frozen_verified") is True for run in arm.runs)
    return {
        "dataset": comparison.dataset,
        "model": comparison.model,
        "method": arm.label,
        "metric": comparison.metric.name,
        "seeds": score.count,
        "seed_list": " ".join(map(str, arm.scores)),
        "score": score.mean,
        "score_std": score.std,
        "gap": gap.value if gap else None,
        "gap_unit": "points" if comparison.metric.gap_in_points else "percent",
        "gap_seeds": len(gap.by_seed) if gap else 0,
        "gap_against": arm.baseline.label if arm.baseline else None,
        "gap_against_plain": arm.baseline.is_baseline if arm.baseline else None,
        "gap_low": t.low if t else None,
        "gap_high": t.high if t else None,
        "gap_bootstrap_low": boot.low if boot else None,
        "gap_bootstrap_high": boot.high if boot else None,
        "gap_plain": plain.value if plain else None,
        "gap_plain_low": plain.t.low if plain and plain.t else None,
        "gap_plain_high": plain.t.high if plain and plain.t else None,
        "goal": _verdict(arm, gap, GOAL_PERCENT),
        "goal_1": _verdict(arm, gap, 1.0),
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
        "weight_bytes": None if total is None else checkpoint_bytes(total, 0),
        "optimizer_bytes": None if trainable is None else checkpoint_bytes(0, trainable),
        "checkpoint_bytes": None if total is None or trainable is None else checkpoint_bytes(total, trainable),
        "peak_memory_bytes": _mean(arm, "peak_memory_bytes"),
        "is_baseline": arm.is_baseline,
    }


def _verdict(arm: Arm, gap: Gap | None, limit: float) -> str | None:
    if gap is None:
        return None
    return NOT_COMPARABLE if arm.differences else goal_verdict(gap.worse, limit)


def _only(records: list[Record], *topics: str) -> list[Record]:
    """The fields that say which arm it is, and those whose name has one of the topics in it."""
    always = ("dataset", "model", "method", "metric", "comparable", "is_baseline")
    return [{k: v for k, v in r.items() if k in always or any(topic in k for topic in topics)} for r in records]


def _run_records(loaded: Loaded) -> list[Record]:
    return [
        {
            "run": run.name,
            "method": run.method.name,
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


# Columns

_METHOD = Column("method", text_cell("method"), right=False)
_GAP = Column("gap", gap_text)
_GOAL = Column("goal", word_cell("goal", "goal"), right=False)
_STEP_TIME = Column("step_time", step_time_text)
_PARAMETERS = [Column(f"{k}_parameters", number_cell(f"{k}_parameters", ",")) for k in ("total", "frozen", "trainable")]
_GAP_COLUMNS = [
    Column("gap_against", text_cell("gap_against"), right=False),
    Column("gap_seeds", text_cell("gap_seeds")),
    _GAP,
    Column("gap_bootstrap", bootstrap_text),
    _GOAL,
    Column("goal_1", word_cell("goal_1", "goal"), right=False),
    Column("gap_plain", plain_gap_text),
]
_MEMORY_COLUMNS = [
    *_PARAMETERS,
    Column("optimizer_bytes", bytes_cell("optimizer_bytes")),
    Column("checkpoint_bytes", bytes_cell("checkpoint_bytes")),
    Column("peak_memory_bytes", bytes_cell("peak_memory_bytes")),
]
_TIME_COLUMNS = [
    _STEP_TIME,
    Column("step_time_predicted", number_cell("step_time_predicted", ".3f")),
    Column("median_step_seconds", number_cell("median_step_seconds", ".4g")),
    Column("training_seconds", number_cell("training_seconds", ",.1f")),
    Column("validation_seconds", number_cell("validation_seconds", ",.1f")),
]
_RUN_COLUMNS = [
    Column("run", text_cell("run"), right=False),
    Column("method", text_cell("method"), right=False),
    Column("seed", text_cell("seed")),
    Column("step", number_cell("step", ",")),
    Column("max_steps", number_cell("max_steps", ",")),
    Column("state", word_cell("state", "state"), right=False),
]
_SKIPPED_COLUMNS = [Column("path", text_cell("path"), right=False), Column("reason", text_cell("reason"), right=False)]
