import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oelm.data.tokenization import Marks
from oelm.data.tokens import TokenData
from oelm.models.gpt import GPT, GPTConfig
from oelm.training.config import TrainingSection
from oelm.training.distributed import ALONE, Processes
from oelm.training.objectives import Denoising, LanguageModelling, MaskedModelling

LENGTH = 32


@pytest.fixture
def data(fables_folder):
    return TokenData.open(fables_folder)


@pytest.fixture
def objective(data):
    def build(**settings):
        settings = TrainingSection(**{"max_steps": 100, "batch_size": 4, **settings})
        return LanguageModelling(data, settings, length=LENGTH, seed=0, device=torch.device("cpu"))

    return build


@pytest.fixture
def model(data):
    torch.manual_seed(0)
    shape = {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 32, "max_seq_len": LENGTH, "dropout": 0.0}
    return GPT(GPTConfig(vocab_size=data.vocab_size, **shape)).eval()


def test_targets_are_the_inputs_one_token_later(objective, data):
    inputs, targets = objective().batch(3)
    assert inputs.shape == targets.shape == (4, LENGTH)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    flat = np.asarray(data.train, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(flat, LENGTH + 1)[::LENGTH]
    for row, last in zip(inputs.numpy(), targets[:, -1].numpy(), strict=True):
        assert (windows == [*row, last]).all(axis=1).any()


@torch.no_grad()
def test_whole_validation_weighs_every_token_once(objective, model, data):
    tokens = torch.from_numpy(np.asarray(data.validation, dtype=np.int64))
    nats, count = 0.0, 0
    for start in range(0, len(tokens) - 1, LENGTH):
        block = tokens[start : start + LENGTH + 1]
        nats += F.cross_entropy(model(block[None, :-1])[0], block[1:], reduction="sum").item()
        count += len(block) - 1
    values = objective().validate(model, whole=True)
    assert values["tokens"] == count == len(tokens) - 1
    assert values["share"] == 1.0
    assert values["loss"] == pytest.approx(nats / count, rel=1e-5)
    assert values["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert values["bits_per_byte"] == pytest.approx(
        nats / count / math.log(2) * len(tokens) / data.validation_bytes, rel=1e-5
    )


@torch.no_grad()
def test_validation_on_the_way_reads_always_the_same_declared_part(objective, model):
    settings = {"eval_tokens": 256}
    first, again = (objective(**settings).validate(model, whole=False) for _ in range(2))
    assert first == again
    assert first["tokens"] == 256
    assert 0 < first["share"] < 1


@torch.no_grad()
def test_all_validation_tokens_can_be_asked_for(objective, model, data):
    values = objective(eval_tokens="all").validate(model, whole=False)
    assert values["tokens"] > len(data.validation) - 1 - LENGTH


def test_in_the_published_settings_validation_costs_at_most_5_percent(fables_folder):
    """Forward passes cost a third of a step, so 3 % of the computation is 3 % of the time."""

    class Corpus:  # TinyStories' size, without its bytes
        train, validation = np.broadcast_to(np.uint16(0), 10**8), np.broadcast_to(np.uint16(0), 5 * 10**6)
        path, bytes_per_token = fables_folder, 4.0

    settings = TrainingSection()
    objective = LanguageModelling(Corpus(), settings, length=512, seed=0, device=torch.device("cpu"))  # type: ignore[arg-type]
    validated = len(objective._part) * 512
    trained = settings.eval_every * settings.batch_size * 512
    assert 0.02 < validated / 3 / trained <= 0.05


# Objectives that hide a part of the text


@pytest.fixture
def hiding(data):
    marks = Marks(end=0, pad=1, mask=2, sentinels=[10, 11, 12, 13, 14])

    def build(kind, seed=0, world=ALONE):
        settings = TrainingSection(max_steps=100, batch_size=4, eval_tokens=256)
        how = {"length": LENGTH, "seed": seed, "device": torch.device("cpu"), "world": world}
        if kind == "masked":
            return MaskedModelling(data, settings, marks, **how)
        return Denoising(data, settings, marks if kind == "spans" else replace(marks, sentinels=[]), 1, **how)

    return build


@pytest.mark.parametrize("kind", ["masked", "spans", "blocks"])
def test_what_is_hidden_is_a_function_of_seed_and_step_however_batches_are_shared(hiding, kind, config):
    whole, again, other = (hiding(kind, seed).batch(3) for seed in (0, 0, 1))
    worlds = [Processes(config(), rank=r, size=2, local_rank=r, local_size=2) for r in (0, 1)]
    halves = [hiding(kind, 0, world).batch(3) for world in worlds]
    for name, ids in whole[0].items():
        assert torch.equal(ids, again[0][name])
        assert torch.equal(ids, torch.cat([half[0][name] for half in halves]))
    assert torch.equal(whole[1], torch.cat([half[1] for half in halves]))
    assert not torch.equal(whole[0]["input_ids"], other[0]["input_ids"])
    assert not torch.equal(whole[0]["input_ids"], hiding(kind).batch(4)[0]["input_ids"])


@pytest.mark.parametrize("kind", ["masked", "spans", "blocks"])
def test_every_seed_is_validated_on_the_same_hidden_tokens(hiding, kind):
    asked: dict[int, list] = {0: [], 1: []}
    for seed, seen in asked.items():

        def model(inputs, targets, seen=seen):
            seen.append((inputs["input_ids"], targets))
            return torch.tensor(1.0)

        values = hiding(kind, seed).validate(model, whole=True)
        assert values["loss"] == 1.0 and values["share"] == 1.0
        assert values["tokens"] == sum(targets.numel() for _, targets in seen)
        assert "bits_per_byte" not in values and hiding(kind, seed).true_entropy is None
    for first, second in zip(*asked.values(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_decoder_reads_what_it_has_written_so_far(hiding):
    inputs, targets = hiding("spans").batch(0)
    assert (inputs["decoder_input_ids"][:, 0] == 1).all()
    assert torch.equal(inputs["decoder_input_ids"][:, 1:], targets[:, :-1])
    assert (targets[:, -1] == 0).all() and (targets[:, 0] == 10).all()
