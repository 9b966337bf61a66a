"""Encoders and GPTs as classifiers, in the same trainer: same promises, other numbers."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import oelm
from architectures import ARCHITECTURES
from oelm.analysis.compare.results import load_runs
from oelm.data.labelled import TaskData, prepare_task
from oelm.data.tasks import TaskSource, find_task
from oelm.evaluation.generation import generate
from oelm.models import stock as classifiers
from oelm.models.known import read_config
from oelm.records import read_rows
from oelm.runs import RunFolder
from oelm.training import setup
from oelm.training.checkpoints import newest_valid
from oelm.training.classification import Classification, macro_f1
from oelm.training.config import RunConfig, TrainingSection
from oelm.training.distributed import find_world
from oelm.training.interruption import Interrupted
from oelm.training.trainer import train

GOOD, BAD = ("fine", "lovely", "warm"), ("dull", "empty", "cold")
GPT = {"size": "demo", "overrides": {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "max_seq_len": 32}}


def sentences(count: int, seed: int) -> list[tuple[str, int]]:
    """Film reviews whose one telling word decides."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = int(draw.integers(2))
        filler = ["the film is"] * int(draw.integers(1, 4))
        rows.append((" ".join([*filler, str(draw.choice(GOOD if label else BAD))]), label))
    return rows


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> TaskData:
    files = tmp_path_factory.mktemp("reviews")
    for split, count in (("train", 150), ("validation", 60)):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in sentences(count, seed=count))]
        (files / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return prepare_task(TaskSource(find_task("sst2"), files), "bpe:300", files / "task")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> Path:
    """Folders `bert` and `gpt2` with small random models that know 320 tokens."""
    root = tmp_path_factory.mktemp("encoders")
    for name, model_class, config in (
        ("bert", hf.BertModel, hf.BertConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                             intermediate_size=48, max_position_embeddings=40)),
        ("gpt2", hf.GPT2Model, hf.GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=4, n_positions=40,
                                             eos_token_id=0, bos_token_id=0)),
    ):  # fmt: skip
        torch.manual_seed(0)
        model_class(config).save_pretrained(root / name)
    hf.BertModel.from_pretrained(root / "bert").to(torch.bfloat16).save_pretrained(root / "bert-bf16")
    return root


@pytest.fixture
def config(task, encoders):
    """config("bert", "oelm_freeze", max_lr=…) or, with a mapping, config(GPT, …)."""

    def build(model, method="oelm_freeze", *, seed=0, data=None, **training) -> RunConfig:
        settings = {"epochs": 1, "batch_size": 16, "max_lr": 3e-3, "eval_every": 4, "log_every": 1, **training}
        return RunConfig.parse(
            {
                "method": method,
                "seed": seed,
                "model": model if isinstance(model, dict) else {"encoder": str(encoders / model)},
                "data": {"path": str(data or task.path)},
                "training": settings,
                "runtime": {"device": "cpu", "threads": 1},
            }
        )

    return build


BIDIRECTIONAL = {**GPT, "overrides": {**GPT["overrides"], "causal": False}}
every_model = pytest.mark.parametrize(
    "model", ["bert", "gpt2", GPT, BIDIRECTIONAL], ids=["bert", "gpt2", "gpt", "both"]
)


@every_model
def test_a_classifier_learns_and_its_result_says_how_well(model, config, tmp_path):
    result = train(config(model, epochs=12, max_lr=5e-3, eval_every=40), tmp_path / "run")
    final = result["final"]
    confusion = np.array(final["confusion"])
    assert final["accuracy"] > 0.9
    assert confusion.sum() == final["samples"] == 60
    assert final["accuracy"] == pytest.approx(np.trace(confusion) / 60)
    assert final["f1"] == pytest.approx(macro_f1(confusion))
    assert final["classes"] == ["negative", "positive"]
    assert result["frozen_verified"] and result["frozen_parameters"] > 0
    assert RunFolder(tmp_path / "run").timing()["final_accuracy"] == final["accuracy"]
    rows = read_rows(RunFolder(tmp_path / "run").predictions_file, "label", "prediction", "scores")
    assert [row["index"] for row in rows] == list(range(60))
    assert [(row["text"].strip(), row["label"]) for row in rows] == [
        (text, final["classes"][label]) for text, label in sentences(60, seed=60)
    ]
    counted = [[sum(row["label"] == a and row["prediction"] == b for row in rows) for b in final["classes"]]
               for a in final["classes"]]  # fmt: skip
    assert counted == final["confusion"]
    assert all(final["classes"][int(np.argmax(row["scores"]))] == row["prediction"] for row in rows)


