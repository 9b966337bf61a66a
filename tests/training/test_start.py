"""Pretrain, then fine-tune: a run of ours as the start of a classifier."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import oelm
import stock
from oelm.cli.main import app
from oelm.data.labelled import prepare_task
from oelm.data.tasks import TaskSource, find_task
from oelm.runs import RunFolder
from oelm.training.checkpoints import newest_valid
from oelm.training.config import RunConfig
from oelm.training.setup import model_folder
from oelm.training.trainer import train

SHAPE = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "max_seq_len": 32, "positions": "rotary"}
METHODS = ("baseline", "oelm_freeze", "signs_qk")


def config(method, seed=0, **sections):
    base = {
        "method": method,
        "seed": seed,
        "training": {"max_steps": 4, "batch_size": 4, "eval_every": 4, "checkpoint_every": 2, "max_lr": 1e-2},
        "runtime": {"device": "cpu", "threads": 1},
    }
    return RunConfig.parse({**base, **sections})


@pytest.fixture(scope="module")
def runs(fables_folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("pretrained")
    for method in METHODS:
        model, data = {"size": "demo", "overrides": SHAPE}, {"path": str(fables_folder)}
        train(config(method, model=model, data=data), root / f"{method}-0")
    return root


@pytest.fixture(scope="module")
def task(runs, tmp_path_factory):
    files = tmp_path_factory.mktemp("rows")
    for split in ("train", "validation"):
        rows = [
            f"the {word} is {'warm' if i % 2 else 'cold'}\t{i % 2}"
            for i, word in enumerate(["fox", "crow", "hare"] * 6)
        ]
        (files / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    start = model_folder(str(runs / "baseline-0"), "", 0)
    return {"path": str(prepare_task(TaskSource(find_task("sst2"), files), start, files / "task", max_length=32).path)}


def weights(folder):
    found = load_file(newest_valid(RunFolder(folder).checkpoints).path / "model.safetensors")
    return {name.removeprefix("gpt."): tensor for name, tensor in found.items()}


@pytest.mark.parametrize("method", METHODS)
def test_what_the_run_froze_stays_frozen_and_the_rest_is_trained_on(runs, task, tmp_path, method):
    tuned = config(method, model={"name": str(runs / "{method}-{seed}")}, data=task)
    result = train(tuned, tmp_path / "run")
    before, after = weights(runs / f"{method}-0"), weights(tmp_path / "run")
    sites = RunFolder(tmp_path / "run").freeze_report()["sites"]
    frozen = {name.removeprefix("gpt.") for site in sites if site["frozen"] for name in site["hashes"]}
    assert len(frozen) == {"baseline": 0, "oelm_freeze": 4, "signs_qk": 4}[method]
    assert after.keys() - before.keys() == {"score.weight"}
    assert {name for name in before if torch.equal(before[name], after[name])} == frozen
    assert result["frozen_verified"] and "accuracy" in result["final"]
    pretrained = RunFolder(runs / f"{method}-0").result()
    assert result["frozen_parameters"] == pretrained["frozen_parameters"]


def test_a_body_starts_as_the_run_left_it(runs, task, tmp_path):
    slow = {"max_steps": 1, "batch_size": 4, "max_lr": 1e-12, "weight_decay": 0.0}
    train(
        config("oelm_freeze", model={"name": str(runs / "oelm_freeze-0")}, data=task, training=slow), tmp_path / "run"
    )
    before, after = weights(runs / "oelm_freeze-0"), weights(tmp_path / "run")
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-9)


def test_with_baseline_everything_trains(runs, task, tmp_path):
    result = train(config("baseline", model={"name": str(runs / "oelm_freeze-0")}, data=task), tmp_path / "run")
    assert result["frozen_parameters"] == 0
    before, after = weights(runs / "oelm_freeze-0"), weights(tmp_path / "run")
    assert not [name for name in before if torch.equal(before[name], after[name])]


def test_a_run_that_was_killed_goes_on_bit_for_bit(runs, task, tmp_path):
    tuned = config("signs_qk", model={"name": str(runs / "signs_qk-0")}, data=task)
    train(tuned, tmp_path / "whole")
    folder = RunFolder(tmp_path / "half")
    shutil.copytree(tmp_path / "whole", folder.path, symlinks=True)
    folder.result_file.unlink()
    shutil.rmtree(folder.checkpoints / "step-4")
    train(tuned, folder.path)
    assert folder.metrics_file.read_bytes() == RunFolder(tmp_path / "whole").metrics_file.read_bytes()
    half, whole = weights(folder.path), weights(tmp_path / "whole")
    assert all(torch.equal(half[name], whole[name]) for name in whole)


def test_what_cannot_be_started_from_is_refused_in_one_line(runs, task, tmp_path):
    def refused(method, name):
        with pytest.raises(oelm.OelmError) as error:
            train(config(method, model={"name": str(name)}, data=task), tmp_path / "run")
        assert "\n" not in str(error.value) and not (tmp_path / "run").exists()
        return str(error.value)

    assert "use --method signs_qk" in refused("baseline", runs / "signs_qk-0")
    assert "baseline-7 is no run; train it first" in refused("baseline", runs / "{method}-7")
    RunFolder(tmp_path / "queued").create(config("baseline", data=task).to_dict())
    assert "holds no checkpoint" in refused("baseline", tmp_path / "queued")


def test_the_command_tokenises_a_task_for_the_run_it_starts_from(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation"):
        rows = [f"the fox is {'warm' if i % 2 else 'cold'}\t{i % 2}" for i in range(12)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    words = [
        "train",
        "--task",
        "sst2",
        "--data-path",
        tmp_path,
        "--model",
        runs / "oelm_freeze-0",
        "--method",
        "oelm_freeze",
    ]
    short = [
        "--max-steps",
        2,
        "--batch-size",
        4,
        "--threads",
        1,
        "--device",
        "cpu",
        "--out",
        "tuned",
        "--json",
        "--quiet",
    ]
    result = CliRunner().invoke(app, [str(word) for word in (*words, *short)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["frozen_parameters"] == 4 * 32 * 32
    assert len((tmp_path / "tuned" / "predictions.jsonl").read_text().splitlines()) == 12


@pytest.mark.parametrize(("name", "method"), [("llama", "oelm_freeze"), ("gpt2", "signs_qk")])
def test_a_run_with_a_model_of_transformers_is_read_and_fine_tuned_alike(name, method, fables_folder, task, tmp_path):
    train(stock.config(name, fables_folder, method, sequence_length=stock.LENGTH), tmp_path / "lm")
    (tmp_path / "text.txt").write_text("The fox and the crow. " * 20)
    said = CliRunner().invoke(app, ["evaluate", str(tmp_path / "lm"), "--text", str(tmp_path / "text.txt"), "--json"])
    assert said.exit_code == 0 and json.loads(said.stdout)["models"][0]["context"] == 40, said.output
    result = train(config(method, model={"name": str(tmp_path / "lm")}, data=task), tmp_path / "tuned")
    before, after = (RunFolder(tmp_path / folder).freeze_report() for folder in ("lm", "tuned"))
    assert [site["hashes"] for site in before["sites"]] == [site["hashes"] for site in after["sites"]]
    assert result["frozen_verified"] and result["frozen_parameters"] == before["frozen_parameters"]
