"""What stands in the cells of a table: text made of a record, in the reader's language. An unknown value is a dash."""

import math
from collections.abc import Callable

from oelm.analysis.compare.statistics import METRICS, NO_DIFFERENCE, Metric
from oelm.analysis.report.rendering import FOLD, Record
from oelm.analysis.report.texts import NONE, Texts


def text_cell(key: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else str(record[key])


def word_cell(key: str, prefix: str) -> Callable[[Record, Texts], str]:
    """A word of ours (a verdict, a state), in the reader's language."""
    return lambda record, t: NONE if record.get(key) is None else t.word(prefix, record[key])


def number_cell(key: str, spec: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else format(record[key], spec)


def bytes_cell(key: str) -> Callable[[Record, Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else f"{record[key] / 2**20:,.1f} MiB"


def score_cell(key: str) -> Callable[[Record, Texts], str]:
    def cell(record: Record, t: Texts) -> str:
        value = record.get(key)
        if value is None:
            return NONE
        return t.word("state", "failed") if math.isnan(value) else metric_of(record).show(value)

    return cell


def score_text(record: Record, t: Texts) -> str:
    metric, std = metric_of(record), record["score_std"]
    mean = metric.show(record["score"])
    if std is None:
        return mean
    digits = len(mean.removesuffix(metric.suffix).partition(".")[2])
    if std > 0:  # never ± 0.0 for what is not zero
        digits = max(digits, min(6, -math.floor(math.log10(std * metric.scale))))
    return f"{mean.removesuffix(metric.suffix)} ± {std * metric.scale:.{digits}f}{metric.suffix}"


def gap_text(record: Record, t: Texts, with_goal: bool = False) -> str:
    if record["gap"] is None:
        return NONE
    value = t(f"unit_{record['gap_unit']}", value=f"{record['gap']:+.1f}").replace("-", "−")
    text = value + ("" if record["comparable"] else " *") + _interval(record["gap_low"], record["gap_high"], "+.1f")
    return f"{text}  {t.word('goal', record['goal'])}".replace(FOLD, " ") if with_goal else text


def plain_gap_text(record: Record, t: Texts) -> str:
    if record["gap_plain"] is None:
        return NONE
    value = t(f"unit_{record['gap_unit']}", value=f"{record['gap_plain']:+.1f}").replace("-", "−")
    return value + _interval(record["gap_plain_low"], record["gap_plain_high"], "+.1f")


def bootstrap_text(record: Record, t: Texts) -> str:
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


def audit_text(record: Record, t: Texts) -> str:
    return t.word("frozen", record["frozen_check"]).replace(" ", FOLD)


def metric_of(record: Record) -> Metric:
    return next(metric for metric in METRICS if metric.name == record["metric"])


def _interval(low: float | None, high: float | None, spec: str) -> str:
    return "" if low is None or high is None else f"{FOLD}[{low:{spec}}, {high:{spec}}]".replace("-", "−")
