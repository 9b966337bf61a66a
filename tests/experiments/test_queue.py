"""The queue on this machine, with real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.experiments.engines import find_engine
from oelm.experiments.runner import Job, Slot, claimed, command, local_slots, signals_raise
from oelm.runs import RunFolder
from processes import is_alive

SUITE = [sys.executable, "-m", "oelm", "run", "phase2", "--scale", "smoke", "--slots", "2"]
LONG = ["--set", "training.max_steps=100000", "--set", "training.eval_every=50000"]
FOLDERS = [RunFolder(f"runs/smoke/{name}") for name in ("GPT-01/baseline-0", "GPT-02/oelm_freeze-0")]


def _started(spawn, after=20):
    """A suite of two long runs, both at work."""
    suite = spawn([*SUITE, *LONG], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not all(f.holder() and f.status_file.exists() and f.status()["step"] > after for f in FOLDERS):
        assert suite.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return suite, [folder.status()["pid"] for folder in FOLDERS]


def _require_saved():
    for folder in FOLDERS:
        assert folder.status()["state"] == "interrupted"
        assert (folder.checkpoints / "latest").exists()


def _require_gone(pids):
    """The lock is free a moment before its owner has left; an orphan may stay a zombie until somebody reaps it."""
    deadline = time.monotonic() + 20
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.05)


def test_ctrl_c_checkpoints_and_stops_all_and_the_same_command_goes_on(workplace, spawn):
    suite, pids = _started(spawn)
    suite.send_signal(signal.SIGINT)
    _, said = suite.communicate(timeout=60)
    assert suite.returncode == 130
    assert "have saved themselves: the same command goes on" in said.splitlines()[-1]
    _require_saved()
    _require_gone(pids)

    before = FOLDERS[0].status()["step"]
    suite, pids = _started(spawn, after=before)
    assert CliRunner().invoke(app, ["stop", "--all", "--in", "runs"]).exit_code == 0
    assert suite.wait(60) == 143  # else it would have started the next run in the place of a stopped one
    _require_saved()
    _require_gone(pids)
    assert f"from step {before}" in FOLDERS[0].log_file.read_text()


def test_the_runs_of_a_killed_suite_save_themselves(workplace, spawn):
    suite, _ = _started(spawn)
    suite.kill()
    suite.wait()
    deadline = time.monotonic() + 30
    while any(folder.locked for folder in FOLDERS) and time.monotonic() < deadline:
        time.sleep(0.1)
    _require_saved()


def test_two_suites_cannot_have_the_same_run(smoke):
    runs = smoke("phase2")
    refusal = r"another 'oelm run' has runs/GPT-02/oelm_freeze-0 in its queue"
    with _claimed(runs[1]), pytest.raises(OelmError, match=refusal):
        find_engine("local", slots=1).run(runs)
    assert RunFolder(runs[0].folder).result() is None  # nothing was begun


def _claimed(run):
    folder = RunFolder(run.folder)
    folder.create(run.config.to_dict())
    return folder.claim()


def test_a_run_that_is_being_trained_is_refused_naming_its_process(smoke):
    (run,) = smoke("GPT-01")
    folder = RunFolder(run.folder)
    folder.create(run.config.to_dict())
    with folder.lock(), pytest.raises(OelmError, match=rf"is being trained by process {os.getpid()} on "):
        find_engine("local", slots=1).run([run])


def test_nohup_stays_in_force_while_a_suite_runs():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_raise():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_slots_are_gpus_or_shares_of_the_cpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert local_slots([2, 3], None) == [Slot((2,)), Slot((3,))]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Slot((2, 3)).environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert Slot().environment == {"CUDA_VISIBLE_DEVICES": ""}  # a share of the CPU sees no GPU
    assert len(local_slots(None, None)) == 4
    assert local_slots(None, 3) == [Slot()] * 3
    with pytest.raises(OelmError, match="GPU 4, 7 does not exist; this machine has GPUs 0 to 3"):
        local_slots([0, 4, 7], None)
    with pytest.raises(OelmError, match="exclude each other"):
        local_slots([0], 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(OelmError, match="GPU 0 does not exist; this machine has no GPU; use --slots"):
        local_slots([0], None)


def test_gpus_are_counted_among_those_that_we_may_see(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for seen in ("2,3", "GPU-8f,GPU-1c"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in local_slots(None, None)] == seen.split(",")
        with pytest.raises(OelmError, match=f"GPU 2 does not exist; CUDA_VISIBLE_DEVICES={seen} leaves GPUs 0 to 1"):
            local_slots([2], None)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1, 2])
def test_a_resumed_run_that_breaks_down_at_once_has_failed(code):
    job = Job(None, RunFolder("runs/x"), exit_code=code, status={"state": "interrupted"})
    assert (job.failed, job.stopped) == (True, False)
    expected = "was killed by SIGKILL (perhaps for lack of memory)" if code < 0 else f"failed with exit code {code}"
    assert job.reason == expected


@pytest.mark.parametrize("code", [130, 143, -signal.SIGINT, -signal.SIGTERM])
def test_a_run_that_left_on_request_was_stopped(code):
    job = Job(None, RunFolder("runs/x"), exit_code=code)
    assert (job.failed, job.stopped) == (False, True)


def test_a_damaged_status_or_result_is_the_trouble_of_its_run_alone(smoke):
    runs = smoke("phase2", "GPT-03")
    with claimed(runs):
        pass
    folders = [RunFolder(run.folder) for run in runs]
    folders[0].append_metrics({"kind": "train", "step": 1})
    folders[0].status_file.write_text("")  # its next status will be written over it
    folders[1].result_file.write_text("")
    with claimed(runs) as jobs:
        assert [job.exit_code for job in jobs] == [None, 1, None]
        assert "status.json cannot be read" in jobs[0].status["error"]
        assert "result.json cannot be read" in jobs[1].last_words
        folders[2].status_file.write_text("")
        jobs[2].ended(1)
        assert jobs[2].failed


def test_a_run_of_several_processes_starts_them_itself():
    assert command(RunFolder("runs/x"))[-4:] == ["oelm", "resume", "runs/x", "--quiet"]
    assert command(RunFolder("runs/x"), nproc=2)[-6:] == ["oelm", "resume", "runs/x", "--quiet", "--nproc", "2"]
