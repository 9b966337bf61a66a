"""Published claims: every verdict follows from the figures, and changes with them."""

import copy
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from factory import make_run, write_step_times
from oelm.analysis.claims import findings
from oelm.analysis.claims.checks import judge
from oelm.analysis.compare.results import load_runs
from oelm.cli.main import app
from oelm.cli.report import evidence
from oelm.errors import OelmError
from oelm.experiments.entries import read
from oelm.files import write_json

# What does not add up in the study, and what does; all of it must come out of the arithmetic.
EXPECTED = {
    "bert-speed": "impossible",
    "bert-speed-repeat": "consistent",
    "gpt-speed": "consistent",
    "gpt-speed-random": "inconsistent",
    "gpt-speed-wikitext": "consistent",
    "step-time-wikitext": "consistent",
    "step-time-xnli": "circular",
    "step-time-xnli-frozen": "circular",
    "bert-baseline": "inconsistent",
    "first-version-gap": "consistent",
    "xnli-accuracy": "inconsistent",
    "sst2-accuracy": "not tested",
    "step-time-first": "impossible",
    "step-time": "consistent",
    "wall-time": "inconsistent",
    "gpt-parameters": "consistent",
    "gpt-parameters-first": "inconsistent",
    "gpt-share": "inconsistent",
    "bert-share": "consistent",
    "no-frozen-weights": "inconsistent",
    "memory": "impossible",
    "memory-frozen": "impossible",
    "corpus-size": "impossible",
    "experiment-count": "inconsistent",
    "loss-tinystories": "consistent",
    "conditions-gpt": "inconsistent",
    "conditions-bert": "inconsistent",
    "seeds": "not tested",
    "orthogonality": "inconsistent",
}
FIGURES = {
    "bert-speed": "16 examples against 8, so -14.8% per example",
    "step-time-wikitext": "1,439 s are left for 200 validations",
    "first-version-gap": "+19.3% at the end",
    "xnli-accuracy": "±2.33 is chance on 2,490 examples, were the arms independent, and each is the best of 147 looks",
    "conditions-bert": "XNLI-01 trains query and key matrices drawn afresh",
    "gpt-speed": "at most 2.3%",
    "step-time-first": "18,400 s",
    "wall-time": "45% of it is validation",
    "gpt-share": "7.0%",
    "no-frozen-weights": "41,751,040",
    "memory": "685 MiB",
    "orthogonality": "differ 4.9×",
    "experiment-count": "= 13",
}


@pytest.fixture(scope="module")
def known():
    return evidence(None)


def claim(name):
    return next(c for c in read("claims")["claims"] if c["id"] == name)


def verdict(name, known, **changes):
    (found,) = judge([{**claim(name), **changes}], known)
    return found


def with_figures(known, name, training=None, **published):
    experiments = copy.deepcopy(dict(known.experiments))
    experiments[name]["published"].update(published)
    experiments[name]["training"].update(training or {})
    return type(known)(**{**vars(known), "experiments": experiments})


def test_every_contradiction_of_the_study_is_found(known):
    found = {v.id: v for v in judge(read("claims")["claims"], known)}
    assert {name: found[name].verdict for name in EXPECTED} == EXPECTED
    for name, figure in FIGURES.items():
        assert figure in found[name].follows
    assert "at most 5.4%" in found["bert-speed"].follows
    assert "timer takes less work" in found["bert-speed"].reason
    assert "GPT-02 and GPT-03 do equal work and differ by 7.9%" in found["gpt-speed-random"].reason
    assert "12.9%" in found["bert-baseline"].reason
    assert "bert-base-uncased" in found["gpt-share"].reason
    assert "checkpoint (513.8 MiB)" in found["memory"].reason
    assert "checkpoint (489.8 MiB)" in found["memory-frozen"].reason
    words = {word for name, word in vars(findings).items() if name.isupper()}
    assert all(v.verdict in words and v.reason for v in found.values())