@every_model
def test_a_checkpoint_is_a_stock_model_that_gives_the_same_accuracy(model, config, task, tmp_path):
    result = train(config(model), tmp_path / "run")
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "checkpoints" / "latest").eval()
    assert loaded.config.id2label == {0: "negative", 1: "positive"}
    right = 0
    with torch.no_grad():
        for number in range(len(task.validation)):
            ids = torch.tensor(task.validation.row(number).astype(np.int64))[None]
            right += int(loaded(ids).logits.argmax()) == task.validation.labels[number]
    assert right / 60 == result["final"]["accuracy"]  # one by one: padding must not have mattered
    with pytest.raises(oelm.OelmError, match=r"is a classifier .* it writes no text"):
        generate(tmp_path / "run")


def fingerprint(run: Path) -> dict:
    folder = RunFolder(run)
    hashes = json.loads((newest_valid(folder.checkpoints).path / "manifest.json").read_text())["sha256"]
    names = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "freeze.json")
    return {
        "metrics": folder.metrics_file.read_bytes(),
        "checkpoint": {name: hashes[name] for name in names},
        "final": folder.result()["final"],
    }


@every_model
@pytest.mark.parametrize("method", ["oelm_freeze", "permutation_qk+rank=2+mix", "oelm_freeze+thaw=top-down:0.5"])
@pytest.mark.parametrize("calls", [[3, 12]])  # 10 batches per epoch: once inside it, once in the next
def test_resume_is_bitwise(model, method, calls, config, tmp_path, monkeypatch):
    run = config(model, method, epochs=1.5)
    train(run, tmp_path / "whole")
    original, count = Classification.batch, 0

    def batch(objective, micro_step):
        nonlocal count
        count += 1
        if count in calls:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(objective, micro_step)

    monkeypatch.setattr(Classification, "batch", batch)
    for _ in calls:
        with pytest.raises(Interrupted):
            train(run, tmp_path / "parts")
    train(run, tmp_path / "parts")
    assert fingerprint(tmp_path / "parts") == fingerprint(tmp_path / "whole")


def test_an_encoder_in_half_precision_is_trained_and_read_again_in_float32(config, task, tmp_path):
    train(config("bert-bf16", "permutation_qk+rank=2", max_steps=2, epochs=None), tmp_path / "run")
    checkpoint = newest_valid(RunFolder(tmp_path / "run").checkpoints)
    loaded = classifiers.build(
        "classification", classifiers.encoder_config(str(checkpoint.path), task.classes), checkpoint.path
    )
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    saved = checkpoint.tensors("model")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.named_parameters())


def test_arms_of_a_seed_share_everything_but_queries_and_keys(config, tmp_path):
    from oelm.training import setup
    from oelm.training.trainer import Trainer

    states = []
    for method in ("baseline", "oelm_freeze", "fresh_orthogonal"):
        folder = RunFolder(tmp_path / method)
        run = config("bert", method)
        parts = setup.prepare(run, folder)
        folder.create(parts.config.to_dict())
        states.append(Trainer(parts, folder).model.state_dict())
    for name, tensor in states[0].items():
        same = all(torch.equal(tensor, other[name]) for other in states[1:])
        assert same == (not name.endswith(("query.weight", "key.weight"))), name


