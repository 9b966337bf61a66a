"""Trackers get what the run folder gets; whichever fails is left out, and the run goes on."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from oelm.errors import OelmError
from oelm.training.tracking import TRACKERS, Trackers, require_installed


class Recorder:
    """Stands in for a tracker's library: notes every call, whatever it is called."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __getattr__(self, attribute):
        return Recorder(f"{self.name}.{attribute}", self.calls)

    def __call__(self, *arguments, **named):
        self.calls.append((self.name, arguments, named))
        return self

    def __str__(self):
        return self.name


@pytest.fixture
def fake(monkeypatch):
    def install(name):
        calls: list = []
        module = ModuleType(name)
        module.__getattr__ = lambda attribute: getattr(Recorder(name, calls), attribute)  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return install


@pytest.mark.parametrize(
    ("name", "variable", "begin"),
    [("wandb", "WANDB_PROJECT", "wandb.init"), ("trackio", "TRACKIO_PROJECT", "trackio.init")],
)
def test_a_project_named_by_the_environment_is_used(fake, monkeypatch, tmp_path, name, variable, begin):
    monkeypatch.setenv(variable, "mine")
    monkeypatch.setenv("WANDB_MODE", "offline")
    calls = fake(name)
    trackers = Trackers([name], tmp_path / "run", {"seed": 1})
    trackers.log(3, {"train/loss": 2.0})
    trackers.close()
    called, _, named = calls[0]
    assert (called, named["project"], named["name"], named["resume"]) == (begin, "mine", "run", "allow")
    assert calls[1] == (f"{begin}.log", ({"train/loss": 2.0},), {"step": 3})
    assert calls[2][0] == f"{begin}.finish"


def test_mlflow_writes_into_the_run_folder_and_goes_on_with_the_same_run(fake, monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    calls: list = []
    made = SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    class MlflowClient:
        def __init__(self, tracking_uri):
            calls.append(("uri", tracking_uri))

        def __getattr__(self, name):
            answers = {"get_experiment_by_name": None, "create_experiment": "e1", "create_run": made}
            return lambda *a, **k: calls.append((name, *a)) or answers.get(name)

    module = ModuleType("mlflow")
    module.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    for step in (1, 2):
        trackers = Trackers(["mlflow"], tmp_path, {"seed": 1})
        trackers.log(step, {"loss": 2.0})
        trackers.close()
    assert calls[0] == ("uri", (tmp_path / "mlruns").resolve().as_uri())
    assert [call[0] for call in calls].count("create_run") == 1
    assert [call[1:3] for call in calls if call[0] == "log_metric"] == [("r1", "loss")] * 2


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_tracker_that_breaks_is_left_out_and_said_once(name, monkeypatch, tmp_path, caplog):
    class Broken:
        def __init__(self, folder, config):
            pass

        def log(self, step, values):
            raise ConnectionError("no route")

        def close(self):
            raise AssertionError("it is off")

    monkeypatch.setitem(TRACKERS, name, Broken)
    trackers = Trackers([name], tmp_path, {})
    with caplog.at_level(logging.WARNING, "oelm"):
        for step in range(3):
            trackers.log(step, {"loss": 1.0})
        trackers.close()
    assert [record.message for record in caplog.records] == [f"tracker {name} failed and is off from now on: no route"]


def test_an_unknown_tracker_is_refused_with_the_known_ones():
    with pytest.raises(OelmError, match="tracker 'tensorbord' is unknown; did you mean 'tensorboard'"):
        require_installed(["tensorbord"])
