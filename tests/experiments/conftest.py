"""Smoke-scale plans in a working directory of their own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oelm.experiments.entries import chosen
from oelm.experiments.plan import PlannedRun, unique
from oelm.experiments.suite import plan_experiments

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, one thread, and this source tree for the processes that a test starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("OELM_DATA_DIR", raising=False)
    yield tmp_path


@pytest.fixture
def smoke(workplace: Path) -> Callable[..., list[PlannedRun]]:
    """smoke("GPT-01", "GPT-02", seeds=[0]): the runs of experiments and suites at scale smoke, data prepared."""

    def build(*names: str, **options) -> list[PlannedRun]:
        return unique(plan_experiments(chosen(names, "smoke"), Path("runs"), threads=1, **options))

    return build
