"""One record per arm: its opponents, its verdict, its costs; and the same numbers as JSON."""

import json

import pytest

from factory import QK, TOTAL, make_run, make_suite
from oelm.analysis.compare.results import load_runs
from oelm.files import write_json

WOBBLE = (1.0, 1.01, 0.99)


def records(root, scores, wobble=WOBBLE):
    for name, score in scores.items():
        for seed, factor in enumerate(wobble):
            make_run(root, name, seed, perplexity=score * factor)
    return {record.label: record for comparison in load_runs(root).comparisons for record in comparison.records}


def test_an_arm_stands_beside_the_plain_and_the_equally_equipped_baseline(tmp_path):
    found = records(
        tmp_path, {"baseline": 10.0, "baseline+rank=8": 9.0, "oelm_freeze": 11.0, "oelm_freeze+rank=8": 9.9}
    )
    equipped = found["oelm_freeze+rank=8"]
    assert (equipped.plain.label, equipped.equal.label) == ("baseline", "baseline+rank=8")
    assert equipped.plain.gap.value == pytest.approx(-1.0)
    assert equipped.equal.gap.value == pytest.approx(10.0)
    assert found["oelm_freeze"].equal is None and not found["oelm_freeze"].lacks_equal
    assert found["baseline"].plain is None and found["baseline"].is_baseline


def test_the_verdict_counts_both_opponents(tmp_path):
    found = records(tmp_path, {"baseline": 10.0, "baseline+rank=8": 9.0, "oelm_freeze+rank=8": 9.9})
    record = found["oelm_freeze+rank=8"]
    assert (record.plain.verdict(), record.equal.verdict(), record.verdict) == ("met", "missed", "missed")


def test_what_trains_everything_gets_no_verdict(tmp_path):
    found = records(tmp_path, {"baseline": 10.0, "orthogonal_trained": 9.9, "baseline+mix": 9.8, "q_only": 10.1})
    assert {label: record.verdict for label, record in found.items()} == {
        "baseline": None, "orthogonal_trained": None, "baseline+mix": None, "q_only": "met",
    }  # fmt: skip
    assert found["baseline+mix"].plain.gap.value == pytest.approx(-2.0)


def test_an_undecided_verdict_says_how_many_more_seeds_it_needs(tmp_path):
    for seed, value in enumerate((10.2, 10.3, 10.45, 10.6)):
        make_run(tmp_path, "baseline", seed, perplexity=10.0)
        make_run(tmp_path, "q_only", seed, perplexity=value)
    record = load_runs(tmp_path).comparisons[0].records[1]
    assert record.verdict == "undecided" and record.more_seeds > 0
    for seed in range(4, 4 + 2 * record.more_seeds):
        make_run(tmp_path, "baseline", seed, perplexity=10.0)
        make_run(tmp_path, "q_only", seed, perplexity=(10.2, 10.3, 10.45, 10.6)[seed % 4])
    assert load_runs(tmp_path).comparisons[0].records[1].verdict == "met"


def test_the_correlation_of_the_seeds_is_known_and_the_interval_is_paired(tmp_path):
    for seed, (base, arm) in enumerate([(10.0, 10.4), (10.2, 10.3), (10.4, 10.1)]):
        make_run(tmp_path, "baseline", seed, perplexity=base)
        make_run(tmp_path, "q_only", seed, perplexity=arm)
    gap = load_runs(tmp_path).comparisons[0].records[1].plain.gap
    assert gap.correlation < -0.9
    assert gap.t.high - gap.t.low > gap.unpaired.high - gap.unpaired.low  # the wider one decides


def test_a_projection_without_weights_has_no_weights_to_freeze(tmp_path):
    found = records(tmp_path, {"baseline": 10.0, "permutation_qk": 10.1, "oelm_freeze": 11.0})
    checks = {label: record.frozen_check for label, record in found.items()}
    assert checks == {"baseline": "nothing frozen", "permutation_qk": "no weights", "oelm_freeze": "verified"}


def test_costs_are_those_of_the_runs(tmp_path):
    for name, flops in (("baseline", 1000), ("oelm_freeze", 950)):
        folder = make_run(tmp_path, name)
        facts = {"flops_per_token": flops, "block_flops_per_token": flops - 200}
        write_json(folder.result_file, {**folder.result(), **facts})
    base, frozen = load_runs(tmp_path).comparisons[0].records
    assert (frozen.costs.parameters, frozen.costs.frozen, frozen.costs.trainable) == (TOTAL, QK, TOTAL - QK)
    assert (frozen.costs.flops_ratio, frozen.costs.block_flops_ratio) == (0.95, 750 / 800)
    assert base.costs.flops_ratio == 1 and base.costs.total_flops == 1000 * 1000 * 2048


def test_seconds_and_ratio_of_a_step_are_one_statistic(tmp_path):
    for seed, (base, arm) in enumerate([(0.2, 0.1), (0.4, 0.4)]):
        make_run(tmp_path, "baseline", seed, step_seconds=base)
        make_run(tmp_path, "oelm_freeze", seed, step_seconds=arm)
    base, arm = (record.time for record in load_runs(tmp_path).comparisons[0].records)
    assert arm.ratio == pytest.approx(0.5**0.5)  # paired by seed
    assert arm.seconds == pytest.approx(arm.ratio * base.seconds)


@pytest.mark.parametrize(("stored", "verdict"), [({}, "faster"), ({"verdict": "no difference"}, "no difference")])
def test_a_stored_verdict_on_time_goes_before_the_interval(tmp_path, stored, verdict):
    make_run(tmp_path, "oelm_freeze")
    measured = {"ratio": 0.983, "low": 0.953, "high": 0.999, **stored}
    write_json(tmp_path / "step_time.json", {"arms": {"oelm_freeze": measured}, "reference_median_seconds": 2.0})
    time = load_runs(tmp_path).comparisons[0].records[0].time
    assert (time.verdict, time.seconds) == (verdict, pytest.approx(1.966))


def test_records_are_plain_json_and_computed_once(tmp_path):
    make_suite(tmp_path, seeds=(0, 1))
    loaded = load_runs(tmp_path)
    (comparison,) = loaded.comparisons
    assert comparison.records is loaded.comparisons[0].records
    told = [record.to_dict() for record in comparison.records]
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert [arm["label"] for arm in told] == [arm.label for arm in comparison.arms]
    assert told[1]["plain"]["gap"]["t"]["low"] == comparison.records[1].plain.gap.t.low
