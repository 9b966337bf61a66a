"""What the study's own code does otherwise: each an option, none the default."""

import itertools
import json

import pytest
import torch

from oelm.models.gpt import GPT, GPTConfig
from oelm.runs import RunFolder, config_differences
from oelm.training.config import RunConfig, TrainingSection
from oelm.training.step import build_optimizer, learning_rate
from oelm.training.trainer import train

SHAPE = {"vocab_size": 64, "d_model": 32, "num_layers": 4, "num_heads": 2, "d_ff": 128, "max_seq_len": 16}


def test_a_linear_schedule_falls_by_the_same_amount_at_every_step():
    settings = TrainingSection(max_steps=100, warmup_ratio=0.1, max_lr=1.0, min_lr=0.0, schedule="linear")
    assert settings.warmup_steps == 10
    rates = [learning_rate(step, settings) for step in range(10, 101)]
    assert rates[0] == 1.0 and rates[-1] == 0.0
    assert {round(a - b, 9) for a, b in itertools.pairwise(rates)} == {round(1 / 90, 9)}


def test_warm_up_as_a_share_waits_for_the_steps_that_epochs_amount_to():
    settings = TrainingSection(epochs=3, warmup_ratio=0.1)
    assert settings.with_steps(6_315).warmup_steps == 631


def test_weight_decay_reaches_every_parameter_only_if_asked():
    model = GPT(GPTConfig(**SHAPE))
    for decay, decayed in (("matrices", False), ("all", True)):
        groups = build_optimizer(model, TrainingSection(decay=decay, weight_decay=0.01)).param_groups
        of = {name: group["weight_decay"] for group in groups for name in group["names"]}
        assert of["blocks.0.ffn.up.weight"] == 0.01
        assert (of["norm.weight"] == 0.01) == decayed


def test_a_plain_start_gives_residual_writers_the_scale_of_all_others():
    stds = {}
    for start in ("scaled", "plain"):
        torch.manual_seed(0)
        stds[start] = GPT(GPTConfig(**SHAPE, residual_init=start)).blocks[0].ffn.down.weight.std().item()
    assert stds["plain"] == pytest.approx(0.02, rel=0.1)
    assert stds["scaled"] == pytest.approx(0.02 / 8**0.5, rel=0.1)


def test_dropout_within_the_ffn_falls_on_its_hidden_units():
    for inside in (False, True):
        model = GPT(GPTConfig(**SHAPE, dropout=0.5, ffn_dropout=inside)).train()
        ffn, seen = model.blocks[0].ffn, []
        ffn.down.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0]))
        ffn(torch.randn(8, 16, 32))
        dropped = (seen[0] == 0).float().mean().item()
        assert (dropped > 0.4) == inside


def test_the_best_validation_is_the_result_if_asked(config, tmp_path):
    """A rate that ruins the model in the end: the best lies before it."""
    ruinous = {"max_lr": 0.5, "warmup_steps": 12, "eval_every": 2, "min_lr": 0.0}
    best = train(config("baseline", score="best", **ruinous), tmp_path / "best")
    last = train(config("baseline", **ruinous), tmp_path / "last")
    rows = RunFolder(tmp_path / "best").metrics("validation")
    assert best["final"]["loss"] == min(row["loss"] for row in rows) < last["final"]["loss"]
    assert best["final"]["share"] == 1.0  # always over the whole set, so that it may be compared
    assert rows[-1]["loss"] == last["final"]["loss"]
    assert best["best"]["step"] < best["steps"]


def test_settings_of_today_at_their_defaults_leave_earlier_runs_what_they_were(config):
    now = config("baseline").to_dict()
    assert not {"schedule", "decay", "score", "segments", "warmup_ratio", "eval_precision"} & set(now["training"])
    assert config_differences(json.loads(json.dumps(now)), RunConfig.parse(now).to_dict()) == []
    other = config("baseline", schedule="linear").to_dict()
    assert config_differences(now, other) == ["training.schedule is None there and 'linear' here"]


def test_validation_may_be_more_precise_than_training(config, tmp_path):
    results = {
        precision: train(
            config("baseline", precision="bf16", eval_precision=precision, max_steps=4), tmp_path / precision
        )
        for precision in ("training", "fp32")
    }
    losses = {name: result["final"]["loss"] for name, result in results.items()}
    assert losses["training"] != losses["fp32"]
    assert losses["training"] == pytest.approx(losses["fp32"], rel=1e-2)
