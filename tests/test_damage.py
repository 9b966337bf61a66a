"""Run folders are untrusted input: whatever becomes of a record file, every reader says one line and goes on.

A small run is trained once; its files are flipped, cut and retyped some hundred times, with fixed seeds.
"""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oelm.analysis.compare.results import load_runs
from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.files import file_hash
from oelm.runs import RunFolder
from oelm.training.checkpoints import newest_valid
from oelm.training.config import RunConfig
from oelm.training.interruption import Interrupted
from oelm.training.objectives import LanguageModelling
from oelm.training.trainer import train

RECORDS = ("config.yaml", "status.json", "metrics.jsonl", "clock.jsonl", "result.json", "freeze.json",
           "environment.json", "timing_stats.json")  # fmt: skip
HOSTILE = [None, True, -5, 0, 1e400, "x", "\x1b[2J", [], {}, [[[]]], {"a": {}}, 10**400, "9" * 5000, float("nan")]
TINY = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "max_seq_len": 16}
TRAINING = {"max_steps": 4, "batch_size": 2, "eval_every": 2, "eval_tokens": 64, "log_every": 1, "warmup_steps": 1}


@pytest.fixture(scope="module")
def config(fables_folder: Path) -> RunConfig:
    return RunConfig.parse(
        {
            "method": "oelm_freeze",
            "model": {"size": "demo", "overrides": TINY},
            "data": {"path": str(fables_folder)},
            "training": TRAINING,
            "runtime": {"device": "cpu", "threads": 1},
        }
    )