def test_a_pretrained_encoder_keeps_its_row_spaces_and_a_fresh_gpt_has_none(config, tmp_path):
    train(config("bert"), tmp_path / "bert")
    train(config(GPT), tmp_path / "gpt")
    inits = [{s["init"] for s in RunFolder(tmp_path / name).freeze_report()["sites"]} for name in ("bert", "gpt")]
    assert inits == [{"head_qr"}, {"head_orthogonal"}]


def test_every_row_of_a_step_weighs_the_same_however_it_is_cut_into_batches(task):
    settings = TrainingSection(max_steps=1, batch_size=16, accumulation=10)  # 150 rows: nine batches of 16 and one of 6
    objective = Classification(task, settings, seed=0, device=torch.device("cpu"), segments=False)
    weights = []
    for micro in range(10):
        rows = len(objective.batch(micro)["labels"])
        weights += [objective._weight / rows / 10] * rows
    assert weights == pytest.approx([1 / 150] * 150)


def test_the_rows_of_a_step_are_counted_once_not_for_each_of_its_batches(task, monkeypatch):
    settings = TrainingSection(max_steps=1, batch_size=2, accumulation=20)
    objective = Classification(task, settings, seed=0, device=torch.device("cpu"), segments=False)
    asked = []
    batch = objective.order.batch
    monkeypatch.setattr(objective.order, "batch", lambda number: asked.append(number) or batch(number))
    for micro in range(20):
        objective.batch(micro)
    assert len(asked) == 40


def test_steps_that_do_not_fit_the_data_are_refused_in_one_line():
    with pytest.raises(oelm.OelmError, match=r"epochs 1 are 100 steps of this data: .*warmup_steps 500 exceeds"):
        TrainingSection(epochs=1, warmup_steps=500).with_steps(100)


def test_padding_lies_within_the_vocabulary():
    odd = hf.GPT2Config(vocab_size=100, eos_token_id=50_256)
    assert classifiers._with_padding(odd).pad_token_id == 0
    assert classifiers._with_padding(hf.GPT2Config(vocab_size=100, eos_token_id=[7, 8])).pad_token_id == 7


def test_epochs_become_steps_and_the_config_runs_again(config, tmp_path):
    result = train(config("bert", epochs=2), tmp_path / "run")
    assert result["steps"] == 20  # 150 rows, 16 a batch, the tenth batch smaller
    status = RunFolder(tmp_path / "run").status()
    assert (status["loss"], status["accuracy"]) == (
        result["final"]["loss"],
        result["final"]["accuracy"],
    )  # of the whole
    again = RunConfig.load(tmp_path / "run" / "config.yaml")
    assert (again.training.max_steps, again.training.epochs) == (20, 2.0)
    assert train(again, tmp_path / "run") == result
    with pytest.raises(oelm.OelmError, match=r"epochs 2 are 20 steps of this data, but max_steps is 7"):
        train(config("bert", epochs=2, max_steps=7), tmp_path / "other")


def test_a_queued_config_with_epochs_is_accepted_when_it_starts(config, tmp_path):
    RunFolder(tmp_path / "run").create(config("bert").to_dict())
    assert train(RunConfig.load(tmp_path / "run" / "config.yaml"), tmp_path / "run")["steps"] == 10


def test_reports_read_classifiers_like_language_models(config, tmp_path):
    for method in ("baseline", "oelm_freeze"):
        for seed in (0, 1):
            train(config("bert", method, seed=seed), tmp_path / "runs" / f"{method}-{seed}")
    loaded = load_runs(tmp_path / "runs")
    assert not loaded.skipped
    assert [arm.metric.name for arm in loaded.arms] == ["accuracy", "accuracy"]
    assert [len(arm.scores) for arm in loaded.arms] == [2, 2]


# What is refused, before any work


