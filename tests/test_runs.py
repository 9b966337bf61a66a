import json
import multiprocessing
import os
import signal
import time

import pytest

from oelm.errors import OelmError
from oelm.runs import DEAD, FAILED, RUNNING, RunFolder, config_differences, find_runs

CONFIG = {"method": "baseline", "seed": 0, "training": {"max_lr": 3e-4}, "runtime": {"threads": 1}}


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(CONFIG)
    return run


def test_a_new_run_is_queued_and_keeps_its_config(folder):
    assert folder.status()["state"] == "queued"
    assert folder.config() == CONFIG
    assert folder.result() is None


def test_the_same_config_may_come_again_another_is_refused_naming_the_difference(folder):
    folder.append_metrics({"kind": "train", "step": 1})
    folder.create(CONFIG)
    folder.create({**CONFIG, "runtime": {"threads": 8}})  # how it runs is not what it computes
    assert folder.config()["runtime"] == {"threads": 8}
    folder.result_file.write_text("{}")
    folder.create({**CONFIG, "runtime": {"threads": 4}})
    assert folder.config()["runtime"] == {"threads": 8}  # how it ran is on record
    with pytest.raises(OelmError, match=r"training.max_lr is 0.0003 there and 0.001 here"):
        folder.create({**CONFIG, "training": {"max_lr": 1e-3}})


def test_a_run_that_never_started_takes_another_config(folder):
    folder.set_status(FAILED, step=0, error="OelmError: num_heads 5 does not divide d_model")
    folder.create({**CONFIG, "seed": 1})
    assert folder.config()["seed"] == 1
    assert folder.status()["state"] == "queued"


def test_a_config_that_others_put_there_or_have_in_use_is_not_replaced(folder):
    context = multiprocessing.get_context("fork")
    held = context.Event()
    holder = context.Process(target=_hold, args=(folder.path, held))
    holder.start()
    assert held.wait(10)
    folder.create({**CONFIG, "runtime": {"threads": 8}})
    with pytest.raises(OelmError, match="holds a run of another config"):
        folder.create({**CONFIG, "seed": 1})
    holder.kill()
    holder.join()
    folder.status_file.unlink()
    with pytest.raises(OelmError, match="holds a run of another config"):
        folder.create({**CONFIG, "seed": 1})
    assert folder.config() == CONFIG


def test_the_same_data_may_lie_elsewhere(folder):
    here, there = ({**CONFIG, "data": {"path": path, "fingerprint": "abc"}} for path in ("data/x", "/mnt/data/x"))
    assert config_differences(here, there) == []
    unknown = {**CONFIG, "data": {"path": "data/y", "fingerprint": None}}
    assert config_differences(here, unknown) == ["data.path is 'data/x' there and 'data/y' here"]
    folder.create(here)
    folder.append_metrics({"kind": "train", "step": 1})
    folder.create(there)
    assert folder.config()["data"]["path"] == "/mnt/data/x"  # where it is found from now on


def test_a_folder_without_config_is_no_run(tmp_path):
    with pytest.raises(OelmError, match="is not a run folder"):
        RunFolder.open(tmp_path)


def test_a_run_named_as_status_names_it_is_looked_for_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    with pytest.raises(OelmError, match=r"demo is not a run folder .* did you mean runs.demo\?"):
        RunFolder.open("demo")


def test_a_torn_last_line_is_no_row(folder):
    folder.append_metrics({"kind": "train", "step": 1, "loss": 2.0})
    with folder.metrics_file.open("a") as file:
        file.write('{"kind": "train", "step": 2, "lo')
    assert folder.metrics() == [{"kind": "train", "step": 1, "loss": 2.0}]


def test_truncating_forgets_later_rows_only(folder):
    for step in range(1, 6):
        folder.append_metrics({"kind": "train", "step": step})
        folder.append_clock({"step": step, "seconds": step / 10})
    folder.truncate_records(3)
    assert [row["step"] for row in folder.metrics()] == [1, 2, 3]
    assert [row["step"] for row in folder.clock()] == [1, 2, 3]


