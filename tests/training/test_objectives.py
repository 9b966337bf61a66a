import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oelm.data.tokens import TokenData
from oelm.models.gpt import GPT, GPTConfig
from oelm.training.config import TrainingSection
from oelm.training.objectives import LanguageModelling

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
