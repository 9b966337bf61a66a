"""Beyond one machine: a real Ray cluster of two nodes, and SLURM jobs as submitit would hand them over."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from oelm.errors import OelmError
from oelm.experiments.engines import Slurm, Training, _ray_scheduler, find_engine
from oelm.runs import RunFolder

LONG = ["training.max_steps=1000", "training.eval_every=500", "training.checkpoint_every=25"]


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def at_step(folder, step):
    return lambda: folder.status_file.exists() and folder.status()["step"] > step


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def cluster(workplace):
    """A Ray cluster of a head without cores and two nodes with one core each."""
    pytest.importorskip("ray", reason="needs ray (pip install '.[cluster]' in your clone)")
    from ray.cluster_utils import Cluster

    # By itself it asks every three seconds whether a node is alive, and five refusals are needed.
    often = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": often}
    made = Cluster(initialize_head=True, head_node_args=head)
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    yield made, nodes
    made.shutdown()


@pytest.mark.timeout(600)  # Ray takes its time to believe that a node is lost, on busy cores minutes
def test_a_run_whose_ray_node_is_lost_resumes_elsewhere_from_its_checkpoint(cluster, spawn):
    made, nodes = cluster
    words = [sys.executable, "-m", "oelm", "run", "phase2", "--scale", "smoke", "--engine", "ray"]
    settings = [word for setting in LONG for word in ("--set", setting)]
    suite = spawn(
        [*words, "--address", made.address, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    folders = [RunFolder(f"runs/smoke/{name}") for name in ("GPT-01/baseline-0", "GPT-02/oelm_freeze-0")]
    for folder in folders:
        wait_for(at_step(folder, 30))
    trainer = folders[0].status()["pid"]
    worker = parent_of(trainer)
    raylet = parent_of(worker)
    (lost,) = [node for node in nodes if node.all_processes["raylet"][0].process.pid == raylet]
    for pid in (trainer, worker):
        os.kill(pid, signal.SIGSTOP)  # the machine is gone, all at once: nothing can be saved or said any more
    made.remove_node(lost, allow_graceful=False)
    for pid in (worker, trainer):
        os.kill(pid, signal.SIGKILL)
    output, errors = suite.communicate(timeout=300)
    assert suite.returncode == 0, errors
    assert "2 of 2 runs finished" in output
    resumed = [line for line in folders[0].log_file.read_text().splitlines() if "from step" in line]
    assert len(resumed) == 2
    assert not resumed[1].endswith("from step 0")
    assert [folder.result()["steps"] for folder in folders] == [1000, 1000]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the sockets in /proc")
def test_a_local_ray_cluster_cannot_be_reached_from_outside(workplace, monkeypatch, spawn):
    pytest.importorskip("ray", reason="needs ray (pip install '.[cluster]' in your clone)")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    program = (
        "import os; from oelm.experiments.engines import find_engine; from processes import reachable_from_outside\n"
        "find_engine('ray').run([], watch=lambda jobs: print(*reachable_from_outside(os.getpid())))"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])])
    )
    said = spawn([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True).communicate(timeout=120)[0]
    outside, listening = said.split()
    assert outside == "[]" and int(listening) > 0


def test_a_preempted_slurm_job_saves_itself_and_goes_on_when_it_is_queued_again(smoke):
    pytest.importorskip("submitit", reason="needs submitit (pip install '.[cluster]' in your clone)")
    (run,) = smoke("GPT-02", settings=LONG)
    folder = RunFolder(run.folder)
    engine = Slurm(cluster="local", scheduler_options=["timeout_min=10", "gpus_per_node=0"])
    preempted = []

    def watch(jobs):
        if not preempted and at_step(folder, 30)():
            preempted.append(folder.status())
            os.kill(parent_of(folder.status()["pid"]), signal.SIGUSR2)  # what SLURM sends before it takes a node away

    (job,) = engine.run([run], watch)
    assert not job.failed, folder.log_file.read_text()
    assert folder.result()["steps"] == 1000
    starts = [line for line in folder.log_file.read_text().splitlines() if "from step" in line]
    assert len(starts) == 2
    assert int(starts[1].rpartition(" ")[2]) > preempted[0]["step"] - 1


def test_a_cancelled_slurm_job_has_its_run_save_itself(smoke):
    pytest.importorskip("submitit", reason="needs submitit (pip install '.[cluster]' in your clone)")
    (run,) = smoke("GPT-02", settings=["training.max_steps=100000", *LONG[1:]])
    folder = RunFolder(run.folder)
    cancelled = []

    def watch(jobs):
        if not cancelled and at_step(folder, 30)():
            cancelled.append(os.kill(parent_of(folder.status()["pid"]), signal.SIGTERM))  # as scancel does

    (job,) = Slurm(cluster="local", scheduler_options=["timeout_min=10", "gpus_per_node=0"]).run([run], watch)
    assert (job.exit_code, job.stopped) == (143, True)
    assert folder.status()["state"] == "interrupted"
    assert (folder.checkpoints / "latest").exists()


def test_slurm_gets_the_job_back_only_when_its_run_has_saved(tmp_path, spawn):
    pytest.importorskip("submitit", reason="needs submitit (pip install '.[cluster]' in your clone)")
    program = (
        "import pathlib, signal, sys, time\n"
        "def save(*_): time.sleep(0.5); pathlib.Path('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save); print('ready', flush=True); time.sleep(60)"
    )
    training = Training("runs/x", str(tmp_path), 1)
    training.process = spawn([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE)
    assert training.process.stdout.readline() == b"ready\n"
    again = training.checkpoint()
    assert (tmp_path / "saved").exists()
    assert again.function.process is None  # what is queued again starts from nothing but the folder
    assert training.process.wait() == 143


def test_more_processes_than_any_ray_machine_has_room_for_are_refused():
    machines = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0}]
    ray = SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": resources} for resources in machines])
    with pytest.raises(OelmError, match=r"--nproc 4 needs so many GPUs and CPUs on one machine, .* more than 2; lower"):
        _ray_scheduler(ray, nproc=4)
    machines.pop(0)
    with pytest.raises(OelmError, match="--nproc 65 needs so many CPUs on one machine"):
        _ray_scheduler(ray, nproc=65)


@pytest.fixture
def fake_slurm(workplace, monkeypatch):
    """Commands that take a job and never run it."""
    tools = workplace / "bin"
    tools.mkdir()
    for name, body in {"sbatch": "echo Submitted batch job 42", "srun": "true", "sacct": "true"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod((tools / name).stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")


def test_the_sbatch_file_asks_for_what_a_run_needs(fake_slurm):
    pytest.importorskip("submitit", reason="needs submitit (pip install '.[cluster]' in your clone)")
    engine = find_engine("slurm", nproc=2, scheduler_options=["slurm_partition=gpu", "timeout_min=90"])
    job = engine.executor().submit(Training("runs/x", os.getcwd(), 2))
    text = Path(job.paths.submission_file).read_text()
    for line in ("--partition=gpu", "--time=90", "--gpus-per-node=2", "--signal=USR2@300", "--job-name=oelm"):
        assert f"#SBATCH {line}" in text


def test_mistakes_are_one_line(workplace, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    if __import__("importlib").util.find_spec("submitit"):
        with pytest.raises(OelmError, match="--engine slurm: Could not detect"):
            find_engine("slurm").run([])
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(OelmError, match=r"--engine slurm needs submitit: pip install '.\[cluster\]' in your clone"):
        find_engine("slurm").run([])
    with pytest.raises(OelmError, match="use --slurm KEY=VALUE"):
        find_engine("slurm", slots=2)
    with pytest.raises(OelmError, match="Ray knows the cluster's GPUs and cores"):
        find_engine("ray", gpus=[0])
    with pytest.raises(OelmError, match="--address is for --engine ray"):
        find_engine("local", address="auto")
    with pytest.raises(OelmError, match="engine 'ra' is unknown; did you mean 'ray'"):
        find_engine("ra")