def test_verdicts_follow_the_figures_and_not_a_list(known):
    assert verdict("bert-speed", with_figures(known, "XNLI-02", step_seconds=0.155)).verdict == "consistent"
    assert verdict("step-time", with_figures(known, "GPT-01", step_seconds=0.2)).verdict == "impossible"
    assert verdict("wall-time", with_figures(known, "GPT-01", validation_seconds=500)).verdict == "consistent"
    assert verdict("gpt-share", known, value=0.070).verdict == "consistent"
    assert verdict("gpt-share", known, value=0.3).reason == "no model of the study has that share"
    assert verdict("gpt-parameters-first", known, value=44.9e6).verdict == "consistent"
    assert verdict("no-frozen-weights", known, value=44.9e6).verdict == "consistent"
    assert verdict("memory", with_figures(known, "GPT-01", checkpoint_mib=3000)).verdict == "consistent"
    assert verdict("corpus-size", known, value=470e6).verdict == "consistent"
    assert verdict("corpus-size", known, value=50e6).verdict == "inconsistent"
    assert verdict("experiment-count", known, value=13).verdict == "consistent"
    assert verdict("loss-tinystories", with_figures(known, "GPT-01", loss=1.5)).verdict == "inconsistent"
    assert verdict("gap-tinystories", known, value=0.05).verdict == "inconsistent"
    assert verdict("conditions-gpt", with_figures(known, "GPT-02", {"max_lr": 3e-4})).verdict == "consistent"
    assert verdict("sst2-accuracy", with_figures(known, "SST-2-02", accuracy=0.90)).verdict == "consistent"
    assert verdict("gpt-speed-random", with_figures(known, "GPT-01", step_seconds=0.15)).verdict == "impossible"
    assert verdict("step-time-wikitext", with_figures(known, "GPT-06", wall_seconds=12400)).verdict == "inconsistent"
    assert verdict("step-time-xnli", with_figures(known, "XNLI-01", wall_is_sum_of_steps=False)).verdict == "consistent"


def test_the_confound_and_the_half_batch_follow_from_the_catalog(known):
    experiments = copy.deepcopy(dict(known.experiments))
    experiments["XNLI-01"]["arms"] = ["baseline"]
    fair = type(known)(**{**vars(known), "experiments": experiments})
    assert verdict("bert-baseline", fair).verdict == "consistent"
    assert "drawn afresh" not in verdict("conditions-bert", fair).follows
    assert verdict("xnli-accuracy", fair).verdict == "not tested"
    whole = with_figures(known, "XNLI-02", rows_per_timed_step=16)
    assert "per example" not in verdict("bert-speed", whole).follows
    assert "something else differed" in verdict("bert-speed", whole).reason


def test_the_end_of_a_log_decides_what_a_gap_said_of_the_whole_run_means(known):
    assert verdict("first-version-gap", known, value=0.4).verdict == "inconsistent"


@pytest.fixture
def ours(known, tmp_path):
    """ours(oelm_freeze=11.0, …): the evidence with runs of these perplexities, three seeds each."""

    def build(seeds=3, **perplexities):
        for method, value in perplexities.items():
            for seed in range(seeds):
                make_run(tmp_path, method, seed, perplexity=value * (1 + 0.001 * seed), dataset="tinystories")
        write_step_times(tmp_path)
        return type(known)(**{**vars(known), "loaded": load_runs([tmp_path])})

    return build


def test_our_runs_decide_what_arithmetic_cannot(ours):
    found = ours(baseline=10.0, oelm_freeze=11.5, oelm_random=14.0, oelm_random_matched=11.4, oelm_global=12.0)
    assert verdict("gap-tinystories", found).verdict == "reproduced"
    fair = verdict("orthogonality", found)
    assert fair.verdict == "not reproduced"
    assert "oelm_random_matched is better than oelm_freeze" in fair.reason
    assert verdict("first-version-gap", found).verdict == "reproduced"
    assert "oelm_random +21.7 %" in fair.ours
    assert verdict("first-version", found).verdict == "reproduced"
    assert "-4.3% [-5.6%, -3.1%], FLOPs allow -2.9%" in verdict("gpt-speed", found).ours
    assert verdict("bert-speed", found).ours is None  # a decoder's time says nothing about an encoder's


def test_runs_of_two_comparisons_on_one_data_set_are_all_found(known, tmp_path):
    encoder = {"model": {"size": "", "encoder": "bert"}}
    for place, seeds in (("screen", 1), ("final", 3)):
        for method, accuracy in (("baseline", 0.86), ("oelm_freeze", 0.82)):
            for seed in range(seeds):
                final = {"accuracy": accuracy + 0.001 * seed * (method == "baseline"), "loss": 0.4}
                changes = {**encoder, "data": {"path": f"data/{place}", "fingerprint": place}}
                folder = make_run(tmp_path / place, method, seed, final=final, dataset="sst2", config_changes=changes)
                write_json(folder.result_file, {**folder.result(), "data_fingerprint": place})
        write_step_times(tmp_path / place)
    found = type(known)(**{**vars(known), "loaded": load_runs([tmp_path])})
    assert len({comparison.dataset for comparison in found.loaded.comparisons}) == 2  # shown apart, yet both are sst2
    assert verdict("sst2-accuracy", found).verdict == "reproduced"
    assert "3 seeds" in verdict("sst2-accuracy", found).ours
    assert "-4.3%" in verdict("bert-speed", found).ours


