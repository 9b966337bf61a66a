"""Learning rates given to every arm alike are not a confound; a rate that only one arm was given is."""

from pathlib import Path

from factory import make_run

from oelm.analysis.results import load_runs
from oelm.analysis.tables import all_tables, notes, sweep_table
from oelm.files import write_json
from oelm.runs import FAILED

RATES = (1e-3, 3e-3, 1e-2)


def sweep(root: Path, scores: dict[str, tuple[float, float, float]]) -> None:
    for method, values in scores.items():
        for rate, value in zip(RATES, values, strict=True):
            make_run(root, method, max_lr=rate, min_lr=rate / 10, perplexity=value, name=f"{method}-{rate:g}")


def test_each_arm_of_an_equal_sweep_is_judged_at_its_own_best_rate(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    study = load_runs(tmp_path).studies[0]
    assert [(arm.label, arm.settings["training.max_lr"]) for arm in study.arms] == [
        ("baseline", 3e-3),
        ("oelm_freeze", 1e-2),
    ]
    frozen = study.arms[1]
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
    # One seed at the same rate is a fair comparison; three seeds at another rate, not its best, are none.
    assert arm.baseline is not None and arm.baseline.label == "baseline (max_lr=0.001)"
    assert arm.differences == []


def test_an_arm_outside_the_sweep_finds_the_baseline_at_its_own_rate(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0), "oelm_freeze": (13.0, 12.5, 12.0)})
    make_run(tmp_path, "q_only", max_lr=1e-3, min_lr=1e-4)
    arm = next(arm for arm in load_runs(tmp_path).arms if arm.method == "q_only")
    assert arm.baseline is not None and arm.baseline.scores == {0: 12.0}
    assert arm.differences == []


def test_a_rate_at_which_a_run_broke_down_was_tried(tmp_path: Path) -> None:
    sweep(tmp_path, {"baseline": (12.0, 10.0, 11.0)})
    for rate in RATES[:2]:
        make_run(tmp_path, "oelm_freeze", max_lr=rate, min_lr=rate / 10, perplexity=13.0, name=f"oelm_freeze-{rate:g}")
    make_run(tmp_path, "oelm_freeze", max_lr=1e-2, min_lr=1e-3, finished=False, state=FAILED)
    study = load_runs(tmp_path).studies[0]
    assert [arm.label for arm in study.arms] == ["baseline", "oelm_freeze"]
    assert sweep_table(study).rows()[1][1:4] == ["13.00", "13.00", "failed"]


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
    assert [study.dataset for study in loaded.studies] == ["fables one-to", "fables two-to"]


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
    table = sweep_table(loaded.studies[0])
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
    folder.append_metrics({"kind": "validation", "step": 2_000, "loss": float("inf"), "perplexity": float("inf")})
    write_json(folder.result_file, {**folder.result(), "median_step_time": 0.0})  # type: ignore[dict-item]
    wrong = {"ratio": 0.9, "low": "x", "high": 1.0}
    write_json(tmp_path / "step_time.json", {"reference": "baseline", "arms": {"oelm_freeze": wrong}})
    loaded = load_runs(tmp_path)
    assert [skipped.path.name for skipped in loaded.skipped] == ["step_time.json"]
    assert loaded.step_time(loaded.arms[1]) is None
    assert all_tables(loaded)


def test_a_shape_of_ones_own_is_named_in_few_words(tmp_path: Path) -> None:
    shape = {"d_model": 128, "num_layers": 4, "num_heads": 4, "d_ff": 512, "max_seq_len": 128, "positions": "rotary"}
    make_run(tmp_path, config_changes={"model": {"size": "demo", "overrides": shape}})
    assert load_runs(tmp_path).studies[0].model == "GPT 128×4, 4 heads, context 128, positions rotary"


def test_many_unfinished_runs_are_one_line(tmp_path: Path) -> None:
    make_run(tmp_path)
    for seed in range(1, 9):
        make_run(tmp_path, "oelm_freeze", seed, finished=False)
    assert [note.values for note in notes(load_runs(tmp_path)) if "incomplete" in note.key] == [{"count": 8}]
