"""Gaps, intervals and verdicts: pure numbers against scipy and against arithmetic done by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from oelm.analysis.compare.statistics import (
    METRICS,
    Interval,
    bootstrap,
    goal_verdict,
    paired_gap,
    paired_t,
    ratio_verdict,
    spread,
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
    assert (gap.t, gap.bootstrap) == (None, None)
    assert goal_verdict(gap.worse) == "undecided"


def test_bootstrap_repeats_and_lies_within_the_values():
    values = [1.0, 2.0, 3.5, 2.2, 1.7]
    first, second = bootstrap(values), bootstrap(values)
    assert first == second
    assert first is not None
    assert min(values) <= first.low < np.mean(values) < first.high <= max(values)


def test_bootstrap_agrees_with_scipy_s_percentile_method():
    values = list(np.random.default_rng(3).normal(5, 1, 40))
    expected = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=1).confidence_interval
    got = bootstrap(values)
    assert got is not None
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high), abs=0.02)


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


def test_time_ratio_whose_interval_covers_one_is_no_difference():
    assert ratio_verdict(0.97, 1.01) == "no difference"
    assert ratio_verdict(0.93, 0.97) == "faster"
    assert ratio_verdict(1.01, 1.05) == "slower"
    assert ratio_verdict(None, None) is None


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
