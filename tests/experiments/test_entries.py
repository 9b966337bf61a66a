"""The catalog: complete, as published, and valid at every scale."""

import pytest
import torch

from oelm.errors import OelmError
from oelm.experiments.entries import SCALES, catalog, chosen, experiment, suites
from oelm.experiments.plan import PreparedData, plan
from oelm.experiments.preview import preview
from oelm.freezing.methods import method

LANGUAGE_MODELS = [name for name in catalog() if experiment(name).data and "name" not in experiment(name).model]
ENCODERS = [name for name in catalog() if experiment(name).task is not None]

# id: dataset, method, learning rate, steps (or epochs), result
PUBLISHED = {
    "XNLI-01": ("xnli", "reinitialised", 2e-5, 3, 0.7671),
    "XNLI-02": ("xnli", "oelm_freeze", 1e-4, 3, 0.7779),
    "GPT-01": ("tinystories", "baseline", 3e-4, 100_000, 4.2692),
    "GPT-02": ("tinystories", "oelm_freeze", 1e-3, 100_000, 4.6857),
    "GPT-03": ("tinystories", "oelm_random", 1e-3, 100_000, 4.9717),
    "GPT-04": ("openwebtext", "baseline", 3e-4, 100_000, 47.24),
    "GPT-05": ("openwebtext", "oelm_freeze", 1e-3, 100_000, 54.29),
    "GPT-06": ("wikitext103", "baseline", 3e-4, 200_000, 25.13),
    "GPT-07": ("wikitext103", "oelm_freeze", 1e-3, 200_000, 29.03),
    "SST-2-01": ("sst2", "baseline", 2e-5, 3, 0.9312),
    "SST-2-02": ("sst2", "oelm_freeze", 1e-4, 3, 0.9128),
    "MNLI-01": ("mnli", "baseline", 2e-5, 3, 0.8344),
    "MNLI-02": ("mnli", "oelm_freeze", 1e-4, 3, 0.8223),
}


def planned(name, scale, **options):
    return plan(experiment(name, scale), PreparedData(f"data/{name}"), __import__("pathlib").Path("out"), **options)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_experiment_is_there_as_published(name):
    entry = experiment(name)
    rate, length = entry.training["max_lr"], entry.training.get("max_steps") or entry.training["epochs"]
    result = entry.published.perplexity or entry.published.accuracy
    assert (entry.dataset, *entry.arms, rate, length, result) == PUBLISHED[name]


def test_the_language_models_follow_the_studys_code_where_its_reports_are_silent():
    for name in (*[name for name in suites()["all"] if name.startswith("GPT")], "controls-tinystories"):
        config = planned(name, "full")[0].config
        training, overrides = config.training, config.model.overrides
        assert (training.beta2, training.weight_decay, training.decay) == (0.999, 0.01, "all")
        assert (training.warmup_steps, training.min_lr, training.schedule) == (1000, 0.0, "cosine")
        assert (training.precision, training.eval_precision, training.score) == ("fp16", "fp32", "best")
        assert overrides == {"residual_init": "plain", "ffn_dropout": True}
    assert [run.seed for run in planned("GPT-01", "full")] == [42]