@pytest.fixture(scope="module")
def finished(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    train(config, run)
    return run


@pytest.fixture(scope="module")
def stopped(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted at step 3, with a checkpoint there and one at step 2."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    original = LanguageModelling.batch

    def batch(objective, number):
        if number == 2:
            raise Interrupted(15, 2)
        return original(objective, number)

    LanguageModelling.batch = batch
    try:
        with pytest.raises(Interrupted):
            train(config, run)
    finally:
        LanguageModelling.batch = original
    return run


def flip(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def cut(data: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data))]


def retype(data: bytes, dice: random.Random) -> bytes:
    """Another value for some key, at some depth; the digest goes, as in records of before."""
    lines = data.decode().splitlines()
    if len(lines) > 1 and all(line.startswith("{") for line in lines):
        chosen = dice.randrange(len(lines))
        lines[chosen] = json.dumps(_retyped(json.loads(lines[chosen]), dice))
        return "\n".join([*lines, ""]).encode()
    if lines[0] == "{":
        value = json.loads(data)
        value.pop("sha256", None)
        return json.dumps(_retyped(value, dice)).encode()
    import yaml

    return json.dumps(_retyped(yaml.safe_load(data), dice)).encode()  # YAML reads JSON


def _retyped(value: dict, dice: random.Random) -> dict:
    key = dice.choice(list(value) or ["new"])
    inner = value.get(key)
    deeper = isinstance(inner, dict) and inner and dice.random() < 0.7
    return {**value, key: _retyped(inner, dice) if deeper else dice.choice(HOSTILE)}


def said(*words: object) -> str:
    """What a command prints; an error that is not ours, and would be a traceback, is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit | OelmError):
        raise result.exception
    if isinstance(result.exception, OelmError):
        assert "\n" not in str(result.exception) and str(words[-1]) in str(result.exception)
    return result.output


@pytest.mark.parametrize("damage", [flip, cut, retype])
@pytest.mark.parametrize("name", RECORDS)
def test_every_reader_survives_a_damaged_record(finished, tmp_path, name, damage):
    run = tmp_path / "run"
    shutil.copytree(finished, run, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(run, tmp_path / "sound")  # beside it, so that there is something to compare
    original = (run / name).read_bytes()
    for seed in range(10):
        (run / name).write_bytes(damage(original, random.Random(f"{name} {seed}")))
        for command in ("status", "watch"):
            said(command, tmp_path)
        loaded = load_runs(tmp_path)
        assert len(loaded.runs) + len(loaded.skipped) == 2
        assert not any("\n" in skipped.reason for skipped in loaded.skipped)
        assert loaded.comparisons
    said("compare", tmp_path)
    if damage is retype:
        said("report", tmp_path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [*RECORDS, ".lock", ".claim", "checkpoints/latest/state.json"])
def test_a_pipe_in_the_place_of_a_record_keeps_nobody_waiting(finished, tmp_path, name):
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    shutil.copytree(run, tmp_path / "sound", symlinks=True)
    if name.startswith("."):  # who holds it is asked of a run that has not finished
        (run / "result.json").unlink()
        (run / "status.json").write_text('{"state": "running", "pid": 1}')
    place = (run / name).resolve()
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    for command in ("status", "watch", "compare"):
        said(command, tmp_path)
    for command in ("stop", "resume", "generate", "logs"):
        said(command, run)


@pytest.mark.parametrize(
    ("value", "word"), [(-5, "-5"), (0, "0"), (True, "True"), (0.5, "0.5"), (10**400, "1000"), ("3", "3")]
)
def test_a_perplexity_that_cannot_be_is_refused(finished, tmp_path, value, word):
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    folder = RunFolder(tmp_path / "run")
    result = folder.result()
    folder.result_file.write_text(json.dumps({**result, "final": {**result["final"], "perplexity": value}}))
    with pytest.raises(OelmError, match=rf"result.json cannot be read: perplexity is '{word}"):
        folder.result()
    assert "perplexity" in load_runs(tmp_path).skipped[0].reason


def test_a_changed_value_is_found_by_its_digest(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    folder = RunFolder(tmp_path / "run")
    for file, read in ((folder.result_file, folder.result), (folder.freeze_file, folder.freeze_report)):
        assert "sha256" not in read()
        text = file.read_text()
        file.write_text(text.replace("oelm_freeze", "oelm_random", 1))
        with pytest.raises(OelmError, match=f"{file.name} cannot be read: it was changed after it was written"):
            read()
    folder.config_file.write_text(folder.config_file.read_text().replace("batch_size: 2", "batch_size: 3"))
    with pytest.raises(OelmError, match=r"config.yaml was changed since it was written"):
        folder.config()
    without = folder.config_file.read_text().splitlines()[:-1]
    folder.config_file.write_text("\n".join(without))
    assert folder.config()["training"]["batch_size"] == 3  # the change was meant


# Resuming


@pytest.fixture
def copy(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run", symlinks=True)
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("damage", [flip, cut, retype])
def test_no_damage_to_the_rows_before_a_checkpoint_goes_unnoticed(config, copy, finished, damage):
    sound = copy.metrics_file.read_bytes()
    sealed = newest_valid(copy.checkpoints).state["records"]["metrics.jsonl"]["bytes"]
    for seed in range(40):
        data = damage(sound[:sealed], random.Random(seed)) + (b"" if damage is cut else sound[sealed:])
        copy.metrics_file.write_bytes(data)
        with pytest.raises(OelmError, match=r"metrics.jsonl is not what it was when the checkpoint of step 2"):
            copy.truncate_records(2, newest_valid(copy.checkpoints).state["records"])
    with pytest.raises(OelmError, match="a row of before was changed or lost"):
        train(config, copy.path)
    assert copy.status()["state"] == "failed"
    copy.metrics_file.write_bytes(sound + b'{"kind": "train", "st')  # torn: its writer was killed
    train(config, copy.path)
    assert copy.metrics_file.read_bytes() == (finished / "metrics.jsonl").read_bytes()


def test_a_damaged_line_is_named_unless_it_is_a_torn_last_one(copy):
    rows = copy.metrics()
    copy.append_metrics({"kind": "train", "step": 3, "loss": 1.0})
    with copy.metrics_file.open("a") as file:
        file.write('{"kind": "tra')
    assert len(copy.metrics()) == len(rows) + 1
    with copy.metrics_file.open("a") as file:
        file.write('in"\n{"kind": "train", "step": 4}\n')
    with pytest.raises(OelmError, match=rf"metrics.jsonl, line {len(rows) + 2}, cannot be read"):
        copy.metrics()


@pytest.mark.parametrize("damage", [flip, cut, retype])
@pytest.mark.parametrize("name", ["state.json", "freeze.json", "config.json", "manifest.json", "model.safetensors"])
def test_a_checkpoint_of_a_stranger_is_refused_in_one_line(config, stopped, tmp_path, name, damage):
    """Also one whose hashes fit: whoever can write the file can write the manifest."""
    if name.endswith(".safetensors") and damage is retype:
        return  # it has no values to retype
    for seed in range(6):
        run = tmp_path / f"run-{seed}"
        shutil.copytree(stopped, run, symlinks=True)
        checkpoint = newest_valid(run / "checkpoints").path
        (checkpoint / name).write_bytes(damage((checkpoint / name).read_bytes(), random.Random(f"{name} {seed}")))
        if name != "manifest.json":
            hashes = {file.name: file_hash(file) for file in checkpoint.iterdir() if file.name != "manifest.json"}
            (checkpoint / "manifest.json").write_text(json.dumps({"sha256": hashes}))
        said("generate", "--tokens", 2, "--prompt", "a", run)
        try:
            train(config, run)
        except OelmError as error:
            assert "\n" not in str(error)
