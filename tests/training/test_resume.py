"""A run that was stopped and continued leaves the very files of a run that never stopped."""

import json
import os
import signal
import sys
import time

import pytest

from oelm.runs import RunFolder
from oelm.training.checkpoints import newest_valid
from oelm.training.config import RunConfig
from oelm.training.interruption import Interrupted
from oelm.training.objectives import LanguageModelling
from oelm.training.trainer import train

SAME = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "freeze.json", "tokenizer.json")


def fingerprint(run):
    """Everything that must not depend on whether the run was interrupted."""
    folder = RunFolder(run)
    hashes = json.loads((newest_valid(folder.checkpoints).path / "manifest.json").read_text())["sha256"]
    result = folder.result()
    return {
        "metrics": folder.metrics_file.read_bytes(),
        "checkpoint": {name: hashes[name] for name in SAME},
        "final": result["final"],
        "best": result["best"],
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """whole(config): the fingerprint of the run that nobody interrupted; equal configs are trained once."""
    known = {}

    def of(config):
        key = json.dumps(config.to_dict())
        if key not in known:
            run = tmp_path_factory.mktemp("whole") / "run"
            train(config, run)
            known[key] = fingerprint(run)
        return known[key]

    return of


class SignalAt:
    """Send ourselves a real SIGTERM when the given method of the objective is called for the n-th time."""

    def __init__(self, monkeypatch, method, calls):
        self.remaining = list(calls)
        self.count = 0
        original = getattr(LanguageModelling, method)

        def wrapped(objective, *args, **kwargs):
            self.count += 1
            if self.remaining and self.count == self.remaining[0]:
                self.remaining.pop(0)
                os.kill(os.getpid(), signal.SIGTERM)
            return original(objective, *args, **kwargs)

        monkeypatch.setattr(LanguageModelling, method, wrapped)


def interrupted_then_finished(config, out):
    """Train until done, continuing after every interruption; return how often it was interrupted."""
    interruptions = 0
    while True:
        try:
            train(config, out)
            return interruptions
        except Interrupted as interruption:
            assert interruption.exit_code == 143
            assert RunFolder(out).status()["state"] == "interrupted"
            interruptions += 1


@pytest.mark.parametrize(
    ("where", "method", "calls"),
    [
        ("step 1", "batch", [1]),
        ("mid-accumulation", "batch", [10]),  # two micro-batches per step: the second one of step 5
        ("evaluation", "validate", [1]),
        ("twice in a row", "batch", [9, 11]),
        ("the last step", "batch", [23]),
    ],
)
def test_resume_is_bitwise(config, whole, tmp_path, monkeypatch, where, method, calls):
    unbroken = whole(config())
    SignalAt(monkeypatch, method, calls)
    assert interrupted_then_finished(config(), tmp_path / "parts") == len(calls)
    assert fingerprint(tmp_path / "parts") == unbroken


def test_resume_is_bitwise_across_the_end_of_an_epoch(config, whole, tmp_path, monkeypatch, fables_folder):
    from oelm.data.tokens import TokenData

    samples = (len(TokenData.open(fables_folder).train) - 1) // 32
    batch = samples // 5  # the epoch ends inside step 6, which is also where the signal comes
    settings = {"batch_size": batch, "accumulation": 1, "max_steps": 9}
    unbroken = whole(config(**settings))
    SignalAt(monkeypatch, "batch", [6, 7])
    assert interrupted_then_finished(config(**settings), tmp_path / "parts") == 2
    assert fingerprint(tmp_path / "parts") == unbroken


@pytest.mark.parametrize("method", ["baseline", "q_only"])
def test_resume_is_bitwise_for_other_methods(config, whole, tmp_path, monkeypatch, method):
    unbroken = whole(config(method))
    SignalAt(monkeypatch, "batch", [13])
    assert interrupted_then_finished(config(method), tmp_path / "parts") == 1
    assert fingerprint(tmp_path / "parts") == unbroken


def test_a_killed_process_loses_only_what_came_after_its_last_checkpoint(config, whole, tmp_path, spawn):
    settings = {"max_steps": 200, "eval_every": 100, "checkpoint_every": 20, "accumulation": 1}
    unbroken = whole(config(**settings))
    folder = RunFolder(tmp_path / "killed")
    folder.create(config(**settings).to_dict())
    process = spawn([sys.executable, "-m", "oelm", "resume", str(folder.path), "--quiet"])
    deadline = time.monotonic() + 60
    while not any(folder.checkpoints.glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert folder.result() is None
    train(config(**settings), folder.path)
    assert fingerprint(folder.path) == unbroken


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(config, whole, tmp_path, monkeypatch):
    unbroken = whole(config())
    SignalAt(monkeypatch, "batch", [20])
    with pytest.raises(Interrupted):
        train(config(), tmp_path / "parts")
    newest = newest_valid(tmp_path / "parts" / "checkpoints").path
    (newest / "optimizer.safetensors").write_bytes(b"not what it was")
    train(config(), tmp_path / "parts")
    assert fingerprint(tmp_path / "parts") == unbroken


def test_a_finished_run_is_returned_as_it_is(config, tmp_path, monkeypatch):
    first = train(config(), tmp_path / "run")
    monkeypatch.setattr(LanguageModelling, "batch", None)  # no training could happen now
    assert train(config(), tmp_path / "run") == first


def test_a_finished_run_needs_its_data_no_more(config, tmp_path):
    first = train(config(max_steps=2, warmup_steps=1), tmp_path / "run")
    again = RunConfig.load(tmp_path / "run" / "config.yaml")
    again.data.path = str(tmp_path / "gone")
    assert train(again, tmp_path / "run") == first
    again.runtime.nproc = 2  # nor the processes it had
    assert train(again, tmp_path / "run") == first


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGHUP", 129), ("SIGQUIT", 131)])
def test_every_request_saves_and_exits_with_128_and_its_number(config, tmp_path, monkeypatch, name, code):
    original = LanguageModelling.batch

    def batch(objective, micro_step):
        os.kill(os.getpid(), getattr(signal, name))
        return original(objective, micro_step)

    monkeypatch.setattr(LanguageModelling, "batch", batch)
    with pytest.raises(Interrupted) as caught:
        train(config(accumulation=1), tmp_path / "run")
    assert caught.value.exit_code == code
    assert RunFolder(tmp_path / "run").status()["state"] == "interrupted"
    assert newest_valid(tmp_path / "run" / "checkpoints").step == 1


@pytest.mark.parametrize(
    "method",
    ["oelm_freeze+thaw=top-down:4:7+warmup=3", "oelm_freeze+thaw=bottom-up:3+refreeze=9", "baseline+every=3+lr=0.5",
     "permutation_qk+rank=2+mix+gain+scale+shift", "oelm_qk_ffn", "oelm_freeze+ratio=0.2+layer_lr=0.9"],
)  # fmt: skip
@pytest.mark.parametrize("calls", [[5], [7, 9], [13, 17]])  # in steps 3, 4 and 5, 7 and 9: before, at and after a flip
def test_resume_is_bitwise_around_every_flip_of_a_schedule(config, whole, tmp_path, monkeypatch, method, calls):
    unbroken = whole(config(method))
    SignalAt(monkeypatch, "batch", calls)
    assert interrupted_then_finished(config(method), tmp_path / "parts") == len(calls)
    assert fingerprint(tmp_path / "parts") == unbroken


def test_an_echo_of_the_request_while_the_state_is_written_kills_nobody(config, tmp_path, monkeypatch):
    """A parent that dies asks once for each of its threads; the last of them may come late."""
    killed = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: killed.append(number))
    original = RunFolder.set_status

    def set_status(folder, state, **facts):
        if state == "interrupted":
            os.kill(os.getpid(), signal.SIGTERM)
        original(folder, state, **facts)

    monkeypatch.setattr(RunFolder, "set_status", set_status)
    SignalAt(monkeypatch, "batch", [4])
    try:
        with pytest.raises(Interrupted):
            train(config(), tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert RunFolder(tmp_path / "run").status()["state"] == "interrupted"
    assert not killed