def _hold(path, held):
    run = RunFolder(path)
    with run.lock():
        run.set_status(RUNNING, step=5)
        held.set()
        time.sleep(60)


def test_a_second_process_cannot_train_in_the_folder_and_a_killed_one_shows_as_dead(folder):
    context = multiprocessing.get_context("fork")
    held = context.Event()
    holder = context.Process(target=_hold, args=(folder.path, held))
    holder.start()
    assert held.wait(10)
    assert folder.status()["state"] == RUNNING
    with pytest.raises(OelmError, match="another process is training"), folder.lock():
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert folder.status()["state"] == DEAD
    with folder.lock():  # and the folder is free again
        pass


def test_where_locks_cannot_be_asked_the_heartbeat_tells(folder, monkeypatch):
    with folder.lock():
        folder.set_status(RUNNING, step=5)
    monkeypatch.setattr("oelm.runs.is_locked", lambda path: None)
    assert folder.status()["state"] == RUNNING
    folder.status_file.write_text(json.dumps({"state": RUNNING, "step": 5, "heartbeat": time.time() - 3600}))
    assert folder.status()["state"] == DEAD


def test_a_damaged_status_is_an_error_that_names_the_file(folder):
    folder.status_file.write_text("{")
    with pytest.raises(OelmError, match=r"status.json cannot be read"):
        folder.status()


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b", "a"):
        RunFolder(tmp_path / "suite" / name).create(CONFIG)
    assert [run.name for run in find_runs(tmp_path)] == ["a", "b"]


def test_what_a_tracker_leaves_in_a_run_is_no_run(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(CONFIG)
    theirs = run.path / "wandb" / "offline-run-1" / "files" / "config.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("wandb_version: 1\n")
    for root in (tmp_path, run.path):
        assert [found.path for found in find_runs(root)] == [run.path]


def test_only_checkpoints_below_the_root_are_left_out(tmp_path):
    root = tmp_path / "checkpoints" / "mine"
    run = RunFolder(root / "run")
    run.create(CONFIG)
    RunFolder(run.checkpoints / "step-5").create(CONFIG)
    assert [found.path for found in find_runs(root)] == [run.path]


def test_what_follows_from_another_setting_is_not_told_beside_it_and_numbers_are_short():
    there = {"training": {"max_lr": 3e-3, "min_lr": 3e-3 / 10, "max_steps": 100, "eval_every": 10}}
    here = {"training": {"max_lr": 7e-3, "min_lr": 7e-3 / 10, "max_steps": 200, "eval_every": 20}}
    assert config_differences(there, here) == [
        "training.max_lr is 0.003 there and 0.007 here",
        "training.max_steps is 100 there and 200 here",
    ]
    del here["training"]["max_lr"], here["training"]["max_steps"], there["training"]["max_lr"]
    assert config_differences(there, here)[:2] == [
        "training.min_lr is 0.0003 there and 0.0007 here",
        "training.max_steps is 100 there and None here",
    ]
    assert "training.eval_every is 10 there and 20 here" in config_differences(there, here)


def test_config_differences_look_into_sections_and_skip_runtime():
    new = {**CONFIG, "seed": 1, "training": {"max_lr": 1e-3, "max_steps": 5}, "runtime": {}}
    assert config_differences(CONFIG, new) == [
        "seed is 0 there and 1 here",
        "training.max_lr is 0.0003 there and 0.001 here",
        "training.max_steps is None there and 5 here",
    ]


def test_why_a_run_failed_is_a_field_and_old_records_are_still_understood():
    from oelm.errors import OelmError
    from oelm.runs import diverged, failure
    from oelm.training.trainer import Diverged

    assert diverged({"state": "failed", **failure(Diverged("the loss became nan"))})
    assert not diverged({"state": "failed", **failure(OelmError("Diverged is only a word here"))})
    assert not diverged({"state": "failed", "error": "Diverged: said by a file", "reason": "error"})
    assert not diverged({"state": "finished", "reason": "diverged"})
    assert diverged({"state": "failed", "error": "Diverged: the loss became nan at step 3"})  # version 0.1
    assert failure(UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"))["reason"] == "error"
