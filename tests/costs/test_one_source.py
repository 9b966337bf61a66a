"""Inspect, dry run, estimate and bench give the same figures for the same thing."""

from pathlib import Path

import pytest

from oelm.bench.measure import Shape
from oelm.bench.memory import predicted_memory
from oelm.bench.steps import flops_per_token
from oelm.costs.estimate import MACHINES, Job, estimate
from oelm.costs.inspection import costs_of, inspect_model
from oelm.experiments.entries import experiment
from oelm.experiments.preview import preview
from oelm.experiments.suite import plan_experiments

METHODS = [
    "baseline", "oelm_freeze", "identity_q", "oelm_random", "permutation_qk+rank=8", "oelm_freeze+ffn+layers=even",
    "permutation_qk+mix+gain+scale+shift", "oelm_freeze+ratio=0.1",
]  # fmt: skip


@pytest.mark.parametrize("size", ["demo", "tiny", "medium-512"])
@pytest.mark.parametrize("method", METHODS)
def test_inspect_estimate_and_bench_agree(size, method):
    facts = inspect_model(size, method, batch_size=2, vocab_size=4096, dropout=0.0)
    job = Job(size, method, batch=2, vocab=4096, precision="fp32")
    said, shape = estimate(job, MACHINES["a100-80gb"]), Shape(size, batch=2, vocab=4096)
    step = facts["flops_per_token"]["step"]
    assert said["parameters"] == facts["total_parameters"]
    assert said["frozen_parameters"] == facts["frozen_parameters"]
    assert said["flops_per_gpu"] == step * 2 * facts["sequence_length"]
    assert flops_per_token(method, shape.model(), facts["sequence_length"]) == step
    assert predicted_memory(method, shape).peak_bytes == facts["training_memory"]["peak_bytes"]
    on_gpu = costs_of(size, method, batch_size=2, vocab_size=4096, dropout=0.0, cpu=False)
    assert said["memory"]["total"] == on_gpu.memory.live_bytes


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def planned(name, scale="full", settings=()):
    (run,) = plan_experiments([experiment(name, scale)], Path("runs"), prepare_data=False, settings=settings)
    return run, preview(run, experiment(name, scale))


@pytest.mark.parametrize("name", ["GPT-01", "GPT-02", "GPT-07"])
def test_the_dry_run_says_what_inspect_says(workplace, name):
    run, said = planned(name)
    settings, model = run.config.training, run.config.model
    how = {"batch_size": settings.batch_size, "precision": settings.precision, "cpu": False}
    how["accumulates"] = settings.accumulation > 1
    facts = inspect_model(model.size, run.config.method_name, **how, **model.overrides)
    assert said["total_parameters"] == facts["total_parameters"]
    assert said["frozen_parameters"] == facts["frozen_parameters"]
    assert said["checkpoint_bytes"] == facts["checkpoint_bytes"]
    assert said["petaflops"] == facts["flops_per_token"]["step"] * said["tokens"] / 1e15
    assert said["memory_bytes"] == facts["training_memory"]["peak_bytes"]


def test_the_dry_run_counts_no_logits_that_the_loss_never_holds(workplace):
    run, said = planned("GPT-02")
    all_logits = 4 * run.config.training.batch_size * 512 * 50_257
    assert said["memory_bytes"] < costs_of("medium-512", batch_size=1).memory.peak_bytes + all_logits


def test_the_dry_run_of_an_encoder_says_what_inspect_says(workplace):
    run, said = planned("XNLI-02")
    settings = run.config.training
    facts = inspect_model(
        "bert-base", "oelm_freeze", labels=3, sequence_length=said["tokens"] // said["steps"]
        // settings.accumulation // settings.batch_size, batch_size=settings.batch_size, precision=settings.precision,
        accumulates=settings.accumulation > 1, cpu=False,
    )  # fmt: skip
    assert said["memory_bytes"] == facts["training_memory"]["peak_bytes"]
    assert said["frozen_parameters"] == facts["frozen_parameters"] == 14_174_208
    assert said["petaflops"] == facts["flops_per_token"]["step"] * said["tokens"] / 1e15
