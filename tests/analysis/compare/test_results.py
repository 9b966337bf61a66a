"""From folders to arms: what is kept, skipped, grouped, and said about comparability."""

import json

import pytest

from factory import make_run, make_suite, write_step_times
from oelm.analysis.compare.results import load_runs, require_finished
from oelm.analysis.compare.times import step_time
from oelm.analysis.report.texts import texts
from oelm.analysis.report.words import notes
from oelm.errors import OelmError
from oelm.freezing.methods import method
from oelm.runs import INTERRUPTED


def said(loaded):
    return [texts("en").note(note) for note in notes(loaded)]


def test_runs_are_found_below_a_parent_and_by_their_own_path(tmp_path):
    make_suite(tmp_path / "demo", ("baseline", "oelm_freeze"), (0, 1))
    assert len(load_runs(tmp_path).runs) == 4
    assert [run.name for run in load_runs([tmp_path / "demo" / "baseline-s0"]).runs] == ["baseline-s0"]


def test_runs_of_the_same_name_are_told_apart_by_their_folder(tmp_path):
    for name in ("baseline", "oelm_freeze"):
        make_run(tmp_path / name, name, name="seed-0")
    assert [run.name for run in load_runs(tmp_path).runs] == ["baseline/seed-0", "oelm_freeze/seed-0"]


def test_a_run_given_twice_counts_once(tmp_path):
    make_run(tmp_path, "baseline")
    assert len(load_runs([tmp_path, tmp_path / "baseline-s0"]).runs) == 1


def test_arms_are_one_method_over_seeds_in_the_order_of_the_methods(tmp_path):
    make_suite(tmp_path, ("oelm_random", "oelm_freeze", "baseline"), (2, 0, 1))
    arms = load_runs(tmp_path).arms
    assert [arm.label for arm in arms] == ["baseline", "oelm_freeze", "oelm_random"]
    assert [list(arm.scores) for arm in arms] == [[0, 1, 2]] * 3


def test_a_method_by_alias_or_written_out_is_the_same_arm(tmp_path):
    make_run(tmp_path, "oelm_freeze", 0)
    make_run(tmp_path, "oelm_v2", 1)
    make_run(tmp_path, method("oelm_freeze").to_dict(), 2)
    (arm,) = load_runs(tmp_path).arms
    assert (arm.label, list(arm.scores)) == ("oelm_freeze", [0, 1, 2])


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.yaml", "method: [", "config.yaml cannot be read"),
        ("config.yaml", "", "not a mapping of settings"),
        ("result.json", '{"final": ', "result.json cannot be read"),
        ("result.json", '{"final": {"loss": 1.0}}', "has none of perplexity, accuracy, f1"),
        ("result.json", '{"final": {"perplexity": NaN}}', "NaN is no number"),
        ("status.json", "not json", "status.json cannot be read"),
    ],
)
def test_an_unreadable_run_is_skipped_and_named(tmp_path, file, content, reason):
    make_run(tmp_path, "baseline", 0)
    broken = make_run(tmp_path, "baseline", 1)
    (broken.path / file).write_text(content)
    loaded = load_runs(tmp_path)
    assert [run.seed for run in loaded.runs] == [0]
    (skipped,) = loaded.skipped
    assert skipped.path == broken.path
    assert reason in skipped.reason


def test_a_run_without_config_is_named_not_overlooked(tmp_path):
    make_run(tmp_path, "baseline", 0)
    lost = make_run(tmp_path, "baseline", 1)
    lost.config_file.unlink()
    assert [skipped.path for skipped in load_runs(tmp_path).skipped] == [lost.path]


def test_paths_without_runs_are_skipped_with_the_reason(tmp_path):
    make_run(tmp_path / "runs", "baseline")
    (tmp_path / "empty").mkdir()
    loaded = load_runs([tmp_path / "runs", tmp_path / "empty", tmp_path / "nowhere"])
    assert [skipped.reason for skipped in loaded.skipped] == [
        "there is no run folder in it (no config.yaml)",
        "it does not exist",
    ]


def test_means_over_different_seeds_are_said_to_be_so_while_a_run_is_unfinished(tmp_path):
    for name, seeds in (("baseline", 2), ("oelm_freeze", 3), ("oelm_random", 2)):
        for seed in range(seeds):
            make_run(tmp_path, name, seed)
    assert "other seeds" not in " ".join(said(load_runs(tmp_path)))  # as it was asked for
    make_run(tmp_path, "baseline", 2, finished=False)
    (note,) = [note for note in said(load_runs(tmp_path)) if "other seeds" in note]
    assert ": oelm_freeze. Gaps are over the seeds that both have." in note


def test_unfinished_runs_are_listed_and_not_averaged(tmp_path):
    make_run(tmp_path, "baseline", 0, perplexity=4.0)
    make_run(tmp_path, "baseline", 1, finished=False)
    make_run(tmp_path, "baseline", 2, finished=False, state=INTERRUPTED)
    loaded = load_runs(tmp_path)
    assert loaded.arms[0].scores == {0: 4.0}
    assert {run.name: run.state for run in loaded.incomplete} == {"baseline-s1": "dead", "baseline-s2": "interrupted"}
    assert "baseline-s1 is not finished (dead at step 500 of 1000) and not averaged." in said(loaded)


def test_the_same_computation_twice_is_one_observation(tmp_path):
    make_run(tmp_path, "baseline", 0, name="a", perplexity=4.0)
    make_run(tmp_path, "baseline", 0, name="b", perplexity=5.0)
    loaded = load_runs(tmp_path)
    assert loaded.arms[0].scores == {0: 4.0}
    assert [(s.path.name, "same method, settings and seed" in s.reason) for s in loaded.skipped] == [("b", True)]


