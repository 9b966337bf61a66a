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


def test_the_best_five_that_save_enough_go_on_and_the_named_candidate_with_them(choose, tmp_path):
    arms = {
        "baseline": (18.0, 100),
        "baseline+thin=4": (10.0, 80),  # trained: no candidate, however good
        "oelm_freeze": (12.0, 100),  # saves nothing
        "signs_qk+rank=8+offset": (13.0, 90),
        "signs_qk+rank=4+offset": (13.1, 90),
        "signs_qk+rank=2+offset": (13.2, 90),  # the third of a kind
        "permutation_qk+rank=8+offset": (14.0, 90),
        "identity_q+qrank=8+offset": (15.0, 90),
        "hadamard_qk+offset": (16.0, 90),
        "permutation_qk": (17.0, 90),  # the sixth
        choose.NAMED: (30.0, 90),
    }
    for arm, (score, flops) in arms.items():
        finished(tmp_path, "contest-screen", arm, score, flops=flops)
    assert choose.leaders(tmp_path) == [
        "signs_qk+rank=8+offset", "signs_qk+rank=4+offset", "permutation_qk+rank=8+offset", "identity_q+qrank=8+offset",
        "hadamard_qk+offset", choose.NAMED,
    ]  # fmt: skip
