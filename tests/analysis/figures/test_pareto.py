"""Nothing on the frontier is beaten in both cost and score."""

from pathlib import Path

import pytest

from factory import make_run, make_suite
from oelm.analysis.compare.results import load_runs
from oelm.analysis.figures import pareto
from oelm.analysis.figures.curves import MOST_LINES, shown
from oelm.analysis.figures.pareto import Point, frontier
from oelm.analysis.figures.plots import pictures


@pytest.fixture
def arm(tmp_path):
    make_run(tmp_path)
    return load_runs(tmp_path).arms[0]


def test_the_frontier_keeps_what_no_other_beats(arm):
    points = [Point(arm, cost, score) for cost, score in [(1.0, 3.0), (0.9, 3.2), (0.95, 3.3), (0.9, 3.5), (1.1, 3.0)]]
    assert [(p.cost, p.score) for p in frontier(points, higher_is_better=False)] == [(0.9, 3.2), (1.0, 3.0)]
    assert [(p.cost, p.score) for p in frontier(points, higher_is_better=True)] == [(0.9, 3.5)]


def test_only_step_times_measured_side_by_side_are_drawn(tmp_path):
    loaded = load_runs(make_suite(tmp_path))
    panels = pareto.costs(loaded.comparisons[0])
    assert [point.cost for point in panels["step_time"]] == [1.0, 0.957, 0.962, 0.985]
    assert panels["trainable"][0].cost > panels["trainable"][1].cost
    (tmp_path / "step_time.json").unlink()
    loaded = load_runs(tmp_path)
    assert list(pareto.costs(loaded.comparisons[0])) == ["trainable"]


def test_few_arms_have_no_such_figure(tmp_path):
    make_suite(tmp_path, methods=("baseline", "oelm_freeze"))
    assert "pareto" not in {picture.name for picture in pictures(load_runs(tmp_path))}


def test_of_many_arms_the_baseline_and_the_best_have_curves(tmp_path: Path):
    make_run(tmp_path, "baseline", perplexity=9.0)
    for rank in range(1, MOST_LINES + 4):
        make_run(tmp_path, f"oelm_freeze+rank={rank}", perplexity=3 + rank / 10)
    comparison = load_runs(tmp_path).comparisons[0]
    drawn = shown(comparison)
    assert len(drawn) == MOST_LINES and any(arm.is_baseline for arm in drawn)
    assert f"oelm_freeze+rank={MOST_LINES + 3}" not in {arm.label for arm in drawn}
    _, curves, *_ = pictures(load_runs(tmp_path))
    assert f"{MOST_LINES} of {MOST_LINES + 4} arms" in curves.caption
