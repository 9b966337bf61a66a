"""Gaps, intervals and verdicts: pure numbers against scipy and against arithmetic done by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from oelm.analysis.compare.statistics import (
    METRICS,
    Interval,
    corrected_level,
    correlation,
    goal_verdict,
    more_seeds,
    paired_gap,
    paired_t,
    spread,
    unpaired_t,
)

PERPLEXITY, ACCURACY = METRICS[0], METRICS[1]
ARM = {0: 4.71, 1: 4.63, 2: 4.80, 3: 4.66}
BASE = {0: 4.28, 1: 4.25, 2: 4.33, 3: 4.30}


def test_two_equal_differences_are_no_proof_that_there_is_no_noise():
    assert paired_t([0.5, 0.5]) is None
    gap = paired_gap(ACCURACY, {0: 0.855, 1: 0.865}, {0: 0.86, 1: 0.87})
    assert gap.t is None and gap.worse is None
    assert paired_t([0.5, 0.5, 0.5]) == Interval(0.5, 0.5)


def test_spread_is_the_sample_standard_deviation_and_unknown_for_one_value():
    assert spread([4.0, 6.0]).std == pytest.approx(math.sqrt(2))
    assert spread([4.0]).std is None


def test_paired_interval_equals_that_of_scipy():
    arm, base = np.array(list(ARM.values())), np.array(list(BASE.values()))
    expected = stats.ttest_rel(arm, base).confidence_interval(0.95)
    got = paired_t(list(arm - base))
    assert got is not None
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))


def test_perplexity_gap_is_the_mean_log_ratio_in_percent():
    logs = np.log([ARM[s] / BASE[s] for s in ARM])
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    gap = paired_gap(PERPLEXITY, ARM, BASE)
    assert gap is not None
    assert gap.t is not None
    assert gap.value == pytest.approx(100 * (math.exp(logs.mean()) - 1))
    assert gap.by_seed[0] == pytest.approx(100 * (4.71 / 4.28 - 1))
    assert (gap.t.low, gap.t.high) == pytest.approx([100 * (math.exp(v) - 1) for v in expected])


def test_only_seeds_that_both_arms_have_are_paired():
    gap = paired_gap(PERPLEXITY, {0: 11.0, 5: 99.0}, {0: 10.0, 7: 1.0})
    assert gap is not None
    assert list(gap.by_seed) == [0]
    assert gap.value == pytest.approx(10)
    assert paired_gap(PERPLEXITY, {0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_no_interval_and_stays_undecided():
    gap = paired_gap(PERPLEXITY, {0: 10.01}, {0: 10.0})
    assert gap is not None
    assert (gap.t, gap.unpaired) == (None, None)
    assert goal_verdict(gap.worse) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-2, 4.9, "met"), (1, 5.0, "met"), (5.1, 9, "missed"), (4, 6, "undecided"), (-50, 80, "undecided")],
)
def test_goal_is_met_or_missed_only_if_the_whole_interval_says_so(low, high, verdict):
    assert goal_verdict(Interval(low, high)) == verdict


def test_goal_limit_can_be_another():
    assert goal_verdict(Interval(6, 9), limit=10) == "met"


def test_accuracy_gap_is_in_points_and_a_loss_is_negative():
    gap = paired_gap(ACCURACY, {0: 0.9128, 1: 0.9138}, {0: 0.9312, 1: 0.9312})
    assert gap is not None
    assert gap.worse is not None
    assert gap.value == pytest.approx(-1.79)
    assert 0 < gap.worse.low < gap.worse.high
    assert goal_verdict(gap.worse) == "met"


def test_accuracy_that_collapses_misses_the_goal():
    gap = paired_gap(ACCURACY, {0: 0.50, 1: 0.51, 2: 0.50}, {0: 0.93, 1: 0.93, 2: 0.93})
    assert gap is not None
    assert goal_verdict(gap.worse) == "missed"


def test_the_paired_interval_holds_whatever_the_correlation_and_choosing_after_looking_does_not():
    """Why there is one rule: the unpaired interval where the correlation is negative would cover too little."""
    generator, count = np.random.default_rng(0), 3_000
    covered = {"paired": 0, "chosen": 0}
    for _ in range(count):
        first = generator.normal(size=5)
        second = -0.5 * first + math.sqrt(0.75) * generator.normal(size=5)
        paired, unpaired = paired_t(list(first - second)), unpaired_t(list(first), list(second))
        chosen = unpaired if correlation(list(first), list(second)) < 0 else paired
        covered["paired"] += paired.low < 0 < paired.high
        covered["chosen"] += chosen.low < 0 < chosen.high
    assert 0.935 < covered["paired"] / count < 0.965
    assert covered["chosen"] / count < 0.925


def test_the_unpaired_interval_and_the_correlation_equal_those_of_scipy():
    arm, base = list(ARM.values()), list(BASE.values())
    expected = stats.ttest_ind(arm, base, equal_var=False).confidence_interval(0.95)
    got = unpaired_t(arm, base)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))
    assert correlation(arm, base) == pytest.approx(stats.pearsonr(arm, base).statistic)
    assert correlation(arm[:2], base[:2]) is None and unpaired_t([1.0], base) is None


def test_as_many_more_seeds_as_said_decide():
    logs = [0.01, 0.03, 0.045, 0.02]
    missing = more_seeds(logs)
    half = stats.t.ppf(0.975, 4 + missing - 1) * np.std(logs, ddof=1) / math.sqrt(4 + missing)
    assert np.mean(logs) + half < math.log(1.05)
    before = stats.t.ppf(0.975, 4 + missing - 2) * np.std(logs, ddof=1) / math.sqrt(4 + missing - 1)
    assert missing == 1 or np.mean(logs) + before > math.log(1.05)
    assert more_seeds([math.log(1.05) + e for e in (0.01, -0.01)]) is None  # never


def test_the_best_of_many_needs_a_wider_interval():
    wide = paired_gap(PERPLEXITY, ARM, BASE, corrected_level(10)).t
    plain = paired_gap(PERPLEXITY, ARM, BASE).t
    assert wide.low < plain.low < plain.high < wide.high
    assert corrected_level(1) == 0.95


def test_huge_differences_of_few_seeds_do_not_overflow():
    gap = paired_gap(PERPLEXITY, {0: 1e300, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert gap is not None
    assert gap.t is not None
    assert math.isfinite(gap.t.high)


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        (PERPLEXITY, 4.26921, "4.269"),
        (PERPLEXITY, 47.24, "47.24"),
        (PERPLEXITY, 1234.5, "1,234.5"),
        (ACCURACY, 0.7671, "76.71 %"),
    ],
)
def test_a_metric_is_written_with_sensible_digits(metric, value, shown):
    assert metric.show(value) == shown
