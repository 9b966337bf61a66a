"""Step times side by side of models of transformers, whatever they are trained for."""

import json
from pathlib import Path

import pytest

import oelm
from oelm.experiments.plan import several
from oelm.experiments.suite import time_planned
from oelm.training import setup
from oelm.training.classification import Rows
from oelm.training.objectives import LanguageModelling
from oelm.training.trainer import train
from stock import LENGTH, config, prepared_corpus, prepared_pairs, prepared_task

METHODS = ["baseline", "oelm_freeze"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    return {
        "corpus": prepared_corpus(folder / "fables"),
        "pairs": prepared_pairs(folder / "pairs"),
        "task": prepared_task(folder / "task"),
    }


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_report_shows_the_times_of_any_model(name: str, data: dict[str, Path], tmp_path: Path) -> None:
    planned = several(config(name, data["corpus"], sequence_length=LENGTH), METHODS, [0], tmp_path / "runs")
    for run in planned:
        train(run.config, run.folder)
    said: list[str] = []
    time_planned(planned, rounds=6, say=said.append)
    assert said[0] == "timing baseline, oelm_freeze side by side"
    assert said[1:] == [
        f"timing: {done} of 22 steps" for done in (5, 10, 15, 20)
    ]  # with warm-up; so long runs are watched
    times = json.loads((tmp_path / "runs" / "step_time.json").read_text())
    own = [json.loads((run.folder / "result.json").read_text())["flops_per_token"] for run in planned]
    assert times["arms"]["oelm_freeze"]["predicted"] == pytest.approx(own[1] / own[0])
    assert times["protocol"]["batch"] == f"4 × {LENGTH} tokens" and times["protocol"]["accumulation"] == 2
    page = oelm.write_report(tmp_path / "runs", tmp_path / "report", formats=("md",))[0].read_text()
    assert f"{times['arms']['oelm_freeze']['ratio']:.3f}" in page


@pytest.mark.parametrize(("name", "kind"), [("bert", "corpus"), ("bart", "pairs"), ("bert", "task"), ("", "task")])
def test_all_arms_of_a_round_read_the_same_batch_whatever_its_length(
    name: str, kind: str, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    for objective in (Rows, LanguageModelling):
        batch = objective.batch
        monkeypatch.setattr(objective, "batch", lambda self, n, batch=batch: (read.append(n), batch(self, n))[1])
    ours = {"name": None, "fresh": False, "size": "demo", "overrides": {}}
    settings = config(name or "bert", data[kind], model={} if name else ours, accumulation=1)
    time_planned(several(settings, METHODS, [0], tmp_path), rounds=3)
    assert read == [0, 1, 0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    times = json.loads((tmp_path / "step_time.json").read_text())
    assert 0 < times["arms"]["oelm_freeze"]["predicted"] < 1


def test_arms_that_do_not_fit_into_memory_together_are_named_and_nothing_is_lost(
    data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, said = several(config("gpt2", data["corpus"], sequence_length=LENGTH), METHODS, [0], tmp_path), []
    needed = setup.parts_of(planned[0].config).sketch()[1].total_parameters * 16
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": int(1.5 * needed)}
    monkeypatch.setattr(setup.os, "sysconf", sizes.__getitem__)
    time_planned(planned, rounds=2, say=said.append)
    assert "not timing" in said[-1] and "2 models of" in said[-1] and not (tmp_path / "step_time.json").exists()