def classifier_folder(folder: Path, names: list[str]) -> dict[str, str]:
    model = ARCHITECTURES["bert"].model()
    model = hf.BertForSequenceClassification(
        hf.BertConfig(**{**model.config.to_dict(), "vocab_size": 320, "id2label": dict(enumerate(names))})
    )
    model.save_pretrained(folder)
    return {"encoder": str(folder)}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["only"], r"the data have 2 classes \(negative, positive\), but .* is a classifier of 1 \(only\)"),
        (["positive", "negative"], r"classifier of positive, negative, the data's classes are negative, positive"),
    ],
)
def test_a_classifier_for_other_classes_is_refused(names, message, config, tmp_path):
    with pytest.raises(oelm.OelmError, match=message):
        train(config(classifier_folder(tmp_path / "model", names)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_classifier_for_the_same_classes_is_fine_tuned_further(config, tmp_path):
    model = classifier_folder(tmp_path / "model", ["Negative", "Positive"])
    assert train(config(model, "pretrained_frozen"), tmp_path / "run")["steps"] == 10


def test_texts_longer_than_the_model_and_foreign_tokenizers_are_refused(config, task, tmp_path, encoders):
    short = {**GPT, "overrides": {**GPT["overrides"], "max_seq_len": 4}}
    with pytest.raises(oelm.OelmError, match=rf"texts of {task.longest} tokens, but the model reads at most 4"):
        train(config(short), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match="above sequence_length 3"):
        train(config("bert", sequence_length=3), tmp_path / "run")
    small = hf.BertModel(hf.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    small.save_pretrained(tmp_path / "small")
    with pytest.raises(oelm.OelmError, match=r"tokenizer has \d+ ids, but .*small only 50"):
        train(config({"encoder": str(tmp_path / "small")}), tmp_path / "run")
    other = prepare_task(TaskSource(find_task("sst2"), task.path.parent), "bpe:280", tmp_path / "task")
    folder = tmp_path / "bert"
    hf.BertModel.from_pretrained(encoders / "bert").save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(task.tokenizer_path.read_bytes())
    with pytest.raises(oelm.OelmError, match=r"tokenised with tokenizer .* but .* has .*prepare the data again"):
        train(config({"encoder": str(folder)}, data=other.path), tmp_path / "run")


def test_a_model_without_known_attention_is_refused(config, tmp_path):
    sizes = {"embedding_size": 16, "hidden_size": 16, "intermediate_size": 16, "vocab_size": 320}
    squeezebert = hf.SqueezeBertConfig(**sizes, num_attention_heads=2, num_hidden_layers=1)
    hf.SqueezeBertModel(squeezebert).save_pretrained(tmp_path / "squeezebert")
    with pytest.raises(oelm.OelmError, match=r"has no attention that oelm knows: its SqueezeBertSelfAttention"):
        train(config({"encoder": str(tmp_path / "squeezebert")}), tmp_path / "run")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: hf.MambaModel(hf.MambaConfig(vocab_size=320, hidden_size=8, num_hidden_layers=1)),
            "decoder .mamba., which cannot be trained as classification; possible: causal",
        ),
        (
            lambda: hf.ResNetModel(hf.ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1])),
            "'resnet' model, which reads no text",
        ),
    ],
)
def test_a_model_that_cannot_sort_texts_is_refused(make, message, config, tmp_path):
    make().save_pretrained(tmp_path / "model")
    with pytest.raises(oelm.OelmError, match=message):
        train(config({"encoder": str(tmp_path / "model")}), tmp_path / "run")


