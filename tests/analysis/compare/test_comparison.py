"""Which runs stand beside each other: arms, phases, equal baselines, and learning rates given to every arm alike."""

from pathlib import Path

from factory import make_run, write_step_times
from oelm.analysis.compare.results import load_runs
from oelm.analysis.compare.times import step_time
from oelm.analysis.figures.curves import mean_line
from oelm.analysis.report.tables import all_tables, steps_table, sweep_table
from oelm.analysis.report.words import notes
from oelm.files import write_json
from oelm.freezing.methods import method as find_method
from oelm.runs import FAILED

RATES = (1e-3, 3e-3, 1e-2)


def sweep(root: Path, scores: dict[str, tuple[float, float, float]]) -> None:
    for method, values in scores.items():
        for rate, value in zip(RATES, values, strict=True):
            make_run(root, method, max_lr=rate, min_lr=rate / 10, perplexity=value, name=f"{method}-{rate:g}")


def test_each_arm_of_an_equal_sweep_is_judged_at_its_own_best_rate(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    comparison = load_runs(tmp_path).comparisons[0]
    assert [(arm.label, arm.settings["training.max_lr"]) for arm in comparison.arms] == [
        ("baseline", 3e-3),
        ("oelm_freeze", 1e-2),
    ]
    frozen = comparison.arms[1]
    assert frozen.rates == {1e-3: 13.0, 3e-3: 12.5, 1e-2: 12.0}
    assert frozen.baseline is not None and frozen.baseline.scores == {0: 10.0}
    assert frozen.differences == []


def test_an_arm_with_most_seeds_at_a_rate_that_is_not_its_best_is_starred(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    for seed in (1, 2):
        make_run(tmp_path, "baseline", seed, max_lr=3e-3, min_lr=3e-4)
        make_run(tmp_path, "oelm_freeze", seed, max_lr=1e-3, min_lr=1e-4)
    arm = load_runs(tmp_path).arms[1]
    assert (arm.settings["training.max_lr"], arm.best_rate, arm.at_best_rate) == (1e-3, 1e-2, False)
    assert arm.baseline is not None and arm.baseline.label == "baseline"
    assert arm.differences


def test_an_arm_outside_the_sweep_is_not_compared_with_a_bad_rate_of_the_baseline(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    make_run(tmp_path, "q_only", max_lr=1e-3, min_lr=1e-4)
    arm = next(arm for arm in load_runs(tmp_path).arms if arm.method == "q_only")
    assert arm.baseline is not None and arm.baseline.scores == {0: 10.0}  # the one that the report shows
    assert [note.values["key"] for note in arm.differences] == ["training.max_lr", "training.min_lr"]


def test_of_rates_that_did_equally_well_each_is_the_best(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.0, 12.0)})
    arm = load_runs(tmp_path).arms[1]
    assert arm.settings["training.max_lr"] == 3e-3 and arm.at_best_rate
    for seed in (1, 2):
        make_run(tmp_path, "oelm_freeze", seed, max_lr=1e-2, min_lr=1e-3)
    arm = load_runs(tmp_path).arms[1]
    assert arm.settings["training.max_lr"] == 1e-2 and arm.at_best_rate


def test_a_rate_at_which_a_run_broke_down_was_tried(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0)})
    for rate in RATES[:2]:
        make_run(tmp_path, "oelm_freeze", max_lr=rate, min_lr=rate / 10, perplexity=13.0, name=f"oelm_freeze-{rate:g}")
    broken = make_run(tmp_path, "oelm_freeze", max_lr=1e-2, min_lr=1e-3, finished=False, state=FAILED)
    broken.set_status(FAILED, error="OSError: the disk is full")
    assert len(load_runs(tmp_path).arms) == 5  # that rate was not tried, so it is no sweep
    broken.set_status(FAILED, error="Diverged: the loss became nan")
    comparison = load_runs(tmp_path).comparisons[0]
    assert [arm.label for arm in comparison.arms] == ["baseline", "oelm_freeze"]
    assert sweep_table(comparison).rows()[1][1:4] == ["13.00", "13.00", "failed"]


def test_equal_highest_rates_with_other_lowest_ones_are_no_equal_sweep(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0)})
    for rate in RATES:
        make_run(tmp_path, "oelm_freeze", max_lr=rate, min_lr=0.0, name=f"oelm_freeze-{rate:g}")
    assert len(load_runs(tmp_path).arms) == 6


