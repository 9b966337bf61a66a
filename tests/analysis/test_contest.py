"""results/contest/choose.py: what goes on in the contest follows the rules that were fixed before its first run."""

import importlib.util
from pathlib import Path

import pytest

import factory
from oelm.errors import OelmError

FILE = Path(__file__).parents[2] / "results" / "contest" / "choose.py"


@pytest.fixture(scope="module")
def choose():
    spec = importlib.util.spec_from_file_location("choose", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def finished(root, phase, arm, perplexity, *, rate=4e-3, flops=100):
    run = factory.make_run(root / phase, arm, 0, name=f"{arm}-{rate}", perplexity=perplexity, max_lr=rate)
    result = {**run.result(), "block_flops_per_token": flops}
    run.record(run.result_file, result)


def test_every_arm_goes_on_at_its_best_rate_and_an_edge_asks_for_one_more(choose, tmp_path):
    for arm, scores in {
        "baseline": (19, 18, 18.5),
        "baseline+offset": (17, 16.5, 16),
        "oelm_freeze": (23, 22, 25),
    }.items():
        for rate, score in zip((2e-3, 4e-3, 8e-3), scores, strict=True):
            finished(tmp_path, "contest-rates", arm, score, rate=rate)
    found = choose.rates(tmp_path)
    assert found["best"] == {"0.004": ["baseline", "oelm_freeze"], "0.008": ["baseline+offset"]}
    assert found["at an edge"] == ["baseline+offset"]


def test_no_rate_is_chosen_before_every_arm_has_the_same(choose, tmp_path):
    for rate in (2e-3, 4e-3, 8e-3):
        finished(tmp_path, "contest-rates", "baseline", 18, rate=rate)
        finished(tmp_path, "contest-rates", "baseline+offset", 18, rate=rate)
    finished(tmp_path, "contest-rates", "oelm_freeze", 22, rate=2e-3)
    with pytest.raises(OelmError, match="phase 1 is not complete: 3 rates, missing for oelm_freeze"):
        choose.rates(tmp_path)


def test_the_best_that_save_enough_go_on_beside_the_named_candidate(choose, tmp_path):
    arms = {
        "baseline": (18.0, 100),
        "baseline+thin=4": (10.0, 80),  # trained: no candidate, however good
        "oelm_freeze": (12.0, 100),  # saves nothing
        "signs_qk+rank=8+offset": (13.0, 90),
        "signs_qk+rank=4+offset": (13.1, 90),  # the third of a kind: the named one is alike, too
        "permutation_qk+rank=8+offset": (14.0, 90),
        "identity_q+qrank=8+offset": (15.0, 90),
        "hadamard_qk+offset": (16.0, 90),  # the fourth
        choose.NAMED: (30.0, 90),
    }
    for arm, (score, flops) in arms.items():
        finished(tmp_path, "contest-screen", arm, score + 5, flops=flops, rate=8e-3)
        finished(tmp_path, "contest-screen", arm, score, flops=flops)
    three = ["signs_qk+rank=8+offset", "permutation_qk+rank=8+offset", "identity_q+qrank=8+offset"]
    assert choose.leaders(tmp_path, "contest-screen", 3) == three
    assert choose.leaders(tmp_path, "contest-screen", 2) == three[:2]
    with pytest.raises(OelmError, match="contest-rates is not complete"):
        choose.leaders(tmp_path, "contest-rates", 3)


def test_later_phases_know_what_their_arms_reached_at_each_rate(choose, tmp_path):
    for rate, score in ((2e-3, 19), (4e-3, 18), (8e-3, 20)):
        finished(tmp_path, "contest-rates", "baseline", score, rate=rate)
    finished(tmp_path, "contest-rates", "oelm_freeze", 22, rate=2e-3)  # not tried at all of them yet
    assert choose.swept(tmp_path) == {"baseline": {"0.002": 19, "0.004": 18, "0.008": 20}}
