"""Advice comes from measured runs only, and says what it does not know."""

import json
import re

import pytest
from typer.testing import CliRunner

from factory import make_run
from oelm.analysis.compare.results import load_runs
from oelm.analysis.recommend import advise
from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.files import write_json
from oelm.freezing.modifiers import equal_baseline
from oelm.runs import FAILED


def suite(root, scores):
    """Runs of {method: perplexities by seed}."""
    for name, values in scores.items():
        for seed, value in enumerate(values):
            make_run(root, name, seed, perplexity=value)
    return root


@pytest.fixture
def results(tmp_path):
    return suite(
        tmp_path,
        {
            "baseline": [10.0, 10.1, 9.9],
            "oelm_freeze": [11.5, 11.6, 11.4],
            "permutation_qk+rank=8": [10.21, 10.3, 10.1],
            "baseline+rank=8": [10.0, 10.1, 9.9],
            "identity_q": [10.1],
        },
    )


def test_only_what_is_surely_within_the_budget_is_advised(results):
    advice = advise(load_runs(results), "decoder", "lm", 5.0)
    assert advice.verdicts == {"permutation_qk+rank=8": "met", "identity_q": "undecided", "oelm_freeze": "missed"}
    assert "met" not in advise(load_runs(results), "decoder", "lm", 1.0).verdicts.values()


def test_a_method_with_pieces_is_judged_against_a_baseline_with_the_same(results):
    against = {e.method: e.baseline for e in advise(load_runs(results), "decoder", "lm", 5.0).evidence}
    assert against == {
        "oelm_freeze": "baseline",
        "identity_q": "baseline",
        "permutation_qk+rank=8": "baseline+rank=8",
    }
    assert equal_baseline("oelm_freeze+mix+thaw=top-down:0.5") == "baseline+mix"


def test_one_seed_of_a_screening_says_neither_yes_nor_no(results):
    for name, value in {"baseline": 20.0, "baseline+rank=8": 20.0, "permutation_qk+rank=8": 24.0}.items():
        make_run(results, name, 0, name=f"screen-{name}", perplexity=value, steps=500)
    advice = advise(load_runs(results), "decoder", "lm", 5.0)
    assert advice.verdicts["permutation_qk+rank=8"] == "met"
    shown = [(e.seeds, e.comparison) for e in advice.evidence if e.method == "permutation_qk+rank=8"]
    assert shown == [(3, "fables (demo, 1,000 steps)"), (1, "fables (demo, 500 steps)")]


def test_a_data_set_with_one_seed_only_leaves_a_method_undecided(results):
    for name in ("baseline", "baseline+rank=8", "permutation_qk+rank=8"):
        make_run(results, name, 0, name=f"other-{name}", dataset="other", perplexity=10.0)
    assert advise(load_runs(results), "decoder", "lm", 5.0).verdicts["permutation_qk+rank=8"] == "undecided"


def test_a_seed_that_failed_takes_the_proof_away_and_is_named(results):
    make_run(results, "permutation_qk+rank=8", 3, finished=False, state=FAILED)
    advice = advise(load_runs(results), "decoder", "lm", 5.0)
    assert advice.verdicts["permutation_qk+rank=8"] == "undecided"
    assert advice.left_out == ["permutation_qk+rank=8-s3 failed, so permutation_qk+rank=8 is not proven"]