def test_comparisons_of_ours_that_disagree_decide_nothing(ours, tmp_path):
    for seed in range(3):
        for method, value in (("baseline", 10.0), ("oelm_freeze", 10.1)):
            larger = {"model": {"size": "tiny", "overrides": {}}}
            make_run(tmp_path / "larger", method, seed, perplexity=value * (1 + 0.001 * seed), dataset="tinystories",
                     config_changes=larger)  # fmt: skip
    found = verdict("gap-tinystories", ours(baseline=10.0, oelm_freeze=11.5))
    assert (found.verdict, found.reason) == ("not tested", "our own comparisons disagree")
    assert "+15.0 %" in found.ours and "+1.0 %" in found.ours


def test_a_better_outcome_of_ours_does_not_reproduce_a_loss(ours):
    assert verdict("gap-tinystories", ours(baseline=10.0, oelm_freeze=10.1)).verdict == "not reproduced"


def test_one_seed_of_ours_tests_nothing(ours):
    found = ours(seeds=1, baseline=10.0, oelm_freeze=11.5, oelm_global=12.0)
    assert verdict("gap-tinystories", found).verdict == "not tested"
    assert verdict("first-version", found).verdict == "not tested"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([1.0, 1.2, 0.9], "reproduced"),
        ([-1.0, -1.2, -0.9], "not reproduced"),
        ([0.1, -0.1, 0.0], "not reproduced"),
        ([2.0, -2.0, 0.1], "not tested"),
    ],
)
def test_our_encoders_decide_an_accuracy_gap(known, tmp_path, points, expected):
    for seed, gain in enumerate(points):
        for method, accuracy in (("baseline", 0.80), ("oelm_freeze", 0.80 + gain / 100)):
            make_run(tmp_path, method, seed, final={"accuracy": accuracy, "loss": 0.5}, dataset="xnli")
    found = type(known)(**{**vars(known), "loaded": load_runs([tmp_path])})
    assert verdict("xnli-accuracy", found).verdict == expected


def test_an_accuracy_gap_is_also_told_against_the_baseline_that_was_really_run(known, tmp_path):
    arms = {"baseline": 0.62, "reinitialised": 0.36, "oelm_freeze": 0.41}
    for seed in range(3):
        for method, accuracy in arms.items():
            final = {"accuracy": accuracy + 0.002 * seed * (method == "baseline"), "loss": 0.5}
            make_run(tmp_path, method, seed, final=final, dataset="xnli")
    found = verdict("xnli-accuracy", type(known)(**{**vars(known), "loaded": load_runs([tmp_path])}))
    assert found.verdict == "not reproduced"
    assert "oelm_freeze -21.2 points" in found.ours
    assert "overwritten as theirs was: oelm_freeze +5.0 points" in found.ours


def test_runs_on_other_data_or_with_other_settings_are_no_evidence(known, tmp_path):
    make_run(tmp_path, "baseline", dataset="fables")
    make_run(tmp_path, "oelm_freeze", dataset="fables")
    make_run(tmp_path, "baseline", name="a", dataset="tinystories", max_lr=3e-4)
    make_run(tmp_path, "oelm_freeze", name="b", dataset="tinystories", max_lr=1e-3)
    found = type(known)(**{**vars(known), "loaded": load_runs([tmp_path])})
    assert verdict("gap-tinystories", found).ours is None


@pytest.mark.parametrize("name", read("facts")["models"])
def test_the_catalogs_models_are_as_inspect_counts_them(known, name):
    from oelm.costs.inspection import costs_of

    facts = known.shape(name)
    how = {"labels": facts.labels, "sequence_length": facts.sequence_length}
    plain, frozen = (costs_of(facts.model, method, **how) for method in ("baseline", "oelm_freeze"))
    assert (facts.parameters, facts.qk_parameters) == (plain.total_parameters, frozen.frozen_parameters)
    assert (facts.step_flops, facts.frozen_step_flops) == (plain.flops.step, frozen.flops.step)


def test_an_unknown_kind_of_claim_is_refused(known):
    with pytest.raises(OelmError, match="kind of claim 'x' 'wish' is unknown"):
        judge([{"id": "x", "kind": "wish", "claim": ""}], known)


def test_the_command_prints_and_loads_no_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = json.loads(CliRunner().invoke(app, ["claims", "--json"]).stdout)
    assert {"id", "claim", "published", "follows", "ours", "verdict", "reason"} == set(listed[0])
    assert "13% longer than the run" in CliRunner().invoke(app, ["audit"]).stdout
    script = "import sys; from oelm.cli.main import app; app(['audit'], standalone_mode=False); "
    script += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
