"""Suites of runs as real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from oelm.data.tokens import TokenData
from oelm.errors import OelmError
from oelm.experiments import sources
from oelm.experiments.engines import find_engine
from oelm.experiments.entries import Experiment
from oelm.experiments.entries import experiment as find_experiment
from oelm.experiments.plan import plan
from oelm.experiments.runner import last_words
from oelm.runs import find_runs

TINY = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "max_seq_len": 16}


@pytest.fixture
def experiment():
    return Experiment(
        name="small",
        summary="two arms, one seed",
        data={"corpus": "fables", "tokenizer": "bpe:512"},
        arms=["baseline", "oelm_freeze"],
        seeds=[0],
        model={"size": "demo", "overrides": TINY},
        training={"max_steps": 4, "batch_size": 2},
    )


def test_the_demo_asks_three_questions_of_four_arms_with_six_seeds():
    demo = find_experiment("demo")
    assert demo.arms == ["baseline", "oelm_freeze", "oelm_random_matched", "permutation_qk+rank=8"]
    assert len(demo.seeds) == 6
    assert sources.expected(demo).path.parent.name == "demo"  # so that --dataset fables goes on meaning one thing
    assert {name for q in demo.questions for name in (q.arm, q.against)} <= set(demo.arms)


def test_an_unknown_experiment_is_refused_with_the_nearest_name():
    with pytest.raises(OelmError, match="'demp' is unknown; did you mean 'demo'"):
        find_experiment("demp")


def test_all_arms_of_a_plan_differ_in_method_and_seed_only(experiment, fables_folder, tmp_path):
    planned = plan(experiment, TokenData.open(fables_folder), tmp_path)
    configs = [run.config.to_dict() for run in planned]
    for config in configs:
        config.pop("method"), config.pop("seed")
    assert all(config == configs[0] for config in configs)


def test_a_suite_runs_and_a_second_time_repeats_nothing(experiment, fables_folder, tmp_path, forked_runs):
    planned = plan(experiment, TokenData.open(fables_folder), tmp_path, threads=1)
    jobs = find_engine("local", slots=2).run(planned)
    assert [job.exit_code for job in jobs] == [0, 0], [last_words(job.folder) for job in jobs]
    stamps = {run.path: run.result_file.stat().st_mtime_ns for run in find_runs(tmp_path)}
    assert len(stamps) == 2
    again = find_engine("local", slots=2).run(planned)
    assert all(job.task is None for job in again)
    assert {run.path: run.result_file.stat().st_mtime_ns for run in find_runs(tmp_path)} == stamps


def test_a_failed_run_is_reported_and_does_not_stop_the_others(experiment, fables_folder, tmp_path, forked_runs):
    planned = plan(experiment, TokenData.open(fables_folder), tmp_path, threads=1)
    planned[0].config.runtime.device = "cuda:99"
    jobs = find_engine("local", slots=1).run(planned)
    assert [job.failed for job in jobs] == [True, False]
    assert "'cuda:99' does not exist" in last_words(jobs[0].folder)
    status = jobs[0].folder.status()
    assert status["state"] == "failed"
    assert status["error"].startswith("device 'cuda:99' does not exist")

    planned[0].config.runtime.device = "cpu"  # the right settings go on where the wrong ones were refused
    assert not any(job.failed for job in find_engine("local", slots=1).run(planned))
    assert planned[0].config.to_dict() == jobs[0].folder.config()


def test_stopping_a_suite_checkpoints_its_runs(experiment, fables_folder, tmp_path, spawn):
    program = (
        "import sys; from pathlib import Path; from oelm.data.tokens import TokenData\n"
        "from oelm.experiments.plan import Experiment, plan; from oelm.experiments.engines import find_engine\n"
        "e = Experiment.model_validate_json(sys.argv[1])\n"
        "find_engine('local', slots=2).run(plan(e, TokenData.open(sys.argv[2]), Path(sys.argv[3]), threads=1))"
    )
    experiment.training["max_steps"] = 100_000
    process = spawn(
        [sys.executable, "-c", program, experiment.model_dump_json(), str(fables_folder), str(tmp_path / "s")],
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        runs = find_runs(tmp_path / "s")
        if len(runs) == 2 and all(len(run.metrics()) > 2 for run in runs):
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    assert [run.status()["state"] for run in find_runs(tmp_path / "s")] == ["interrupted", "interrupted"]
