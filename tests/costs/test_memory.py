"""The memory formula against torch's own record of what was allocated, and against a process of its own."""

import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from oelm.bench.measure import Shape
from oelm.bench.memory import measured_memory
from oelm.bench.steps import build_arm
from oelm.costs import memory
from oelm.costs.inspection import inspect_gpt
from oelm.models import kernels


def live_bytes(arm: str, shape: Shape, **options: bool) -> int:
    """The most that tensors held during the second step, as torch's profiler saw it, with weights and moments."""
    built = build_arm(arm, shape.model(), shape.settings(), device=torch.device("cpu"), **options)
    built.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        built.step()
    events = record.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    parameters = list(built.model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return most + 4 * sum(p.numel() for p in parameters) + 8 * trained


def predicted(arm: str, shape: Shape, checkpointing: bool = False) -> dict:
    facts = inspect_gpt(
        shape.size, arm, batch_size=shape.batch, vocab_size=shape.vocab, dropout=shape.dropout,
        max_seq_len=shape.length, gradient_checkpointing=checkpointing,
    )  # fmt: skip
    return facts["training_memory"]


@pytest.mark.parametrize(
    ("arm", "shape", "checkpointing"),
    [
        ("baseline", Shape("demo", 4, 192, 2000), False),  # blocked attention
        ("oelm_freeze", Shape("demo", 4, 192, 2000), False),
        ("baseline", Shape("demo", 4, 96, 2000), False),  # torch's attention
        ("baseline", Shape("demo", 4, 192, 2000, dropout=0.1), False),
        ("baseline", Shape("demo", 1, 64, 20_000), False),  # the vocabulary is everything
        ("baseline", Shape("demo", 8, 192, 500), True),
    ],
    ids=["blocked", "frozen", "short", "dropout", "vocabulary", "checkpointing"],
)
def test_what_is_alive_is_what_the_formula_says(arm, shape, checkpointing):
    expected = live_bytes(arm, shape, checkpointing=checkpointing)
    assert predicted(arm, shape, checkpointing)["live_bytes"] == pytest.approx(expected, rel=0.05)


def test_a_process_holds_what_is_predicted_within_15_percent():
    shape = Shape("tiny", batch=4, length=256, vocab=4096)
    assert predicted("baseline", shape)["peak_bytes"] == pytest.approx(measured_memory("baseline", shape), rel=0.15)


def test_freezing_saves_three_numbers_per_frozen_parameter():
    shape = Shape("tiny", batch=1, length=8, vocab=64)
    before, after = predicted("baseline", shape), predicted("oelm_freeze", shape)
    frozen = 2 * 4 * 256 * 256
    assert before["highest_moment"] == after["highest_moment"] == "end"
    assert before["live_bytes"] - after["live_bytes"] == 3 * 4 * frozen


def test_the_formula_knows_the_kernels_constants_and_needs_no_torch():
    assert (memory.ATTENTION_BLOCK, memory.LOSS_CHUNK_ROWS) == (
        kernels.ATTENTION_BLOCK, kernels.LOSS_CHUNK_ROWS,
    )  # fmt: skip
    program = "import sys, oelm.costs.memory; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
