"""`oelm bench`'s measurement: who takes part, in which order, and what is said about them."""

import json

import numpy as np
import pytest
import torch

from oelm.bench import measure
from oelm.bench.measure import Shape, bench, compare_step_times
from oelm.bench.names import arm_name
from oelm.bench.ratios import verdict
from oelm.bench.steps import WARMUP, build_arm
from oelm.errors import OelmError
from oelm.training.config import RunConfig
from oelm.training.objectives import LanguageModelling
from oelm.training.step import TrainingStep

SMALL = Shape("demo", batch=2, length=16, vocab=40)


@pytest.fixture(scope="module")
def result(quick_peak):
    return bench(["oelm_v2", "gpt2"], SMALL, reference="baseline", rounds=6)


def test_every_arm_has_its_time_its_ratio_and_its_distance_from_the_limit(result):
    assert list(result["arms"]) == ["baseline", "oelm_freeze", "gpt2"]
    best = result["gemm"]["peak_flops_per_second"]
    assert best == max(row["flops_per_second"] for row in result["gemm"]["shapes"])
    for arm in result["arms"].values():
        assert len(arm["seconds"]) == 6
        assert arm["median_seconds"] == pytest.approx(np.median(arm["seconds"]))
        assert arm["low"] <= arm["ratio"] <= arm["high"]
        assert arm["times_limit"] == pytest.approx(arm["median_seconds"] / (arm["step_flops"] / best))
        assert sum(arm["shares"].values()) == pytest.approx(1)
        assert all(share > 0 for share in arm["shares"].values())


def test_the_prediction_is_the_ratio_of_matmul_flops(result):
    predicted = {name: arm["predicted"] for name, arm in result["arms"].items()}
    assert predicted["baseline"] == predicted["gpt2"] == 1  # the same shape computes the same
    assert 0.9 < predicted["oelm_freeze"] < 1


def test_a_verdict_is_what_interval_and_sign_test_say_together(result):
    assert result["arms"]["baseline"]["verdict"] == "reference"
    for name, arm in result["arms"].items():
        if name != "baseline":
            assert arm["verdict"] == verdict(arm["low"], arm["high"], arm["sign_p"])


def test_the_result_is_plain_json_with_its_protocol(result):
    again = json.loads(json.dumps(result))
    assert again["protocol"]["rounds"] == 6
    assert again["shape"] == {"size": "demo", "batch": 2, "length": 16, "vocab": 40, "dropout": 0.0}
    assert again["environment"]["packages"]["torch"] == torch.__version__


def test_progress_is_told_for_every_step(quick_peak):
    told = []
    bench(["baseline"], SMALL, rounds=6, say=lambda *facts: told.append(facts))
    assert ("timing", 14, 14) in told  # two to warm up, and two in each of six rounds
    assert any("matmul peak" in what for what, _, _ in told)


def test_unknown_arms_and_too_few_rounds_are_refused_before_any_work():
    with pytest.raises(OelmError, match="arm 'gtp2' is unknown; did you mean 'gpt2'"):
        bench(["gtp2"], SMALL)
    with pytest.raises(OelmError, match="2 rounds decide nothing"):
        bench(["baseline"], SMALL, rounds=2)
    with pytest.raises(OelmError, match="no arms"):
        bench([], SMALL)
    with pytest.raises(OelmError, match="no step time of its own"):
        bench(["baseline+every=4"], SMALL)
    assert arm_name("oelm_v2") == "oelm_freeze"
    assert arm_name("permutation_qk+rank=2") == "permutation_qk+rank=2"


def test_what_torch_compile_cannot_run_is_one_line():
    def fails(number):
        raise RuntimeError("no compiler\nfound")

    with pytest.raises(OelmError, match=r"arm 'gpt2' \(RuntimeError: no compiler found\); leave --compile out"):
        measure._explained("gpt2", fails)(0)


def test_compiled_arms_run_the_compiled_model(monkeypatch, quick_peak):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    assert bench(["baseline", "gpt2"], SMALL, rounds=6, compiled=True)["protocol"]["compiled"]
    assert len(compiled) == 2


def test_a_peer_stays_as_its_makers_built_it_and_a_frozen_arm_is_frozen():
    device = torch.device("cpu")
    names = [
        name for name, _ in build_arm("gpt2", SMALL.model(), SMALL.settings(), device=device).model.named_parameters()
    ]
    assert any(name.endswith("c_attn.weight") for name in names)  # not split by the counting of FLOPs
    frozen = build_arm("oelm_freeze", SMALL.model(), SMALL.settings(), device=device)
    before = frozen.model.blocks[0].attention.query.weight.clone()
    frozen.step(0)
    assert torch.equal(frozen.model.blocks[0].attention.query.weight, before)


