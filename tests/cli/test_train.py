"""What `oelm train` makes of its options, before anything is trained."""

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from oelm.cli import train
from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.training.config import RunConfig, options


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


def test_a_config_may_leave_its_data_to_the_command(parsed, fables_folder, tmp_path):
    (tmp_path / "config.yaml").write_text("method: q_only\ntraining: {max_steps: 7}\n")
    config = parsed("--config", tmp_path / "config.yaml", "--dataset", fables_folder)
    assert (config.method, config.data.path, config.training.max_steps) == ("q_only", str(fables_folder), 7)
    with pytest.raises(OelmError, match="'data' is missing"):
        parsed("--config", tmp_path / "config.yaml")


def test_a_tracker_that_is_not_there_is_refused_where_it_is_asked_for(parsed, fables_folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OelmError, match=r"tracker 'wandb' is not installed; pip install '.\[track\]' in your clone"):
        parsed("--dataset", fables_folder, "--track", "wandb")


def test_epochs_of_other_data_are_other_steps(parsed, fables_folder, tmp_path):
    followed = {"max_steps": 70, "warmup_steps": 7, "eval_every": 7, "checkpoint_every": 7}
    chosen = {"warmup_steps": 5, "eval_every": 10, "checkpoint_every": 20}
    for given, kept in ((followed, {}), ({"max_steps": 70, **chosen}, chosen), (chosen, chosen)):
        made = {"data": {"path": "data/other"}, "training": {"epochs": 2, **given}}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(made))
        training = parsed("--config", tmp_path / "config.yaml", "--dataset", fables_folder).training
        assert {name: getattr(training, name) for name in followed} == dict.fromkeys(followed) | kept


@pytest.mark.parametrize(("epochs", "words"), [(0, "greater than 0"), (-1, "greater than 0"), ("inf", "finite")])
def test_no_epochs_and_endless_ones_are_refused(parsed, fables_folder, epochs, words):
    with pytest.raises(OelmError, match=rf"training\.epochs.*{words}"):
        parsed("--dataset", fables_folder, "--epochs", epochs)


def test_files_without_a_task_are_refused(parsed, fables_folder, tmp_path):
    with pytest.raises(OelmError, match="says where the files of a --task are, but no task is given"):
        parsed("--dataset", fables_folder, "--data-path", tmp_path)


@pytest.mark.parametrize("words", [("--task", "sst2"), ("--dataset", "fables")])
def test_processes_of_torchrun_do_not_all_prepare_the_data(parsed, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    with pytest.raises(OelmError, match="prepare the data before torchrun starts processes: run 'oelm data"):
        parsed(*words)


def test_every_setting_is_an_option_with_the_help_and_default_of_the_config():
    command = typer.main.get_command(app).commands["train"]
    found = {parameter.name: parameter for parameter in command.params}
    for section, name, field in options():
        help_text = found[name].help
        assert field.description.partition(";")[0].lower() in help_text.lower(), (section, name)
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert f"(default: {field.default:g})" in help_text


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--learning-rate", "1e-3"], lambda c: c.training.max_lr == 1e-3),
        (["--max_lr", "1e-3"], lambda c: c.training.max_lr == 1e-3),
        (["--gradient-accumulation-steps", "3"], lambda c: c.training.accumulation == 3),
        (["--weight-decay", "0"], lambda c: c.training.weight_decay == 0),
        (["--eval-tokens", "all"], lambda c: c.training.eval_tokens == "all"),
        (["--eval_tokens", "640"], lambda c: c.training.eval_tokens == 640),
        (["--report-to", "none"], lambda c: c.runtime.trackers == []),
        (["--model_type", "oelm_v2"], lambda c: c.method == "oelm_freeze"),
        (["--compile"], lambda c: c.runtime.compile is True),
    ],
)
def test_the_names_of_others_are_names_of_the_same_settings(parsed, fables_folder, words, read):
    assert read(parsed("--dataset", fables_folder, *words))


def test_new_models_have_rotary_positions_and_recorded_runs_keep_theirs(parsed, fables_folder, tmp_path):
    assert parsed("--dataset", fables_folder).model.overrides == {"positions": "rotary"}
    assert parsed("--dataset", fables_folder, "--positions", "learned").model.overrides == {"positions": "learned"}
    given = parsed("--dataset", fables_folder, "--set", "model.overrides.positions=learned")
    assert given.model.overrides == {"positions": "learned"}
    assert parsed("--dataset", fables_folder, "--encoder", "some/model").model.overrides == {}
    assert parsed("--dataset", fables_folder, "--set", "model.encoder=some/model").model.overrides == {}
    record = {"data": {"path": str(fables_folder), "fingerprint": "0123456789ab"}, "model": {"size": "demo"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(record))
    assert parsed("--config", tmp_path / "config.yaml").model.overrides == {}
    assert parsed("--config", tmp_path / "config.yaml", "--dataset", fables_folder).model.overrides == {}
    (tmp_path / "config.yaml").write_text("model: {size: tiny}\n")
    assert parsed("--config", tmp_path / "config.yaml", "--dataset", fables_folder).model.overrides == {
        "positions": "rotary"
    }


@pytest.mark.parametrize("place", [".", "checkpoints/latest"])
def test_a_run_is_inspected_with_its_own_method(fables_folder, here, tmp_path, place):
    words = ("--dataset", fables_folder, "--size", "demo", "--max-steps", 2, "--warmup-steps", 1, "--eval-tokens", 64)
    run = tmp_path / "run"
    assert here("train", "--method", "oelm_freeze+thin=2", *words, "--quiet", "--out", run).returncode == 0
    facts = json.loads(here("inspect", run / place, "--json").stdout)
    result = json.loads((run / "result.json").read_text())
    assert facts["method"] == "oelm_freeze+thin=2"
    assert facts["frozen_parameters"] == result["frozen_parameters"] > 0
    assert facts["total_parameters"] == result["total_parameters"]
    assert json.loads(here("inspect", run / place, "--method", "baseline", "--json").stdout)["frozen_parameters"] == 0
