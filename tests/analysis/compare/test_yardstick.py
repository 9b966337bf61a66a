"""Effective speed-up of arms, from runs that follow a known law."""

import math

import pytest

from factory import make_run
from oelm.analysis.compare.results import load_runs
from oelm.analysis.report.tables import all_tables
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import verdict_lines
from oelm.files import write_json

STEPS, SLOPE = 1_000, -0.2
LENGTHS = (700, 850, 1_000, 1_200)
NOISE = {0: 0.01, 1: -0.012, 2: 0.004}


def loss(steps, seed):
    return 2.5 * (steps / STEPS) ** SLOPE * math.exp(NOISE[seed])


def run(root, name, seed, value, steps=STEPS, flops=1000, **changes):
    folder = make_run(
        root, name, seed, perplexity=math.exp(value), steps=steps, name=f"{name}-{steps}-{seed}", **changes
    )
    write_json(folder.result_file, {**folder.result(), "flops_per_token": flops})


def ladder(root, lengths=LENGTHS, seeds=tuple(NOISE)):
    for steps in lengths:
        for seed in seeds:
            run(root, "baseline", seed, loss(steps, seed), steps, warmup_steps=steps // 20)


def record(root, label):
    (comparison,) = load_runs(root).comparisons
    return next(record for record in comparison.records if record.label == label)


def test_an_arm_as_good_as_a_longer_baseline_for_fewer_flops_is_that_much_faster(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_100, seed), flops=900, warmup_steps=50)
    found = record(tmp_path, "q_only")
    speed = found.compute.speedup_flops
    assert speed.value == pytest.approx(1_100 / (1_000 * 0.9))
    assert speed.low == pytest.approx(speed.value) and not speed.extrapolated
    expected = 100 * (math.exp(loss(1_100, 0) - loss(900, 0)) - 1)
    assert found.compute.gap_flops.by_seed[0] == pytest.approx(expected)
    assert found.compute.gap_steps == found.plain.gap  # measured, not fitted
    assert found.compute.gap_time is None and found.compute.speedup_time is None  # no step was timed


def test_measured_time_counts_with_its_own_uncertainty(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_000, seed) + 0.002 * (seed - 1), flops=900, warmup_steps=50)
    measured = {"ratio": 0.95, "low": 0.90, "high": 1.0}
    write_json(tmp_path / "step_time.json", {"reference": "baseline", "arms": {"q_only": measured}})
    compute = record(tmp_path, "q_only").compute
    assert compute.speedup_time.value == pytest.approx(1 / 0.95, rel=1e-3)
    relative = [speed.high / speed.low for speed in (compute.speedup_flops, compute.speedup_time)]
    assert relative[1] > relative[0] > 1


def test_beyond_the_trained_lengths_it_is_marked(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(2_000, seed), flops=900, warmup_steps=50)
        run(tmp_path, "k_only", seed, loss(1_000, seed), flops=500, warmup_steps=50)
    assert record(tmp_path, "q_only").compute.speedup_flops.extrapolated
    assert not record(tmp_path, "q_only").compute.extrapolated
    assert record(tmp_path, "k_only").compute.extrapolated  # no baseline of half the steps


def test_lengths_that_only_baselines_have_are_no_comparison_of_their_own(tmp_path):
    ladder(tmp_path)
    run(tmp_path, "q_only", 0, loss(1_000, 0), warmup_steps=50)
    (comparison,) = load_runs(tmp_path).comparisons
    assert [arm.label for arm in comparison.arms] == ["baseline", "q_only"]
    assert comparison.model == "demo" and len(comparison.ladder) == 4
    assert comparison.records[1].comparable


def test_an_arm_of_equal_flops_and_more_steps_is_read_off_the_fit(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_000, seed), steps=1_100, flops=900, warmup_steps=50)
    found = record(tmp_path, "q_only")
    assert not found.comparable  # at equal steps
    assert found.compute.speedup_flops.value == pytest.approx(1_000 / (1_100 * 0.9))
    assert found.compute.gap_steps.value == pytest.approx(
        100 * (math.exp(loss(1_000, 0) - loss(1_100, 0)) - 1), abs=0.3
    )


def test_two_lengths_or_other_settings_are_no_yardstick(tmp_path):
    ladder(tmp_path, lengths=(700, 1_000))
    run(tmp_path, "q_only", 0, loss(1_000, 0), warmup_steps=50)
    assert record(tmp_path, "q_only").compute is None
    run(tmp_path, "baseline", 0, loss(850, 0), 850, weight_decay=0.3)
    assert record(tmp_path, "q_only").compute is None


def test_old_runs_without_flops_have_a_yardstick_of_time_only(tmp_path):
    for steps in LENGTHS:
        make_run(tmp_path, perplexity=math.exp(loss(steps, 0)), steps=steps, name=f"baseline-{steps}")
    make_run(tmp_path, "q_only", perplexity=math.exp(loss(1_000, 0)))
    assert record(tmp_path, "q_only").compute.speedup_flops is None
    assert record(tmp_path, "q_only").best_trained is None


def test_the_opponent_of_equal_compute_is_the_best_trained_arm_that_costs_no_more(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_000, seed), flops=900, warmup_steps=50)
        run(tmp_path, "orthogonal_trained", seed, loss(1_300, seed), flops=1000, warmup_steps=50)  # better, too dear
        run(tmp_path, "baseline+gain", seed, loss(950, seed), flops=890, warmup_steps=50)
    found = record(tmp_path, "q_only")
    assert found.best_trained.label == "baseline+gain"
    assert found.best_trained.comparable
    assert found.best_trained.gap.value == pytest.approx(100 * (math.exp(loss(1_000, 0) - loss(950, 0)) - 1), abs=0.2)
    assert record(tmp_path, "baseline+gain").best_trained is None  # it is one itself


def test_an_arm_trained_otherwise_is_no_opponent_of_equal_compute(tmp_path):
    """A stray short run at another rate was named as the best there is."""
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_000, seed), flops=900, warmup_steps=50)
        run(tmp_path, "baseline+gain", seed, loss(950, seed), flops=890, warmup_steps=50, max_lr=0.5)
    assert record(tmp_path, "q_only").best_trained.label == "baseline, 850 steps"


def test_the_report_says_it_in_a_line_and_a_table(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_100, seed) + 0.002 * (seed - 1), flops=900, warmup_steps=50)
        run(tmp_path, "k_only", seed, loss(2_000, seed), flops=1_800, steps=2_000, warmup_steps=50)
    loaded = load_runs(tmp_path)
    for lang in ("en", "zh"):
        table = next(table for table in all_tables(loaded, lang) if table.name == "yardstick")
        rows = {row[0]: row for row in table.rows()}
        assert len(table.header()) == 7
        assert rows["q_only"][4].startswith("1.22") and rows["k_only"][4].endswith("†")
        assert rows["q_only"][6].endswith("baseline, 850 steps")
        assert any("q_only 1.22" in line or "q_only，FLOPs 1.22" in line for line in verdict_lines(loaded, texts(lang)))


def test_a_shorter_baseline_may_be_the_opponent_of_equal_compute(tmp_path):
    ladder(tmp_path)
    for seed in NOISE:
        run(tmp_path, "q_only", seed, loss(1_000, seed), flops=860, warmup_steps=50)
    assert record(tmp_path, "q_only").best_trained.label == "baseline, 850 steps"
