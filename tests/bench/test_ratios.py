"""The order of arms, and when one may be called faster."""

import subprocess
import sys

import numpy as np
import pytest

from oelm.bench.ratios import interleave, ratio, sign_test, verdict


def test_every_round_visits_every_arm_once_and_begins_with_the_next():
    visits = []
    seconds = interleave({name: (lambda number, n=name: visits.append(n)) for name in "abc"}, rounds=4, warmup=1)
    assert "".join(visits) == "abc" + "c" + "abc" + "a" + "bca" + "b" + "cab" + "c" + "abc"  # one untimed leads in
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_no_arm_follows_itself_and_each_stands_in_every_place(arms):
    visits = []
    interleave({n: (lambda number, n=n: visits.append(n)) for n in range(arms)}, rounds=2 * arms, warmup=0)
    rounds = [visits[i : i + arms + 1] for i in range(0, len(visits), arms + 1)]
    for before, *timed in rounds:
        assert all(one != other for one, other in zip([before, *timed], timed, strict=False))
    places = {(place, arm) for _, *timed in rounds for place, arm in enumerate(timed)}
    assert len(places) == arms * arms


def test_a_clear_difference_is_reported_and_noise_is_not():
    generator = np.random.default_rng(0)
    base = generator.normal(1.0, 0.02, 40)
    faster = ratio(0.9 * base * generator.normal(1, 0.01, 40), base)
    assert faster["verdict"] == "faster" and faster["low"] < 0.9 < faster["high"]
    assert ratio(base * generator.normal(1, 0.02, 40), base)["verdict"] == "no difference"
    assert ratio(1.1 * base, base)["verdict"] == "slower"


def test_an_interval_just_below_one_is_no_difference_unless_the_rounds_agree():
    assert verdict(0.953, 0.999, 0.15) == "no difference"
    assert verdict(0.953, 0.999, 0.04) == "faster"
    assert verdict(0.953, 0.999, None) == "faster"  # a record without rounds
    assert verdict(None, None, None) is None


def test_the_sign_test_is_the_binomial_one():
    stats = pytest.importorskip("scipy.stats")
    for below, above in ((6, 0), (9, 3), (5, 5), (2, 10), (0, 1)):
        assert sign_test(below, above) == pytest.approx(stats.binomtest(below, below + above).pvalue)


def test_judging_needs_no_torch():
    program = "import sys, oelm.bench.ratios, oelm.bench.report; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