def test_a_rate_a_hair_apart_is_the_same_rate(tmp_path: Path) -> None:
    make_run(tmp_path, max_lr=3e-3, min_lr=3e-4)
    make_run(tmp_path, seed=1, max_lr=3e-3, min_lr=3e-3 / 10)
    assert [list(arm.scores) for arm in load_runs(tmp_path).arms] == [[0, 1]]


def test_a_baseline_with_pieces_is_compared_with_the_plain_one(tmp_path: Path) -> None:
    for method, wd in (
        ("baseline", 0.1),
        ("baseline+rank=8", 0.1),
        ("baseline+rank=8", 0.2),
        ("identity_qk+rank=8", 0.1),
    ):
        make_run(tmp_path, method, weight_decay=wd, name=f"{method}-{wd}")
    found = {arm.label: arm.baseline.label for arm in load_runs(tmp_path).arms if arm.baseline}
    assert found["baseline+rank=8 (weight_decay=0.1)"] == found["baseline+rank=8 (weight_decay=0.2)"] == "baseline"
    assert found["identity_qk+rank=8"] == "baseline+rank=8 (weight_decay=0.1)"
    equipped = next(arm for arm in load_runs(tmp_path).arms if arm.method == "identity_qk+rank=8")
    assert equipped.plain_baseline is not None and equipped.plain_baseline.label == "baseline"


def test_studies_of_equal_names_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = make_run(tmp_path / name)
        result = {**folder.result(), "data_fingerprint": f"{name}-tokens"}  # type: ignore[dict-item]
        write_json(folder.result_file, result)
    loaded = load_runs(tmp_path)
    assert [comparison.dataset for comparison in loaded.comparisons] == ["fables one-to", "fables two-to"]


def test_a_loss_that_has_risen_since_its_best_is_mentioned(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    folder.append_metrics({"kind": "validation", "step": 2_000, "loss": 9.0, "perplexity": 8103.0})
    (note,) = [note for note in notes(load_runs(tmp_path)) if note.key == "note_past_best"]
    assert note.values["arms"] == "baseline"


def test_a_rate_that_only_one_arm_was_given_stays_a_difference(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    make_run(tmp_path, "q_only", max_lr=5e-3, min_lr=5e-4)
    arm = next(arm for arm in load_runs(tmp_path).arms if arm.method == "q_only")
    assert arm.rates == {}
    assert [note.values["key"] for note in arm.differences] == ["training.max_lr", "training.min_lr"]


def test_rates_of_one_method_alone_are_arms_of_their_own(tmp_path: Path) -> None:
    """Whoever compares two rates of one method wants to see both."""
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0)})
    assert [arm.label for arm in load_runs(tmp_path).arms] == [f"baseline (max_lr={rate:g})" for rate in RATES]