def test_a_method_all_of_whose_seeds_failed_on_another_text_is_not_proven(results):
    for seed in (0, 1, 2):
        make_run(results, "baseline", seed, name=f"b{seed}", dataset="other", perplexity=20.0)
        lost = {"name": f"lost{seed}", "dataset": "other", "finished": False, "state": FAILED}
        make_run(results, "permutation_qk+rank=8", seed, **lost)
    advice = advise(load_runs(results), "decoder", "lm", 5.0)
    assert advice.verdicts["permutation_qk+rank=8"] == "undecided"
    assert len(advice.left_out) == 3 and advice.left_out[0].startswith("lost0 failed and no other seed")


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"model": {"size": "", "encoder": "bert"}, "data": {"path": "data/sst2", "fingerprint": "of sst2"}},
        {"data": {"path": "data/fables", "fingerprint": None}},
    ],
)
def test_a_failure_where_nothing_was_finished_says_nothing_of_a_method(results, elsewhere):
    make_run(results, "permutation_qk+rank=8", 3, finished=False, state=FAILED, config_changes=elsewhere)
    advice = advise(load_runs(results), "decoder", "lm", 5.0)
    assert advice.verdicts["permutation_qk+rank=8"] == "met"
    assert advice.left_out == []


def test_two_seeds_that_agree_exactly_are_not_one(tmp_path):
    encoder = {"model": {"size": "", "encoder": "bert"}}
    for seed, accuracy in enumerate((0.75, 0.875)):
        for name, loss in (("baseline", 0.0), ("oelm_freeze", 0.0625)):
            final = {"accuracy": accuracy - loss, "f1": 0.8, "loss": 0.4}
            make_run(tmp_path, name, seed, final=final, config_changes=encoder)
    words = ["recommend", "--model", "bert-base", "--results", str(tmp_path)]
    shown = " ".join(CliRunner().invoke(app, words).stdout.split())
    assert "gap -6.2 points, no interval" in shown and "one seed" not in shown


def test_what_is_no_evidence_is_named_with_the_reason(results):
    make_run(results, "oelm_freeze", 0, name="alone", dataset="other")
    make_run(results, "oelm_freeze", 0, name="longer", weight_decay=0.2)
    assert advise(load_runs(results), "decoder", "lm", 5.0).left_out == [
        "oelm_freeze (weight_decay=0.2) on fables (demo): it was trained otherwise than baseline",
        "oelm_freeze on other (demo): there is no baseline beside it",
    ]


def test_of_those_within_the_budget_the_cheapest_is_advised_and_none_that_saves_nothing(results):
    for seed, noise in enumerate((0.0, 0.1, -0.1)):
        make_run(results, "q_only", seed, perplexity=10.0 + noise)
        make_run(results, "oelm_freeze+mix+rank=16", seed, perplexity=9.0 + noise)
    words = ["recommend", "--model", "demo", "--results", str(results), "--json"]
    facts = json.loads(CliRunner().invoke(app, words).stdout)
    assert facts["method"] == "permutation_qk+rank=8"  # q_only is better, but within the budget all are equal
    assert facts["verdicts"]["oelm_freeze+mix+rank=16"] == "undecided"  # the best, but beside no equal baseline
    assert facts["costs"]["oelm_freeze+mix+rank=16"]["step_flops_vs_baseline"] > 1
    unequal = [e["method"] for e in facts["evidence"] if not e["equal"]]
    assert unequal == ["oelm_freeze+mix+rank=16"]  # no baseline with mix and rank was there


def test_a_baseline_without_the_methods_adapters_proves_nothing_and_can_refute(results):
    for seed, noise in enumerate((0.0, 0.1, -0.1)):
        for name, perplexity in {"baseline": 20.0, "permutation_qk+rank=8": 15.0}.items():
            make_run(results, name, seed, name=f"{name}-other-{seed}", dataset="other", perplexity=perplexity + noise)
    assert advise(load_runs(results), "decoder", "lm", 5.0).verdicts["permutation_qk+rank=8"] == "undecided"