def test_the_encoders_follow_the_studys_code_where_its_reports_are_silent():
    rows = {"sst2": 67_349, "xnli": 392_702, "mnli": 392_702}
    steps = {}
    for name in suites()["phase1"] + suites()["paper"]:
        (run,) = planned(name, "full")
        training = run.config.training
        assert (training.schedule, training.min_lr, training.segments) == ("linear", 0.0, False)
        assert (training.eval_every, training.eval_tokens, training.score, run.seed) == (500, "all", "best", 42)
        batches = -(-rows[experiment(name).dataset] // training.batch_size)
        steps[name] = round(training.epochs * batches / training.accumulation)
        assert training.with_steps(steps[name]).warmup_steps == steps[name] // 10
    assert steps["SST-2-01"] == 6_315  # as logged
    assert steps["XNLI-01"] == steps["XNLI-02"] == 73_632
    assert steps["XNLI-01"] // 500 == 147  # validations, of which the best was reported


def test_the_published_xnli_baseline_stands_beside_the_fair_one_at_every_scale():
    for scale in SCALES:
        published, fair, frozen = chosen(["xnli"], scale)
        assert [e.arms for e in (published, fair, frozen)] == [["reinitialised"], ["baseline"], ["oelm_freeze"]]
        assert published.training == fair.training
        assert fair.published is None


def test_the_suites_hold_what_the_study_held():
    assert suites()["all"] == [
        *("XNLI-01", "XNLI-02", "GPT-01", "GPT-02", "GPT-03", "GPT-04", "GPT-05", "GPT-06", "GPT-07"),
        *("SST-2-01", "SST-2-02", "MNLI-01", "MNLI-02"),
    ]
    assert set(suites()["all"]) == set(PUBLISHED)
    assert [e.name for e in chosen(["phase2", "GPT-02", "gpt-03"])] == ["GPT-01", "GPT-02", "GPT-03"]


@pytest.mark.parametrize("scale", SCALES)
def test_every_entry_is_valid_at_every_scale_and_names_known_methods(scale):
    for entry in chosen(catalog(), scale):
        assert all(method(arm).name == arm for arm in entry.arms)
        if entry.data is not None:
            assert planned(entry.name, scale)


@pytest.mark.parametrize("name", [name for name in LANGUAGE_MODELS if name != "demo"])
def test_full_scale_builds_on_the_meta_device_with_its_steps_and_memory(name, capsys):
    for run in planned(name, "full", seeds=[0]):
        facts = preview(run, experiment(name))
        share = 1 / 2 if method(run.config.method).ffn.frozen else 1 / 5  # FFN matrices are many
        assert facts["frozen_parameters"] < share * facts["total_parameters"]
        assert facts["tokens"] >= 400e6
        assert facts["checkpoint_bytes"] < facts["memory_bytes"] < 24e9  # it fits the study's 24 GB cards
        print(f"{facts['arm']}: {facts['total_parameters']:,} parameters, {facts['memory_bytes'] / 2**30:.1f} GiB")
    if name in PUBLISHED:
        assert facts["total_parameters"] == 44_896_768
    assert "GiB" in capsys.readouterr().out


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_entries_build_on_the_meta_device(name):
    transformers = pytest.importorskip("transformers")
    labels = 2 if experiment(name).dataset == "sst2" else 3
    with torch.device("meta"):
        # The defaults of BertConfig are bert-base-uncased.
        model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=labels))
    parts = [(path, p.numel()) for path, p in model.named_parameters()]
    assert sum(n for _, n in parts) == 109_484_547 - (3 - labels) * 769
    assert sum(n for path, n in parts if ".query." in path or ".key." in path) == 14_174_208


def test_a_smaller_scale_gives_every_arm_the_same_learning_rate():
    rates = {
        run.config.training.max_lr for name in PUBLISHED if name in LANGUAGE_MODELS for run in planned(name, "mini")
    }
    assert rates == {3e-3}


def test_a_sweep_gives_every_arm_the_same_rates():
    for scale in SCALES:
        rates: dict[str, list[float]] = {}
        for run in planned("learning-rate", scale):
            rates.setdefault(run.arm, []).append(run.config.training.max_lr)
        assert len({tuple(values) for values in rates.values()}) == 1
        assert len(rates) == 4


def test_a_wrong_entry_is_one_line_that_says_what_is_wrong(monkeypatch):
    entry = {"name": "mine", "summary": "x", "data": {"corpus": "fablez", "tokenizer": "bpe:300"}, "seeds": [0]}
    for arms, words in (
        (["baseline"], "corpus 'fablez' is unknown; did you mean 'fables'"),
        ([], r"key 'methods' is \[\]; it must have at least 1 item"),
    ):
        monkeypatch.setattr("oelm.experiments.entries._entries", lambda arms=arms: {"mine": {**entry, "arms": arms}})
        with pytest.raises(OelmError, match=rf"^catalog entry 'mine' is not valid at scale full: .*{words}[^\n]*$"):
            experiment("mine")


def test_an_unknown_name_is_refused_with_the_nearest_ones():
    with pytest.raises(OelmError, match=r"experiment 'GPT-2' is unknown; did you mean 'GPT-02'"):
        chosen(["GPT-2"])
    with pytest.raises(OelmError, match="scale 'medium' is unknown"):
        experiment("GPT-02", "medium")
