"""What stands in the cells of a table: text made of a record, in the reader's language. None is shown as a dash."""

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from oelm.analysis.compare.record import ArmRecord, Opponent
from oelm.analysis.compare.statistics import MET, MISSED, UNDECIDED, Gap, Interval, Metric
from oelm.analysis.report.rendering import FOLD
from oelm.analysis.report.texts import NONE, Texts
from oelm.bench.ratios import NO_DIFFERENCE
from oelm.errors import printable

GUESS = " †"  # read off beyond the lengths that were trained

Cell = Callable[[Any, Texts], str | None]


def of(key: str, show: Callable[[Any, Texts], str]) -> Cell:
    """A field of a dictionary, or of an arm's record (dotted), as `show` writes it."""

    def cell(record: Any, t: Texts) -> str | None:
        value = record.get(key) if isinstance(record, dict) else attrgetter(key)(record)
        return None if value is None else show(value, t)

    return cell


def word_cell(key: str, kind: str) -> Cell:
    """A word of ours (a verdict, a state), in the reader's language."""
    return of(key, lambda value, t: t.word(kind, value))


def text_cell(key: str) -> Cell:
    return of(key, lambda value, t: printable(str(value)))


def number_cell(key: str, spec: str) -> Cell:
    return of(key, lambda value, t: format(value, spec))


def bytes_cell(key: str) -> Cell:
    return of(key, lambda value, t: f"{value / 2**20:,.1f} MiB")


def score_cell(key: str, metric: Metric) -> Cell:
    return of(key, lambda value, t: t.word("state", "failed") if math.isnan(value) else metric.show(value))


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


def plain_gap(record: ArmRecord, t: Texts) -> str | None:
    return _against(record.plain, record, t) if record.plain else t("is_baseline") if record.is_baseline else None


def equal_gap(record: ArmRecord, t: Texts) -> str | None:
    """The gap and its opponent; that it is the plain baseline, or that there is none, is said."""
    if record.equal or record.lacks_equal:
        return _named(record.equal, record, t) or t("equal_missing")
    return None if record.is_trained or not record.plain else t("equal_is_plain")


def best_trained(record: ArmRecord, t: Texts) -> str | None:
    return _named(record.best_trained, record, t)


def verdict(record: ArmRecord, t: Texts) -> str | None:
    word = record.verdict and t.word("goal", record.verdict)
    if word and record.exposure.first_look and record.verdict in (MET, MISSED):
        return f"{word}{FOLD}({t('first_look')})"
    if not word or record.verdict != UNDECIDED:
        return word
    if record.more_seeds:
        return word + FOLD + t("more_seeds", count=record.more_seeds)
    single = any(len(opponent.gap.by_seed) < 2 for opponent in record.opponents)
    return word + (FOLD + t("second_seed") if single else "")


def by_opponent(show: Callable[[Gap], str]) -> Cell:
    return lambda record, t: FOLD.join(show(opponent.gap) for opponent in record.opponents)


def correlation(gap: Gap) -> str:
    return NONE if gap.correlation is None else f"{gap.correlation:+.2f}".replace("-", "−")


def unpaired(gap: Gap) -> str:
    return _interval(gap.unpaired).strip() or NONE


def interleaved_step_time(record: ArmRecord, t: Texts) -> str | None:
    """Nothing where runs were timed apart: a busier hour would look like a slower method."""
    return step_time(record, t) if record.time and record.time.interleaved else None


def step_time(record: ArmRecord, t: Texts, with_verdict: bool = False) -> str | None:
    """Only what is surprising has a word in a table; a figure has room for all."""
    time = record.time
    if time is None:
        return None
    if not time.interleaved:
        return "1" if time.is_reference else f"{time.ratio:.2f}{FOLD}({t('not_interleaved')})"
    text = f"{time.ratio:.3f}" + _interval(time.interval, ".3f")
    if time.verdict == NO_DIFFERENCE or (time.verdict and with_verdict):
        text += f"{FOLD}{t.word('speed', time.verdict)}"
    return text.replace(FOLD, " ") if with_verdict else text


def equal_compute_gap(record: ArmRecord, t: Texts, at: str) -> str | None:
    """At equal steps, flops or time."""
    gap = getattr(record.compute, f"gap_{at}", None)
    guessed = GUESS if record.compute and record.compute.extrapolated and at != "steps" else ""
    return gap_text(gap, record.metric, t) + guessed if gap else None


def speed_up(record: ArmRecord, t: Texts, at: str) -> str | None:
    """In flops or time."""
    speed = getattr(record.compute, f"speedup_{at}", None)
    interval = _interval(Interval(speed.low, speed.high), ".3f") if speed and speed.low is not None else ""
    return f"{speed.value:.3f}{interval}{GUESS if speed.extrapolated else ''}" if speed else None


def _named(opponent: Opponent | None, record: ArmRecord, t: Texts) -> str | None:
    return f"{_against(opponent, record, t)}{FOLD}{t('against', baseline=opponent.label)}" if opponent else None


def _against(opponent: Opponent, record: ArmRecord, t: Texts) -> str:
    return gap_text(opponent.gap, record.metric, t, opponent.comparable)


def _interval(interval: Interval | None, spec: str = "+.1f") -> str:
    return f"{FOLD}[{interval.low:{spec}}, {interval.high:{spec}}]".replace("-", "−") if interval else ""