def test_arms_trained_with_other_settings_are_flagged(tmp_path):
    make_run(tmp_path, "baseline", max_lr=3e-4, min_lr=3e-5)
    make_run(tmp_path, "oelm_freeze", max_lr=1e-3, min_lr=3e-5)
    assert any(
        "oelm_freeze is not comparable with baseline: training.max_lr is 0.001 vs 0.0003" in line
        for line in said(load_runs(tmp_path))
    )


def test_what_only_changes_the_record_spoils_no_comparison(tmp_path):
    make_run(tmp_path, "baseline", log_every=10)
    make_run(tmp_path, "oelm_freeze", log_every=50, eval_every=500)
    assert not any("not comparable" in line for line in said(load_runs(tmp_path)))


def test_an_arm_is_compared_with_the_baseline_trained_most_alike(tmp_path):
    for rate in (1e-3, 3e-3):
        for name in ("baseline", "oelm_freeze"):
            make_run(tmp_path, name, weight_decay=rate, name=f"{name}-{rate}")
    arms = [arm for arm in load_runs(tmp_path).arms if arm.baseline]
    assert [(arm.label, arm.baseline.label, arm.differences) for arm in arms] == [
        (f"oelm_freeze (weight_decay={rate})", f"baseline (weight_decay={rate})", []) for rate in (0.001, 0.003)
    ]


def test_other_data_or_another_model_is_another_study(tmp_path):
    make_run(tmp_path / "a", "baseline")
    make_run(tmp_path / "b", "oelm_freeze", dataset="stories")
    make_run(
        tmp_path / "c", "oelm_freeze", config_changes={"model": {"size": "small", "overrides": {"positions": "rotary"}}}
    )
    loaded = load_runs(tmp_path)
    assert [(s.dataset, s.model) for s in loaded.comparisons] == [
        ("fables", "demo"), ("fables", "small, positions rotary"), ("stories", "demo"),
    ]  # fmt: skip
    assert all(arm.baseline is None for arm in loaded.arms)


def test_the_same_data_elsewhere_is_the_same_data(tmp_path):
    make_run(tmp_path, "baseline")
    moved = {"data": {"path": "elsewhere/fables", "fingerprint": "fables-fingerprint"}}
    make_run(tmp_path, "oelm_freeze", config_changes=moved)
    (comparison,) = load_runs(tmp_path).comparisons
    assert comparison.arms[1].differences == []


def test_step_times_beside_the_runs_are_trusted_and_others_marked(tmp_path):
    make_suite(tmp_path / "timed", ("baseline", "oelm_freeze"), (0,))
    make_run(tmp_path / "plain", "baseline", dataset="other", step_seconds=0.2)
    make_run(tmp_path / "plain", "oelm_freeze", dataset="other", step_seconds=0.1)
    loaded = load_runs(tmp_path)
    times = {(arm.dataset, arm.label): step_time(arm) for arm in loaded.arms}
    assert times["fables", "oelm_freeze"].low == 0.944
    assert times["fables", "oelm_freeze"].interleaved
    assert times["other", "oelm_freeze"].ratio == pytest.approx(0.5)
    assert not times["other", "oelm_freeze"].interleaved


def test_seconds_and_ratios_agree_when_an_arm_has_fewer_seeds_than_its_baseline(tmp_path):
    """Seed 0 ran on a busy machine; the others have no run of the arm, or none that is finished."""
    for seed, seconds in enumerate((0.3, 0.1, 0.1, 0.1)):
        make_run(tmp_path, "baseline", seed, step_seconds=seconds)
    make_run(tmp_path, "oelm_freeze", 0, step_seconds=0.24)
    make_run(tmp_path, "oelm_random", 1, step_seconds=0.11)
    make_run(tmp_path, "oelm_random", 2, finished=False)
    make_run(tmp_path, "oelm_random", 9, step_seconds=5.0)  # a seed that the baseline does not have
    make_run(tmp_path, "q_only", 9, step_seconds=0.1)
    times = {arm.label: step_time(arm) for arm in load_runs(tmp_path).arms}
    assert times.pop("q_only") is None  # no pair
    assert {name: time.ratio for name, time in times.items()} == pytest.approx(
        {"baseline": 1.0, "oelm_freeze": 0.8, "oelm_random": 1.1}
    )
    assert times["baseline"].seconds == pytest.approx(0.15)
    for time in times.values():
        assert time.seconds == pytest.approx(time.ratio * times["baseline"].seconds)


def test_unreadable_step_times_are_skipped_and_named(tmp_path):
    make_run(tmp_path, "baseline")
    (tmp_path / "step_time.json").write_text(json.dumps({"arms": {"oelm_freeze": {}}}))
    assert [skipped.path.name for skipped in load_runs(tmp_path).skipped] == ["step_time.json"]


def test_step_times_serve_runs_opened_from_inside_their_folder(tmp_path, monkeypatch):
    make_run(tmp_path, "oelm_freeze")
    write_step_times(tmp_path)
    monkeypatch.chdir(tmp_path / "oelm_freeze-s0")
    loaded = load_runs(".")
    assert loaded.runs[0].name == "oelm_freeze-s0"
    assert step_time(loaded.arms[0]).interleaved


def test_nothing_finished_is_an_error_with_the_way_out(tmp_path):
    with pytest.raises(OelmError, match="it does not exist; give folders made by"):
        require_finished(tmp_path / "runs")
    make_run(tmp_path, "baseline", finished=False)
    with pytest.raises(OelmError, match="is dead at step 500; wait for it or 'oelm resume' it"):
        require_finished(tmp_path)