@pytest.fixture
def run(fables_folder):
    """run(precision="bf16"): the config of a small run of our GPT."""
    shape = {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 64, "max_seq_len": 16}

    def config(compiled=False, **training):
        return RunConfig.parse(
            {
                "model": {"size": "demo", "overrides": shape},
                "data": {"path": str(fables_folder)},
                "training": {"max_steps": 100, "batch_size": 2, **training},
                "runtime": {"compile": compiled},
            }
        )

    return config


def test_step_times_beside_runs_leave_out_what_changes_on_the_way(run):
    times = compare_step_times(["oelm_freeze+thaw=top-down:0.5", "identity_q"], run(), rounds=2)
    assert list(times["arms"]) == ["identity_q"]


def test_step_times_beside_runs_keep_every_round_of_every_arm(run):
    times = json.loads(json.dumps(compare_step_times(["identity_q"], run(), rounds=6)))
    assert {name: len(values) for name, values in times["seconds"].items()} == {"baseline": 6, "identity_q": 6}
    arm, pairs = times["arms"]["identity_q"], zip(*times["seconds"].values(), strict=True)
    assert arm["ratio"] == pytest.approx(np.median([own / base for base, own in pairs]))
    assert arm["verdict"] == verdict(arm["low"], arm["high"], arm["sign_p"])
    assert "rotating" in times["protocol"]["order"]


def test_the_benchmark_takes_the_trainers_own_steps_and_all_arms_of_a_round_the_same_one(run, monkeypatch):
    taken, take = [], TrainingStep.__call__

    def watched(self, model, optimizer, step):
        taken.append(step)
        return take(self, model, optimizer, step)

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    compare_step_times(["identity_q"], run(), rounds=2)
    assert taken == [1, 2, 1, 2, 3, 3, 3, 4, 4, 4]


def test_memory_is_measured_on_a_cpu_only():
    with pytest.raises(OelmError, match="--memory measures a CPU process, not cuda"):
        bench(["baseline"], SMALL, memory=True, device=torch.device("cuda"))


def test_step_times_beside_runs_are_measured_as_the_runs_are_trained(run, monkeypatch):
    forwards = []
    loss = LanguageModelling.loss

    def watched(objective, model, batch):
        forwards.append(torch.is_autocast_enabled("cpu"))
        return loss(objective, model, batch)

    monkeypatch.setattr(LanguageModelling, "loss", watched)
    config = run(precision="bf16", accumulation=3, grad_clip=0.0)
    times = compare_step_times(["oelm_freeze"], config, rounds=2)
    steps = 2 * WARMUP + 2 * 3  # of two arms, with the one that leads each round in
    assert all(forwards) and len(forwards) == 3 * steps
    assert (times["protocol"]["precision"], times["protocol"]["accumulation"]) == ("bf16", 3)


def test_every_arm_of_many_is_compiled(run, monkeypatch):
    """All arms are versions of one model, of which torch.compile by itself bears a few."""
    from torch._dynamo import config

    torch._dynamo.reset()
    graphs, compile_ = [], torch.compile

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend=count))
    names = ["oelm_freeze", "permutation_qk", "q_only", "baseline+scale", "baseline+rank=2"]
    with config.patch(recompile_limit=3):  # fewer than there are arms; torch's own is eight
        compare_step_times(names, run(compiled=True), rounds=2)
    assert len(graphs) == len(names) + 1


def test_a_limit_of_zero_does_not_clip():
    settings = SMALL.settings().model_copy(update={"grad_clip": 0.0})
    arm = build_arm("baseline", SMALL.model(), settings, device=torch.device("cpu"))
    before = arm.model.norm.bias.detach().clone()
    arm.step(0)
    assert not torch.equal(arm.model.norm.bias, before)


def test_the_fastest_repeat_counts_and_the_best_of_two_measurements():
    rows = measure.gemm_speeds([(8, 8, 8)], torch.device("cpu"))
    assert rows[0]["flops_per_second"] > 0
    slow, fast = [{"shape": [1], "flops_per_second": 1.0}], [{"shape": [1], "flops_per_second": 2.0}]
    assert measure.best_speeds(slow, fast) == measure.best_speeds(fast, slow) == fast
