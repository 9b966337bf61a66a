"""The rules by which arms of the methods comparison go on, and that the catalog follows them."""

import importlib.util
from pathlib import Path

import pytest

from factory import make_run
from oelm.errors import OelmError
from oelm.experiments.entries import experiment
from oelm.freezing.methods import method

FOLDER = Path(__file__).parents[2] / "results/methods"
PERPLEXITIES = {  # at the better of two learning rates
    "baseline": 10.0,
    "baseline+rank=8": 9.9,
    "oelm_freeze": 11.5,
    "oelm_freeze+rank=8": 10.4,
    "permutation_qk+rank=8": 10.3,
    "identity_qk+rank=8": 10.6,
    "oelm_freeze+mix": 11.0,
    "q_only": 10.2,
    "k_only": 10.5,
    "identity_q": 10.7,
    "oelm_freeze+layers=even": 10.05,
    "oelm_freeze+thaw=top-down:0.25:0.75": 10.01,
    "baseline+every=4": 10.02,
}


@pytest.fixture(scope="module")
def leaders():
    spec = importlib.util.spec_from_file_location("leaders", FOLDER / "leaders.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_three_that_freeze_both_and_two_that_freeze_one_go_on_with_their_baselines(leaders, tmp_path):
    for rate, worse in ((2e-3, 1.0), (5e-3, 1.1)):
        for name, perplexity in PERPLEXITIES.items():
            better_high = name == "permutation_qk+rank=8" and rate == 5e-3
            value = 10.3 if better_high else perplexity * worse + (name == "permutation_qk+rank=8")
            make_run(
                tmp_path, method(name).to_dict(), name=f"{name}-lr-{rate:g}-0", perplexity=value, max_lr=rate,
                min_lr=rate / 10,
            )  # fmt: skip
    chosen = leaders.choose(tmp_path)
    assert chosen["leaders"] == [
        "q_only",
        "permutation_qk+rank=8",
        "oelm_freeze+rank=8",
        "k_only",
        "identity_qk+rank=8",
    ]
    assert chosen["arms"] == ["baseline", "baseline+orthogonal", "baseline+rank=8", "oelm_freeze", *chosen["leaders"]]
    assert chosen["max_lr"] == 2e-3


def test_nothing_is_chosen_from_a_screen_that_is_not_complete(leaders, tmp_path):
    with pytest.raises(OelmError, match="no finished run to show"):
        leaders.choose(tmp_path)
    for name in ("baseline", "q_only"):
        make_run(tmp_path, name, name=f"{name}-low", max_lr=2e-3, min_lr=2e-4)
    make_run(tmp_path, "baseline", name="baseline-high", max_lr=5e-3, min_lr=5e-4)
    with pytest.raises(OelmError, match="not complete: not every arm was given the same rates"):
        leaders.choose(tmp_path)
    make_run(tmp_path, "q_only", name="q_only-high", max_lr=5e-3, min_lr=5e-4, finished=False)
    with pytest.raises(OelmError, match="not complete: q_only-high is"):
        leaders.choose(tmp_path)


def test_the_catalog_follows_the_screen(leaders):
    chosen, entry = leaders.choose(FOLDER / "methods-screen"), experiment("methods-confirm", "mini")
    assert entry.arms == chosen["arms"]
    assert entry.training["max_lr"] == chosen["max_lr"]


def test_the_larger_model_gets_the_best_everywhere_and_the_best_in_some_layers_with_their_baselines(leaders, tmp_path):
    perplexities = {
        "baseline": 10.0,
        "baseline+rank=4": 9.8,
        "oelm_freeze": 12.0,
        "signs_qk": 10.4,
        "identity_q": 10.2,
        "q_only": 10.3,
        "permutation_qk+rank=4": 10.3,  # nearer to the plain baseline, farther from its own
        "oelm_freeze+layers=last2": 10.05,  # better than the next, but it saves 2.8 %
        "signs_qk+layers=last2": 10.2,
        "permutation_qk+layers=not-first1": 10.3,
    }
    shape = {"model": {"size": "demo", "overrides": {"d_model": 64, "num_layers": 4, "num_heads": 2, "d_ff": 256}}}
    for seed, noise in enumerate((0.0, 0.05)):
        for name, value in perplexities.items():
            make_run(tmp_path, name, seed, perplexity=value + noise, config_changes=shape)
    assert leaders.later([tmp_path]) == ["baseline", "oelm_freeze", "signs_qk", "signs_qk+layers=last2"]
    with_one = leaders.later([tmp_path], one_of_two=True)
    assert with_one == ["baseline", "oelm_freeze", "identity_q", "signs_qk", "signs_qk+layers=last2"]
    make_run(tmp_path, "signs_qk", 2, finished=False, config_changes=shape)
    with pytest.raises(OelmError, match="not complete: 1 runs are not finished"):
        leaders.later([tmp_path])


def test_the_catalog_follows_phases_2_and_2b(leaders):
    assert experiment("methods-large", "mini").arms == leaders.later(leaders.CONFIRMED)
    assert experiment("methods-wikitext", "mini").arms == leaders.later(leaders.CONFIRMED, one_of_two=True)


def test_fresh_seeds_and_rates_repeat_an_arm_of_the_larger_model_in_its_settings():
    larger, fresh, rates = (experiment(f"methods-{name}", "mini") for name in ("large", "fresh", "rates"))
    assert fresh.arms == rates.arms and set(fresh.arms) < set(larger.arms)
    assert (fresh.data, fresh.model, fresh.training) == (larger.data, larger.model, larger.training)
    assert not set(fresh.seeds) & set(larger.seeds)
    assert (rates.data, rates.model) == (larger.data, larger.model)
    assert {**rates.training, "max_lr": 3e-3} == larger.training
    assert [variant.training for variant in rates.variants] == [{"max_lr": 2e-3}, {"max_lr": 5e-3}]
