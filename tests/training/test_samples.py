"""`--sample PROMPT`: the model writes at every validation, and training goes on as if it had not."""

import json

import pytest

from oelm.errors import OelmError
from oelm.evaluation.generation import generate
from oelm.runs import RunFolder
from oelm.training import trainer
from oelm.training.trainer import train


def asking(config, prompt="Once there was", **changes):
    run = config(**changes)
    run.runtime.sample = prompt
    return run


def samples(folder):
    return [json.loads(line) for line in folder.samples_file.read_text().splitlines()]


def test_a_text_is_kept_at_every_validation_and_the_run_is_the_same_to_the_bit(config, tmp_path):
    plain = train(config(), tmp_path / "plain")
    result = train(asking(config), tmp_path / "asked")
    assert result["final"] == plain["final"]
    asked, quiet = RunFolder(tmp_path / "asked"), RunFolder(tmp_path / "plain")
    assert asked.metrics() == quiet.metrics()
    assert not quiet.samples_file.exists()
    rows = samples(asked)
    assert [row["step"] for row in rows] == [row["step"] for row in asked.metrics("validation")]
    assert all(row["prompt"] == "Once there was" and isinstance(row["text"], str) for row in rows)
    written = generate(asked.path, "Once there was", which="latest", temperature=0)  # as far as the context reaches
    assert written
    assert rows[-1]["text"].startswith(written)


def test_a_resumed_run_has_every_sample_once(config, tmp_path, monkeypatch):
    train(asking(config), tmp_path / "whole")
    folder = RunFolder(tmp_path / "cut")
    save = trainer.Trainer._save

    def die(self, best=False):
        if self.step == self.settings.max_steps:  # the last sample is written, its checkpoint is not
            raise KeyboardInterrupt
        save(self, best)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "_save", die)
        with pytest.raises(KeyboardInterrupt):
            train(asking(config), folder.path)
    train(asking(config), folder.path)
    assert samples(folder) == samples(RunFolder(tmp_path / "whole"))


def test_sharded_models_write_no_samples(config, tmp_path):
    run = asking(config)
    run.runtime.strategy = "fsdp"
    with pytest.raises(OelmError, match="sample 'Once there was' needs a language model that is whole in one process"):
        train(run, tmp_path / "run")