def test_more_seeds_go_before_a_better_score_and_that_is_said(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    for method, value in (("baseline", 10.2), ("oelm_freeze", 12.6)):
        make_run(tmp_path, method, 1, max_lr=3e-3, min_lr=3e-3 / 10, perplexity=value)
    loaded = load_runs(tmp_path)
    frozen = loaded.arms[1]
    assert frozen.settings["training.max_lr"] == 3e-3 and list(frozen.scores) == [0, 1]
    assert frozen.rates[3e-3] == 12.5  # over the seed that all rates have
    said = [note.values for note in notes(loaded) if note.key == "note_rate"]
    assert [(values["arm"], values["best"], values["shown"]) for values in said] == [("oelm_freeze", 1e-2, 3e-3)]


def test_a_best_rate_at_the_edge_of_those_tried_is_said(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    said = [note.values for note in notes(load_runs(tmp_path)) if note.key == "note_rate_edge"]
    assert [(values["arm"], values["best"]) for values in said] == [("oelm_freeze", 1e-2)]


def test_the_sweep_is_a_table(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    loaded = load_runs(tmp_path)
    table = sweep_table(loaded.comparisons[0])
    assert table.header() == ["method", "0.001", "0.003", "0.01", "best", "used"]
    assert table.rows()[1] == ["oelm_freeze", "13.00", "12.50", "12.00", "0.01", "0.01"]
    assert "sweep" in {table.name for table in all_tables(loaded, "zh")}


def test_a_sweep_made_before_the_runs_counts(tmp_path: Path) -> None:
    for method, rate in (("baseline", 1e-3), ("head_polar", 3e-3), ("oelm_freeze", 3e-3)):
        make_run(tmp_path, method, max_lr=rate, min_lr=rate / 10)
    tried = {"baseline": {"0.001": 3.6, "0.003": 3.7}, "head_polar": {"0.001": 3.8, "0.003": 3.7}}
    write_json(tmp_path / "sweep.json", {"rates": {**tried, "oelm_freeze": {"0.003": 3.7}}})
    arms = {arm.method: arm for arm in load_runs(tmp_path).arms}
    assert arms["head_polar"].differences == []
    assert len(arms["oelm_freeze"].differences) == 2  # it had no choice


def test_a_rate_that_broke_down_in_an_earlier_sweep_was_tried(tmp_path: Path) -> None:
    for method in ("baseline", "head_polar"):
        make_run(tmp_path, method, max_lr=1e-3, min_lr=1e-4)
    tried = {"baseline": {"0.001": 3.6, "0.003": None}, "head_polar": {"0.001": 3.8, "0.003": 3.9}}
    write_json(tmp_path / "sweep.json", {"rates": tried})
    loaded = load_runs(tmp_path)
    assert loaded.skipped == [] and loaded.arms[0].best_rate == 1e-3
    assert all(len(arm.rates) == 2 for arm in loaded.arms)


def test_a_split_of_another_name_is_said(tmp_path: Path) -> None:
    make_run(tmp_path, "baseline", final={"accuracy": 0.8, "split": "test"})
    said = [note.values["split"] for note in notes(load_runs(tmp_path)) if note.key == "note_split"]
    assert said == ["test"]


def test_an_unreadable_sweep_is_skipped_and_named(tmp_path: Path) -> None:
    make_run(tmp_path)
    for content in ('{"rates": [1]}', '{"rates": {"baseline": {"0.1": NaN}}}'):
        (tmp_path / "sweep.json").write_text(content)
        assert [skipped.path.name for skipped in load_runs(tmp_path).skipped] == ["sweep.json"]


def test_a_figure_that_is_no_number_spoils_no_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    make_run(tmp_path, "oelm_freeze", step_seconds=0.1)
    write_json(folder.result_file, {**folder.result(), "median_step_time": 0.0})  # type: ignore[dict-item]
    wrong = {"ratio": 0.9, "low": "x", "high": 1.0}
    write_json(tmp_path / "step_time.json", {"reference": "baseline", "arms": {"oelm_freeze": wrong}})
    loaded = load_runs(tmp_path)
    assert [skipped.path.name for skipped in loaded.skipped] == ["step_time.json"]
    assert step_time(loaded.arms[1]) is None
    assert all_tables(loaded)


def test_a_shape_of_ones_own_is_named_in_few_words(tmp_path: Path) -> None:
    shape = {"d_model": 128, "num_layers": 4, "num_heads": 4, "d_ff": 512, "max_seq_len": 128, "positions": "rotary"}
    make_run(tmp_path, config_changes={"model": {"size": "demo", "overrides": shape}})
    assert load_runs(tmp_path).comparisons[0].model == "GPT 128×4, 4 heads, context 128, positions rotary"


def test_many_unfinished_runs_are_one_line(tmp_path: Path) -> None:
    make_run(tmp_path)
    for seed in range(1, 9):
        make_run(tmp_path, "oelm_freeze", seed, finished=False)
    assert [note.values for note in notes(load_runs(tmp_path)) if "incomplete" in note.key] == [{"count": 8}]


def test_phases_of_several_lengths_are_studies_of_their_own(tmp_path: Path) -> None:
    for steps, names in ((600, ("baseline", "q_only+rank=8")), (1200, ("baseline", "baseline+rank=8", "oelm_freeze"))):
        for name in names:
            make_run(tmp_path / f"{steps}", name, steps=steps)
    make_run(tmp_path / "third", "k_only", steps=900)
    short, long = load_runs(tmp_path).comparisons[::-1]
    assert [comparison.model for comparison in (short, long)] == ["demo, 600 steps", "demo, 1,200 steps"]
    screened = next(arm for arm in short.arms if arm.method == "q_only+rank=8")
    assert screened.baseline is not None and screened.baseline.method == "baseline" and not screened.differences
    assert screened.is_unequal  # its own adapters stand in a longer baseline only
    assert {arm.label for arm in long.arms if arm.differences} == {"k_only"}


def test_a_baseline_without_the_pieces_is_said(tmp_path: Path) -> None:
    for name in ("baseline", "oelm_freeze", "oelm_freeze+rank=8"):
        make_run(tmp_path, name)
    said = [note for note in notes(load_runs(tmp_path)) if note.key == "note_unequal"]
    assert [note.values["arms"] for note in said] == ["oelm_freeze+rank=8"]


def test_a_method_of_ones_own_finds_its_equal_baseline_by_what_it_is(tmp_path: Path) -> None:
    frozen = {"init": "head_orthogonal", "frozen": True, "adapters": {"rank": 8}}
    mine = {"name": "mine", "query": frozen, "key": frozen}
    for method in ("baseline", "baseline+rank=8", mine):
        make_run(tmp_path, method)
    (arm,) = [arm for arm in load_runs(tmp_path).arms if arm.method == "mine"]
    assert arm.baseline is not None and arm.baseline.method == "baseline+rank=8"


def test_what_was_trained_otherwise_gets_no_verdict(tmp_path: Path) -> None:
    for seed, wobble in enumerate((1.0, 1.01, 0.99)):
        make_run(tmp_path, "baseline", seed, perplexity=10 * wobble)
        make_run(tmp_path, "oelm_freeze", seed, perplexity=8 * wobble, weight_decay=0.2)
    record = load_runs(tmp_path).comparisons[0].records[1]
    assert (record.verdict, record.close, record.comparable) == ("not comparable", "not comparable", False)


def test_another_wording_of_a_method_is_the_same_arm(tmp_path: Path) -> None:
    written = find_method("oelm_freeze+thaw=top-down:100").to_dict()
    make_run(tmp_path, {**written, "summary": "as it was called before"}, 0)
    make_run(tmp_path, {**written, "thaw": {**written["thaw"], "at": [100]}}, 1)
    (arm,) = load_runs(tmp_path).arms
    assert list(arm.scores) == [0, 1]


def test_a_method_that_this_version_does_not_know_is_skipped_and_named(tmp_path: Path) -> None:
    make_run(tmp_path, "baseline")
    make_run(tmp_path, "oelm_v9")
    make_run(tmp_path, {"name": "baseline", "query": {"frozen": True}}, name="disguised")
    loaded = load_runs(tmp_path)
    assert [arm.label for arm in loaded.arms] == ["baseline"]
    reasons = {skipped.path.name: skipped.reason for skipped in loaded.skipped}
    assert "method 'oelm_v9' is unknown" in reasons["oelm_v9-s0"]
    assert "'baseline' is a named one, but its fields here say something else" in reasons["disguised"]


def test_a_run_without_its_way_spoils_no_curve_and_is_named(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path, "baseline", seed)
    (tmp_path / "baseline-s1" / "metrics.jsonl").unlink()
    loaded = load_runs(tmp_path)
    assert steps_table(loaded.comparisons[0]).records
    assert mean_line(loaded.arms[0], "perplexity") is not None
    assert [note.values["runs"] for note in notes(loaded) if note.key == "note_no_curve"] == ["baseline-s1"]


def test_step_times_beside_a_copy_of_a_run_count(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "oelm_freeze")
    make_run(tmp_path / "b", "oelm_freeze")
    make_run(tmp_path / "b", "baseline")
    write_step_times(tmp_path / "b")
    loaded = load_runs(tmp_path)
    time = step_time(next(arm for arm in loaded.arms if arm.method == "oelm_freeze"))
    assert time is not None and time.interleaved


def test_studies_that_differ_in_their_model_alone_are_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path, "baseline", config_changes={"model": {"size": "demo", "overrides": {}, "encoder": None}})
    make_run(tmp_path, "oelm_freeze")
    assert len(load_runs(tmp_path).comparisons) == 1  # a field that says nothing is no difference
    make_run(tmp_path, "oelm_freeze", name="other", config_changes={"model": {"size": "demo", "overrides": {}, "x": 1}})
    names = [comparison.dataset for comparison in load_runs(tmp_path).comparisons]
    assert len(set(names)) == 2
