"""The memory formula against torch's own record of what was allocated, and against a process of its own."""

import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from oelm.bench.measure import Shape
from oelm.bench.memory import measured_memory, predicted_memory
from oelm.bench.steps import build_arm
from oelm.costs import memory
from oelm.costs.inspection import costs_of
from oelm.models import kernels


def most_allocated(step) -> int:
    """The most bytes of tensors that a step made and held at once, as torch's profiler saw it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events = record.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def live_bytes(arm: str, shape: Shape, **options: bool) -> int:
    """The most that tensors held during the second step, with weights and moments."""
    built = build_arm(arm, shape.model(), shape.settings(), device=torch.device("cpu"), **options)
    built.step(0)
    parameters = list(built.model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return most_allocated(lambda: built.step(1)) + 4 * sum(p.numel() for p in parameters) + 8 * trained


@pytest.mark.parametrize(
    ("arm", "shape", "checkpointing"),
    [
        ("baseline", Shape("demo", 4, 192, 2000), False),  # blocked attention
        ("oelm_freeze", Shape("demo", 4, 192, 2000), False),
        ("baseline", Shape("demo", 4, 96, 2000), False),  # torch's attention
        ("baseline", Shape("demo", 4, 192, 2000, dropout=0.1), False),
        ("baseline", Shape("demo", 1, 64, 20_000), False),  # the vocabulary is everything
        ("baseline", Shape("demo", 8, 192, 500), True),
        ("baseline+thin=4+swiglu", Shape("demo", 4, 192, 2000), False),
    ],
    ids=["blocked", "frozen", "short", "dropout", "vocabulary", "checkpointing", "architecture"],
)
def test_what_is_alive_is_what_the_formula_says(arm, shape, checkpointing):
    expected = live_bytes(arm, shape, checkpointing=checkpointing)
    assert predicted_memory(arm, shape, checkpointing).live_bytes == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_an_encoder_that_is_not_ours_holds_what_the_formula_says(tmp_path, dropout):
    transformers = pytest.importorskip("transformers")
    batch, length = 4, 96
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, vocab_size=500,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    model.save_pretrained(tmp_path)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids, labels = torch.randint(500, (batch, length)), torch.zeros(batch, dtype=torch.long)

    def step():
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    measured = most_allocated(step) + 12 * model.num_parameters()
    costs = costs_of(str(tmp_path), labels=3, batch_size=batch, sequence_length=length)
    assert costs.memory.live_bytes == pytest.approx(measured, rel=0.1)


def test_a_process_holds_what_is_predicted_within_15_percent():
    shape = Shape("tiny", batch=4, length=256, vocab=4096)
    assert predicted_memory("baseline", shape).peak_bytes == pytest.approx(measured_memory("baseline", shape), rel=0.15)


def test_freezing_saves_three_numbers_per_frozen_parameter():
    shape = Shape("tiny", batch=1, length=8, vocab=64)
    before, after = predicted_memory("baseline", shape), predicted_memory("oelm_freeze", shape)
    frozen = 2 * 4 * 256 * 256
    assert before.highest_moment == after.highest_moment == "end"
    assert before.live_bytes - after.live_bytes == 3 * 4 * frozen


def test_the_formula_knows_the_kernels_constants_and_needs_no_torch():
    assert (memory.ATTENTION_BLOCK, memory.LOSS_CHUNK_ROWS) == (
        kernels.ATTENTION_BLOCK, kernels.LOSS_CHUNK_ROWS,
    )  # fmt: skip
    program = "import sys, oelm.costs.memory, oelm.costs.flops; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
