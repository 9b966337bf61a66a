"""What stands in the cells of a table: text made of a record, in the reader's language. An unknown value is a dash."""

import math
from collections.abc import Callable
from typing import Any

from oelm.analysis.compare.record import ArmRecord, Opponent
from oelm.analysis.compare.statistics import METRICS, UNDECIDED, Gap, Interval, Metric
from oelm.analysis.report.rendering import FOLD
from oelm.analysis.report.texts import NONE, Texts
from oelm.bench.ratios import NO_DIFFERENCE
from oelm.errors import printable

GUESS = " †"
"""Read off beyond the lengths that were trained."""

# Of dictionaries


def text_cell(key: str) -> Callable[[dict[str, Any], Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else printable(str(record[key]))


def word_cell(key: str, prefix: str) -> Callable[[dict[str, Any], Texts], str]:
    """A word of ours (a verdict, a state), in the reader's language."""
    return lambda record, t: NONE if record.get(key) is None else t.word(prefix, record[key])


def number_cell(key: str, spec: str) -> Callable[[dict[str, Any], Texts], str]:
    return lambda record, t: NONE if record.get(key) is None else format(record[key], spec)


def score_cell(key: str) -> Callable[[dict[str, Any], Texts], str]:
    def cell(record: dict[str, Any], t: Texts) -> str:
        value = record.get(key)
        if value is None:
            return NONE
        metric = next(metric for metric in METRICS if metric.name == record["metric"])
        return t.word("state", "failed") if math.isnan(value) else metric.show(value)

    return cell


# Of arms


def cost(name: str, spec: str) -> Callable[[ArmRecord, Texts], str]:
    return lambda record, t: NONE if (value := getattr(record.costs, name)) is None else format(value, spec)


def bytes_cell(name: str) -> Callable[[ArmRecord, Texts], str]:
    return lambda r, t: NONE if (value := getattr(r.costs, name)) is None else f"{value / 2**20:,.1f} MiB"


def score(record: ArmRecord, t: Texts) -> str:
    """Mean ± standard deviation, and in brackets the number of seeds."""
    metric, std = record.metric, record.score_std
    mean, count = metric.show(record.score), f"{FOLD}({len(record.seeds)})"
    if std is None:
        return mean + count
    digits = len(mean.removesuffix(metric.suffix).partition(".")[2])
    if std > 0:  # never ± 0.0 for what is not zero
        digits = max(digits, min(6, -math.floor(math.log10(std * metric.scale))))
    return f"{mean.removesuffix(metric.suffix)} ± {std * metric.scale:.{digits}f}{metric.suffix}{count}"


def gap_text(gap: Gap, metric: Metric, t: Texts, comparable: bool = True) -> str:
    """A gap that is not the method's alone has a star and no interval, which would say more than is known."""
    unit = "points" if metric.gap_in_points else "percent"
    value = t(f"unit_{unit}", value=f"{gap.value:+.1f}").replace("-", "−")
    return value + (_interval(gap.t) if comparable else " *")


def plain_gap(record: ArmRecord, t: Texts) -> str:
    return _against(record.plain, record, t) if record.plain else t("is_baseline") if record.is_baseline else NONE


def equal_gap(record: ArmRecord, t: Texts) -> str:
    """The gap and its opponent; that it is the plain baseline, or that there is none, is said."""
    if record.equal:
        return f"{_against(record.equal, record, t)}{FOLD}{t('against', baseline=record.equal.label)}"
    if record.lacks_equal:
        return t("equal_missing")
    return NONE if record.is_trained or not record.plain else t("equal_is_plain")


def verdict(record: ArmRecord, t: Texts) -> str:
    if record.verdict is None:
        return NONE
    word = t.word("goal", record.verdict)
    if record.verdict != UNDECIDED:
        return word
    if record.more_seeds:
        return word + FOLD + t("more_seeds", count=record.more_seeds)
    single = any(len(opponent.gap.by_seed) < 2 for opponent in record.opponents)
    return word + (FOLD + t("second_seed") if single else "")


def close(record: ArmRecord, t: Texts) -> str:
    return NONE if record.close is None else t.word("goal", record.close)


def paired_seeds(record: ArmRecord, t: Texts) -> str:
    return FOLD.join(str(len(opponent.gap.by_seed)) for opponent in record.opponents)


def correlation(record: ArmRecord, t: Texts) -> str:
    found = [opponent.gap.correlation for opponent in record.opponents]
    return FOLD.join(NONE if value is None else f"{value:+.2f}".replace("-", "−") for value in found)


def unpaired(record: ArmRecord, t: Texts) -> str:
    return FOLD.join(_interval(opponent.gap.unpaired).strip() or NONE for opponent in record.opponents)


def step_time(record: ArmRecord, t: Texts, with_verdict: bool = False) -> str:
    """Only what is surprising has a word in a table; a figure has room for all."""
    time = record.time
    if time is None:
        return NONE
    if not time.interleaved:
        return "1" if time.is_reference else f"{time.ratio:.2f}{FOLD}({t('not_interleaved')})"
    interval = Interval(time.low, time.high) if time.low is not None and time.high is not None else None
    text = f"{time.ratio:.3f}" + _interval(interval, ".3f")
    if time.verdict == NO_DIFFERENCE or (time.verdict and with_verdict):
        text += f"{FOLD}{t.word('speed', time.verdict)}"
    return text.replace(FOLD, " ") if with_verdict else text


def step_seconds(record: ArmRecord, t: Texts) -> str:
    return NONE if record.time is None or record.time.seconds is None else f"{record.time.seconds:.4g}"


def equal_compute_gap(name: str) -> Callable[[ArmRecord, Texts], str]:
    def cell(record: ArmRecord, t: Texts) -> str:
        gap = getattr(record.compute, name, None)
        guessed = GUESS if record.compute and record.compute.extrapolated and name != "gap_steps" else ""
        return gap_text(gap, record.metric, t) + guessed if gap else NONE

    return cell


def speed_up(name: str) -> Callable[[ArmRecord, Texts], str]:
    def cell(record: ArmRecord, t: Texts) -> str:
        speed = getattr(record.compute, name, None)
        if speed is None:
            return NONE
        interval = _interval(Interval(speed.low, speed.high), ".3f") if speed.low is not None else ""
        return f"{speed.value:.3f}{interval}{GUESS if speed.extrapolated else ''}"

    return cell


def best_trained(record: ArmRecord, t: Texts) -> str:
    rival = record.best_trained
    return f"{_against(rival, record, t)}{FOLD}{t('against', baseline=rival.label)}" if rival else NONE


def _against(opponent: Opponent, record: ArmRecord, t: Texts) -> str:
    return gap_text(opponent.gap, record.metric, t, opponent.comparable)


def _interval(interval: Interval | None, spec: str = "+.1f") -> str:
    return f"{FOLD}[{interval.low:{spec}}, {interval.high:{spec}}]".replace("-", "−") if interval else ""
