"""What `oelm train` makes of its options, before anything is trained."""

import pytest
import yaml
from typer.testing import CliRunner

from oelm.cli import train
from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.training.config import RunConfig


@pytest.fixture
def parsed(monkeypatch):
    """parsed("--epochs", 1): the config that would be trained."""
    configs = []
    monkeypatch.setattr(train, "_run", lambda config, *rest, **options: configs.append(config))

    def run(*words) -> RunConfig:
        result = CliRunner().invoke(app, ["train", *map(str, words)])
        if result.exception:
            raise result.exception
        return configs[-1]

    return run


def test_a_config_may_be_used_with_other_data_than_it_was_made_with(parsed, fables_folder, tmp_path):
    made = {"data": {"path": "data/other", "fingerprint": "0123456789ab"}, "training": {"max_steps": 7}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(made))
    config = parsed("--config", tmp_path / "config.yaml", "--dataset", fables_folder)
    assert (config.data.path, config.data.fingerprint) == (str(fables_folder), None)
    assert config.training.max_steps == 7
    kept = parsed("--config", tmp_path / "config.yaml")
    assert kept.data.fingerprint == "0123456789ab"


def test_epochs_of_other_data_are_other_steps(parsed, fables_folder, tmp_path):
    made = {"data": {"path": "data/other"}, "training": {"epochs": 2, "max_steps": 7, "warmup_steps": 1}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(made))
    config = parsed("--config", tmp_path / "config.yaml", "--dataset", fables_folder)
    assert (config.training.epochs, config.training.max_steps) == (2, None)


@pytest.mark.parametrize("epochs", [0, -1])
def test_no_epochs_are_refused(parsed, fables_folder, epochs):
    with pytest.raises(OelmError, match=r"training\.epochs.*greater than 0"):
        parsed("--dataset", fables_folder, "--epochs", epochs)
