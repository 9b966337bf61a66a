"""Models of transformers in our trainer: what they learn, exactly as fast as in transformers' own, to the bit again."""

import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
import transformers as hf

import oelm
from oelm.data.labelled import prepare_task
from oelm.data.tasks import Task, TaskSource, find_task
from oelm.models.stock import build, stock_config
from oelm.runs import RunFolder
from oelm.training import setup
from oelm.training.checkpoints import newest_valid
from oelm.training.classification import Rows
from oelm.training.config import RunConfig
from oelm.training.interruption import Interrupted
from oelm.training.objectives import LanguageModelling
from oelm.training.trainer import train
from stock import LENGTH, NO_DROPOUT, SHAPES, config, prepared_corpus, prepared_pairs, write_pairs

SAME = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "freeze.json")
ON_CORPUS = {"sequence_length": LENGTH}
AGREEING = {"max_steps": 20, "min_lr": 1e-3, "max_lr": 1e-3, "warmup_steps": 0, "weight_decay": 0.0, "eval_every": 20}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return prepared_corpus(tmp_path_factory.mktemp("corpus") / "fables")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    return prepared_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    for split, count in (("train", 60), ("validation", 16)):
        rows = [f"{'good' if i % 2 else 'bad'} film number {i}\t{i % 2}" for i in range(count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return prepare_task(TaskSource(find_task("sst2"), folder), "bpe:400+special", folder / "task").path


@pytest.mark.parametrize("name", SHAPES)
def test_every_family_learns_a_corpus_with_frozen_queries_and_keys(name, corpus, tmp_path):
    result = train(config(name, corpus, **ON_CORPUS), tmp_path)
    assert result["frozen_verified"] and result["frozen_parameters"] > 0
    folder = RunFolder(tmp_path)
    objective = folder.config()["model"]["objective"]
    assert objective == {"bert": "masked", "roberta": "masked", "modernbert": "masked"}.get(
        name, "seq2seq" if name in ("t5", "bart") else "causal"
    )
    losses = folder.losses()
    assert losses[-1] < losses[0] and result["final"]["share"] == 1.0
    assert ("bits_per_byte" in result["final"]) == (objective == "causal")
    assert (result["true_entropy"] is None) == (objective != "causal")
    read = stock_config(str(folder.checkpoints / "best"))
    assert read.architectures and read.vocab_size == 400


@pytest.mark.parametrize(
    ("name", "data", "objective"),
    [("gpt2", "corpus", LanguageModelling), ("bert", "corpus", LanguageModelling), ("t5", "corpus", LanguageModelling),
     ("bart", "pairs", Rows), ("modernbert", "task", Rows)],
)  # fmt: skip
def test_a_stopped_run_goes_on_to_the_bit(name, data, objective, request, tmp_path, monkeypatch):
    settings = config(name, request.getfixturevalue(data), **(ON_CORPUS if data == "corpus" else {}))
    train(settings, tmp_path / "whole")
    original, calls = objective.batch, []

    def batch(self, number):
        calls.append(number)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, number)

    monkeypatch.setattr(objective, "batch", batch)
    with pytest.raises(Interrupted):
        train(settings, tmp_path / "parts")
    train(settings, tmp_path / "parts")
    assert len(calls) == 12  # no batch twice
    whole, parts = (RunFolder(tmp_path / name) for name in ("whole", "parts"))
    assert whole.metrics_file.read_bytes() == parts.metrics_file.read_bytes()
    manifests = [newest_valid(run.checkpoints).path / "manifest.json" for run in (whole, parts)]
    first, second = (json.loads(file.read_text())["sha256"] for file in manifests)
    assert {name: first[name] for name in SAME} == {name: second[name] for name in SAME}


def as_transformers_wants_them(kind: str, batch) -> list[dict[str, torch.Tensor]]:
    """The rows of a batch of ours with labels as transformers' own models take them."""
    if kind == "classification":
        rows = batch
    elif kind == "pairs":
        rows = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": batch["targets"]}
    elif kind == "causal":
        ids = torch.cat([batch[0][:, :1], batch[1]], dim=1)
        labels = ids.index_fill(1, torch.tensor([0]), -100)  # nobody predicts the first, but the trainer would count it
        rows = {"input_ids": ids, "labels": labels}
    elif kind == "masked":
        labels = torch.full_like(batch[0]["input_ids"], -100).scatter(1, batch[0]["places"], batch[1])
        rows = {"input_ids": batch[0]["input_ids"], "labels": labels}
    else:
        rows = {"input_ids": batch[0]["input_ids"], "labels": batch[1]}
    return [{name: tensor[i] for name, tensor in rows.items()} for i in range(len(rows["labels"]))]


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [("gpt2", "corpus", "causal"), ("qwen3", "corpus", "causal"), ("bert", "corpus", "masked"),
     ("t5", "corpus", "denoising"), ("bart", "pairs", "pairs"), ("bert", "task", "classification")],
)  # fmt: skip
def test_a_baseline_trains_as_in_the_trainer_of_transformers(name, data, kind, request, tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, name, SHAPES[name] | NO_DROPOUT.get(name, {}))
    # Only its causal models divide a step's loss by all that is counted in its batches.
    where = {**AGREEING, **(ON_CORPUS if data == "corpus" else {}), "accumulation": 2 if kind == "causal" else 1}
    fresh = config(name, request.getfixturevalue(data), "baseline", **where)
    start = setup.prepare(fresh, RunFolder(tmp_path / "fresh"))
    start.build_model(None).save_pretrained(tmp_path / "start")
    settings = config(str(tmp_path / "start"), fresh.data.path, "baseline", **where)
    parts = setup.prepare(settings, RunFolder(tmp_path / "ours"))
    train(settings, tmp_path / "ours")

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            for number in range(20 * settings.training.accumulation):
                yield from as_transformers_wants_them(kind, parts.objective.batch(number))

    stock = {"causal": "CausalLM", "masked": "MaskedLM", "classification": "SequenceClassification"}
    model = getattr(hf, f"AutoModelFor{stock.get(kind, 'Seq2SeqLM')}").from_pretrained(tmp_path / "start")
    arguments = hf.TrainingArguments(
        str(tmp_path / "theirs"), max_steps=20, per_device_train_batch_size=4, learning_rate=1e-3, adam_beta2=0.95,
        gradient_accumulation_steps=settings.training.accumulation, lr_scheduler_type="constant", weight_decay=0.0,
        logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", max_grad_norm=1.0,
        remove_unused_columns=False,
    )  # fmt: skip
    theirs = hf.Trainer(model=model, args=arguments, train_dataset=Batches(), data_collator=hf.default_data_collator)
    theirs.train()
    losses = [row["loss"] for row in theirs.state.log_history if "loss" in row]
    assert len(losses) == 20
    ours = [row["loss"] for row in RunFolder(tmp_path / "ours").metrics("train")]
    assert ours == pytest.approx(losses, abs=1e-4)
    trained = parts.build_model(newest_valid(RunFolder(tmp_path / "ours").checkpoints).path)
    for (name, a), (_, b) in zip(trained.named_parameters(), model.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", SHAPES)
def test_the_loss_is_that_of_all_logits_and_most_heads_never_make_them(name):
    """BART adds a bias behind its head, so its logits are made."""
    torch.manual_seed(0)
    shape = stock_config(name, fresh=True, overrides={**SHAPES[name], "vocab_size": 60, "pad_token_id": 1})
    objective = {"t5": "seq2seq", "bart": "seq2seq"}.get(name, "masked" if "bert" in name else "causal")
    model = build(objective, shape, None).eval()
    ids = torch.randint(2, 60, (2, 9))
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if objective == "seq2seq" else {})}
    logits = model(inputs).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    torch.testing.assert_close(model(inputs, ids), expected)
    asked = {**inputs, "places": torch.tensor([[1, 4], [0, 8]])}
    chosen = torch.stack([ids[0, [1, 4]], ids[1, [0, 8]]])
    of_chosen = torch.stack([logits[0, [1, 4]], logits[1, [0, 8]]]).flatten(0, 1)
    torch.testing.assert_close(model(asked, chosen), torch.nn.functional.cross_entropy(of_chosen, chosen.flatten()))
    assert (type(model.get_output_embeddings()) is torch.nn.Linear) == (name == "bart")