def test_trained_arms_that_are_better_for_no_more_flops_are_shown_first(results):
    """Advice to freeze must not hide what is better and freezes nothing."""
    trained = {"baseline+offset": (9.0, 0.9), "baseline+rank=8+offset": (8.5, 1.1), "baseline+ffn=3.25": (10.0, 0.9)}
    for name, (perplexity, flops) in {
        **trained,
        "baseline": (10.0, 1.0),
        "permutation_qk+rank=8": (10.2, 0.95),
    }.items():
        for seed, noise in enumerate((0.0, 0.1, -0.1)):
            run = make_run(results / "fair", name, seed, perplexity=perplexity + noise)
            write_json(run.result_file, {**run.result(), "flops_per_token": flops})
    advice = advise(load_runs(results / "fair"), "decoder", "lm", 5.0)
    assert [e.method for e in advice.trained] == ["baseline+offset"]  # one is dearer, one no better
    rival = next(e for e in advice.evidence if e.method == "permutation_qk+rank=8")
    assert rival.rival == "baseline+offset" and rival.rival_worse[0] > 0
    for seed, noise in enumerate((0.0, 0.1, -0.1)):
        for name in ("baseline", "baseline+offset"):
            make_run(results / "fair", name, seed, name=f"{name}-{seed}o", dataset="other", perplexity=10 + noise)
    assert not advise(load_runs(results / "fair"), "decoder", "lm", 5.0).trained  # not better everywhere


def test_two_methods_under_one_name_are_not_one(results):
    mine = {"name": "mine", "query": {"init": "head_orthogonal", "frozen": True}}
    for seed, noise in enumerate((0.0, 0.1, -0.1)):
        make_run(results, mine, seed, name=f"good-{seed}", perplexity=10.0 + noise)
        make_run(results, {**mine, "key": mine["query"]}, seed, name=f"bad-{seed}", perplexity=12.0 + noise)
    found = advise(load_runs(results), "decoder", "lm", 5.0).verdicts
    assert sorted((name, verdict) for name, verdict in found.items() if name.startswith("mine")) == [
        ("mine", "missed"), ("mine (#2)", "met"),
    ]  # fmt: skip


def test_a_method_that_failed_anywhere_is_not_advised(results):
    for seed, (base, frozen) in enumerate([(20.0, 23.0), (20.2, 23.2), (19.8, 22.9)]):
        make_run(results, "baseline", seed, name=f"b{seed}", dataset="other", perplexity=base)
        make_run(results, "permutation_qk+rank=8", seed, name=f"p{seed}", dataset="other", perplexity=frozen)
    assert advise(load_runs(results), "decoder", "lm", 5.0).verdicts["permutation_qk+rank=8"] == "missed"


def test_of_undecided_classifiers_the_better_comes_first(tmp_path):
    encoder = {"model": {"size": "", "encoder": "bert"}}
    for name, accuracy in (("baseline", 0.86), ("oelm_freeze", 0.82), ("head_polar_scaled", 0.855)):
        make_run(tmp_path, name, final={"accuracy": accuracy, "f1": accuracy, "loss": 0.4}, config_changes=encoder)
    advice = advise(load_runs(tmp_path), "encoder", "classification", 5.0)
    assert advice.verdicts == {"head_polar_scaled": "undecided", "oelm_freeze": "undecided"}
    assert list(advice.verdicts) == ["head_polar_scaled", "oelm_freeze"]


def test_decoders_say_nothing_about_encoders(results):
    assert advise(load_runs(results), "encoder", "classification", 5.0).evidence == []


def test_the_command_says_what_to_use_why_and_what_is_not_known(results, tmp_path):
    run = CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(results)])
    assert run.exit_code == 0, run.output
    assert "permutation_qk+rank=8" in run.output and "fewer matmul FLOPs" in run.output and "Limits" in run.output
    facts = json.loads(
        CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(results), "--json"]).stdout
    )
    assert facts["method"] == "permutation_qk+rank=8" and facts["costs"]["identity_q"]["step_flops_vs_baseline"] < 1
    other = CliRunner().invoke(
        app, ["recommend", "--model", "tiny", "--task", "classification", "--results", str(results)]
    )
    assert "Nothing is known" in other.output and "a decoder (classification)" in other.output
    for words, message in (
        (["--results", str(tmp_path / "nowhere")], "nowhere is no folder"),
        (["--results", str(results), "--task", "translation"], "task 'translation' is unknown"),
    ):
        refused = CliRunner().invoke(app, ["recommend", "--model", "tiny", *words])
        assert isinstance(refused.exception, OelmError) and message in str(refused.exception)


