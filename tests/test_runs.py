import multiprocessing
import os
import signal
import time

import pytest

from oelm.errors import OelmError
from oelm.runs import DEAD, RUNNING, RunFolder, config_differences, find_runs

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
    folder.create(CONFIG)
    folder.create({**CONFIG, "runtime": {"threads": 8}})  # how it runs is not what it computes
    with pytest.raises(OelmError, match=r"training.max_lr is 0.0003 there and 0.001 here"):
        folder.create({**CONFIG, "training": {"max_lr": 1e-3}})


def test_a_folder_without_config_is_no_run(tmp_path):
    with pytest.raises(OelmError, match="is not a run folder"):
        RunFolder.open(tmp_path)


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


def test_a_damaged_status_is_an_error_that_names_the_file(folder):
    folder.status_file.write_text("{")
    with pytest.raises(OelmError, match=r"status.json cannot be read"):
        folder.status()


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b", "a"):
        RunFolder(tmp_path / "suite" / name).create(CONFIG)
    assert [run.name for run in find_runs(tmp_path)] == ["a", "b"]


def test_only_checkpoints_below_the_root_are_left_out(tmp_path):
    root = tmp_path / "checkpoints" / "mine"
    run = RunFolder(root / "run")
    run.create(CONFIG)
    RunFolder(run.checkpoints / "step-5").create(CONFIG)
    assert [found.path for found in find_runs(root)] == [run.path]


def test_config_differences_look_into_sections_and_skip_runtime():
    new = {**CONFIG, "seed": 1, "training": {"max_lr": 1e-3, "max_steps": 5}, "runtime": {}}
    assert config_differences(CONFIG, new) == [
        "seed is 0 there and 1 here",
        "training.max_lr is 0.0003 there and 0.001 here",
        "training.max_steps is None there and 5 here",
    ]