def test_weights_that_are_not_there_are_not_called_pretrained(config, encoders, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "half"
    hf.BertModel.from_pretrained(encoders / "bert").save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if ".layer.1." not in name}
    save_file(left, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(oelm.OelmError, match=r"half lack 16 tensors of a BertForSequenceClassification"):
        train(config({"encoder": str(folder)}), tmp_path / "run")


def test_segments_go_only_to_models_that_have_some(config, encoders, task, tmp_path):
    """GPT-2 would look them up among its words, and RoBERTa has room for one kind."""
    told = {
        name: classifiers.reads_segments(
            classifiers.build("classification", classifiers.encoder_config(str(encoders / name), task.classes), None)
        )
        for name in ("bert", "gpt2")
    }
    assert told == {"bert": True, "gpt2": False}


def test_a_decoder_with_several_ends_pads_with_the_first(tmp_path, task):
    hf.LlamaConfig(vocab_size=320, eos_token_id=[7, 9]).save_pretrained(tmp_path / "llama")
    assert classifiers.encoder_config(str(tmp_path / "llama"), task.classes).pad_token_id == 7
    hf.LlamaConfig(vocab_size=320, pad_token_id=-1, eos_token_id=5).save_pretrained(tmp_path / "none")
    assert classifiers.encoder_config(str(tmp_path / "none"), task.classes).pad_token_id == 5


def test_encoders_epochs_and_looking_ahead_are_refused_for_language_models(config, fables_folder, tmp_path):
    with pytest.raises(oelm.OelmError, match=r"tokenizer has 512 ids, but .*bert only 320"):
        train(config("bert", data=fables_folder), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match="epochs 1 are for classification"):
        train(config(GPT, data=fables_folder), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match="see what it should predict"):
        train(config(BIDIRECTIONAL, data=fables_folder, epochs=None, max_steps=5), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match="has its own size"):
        config({"encoder": "x", "size": "demo"})


def test_too_few_rows_for_a_batch_and_a_missing_encoder_are_refused(config, tmp_path):
    with pytest.raises(oelm.OelmError, match="150 training rows, fewer than batch_size 200"):
        train(config("bert", batch_size=200), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match=r"model .*nowhere' is not there; give a model folder"):
        train(config("nowhere"), tmp_path / "run")


@pytest.mark.shared_data
def test_a_real_encoder_on_real_sst2(shared_data, minilm, tmp_path):
    data = prepare_task(TaskSource(find_task("sst2"), shared_data / "sst2"), minilm, tmp_path / "task", train_rows=48)
    run = RunConfig.parse(
        {
            "method": "head_polar_scaled",
            "model": {"encoder": str(minilm)},
            "data": {"path": str(data.path)},
            "training": {
                "epochs": 1,
                "batch_size": 16,
                "max_lr": 1e-4,
                "eval_tokens": 200,
                "eval_every": 3,
                "log_every": 1,
            },
            "runtime": {"device": "cpu", "threads": 1},
        }
    )
    result = train(run, tmp_path / "run")
    assert result["frozen_parameters"] == 12 * (384 * 384 + 384)
    assert result["final"]["samples"] == 872
    assert len(RunFolder(tmp_path / "run").metrics("train")) == 3


def test_segments_are_told_unless_asked_not_to(config, tmp_path):
    for told in (True, False):
        given = config("bert", segments=told)
        objective = setup.prepare(given, RunFolder(tmp_path / str(told)), find_world(given)).objective
        assert ("token_type_ids" in objective.batch(0)) == told


def test_the_best_accuracy_is_the_result_if_asked(config, tmp_path):
    result = train(config("bert", "reinitialised", score="best", eval_every=2), tmp_path / "run")
    rows = RunFolder(tmp_path / "run").metrics("validation")
    assert result["final"]["accuracy"] == max(row["accuracy"] for row in rows)
    assert result["final"]["samples"] == 60
    predictions = read_rows(RunFolder(tmp_path / "run").predictions_file)  # of the best step, not of the last
    right = sum(row["label"] == row["prediction"] for row in predictions)
    assert right / 60 == pytest.approx(result["final"]["accuracy"])


def test_a_model_folder_runs_no_code_and_unpickles_nothing(tmp_path):
    """Neither its own Python, nor weights that only pickle can read, unless somebody asks for them."""
    folder = tmp_path / "hostile"
    settings = {"vocab_size": 320, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    hf.BertModel(hf.BertConfig(**settings, intermediate_size=16)).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(oelm.OelmError, match=r"with safetensors .or set OELM_PICKLED_WEIGHTS=1 if you trust"):
        classifiers.build("classification", hf.AutoConfig.from_pretrained(folder), folder)

    written = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    (folder / "config.json").write_text(json.dumps({**written, "model_type": "evil", "auto_map": code}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(oelm.OelmError) as caught:
        read_config(str(folder))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