def test_a_cap_on_the_logits_is_not_left_out():
    shape = stock_config("gemma2", fresh=True, overrides={**SHAPES["llama"], "vocab_size": 60})
    shape.final_logit_softcapping = 0.05
    model = build("causal", shape, None)
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    assert model(torch.arange(2, 10)[None]).logits.abs().max() <= 0.05


def test_a_fresh_classifier_and_a_pretrained_one_are_one_command(task, corpus, tmp_path):
    masked = train(config("bert", corpus, **ON_CORPUS), tmp_path / "masked")
    assert masked["model_family"] == "encoder"
    start = config(str(tmp_path / "masked" / "checkpoints" / "best"), task)
    with pytest.raises(oelm.OelmError, match="tokenised with tokenizer"):
        train(start, tmp_path / "other")  # that corpus has a vocabulary of its own
    fresh = train(config("bert", task), tmp_path / "fresh")
    assert 0 <= fresh["final"]["accuracy"] <= 1 and "objective" not in RunFolder(tmp_path / "fresh").config()["model"]


# What is refused


@pytest.mark.parametrize(
    ("name", "wanted", "message"),
    [
        ("bert", "causal", r"bert is an encoder .bert., which cannot be trained as causal; possible: masked, class"),
        ("llama", "masked", r"llama is a decoder .llama., which cannot be trained as masked; possible: causal"),
        ("t5", "causal", "t5 is an encoder-decoder"),
        ("gpt2", "classification", "objective classification needs a prepared task, not a corpus: oelm data task"),
    ],
)
def test_an_objective_that_the_model_or_its_data_cannot_have_is_refused(name, wanted, message, corpus, tmp_path):
    with pytest.raises(oelm.OelmError, match=message):
        train(config(name, corpus, model={"objective": wanted}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_sees_what_it_should_predict_is_no_causal_one():
    shape = hf.BertConfig(vocab_size=60, **SHAPES["bert"])
    with pytest.raises(oelm.OelmError, match="BertLMHeadModel sees the tokens that it should predict"):
        build("causal", shape, None)


def test_a_tokenizer_without_a_mask_or_pad_token_is_refused(fables_folder, tmp_path):
    with pytest.raises(oelm.OelmError, match=r"no pad and no mask token.*--tokenizer bpe:4096\+special"):
        train(config("bert", fables_folder, **ON_CORPUS), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match="has no pad and no mask token"):
        train(config("t5", fables_folder, **ON_CORPUS), tmp_path / "run")
    assert math.isfinite(
        train(config("gpt2", fables_folder, max_steps=1, **ON_CORPUS), tmp_path / "run")["final"]["loss"]
    )


def test_pairs_are_for_encoder_decoders(pairs, tmp_path):
    with pytest.raises(oelm.OelmError, match=r"gpt2 is a decoder .gpt2., which cannot be trained as seq2seq"):
        train(config("gpt2", pairs), tmp_path / "run")
    ours = RunConfig.parse({"data": {"path": str(pairs)}, "training": {"max_steps": 1}})
    with pytest.raises(oelm.OelmError, match=r"our GPT cannot be trained as seq2seq on .*--model NAME"):
        train(ours, tmp_path / "run")


def test_another_vocabulary_and_missing_weights_are_refused_before_work(corpus, tmp_path):
    folder = tmp_path / "gpt2"
    stock_config("gpt2", fresh=True, overrides={**SHAPES["gpt2"], "vocab_size": 100}).save_pretrained(folder)
    with pytest.raises(oelm.OelmError, match=r"model folder .*gpt2 has no safetensors; add --fresh"):
        train(config(str(folder), corpus), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match=r"config.json describes a model without its weights; add --fresh"):
        train(config(str(folder / "config.json"), corpus), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match=r"t5-small describes a model without its weights; .* hub name"):
        train(config("t5-small", corpus), tmp_path / "run")
    hf.AutoModelForCausalLM.from_config(hf.AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    with pytest.raises(oelm.OelmError, match=r"the data's tokenizer has 400 ids, but .*gpt2 only 100"):
        train(config(str(folder), corpus), tmp_path / "run")
    fresh = config(str(folder / "config.json"), corpus, model={"fresh": True}, max_steps=1, **ON_CORPUS)
    assert train(fresh, tmp_path / "run")["model_name"] == "gpt2 32×2"


def test_a_model_too_large_for_the_machine_is_refused_from_its_shape(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 100}.get(name, 1))
    with pytest.raises(oelm.OelmError, match=r"a model of [\d,]+ parameters takes 0 GB to train .* has 0 GB"):
        train(config("gpt2", corpus, **ON_CORPUS), tmp_path / "run")


def test_unknown_settings_names_and_gated_models_are_one_line(corpus, tmp_path, monkeypatch):
    with pytest.raises(oelm.OelmError, match=r"a gpt2 has no setting 'n_layers'; see its config.json"):
        train(config("gpt2", corpus, model={"overrides": {"n_layers": 2}}), tmp_path / "run")
    with pytest.raises(oelm.OelmError, match="has its own size; leave size and overrides out, or train it fresh"):
        config("gpt2", corpus, model={"fresh": False})
    with pytest.raises(oelm.OelmError, match=r"model 'nobody/nothing' is unknown here and could not be had") as refused:
        train(config("nobody/nothing", corpus), tmp_path / "run")
    assert "\n" not in str(refused.value)

    def gated(*args, **kwargs):
        raise OSError("You are trying to access a gated repo.\nMake sure to have access to it\n" + "x" * 500)

    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", gated)
    with pytest.raises(oelm.OelmError, match=r"You are trying to access a gated repo. Make sure") as refused:
        train(config("somebody/gated", corpus), tmp_path / "run")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_pairs_without_targets_are_refused_with_their_row(tmp_path):
    file = write_pairs(tmp_path / "train.jsonl", rows=40)

    def prepare(target: str):
        return prepare_task(TaskSource(Task("mine", ("de", target), label=""), file, held_out=0.2), "bpe:400+special")

    with pytest.raises(oelm.OelmError, match=r"has no column 'fr' .it has: de, en.; choose with --source-field"):
        prepare("fr")
    file.write_text(file.read_text() + '{"de": "etwas", "en": " "}\n')
    with pytest.raises(oelm.OelmError, match=r"row 41: a value of de, en is missing"):
        prepare("en")


def test_a_body_without_a_head_gets_a_new_one_and_the_log_says_so(corpus, tmp_path):
    shape = stock_config("bert", fresh=True, overrides={**SHAPES["bert"], "vocab_size": 400})
    hf.BertModel(shape).save_pretrained(tmp_path / "body")
    train(config(str(tmp_path / "body"), corpus, max_steps=1, warmup_steps=0, **ON_CORPUS), tmp_path / "run")
    log = (tmp_path / "run" / "training.log").read_text()
    assert "body has no weights for cls.predictions.bias" in log and "drawn anew" in log


def test_a_task_for_a_fresh_type_of_model_gets_a_tokenizer_of_its_own(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from oelm.cli.main import app

    monkeypatch.setenv("OELM_DATA_DIR", str(tmp_path / "data"))
    for split, count in (("train", 24), ("validation", 8)):
        rows = [f"{'good' if i % 2 else 'bad'} film number {i}\t{i % 2}" for i in range(count)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    shape = [word for key, value in SHAPES["bert"].items() for word in ("--set", f"model.overrides.{key}={value}")]
    how = ["--max-steps", "1", "--batch-size", "4", "--device", "cpu", "--out", str(tmp_path / "run"), "-q"]
    given = ["train", "--task", "sst2", "--data-path", str(tmp_path), "--model", "bert", "--fresh", *shape, *how]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0 and "accuracy" in done.output


def test_the_heads_of_a_bare_type_follow_from_the_sizes_that_are_asked_for():
    shape = stock_config("llama", fresh=True, overrides={"hidden_size": 64, "num_attention_heads": 4})
    assert shape.head_dim == 16