def test_a_method_that_does_not_fit_the_model_is_said_so_and_never_advised(tmp_path):
    custom = {"name": "mine", "query": {"init": "head_orthogonal", "frozen": True}, "thaw": {"at": [400], "warmup": 0}}
    for seed, noise in enumerate((0.0, 0.1, -0.1)):
        make_run(tmp_path, "baseline", seed, perplexity=10.0 + noise)
        make_run(tmp_path, "oelm_freeze+layers=20:21", seed, perplexity=10.0 + noise)
        make_run(tmp_path, custom, seed, perplexity=10.1 + noise)
    wide = CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(tmp_path)])
    assert wide.exit_code == 0, wide.output
    assert wide.output.startswith("mine: at most 5 % worse")
    assert re.search(r"oelm_freeze\+layers=20:21 +met +-?\S+ … \S+ % +3 +– \(does not fit\)", wide.output)
    words = ["recommend", "--model", "tiny", "--results", str(tmp_path), "--all"]
    in_full = CliRunner().invoke(app, words).output
    assert "oelm_freeze+layers=20:21: met; FLOPs – (does not fit)" in in_full and "layer 20 does not exist" in in_full
    facts = json.loads(
        CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(tmp_path), "--json"]).stdout
    )
    assert facts["method"] == "mine" and "layer 20 does not exist" in facts["misfits"]["oelm_freeze+layers=20:21"]
    assert facts["methods"]["mine"]["thaw"]["at"] == [0.399]  # after 399 of 1,000 steps
    assert facts["costs"]["mine"]["step_flops_vs_baseline"] < 1


def test_names_of_methods_are_never_cut(tmp_path):
    name = "oelm_freeze+scale+gain+mix+rank=8+thaw=top-down:0.25:0.75+warmup=10+refreeze=0.9"
    for seed, noise in enumerate((0.0, 0.1)):
        make_run(tmp_path, "baseline", seed, perplexity=10.0 + noise)
        make_run(tmp_path, name, seed, perplexity=10.1 + noise)
    assert name in CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(tmp_path)]).output


@pytest.mark.parametrize(
    ("model", "kind"),
    [("tiny", "decoder"), ("gpt2", "decoder"), ("bert-base", "encoder"), ("vit-base", "encoder"),
     ("t5-small", "encoder-decoder")],
)  # fmt: skip
def test_the_kind_of_a_model_comes_from_its_configuration(model, kind):
    done = CliRunner().invoke(app, ["recommend", "--model", model, "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["kind"] == kind


def test_an_unknown_model_is_refused():
    with pytest.raises(OelmError, match="tinny"):
        from oelm.cli.recommend import recommend

        recommend("tinny")


def test_a_line_per_method_shows_the_study_that_speaks_most_against_it(results):
    for seed, (base, free) in enumerate([(20.0, 20.6), (20.2, 20.7), (19.8, 20.5)]):
        make_run(results, "baseline", seed, name=f"b{seed}", dataset="other", perplexity=base)
        make_run(results, "identity_q", seed, name=f"i{seed}", dataset="other", perplexity=free)
    advice = advise(load_runs(results), "decoder", "lm", 5.0)
    found = [e for e in advice.evidence if e.method == "identity_q"]
    assert {e.dataset for e in found} == {"fables", "other"}
    assert advice.worst("identity_q").gap == max(e.gap for e in found)
    short = CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(results)]).output
    whole = CliRunner().invoke(app, ["recommend", "--model", "tiny", "--results", str(results), "--all"]).output
    assert short.count("identity_q ") == 1 and "--all shows every comparison" in short
    assert "identity_q: " in whole and "--all" not in whole
