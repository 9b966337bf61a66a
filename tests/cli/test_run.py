"""What `oelm run` makes of its options, before anything is planned."""

import pytest
from typer.testing import CliRunner

from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.training.config import with_settings


@pytest.fixture
def planned(monkeypatch):
    """planned("--seeds", "0,1"): what the plan is asked for."""
    asked = {}

    def plan(experiments, root, **how):
        asked.update(how)
        raise OelmError("far enough")

    monkeypatch.setattr("oelm.experiments.suite.plan_experiments", plan)
    monkeypatch.setattr("oelm.cli.run.require_installed", lambda names: None)

    def run(*words):
        result = CliRunner().invoke(app, ["run", "GPT-01", "--scale", "smoke", "--slots", "1", *words])
        assert str(result.exception) == "far enough", result.exception
        return asked

    return run


def test_trackers_reach_every_run_of_a_suite(planned):
    settings = planned("--track", "wandb", "--report-to", "mlflow", "--set", "seed=3")["settings"]
    assert with_settings({}, settings) == {"seed": 3, "runtime": {"trackers": ["wandb", "mlflow"]}}


def test_seeds_are_whole_numbers_each_once(planned):
    assert planned("--seeds", "2,0, 2")["seeds"] == [2, 0]
